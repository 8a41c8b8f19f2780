//! A JSON Web Token in its compact form (RFC 7515 §7.1), parsed but not verified.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::{Map, Value};

/// Longer tokens are refused without being parsed.
const MAX_BYTES: usize = 16 << 10;

pub struct WebToken<'a> {
    header: Map<String, Value>,
    payload: Map<String, Value>,
    /// The bytes that the signature covers.
    pub signed: &'a [u8],
    /// The signature in base64url.
    pub signature: &'a str,
}

/// The claims about time, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claims {
    pub exp: Option<f64>,
    pub nbf: Option<f64>,
    pub iat: Option<f64>,
}

impl Claims {
    /// `None` if one of the claims is present, but not a time.
    pub fn of(payload: &Map<String, Value>) -> Option<Claims> {
        let time = |name| match payload.get(name) {
            None => Some(None),
            Some(value) => value.as_f64().filter(|time| time.is_finite() && *time >= 0.0).map(Some),
        };
        Some(Claims { exp: time("exp")?, nbf: time("nbf")?, iat: time("iat")? })
    }
}

impl<'a> WebToken<'a> {
    pub fn parse(token: &'a [u8]) -> Option<WebToken<'a>> {
        let text = str::from_utf8(token).ok().filter(|text| text.len() <= MAX_BYTES)?;
        let (signed, signature) = text.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        if payload.contains('.') || signature.is_empty() {
            return None;
        }
        let object = |part| Some(serde_json::from_slice::<UniqueObject>(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()?.0);
        let token =
            WebToken { header: object(header)?, payload: object(payload)?, signed: signed.as_bytes(), signature };
        // RFC 7515 §4.1.11: what is critical and not understood makes a token invalid, and nothing is understood here.
        (!token.header.contains_key("crit")).then_some(token)
    }

    /// The algorithm in the token's header; `None` if it is missing or unknown.
    pub fn algorithm(&self) -> Option<Algorithm> {
        Algorithm::deserialize(self.header.get("alg")?).ok()
    }

    /// The id of the key, from the token's header.
    pub fn key_id(&self) -> Option<&str> {
        self.header.get("kid")?.as_str()
    }

    /// The claims.
    pub fn payload(&self) -> &Map<String, Value> {
        &self.payload
    }

    pub fn text(&self, claim: &str) -> Option<&str> {
        self.payload.get(claim)?.as_str()
    }

    /// The claims about time; `None` if one of them is present, but not a time.
    pub fn claims(&self) -> Option<Claims> {
        Claims::of(&self.payload)
    }
}

/// A JSON object in which no name occurs twice (RFC 7519 §4).
struct UniqueObject(Map<String, Value>);

impl<'de> Deserialize<'de> for UniqueObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<UniqueObject, D::Error> {
        struct UniqueMembers;

        impl<'de> Visitor<'de> for UniqueMembers {
            type Value = UniqueObject;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueObject, A::Error> {
                let mut members = Map::new();
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    if members.insert(name, value).is_some() {
                        return Err(A::Error::custom("duplicate name"));
                    }
                }
                Ok(UniqueObject(members))
            }
        }

        deserializer.deserialize_map(UniqueMembers)
    }
}
