//! Access tokens: whether one is good, and what it says.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::header::{HeaderMap, HeaderName, HeaderValue};
use jsonwebtoken::{Algorithm, DecodingKey, crypto};
use serde_json::{Map, Value};
use weir_plugin::{Build, Exchange, PerWorker, Stop};

use super::provider::{ClientAuthMethod, Provider, ProviderError};
use crate::auth::json_web_token::{Claims, WebToken};
use crate::auth::recent::{RecentResults, SecretDigest};

/// How tokens are verified.
pub enum Verifier {
    /// With the provider's keys.
    Keys,
    Own {
        key: Box<DecodingKey>,
        algorithms: Vec<Algorithm>,
    },
    /// By asking the provider.
    Introspection {
        endpoint: Option<String>,
        proof: ClientAuthMethod,
        /// Of the request, which the provider gets.
        fields: Vec<HeaderName>,
        /// How long an answer counts at most.
        interval: Duration,
        /// The member that says when a token ends.
        expiry: String,
    },
}

/// What a token must say.
pub struct TokenRules {
    /// How it may be signed; nothing is as the key allows.
    pub algorithms: Option<Vec<Algorithm>>,
    /// Whose it may be; nothing is the provider's.
    pub issuers: Option<Vec<String>>,
    /// The claim that says for whom it is.
    pub audience: String,
    pub audience_required: bool,
    /// It must be for this client.
    pub for_client: Option<String>,
    pub iat_slack_s: f64,
}

/// Seconds by which clocks may differ.
const LEEWAY_S: f64 = 10.0;

impl TokenRules {
    /// What is wrong with the claims; nothing where they are good.
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
            Some(exp) if now_s > exp + LEEWAY_S => Some("the token has expired"),
            _ if nbf.is_some_and(|nbf| now_s < nbf - LEEWAY_S) => Some("the token is not valid yet (nbf)"),
            _ if iat.is_some_and(|iat| now_s < iat - self.iat_slack_s) => {
                Some("the token was issued in the future (iat)")
            }
            _ => None,
        }
    }

    fn fault_of_audience(&self, claims: &Map<String, Value>) -> Option<&'static str> {
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

/// What a good token says.
pub type TokenClaims = Rc<Map<String, Value>>;

/// Good tokens that each worker remembers.
const REMEMBERED: usize = 1024;

/// Good tokens, by what stands for them.
pub type GoodTokens = RefCell<RecentResults<TokenClaims>>;

pub fn good_tokens(build: &Build) -> PerWorker<GoodTokens> {
    build.per_worker("openid-good-tokens", "", || RefCell::new(RecentResults::new(REMEMBERED)))
}

