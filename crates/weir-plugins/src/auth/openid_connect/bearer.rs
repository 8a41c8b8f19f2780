//! The verification of access tokens, and their claims.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::header::{HeaderMap, HeaderName, HeaderValue};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::{Map, Value};
use weir_plugin::{Build, Exchange, PerWorker, Stop};
use weir_tokens::{ClientAuthMethod, SignedToken, TokenRules, now_s};

use super::provider::{Provider, ProviderError, missing_endpoint};
use crate::auth::json_bytes::map_bytes;
use crate::auth::recent::{RecentResults, SecretDigest};

/// How tokens are verified.
pub(super) enum Verifier {
    /// By their signature, with the provider's published keys.
    Keys,
    Own {
        key: Box<DecodingKey>,
        algorithms: Vec<Algorithm>,
    },
    /// By introspection at the provider (RFC 7662).
    Introspection {
        endpoint: Option<String>,
        proof: ClientAuthMethod,
        /// Fields of the request that are sent along to the provider.
        fields: Vec<HeaderName>,
        /// How long an answer is cached at most.
        interval: Duration,
        /// The member of the answer with the expiry of the token.
        expiry: String,
    },
}

/// The claims of a valid token.
pub(super) type TokenClaims = Rc<Map<String, Value>>;

/// The most valid tokens that each worker caches.
const REMEMBERED: usize = 1024;
/// The most bytes of their claims.
const REMEMBERED_BYTES: usize = 8 << 20;

/// The cache of valid tokens, by their digests.
pub(super) type GoodTokens = RefCell<RecentResults<TokenClaims>>;

pub(super) fn good_tokens(build: &Build) -> PerWorker<GoodTokens> {
    build.per_worker("openid-good-tokens", "", || {
        RefCell::new(RecentResults::new(REMEMBERED).with_most_bytes(REMEMBERED_BYTES))
    })
}

/// Why a token does not admit a request.
pub(super) enum TokenRejection {
    /// The token is not valid, for this reason.
    Token(&'static str),
    /// The provider could not be asked.
    Trouble(ProviderError),
    /// The exchange has been answered, or has failed.
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

/// The claims of a valid signed token; its signature is verified with `own`, or else with the provider's keys.
pub(super) async fn verified(
    provider: &Provider,
    rules: &TokenRules,
    own: Option<(&DecodingKey, &[Algorithm])>,
    shown: &[u8],
) -> Result<Map<String, Value>, TokenRejection> {
    let signed = SignedToken::parse(shown, rules.algorithms.as_deref()).map_err(TokenRejection::Token)?;
    let is_signed = match own {
        // RFC 8725 §3.1: the key determines the algorithms, and the token's header has to agree.
        Some((key, algorithms)) => algorithms.contains(&signed.algorithm) && signed.is_signed_with(key),
        None => {
            let keys = provider.keys_for(signed.token.key_id(), signed.algorithm).await?;
            signed.is_signed_with_one_of(&keys)
        }
    };
    if !is_signed {
        return Err(TokenRejection::Token("the signature of the token is not valid"));
    }
    let issuer = match &rules.issuers {
        Some(_) => String::new(),
        None => provider.discovery().await?.issuer.clone(),
    };
    match rules.fault(signed.token.payload(), &issuer, now_s()) {
        Some(fault) => Err(TokenRejection::Token(fault)),
        None => Ok(signed.token.payload().clone()),
    }
}

/// Verifies bearer tokens.
pub(super) struct Bearer {
    pub verifier: Verifier,
    pub rules: TokenRules,
    pub remembers: bool,
    /// Identifies the configuration: results that were cached under another one are not used.
    pub seal: Box<str>,
    pub good: PerWorker<GoodTokens>,
}

impl Bearer {
    pub(super) async fn verify(
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
            let bytes = map_bytes(&claims);
            self.good.get().borrow_mut().keep_sized(mark, Rc::clone(&claims), until, bytes);
        }
        Ok(claims)
    }

    /// Asks the provider whether the token is active (RFC 7662).
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
        let endpoint = match endpoint {
            Some(endpoint) => provider.endpoint(endpoint)?,
            None => {
                let discovery = provider.discovery().await?;
                let endpoint = discovery.introspection_endpoint.as_deref();
                provider.endpoint(endpoint.ok_or_else(|| missing_endpoint("introspection_endpoint"))?)?
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
        let claims = provider.post(&endpoint, *proof, sent, &pairs).await?;
        if claims.get("active") != Some(&Value::Bool(true)) {
            return Err(TokenRejection::Token("the token is not active"));
        }
        // The provider has checked the times and the issuer; the audience can only be checked here.
        match self.rules.fault_of_audience(&claims) {
            Some(fault) => Err(TokenRejection::Token(fault)),
            None => Ok(claims),
        }
    }
}

/// How long a token that was verified by its signature is cached at most, in seconds: keys can be revoked.
const MOST_REMEMBERED_S: f64 = 300.0;
