//! Signatures of content: `method=hex(HMAC(secret, content))` (W3C WebSub §7.1).

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureMethod {
    Sha1,
    Sha256,
    Sha384,
    Sha512,
}

impl SignatureMethod {
    pub const ALL: [(&'static str, SignatureMethod); 4] = [
        ("sha1", SignatureMethod::Sha1),
        ("sha256", SignatureMethod::Sha256),
        ("sha384", SignatureMethod::Sha384),
        ("sha512", SignatureMethod::Sha512),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, method)| *method == self).expect("every method is listed").0
    }

    fn algorithm(self) -> hmac::Algorithm {
        match self {
            // Used for HMAC signatures only; subscribers that support no other method need it (§7.1).
            SignatureMethod::Sha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            SignatureMethod::Sha256 => hmac::HMAC_SHA256,
            SignatureMethod::Sha384 => hmac::HMAC_SHA384,
            SignatureMethod::Sha512 => hmac::HMAC_SHA512,
        }
    }
}

/// The value of `X-Hub-Signature`.
pub fn sign(method: SignatureMethod, secret: &[u8], content: &[u8]) -> String {
    let tag = hmac::sign(&hmac::Key::new(method.algorithm(), secret), content);
    format!("{}={}", method.name(), hex::encode(tag))
}

/// The value of `webhook-signature` (Standard Webhooks 1.0): `v1,` and the HMAC-SHA-256 of `id.timestamp.content` in base64. A
/// secret that begins with `whsec_` is base64 after that; any other is taken as it is.
pub(crate) fn sign_standard(secret: &[u8], id: &str, timestamp_s: u64, content: &[u8]) -> String {
    let encoded = secret.strip_prefix(b"whsec_").and_then(|encoded| STANDARD.decode(encoded).ok());
    let key = hmac::Key::new(hmac::HMAC_SHA256, encoded.as_deref().unwrap_or(secret));
    let mut context = hmac::Context::with_key(&key);
    context.update(format!("{id}.{timestamp_s}.").as_bytes());
    context.update(content);
    format!("v1,{}", STANDARD.encode(context.sign()))
}

/// Whether a signature of the form `method=hex` is valid for the content, with any supported method.
pub fn is_signed(secret: &[u8], content: &[u8], signature: &[u8]) -> bool {
    let Some((name, digits)) = std::str::from_utf8(signature).ok().and_then(|text| text.trim().split_once('=')) else {
        return false;
    };
    let method = SignatureMethod::ALL.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    let Some((_, method)) = method else { return false };
    let Ok(tag) = hex::decode(digits) else { return false };
    hmac::verify(&hmac::Key::new(method.algorithm(), secret), content, &tag).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_those_of_rfc_2202_and_4231() {
        // RFC 2202 §3, test case 2, and RFC 4231 §4.3.
        let content = b"what do ya want for nothing?";
        assert_eq!(sign(SignatureMethod::Sha1, b"Jefe", content), "sha1=effcdf6ae5eb2fa2d27416d5f184df9c259a7c79");
        let sha256 = "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(sign(SignatureMethod::Sha256, b"Jefe", content), sha256);
    }

    #[test]
    fn standard_webhooks_are_signed_as_their_specification_shows() {
        // The example of the specification's libraries.
        let signature = sign_standard(
            b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            b"{\"test\": 2432232314}",
        );
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_ne!(sign_standard(b"whsec_not base64!", "1", 1, b""), sign_standard(b"not base64!", "1", 1, b""));
    }

    #[test]
    fn every_method_verifies_and_nothing_else_does() {
        for (name, method) in SignatureMethod::ALL {
            let signature = sign(method, b"secret", b"content");
            assert!(signature.starts_with(name) && is_signed(b"secret", b"content", signature.as_bytes()));
            assert!(!is_signed(b"other", b"content", signature.as_bytes()));
            assert!(!is_signed(b"secret", b"contents", signature.as_bytes()));
        }
        for wrong in ["", "sha256", "sha256=", "md5=00", "sha256=zz", "sha256=0"] {
            assert!(!is_signed(b"secret", b"content", wrong.as_bytes()), "{wrong}");
        }
    }
}
