use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderName;
use jsonwebtoken::{Algorithm, DecodingKey};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weir_plugin::{AllOf, Build, CollectAll, ConfigError, Definition, Plugin, Stage};
use weir_tokens::{ClientAuthMethod, OpenidClient, TokenRules};

use crate::options::headers::header_name;
use crate::options::json_schema;
use crate::rate_limited_log::RateLimitedLog;

mod authenticator;
mod bearer;
mod client;
mod login;
mod options;
pub(crate) mod provider;
mod pushed;
mod session;

use authenticator::{ForwardedFields, OpenidAuthenticator};
use bearer::{Bearer, Verifier};
use client::{AssertionOptions, check_proof};
use options::LoginOptions;
use provider::{Provider, ProviderUrl};

/// Requires a login at an OpenID Connect provider: browsers are redirected to the provider to log in, and API clients
/// send an access token, in `Authorization: Bearer` or `X-Access-Token`.
///
/// A token is verified with the provider's published keys (`use_jwks`), with a configured key (`public_key`), or by
/// asking the provider (introspection, RFC 7662). The keys determine the accepted signature algorithms; the token's
/// header does not. The issuer and the times of a token are always checked. The upstream gets the claims in
/// `X-Userinfo`, as JSON in base64; fields of this name, and the other fields that this plugin sets, are removed from
/// the client's request. If the provider does not answer, the request is answered with 503.
///
/// Without `bearer_only`, browsers without a session are redirected to the provider to log in (authorization code flow,
/// always with state, nonce and PKCE). Requests that a page sends by itself (`Sec-Fetch-Mode` other than `navigate`, or
/// `X-Requested-With: XMLHttpRequest`) are answered with 401 instead. The session is stored in an encrypted cookie in
/// the browser; only gateways with the same `session.secret` can read it, and the upstream does not get it.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OpenidConnect {
    /// The client id of this gateway at the provider.
    client_id: String,
    /// The client secret, for introspection and for logins. Not needed with `private_key_jwt`.
    client_secret: Option<String>,
    #[serde(flatten)]
    assertions: AssertionOptions,
    /// The URL of the provider's discovery document, which ends in `/.well-known/openid-configuration`. Not needed with
    /// `public_key`, if also `bearer_only: true` and `claim_validator.issuer.valid_issuers` are set.
    #[schemars(extend("x-weir-reaches" = "server"))]
    discovery: Option<String>,
    /// The URL of the keys that tokens are signed with (JWKS), for an issuer that has no discovery document; instead of
    /// `discovery`. It needs `bearer_only: true` and `claim_validator.issuer.valid_issuers`. Not in APISIX.
    #[schemars(extend("x-weir-reaches" = "server"))]
    jwks_uri: Option<String>,
    /// Refuses requests without a token, instead of redirecting them to a login.
    #[serde(default)]
    bearer_only: bool,
    /// Verifies tokens with the keys that the provider publishes (JWKS).
    #[serde(default)]
    use_jwks: bool,
    /// Verifies tokens with this key, as PEM: RSA, EC or Ed25519.
    public_key: Option<String>,
    /// The accepted signature algorithms, such as `RS256` or `RS256 ES256`. Without it, all algorithms that the key
    /// supports.
    token_signing_alg_values_expected: Option<String>,
    /// The URL of the introspection endpoint. Without it, the URL from the discovery document.
    #[schemars(extend("x-weir-reaches" = "server"))]
    introspection_endpoint: Option<String>,
    /// How the gateway authenticates at the introspection endpoint.
    #[serde(default)]
    introspection_endpoint_auth_method: ClientAuthMethod,
    /// Header fields of the client's request that are sent to the introspection endpoint.
    #[serde(default)]
    introspection_addon_headers: Vec<String>,
    /// How long an introspection result is cached, in seconds; 0 means 60 seconds. A result is never cached beyond the
    /// expiry of the token.
    #[serde(default)]
    #[schemars(extend("x-weir-unit" = "s"))]
    introspection_interval: u64,
    /// The member of the introspection result that contains the expiry of the token.
    #[serde(default = "default_introspection_expiry_claim")]
    introspection_expiry_claim: String,
    /// How long the provider's keys and discovery document are cached, in seconds. For a token with an unknown key, the
    /// keys are fetched again, at most every 5 seconds. After a fetch that has failed, requests that need it are answered
    /// with 503 for 5 seconds, and then it is repeated.
    #[serde(default = "default_jwk_expires_in")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "s"))]
    jwk_expires_in: u64,
    /// Verifies the token of every request, instead of caching verified tokens.
    #[serde(default)]
    jwt_verification_cache_ignore: bool,
    /// How far in the future the claim `iat` of a token can be, in seconds.
    #[serde(default = "default_iat_slack")]
    #[schemars(extend("x-weir-unit" = "s"))]
    iat_slack: u32,
    /// Which issuers and audiences are accepted.
    #[serde(default)]
    claim_validator: ClaimValidator,
    /// A JSON Schema (draft 7, unless its `$schema` names another draft) for the claims of a bearer token, or for the
    /// object `{user, access_token, id_token}` of a session: the user information, the access token as issued, and the claims
    /// of the ID token. What does not match is refused with 401.
    claim_schema: Option<Map<String, Value>>,
    /// Scopes that a token must have. Otherwise the request is refused with 403.
    #[serde(default)]
    required_scopes: Vec<String>,
    /// What happens to a request without a valid token or session: `auth` redirects it to the login, `deny` refuses it
    /// with 401, `pass` forwards it without an identity. An invalid token is refused with 401 also with `auth`.
    #[serde(default)]
    unauth_action: UnauthAction,
    /// The `realm` parameter in the field `WWW-Authenticate` of a refusal.
    #[serde(default = "default_realm")]
    realm: String,
    /// Sends the access token to the upstream, in `X-Access-Token`.
    #[serde(default = "default_true")]
    set_access_token_header: bool,
    /// Sends the access token to the upstream in `Authorization`, instead of `X-Access-Token`.
    #[serde(default)]
    access_token_in_authorization_header: bool,
    /// Sends the claims to the upstream, in `X-Userinfo`.
    #[serde(default = "default_true")]
    set_userinfo_header: bool,
    /// Time-out for all calls to the provider that a request needs together, in seconds, including the time to connect.
    #[serde(default = "default_timeout")]
    #[schemars(range(min = 1, max = 60))]
    #[schemars(extend("x-weir-unit" = "s"))]
    timeout: u64,
    /// Whether the certificate of the provider is verified, against the CA certificates of the system.
    #[serde(default = "default_true")]
    ssl_verify: bool,
    /// Only `false` is accepted: unsigned tokens are always refused.
    #[serde(default)]
    accept_none_alg: bool,
    /// Has no effect: tokens with an unsupported signature algorithm are always refused.
    #[serde(default, rename = "accept_unsupported_alg")]
    #[schemars(extend("deprecated" = true))]
    _accept_unsupported_alg: Option<bool>,
    /// Has no effect: each configuration caches its tokens separately.
    #[serde(default, rename = "cache_segment")]
    #[schemars(extend("deprecated" = true))]
    _cache_segment: Option<String>,
    #[serde(flatten)]
    login: LoginOptions,
}

