//! The values of variables in an exchange.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::LazyLock;

use jiff::{Timestamp, tz::TimeZone};
use weir_proto::{Field, Head, Known, Version, field};

use super::{AttemptRecord, Exchange, post_path};
use crate::form;
use crate::tls::{ClientCertificate, Tls};
use crate::variable::{Variable, Variables};

type Value<'a> = Option<Cow<'a, [u8]>>;

fn bytes(value: &[u8]) -> Value<'_> {
    Some(Cow::Borrowed(value))
}

fn text(value: impl ToString) -> Value<'static> {
    Some(Cow::Owned(value.to_string().into_bytes()))
}

/// A name; `None` if the configuration gives none.
fn name(value: Option<&str>) -> Value<'_> {
    value.filter(|value| !value.is_empty()).map(|value| Cow::Borrowed(value.as_bytes()))
}

/// Seconds with milliseconds, as nginx writes durations; `None` while either end is unknown.
fn seconds(from_ns: u64, to_ns: u64) -> Value<'static> {
    (from_ns != 0 && to_ns != 0).then(|| duration(to_ns.saturating_sub(from_ns)))
}

fn duration(ns: u64) -> Cow<'static, [u8]> {
    let ms = ns / 1_000_000;
    Cow::Owned(format!("{}.{:03}", ms / 1000, ms % 1000).into_bytes())
}

impl Variables for Exchange {
    fn variable(&self, variable: &Variable) -> Option<Cow<'_, [u8]>> {
        match self.client.protocol.is_stream() {
            false => self.value_of(variable),
            true => self.stream_variable(variable),
        }
    }

    fn any_element(&self, variable: &Variable, test: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        match variable {
            Variable::TlsClientSanUri | Variable::TlsClientSanDns | Variable::TlsClientSanEmail => {
                let names = self.variable(variable);
                names.is_some_and(|names| names.split(|&byte| byte == b',').any(test))
            }
            _ => false,
        }
    }

    fn address(&self, variable: &Variable) -> Option<IpAddr> {
        match variable {
            Variable::RemoteAddr => Some(self.client.addr),
            Variable::PeerAddr => Some(self.client.peer.ip()),
            Variable::ServerAddr => Some(self.client.local.ip()),
            _ => std::str::from_utf8(&self.variable(variable)?).ok()?.parse().ok(),
        }
    }
}

