//! What a service is told of a request.

use std::borrow::Cow;
use std::collections::BTreeMap;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use weir_plugin::proto::{Framing, Known, Method, Version};
use weir_plugin::{ClientCertificate, Exchange, Template, Variable, Variables};
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;

use super::messages::{
    AttributeContext, AuthorizationCheck, CheckedRequest, CheckedTls, HttpRequest, Peer, PeerAddress, PeerSocket,
    Timestamp,
};
use crate::clock;
use crate::envoy::names::FieldNameList;

/// Tells the service whether it gets only the beginning of the content.
pub(super) const PARTIAL_BODY: &str = "x-envoy-auth-partial-body";

/// The content of a request as the service gets it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToldContent<'a> {
    pub bytes: &'a [u8],
    /// More follows.
    pub is_partial: bool,
}

/// The options for what is told.
pub(super) struct ToldParts {
    /// The fields that are told; `None` is all.
    pub allowed: Option<FieldNameList>,
    pub disallowed: FieldNameList,
    pub extensions: Box<[(String, Template)]>,
    pub peer_certificate: bool,
    pub tls_session: bool,
    /// The content is told as bytes, and not as text.
    pub as_bytes: bool,
}

impl ToldParts {
    /// The fields of the request, with names in lower case. Several of a name are joined. What an untrusted client says about
    /// forwarding is left out; `x-forwarded-for` and `x-forwarded-proto` are those that the gateway sees.
    pub(super) fn fields(
        &self,
        exchange: &Exchange,
        also: &[&str],
        content: Option<ToldContent>,
    ) -> BTreeMap<String, Vec<u8>> {
        let head = &exchange.request.head;
        let mut told: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let counts = |known: Known, added: bool| added || exchange.client.trusted || !known.is_forwarding();
        for field in head.present().filter(|field| field.known != Known::Host && counts(field.known, field.added)) {
            let name = String::from_utf8_lossy(head.slice(field.name)).to_ascii_lowercase();
            let value = head.slice(field.value);
            let separator: &[u8] = if name == "cookie" { b"; " } else { b", " };
            match told.get_mut(&name) {
                None => drop(told.insert(name, value.to_vec())),
                Some(before) => before.extend_from_slice(&[separator, value].concat()),
            }
        }
        told.insert("x-forwarded-for".to_owned(), exchange.client.addr.to_canonical().to_string().into());
        let scheme = exchange.variable(&Variable::Header("x-forwarded-proto".into()));
        told.insert("x-forwarded-proto".to_owned(), scheme.unwrap_or_default().into_owned());
        if let (true, Some(upgrade)) = (exchange.request.upgrade, head.known(Known::Upgrade)) {
            told.insert("upgrade".to_owned(), upgrade.to_vec());
        }
        let is_told = |name: &str| {
            let is_allowed = self.allowed.as_ref().is_none_or(|allowed| allowed.contain(name.as_bytes()));
            (is_allowed || also.contains(&name)) && !self.disallowed.contain(name.as_bytes())
        };
        told.retain(|name, _| is_told(name));
        if let Some(content) = content {
            told.insert(PARTIAL_BODY.to_owned(), content.is_partial.to_string().into());
        } else {
            // The client must not say it in the gateway's place.
            told.remove(PARTIAL_BODY);
        }
        told
    }

    /// The request as a message of `envoy.service.auth.v3`.
    pub(super) fn message(&self, exchange: &Exchange, content: Option<ToldContent>) -> AuthorizationCheck {
        let client = &exchange.client;
        let certificate = exchange.tls.as_ref().and_then(|tls| tls.certificate.as_ref());
        let source = Peer {
            address: Some(address(client.addr.to_canonical().to_string(), client.port)),
            principal: certificate.map(principal).unwrap_or_default(),
            certificate: match certificate.filter(|_| self.peer_certificate) {
                Some(certificate) => utf8_percent_encode(&certificate.pem, NON_ALPHANUMERIC).to_string(),
                None => String::new(),
            },
        };
        let destination = Peer {
            address: Some(address(client.local.ip().to_canonical().to_string(), client.local.port())),
            ..Peer::default()
        };
        let now = clock::now();
        let time = Timestamp { seconds: now.as_secs() as i64, nanos: now.subsec_nanos() as i32 };
        let request = CheckedRequest { time: Some(time), http: Some(self.http_request(exchange, content)) };
        let sni = exchange.tls.as_ref().and_then(|tls| tls.server_name.as_deref());
        AuthorizationCheck {
            attributes: Some(AttributeContext {
                source: Some(source),
                destination: Some(destination),
                request: Some(request),
                context_extensions: self.extensions(exchange),
                tls_session: sni.filter(|_| self.tls_session).map(|sni| CheckedTls { sni: sni.to_owned() }),
            }),
        }
    }

