//! The options of the login with redirects.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_client::ServiceUrl;
use weir_plugin::ConfigError;
use weir_tokens::{ClientAuthMethod, OpenidClient, TokenRules};

use super::client::check_proof;
use super::login::LoginFlow;
use super::pushed::PushedRequests;
use super::session::{Cookies, Sealer};
use crate::options::headers::Scalar;
use crate::rate_limited_log::RateLimitedLog;

/// What only the login with redirects needs.
#[derive(Deserialize, JsonSchema)]
pub(super) struct LoginOptions {
    /// Where the provider redirects browsers after a login: a URL, or a path on the host of the request. This route
    /// must match it. Without it, the path of the request, followed by `/.apisix/redirect`.
    redirect_uri: Option<String>,
    /// The scopes that the gateway requests from the provider.
    #[serde(default = "default_scope")]
    scope: String,
    /// The session cookie. Needed for logins.
    session: Option<SessionOptions>,
    /// The path that ends a session (logout). This route must match it.
    #[serde(default = "default_logout_path")]
    logout_path: String,
    /// Where browsers are redirected after a logout.
    post_logout_redirect_uri: Option<String>,
    /// How the gateway authenticates at the token endpoint.
    #[serde(default)]
    token_endpoint_auth_method: ClientAuthMethod,
    /// Sends the parameters of a login to the provider before the browser is redirected (PAR, RFC 9126).
    #[serde(default)]
    par: PushedRequestOptions,
    /// Has no effect: logins always use PKCE (RFC 7636).
    #[serde(default, rename = "use_pkce")]
    #[schemars(extend("deprecated" = true))]
    _use_pkce: Option<bool>,
    /// Has no effect: logins always use a nonce.
    #[serde(default, rename = "use_nonce")]
    #[schemars(extend("deprecated" = true))]
    _use_nonce: Option<bool>,
    /// Sends the claims of the ID token to the upstream, in `X-ID-Token`, as JSON in base64.
    #[serde(default = "default_true")]
    pub set_id_token_header: bool,
    /// Sends the ID token as issued to the upstream, in `X-Raw-ID-Token`.
    #[serde(default)]
    pub set_raw_id_token_header: bool,
    /// Sends the refresh token to the upstream, in `X-Refresh-Token`.
    #[serde(default)]
    pub set_refresh_token_header: bool,
    /// Additional parameters of the authorization request.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>")]
    authorization_params: BTreeMap<String, Scalar>,
    /// Renews expired access tokens, if the provider has issued a refresh token.
    #[serde(default = "default_true")]
    renew_access_token_on_expiry: bool,
    /// The lifetime of access tokens for which the provider states no lifetime, in seconds.
    #[serde(default = "default_access_token_expires_in")]
    #[schemars(range(min = 1, max = MOST_S))]
    #[schemars(extend("x-weir-unit" = "s"))]
    access_token_expires_in: u64,
    /// How long before its expiry an access token is renewed, in seconds; at most 3600.
    #[serde(default)]
    #[schemars(range(max = 3600))]
    #[schemars(extend("x-weir-unit" = "s"))]
    access_token_expires_leeway: u64,
    /// Makes the provider ask for the credentials again at each login (`prompt=login`), even if the user has a session
    /// at the provider.
    #[serde(default)]
    force_reauthorize: bool,
    /// Revokes the tokens of a session at the provider at a logout (RFC 7009). If that fails, it is logged, and the session
    /// ends in the browser only.
    #[serde(default)]
    revoke_tokens_on_logout: bool,
}

/// Whether and how the parameters of logins are pushed.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct PushedRequestOptions {
    /// Pushes the parameters of logins.
    enabled: bool,
    /// The URL of the endpoint. Without it, the URL from the discovery document.
    #[schemars(extend("x-weir-reaches" = "server"))]
    endpoint: Option<String>,
    /// How the gateway authenticates at this endpoint. Without it, as at the token endpoint.
    endpoint_auth_method: Option<ClientAuthMethod>,
}

