use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderName;
use jsonwebtoken::{Algorithm, DecodingKey};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_plugin::{Build, ConfigError, Definition, Plugin, Stage};

use crate::options::headers::header_name;
use crate::rate_limited_log::RateLimitedLog;

mod authenticator;
mod bearer;
mod login;
mod options;
mod provider;
mod session;

use authenticator::{ForwardedFields, OpenidAuthenticator};
use bearer::{Bearer, TokenRules, Verifier};
use options::LoginOptions;
use provider::{ClientAuthMethod, OpenidClient, Provider};

/// Lets in who has logged in at an OpenID Connect provider: browsers by a login with redirects, and requests that bring an
/// access token, as `Authorization: Bearer` or `X-Access-Token`.
///
/// A token is verified with the provider's keys (`use_jwks`), with a key of one's own (`public_key`), or by asking the
/// provider (introspection, RFC 7662). How a token may be signed is decided by the keys, and never by the token. Its issuer
/// and its times are always checked. The upstream learns who it is in `X-Userinfo`, the claims as JSON in base64; such
/// fields of the client's own are removed. When the provider does not answer, the answer is 503.
///
/// Requests without a token are sent to the provider, unless `bearer_only` is set, and come back with a code (the code
/// flow, always with state, nonce and PKCE). The session is kept by the browser, in a cookie that only gateways with the
/// same `session.secret` can read.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenidConnect {
    /// What this gateway is called at the provider.
    client_id: String,
    /// Its secret, for introspection and for logins.
    client_secret: Option<String>,
    /// The URL of the provider's description, which ends in `/.well-known/openid-configuration`.
    discovery: String,
    /// Requests without a token are refused, instead of being sent to a login.
    #[serde(default)]
    bearer_only: bool,
    /// Verifies tokens with the keys the provider publishes.
    #[serde(default)]
    use_jwks: bool,
    /// Verifies tokens with this key, as PEM: RSA, EC or Ed25519.
    public_key: Option<String>,
    /// How tokens may be signed, as `RS256` or `RS256 ES256`. Without it, as the key allows.
    token_signing_alg_values_expected: Option<String>,
    /// Asks here about tokens. Without it, where the provider's description says.
    introspection_endpoint: Option<String>,
    /// How this gateway shows who it is there: `client_secret_basic` or `client_secret_post`.
    #[serde(default = "client_secret_basic")]
    introspection_endpoint_auth_method: String,
    /// Fields of the request that the provider gets with the question.
    #[serde(default)]
    introspection_addon_headers: Vec<String>,
    /// How many seconds an answer about a token counts at most; 0 is a minute. Never beyond the token's own end.
    #[serde(default)]
    introspection_interval: u64,
    /// The member of the answer that says when the token ends, instead of `exp`.
    #[serde(default = "exp")]
    introspection_expiry_claim: String,
    /// How many seconds the provider's keys and description are kept. When a token has an unknown key they are fetched again,
    /// at most every five seconds.
    #[serde(default = "day_s")]
    #[schemars(range(min = 1))]
    jwk_expires_in: u64,
    /// Verifies a token whenever it is shown, instead of remembering good ones.
    #[serde(default)]
    jwt_verification_cache_ignore: bool,
    /// Seconds by which a token may have been issued in the future.
    #[serde(default = "two_minutes_s")]
    iat_slack: u32,
    /// Whose tokens, and for whom.
    #[serde(default)]
    claim_validator: ClaimValidator,
    /// Scopes a token must have. Without them: 403.
    #[serde(default)]
    required_scopes: Vec<String>,
    /// What becomes of requests without a valid token: `auth` sends those without one to a login, `deny` is 401,
    /// `pass` lets them through unknown.
    #[serde(default)]
    unauth_action: UnauthAction,
    /// What the token is for, in `WWW-Authenticate` of a refusal.
    #[serde(default = "realm")]
    realm: String,
    /// The upstream gets the token in `X-Access-Token`.
    #[serde(default = "yes")]
    set_access_token_header: bool,
    /// The upstream gets the token in `Authorization` instead.
    #[serde(default)]
    access_token_in_authorization_header: bool,
    /// The upstream gets the claims in `X-Userinfo`.
    #[serde(default = "yes")]
    set_userinfo_header: bool,
    /// Seconds the provider may take for all that a request has to ask it, connecting included.
    #[serde(default = "three")]
    #[schemars(range(min = 1, max = 60))]
    timeout: u64,
    /// Whether the provider has to prove with a certificate who it is, vouched for by an authority of this system.
    #[serde(default = "yes")]
    ssl_verify: bool,
    /// Only `false`: unsigned tokens are always refused.
    #[serde(default)]
    accept_none_alg: bool,
    /// Has no effect: what is signed in a way that is not known is refused.
    #[serde(default, rename = "accept_unsupported_alg")]
    _accept_unsupported_alg: Option<bool>,
    /// Has no effect: each configuration remembers its own tokens.
    #[serde(default, rename = "cache_segment")]
    _cache_segment: Option<String>,
    #[serde(flatten)]
    login: LoginOptions,
}