    fn http_request(&self, exchange: &Exchange, content: Option<ToldContent>) -> HttpRequest {
        let request = &exchange.request;
        let (method, path) = (text(judged_method(exchange)), text(&judged_target(exchange)));
        let (host, scheme) = (text(request.client_authority()), exchange.scheme().to_owned());
        let mut headers: BTreeMap<String, String> =
            self.fields(exchange, &[], content).into_iter().map(|(name, value)| (name, text(&value))).collect();
        // As in Envoy, where they are fields.
        for (name, value) in [(":method", &method), (":path", &path), (":authority", &host), (":scheme", &scheme)] {
            headers.insert(name.to_owned(), value.clone());
        }
        let bytes = content.map(|content| content.bytes).unwrap_or_default();
        HttpRequest {
            id: exchange.variable(&request_id(exchange)).map(|id| text(&id)).unwrap_or_default(),
            method,
            headers,
            path,
            host,
            scheme,
            size: match request.framing {
                Framing::None => 0,
                Framing::Sized(bytes) => i64::try_from(bytes).unwrap_or(i64::MAX),
                Framing::Chunked | Framing::UntilClose => -1,
            },
            protocol: match request.version {
                Version::Http2 => "HTTP/2",
                Version::Http3 => "HTTP/3",
                version => version.name(),
            }
            .to_owned(),
            body: if self.as_bytes { String::new() } else { text_of_content(bytes) },
            raw_body: if self.as_bytes { bytes.to_vec() } else { Vec::new() },
        }
    }

    fn extensions(&self, exchange: &Exchange) -> BTreeMap<String, String> {
        let rendered = self.extensions.iter().map(|(name, template)| {
            let mut value = Vec::new();
            template.render(exchange, &mut value);
            (name.clone(), text(&value))
        });
        rendered.collect()
    }
}

/// The method of the client. The one of a WebSocket over HTTP/2 or HTTP/3 is told as that of one over HTTP/1.1, since only these have
/// `CONNECT` here (RFC 8441 §4).
pub(super) fn judged_method(exchange: &Exchange) -> &[u8] {
    match exchange.request.client_method() {
        Method::Connect => b"GET",
        _ => exchange.request.client_method_name(),
    }
}

/// The canonical path and the query of the client. The path is not told as the client wrote it: a service that compares paths would
/// judge `/public/%2e%2e/admin` as another one than the upstream gets.
pub(super) fn judged_target(exchange: &Exchange) -> Cow<'_, [u8]> {
    let request = &exchange.request;
    match request.client_query() {
        None => Cow::Borrowed(request.client_path()),
        Some(query) => Cow::Owned([request.client_path(), b"?", query].concat()),
    }
}

/// The id that `request-id` has chosen, or else the gateway's own.
fn request_id(exchange: &Exchange) -> Variable {
    if exchange.request_id().is_empty() { Variable::RequestId } else { Variable::ApisixRequestId }
}

fn address(address: String, port: u16) -> PeerAddress {
    PeerAddress { socket_address: Some(PeerSocket { address, port_value: port.into() }) }
}

/// The first URI among the names of a certificate, or else the first host name, or else its subject.
fn principal(certificate: &ClientCertificate) -> String {
    let parsed = parse_x509_pem(certificate.pem.as_bytes()).ok();
    let parsed = parsed.as_ref().and_then(|(_, pem)| pem.parse_x509().ok());
    let names = parsed.as_ref().and_then(|parsed| parsed.subject_alternative_name().ok().flatten());
    let names = names.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
    let uri = names.iter().find_map(|name| if let GeneralName::URI(uri) = name { Some(*uri) } else { None });
    let host = || names.iter().find_map(|name| if let GeneralName::DNSName(host) = name { Some(*host) } else { None });
    uri.or_else(host).unwrap_or(&certificate.subject).to_owned()
}

