//! What TLS says about a client's connection.

/// The TLS of one connection, the same for all its exchanges.
#[derive(Debug, Default)]
pub struct Tls {
    /// `TLSv1.2` or `TLSv1.3`.
    pub version: &'static str,
    /// As OpenSSL calls it.
    pub cipher: &'static str,
    /// Whom the client asked for, in lower case.
    pub server_name: Option<Box<str>>,
    pub resumed: bool,
    /// What the client has proved to be its own, where it was asked to.
    pub certificate: Option<ClientCertificate>,
    /// Equal for connections whose clients had to prove the same; zeros where nothing was asked.
    pub proof: [u8; 32],
}

/// A client's certificate, as variables show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Distinguished names as RFC 4514 writes them, the most specific part first.
    pub subject: Box<str>,
    pub issuer: Box<str>,
    /// Hexadecimal, in upper case.
    pub serial: Box<str>,
    /// SHA-1 of the certificate, hexadecimal in lower case, as nginx has it.
    pub fingerprint: Box<str>,
    pub pem: Box<str>,
}
