//! What each log-in at a provider has to prove, wherever it ends (OpenID Connect Core 1.0 §3.1).

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::rand;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

/// 32 random bytes in base64url: a state, a nonce, or a code verifier.
///
/// # Errors
/// If the random number generator fails.
pub fn random_text() -> Result<String, Unspecified> {
    let mut bytes = [0; 32];
    rand::fill(&mut bytes)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// The challenge of a code verifier by the method `S256` (RFC 7636 §4.2).
pub fn challenge(verifier: &str) -> String {
    URL_SAFE_NO_PAD.encode(digest(&SHA256, verifier.as_bytes()))
}

/// Why the claims of a valid ID token are not those of this log-in; `None` if they are. The answer to a refresh has no nonce.
pub fn fault_of_login(identity: &Map<String, Value>, client: &str, nonce: Option<&str>) -> Option<&'static str> {
    let said = |claim: &str| identity.get(claim).and_then(Value::as_str);
    if nonce.is_some() && said("nonce") != nonce {
        return Some("the ID token belongs to another login (nonce)");
    }
    let several = identity.get("aud").and_then(Value::as_array).is_some_and(|audience| audience.len() > 1);
    let is_for_other = (several || identity.contains_key("azp")) && said("azp") != Some(client);
    is_for_other.then_some("the ID token is for another audience")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_id_token_is_of_one_log_in_and_of_one_client() {
        let fault = |claims: Value| fault_of_login(claims.as_object().expect("a map"), "us", Some("n"));
        let (other_login, other_client) =
            (Some("the ID token belongs to another login (nonce)"), Some("the ID token is for another audience"));
        for (claims, want) in [
            (json!({"nonce": "n", "aud": "us"}), None),
            (json!({"nonce": "n", "aud": ["us", "them"], "azp": "us"}), None),
            (json!({"nonce": "n", "aud": ["us", "them"]}), other_client),
            (json!({"nonce": "n", "aud": "us", "azp": "them"}), other_client),
            (json!({"nonce": "m", "aud": "us"}), other_login),
            (json!({"nonce": ["n"], "aud": "us"}), other_login),
            (json!({"aud": "us"}), other_login),
        ] {
            assert_eq!(fault(claims.clone()), want, "{claims}");
        }
        let refreshed = json!({"aud": "us"});
        assert_eq!(fault_of_login(refreshed.as_object().expect("a map"), "us", None), None);
    }

    #[test]
    fn a_challenge_is_that_of_the_example() {
        // RFC 7636 appendix B.
        let expected = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
        assert_eq!(challenge("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"), expected);
    }
}
