//! TLS facts of a client's connection.

/// The TLS of one connection, shared by all its exchanges.
#[derive(Debug, Default)]
pub struct Tls {
    /// `TLSv1.2` or `TLSv1.3`.
    pub version: &'static str,
    /// The name in OpenSSL.
    pub cipher: &'static str,
    /// The group of the key exchange; empty if there was none, as in a session of TLS 1.2 that was resumed.
    pub curve: &'static str,
    /// The server name (SNI) of the client's hello, in lower case.
    pub server_name: Option<Box<str>>,
    pub resumed: bool,
    /// The client's verified certificate, if one was requested and sent. It was verified by the authorities of the server name in the
    /// handshake; whether these count for the host of a request says [`Exchange::client_is_proved`](crate::Exchange::client_is_proved).
    pub certificate: Option<ClientCertificate>,
    /// A digest of the client-certificate requirements of the connection: equal for equal requirements, zero if there are none.
    pub proof: [u8; 32],
}

/// A client's certificate in the form of variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Distinguished names as RFC 4514 writes them, the most specific part first.
    pub subject: Box<str>,
    pub issuer: Box<str>,
    /// Hexadecimal, in upper case.
    pub serial: Box<str>,
    /// SHA-1 of the certificate, hexadecimal in lower case, as in nginx.
    pub fingerprint: Box<str>,
    pub pem: Box<str>,
    /// Its alternative names by kind, as lists with commas, which no name contains: URIs, DNS names in lower case, and e-mail
    /// addresses with their domain in lower case.
    pub san_uri: Box<str>,
    pub san_dns: Box<str>,
    pub san_email: Box<str>,
    /// The common name of the subject, if it has exactly one, and the certificate has no such alternative names; otherwise empty.
    pub common_name: Box<str>,
    /// SHA-256 of the certificate, hexadecimal in lower case.
    pub sha256: Box<str>,
    /// The last second of its validity, since 1970.
    pub until: i64,
}
