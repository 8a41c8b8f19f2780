//! Message heads as they are sent: the request to the upstream, the response to the client.

use std::net::IpAddr;
use std::ops::Range;

use weir_plugin::{ClientFacts, Exchange, TrustedForwarding};
use weir_proto::address::{ipv4_text, write_ip};
use weir_proto::field;
use weir_proto::head::write_field;
use weir_proto::{Field, Framing, Head, Known, Method, Version};

use crate::context::WorkerContext;
use crate::snapshot::{Endpoint, PassHost};

/// How a body is framed for the next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HopFraming {
    None,
    /// As many bytes as `Content-Length` says.
    Plain,
    Chunked,
    /// The end of the connection, or of the stream, is the end of the body: for clients of HTTP/1.0 and of HTTP/2.
    UntilClose,
}

/// Writes the request head for an upstream. Forwarding fields of an untrusted client are replaced. The gateway's own fields
/// are written after those of the client, so that a `Connection` field of the client cannot nominate them for removal.
pub(crate) fn write_request_head(
    out: &mut Vec<u8>,
    exchange: &Exchange,
    pass_host: &PassHost,
    endpoint: &Endpoint,
) -> HopFraming {
    let request = &exchange.request;
    request.write(out, host(exchange, pass_host, endpoint), |field| is_forwarded_upstream(exchange, field));
    forwarding_fields(out, exchange);
    if request.upgrade {
        out.extend_from_slice(b"Connection: upgrade\r\n");
        write_field(out, b"Upgrade", request.head.known(Known::Upgrade).unwrap_or_default());
    } else if request.sends_te {
        out.extend_from_slice(b"Connection: te\r\nTE: trailers\r\n");
    }
    let coding = match request.framing {
        Framing::Sized(length) => {
            content_length(out, length);
            HopFraming::Plain
        }
        Framing::Chunked | Framing::UntilClose => {
            out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
            HopFraming::Chunked
        }
        Framing::None => HopFraming::None,
    };
    out.extend_from_slice(b"\r\n");
    coding
}

/// The authority (`Host`) of the request to the upstream.
pub(crate) fn host<'a>(exchange: &'a Exchange, pass_host: &'a PassHost, endpoint: &'a Endpoint) -> &'a [u8] {
    match pass_host {
        PassHost::Pass if exchange.request.authority().is_empty() => endpoint.host.as_bytes(),
        PassHost::Pass => exchange.request.authority(),
        PassHost::Node => endpoint.host.as_bytes(),
        PassHost::Rewrite(host) => host.as_bytes(),
    }
}

/// Whether a field of the request is sent to the upstream unchanged; the gateway writes some of the others itself.
#[inline]
pub(crate) fn is_forwarded_upstream(exchange: &Exchange, field: &Field) -> bool {
    match field.known {
        Known::Other => true,
        Known::Host | Known::ContentLength => false,
        Known::XForwardedFor => false,
        Known::XRealIp => exchange.client.trusts_real_ip(field),
        Known::Expect => exchange.request.expects_continue,
        known => exchange.client.trusts(field) || !known.is_forwarding(),
    }
}