/// How a session is kept.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SessionOptions {
    /// The secret that encrypts the cookie: at least 16 characters, the same on all gateways of a site.
    #[schemars(length(min = 16))]
    secret: String,
    /// Where sessions are stored. Only `cookie` is supported.
    #[serde(default, rename = "storage")]
    _storage: SessionStorage,
    /// The name of the cookie.
    #[serde(default = "default_cookie_name")]
    cookie_name: String,
    /// The `Path` attribute of the cookie.
    #[serde(default = "default_cookie_path")]
    cookie_path: String,
    /// The `Domain` attribute of the cookie. Without it, browsers send the cookie only to the host that set it.
    cookie_domain: Option<String>,
    /// The `Secure` attribute of the cookie: browsers send it over TLS only. Without it, the attribute is set if the
    /// client uses TLS.
    cookie_secure: Option<bool>,
    /// The `HttpOnly` attribute of the cookie: scripts cannot read it.
    #[serde(default = "default_true")]
    cookie_http_only: bool,
    /// The `SameSite` attribute of the cookie: whether browsers send it with requests from other sites. `Default` sets
    /// no attribute.
    #[serde(default)]
    cookie_same_site: SameSite,
    /// Seconds after which the user has to log in again.
    #[serde(default = "default_absolute_timeout")]
    #[schemars(range(min = 1, max = MOST_S))]
    #[schemars(extend("x-weir-unit" = "s"))]
    absolute_timeout: u64,
    /// Options of the cookie, as older versions of APISIX have them.
    #[serde(default)]
    cookie: SessionCookieOptions,
}

/// What older versions of APISIX have below `cookie`.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct SessionCookieOptions {
    /// An older name of `absolute_timeout`, which it replaces.
    #[schemars(range(min = 1, max = MOST_S))]
    #[schemars(extend("x-weir-unit" = "s"))]
    lifetime: Option<u64>,
}

/// Where sessions are kept.
#[derive(Clone, Copy, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum SessionStorage {
    #[default]
    Cookie,
}

/// RFC 6265bis. `Default` leaves it to the browser.
#[derive(Clone, Copy, Default, Deserialize, Serialize, JsonSchema)]
enum SameSite {
    Strict,
    #[default]
    Lax,
    None,
    Default,
}

fn default_true() -> bool {
    true
}

fn default_access_token_expires_in() -> u64 {
    3600
}

fn default_absolute_timeout() -> u64 {
    86_400
}

fn default_scope() -> String {
    "openid".to_owned()
}

fn default_logout_path() -> String {
    "/logout".to_owned()
}

fn default_cookie_name() -> String {
    "session".to_owned()
}

fn default_cookie_path() -> String {
    "/".to_owned()
}

/// Browsers keep no cookie for longer than 400 days.
const MOST_S: u64 = 400 * 86_400;

impl LoginOptions {
    /// `rules` are those for ID tokens.
    pub(super) fn build(
        &self,
        client: &OpenidClient,
        rules: TokenRules,
        wants_userinfo: bool,
    ) -> Result<LoginFlow, ConfigError> {
        let proof = self.token_endpoint_auth_method;
        check_proof(client, proof, "is needed for logins; or set `bearer_only: true`")?;
        let session = self.session.as_ref().ok_or_else(|| {
            ConfigError::new("session", "is needed for logins, with a `secret`; or set `bearer_only: true`")
        })?;
        self.check(session)?;
        Ok(LoginFlow {
            cookies: Cookies {
                name: session.cookie_name.clone(),
                path: session.cookie_path.clone(),
                domain: session.cookie_domain.clone(),
                secure: session.cookie_secure,
                http_only: session.cookie_http_only,
                same_site: match session.cookie_same_site {
                    SameSite::Strict => Some("Strict"),
                    SameSite::Lax => Some("Lax"),
                    SameSite::None => Some("None"),
                    SameSite::Default => None,
                },
            },
            sealer: Sealer::new(&session.secret, &client.id),
            redirect_uri: self.redirect_uri.clone(),
            logout_path: self.logout_path.clone(),
            post_logout_redirect_uri: self.post_logout_redirect_uri.clone(),
            scope: self.scope.clone(),
            params: self
                .authorization_params
                .iter()
                .map(|(name, value)| (name.clone(), value.text().to_owned()))
                .collect(),
            force_reauthorize: self.force_reauthorize,
            proof,
            pushed: self.pushed(client)?,
            revokes: self.revoke_tokens_on_logout,
            failures: RateLimitedLog::default(),
            rules,
            wants_userinfo,
            wants_raw: self.set_raw_id_token_header,
            renews: self.renew_access_token_on_expiry,
            expires_in_s: self.access_token_expires_in,
            leeway_s: self.access_token_expires_leeway,
            absolute_s: session.cookie.lifetime.unwrap_or(session.absolute_timeout),
        })
    }