/// Whose tokens are taken, and for whom they must be.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct ClaimValidator {
    /// The accepted issuers.
    issuer: IssuerValidator,
    /// The required audience.
    audience: AudienceValidator,
}

/// Who may have issued a token.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct IssuerValidator {
    /// Accepted issuers, instead of the issuer of the discovery document.
    valid_issuers: Option<Vec<String>>,
}

/// For whom a token must be.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct AudienceValidator {
    /// The claim that contains the audience.
    claim: String,
    /// Refuses tokens without an audience.
    required: bool,
    /// Refuses tokens whose audience does not include `client_id`.
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

const NO_PROVIDER: &str = "is missing: the URL of the provider's discovery document; an issuer without one has `jwks_uri` \
                           instead, or `public_key` with `bearer_only: true` and `claim_validator.issuer.valid_issuers`";

fn default_true() -> bool {
    true
}

fn default_timeout() -> u64 {
    3
}

fn default_iat_slack() -> u32 {
    120
}

fn default_jwk_expires_in() -> u64 {
    86_400
}

fn default_introspection_expiry_claim() -> String {
    "exp".to_owned()
}

fn default_realm() -> String {
    "apisix".to_owned()
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
        self.check(build);
        self.check_key_set(build);
        let shown = self.forwarded_fields();
        let client = self.assertions.client(&self.client_id, self.client_secret.as_deref());
        let algorithms = self.token_signing_alg_values_expected.as_deref().map(algorithms).transpose();
        let is_self_contained = self.is_self_contained();
        let provider_url = provider_url(self.discovery.as_deref(), self.jwks_uri.as_deref(), is_self_contained);
        let claim_schema = self.claim_schema.clone().map(|schema| json_schema::compile(schema, "claim_schema"));
        let (client, algorithms, provider_url, claim_schema) =
            (client, algorithms, provider_url, claim_schema.transpose()).all_of()?;
        let verifier = self.verifier(&client);
        let wants_userinfo = self.set_userinfo_header || self.claim_schema.is_some(); // a schema sees it, too
        let rules = self.rules(algorithms);
        let login = match self.bearer_only {
            true => Ok(None),
            false => self.login.build(&client, self.identity_rules(&rules), wants_userinfo).map(Some),
        };
        let provider = Provider::new(
            provider_url,
            self.ssl_verify,
            Duration::from_secs(self.timeout),
            Duration::from_secs(self.jwk_expires_in),
            client,
            build,
        );
        let (verifier, login, provider) = (verifier, login, provider).all_of()?;
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
            claim_schema,
            required_scopes: self.required_scopes,
            refuses_without_session: self.unauth_action == UnauthAction::Deny,
            forwards_unauthenticated: self.unauth_action == UnauthAction::Pass,
            realm: self.realm,
            failures: RateLimitedLog::default(),
        }))
    }
}

