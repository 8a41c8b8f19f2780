//! The values of variables in an exchange without HTTP.

use std::borrow::Cow;

use super::{ClientProtocol, Exchange};
use crate::variable::Variable;

/// The protocol of a stream, as nginx names it in `$protocol`.
fn protocol_name(protocol: ClientProtocol) -> &'static [u8] {
    if protocol == ClientProtocol::Udp { b"UDP" } else { b"TCP" }
}

/// The scheme of a side of a stream.
pub(super) fn scheme(protocol: ClientProtocol, is_secured: bool) -> &'static str {
    match protocol {
        ClientProtocol::Udp => "udp",
        _ if is_secured => "tls",
        _ => "tcp",
    }
}

impl Exchange {
    /// The value in an exchange without HTTP: variables of requests and responses have none.
    #[cold]
    pub(super) fn stream_variable(&self, variable: &Variable) -> Option<Cow<'_, [u8]>> {
        match variable {
            Variable::ServerProtocol => Some(Cow::Borrowed(protocol_name(self.client.protocol))),
            Variable::UpstreamScheme => {
                let scheme = scheme(self.client.protocol, self.upstream.tls);
                self.upstream.addr.map(|_| Cow::Borrowed(scheme.as_bytes()))
            }
            variable if is_of_requests(variable) => None,
            // TLS that is passed through: nothing but the name in its first message is known.
            variable if is_of_handshakes(variable) && !self.client.tls => None,
            variable => self.value_of(variable),
        }
    }
}

fn is_of_requests(variable: &Variable) -> bool {
    use Variable::*;
    matches!(
        variable,
        Uri | RequestUri
            | EscapedRequestUri
            | UpstreamUri
            | Host
            | Method
            | Https
            | Query
            | QueryMark
            | RequestLine
            | Http2
            | ContentLength
            | ContentType
            | RemoteUser
            | RequestBody
            | PublicPortSuffix
            | ServerName
            | UpstreamHost
            | BodyBytesSent
            | UpstreamStatus
            | UpstreamResponseLength
            | Argument(_)
            | Header(_)
            | Cookie(_)
            | SentHeader(_)
            | UpstreamHeader(_)
            | UriParameter(_)
            | AuthorizationMetadata(_)
            | ProcessorMetadata(_)
            | PostArgument(_)
            | PostPath(_)
    )
}

fn is_of_handshakes(variable: &Variable) -> bool {
    use Variable::*;
    matches!(
        variable,
        TlsProtocol
            | TlsCipher
            | TlsCurve
            | TlsSessionReused
            | TlsClientVerify
            | TlsClientSubject
            | TlsClientIssuer
            | TlsClientSerial
            | TlsClientFingerprint
            | TlsClientCertificate
            | TlsClientEscapedCertificate
            | TlsClientSanUri
            | TlsClientSanDns
            | TlsClientSanEmail
    )
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::tls::Tls;
    use crate::variable::Variables;

    fn value(exchange: &Exchange, name: &str) -> Option<String> {
        let value = exchange.variable(&Variable::named(name))?;
        Some(String::from_utf8(value.into_owned()).expect("test values are text"))
    }

    #[test]
    fn a_stream_has_no_values_of_requests() {
        let mut exchange = Exchange::default();
        exchange.client.protocol = ClientProtocol::Tcp;
        (exchange.request_bytes, exchange.response_bytes) = (7, 9);
        (exchange.started_ns, exchange.ended_ns) = (1_000_000_000, 3_500_000_000);
        exchange.client.protocol = ClientProtocol::Udp;
        assert_eq!(value(&exchange, "protocol").as_deref(), Some("UDP"));
        assert_eq!(value(&exchange, "scheme").as_deref(), Some("udp"));
        exchange.client.protocol = ClientProtocol::Tcp;
        for (name, want) in [
            ("protocol", Some("TCP")),
            ("scheme", Some("tcp")),
            ("bytes_received", Some("7")),
            ("bytes_sent", Some("9")),
            ("session_time", Some("2.500")),
            ("remote_addr", Some("0.0.0.0")),
            ("request_method", None),
            ("request_uri", None),
            ("host", None),
            ("http_user_agent", None),
            ("upstream_scheme", None),
        ] {
            assert_eq!(value(&exchange, name).as_deref(), want, "{name}");
        }
    }

    #[test]
    fn of_tls_that_is_passed_through_only_the_name_is_known() {
        let mut exchange = Exchange::default();
        exchange.client.protocol = ClientProtocol::Tcp;
        exchange.tls = Some(Rc::new(Tls { server_name: Some("db.example".into()), ..Tls::default() }));
        assert_eq!(value(&exchange, "ssl_preread_server_name").as_deref(), Some("db.example"));
        assert_eq!(value(&exchange, "ssl_client_verify"), None);
        exchange.client.tls = true;
        assert_eq!(value(&exchange, "ssl_client_verify").as_deref(), Some("NONE"));
        assert_eq!(value(&exchange, "scheme").as_deref(), Some("tls"));
    }
}