/// Writes `X-Real-IP` and `X-Forwarded-*`, which tell the upstream who the client is and how it reached the gateway.
pub(crate) fn forwarding_fields(out: &mut Vec<u8>, exchange: &Exchange) {
    let ClientFacts { peer, addr, .. } = exchange.client;
    let head = &exchange.request.head;
    let said = TrustedForwarding::by(&exchange.client, head);
    let mut lines = AddressLines::default();
    let mut known = None;
    if !said.has_real_ip && !head.is_withheld(Known::XRealIp) {
        lines.push(b"X-Real-IP: ");
        let start = lines.length;
        lines.push_ip(addr);
        known = (addr == peer.ip()).then_some(start..lines.length);
        lines.push(b"\r\n");
    }
    if said.has_list || !head.is_withheld(Known::XForwardedFor) {
        lines.push(b"X-Forwarded-For: ");
        if said.has_list {
            lines.flush(out);
            let is_said = |field: &&Field| field.known == Known::XForwardedFor && exchange.client.trusts(field);
            for field in head.present().filter(is_said) {
                out.extend_from_slice(head.slice(field.value));
                out.extend_from_slice(b", ");
            }
        }
        match known {
            Some(text) if !said.has_list => lines.push_again(text),
            _ => lines.push_ip(peer.ip()),
        }
        lines.push(b"\r\n");
    }
    if !said.has_proto && !head.is_withheld(Known::XForwardedProto) {
        match exchange.client.tls {
            true => lines.push(b"X-Forwarded-Proto: https\r\n"),
            false => lines.push(b"X-Forwarded-Proto: http\r\n"),
        }
    }
    let authority = exchange.request.client_authority();
    if !said.has_host && !authority.is_empty() && !head.is_withheld(Known::XForwardedHost) {
        lines.push(b"X-Forwarded-Host: ");
        lines.flush(out);
        out.extend_from_slice(authority);
        lines.push(b"\r\n");
    }
    if !said.has_port && !head.is_withheld(Known::XForwardedPort) {
        let port = said.port(&exchange.client, &exchange.request);
        lines.push(b"X-Forwarded-Port: ");
        lines.push(itoa::Buffer::new().format(port).as_bytes());
        lines.push(b"\r\n");
    }
    lines.flush(out);
}

/// A stack buffer for short pieces of field lines: copying them here costs less than appending each to the output `Vec`.
struct AddressLines {
    bytes: [u8; 192],
    length: usize,
}

impl Default for AddressLines {
    fn default() -> AddressLines {
        AddressLines { bytes: [0; 192], length: 0 }
    }
}

impl AddressLines {
    #[inline(always)]
    fn push(&mut self, piece: &[u8]) {
        self.bytes[self.length..][..piece.len()].copy_from_slice(piece);
        self.length += piece.len();
    }

    /// Appends a copy of the address text that is at `text` in this buffer.
    fn push_again(&mut self, text: Range<usize>) {
        let length = text.len();
        self.bytes.copy_within(text, self.length);
        self.length += length;
    }

    fn push_ip(&mut self, addr: IpAddr) {
        match addr {
            IpAddr::V4(addr) => {
                let (text, length) = ipv4_text(addr);
                self.bytes[self.length..][..text.len()].copy_from_slice(&text);
                self.length += length;
            }
            IpAddr::V6(_) => {
                let mut text = Vec::new();
                write_ip(&mut text, addr);
                self.push(&text);
            }
        }
    }

    /// Appends the collected bytes to `out`, and empties this buffer.
    fn flush(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes[..self.length]);
        self.length = 0;
    }
}

/// Whether `digits` is the decimal form of `number` without leading zeros.
fn is_number(digits: &[u8], number: u64) -> bool {
    let is_plain = match digits {
        [] | [b'0', _, ..] => false,
        digits => digits.len() <= 19 && digits.iter().all(u8::is_ascii_digit),
    };
    is_plain && digits.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')) == number
}

/// Adds a `Via` entry (RFC 9110 §7.6.3): the protocol version in which the message was received, and this gateway's name.
pub(crate) fn add_via(head: &mut Head, version: Version, received_by: &str) {
    let protocol = version.name().trim_start_matches("HTTP/");
    head.add(b"Via", format!("{protocol} {received_by}").as_bytes()).expect("compile lets nothing else through");
}

/// Adds `Date` to a response that was received without one (RFC 9110 §6.6.1). One that a plugin has removed stays removed.
#[inline]
pub(crate) fn add_date(worker: &WorkerContext, head: &mut Head) {
    if head.known(Known::Date).is_none() {
        worker.clock.with_date(worker.now_ns(), |date| head.add_prepared_field(date));
    }
}

