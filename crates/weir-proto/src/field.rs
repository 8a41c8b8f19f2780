//! Field names the gateway itself gives meaning to, recognised once while a head is parsed.

/// A field name with a meaning for the gateway; everything else is [`Known::Other`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Known {
    #[default]
    Other,
    Accept,
    Connection,
    ContentLength,
    Date,
    Expect,
    Forwarded,
    Host,
    Http2Settings,
    /// `X-Consumer-*`, `X-Credential-Identifier`: who the caller is, said by an auth plugin only.
    Identity,
    KeepAlive,
    ProxyAuthenticate,
    ProxyAuthenticationInfo,
    ProxyAuthorization,
    ProxyConnection,
    /// `X-Original-URL`, `X-Rewrite-URL`: some upstreams route by them instead of by the target.
    RewrittenUrl,
    Server,
    Te,
    Trailer,
    TransferEncoding,
    Upgrade,
    XForwardedFor,
    XForwardedHost,
    XForwardedPort,
    XForwardedPrefix,
    XForwardedProto,
    XRealIp,
}

impl Known {
    /// Recognises a name in any case. The length decides the candidates, so most names cost one jump.
    pub fn parse(name: &[u8]) -> Known {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        match name.len() {
            2 if is("te") => Known::Te,
            4 if is("host") => Known::Host,
            4 if is("date") => Known::Date,
            6 if is("accept") => Known::Accept,
            6 if is("expect") => Known::Expect,
            6 if is("server") => Known::Server,
            7 if is("upgrade") => Known::Upgrade,
            7 if is("trailer") => Known::Trailer,
            9 if is("x-real-ip") => Known::XRealIp,
            9 if is("forwarded") => Known::Forwarded,
            10 if is("connection") => Known::Connection,
            10 if is("keep-alive") => Known::KeepAlive,
            13 if is("x-rewrite-url") => Known::RewrittenUrl,
            14 if is("content-length") => Known::ContentLength,
            14 if is("http2-settings") => Known::Http2Settings,
            14 if is("x-original-url") => Known::RewrittenUrl,
            15 if is("x-forwarded-for") => Known::XForwardedFor,
            16 if is("x-forwarded-host") => Known::XForwardedHost,
            16 if is("x-forwarded-port") => Known::XForwardedPort,
            16 if is("proxy-connection") => Known::ProxyConnection,
            17 if is("transfer-encoding") => Known::TransferEncoding,
            17 if is("x-forwarded-proto") => Known::XForwardedProto,
            18 if is("proxy-authenticate") => Known::ProxyAuthenticate,
            18 if is("x-forwarded-prefix") => Known::XForwardedPrefix,
            19 if is("proxy-authorization") => Known::ProxyAuthorization,
            23 if is("x-credential-identifier") => Known::Identity,
            25 if is("proxy-authentication-info") => Known::ProxyAuthenticationInfo,
            11.. if name[..11].eq_ignore_ascii_case(b"x-consumer-") => Known::Identity,
            _ => Known::Other,
        }
    }

    /// Meant for the next hop only, so never forwarded as it came (RFC 9110 §7.6.1, RFC 9113 §3.1 for `HTTP2-Settings`).
    pub fn is_hop_by_hop(self) -> bool {
        matches!(
            self,
            Known::Connection
                | Known::KeepAlive
                | Known::ProxyConnection
                | Known::ProxyAuthenticate
                | Known::ProxyAuthenticationInfo
                | Known::ProxyAuthorization
                | Known::Te
                | Known::Trailer
                | Known::TransferEncoding
                | Known::Upgrade
                | Known::Http2Settings
        )
    }

    /// What a proxy says about the client. Believed only from trusted peers.
    pub fn is_forwarding(self) -> bool {
        matches!(
            self,
            Known::XForwardedFor
                | Known::XForwardedHost
                | Known::XForwardedPort
                | Known::XForwardedPrefix
                | Known::XForwardedProto
                | Known::XRealIp
                | Known::Forwarded
                | Known::RewrittenUrl
        )
    }

    /// Never allowed in a trailer section: framing, routing, authentication and identity (RFC 9110 §6.5.1).
    pub fn is_forbidden_in_trailers(self) -> bool {
        self.is_hop_by_hop()
            || self.is_forwarding()
            || matches!(self, Known::ContentLength | Known::Host | Known::Expect | Known::Identity)
    }
}

/// `true` for the bytes of a token (RFC 9110 §5.6.2).
pub const fn is_token_byte(byte: u8) -> bool {
    matches!(byte,
        b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z')
}

/// A field name is a token (RFC 9110 §5.1).
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|&byte| is_token_byte(byte))
}

/// A field value holds visible characters, blanks, tabs and obs-text; nothing that could end a line (RFC 9110 §5.5).
pub fn is_value(value: &[u8]) -> bool {
    value.iter().all(|&byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f))
}

/// Splits a comma-separated list and trims blanks; empty elements are skipped (RFC 9110 §5.6.1.2).
pub fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trim).filter(|element| !element.is_empty())
}

/// Removes blanks and tabs at both ends. Only these two: `\x85` and `\xa0` are obs-text, not white space.
pub fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_in_any_case() {
        assert_eq!(Known::parse(b"Content-Length"), Known::ContentLength);
        assert_eq!(Known::parse(b"TRANSFER-encoding"), Known::TransferEncoding);
        assert_eq!(Known::parse(b"x-consumer-anything"), Known::Identity);
        assert_eq!(Known::parse(b"X-Credential-Identifier"), Known::Identity);
        assert_eq!(Known::parse(b"x-consumed"), Known::Other);
        assert_eq!(Known::parse(b""), Known::Other);
    }

    #[test]
    fn obs_text_is_not_white_space() {
        assert_eq!(trim(b" \tadmin\x85 "), b"admin\x85");
        assert_eq!(trim(b"\xa0x"), b"\xa0x");
    }

    #[test]
    fn lists_skip_empty_elements() {
        assert_eq!(list(b" a ,, b,").collect::<Vec<_>>(), [&b"a"[..], b"b"]);
    }
}