impl Exchange {
    pub(super) fn value_of(&self, variable: &Variable) -> Option<Cow<'_, [u8]>> {
        // Long, since it is a table: one row per variable.
        let request = &self.request;
        match variable {
            Variable::Uri => bytes(request.client_path()),
            Variable::RequestUri => Some(request.origin_form()),
            Variable::EscapedRequestUri => Some(Cow::Owned(form::encoded(&request.origin_form()))),
            Variable::UpstreamUri => Some(Cow::Owned(self.upstream_target())),
            Variable::Host | Variable::ServerName => bytes(request.host()),
            Variable::UpstreamHost => bytes(request.authority()),
            Variable::Hostname => text(rustix::system::uname().nodename().to_string_lossy()),
            Variable::Method => bytes(request.method_name()),
            Variable::Scheme => bytes(self.scheme().as_bytes()),
            Variable::UpstreamScheme => bytes(if self.upstream.tls { b"https" } else { b"http" }),
            Variable::Https => self.client.tls.then_some(Cow::Borrowed(b"on")),
            Variable::Query => request.query().map(Cow::Borrowed),
            Variable::QueryMark => request.query().map(|_| Cow::Borrowed(&b"?"[..])),
            Variable::RequestLine => Some(Cow::Owned(self.request_line())),
            Variable::ServerProtocol => bytes(request.version.name().as_bytes()),
            Variable::Http2 => {
                let name: &[u8] = if self.client.tls { b"h2" } else { b"h2c" };
                (request.version == Version::Http2).then_some(Cow::Borrowed(name))
            }
            Variable::ContentLength => request.head.known(Known::ContentLength).map(Cow::Borrowed),
            Variable::ContentType => request.head.value(b"content-type").map(Cow::Borrowed),
            Variable::RemoteAddr => text(self.client.addr),
            Variable::RemotePort => text(self.client.port),
            Variable::PeerPort => text(self.client.peer.port()),
            Variable::PeerAddr => text(self.client.peer.ip()),
            Variable::ServerAddr => text(self.client.local.ip()),
            Variable::ServerPort => text(self.client.local.port()),
            Variable::PublicPort => text(self.client.public_port),
            Variable::PublicPortSuffix => self.public_port_suffix(),
            Variable::Connection => text(self.client.connection),
            Variable::ConnectionRequests => text(self.client.connection_requests),
            Variable::Pid => text(std::process::id()),
            Variable::Status => {
                (self.response.status != 0).then(|| Cow::Owned(self.response.status.to_string().into()))
            }
            Variable::RequestLength => text(self.request_bytes),
            Variable::BodyBytesSent => text(self.body_bytes),
            Variable::BytesSent => text(self.response_bytes),
            Variable::RequestBody => self.request_body().map(Cow::Borrowed),
            Variable::PostArgument(name) => argument(self.request_body()?, name.as_bytes()),
            Variable::PostPath(path) => post_path::find(self.request_body()?, path),
            Variable::UriParameter(name) => self.uri_parameters.as_ref()?.get(name).map(Cow::Borrowed),
            Variable::AuthorizationMetadata(name) => self.authorization_metadata(name).map(Cow::Borrowed),
            Variable::ProcessorMetadata(name) => self.processor_metadata(name).map(Cow::Borrowed),
            Variable::RequestTime => seconds(self.started_ns, self.ended_ns.max(self.started_ns)),
            Variable::RequestCompletion => {
                (self.ended_ns != 0 && self.stop.is_none()).then_some(Cow::Borrowed(&b"OK"[..]))
            }
            Variable::ErrorCause => self.stop.map(|stop| Cow::Borrowed(stop.ending().name.as_bytes())),
            Variable::RefusedBy => {
                Some(self.refused_by()).filter(|name| !name.is_empty()).map(|name| name.as_bytes().into())
            }
            Variable::UpstreamAddr => self.of_attempts(|attempt| attempt.addr.and_then(text)),
            Variable::BalancerIp => self.upstream.addr.as_ref().map(SocketAddr::ip).and_then(text),
            Variable::BalancerPort => self.upstream.addr.as_ref().map(SocketAddr::port).and_then(text),
            Variable::UpstreamStatus => {
                self.of_attempts(|attempt| (attempt.status != 0).then_some(attempt.status).and_then(text))
            }
            Variable::UpstreamError => self.of_attempts(|attempt| {
                (attempt.os_error != 0).then(|| io::Error::from_raw_os_error(attempt.os_error)).and_then(text)
            }),
            Variable::UpstreamQueueTime => self.of_attempts(|attempt| {
                // An exchange without an upstream has no time there, and one that did not wait has 0.
                let has_time = attempt.started_ns != 0 || attempt.queue_us != 0;
                has_time.then(|| duration(u64::from(attempt.queue_us) * 1000))
            }),
            Variable::UpstreamStartTime => self.of_attempts(|attempt| seconds(self.started_ns, attempt.started_ns)),
            Variable::UpstreamConnectTime => {
                self.of_attempts(|attempt| seconds(attempt.started_ns, attempt.connect_ns))
            }
            Variable::UpstreamHeaderTime => self.of_attempts(|attempt| seconds(attempt.started_ns, attempt.header_ns)),
            Variable::UpstreamResponseTime => self.of_attempts(|attempt| seconds(attempt.started_ns, attempt.ended_ns)),
            Variable::UpstreamResponseLength => {
                (self.upstream.addr.is_some()).then(|| Cow::Owned(self.upstream.body_bytes.to_string().into()))
            }
            Variable::UpstreamBytesReceived => self.upstream.addr.and_then(|_| text(self.upstream.bytes_received)),
            Variable::UpstreamBytesSent => self.upstream.addr.and_then(|_| text(self.upstream.bytes_sent)),
            Variable::TimeLocal => text(Timestamp::now().to_zoned(TimeZone::system()).strftime("%d/%b/%Y:%H:%M:%S %z")),
            Variable::TimeIso8601 => {
                text(Timestamp::now().to_zoned(TimeZone::system()).strftime("%Y-%m-%dT%H:%M:%S%:z"))
            }
            Variable::UnixTime => {
                let ms = Timestamp::now().as_millisecond();
                text(format_args!("{}.{:03}", ms / 1000, ms % 1000))
            }
            Variable::RequestId => Some(Cow::Owned(self.own_id().into_bytes())),
            Variable::ApisixRequestId => (!self.request_id().is_empty()).then_some(Cow::Borrowed(self.request_id())),
            Variable::MqttClientId => self.mqtt_client_id().map(|id| Cow::Borrowed(id.as_bytes())),
            Variable::TraceContext => {
                let (trace, span) = self.sampled_trace()?;
                text(format_args!("00-{trace:032x}-{span:016x}-01"))
            }
            Variable::TraceId => self.sampled_trace().and_then(|(trace, _)| text(format_args!("{trace:032x}"))),
            Variable::SpanId => self.sampled_trace().and_then(|(_, span)| text(format_args!("{span:016x}"))),
            Variable::RouteId => name(self.route.as_ref().map(|route| &*route.route_id)),
            Variable::RouteName => name(self.route.as_ref().map(|route| &*route.route_name)),
            Variable::ServiceId => name(self.route.as_ref().map(|route| &*route.service_id)),
            Variable::ConsumerName => name(self.identity.as_ref().map(|identity| &*identity.consumer.username)),
            Variable::ConsumerGroupId => name(self.identity.as_ref().map(|identity| &*identity.consumer.group_id)),
            Variable::ServiceName => name(self.route.as_ref().map(|route| &*route.service_name)),
            Variable::Argument(name) => argument(request.query()?, name.as_bytes()),
            Variable::Header(name) => self.request_header(name.as_bytes()),
            Variable::SentHeader(name) | Variable::UpstreamHeader(name) => header(&self.response.head, name.as_bytes()),
            Variable::Cookie(name) => cookie(self, name.as_bytes()),
            Variable::RemoteUser if !self.remote_user().is_empty() => bytes(self.remote_user()),
            Variable::RemoteUser => remote_user(self),
            Variable::TlsProtocol => self.tls.as_ref().map(|tls| Cow::Borrowed(tls.version.as_bytes())),
            Variable::TlsCipher => self.tls.as_ref().map(|tls| Cow::Borrowed(tls.cipher.as_bytes())),
            Variable::TlsCurve => self.tls.as_ref().map(|tls| Cow::Borrowed(tls.curve.as_bytes())),
            Variable::TlsServerName => name(self.tls.as_ref()?.server_name.as_deref()),
            Variable::TlsSessionReused => {
                self.tls.as_ref().and_then(|tls| bytes(if tls.resumed { b"r" } else { b"." }))
            }
            Variable::TlsClientVerify => {
                let proved = |tls: &Rc<Tls>| if tls.certificate.is_some() { &b"SUCCESS"[..] } else { b"NONE" };
                self.tls.as_ref().map(proved).and_then(bytes)
            }
            Variable::TlsClientSubject => certificate(self, |certificate| &certificate.subject),
            Variable::TlsClientIssuer => certificate(self, |certificate| &certificate.issuer),
            Variable::TlsClientSerial => certificate(self, |certificate| &certificate.serial),
            Variable::TlsClientFingerprint => certificate(self, |certificate| &certificate.fingerprint),
            Variable::TlsClientCertificate => certificate(self, |certificate| &certificate.pem),
            Variable::TlsClientEscapedCertificate => {
                certificate(self, |certificate| &certificate.pem).map(|pem| Cow::Owned(form::encoded(&pem)))
            }
            Variable::TlsClientSanUri => names(self, |certificate| &certificate.san_uri),
            Variable::TlsClientSanDns => names(self, |certificate| &certificate.san_dns),
            Variable::TlsClientSanEmail => names(self, |certificate| &certificate.san_email),
            // GraphQL would need the body, which is not read for this: see `Variable::absence`.
            Variable::GraphqlName
            | Variable::GraphqlOperation
            | Variable::GraphqlRootFields
            | Variable::Capture(_)
            | Variable::Unknown(_) => None,
        }
    }
}