/// Text of a message, which is UTF-8.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Content as text of at most as many bytes: a client must not make the message larger than the limit for content.
fn text_of_content(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| '?'));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use weir_plugin::Tls;
    use weir_testkit::Authority;

    use super::*;
    use crate::testing::exchange;

    fn told() -> ToldParts {
        ToldParts {
            allowed: None,
            disallowed: FieldNameList::default(),
            extensions: Box::default(),
            peer_certificate: false,
            tls_session: false,
            as_bytes: false,
        }
    }

    fn names(list: &[&str]) -> FieldNameList {
        let list: Vec<String> = list.iter().map(|&name| name.to_owned()).collect();
        FieldNameList::compile(&list, "option").expect("valid")
    }

    fn http(message: AuthorizationCheck) -> HttpRequest {
        message.attributes.and_then(|attributes| attributes.request?.http).expect("it is there")
    }

    #[test]
    fn the_path_is_the_one_that_is_routed() {
        let mut request = exchange("GET /public/%2e%2e/admin?x=%2e HTTP/1.1\nHost: shop.example:81");
        request.request.set_path(b"/internal", Some(b"y=1")).expect("valid");
        let http = http(told().message(&request, None));
        assert_eq!((&*http.path, &*http.host, &*http.protocol), ("/admin?x=%2e", "shop.example:81", "HTTP/1.1"));
        assert_eq!((&*http.headers[":path"], &*http.headers[":authority"]), ("/admin?x=%2e", "shop.example:81"));
    }

    #[test]
    fn fields_are_joined_and_forwarding_is_what_the_gateway_sees() {
        let head = "GET / HTTP/1.1\nHost: h\nA: 1\na: 2\nCookie: a=1\nCookie: b=2\nConnection: close\n\
             X-Forwarded-For: 10.0.0.1\nX-Real-IP: 10.0.0.1\nX-Forwarded-Proto: https\nX-Envoy-Auth-Partial-Body: true";
        let fields = told().fields(&exchange(head), &[], None);
        let told: Vec<(&str, &str)> =
            fields.iter().map(|(name, value)| (&**name, std::str::from_utf8(value).expect("text"))).collect();
        let want =
            [("a", "1, 2"), ("cookie", "a=1; b=2"), ("x-forwarded-for", "192.0.2.7"), ("x-forwarded-proto", "http")];
        assert_eq!(told, want);
    }

    #[test]
    fn fields_are_those_that_are_allowed() {
        let head = exchange("GET / HTTP/1.1\nHost: h\nX-A: 1\nX-B: 1\nAuthorization: t\nOther: 1");
        let told = ToldParts { allowed: Some(names(&["x-*"])), disallowed: names(&["X-B", "X-Forwarded-*"]), ..told() };
        let fields = told.fields(&head, &["authorization"], None);
        assert_eq!(fields.keys().collect::<Vec<_>>(), ["authorization", "x-a"]);
        let content = ToldContent { bytes: b"ab", is_partial: true };
        assert_eq!(told.fields(&head, &[], Some(content))[PARTIAL_BODY], b"true");
    }

    #[test]
    fn content_is_text_or_bytes() {
        let content = ToldContent { bytes: b"a\xff", is_partial: false };
        let request = exchange("POST / HTTP/1.1\nHost: h\nTransfer-Encoding: chunked");
        let as_text = http(told().message(&request, Some(content)));
        assert_eq!((&*as_text.body, &*as_text.raw_body, as_text.size), ("a?", &b""[..], -1));
        let as_bytes = http(ToldParts { as_bytes: true, ..told() }.message(&request, Some(content)));
        assert_eq!((&*as_bytes.body, &*as_bytes.raw_body), ("", &b"a\xff"[..]));
    }

    #[test]
    fn the_client_of_a_tls_connection_is_told_by_its_certificate() {
        let identity = Authority::of_tests().identity(&["client.test"]);
        let certificate =
            ClientCertificate { subject: "CN=jack".into(), pem: identity.certificate.into(), ..Default::default() };
        let nameless = ClientCertificate { pem: Box::default(), ..certificate.clone() };
        assert_eq!((&*principal(&certificate), &*principal(&nameless)), ("client.test", "CN=jack"));
        let mut request = exchange("GET / HTTP/1.1\nHost: h");
        let tls = Tls { server_name: Some("h".into()), certificate: Some(certificate), ..Tls::default() };
        request.tls = Some(Rc::new(tls));
        let attributes = |told: ToldParts| told.message(&request, None).attributes.expect("it is there");
        let plain = attributes(told());
        let source = plain.source.expect("it is there");
        assert_eq!((&*source.principal, &*source.certificate, plain.tls_session), ("client.test", "", None));
        let whole = attributes(ToldParts { peer_certificate: true, tls_session: true, ..told() });
        let source = whole.source.expect("it is there");
        assert!(source.certificate.starts_with("%2D%2D%2D%2D%2DBEGIN%20CERTIFICATE"), "{}", source.certificate);
        assert_eq!(whole.tls_session.map(|session| session.sni).as_deref(), Some("h"));
    }
}
