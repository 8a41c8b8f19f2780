//! Authentication by tokens in place of keys.

use std::future::Future;
use std::pin::Pin;

use serde_json::{Map, Value};

use super::keys::Caller;
use crate::document::{AdminGrant, TokenRoles};

/// The future of a token that is being verified.
pub type VerifyingToken<'a> = Pin<Box<dyn Future<Output = Result<VerifiedToken, TokenFault>> + Send + 'a>>;

/// A token that is valid at present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifiedToken {
    pub claims: Map<String, Value>,
    /// Until when it is accepted, in milliseconds since 1970.
    pub until_ms: u64,
}

/// The caller that a token identifies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenCaller {
    pub(super) caller: Caller,
    /// Until when the token is accepted, in milliseconds since 1970.
    pub(super) until_ms: u64,
}

/// Verifies the signature, issuer, audience and times of tokens.
pub trait TokenVerifier: Send + Sync {
    fn verify<'a>(&'a self, token: &'a str) -> VerifyingToken<'a>;
}

/// Why a token is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenFault {
    /// The token is invalid; the reason.
    Invalid(String),
    /// The token cannot be verified at present; the reason.
    Unverifiable(String),
    /// The token is valid, but grants no role.
    NoRole,
}

/// The verifier of tokens, and the mapping from claims to roles.
pub struct AcceptedTokens {
    roles: TokenRoles,
    verifier: Box<dyn TokenVerifier>,
}

/// The maximum length of a caller's name, in characters.
const MAX_NAME: usize = 128;

impl AcceptedTokens {
    pub fn new(roles: TokenRoles, verifier: Box<dyn TokenVerifier>) -> AcceptedTokens {
        AcceptedTokens { roles, verifier }
    }

    /// The caller that a token identifies, with its rights.
    pub(super) async fn caller(&self, token: &str) -> Result<TokenCaller, TokenFault> {
        let VerifiedToken { claims, until_ms } = self.verifier.verify(token).await?;
        let caller = caller_of_claims(&self.roles, &claims, "token:")?;
        Ok(TokenCaller { caller, until_ms })
    }
}

/// The caller that verified claims identify, with its rights. The prefix distinguishes its name from names of keys.
pub(super) fn caller_of_claims(
    roles: &TokenRoles,
    claims: &Map<String, Value>,
    prefix: &str,
) -> Result<Caller, TokenFault> {
    let AdminGrant { role, scopes } = grant(roles, claims).ok_or(TokenFault::NoRole)?.clone();
    let missing = || TokenFault::Invalid("the token does not say whose it is (sub)".to_owned());
    let subject = subject(claims).ok_or_else(missing)?;
    Ok(Caller { name: format!("{prefix}{subject}").into(), role, scopes })
}

/// Whom claims are about; `None` if they do not say.
pub(super) fn subject(claims: &Map<String, Value>) -> Option<String> {
    let subject = claims.get("sub").and_then(Value::as_str)?;
    let subject: String = subject.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect();
    (!subject.is_empty()).then_some(subject)
}

/// The first grant in the configuration whose value is in the claim.
fn grant<'r>(roles: &'r TokenRoles, claims: &Map<String, Value>) -> Option<&'r AdminGrant> {
    let values: Vec<&str> = match claim(claims, &roles.claim)? {
        Value::String(text) => text.split(' ').collect(),
        Value::Array(items) => items.iter().filter_map(Value::as_str).collect(),
        _ => return None,
    };
    let found = roles.grants.iter().find(|(value, _)| values.contains(&&**value));
    found.map(|(_, grant)| grant)
}

/// The claim of this name, or the member at a path such as `realm_access.roles`.
fn claim<'c>(claims: &'c Map<String, Value>, name: &str) -> Option<&'c Value> {
    claims.get(name).or_else(|| {
        let (first, rest) = name.split_once('.')?;
        rest.split('.').try_fold(claims.get(first)?, |value, part| value.get(part))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::document::AdminRole;

    struct Believing(Value);

    impl TokenVerifier for Believing {
        fn verify<'a>(&'a self, _: &'a str) -> VerifyingToken<'a> {
            let claims = self.0.as_object().cloned().unwrap_or_default();
            Box::pin(async move { Ok(VerifiedToken { claims, until_ms: 0 }) })
        }
    }

    fn role(claim: &str, claims: Value) -> Result<AdminRole, TokenFault> {
        let grant = |role| AdminGrant { role, scopes: [].into() };
        let grants = vec![("ops".into(), grant(AdminRole::Admin)), ("dev".into(), grant(AdminRole::Editor))];
        let tokens = AcceptedTokens::new(TokenRoles { claim: claim.into(), grants }, Box::new(Believing(claims)));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(tokens.caller("t")).map(|token| token.caller.role)
    }

    #[test]
    fn the_first_value_that_a_token_has_counts() {
        let of = |claims: Value| role("groups", claims);
        assert_eq!(of(json!({"sub": "a", "groups": ["dev", "ops"]})), Ok(AdminRole::Admin));
        assert_eq!(of(json!({"sub": "a", "groups": "x dev"})), Ok(AdminRole::Editor));
        assert_eq!(of(json!({"sub": "a", "groups": ["other"]})), Err(TokenFault::NoRole));
        assert_eq!(of(json!({"sub": "a"})), Err(TokenFault::NoRole));
        assert!(matches!(of(json!({"groups": ["ops"]})), Err(TokenFault::Invalid(_))));
        let deep = json!({"sub": "a", "realm_access": {"roles": ["ops"]}, "https://a.example/roles": ["dev"]});
        assert_eq!(role("realm_access.roles", deep.clone()), Ok(AdminRole::Admin));
        assert_eq!(role("https://a.example/roles", deep), Ok(AdminRole::Editor));
    }
}
