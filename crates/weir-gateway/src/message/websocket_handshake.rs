//! The handshake of a WebSocket.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use base64::prelude::{BASE64_STANDARD, Engine};
use weir_plugin::Exchange;
use weir_proto::{Known, Version};

/// Whether the request asks for a WebSocket.
pub(crate) fn asks_for_websocket(exchange: &Exchange) -> bool {
    let asked = exchange.request.head.known(Known::Upgrade);
    exchange.request.upgrade && asked.is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket"))
}

/// The value of `Sec-WebSocket-Accept` that a client of HTTP/1.1 expects (RFC 6455 §4.2.2); `None` for one of HTTP/2 or HTTP/3.
pub(crate) fn websocket_accept(exchange: &Exchange) -> Option<String> {
    let key = exchange.request.head.received(b"Sec-WebSocket-Key").next()?;
    let of_http1 = exchange.request.version < Version::Http2;
    let digest = || digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"].concat());
    of_http1.then(|| BASE64_STANDARD.encode(digest()))
}

/// Adds the `Sec-WebSocket-Key` that an HTTP/1 upstream expects (RFC 6455 §4.1), and that a client of HTTP/2 or HTTP/3 does not send.
pub(crate) fn add_websocket_key(exchange: &mut Exchange) {
    let mut nonce = [0; 16];
    SystemRandom::new().fill(&mut nonce).expect("the system has random numbers");
    let key = BASE64_STANDARD.encode(nonce);
    exchange.request.head.set(b"sec-websocket-key", key.as_bytes()).expect("base64 is a valid value");
}