impl Exchange {
    /// What a URL of this listener has after the host: nothing for the port that its scheme stands for.
    fn public_port_suffix(&self) -> Value<'_> {
        let usual = if self.client.tls { 443 } else { 80 };
        let port = self.client.public_port;
        (port != usual).then(|| Cow::Owned(format!(":{port}").into_bytes()))
    }

    /// A value of each attempt, as nginx writes it: a list if there were several, with `-` for a missing value.
    fn of_attempts<'a>(&'a self, value: impl Fn(&'a AttemptRecord) -> Value<'a>) -> Value<'a> {
        if self.earlier().is_empty() {
            return value(&self.upstream);
        }
        // An attempt without an address has not begun, since the exchange still waits for a permit.
        let last = self.upstream.addr.is_some().then_some(&self.upstream);
        let values: Vec<_> =
            self.earlier().iter().chain(last).map(|attempt| value(attempt).unwrap_or(Cow::Borrowed(b"-"))).collect();
        Some(Cow::Owned(values.join(&b", "[..])))
    }

    /// 32 hexadecimal digits: a hash of values that differ for each exchange of a process, with keys that differ for each
    /// process.
    fn own_id(&self) -> String {
        static KEYS: LazyLock<[RandomState; 2]> = LazyLock::new(Default::default);
        let exchange = (self.client.connection, self.client.connection_requests, self.started_ns);
        let [high, low] = KEYS.each_ref().map(|key| key.hash_one(exchange));
        format!("{high:016x}{low:016x}")
    }

    /// Path and query as sent upstream.
    fn upstream_target(&self) -> Vec<u8> {
        let mut target = self.request.unmerged_path().to_vec();
        if let Some(query) = self.request.query() {
            target.push(b'?');
            target.extend_from_slice(query);
        }
        target
    }

    /// The request line as received; empty if the head could not be parsed.
    fn request_line(&self) -> Vec<u8> {
        if self.request.target().is_empty() {
            return Vec::new();
        }
        let version = self.request.version.name().as_bytes();
        [self.request.client_method_name(), self.request.target(), version].join(&b' ')
    }
}

