//! The claims of a token that an auth plugin has verified.

use std::fmt;
use std::rc::Rc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

/// The claims of a verified token (RFC 7519 §4), for responders that decide by them.
#[derive(Clone)]
pub enum CallerClaims {
    /// Of a JSON Web Token in its compact form (RFC 7515 §7.1). The payload is decoded only when it is needed: a cache of tokens
    /// then holds no more than their texts, whose length is limited.
    Compact(Rc<[u8]>),
    Object(Rc<Map<String, Value>>),
}

impl CallerClaims {
    /// The claims by name.
    pub fn object(&self) -> Rc<Map<String, Value>> {
        match self {
            CallerClaims::Compact(token) => Rc::new(payload(token).unwrap_or_default()),
            CallerClaims::Object(claims) => Rc::clone(claims),
        }
    }
}

fn payload(token: &[u8]) -> Option<Map<String, Value>> {
    let part = token.split(|byte| *byte == b'.').nth(1)?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

/// Without the claims, which are personal.
impl fmt::Debug for CallerClaims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallerClaims")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_of_a_compact_token_is_decoded() {
        let payload = URL_SAFE_NO_PAD.encode(r#"{"scope":"a b"}"#);
        let compact = |text: String| CallerClaims::Compact(text.into_bytes().into()).object();
        assert_eq!(compact(format!("e30.{payload}.sig")).get("scope"), Some(&Value::from("a b")));
        assert!(compact("e30.?.sig".to_owned()).is_empty());
    }

    #[test]
    fn claims_are_not_shown() {
        let claims = Rc::new(Map::from_iter([("email".to_owned(), Value::from("me@example.com"))]));
        assert_eq!(format!("{:?}", CallerClaims::Object(claims)), "CallerClaims");
    }
}
