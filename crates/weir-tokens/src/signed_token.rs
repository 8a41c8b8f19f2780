//! Signed tokens: the keys that verify them (RFC 7517), and the rules for their claims.

use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, DecodingKey, crypto};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::json_web_token::{Claims, WebToken};

/// A public key that verifies the tokens of another party.
pub struct SigningKey {
    id: Option<String>,
    /// The signature algorithms it may be used with. Never HMAC, even if the key set contains a shared secret.
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

/// The most keys that are used of one set.
const MAX_KEYS: usize = 32;

impl SigningKey {
    /// The keys of a key set that can verify signatures.
    pub fn of_set(set: &Map<String, Value>) -> Vec<SigningKey> {
        let keys = set.get("keys").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        keys.iter().filter_map(SigningKey::parse).take(MAX_KEYS).collect()
    }

    pub fn is_for(&self, id: Option<&str>, algorithm: Algorithm) -> bool {
        self.algorithms.contains(&algorithm) && id.is_none_or(|id| self.id.as_deref().is_none_or(|own| own == id))
    }

    /// `None` if the key is not for signatures, or for none that are supported.
    fn parse(value: &Value) -> Option<SigningKey> {
        let text = |member: &str| value.get(member).and_then(Value::as_str);
        if text("use").is_some_and(|usage| usage != "sig") {
            return None;
        }
        use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
        let mut algorithms = match (text("kty")?, text("crv")) {
            ("RSA", _) => vec![RS256, RS384, RS512, PS256, PS384, PS512],
            ("EC", Some("P-256")) => vec![ES256],
            ("EC", Some("P-384")) => vec![ES384],
            ("OKP", Some("Ed25519")) => vec![EdDSA],
            _ => return None,
        };
        if let Some(only) = value.get("alg") {
            let only = Algorithm::deserialize(only).ok()?;
            algorithms.retain(|algorithm| *algorithm == only);
        }
        let key = DecodingKey::from_jwk(&Jwk::deserialize(value).ok()?).ok()?;
        Some(SigningKey { id: text("kid").map(str::to_owned), algorithms, key })
    }
}

/// A parsed token whose signature has not been verified yet.
pub struct SignedToken<'a> {
    pub token: WebToken<'a>,
    pub algorithm: Algorithm,
}

impl<'a> SignedToken<'a> {
    /// # Errors
    /// If it is not a signed token, or its algorithm is not in `allowed`; with `None`, every algorithm is allowed.
    pub fn parse(shown: &'a [u8], allowed: Option<&[Algorithm]>) -> Result<SignedToken<'a>, &'static str> {
        let token = WebToken::parse(shown).ok_or("the token is not a signed JWT")?;
        let is_allowed = |algorithm: &Algorithm| allowed.is_none_or(|allowed| allowed.contains(algorithm));
        let algorithm = token.algorithm().filter(is_allowed);
        let algorithm = algorithm.ok_or("the signature algorithm of the token is not accepted")?;
        Ok(SignedToken { token, algorithm })
    }

    pub fn is_signed_with(&self, key: &DecodingKey) -> bool {
        crypto::verify(self.token.signature, self.token.signed, key, self.algorithm).unwrap_or(false)
    }

    pub fn is_signed_with_one_of(&self, keys: &[SigningKey]) -> bool {
        let fitting = keys.iter().filter(|key| key.is_for(self.token.key_id(), self.algorithm));
        fitting.into_iter().any(|key| self.is_signed_with(&key.key))
    }
}

/// The requirements for the claims of a token.
pub struct TokenRules {
    /// The allowed signature algorithms; with `None`, those of the key.
    pub algorithms: Option<Vec<Algorithm>>,
    /// The allowed issuers; with `None`, only the provider.
    pub issuers: Option<Vec<String>>,
    /// The name of the claim that contains the audience.
    pub audience: String,
    pub audience_required: bool,
    /// The value that the audience must contain.
    pub for_client: Option<String>,
    pub iat_slack_s: f64,
}

/// The tolerance for clock differences, in seconds.
const LEEWAY_S: f64 = 10.0;