/// A part of the client's certificate.
fn certificate<'a>(exchange: &'a Exchange, part: impl FnOnce(&'a ClientCertificate) -> &'a str) -> Value<'a> {
    exchange.tls.as_ref()?.certificate.as_ref().map(part).map(|text| Cow::Borrowed(text.as_bytes()))
}

/// The names of one kind in the client's certificate; `None` if there are none.
fn names<'a>(exchange: &'a Exchange, kind: impl FnOnce(&'a ClientCertificate) -> &'a str) -> Value<'a> {
    certificate(exchange, kind).filter(|names| !names.is_empty())
}

impl Exchange {
    /// A field of the request, for conditions and templates: as the client has sent it, also if the connection ends here (`Upgrade`).
    /// Of `X-Forwarded-Proto` and the like, what an untrusted client says does not count, as it does not for the upstream;
    /// where they have no value, that is what the gateway sees, as in APISIX. `X-Forwarded-For`, of which plugins choose their part,
    /// is left as it is.
    fn request_header(&self, name: &[u8]) -> Value<'_> {
        let known = Known::parse(name);
        let is_list = matches!(known, Known::XForwardedFor | Known::XRealIp | Known::Forwarded);
        let is_doubtful = known.is_forwarding() && !is_list && !self.client.trusted;
        let is_hop_by_hop = known.is_hop_by_hop();
        let is_seen = |field: &&Field| match field.added {
            true => !field.removed,
            false => !is_doubtful && (!field.removed || is_hop_by_hop),
        };
        let head = &self.request.head;
        let sent = joined(head, head.entries().iter().filter(is_seen), name);
        match known {
            _ if sent.is_some() => sent,
            Known::XForwardedProto => bytes(self.scheme().as_bytes()),
            Known::XForwardedHost => {
                Some(self.request.client_authority()).filter(|host| !host.is_empty()).and_then(bytes)
            }
            Known::XForwardedPort => text(self.client.public_port),
            _ => None,
        }
    }
}

/// A field's values, joined as one list (RFC 9110 §5.3).
fn header<'a>(head: &'a Head, name: &[u8]) -> Value<'a> {
    joined(head, head.present(), name)
}