/// Whose tokens are taken, and for whom they must be.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct ClaimValidator {
    /// Who may have issued them.
    issuer: IssuerValidator,
    /// For whom they must be.
    audience: AudienceValidator,
}

/// Who may have issued a token.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct IssuerValidator {
    /// Issuers, instead of the provider itself.
    valid_issuers: Option<Vec<String>>,
}

/// For whom a token must be.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct AudienceValidator {
    /// The claim that says so.
    claim: String,
    /// A token must say so.
    required: bool,
    /// It must be for this `client_id`.
    match_with_client_id: bool,
}

impl Default for AudienceValidator {
    fn default() -> AudienceValidator {
        AudienceValidator { claim: "aud".to_owned(), required: false, match_with_client_id: false }
    }
}

/// What becomes of requests without a valid token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum UnauthAction {
    #[default]
    Auth,
    Deny,
    Pass,
}

fn yes() -> bool {
    true
}

fn three() -> u64 {
    3
}

fn two_minutes_s() -> u32 {
    120
}

fn day_s() -> u64 {
    86_400
}

fn exp() -> String {
    "exp".to_owned()
}

fn realm() -> String {
    "apisix".to_owned()
}

fn client_secret_basic() -> String {
    "client_secret_basic".to_owned()
}

impl Definition for OpenidConnect {
    const NAME: &'static str = "openid-connect";
    const PRIORITY: i32 = 2599;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = r#"openid-connect:
  client_id: orders
  discovery: https://login.example.org/.well-known/openid-configuration
  bearer_only: true
  use_jwks: true
  required_scopes: [orders]"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        self.check()?;
        let shown = self.forwarded_fields();
        let verifier = self.verifier()?;
        let algorithms = self.token_signing_alg_values_expected.as_deref().map(algorithms).transpose()?;
        let ClaimValidator { issuer, audience } = self.claim_validator;
        // A token of identity is always for who has asked for it (OpenID Connect Core 1.0 §3.1.3.7).
        let of_identity = TokenRules {
            algorithms: algorithms.clone(),
            issuers: issuer.valid_issuers.clone(),
            audience: "aud".to_owned(),
            audience_required: true,
            for_client: Some(self.client_id.clone()),
            iat_slack_s: f64::from(self.iat_slack),
        };
        let login = match self.bearer_only {
            true => None,
            false => Some(self.login.build(&self.client_id, of_identity, self.set_userinfo_header)?),
        };
        let rules = TokenRules {
            algorithms,
            issuers: issuer.valid_issuers,
            audience: audience.claim,
            audience_required: audience.required || audience.match_with_client_id,
            for_client: audience.match_with_client_id.then(|| self.client_id.clone()),
            iat_slack_s: f64::from(self.iat_slack),
        };
        let client = OpenidClient { id: self.client_id, secret: self.client_secret.unwrap_or_default() };
        let provider = Provider::new(
            &self.discovery,
            self.ssl_verify,
            Duration::from_secs(self.timeout),
            Duration::from_secs(self.jwk_expires_in),
            client,
            build,
        )?;
        let remembers = !self.jwt_verification_cache_ignore;
        let bearer = verifier.map(|verifier| Bearer {
            verifier,
            rules,
            remembers,
            seal: build.identity().into(),
            good: bearer::good_tokens(build),
        });
        Ok(Arc::new(OpenidAuthenticator {
            provider,
            bearer,
            login,
            shown,
            required_scopes: self.required_scopes,
            denies: self.unauth_action == UnauthAction::Deny,
            passes: self.unauth_action == UnauthAction::Pass,
            realm: self.realm,
            failures: RateLimitedLog::default(),
        }))
    }
}

impl OpenidConnect {
    /// Checks what stands by itself.
    fn check(&self) -> Result<(), ConfigError> {
        if self.accept_none_alg {
            return Err(ConfigError::new(
                "accept_none_alg",
                "must be false: a token without a signature proves nothing",
            ));
        }
        if !(1..=60).contains(&self.timeout) {
            return Err(ConfigError::new("timeout", "must be from 1 to 60 seconds"));
        }
        if self.jwk_expires_in == 0 {
            return Err(ConfigError::new("jwk_expires_in", "must be at least 1 second"));
        }
        let is_quotable = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
        if self.realm.is_empty() || !self.realm.bytes().all(is_quotable) {
            return Err(ConfigError::new("realm", "must be visible ASCII characters, without quotes and backslashes"));
        }
        if !self.bearer_only && self.client_secret.is_none() {
            return Err(ConfigError::new("client_secret", "is needed for logins; or set `bearer_only: true`"));
        }
        Ok(())
    }

    fn forwarded_fields(&self) -> ForwardedFields {
        ForwardedFields {
            access_token: self.set_access_token_header && !self.access_token_in_authorization_header,
            authorization: self.access_token_in_authorization_header,
            userinfo: self.set_userinfo_header,
            identity: self.login.set_id_token_header,
            raw_identity: self.login.set_raw_id_token_header,
            refresh_token: self.login.set_refresh_token_header,
        }
    }