    fn pushed(&self, client: &OpenidClient) -> Result<Option<PushedRequests>, ConfigError> {
        if !self.par.enabled {
            return Ok(None);
        }
        let proof = self.par.endpoint_auth_method.unwrap_or(self.token_endpoint_auth_method);
        check_proof(client, proof, "is needed by `par.endpoint_auth_method`")?;
        if let Some(url) = &self.par.endpoint {
            ServiceUrl::parse(url)
                .map_err(|error| ConfigError::new("par.endpoint", format!("is not a URL: {error}")))?;
        }
        Ok(Some(PushedRequests { endpoint: self.par.endpoint.clone(), proof }))
    }

    /// Checks the options that do not depend on others.
    fn check(&self, session: &SessionOptions) -> Result<(), ConfigError> {
        if !weir_plugin::proto::field::is_name(session.cookie_name.as_bytes()) {
            return Err(ConfigError::new("session.cookie_name", "is not a cookie name"));
        }
        let is_attribute = |text: &str| text.bytes().all(|byte| matches!(byte, b'!'..=b'~') && byte != b';');
        if !session.cookie_path.starts_with('/') || !is_attribute(&session.cookie_path) {
            return Err(ConfigError::new("session.cookie_path", "must begin with `/`, and have no `;`"));
        }
        if session.cookie_domain.as_deref().is_some_and(|domain| domain.is_empty() || !is_attribute(domain)) {
            return Err(ConfigError::new("session.cookie_domain", "is not a domain"));
        }
        let is_target = |uri: &String| {
            is_attribute(uri) && (uri.starts_with('/') || uri.starts_with("http://") || uri.starts_with("https://"))
        };
        if self.redirect_uri.as_ref().is_some_and(|uri| !is_target(uri) || uri.contains(['?', '#'])) {
            let problem = "must be a path, or a URL that begins with `http://` or `https://`, without a query";
            return Err(ConfigError::new("redirect_uri", problem));
        }
        if !self.logout_path.starts_with('/') {
            return Err(ConfigError::new("logout_path", "must begin with `/`"));
        }
        if self.post_logout_redirect_uri.as_ref().is_some_and(|uri| !is_target(uri)) {
            return Err(ConfigError::new("post_logout_redirect_uri", "must be a path, or a URL"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::auth::openid_connect::client::AssertionOptions;

    fn login(options: Value) -> Result<LoginFlow, String> {
        let assertions: AssertionOptions = serde_json::from_value(json!({})).expect("options");
        let client = assertions.client("us", Some("a secret")).expect("a client");
        let rules = TokenRules {
            algorithms: None,
            issuers: None,
            audience: "aud".to_owned(),
            audience_required: true,
            for_client: None,
            iat_slack_s: 0.0,
        };
        let options: LoginOptions = serde_json::from_value(options).expect("options");
        options.build(&client, rules, false).map_err(|error| error.to_string())
    }

    #[test]
    fn the_lifetime_of_the_cookie_is_that_of_the_session() {
        let session = |more: Value| {
            let mut session = json!({"secret": "0123456789abcdef", "absolute_timeout": 300});
            session.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
            login(json!({ "session": session })).expect("built").absolute_s
        };
        assert_eq!(session(json!({})), 300);
        assert_eq!(session(json!({"cookie": {"lifetime": 60}})), 60);
    }

    #[test]
    fn pushed_requests_are_proved_as_tokens_are_unless_they_have_a_method_of_their_own() {
        let with = |par: Value| login(json!({"session": {"secret": "0123456789abcdef"}, "par": par}));
        let proof = |par| with(par).map(|login| login.pushed.map(|pushed| pushed.proof));
        assert_eq!(proof(json!({})), Ok(None));
        assert_eq!(proof(json!({"enabled": true})), Ok(Some(ClientAuthMethod::Basic)));
        let method = json!({"enabled": true, "endpoint_auth_method": "client_secret_jwt"});
        assert_eq!(proof(method), Ok(Some(ClientAuthMethod::SecretJwt)));
        let keyless = json!({"enabled": true, "endpoint_auth_method": "private_key_jwt"});
        let error = proof(keyless).expect_err("refused");
        assert_eq!(error, "client_rsa_private_key: is needed by `par.endpoint_auth_method`");
        let error = proof(json!({"enabled": true, "endpoint": "/par"})).expect_err("refused");
        assert!(error.starts_with("par.endpoint: is not a URL"), "{error}");
    }
}