/// The values of the fields with this name. A `_` in a received name stands for `-`: variables have no other name for it.
fn joined<'a>(head: &'a Head, fields: impl Iterator<Item = &'a Field>, name: &[u8]) -> Value<'a> {
    // The crumbs of a cookie are joined in another way (RFC 9113 §8.2.3).
    let separator: &[u8] = if name.eq_ignore_ascii_case(b"cookie") { b"; " } else { b", " };
    let read = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    let is_same = |field: &&Field| {
        let sent = head.slice(field.name);
        sent.len() == name.len() && sent.iter().zip(name).all(|(one, other)| read(*one) == read(*other))
    };
    let mut joined: Value<'a> = None;
    for field in fields.filter(is_same) {
        let value = head.slice(field.value);
        match &mut joined {
            None => joined = bytes(value),
            Some(before) => before.to_mut().extend_from_slice(&[separator, value].concat()),
        }
    }
    joined
}

/// The first value of a query argument, percent-decoded. An argument without `=` is the empty string.
fn argument<'a>(query: &'a [u8], name: &[u8]) -> Value<'a> {
    query.split(|&byte| byte == b'&').find_map(|pair| {
        let (key, value) = form::halves(pair);
        (*form::decoded(key) == *name).then(|| form::decoded(value))
    })
}

/// The value of one cookie (RFC 6265 §5.4); the first, if it was sent twice.
fn cookie<'a>(exchange: &'a Exchange, name: &[u8]) -> Value<'a> {
    exchange.request.head.values(b"cookie").flat_map(|value| value.split(|&byte| byte == b';')).find_map(|pair| {
        let (key, value) = field::trim(pair).split_at_checked(name.len())?;
        (key == name && value.first() == Some(&b'=')).then(|| Cow::Borrowed(&value[1..]))
    })
}

