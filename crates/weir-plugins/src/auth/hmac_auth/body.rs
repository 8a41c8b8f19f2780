//! Verifies that a body matches the signed field `Digest`.

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use weir_plugin::{Exchange, NoteKey};

/// The state of the option `validate_request_body`.
pub(super) struct Digested {
    limit: u64,
    /// The note of an exchange whose signature is valid, and whose body has still to be verified.
    expected: NoteKey,
}

impl Digested {
    pub(super) fn new(limit: u64) -> Digested {
        Digested { limit, expected: NoteKey::unique() }
    }

    /// Called once the signature is valid. `false` refuses the request: without a body, the digest is wrong; with one,
    /// it is missing.
    pub(super) fn pass(&self, exchange: &mut Exchange) -> bool {
        if !exchange.request.framing.has_body() {
            return says(exchange, b"");
        }
        let is_there = exchange.request.head.value(b"digest").is_some();
        if is_there {
            exchange.notes.write(self.expected, [1, 0, 0]);
        }
        is_there
    }

    /// The most bytes of the body to buffer, if it has to be verified.
    pub(super) fn wanted(&self, exchange: &Exchange) -> Option<u64> {
        self.is_expected(exchange).then_some(self.limit)
    }

    /// Whether the body matches the digest; `true` if it does not have to be verified.
    pub(super) fn is_right(&self, exchange: &Exchange, body: &[u8]) -> bool {
        !self.is_expected(exchange) || says(exchange, body)
    }

    fn is_expected(&self, exchange: &Exchange) -> bool {
        exchange.notes.read(self.expected).is_some()
    }
}

/// Whether the field `Digest` (RFC 3230) contains the SHA-256 of a body.
fn says(exchange: &Exchange, body: &[u8]) -> bool {
    let value = exchange.request.head.value(b"digest").unwrap_or_default();
    let said = value.strip_prefix(b"SHA-256=").and_then(|said| STANDARD.decode(said).ok());
    said.is_some_and(|said| said == digest(&SHA256, body).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::exchange;

    #[test]
    fn a_body_is_what_its_digest_says() {
        let of = |body: &[u8]| STANDARD.encode(digest(&SHA256, body));
        let digested = Digested::new(10);
        let with = |length: usize, said: &str| {
            exchange(&format!("POST / HTTP/1.1\nHost: h\nContent-Length: {length}\n{said}"))
        };
        let mut good = with(2, &format!("Digest: SHA-256={}", of(b"hi")));
        assert_eq!(digested.wanted(&good), None, "its signature may be wrong");
        assert!(digested.pass(&mut good));
        assert_eq!(digested.wanted(&good), Some(10));
        assert!(digested.is_right(&good, b"hi") && !digested.is_right(&good, b"ho"));
        assert!(!digested.pass(&mut with(2, "")));
        assert!(digested.pass(&mut with(0, &format!("Digest: SHA-256={}", of(b"")))));
        assert!(!digested.pass(&mut with(0, &format!("Digest: SHA-512={}", of(b"")))));
        assert!(digested.is_right(&exchange("GET / HTTP/1.1\nHost: h"), b"x"), "it was let in by somebody else");
    }
}
