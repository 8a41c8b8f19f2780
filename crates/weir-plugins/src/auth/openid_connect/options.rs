//! The options of the login with redirects.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_plugin::ConfigError;

use super::login::LoginFlow;
use super::proof;
use super::session::{Cookies, Sealer};
use crate::auth::signed_token::TokenRules;
use crate::options::headers::Scalar;

/// What only the login with redirects needs.
#[derive(Deserialize, JsonSchema)]
pub struct LoginOptions {
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
    /// How the gateway authenticates at the token endpoint: `client_secret_basic` or `client_secret_post`.
    #[serde(default = "default_token_endpoint_auth_method")]
    token_endpoint_auth_method: String,
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

fn default_token_endpoint_auth_method() -> String {
    "client_secret_basic".to_owned()
}

/// Browsers keep no cookie for longer than 400 days.
const MOST_S: u64 = 400 * 86_400;

impl LoginOptions {
    /// `rules` are those for ID tokens.
    pub fn build(&self, client_id: &str, rules: TokenRules, wants_userinfo: bool) -> Result<LoginFlow, ConfigError> {
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
            sealer: Sealer::new(&session.secret, client_id),
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
            proof: proof(&self.token_endpoint_auth_method, "token_endpoint_auth_method")?,
            rules,
            wants_userinfo,
            wants_raw: self.set_raw_id_token_header,
            renews: self.renew_access_token_on_expiry,
            expires_in_s: self.access_token_expires_in,
            leeway_s: self.access_token_expires_leeway,
            absolute_s: session.absolute_timeout,
        })
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