/// The user name in basic credentials (RFC 7617), which have not been verified.
fn remote_user(exchange: &Exchange) -> Value<'_> {
    use base64::Engine;
    let value = exchange.request.head.value(b"authorization")?;
    let (scheme, credentials) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let mut decoded = base64::engine::general_purpose::STANDARD.decode(field::trim(credentials)).ok()?;
    let colon = decoded.iter().position(|&byte| byte == b':')?;
    decoded.truncate(colon);
    Some(Cow::Owned(decoded))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vars::Expression;
    use weir_proto::h1::{Limits, parse_request};

    fn exchange(head: &str) -> Exchange {
        let mut exchange = Exchange::default();
        parse_request(head.as_bytes(), &Limits::default(), &mut exchange.request).expect("valid").expect("complete");
        exchange
    }

    fn value(exchange: &Exchange, name: &str) -> Option<String> {
        let value = exchange.variable(&Variable::named(name))?;
        Some(String::from_utf8(value.into_owned()).expect("test values are text"))
    }

    #[test]
    fn http2_says_whether_tls_is_below() {
        let mut exchange = exchange("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
        assert_eq!(value(&exchange, "http2"), None);
        exchange.request.version = Version::Http2;
        assert_eq!(value(&exchange, "http2").as_deref(), Some("h2c"));
        exchange.client.tls = true;
        assert_eq!(value(&exchange, "http2").as_deref(), Some("h2"));
    }

    #[test]
    fn fields_of_the_request_are_those_that_count() {
        let head = "GET / HTTP/1.1\r\nHost: t:81\r\nConnection: upgrade\r\nUpgrade: websocket\r\nCookie: a=1\r\nCookie: b=2\r\n\
             X-Forwarded-Proto: https\r\nX-Forwarded-User: admin\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n";
        let mut exchange = exchange(head);
        let all = |exchange: &Exchange| {
            [
                "upgrade",
                "connection",
                "cookie",
                "x_forwarded_proto",
                "x_forwarded_host",
                "x_forwarded_user",
                "x_forwarded_for",
            ]
            .map(|name| value(exchange, &format!("http_{name}")).unwrap_or_default())
        };
        let (hop, list) = (["websocket", "upgrade", "a=1; b=2"], "1.2.3.4");
        assert_eq!(all(&exchange)[..3], hop);
        assert_eq!(all(&exchange)[3..], ["http", "t:81", "", list], "what the client says does not count");
        exchange.client.trusted = true;
        assert_eq!(all(&exchange)[3..], ["https", "t:81", "admin", list]);
        exchange.client.trusted = false;
        exchange.request.head.set(b"X-Forwarded-User", b"jack").expect("a value");
        assert_eq!(value(&exchange, "http_x_forwarded_user").as_deref(), Some("jack"), "a plugin has set it");
    }

    #[test]
    fn a_field_with_an_underscore_has_the_name_that_variables_have() {
        let mut exchange = Exchange::default();
        let limits = Limits { underscores_in_names: true, ..Limits::default() };
        let head = b"GET / HTTP/1.1\r\nHost: t\r\nX_Tok: a\r\nX-Tok: b\r\n\r\n";
        parse_request(head, &limits, &mut exchange.request).expect("valid").expect("complete");
        assert_eq!(value(&exchange, "http_x_tok").as_deref(), Some("a, b"));
        exchange.request.set_path(b"/rewritten", None).expect("a path");
        assert_eq!(
            (value(&exchange, "uri"), value(&exchange, "upstream_uri")),
            (Some("/".into()), Some("/rewritten".into()))
        );
    }

    #[test]
    fn variables_of_the_request_have_its_values() {
        let exchange = exchange(
            "GET /a/../b?x=1&y=a%20b+c&x=2&flag HTTP/1.1\r\nHost: H:80\r\nCookie: k=v; session=s1\r\nX-A: 1\r\nX-A: 2\r\n\
             Authorization: Basic amFjazpwdw==\r\n\r\n",
        );
        for (name, want) in [
            ("uri", Some("/b")),
            ("request_uri", Some("/a/../b?x=1&y=a%20b+c&x=2&flag")),
            ("escaped_request_uri", Some("%2Fa%2F..%2Fb%3Fx%3D1%26y%3Da%2520b%2Bc%26x%3D2%26flag")),
            ("upstream_uri", Some("/b?x=1&y=a%20b+c&x=2&flag")),
            ("request", Some("GET /a/../b?x=1&y=a%20b+c&x=2&flag HTTP/1.1")),
            ("arg_x", Some("1")),
            ("arg_y", Some("a b c")),
            ("arg_flag", Some("")),
            ("arg_none", None),
            ("host", Some("h")),
            ("http_x_a", Some("1, 2")),
            ("cookie_session", Some("s1")),
            ("cookie_sess", None),
            ("remote_user", Some("jack")),
            ("is_args", Some("?")),
            ("status", None),
            ("upstream_addr", None),
            ("https", None),
            ("scheme", Some("http")),
        ] {
            assert_eq!(value(&exchange, name).as_deref(), want, "{name}");
        }
    }

    #[test]
    fn the_uri_of_an_absolute_target_begins_with_its_path() {
        let exchange = exchange("GET http://t/a/../b?x=1 HTTP/1.1\r\nHost: t\r\n\r\n");
        assert_eq!(value(&exchange, "request_uri").as_deref(), Some("/a/../b?x=1"));
        assert_eq!(value(&exchange, "request").as_deref(), Some("GET http://t/a/../b?x=1 HTTP/1.1"));
    }

    #[test]
    fn variables_of_tls_have_its_values() {
        let mut exchange = exchange("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(value(&exchange, "ssl_client_verify"), None, "in the clear there is nothing to verify");
        let certificate = ClientCertificate { subject: "CN=jack".into(), serial: "0A".into(), ..Default::default() };
        let (version, cipher) = ("TLSv1.3", "TLS_AES_128_GCM_SHA256");
        let tls = Tls { version, cipher, curve: "X25519", server_name: Some("h".into()), ..Default::default() };
        exchange.tls = Some(Rc::new(tls));
        for (name, want) in [
            ("ssl_protocol", Some(version)),
            ("ssl_cipher", Some(cipher)),
            ("ssl_curve", Some("X25519")),
            ("ssl_server_name", Some("h")),
            ("ssl_session_reused", Some(".")),
            ("ssl_client_verify", Some("NONE")),
            ("ssl_client_s_dn", None),
        ] {
            assert_eq!(value(&exchange, name).as_deref(), want, "{name}");
        }
        assert_eq!(value(&exchange, "ssl_client_san_uri"), None);
        exchange.tls = Some(Rc::new(Tls { certificate: Some(certificate), ..Default::default() }));
        assert_eq!(value(&exchange, "ssl_client_verify").as_deref(), Some("SUCCESS"));
        assert_eq!(value(&exchange, "ssl_client_s_dn").as_deref(), Some("CN=jack"));
        assert_eq!(value(&exchange, "ssl_client_serial").as_deref(), Some("0A"));
        exchange.clear();
        assert_eq!(value(&exchange, "ssl_protocol"), None);
    }

    #[test]
    fn names_of_a_certificate_are_lists() {
        let mut exchange = exchange("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        let certificate = ClientCertificate {
            san_uri: "spiffe://a/x,spiffe://a/y".into(),
            san_dns: "a.test".into(),
            ..Default::default()
        };
        exchange.tls = Some(Rc::new(Tls { certificate: Some(certificate), ..Default::default() }));
        assert_eq!(value(&exchange, "ssl_client_san_uri").as_deref(), Some("spiffe://a/x,spiffe://a/y"));
        assert_eq!(value(&exchange, "ssl_client_san_dns").as_deref(), Some("a.test"));
        assert_eq!(value(&exchange, "ssl_client_san_email"), None);
        for (rule, want) in [
            (["ssl_client_san_uri", "has", "spiffe://a/y"], true),
            (["ssl_client_san_uri", "has", "spiffe://a"], false),
            (["ssl_client_san_uri", "has", "spiffe://a/x,spiffe://a/y"], false),
            (["ssl_client_san_dns", "has", "a.test"], true),
            (["ssl_client_san_dns", "has", "spiffe://a/x"], false),
            (["ssl_client_san_email", "has", ""], false),
            (["ssl_client_s_dn", "has", ""], false),
        ] {
            let conditions = Expression::compile(&serde_json::json!([rule])).expect("valid");
            assert_eq!(conditions.holds(&exchange), want, "{rule:?}");
        }
    }

    #[test]
    fn attempts_are_listed_in_their_order() {
        let mut exchange = exchange("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        let attempt = |port: u16, status, connect_ns, ended_ns| AttemptRecord {
            addr: Some(([127, 0, 0, 1], port).into()),
            status,
            os_error: if connect_ns == 0 { rustix::io::Errno::CONNREFUSED.raw_os_error() } else { 0 },
            started_ns: 1_000_000_000,
            connect_ns,
            ended_ns,
            ..AttemptRecord::default()
        };
        for earlier in [attempt(1, 0, 0, 1_002_000_000), attempt(2, 0, 1_001_000_000, 1_005_000_000)] {
            exchange.upstream = earlier;
            exchange.retry();
        }
        exchange.upstream = attempt(3, 200, 1_001_000_000, 1_009_000_000);
        exchange.upstream.queue_us = 440_000;
        exchange.started_ns = 750_000_000;
        for (name, want) in [
            ("upstream_addr", "127.0.0.1:1, 127.0.0.1:2, 127.0.0.1:3"),
            ("upstream_status", "-, -, 200"),
            ("upstream_error", "Connection refused (os error 111), -, -"),
            ("upstream_queue_time", "0.000, 0.000, 0.440"),
            ("upstream_start_time", "0.250, 0.250, 0.250"),
            ("upstream_connect_time", "-, 0.001, 0.001"),
            ("upstream_response_time", "0.002, 0.005, 0.009"),
        ] {
            assert_eq!(value(&exchange, name).as_deref(), Some(want), "{name}");
        }
        exchange.upstream = AttemptRecord::default();
        assert_eq!(value(&exchange, "upstream_status").as_deref(), Some("-, -"), "a third one had no turn");
        exchange.clear();
        assert_eq!(value(&exchange, "upstream_addr"), None);
    }

    #[test]
    fn ids_are_those_of_exchanges() {
        let mut exchange = exchange("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        let id = value(&exchange, "request_id").expect("an id");
        assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
        assert_eq!(value(&exchange, "request_id").as_ref(), Some(&id));
        exchange.client.connection_requests += 1;
        assert_ne!(value(&exchange, "request_id"), Some(id));
        assert_eq!(value(&exchange, "apisix_request_id"), None);
    }

    #[test]
    fn the_cause_of_an_early_end_has_its_word() {
        let mut exchange = exchange("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(value(&exchange, "error_cause"), None);
        exchange.end_by(crate::Stop::ReadTimeout);
        assert_eq!(value(&exchange, "error_cause").as_deref(), Some("read_timeout"));
    }

    #[test]
    fn durations_have_milliseconds_and_unknown_ones_are_missing() {
        let mut exchange = exchange("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        exchange.started_ns = 1_000_000_000;
        exchange.ended_ns = 2_034_999_999;
        assert_eq!(value(&exchange, "request_time").as_deref(), Some("1.034"));
        assert_eq!(value(&exchange, "upstream_response_time"), None);
    }
}