    /// Nothing where tokens of clients do not count, as in APISIX.
    fn verifier(&self) -> Result<Option<Verifier>, ConfigError> {
        if let Some(pem) = &self.public_key {
            return public_key(pem).map(Some);
        }
        if self.use_jwks {
            return Ok(Some(Verifier::Keys));
        }
        if !self.bearer_only && self.introspection_endpoint.is_none() {
            return Ok(None);
        }
        if self.client_secret.is_none() {
            let problem = "is needed to ask the provider about tokens; or verify them with `use_jwks` or `public_key`";
            return Err(ConfigError::new("client_secret", problem));
        }
        let proof = proof(&self.introspection_endpoint_auth_method, "introspection_endpoint_auth_method")?;
        let field = |(index, name): (usize, &String)| {
            let path = format!("introspection_addon_headers[{index}]");
            HeaderName::from_bytes(header_name(name, &path)?)
                .map_err(|_| ConfigError::new(path, "is not the name of a header field"))
        };
        Ok(Some(Verifier::Introspection {
            endpoint: self.introspection_endpoint.clone(),
            proof,
            fields: self.introspection_addon_headers.iter().enumerate().map(field).collect::<Result<_, _>>()?,
            interval: Duration::from_secs(if self.introspection_interval == 0 {
                60
            } else {
                self.introspection_interval
            }),
            expiry: self.introspection_expiry_claim.clone(),
        }))
    }
}

/// How a client shows who it is.
fn proof(method: &str, place: &str) -> Result<ClientAuthMethod, ConfigError> {
    match method {
        "client_secret_basic" => Ok(ClientAuthMethod::Basic),
        "client_secret_post" => Ok(ClientAuthMethod::Post),
        _ => Err(ConfigError::new(place, "must be `client_secret_basic` or `client_secret_post`")),
    }
}

/// A key in PEM, and what it can verify.
fn public_key(pem: &str) -> Result<Verifier, ConfigError> {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    let pem = pem.as_bytes();
    let known = DecodingKey::from_rsa_pem(pem).map(|key| (key, vec![RS256, RS384, RS512, PS256, PS384, PS512]));
    let known = known.or_else(|_| DecodingKey::from_ec_pem(pem).map(|key| (key, vec![ES256, ES384])));
    let known = known.or_else(|_| DecodingKey::from_ed_pem(pem).map(|key| (key, vec![EdDSA])));
    let (key, algorithms) =
        known.map_err(|_| ConfigError::new("public_key", "is not a public RSA, EC or Ed25519 key in PEM"))?;
    Ok(Verifier::Own { key: Box::new(key), algorithms })
}

/// Those of signatures that anybody can verify and only one can make.
fn algorithms(text: &str) -> Result<Vec<Algorithm>, ConfigError> {
    let place = "token_signing_alg_values_expected";
    let names = text.split([' ', ',']).filter(|name| !name.is_empty());
    let algorithm = |name: &str| match name.parse::<Algorithm>() {
        Ok(Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512) | Err(_) => {
            let problem = format!("`{name}` is not taken; write RS256, PS256, ES256, EdDSA or the like");
            Err(ConfigError::new(place, problem))
        }
        Ok(algorithm) => Ok(algorithm),
    };
    let algorithms = names.map(algorithm).collect::<Result<Vec<_>, _>>()?;
    if algorithms.is_empty() { Err(ConfigError::new(place, "is empty; leave it out")) } else { Ok(algorithms) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::refused;

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        let with = |more: Value| {
            let mut options =
                json!({"client_id": "a", "discovery": "http://a/x", "bearer_only": true, "use_jwks": true});
            options.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
            options
        };
        for (options, want) in [
            (json!({"client_id": "a"}), "missing field `discovery`"),
            (with(json!({"discovery": "/x"})), "discovery: `/x` is not a URL"),
            (with(json!({"bearer_only": false})), "client_secret: is needed"),
            (with(json!({"bearer_only": false, "client_secret": "s"})), "session: is needed"),
            (
                with(json!({"bearer_only": false, "client_secret": "s", "session": {"secret": "short"}})),
                "session.secret: must have at least 16",
            ),
            (with(json!({"use_jwks": false})), "client_secret: is needed to ask"),
            (with(json!({"accept_none_alg": true})), "accept_none_alg: must be false"),
            (with(json!({"token_signing_alg_values_expected": "none"})), "token_signing_alg_values_expected: `none`"),
            (with(json!({"token_signing_alg_values_expected": "HS256"})), "token_signing_alg_values_expected: `HS256`"),
            (with(json!({"public_key": "x"})), "public_key: is not a public"),
            (with(json!({"timeout": 0})), "timeout: must be from 1 to 60"),
            (with(json!({"jwk_expires_in": 0})), "jwk_expires_in: must be at least 1"),
            (with(json!({"realm": "a\"b"})), "realm: must be visible"),
            (with(json!({"unauth_action": "no"})), "unauth_action: unknown variant"),
            (with(json!({"nonsense": 1})), "unknown field `nonsense`"),
        ] {
            let error = refused::<OpenidConnect>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