/// Why a token lets nobody in.
pub enum TokenRejection {
    /// It is not good; why.
    Token(&'static str),
    /// Nobody can tell.
    Trouble(ProviderError),
    /// It ends here.
    Stop(Stop),
}

impl From<Stop> for TokenRejection {
    fn from(stop: Stop) -> TokenRejection {
        TokenRejection::Stop(stop)
    }
}

impl From<ProviderError> for TokenRejection {
    fn from(trouble: ProviderError) -> TokenRejection {
        TokenRejection::Trouble(trouble)
    }
}

/// What a signed token says: signed with a key of one's own, or else with one of the provider's.
pub async fn verified(
    provider: &Provider,
    rules: &TokenRules,
    own: Option<(&DecodingKey, &[Algorithm])>,
    shown: &[u8],
) -> Result<Map<String, Value>, TokenRejection> {
    let token = WebToken::parse(shown).ok_or(TokenRejection::Token("the token is not a signed JWT"))?;
    let allowed =
        |algorithm: &Algorithm| rules.algorithms.as_ref().is_none_or(|algorithms| algorithms.contains(algorithm));
    let algorithm = token
        .algorithm()
        .filter(allowed)
        .ok_or(TokenRejection::Token("the signature algorithm of the token is not accepted"))?;
    let is_good = |key: &DecodingKey| crypto::verify(token.signature, token.signed, key, algorithm).unwrap_or(false);
    let is_signed = match own {
        // RFC 8725 §3.1: the key decides how; the token may only agree.
        Some((key, algorithms)) => algorithms.contains(&algorithm) && is_good(key),
        None => {
            let keys = provider.keys_for(token.key_id(), algorithm).await?;
            keys.iter().filter(|key| key.is_for(token.key_id(), algorithm)).any(|key| is_good(&key.key))
        }
    };
    if !is_signed {
        return Err(TokenRejection::Token("the signature of the token is not valid"));
    }
    let issuer = match &rules.issuers {
        Some(_) => String::new(),
        None => provider.discovery().await?.issuer.clone(),
    };
    match rules.fault(token.payload(), &issuer, now_s()) {
        Some(fault) => Err(TokenRejection::Token(fault)),
        None => Ok(token.payload().clone()),
    }
}

/// Verifies tokens.
pub struct Bearer {
    pub verifier: Verifier,
    pub rules: TokenRules,
    pub remembers: bool,
    /// Names the configuration: what was found out under another does not count.
    pub seal: Box<str>,
    pub good: PerWorker<GoodTokens>,
}

fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

impl Bearer {
    pub async fn verify(
        &self,
        provider: &Provider,
        token: &[u8],
        exchange: &Exchange,
    ) -> Result<TokenClaims, TokenRejection> {
        let mark = SecretDigest::of(&[self.seal.as_bytes(), token]);
        if self.remembers
            && let Some(known) = self.good.get().borrow().find(mark)
        {
            return Ok(known);
        }
        let (claims, good_for_s) = match &self.verifier {
            Verifier::Introspection { interval, expiry, .. } => {
                let claims = self.introspect(provider, token, exchange).await?;
                let left_s = claims.get(expiry).and_then(Value::as_f64).map_or(f64::MAX, |exp| exp - now_s());
                (claims, left_s.min(interval.as_secs_f64()))
            }
            _ => {
                let claims = {
                    let own = match &self.verifier {
                        Verifier::Own { key, algorithms } => Some((&**key, &**algorithms)),
                        _ => None,
                    };
                    verified(provider, &self.rules, own, token).await?
                };
                let left_s = claims.get("exp").and_then(Value::as_f64).map_or(0.0, |exp| exp - now_s());
                (claims, left_s.min(MOST_REMEMBERED_S))
            }
        };
        let claims = Rc::new(claims);
        if self.remembers && good_for_s > 0.0 {
            let until = Instant::now() + Duration::from_secs_f64(good_for_s);
            self.good.get().borrow_mut().keep(mark, Rc::clone(&claims), until);
        }
        Ok(claims)
    }

    /// RFC 7662: the provider knows.
    async fn introspect(
        &self,
        provider: &Provider,
        token: &[u8],
        exchange: &Exchange,
    ) -> Result<Map<String, Value>, TokenRejection> {
        let Verifier::Introspection { endpoint, proof, fields, .. } = &self.verifier else {
            unreachable!("the caller has checked the kind of the verifier")
        };
        let token = str::from_utf8(token).map_err(|_| TokenRejection::Token("the token is not UTF-8 text"))?;
        let service = match endpoint {
            Some(endpoint) => provider.service(endpoint)?,
            None => {
                let discovery = provider.discovery().await?;
                let endpoint = discovery.introspection_endpoint.as_deref();
                provider.service(endpoint.ok_or_else(|| {
                    ProviderError::Answer("the discovery document has no `introspection_endpoint`".to_owned())
                })?)?
            }
        };
        let mut sent = HeaderMap::new();
        for name in fields {
            for value in exchange.request.head.values(name.as_str().as_bytes()) {
                sent.append(
                    name,
                    HeaderValue::from_bytes(value)
                        .map_err(|_| TokenRejection::Token("a header field for the introspection is not valid"))?,
                );
            }
        }
        let pairs = [("token", token), ("token_type_hint", "access_token")];
        let claims = provider.post(&service, *proof, sent, &pairs).await?;
        if claims.get("active") != Some(&Value::Bool(true)) {
            return Err(TokenRejection::Token("the token is not active"));
        }
        // The provider has looked at its times and its issuer; for whom it is only we can know.
        match self.rules.fault_of_audience(&claims) {
            Some(fault) => Err(TokenRejection::Token(fault)),
            None => Ok(claims),
        }
    }
}

/// A token that was verified with a key is looked at again after so long: keys may be taken back.
const MOST_REMEMBERED_S: f64 = 300.0;

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