pub(crate) fn content_length(out: &mut Vec<u8>, length: u64) {
    out.extend_from_slice(b"Content-Length: ");
    out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Adapts the framing of a response after plugins have run: they may have changed the status, or the method sent upstream,
/// on which it depends (RFC 9112 §6.3). A body that the client must not get is read and dropped; one that is missing is
/// empty.
#[inline]
pub(crate) fn correct_response_framing(exchange: &mut Exchange) {
    let is_bare = exchange.request.client_method() == Method::Head || is_bodiless(exchange.response.status);
    if is_bare == (exchange.response.framing == Framing::None) {
        return;
    }
    exchange.response.framing = if is_bare { Framing::None } else { Framing::Sized(0) };
    if is_bodiless(exchange.response.status) {
        exchange.response.head.remove(b"Content-Length"); // RFC 9110 §8.6
    }
}

/// For a status of 500 and above: names the status of each attempt in `X-APISIX-Upstream-Status`, as APISIX does, which
/// shows that the upstream is to blame. An attempt without a response counts as `status`.
#[cold]
pub(crate) fn set_upstream_status_field(exchange: &mut Exchange, status: u16) {
    let attempts = exchange.earlier().iter().chain([&exchange.upstream]);
    let statuses: Vec<String> = attempts
        .map(|attempt| if attempt.status == 0 { status.to_string() } else { attempt.status.to_string() })
        .collect();
    let set = exchange.response.head.set(b"X-APISIX-Upstream-Status", statuses.join(", ").as_bytes());
    set.expect("numbers are valid values");
}

/// No response with this status has content.
pub(crate) fn is_bodiless(status: u16) -> bool {
    matches!(status, 204 | 304)
}

/// How the body of the response is framed for the client.
pub(crate) fn response_coding(exchange: &Exchange) -> HopFraming {
    match exchange.response.framing {
        Framing::None => HopFraming::None,
        Framing::Sized(_) => HopFraming::Plain,
        Framing::Chunked | Framing::UntilClose if exchange.request.version != Version::Http11 => HopFraming::UntilClose,
        Framing::Chunked | Framing::UntilClose => HopFraming::Chunked,
    }
}

/// Writes the head of the final response. `close` ends the connection after it.
pub(crate) fn response_head(out: &mut Vec<u8>, exchange: &Exchange, coding: HopFraming, close: bool) {
    let response = &exchange.response;
    // The length of a response without a body (HEAD, 304) is what GET would bring, and is passed on. A 204 must have none,
    // even if the upstream sent one (RFC 9110 §8.6).
    let keep_length = coding == HopFraming::None && response.status != 204;
    let mut is_said = false;
    response.write(out, |field| {
        if field.known != Known::ContentLength || keep_length {
            return true;
        }
        let says = |length| !is_said && is_number(response.head.slice(field.value), length);
        let stays = coding == HopFraming::Plain && matches!(response.framing, Framing::Sized(length) if says(length));
        is_said |= stays;
        stays
    });
    match (coding, response.framing) {
        (HopFraming::Plain, Framing::Sized(_)) if is_said => {}
        (HopFraming::Plain, Framing::Sized(length)) => content_length(out, length),
        (HopFraming::Chunked, _) => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        _ => {}
    }
    if response.status == 426 && exchange.request.version == Version::Http11 {
        upgrade_required(out, &response.head);
    }
    if close {
        out.extend_from_slice(b"Connection: close\r\n");
    } else if exchange.request.version == Version::Http10 {
        out.extend_from_slice(b"Connection: keep-alive\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// A 426 must name the protocols that the server requires (RFC 9110 §15.5.22); as hop-by-hop field `Upgrade` was taken out.
#[cold]
fn upgrade_required(out: &mut Vec<u8>, head: &Head) {
    if head.is_withheld(Known::Upgrade) || head.present().any(|field| field.known == Known::Upgrade) {
        return; // a plugin has decided
    }
    let mut protocols = head.received(b"Upgrade").peekable();
    if protocols.peek().is_some() {
        out.extend_from_slice(b"Connection: upgrade\r\n");
    }
    protocols.for_each(|protocol| write_field(out, b"Upgrade", protocol));
}

/// Writes a 1xx head (RFC 9110 §15.2).
pub(crate) fn interim_head(out: &mut Vec<u8>, exchange: &Exchange) {
    exchange.response.write(out, |field| field.known != Known::ContentLength);
    out.extend_from_slice(b"\r\n");
}

/// Whether a 101 switches to a protocol that the client asked for (RFC 9110 §7.8). A 101 without `Upgrade` counts as one.
pub(crate) fn switches_as_asked(exchange: &Exchange) -> bool {
    let asked = exchange.request.head.known(Known::Upgrade).unwrap_or_default();
    let mut switched = exchange.response.head.received(b"Upgrade").flat_map(field::list);
    switched.all(|protocol| field::list(asked).any(|asked| asked.eq_ignore_ascii_case(protocol)))
}

/// Writes the 101 that turns the connection into a tunnel.
pub(crate) fn upgrade_head(out: &mut Vec<u8>, exchange: &Exchange) {
    exchange.response.write(out, |field| field.known != Known::ContentLength);
    out.extend_from_slice(b"Connection: upgrade\r\n");
    let protocol = exchange.response.head.known(Known::Upgrade).or_else(|| exchange.request.head.known(Known::Upgrade));
    write_field(out, b"Upgrade", protocol.unwrap_or_default());
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto::h1::{Limits, Tolerance, parse_request, parse_response};

    fn endpoint() -> Endpoint {
        let addr = ([127, 0, 0, 1], 8001).into();
        Endpoint { name: "up:8001".into(), addr, weight: 1, priority: 0, host: "up:8001".into(), checks: None }
    }

    fn forwarded(head: &str, trusted: bool) -> String {
        let mut exchange = Exchange::default();
        parse_request(head.as_bytes(), &Limits::default(), &mut exchange.request).expect("valid").expect("complete");
        exchange.client.peer = ([10, 200, 3, 45], 5000).into();
        exchange.client.addr = exchange.client.peer.ip();
        exchange.client.local = ([127, 0, 0, 1], 9080).into();
        exchange.client.public_port = 9080;
        exchange.client.trusted = trusted;
        let mut out = Vec::new();
        write_request_head(&mut out, &exchange, &PassHost::Pass, &endpoint());
        String::from_utf8(out).expect("test heads are text")
    }

    #[test]
    fn a_request_says_who_asks() {
        assert_eq!(
            forwarded("GET /a?b HTTP/1.1\r\nHost: t\r\nA: 1\r\nConnection: keep-alive\r\n\r\n", false),
            "GET /a?b HTTP/1.1\r\nHost: t\r\nA: 1\r\nX-Real-IP: 10.200.3.45\r\nX-Forwarded-For: 10.200.3.45\r\n\
             X-Forwarded-Proto: http\r\nX-Forwarded-Host: t\r\nX-Forwarded-Port: 9080\r\n\r\n"
        );
    }

    #[test]
    fn forwarding_fields_are_believed_from_trusted_peers_only() {
        let head = "GET / HTTP/1.1\r\nHost: t\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: https\r\nForwarded: for=1.2.3.4\r\n\
                    X-Original-URL: /admin\r\nX-Real-IP: 1.2.3.4\r\n\r\n";
        let plain = forwarded(head, false);
        assert!(!plain.contains("1.2.3.4") && !plain.contains("https") && !plain.contains("/admin"), "{plain}");
        let trusted = forwarded(head, true);
        assert!(trusted.contains("X-Forwarded-For: 1.2.3.4, 10.200.3.45\r\n"), "{trusted}");
        assert!(trusted.contains("X-Real-IP: 1.2.3.4\r\n") && !trusted.contains("X-Real-IP: 10."), "{trusted}");
        assert!(
            trusted.contains("X-Forwarded-Proto: https\r\n") && !trusted.contains("X-Forwarded-Proto: http\r\n"),
            "{trusted}"
        );
    }

    #[test]
    fn forwarding_fields_set_by_plugins_are_sent() {
        let mut exchange = Exchange::default();
        let head = b"GET / HTTP/1.1\r\nHost: t\r\nX-Forwarded-Proto: wss\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n";
        parse_request(head, &Limits::default(), &mut exchange.request).expect("valid").expect("complete");
        let fields = &mut exchange.request.head;
        fields.set(b"X-Forwarded-Proto", b"https").expect("valid");
        fields.add(b"X-Forwarded-For", b"10.1.1.1").expect("valid");
        fields.add(b"X-Forwarded-Prefix", b"/api").expect("valid");
        fields.set(b"X-Real-IP", b"10.1.1.1").expect("valid");
        let mut out = Vec::new();
        write_request_head(&mut out, &exchange, &PassHost::Pass, &endpoint());
        let out = String::from_utf8(out).expect("text");
        assert!(
            out.contains("X-Forwarded-Proto: https\r\n") && !out.contains("wss") && !out.contains("Proto: http\r"),
            "{out}"
        );
        assert!(
            out.contains("X-Forwarded-For: 10.1.1.1, 0.0.0.0\r\n")
                && out.contains("X-Forwarded-Prefix: /api\r\n")
                && out.contains("X-Real-IP: 10.1.1.1\r\n"),
            "{out}"
        );
    }

    #[test]
    fn u18_the_forwarded_port_is_the_one_that_was_addressed() {
        for (head, trusted, want) in [
            ("Host: t", false, "9080"),
            ("Host: t:8080", false, "8080"),
            ("Host: t\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: t:1", false, "9080"),
            ("Host: t\r\nX-Forwarded-Proto: https", true, "443"),
            ("Host: t:8443\r\nX-Forwarded-Proto: https", true, "8443"),
            ("Host: inner:1\r\nX-Forwarded-Host: t:8443", true, "8443"),
            ("Host: inner:1\r\nX-Forwarded-Host: t\r\nX-Forwarded-Proto: http", true, "80"),
            ("Host: inner:1\r\nX-Forwarded-Host: t", true, "9080"),
            ("Host: t:8080\r\nX-Forwarded-Port: 7", true, "7"),
        ] {
            let out = forwarded(&format!("GET / HTTP/1.1\r\n{head}\r\n\r\n"), trusted);
            assert!(out.contains(&format!("X-Forwarded-Port: {want}\r\n")), "{head}: {out}");
        }
    }

    #[test]
    fn u18_withheld_fields_are_not_added() {
        let mut exchange = Exchange::default();
        parse_request(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n", &Limits::default(), &mut exchange.request)
            .expect("valid")
            .expect("complete");
        let names = ["X-Real-IP", "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Port"];
        names.iter().for_each(|name| exchange.request.head.withhold(name.as_bytes()));
        exchange.request.head.add(b"X-Forwarded-Host", b"said.example").expect("valid");
        let mut out = Vec::new();
        write_request_head(&mut out, &exchange, &PassHost::Pass, &endpoint());
        let out = String::from_utf8(out).expect("text");
        assert_eq!(out, "GET / HTTP/1.1\r\nHost: t\r\nX-Forwarded-Host: said.example\r\n\r\n");
    }

    #[test]
    fn nominating_a_field_cannot_remove_ours() {
        let out =
            forwarded("GET / HTTP/1.1\r\nHost: t\r\nConnection: close, X-Forwarded-For, X-Real-IP\r\n\r\n", false);
        assert!(out.contains("X-Forwarded-For: 10.200.3.45\r\n") && out.contains("X-Real-IP: "), "{out}");
    }

    #[test]
    fn u09_a_101_switches_to_what_was_asked_for() {
        for (asked, switched, want) in [
            ("websocket", "Upgrade: websocket\r\n", true),
            ("websocket", "Upgrade: WebSocket\r\n", true),
            ("a/1, b", "Upgrade: b\r\n", true),
            ("websocket", "", true),
            ("websocket", "Upgrade: h2c\r\n", false),
            ("websocket", "Upgrade: websocket, tls\r\n", false),
            ("websocket", "Upgrade: websocket\r\nUpgrade: x\r\n", false),
        ] {
            let mut exchange = Exchange::default();
            let head = format!("GET / HTTP/1.1\r\nHost: t\r\nConnection: upgrade\r\nUpgrade: {asked}\r\n\r\n");
            parse_request(head.as_bytes(), &Limits::default(), &mut exchange.request)
                .expect("valid")
                .expect("complete");
            let head = format!("HTTP/1.1 101 S\r\nConnection: upgrade\r\n{switched}\r\n");
            let (limits, tolerance) = (Limits::default(), Tolerance::default());
            parse_response(head.as_bytes(), &limits, tolerance, Method::Get, &mut exchange.response).expect("valid");
            assert_eq!(switches_as_asked(&exchange), want, "{asked:?} {switched:?}");
        }
    }
}