impl OpenidConnect {
    /// The rules for tokens of requests.
    fn rules(&self, algorithms: Option<Vec<Algorithm>>) -> TokenRules {
        let ClaimValidator { issuer, audience } = &self.claim_validator;
        TokenRules {
            algorithms,
            issuers: issuer.valid_issuers.clone(),
            audience: audience.claim.clone(),
            audience_required: audience.required || audience.match_with_client_id,
            for_client: audience.match_with_client_id.then(|| self.client_id.clone()),
            iat_slack_s: f64::from(self.iat_slack),
        }
    }

    /// The rules for ID tokens. Their audience is always the client id (OpenID Connect Core 1.0 §3.1.3.7).
    fn identity_rules(&self, of_requests: &TokenRules) -> TokenRules {
        TokenRules {
            algorithms: of_requests.algorithms.clone(),
            issuers: of_requests.issuers.clone(),
            audience: "aud".to_owned(),
            audience_required: true,
            for_client: Some(self.client_id.clone()),
            iat_slack_s: of_requests.iat_slack_s,
        }
    }

    /// Checks options that do not depend on others.
    fn check(&self, build: &mut Build) {
        if self.accept_none_alg {
            build.fault("accept_none_alg", "must be false: a token without a signature proves nothing");
        }
        let is_quotable = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
        if self.realm.is_empty() || !self.realm.bytes().all(is_quotable) {
            build.fault("realm", "must be printable ASCII characters, without quotes and backslashes");
        }
    }

    /// Without a discovery document, the configuration must contain the values that the document would have.
    fn check_key_set(&self, build: &mut Build) {
        if self.jwks_uri.is_none() {
            return;
        }
        let mut fault = |option: &str, problem: &str| build.fault(option, problem);
        if self.discovery.is_some() {
            fault("jwks_uri", "is for issuers without a discovery document; remove it, or remove `discovery`");
        }
        if !self.bearer_only {
            fault("bearer_only", "must be true with `jwks_uri`: logins need `discovery`");
        }
        if self.public_key.is_some() {
            fault("public_key", "and `jwks_uri` are both set; keep the one that has the right keys");
        }
        if self.introspection_endpoint.is_some() {
            fault(
                "introspection_endpoint",
                "has no effect with `jwks_uri`, which verifies tokens with keys; remove one",
            );
        }
        if !self.names_issuers() {
            fault(
                "claim_validator.issuer.valid_issuers",
                "is needed with `jwks_uri`: the issuers whose tokens are accepted",
            );
        }
    }

    fn names_issuers(&self) -> bool {
        self.claim_validator.issuer.valid_issuers.as_ref().is_some_and(|issuers| !issuers.is_empty())
    }

    /// Whether tokens can be verified without the provider: their key and their issuers are known.
    fn is_self_contained(&self) -> bool {
        self.public_key.is_some() && self.bearer_only && self.names_issuers()
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

    /// The verifier of access tokens; `None` if tokens of clients are ignored, as in APISIX.
    fn verifier(&self, client: &OpenidClient) -> Result<Option<Verifier>, ConfigError> {
        if let Some(pem) = &self.public_key {
            return public_key(pem).map(Some);
        }
        if self.use_jwks || self.jwks_uri.is_some() {
            return Ok(Some(Verifier::Keys));
        }
        if !self.bearer_only && self.introspection_endpoint.is_none() {
            return Ok(None);
        }
        let proof = self.introspection_endpoint_auth_method;
        check_proof(
            client,
            proof,
            "is needed for token introspection; or verify tokens with `use_jwks` or `public_key`",
        )?;
        let field = |(index, name): (usize, &String)| {
            let path = format!("introspection_addon_headers[{index}]");
            HeaderName::from_bytes(header_name(name, &path)?)
                .map_err(|_| ConfigError::new(path, "is not the name of a header field"))
        };
        Ok(Some(Verifier::Introspection {
            endpoint: self.introspection_endpoint.clone(),
            proof,
            fields: self.introspection_addon_headers.iter().enumerate().map(field).collect_all()?,
            interval: Duration::from_secs(if self.introspection_interval == 0 {
                60
            } else {
                self.introspection_interval
            }),
            expiry: self.introspection_expiry_claim.clone(),
        }))
    }
}

/// The URL from which the provider's endpoints or keys are read.
fn provider_url<'a>(
    discovery: Option<&'a str>,
    jwks_uri: Option<&'a str>,
    is_self_contained: bool,
) -> Result<ProviderUrl<'a>, ConfigError> {
    let key_set = || jwks_uri.map(ProviderUrl::KeySet);
    let url = discovery.map(ProviderUrl::Discovery).or_else(key_set);
    let url = url.or_else(|| is_self_contained.then_some(ProviderUrl::None));
    url.ok_or_else(|| ConfigError::new("discovery", NO_PROVIDER))
}