/// Until when a token with these claims is accepted, in seconds since 1970; `None` without an expiry (`exp`).
pub fn accepted_until_s(claims: &Map<String, Value>) -> Option<f64> {
    Claims::of(claims)?.exp.map(|exp| exp + LEEWAY_S)
}

impl TokenRules {
    /// Why the claims are refused; `None` if they are accepted.
    pub fn fault(&self, claims: &Map<String, Value>, issuer: &str, now_s: f64) -> Option<&'static str> {
        let own = claims.get("iss").and_then(Value::as_str);
        let is_known = |own: &str| match &self.issuers {
            None => own == issuer,
            Some(issuers) => issuers.iter().any(|known| known == own),
        };
        if !own.is_some_and(is_known) {
            return Some("the token's issuer is not accepted");
        }
        self.fault_of_times(claims, now_s).or_else(|| self.fault_of_audience(claims))
    }

    fn fault_of_times(&self, claims: &Map<String, Value>, now_s: f64) -> Option<&'static str> {
        let Some(Claims { exp, nbf, iat }) = Claims::of(claims) else {
            return Some("a time claim of the token is not a number");
        };
        match exp {
            None => Some("the token has no expiry (exp)"),
            Some(_) if accepted_until_s(claims).is_some_and(|until| now_s > until) => Some("the token has expired"),
            _ if nbf.is_some_and(|nbf| now_s < nbf - LEEWAY_S) => Some("the token is not valid yet (nbf)"),
            _ if iat.is_some_and(|iat| now_s < iat - self.iat_slack_s) => {
                Some("the token was issued in the future (iat)")
            }
            _ => None,
        }
    }

    pub fn fault_of_audience(&self, claims: &Map<String, Value>) -> Option<&'static str> {
        let audience: Vec<&str> = match claims.get(&self.audience) {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        if self.audience_required && audience.is_empty() {
            return Some("the token has no audience");
        }
        let is_for = |client: &String| audience.contains(&client.as_str());
        (!self.for_client.as_ref().is_none_or(is_for)).then_some("the token is for another audience")
    }
}

/// Seconds since 1970.
pub fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_must_be_those_of_a_token_for_us() {
        let rules = |issuers: Option<Vec<String>>, for_client: Option<&str>| TokenRules {
            algorithms: None,
            issuers,
            audience: "aud".to_owned(),
            audience_required: for_client.is_some(),
            for_client: for_client.map(str::to_owned),
            iat_slack_s: 120.0,
        };
        let (now, any, ours) = (1000.0, rules(None, None), rules(Some(vec!["b".to_owned()]), Some("us")));
        for (rules, claims, want) in [
            (&any, json!({"iss": "a", "exp": 1001}), None),
            (&any, json!({"iss": "a", "exp": 995}), None),
            (&any, json!({"iss": "a", "exp": 989}), Some("the token has expired")),
            (&any, json!({"iss": "a"}), Some("the token has no expiry (exp)")),
            (&any, json!({"iss": "a", "exp": "1001"}), Some("a time claim of the token is not a number")),
            (&any, json!({"iss": "a", "exp": 1001, "nbf": 1011}), Some("the token is not valid yet (nbf)")),
            (&any, json!({"iss": "a", "exp": 1001, "iat": 1121}), Some("the token was issued in the future (iat)")),
            (&any, json!({"iss": "b", "exp": 1001}), Some("the token's issuer is not accepted")),
            (&any, json!({"exp": 1001}), Some("the token's issuer is not accepted")),
            (&ours, json!({"iss": "b", "exp": 1001, "aud": "us"}), None),
            (&ours, json!({"iss": "b", "exp": 1001, "aud": ["them", "us"]}), None),
            (&ours, json!({"iss": "b", "exp": 1001, "aud": ["them"]}), Some("the token is for another audience")),
            (&ours, json!({"iss": "b", "exp": 1001}), Some("the token has no audience")),
            (&ours, json!({"iss": "a", "exp": 1001, "aud": "us"}), Some("the token's issuer is not accepted")),
        ] {
            assert_eq!(rules.fault(claims.as_object().expect("a map"), "a", now), want, "{claims}");
        }
    }
}