/// A public key in PEM, and the algorithms that it can verify.
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

/// Parses names of algorithms; only asymmetric ones are accepted.
fn algorithms(text: &str) -> Result<Vec<Algorithm>, ConfigError> {
    let place = "token_signing_alg_values_expected";
    let names = text.split([' ', ',']).filter(|name| !name.is_empty());
    let algorithm = |name: &str| match name.parse::<Algorithm>() {
        Ok(Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512) | Err(_) => {
            let problem = format!("`{name}` is not supported; write RS256, PS256, ES256, EdDSA or the like");
            Err(ConfigError::new(place, problem))
        }
        Ok(algorithm) => Ok(algorithm),
    };
    let algorithms = names.map(algorithm).collect_all::<Vec<_>>()?;
    if algorithms.is_empty() { Err(ConfigError::new(place, "is empty; leave it out")) } else { Ok(algorithms) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{build, refused};

    const KEY: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n-----END PUBLIC KEY-----";

    #[test]
    fn a_provider_whose_key_and_name_are_known_needs_no_url() {
        let issuer = json!({"issuer": {"valid_issuers": ["http://a"]}});
        let options = json!({"client_id": "a", "bearer_only": true, "public_key": KEY, "claim_validator": issuer});
        build::<OpenidConnect>(options);
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        let with = |more: Value| {
            let mut options =
                json!({"client_id": "a", "discovery": "http://a/x", "bearer_only": true, "use_jwks": true});
            options.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
            options
        };
        for (options, want) in [
            (json!({"client_id": "a", "bearer_only": true, "use_jwks": true}), "discovery: is missing"),
            (json!({"client_id": "a", "bearer_only": true, "public_key": KEY}), "discovery: is missing"),
            (with(json!({"jwks_uri": "http://a/k"})), "jwks_uri: is for issuers without"),
            (with(json!({"discovery": "/x"})), "discovery: `/x` is not a URL"),
            (with(json!({"bearer_only": false})), "client_secret: is needed"),
            (with(json!({"bearer_only": false, "client_secret": "s"})), "session: is needed"),
            (with(json!({"use_jwks": false})), "client_secret: is needed for token introspection"),
            (with(json!({"accept_none_alg": true})), "accept_none_alg: must be false"),
            (with(json!({"token_signing_alg_values_expected": "none"})), "token_signing_alg_values_expected: `none`"),
            (with(json!({"token_signing_alg_values_expected": "HS256"})), "token_signing_alg_values_expected: `HS256`"),
            (with(json!({"public_key": "x"})), "public_key: is not a public"),
            (with(json!({"realm": "a\"b"})), "realm: must be printable"),
            (with(json!({"unauth_action": "no"})), "unauth_action: `no` is not an allowed value"),
            (with(json!({"nonsense": 1})), "nonsense: the option `nonsense` is not known"),
        ] {
            let error = refused::<OpenidConnect>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }

    #[test]
    fn a_key_set_needs_what_a_discovery_document_would_say() {
        let with = |more: Value| {
            let issuer = json!({"issuer": {"valid_issuers": ["http://a"]}});
            let mut options = json!({"client_id": "a", "jwks_uri": "http://a/k", "bearer_only": true});
            options["claim_validator"] = issuer;
            options.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
            options
        };
        let login = json!({"bearer_only": false, "client_secret": "s", "session": {"secret": "0123456789abcdef"}});
        for (options, want) in [
            (with(json!({"jwks_uri": "/k"})), "jwks_uri: `/k` is not a URL"),
            (with(login), "bearer_only: must be true"),
            (with(json!({"public_key": "x"})), "public_key: and `jwks_uri` are both set"),
            (with(json!({"introspection_endpoint": "http://a/i"})), "introspection_endpoint: has no effect"),
            (with(json!({"claim_validator": {}})), "claim_validator.issuer.valid_issuers: is needed"),
        ] {
            let error = refused::<OpenidConnect>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
