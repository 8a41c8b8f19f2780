mod decision;
mod login;
mod own_token;
mod server;

use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, HeaderValue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_plugin::{AllOf, Build, ConfigError, Definition, Exchange, Flow, Phases, Plugin, Stage, Stop};
use weir_services::http_service::ServiceCallOptions;
use weir_services::receivers::header_value;
use weir_tokens::OpenidClient;

use crate::answer::RefusalResponse;
use crate::auth::openid_connect::provider::{Provider, ProviderUrl};
use crate::rate_limited_log::OutageLog;

use decision::{Authorization, KeycloakDecision, Permissions};
use login::PasswordLogin;
use own_token::{OwnTokens, TokenLife};
use server::{KeycloakEndpoint, KeycloakFailure, KeycloakServer};

/// Asks Keycloak's authorization services (UMA 2.0) whether the owner of a token may send a request.
///
/// The client's access token, in `Authorization`, is sent to the token endpoint with the permissions that the request needs, and Keycloak
/// decides (`response_mode=decision`). A permission is a resource, `orders`, or a scope of it, `orders#read`. Of several permissions
/// Keycloak has to grant one. A request without a token gets 401. A refusal of Keycloak is passed on with its status and body. While
/// Keycloak cannot be reached, or does not decide, requests get 503. A request can need up to five calls, each with its time-out: for
/// the discovery document and, with one call or two, for the gateway's own token, which are kept, for the resources, and for the decision.
///
/// With `lazy_load_paths`, the resources are those of Keycloak whose URIs fit the path of the request. It is the path that routes are
/// matched with, decoded and normalised, without the query, as the client has sent it, before `proxy-rewrite`. The gateway asks for them
/// in its own name, so the client in Keycloak needs a service account with the role `uma_protection`. A path with `;`, or with an encoded
/// `;`, `/` or `\`, gets 403, since servers differ in where its segments end.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuthzKeycloak {
    /// The URL of the discovery document, such as `https://id.example/realms/shop/.well-known/uma2-configuration`. It names the endpoints
    /// that have no option.
    #[schemars(extend("x-weir-reaches" = "server"))]
    discovery: Option<String>,
    /// The URL of the token endpoint.
    #[schemars(extend("x-weir-reaches" = "server"))]
    token_endpoint: Option<String>,
    /// The URL at which resources are looked up with `lazy_load_paths`.
    #[schemars(extend("x-weir-reaches" = "server"))]
    resource_registration_endpoint: Option<String>,
    /// The client of Keycloak whose resources and policies count.
    #[schemars(length(min = 1, max = 100))]
    client_id: String,
    /// The secret of this client, for the gateway's own token, and for `password_grant_token_generation_incoming_uri`.
    #[schemars(length(min = 1, max = 100))]
    client_secret: Option<String>,
    /// The only value is `urn:ietf:params:oauth:grant-type:uma-ticket`.
    #[serde(default)]
    grant_type: UmaGrant,
    /// What happens to a request that needs no permission, since `permissions` is empty or no resource fits its path. `ENFORCING`: it
    /// is refused. `PERMISSIVE`: Keycloak is asked without a permission, and allows clients that have any permission at all.
    #[serde(default)]
    policy_enforcement_mode: EnforcementMode,
    /// The permissions that each request needs, as resources or as `RESOURCE#SCOPE`. Keycloak has to grant one of them.
    #[serde(default)]
    #[schemars(length(max = 64), inner(length(min = 1, max = 100)), extend("uniqueItems" = true))]
    permissions: Vec<String>,
    /// Looks up the resources for the path of each request, in place of `permissions`.
    #[serde(default)]
    lazy_load_paths: bool,
    /// Adds the method of the request to each resource, as the scope that is needed. `permissions` then have no scopes of their own:
    /// of several scopes, Keycloak has to grant one.
    #[serde(default)]
    http_method_as_scope: bool,
    /// Where clients without the permission are redirected to with 307, in place of the refusal.
    #[schemars(length(min = 1, max = 2048))]
    access_denied_redirect_uri: Option<String>,
    /// A path at which clients get a token for a user and a password: a POST of a form with `username` and `password` is answered with what
    /// the token endpoint answers (`grant_type=password`). Limit how often a client may try, for example with `limit-count`.
    #[schemars(length(min = 1, max = 4096))]
    password_grant_token_generation_incoming_uri: Option<String>,
    /// How long the discovery document is cached, and the gateway's own token is kept at most, in seconds.
    #[serde(default = "default_cache_ttl")]
    #[schemars(range(min = 1, max = 31_536_000))]
    #[schemars(extend("x-weir-unit" = "s"))]
    cache_ttl_seconds: u64,
    /// The lifetime of the gateway's own token, if Keycloak does not state it, in seconds.
    #[serde(default = "default_access_token_life")]
    #[schemars(range(min = 1, max = 31_536_000))]
    #[schemars(extend("x-weir-unit" = "s"))]
    access_token_expires_in: u64,
    /// How long before its end the gateway's own token is replaced, in seconds.
    #[serde(default)]
    #[schemars(range(max = 31_536_000))]
    #[schemars(extend("x-weir-unit" = "s"))]
    access_token_expires_leeway: u64,
    /// The lifetime of the refresh token for the gateway's own token, if Keycloak does not state it, in seconds.
    #[serde(default = "default_refresh_token_life")]
    #[schemars(range(min = 1, max = 31_536_000))]
    #[schemars(extend("x-weir-unit" = "s"))]
    refresh_token_expires_in: u64,
    /// How long before its end the refresh token is no longer used, in seconds.
    #[serde(default)]
    #[schemars(range(max = 31_536_000))]
    #[schemars(extend("x-weir-unit" = "s"))]
    refresh_token_expires_leeway: u64,
    #[serde(flatten)]
    call: ServiceCallOptions,
}

/// The grant with which permissions are asked for.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
enum UmaGrant {
    #[default]
    #[serde(rename = "urn:ietf:params:oauth:grant-type:uma-ticket")]
    Ticket,
}

/// What happens to requests that need no permission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
enum EnforcementMode {
    #[default]
    Enforcing,
    Permissive,
}

fn default_cache_ttl() -> u64 {
    86_400
}

fn default_access_token_life() -> u64 {
    300
}

fn default_refresh_token_life() -> u64 {
    3600
}

impl Definition for AuthzKeycloak {
    const NAME: &'static str = "authz-keycloak";
    const PRIORITY: i32 = 2000;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"authz-keycloak:
  discovery: http://127.0.0.1:8080/realms/shop/.well-known/uma2-configuration
  client_id: orders
  client_secret: $env://KEYCLOAK_SECRET
  lazy_load_paths: true
  http_method_as_scope: true"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let UmaGrant::Ticket = self.grant_type;
        self.check(build);
        let server = self.server(build);
        let redirect = self.access_denied_redirect_uri.as_deref();
        let redirect = redirect.map(|uri| header_value(uri, "access_denied_redirect_uri")).transpose();
        let (server, redirect) = (server, redirect).all_of()?;
        let permissions = match self.lazy_load_paths {
            true => Permissions::OfPath,
            false => Permissions::Stated(self.permissions),
        };
        Ok(Arc::new(KeycloakAuthorizer {
            login: self.password_grant_token_generation_incoming_uri.map(PasswordLogin::new),
            authorization: Authorization {
                server: Arc::new(server),
                permissions,
                method_is_scope: self.http_method_as_scope,
                is_permissive: self.policy_enforcement_mode == EnforcementMode::Permissive,
            },
            redirect,
            outages: OutageLog::default(),
        }))
    }
}

impl AuthzKeycloak {
    /// Reports what does not fit together.
    fn check(&self, build: &mut Build) {
        if self.discovery.is_none() && self.token_endpoint.is_none() {
            build.fault("", "needs one of `discovery` and `token_endpoint`");
        }
        if self.lazy_load_paths && self.discovery.is_none() && self.resource_registration_endpoint.is_none() {
            let problem = "needs `discovery` or `resource_registration_endpoint`: resources are looked up there";
            build.fault("lazy_load_paths", problem);
        }
        if self.lazy_load_paths && !self.permissions.is_empty() {
            build.fault("permissions", "has no effect with `lazy_load_paths`; keep one of the two");
        }
        for (index, permission) in self.permissions.iter().enumerate() {
            if self.http_method_as_scope && permission.contains('#') {
                let problem = "has a scope, and with `http_method_as_scope` the method is the scope: Keycloak would allow a request for \
                               either of them; write the resource alone";
                build.fault(format!("permissions[{index}]"), problem);
            }
        }
    }

    fn server(&self, build: &mut Build) -> Result<KeycloakServer, ConfigError> {
        let endpoint = |url: &Option<String>, option: &str| {
            url.as_deref().map(|url| KeycloakEndpoint::new(&self.call, build.http(), url, option)).transpose()
        };
        let token = endpoint(&self.token_endpoint, "token_endpoint");
        let resources = endpoint(&self.resource_registration_endpoint, "resource_registration_endpoint");
        let kept_for = Duration::from_secs(self.cache_ttl_seconds);
        let provider = self.discovery.as_deref().map(|url| {
            let client = OpenidClient::with_secret(&self.client_id, self.client_secret.as_deref());
            let (verify, timeout) = (self.call.verifies(), self.call.timeout());
            Provider::new(ProviderUrl::Discovery(url), verify, timeout, kept_for, client, build)
        });
        let (token, resources, provider) = (token, resources, provider.transpose()).all_of()?;
        let tokens = OwnTokens {
            kept_for,
            access: TokenLife::new(self.access_token_expires_in, self.access_token_expires_leeway),
            refresh: TokenLife::new(self.refresh_token_expires_in, self.refresh_token_expires_leeway),
            state: build.per_worker("authz-keycloak-token", build.identity(), Default::default),
        };
        Ok(KeycloakServer {
            http: build.http().clone(),
            call: self.call.clone(),
            client_id: self.client_id.clone(),
            client_secret: self.client_secret.clone(),
            provider,
            token,
            resources,
            tokens,
        })
    }
}

struct KeycloakAuthorizer {
    authorization: Authorization,
    login: Option<PasswordLogin>,
    redirect: Option<HeaderValue>,
    outages: OutageLog,
}

impl Plugin for KeycloakAuthorizer {
    fn phases(&self) -> Phases {
        if self.login.is_some() { Phases::REQUEST.and(Phases::REQUEST_BODY) } else { Phases::REQUEST }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        let Some(login) = self.login.as_ref().filter(|login| login.is_for(exchange)) else {
            return Ok(Flow::wait(self.authorize(exchange)));
        };
        if !exchange.request.framing.has_body() {
            return Err(RefusalResponse::new(422, "message", login::NO_USERNAME).send(exchange));
        }
        login.begin(exchange);
        Ok(Flow::Continue)
    }

    fn whole_request(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        Ok(self.has_begun_login(exchange).then_some(login::MOST_FORM))
    }

    fn on_request_body<'a>(&'a self, exchange: &'a mut Exchange, body: &'a mut Vec<u8>) -> Result<Flow<'a>, Stop> {
        match self.has_begun_login(exchange) {
            true => Ok(Flow::wait(async move { Err(self.log_in(exchange, body).await) })),
            false => Ok(Flow::Continue),
        }
    }
}

impl KeycloakAuthorizer {
    fn has_begun_login(&self, exchange: &Exchange) -> bool {
        self.login.as_ref().is_some_and(|login| login.has_begun(exchange))
    }

    async fn authorize(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let token = token_of(exchange)?;
        let decision = self.authorization.decide(exchange, &token).await;
        if !matches!(decision, Err(_) | Ok(KeycloakDecision::Denied(400, _))) {
            self.outages.answered(|| "authz-keycloak: Keycloak decides again".to_owned());
        }
        match decision {
            Ok(KeycloakDecision::Allowed) => Ok(()),
            Ok(KeycloakDecision::Denied(status, body)) => {
                if status == 400 {
                    let body = String::from_utf8_lossy(&body);
                    self.outages.failed(format_args!("authz-keycloak: the token endpoint answers with 400: {body}"));
                }
                Err(self.refuse(exchange, status, &body))
            }
            Err(failure) => Err(self.fail(exchange, &failure)),
        }
    }

    fn refuse(&self, exchange: &mut Exchange, status: u16, body: &[u8]) -> Stop {
        if let (403, Some(redirect)) = (status, &self.redirect) {
            let stop = exchange.respond(307, "text/plain; charset=utf-8", b"307 Temporary Redirect\n");
            let added = exchange.response.head.add(b"Location", redirect.as_bytes());
            return added.map_or(Stop::Internal, |()| stop);
        }
        let stop = exchange.respond(status, "application/json", body);
        match status {
            401 => challenged(exchange, b"Bearer error=\"invalid_token\"", stop),
            _ => stop,
        }
    }

    /// Keycloak has not decided: no request passes without it.
    fn fail(&self, exchange: &mut Exchange, failure: &KeycloakFailure) -> Stop {
        exchange.note_service_failure();
        self.outages.failed(format_args!("authz-keycloak: {failure}"));
        Stop::Respond(503)
    }

    /// Answers with a token for a user and a password.
    async fn log_in(&self, exchange: &mut Exchange, form: &[u8]) -> Stop {
        let credentials = match login::credentials(form) {
            Ok(credentials) => credentials,
            Err(missing) => return RefusalResponse::new(422, "message", missing).send(exchange),
        };
        match self.authorization.server.log_in(&credentials).await {
            Ok(answer) if answer.status().as_u16() == 200 => {
                let stop = exchange.respond(200, "application/json", answer.body());
                // RFC 6749 §5.1.
                let added = exchange.response.head.add(b"Cache-Control", b"no-store");
                added.map_or(Stop::Internal, |()| stop)
            }
            Ok(answer) if answer.status().as_u16() < 500 => {
                RefusalResponse::new(401, "message", "Keycloak gives no token for this user and password")
                    .send(exchange)
            }
            Ok(answer) => {
                let failure = KeycloakFailure::new(format!("the token endpoint answers with {}", answer.status()));
                self.fail(exchange, &failure)
            }
            Err(failure) => self.fail(exchange, &failure),
        }
    }
}

/// The client's token, as the value of `Authorization`. One without a scheme is taken for a bearer token, as in APISIX.
fn token_of(exchange: &mut Exchange) -> Result<HeaderValue, Stop> {
    // There is one at most: requests with several are refused before.
    let value =
        exchange.request.head.value(AUTHORIZATION.as_str().as_bytes()).map(<[u8]>::trim_ascii).and_then(|token| {
            let has_scheme = token.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer "));
            let value = if has_scheme { token.to_vec() } else { [b"Bearer ", token].concat() };
            HeaderValue::from_bytes(&value).ok().filter(|_| !token.is_empty())
        });
    if let Some(mut value) = value {
        value.set_sensitive(true);
        return Ok(value);
    }
    let stop = RefusalResponse::new(401, "message", "Missing JWT token in request").send(exchange);
    Err(challenged(exchange, b"Bearer", stop))
}

/// Adds a challenge (RFC 6750 §3) to a refusal.
fn challenged(exchange: &mut Exchange, challenge: &[u8], stop: Stop) -> Stop {
    exchange.response.head.add(b"WWW-Authenticate", challenge).map_or(Stop::Internal, |()| stop)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{body, build, exchange, get, on_request, on_request_body, refused, sent};

    fn options(changed: Value) -> Value {
        let mut options = json!({"client_id": "orders", "token_endpoint": "http://a/token"});
        let changed = changed.as_object().expect("an object").clone();
        options.as_object_mut().expect("an object").extend(changed);
        options
    }

    #[test]
    fn tokens_are_bearer_tokens() {
        for (field, want) in [
            ("Authorization: Bearer a.b.c", Ok("Bearer a.b.c")),
            ("Authorization: bearer a.b.c", Ok("bearer a.b.c")),
            ("Authorization: a.b.c", Ok("Bearer a.b.c")),
            ("Authorization: ", Err(Stop::Answered)),
            ("A: b", Err(Stop::Answered)),
        ] {
            let mut request = exchange(&format!("GET / HTTP/1.1\nHost: h\n{field}\nB: c"));
            let found = token_of(&mut request).map(|value| value.to_str().expect("text").to_owned());
            assert_eq!(found.as_deref().map_err(|stop| *stop), want, "{field}");
        }
    }

    #[test]
    fn requests_without_a_token_and_without_a_permission_are_refused_without_a_call() {
        let step = build::<AuthzKeycloak>(options(json!({})));
        let mut request = get("/orders/1");
        assert_eq!(on_request(&step, &mut request), Err(Stop::Answered));
        assert_eq!((request.response.status, sent(&request, "www-authenticate")), (401, Some("Bearer")));
        assert_eq!(body(&request), "{\"message\":\"Missing JWT token in request\"}\n");
        let ask = |step: &Arc<dyn Plugin>, method: &str| {
            let mut request = exchange(&format!("{method} /orders/1 HTTP/1.1\nHost: h\nAuthorization: Bearer t"));
            (on_request(step, &mut request), request)
        };
        let (stop, request) = ask(&step, "GET");
        assert_eq!((stop, request.response.status), (Err(Stop::Answered), 403));
        assert_eq!(body(&request), "{\"error\":\"access_denied\",\"error_description\":\"not_authorized\"}");
        let by_method =
            build::<AuthzKeycloak>(options(json!({"permissions": ["orders"], "http_method_as_scope": true})));
        let (stop, request) = ask(&by_method, "GET#DELETE");
        assert_eq!((stop, request.response.status), (Err(Stop::Answered), 403), "Keycloak would read the scope `GET`");
        let elsewhere = build::<AuthzKeycloak>(options(json!({"access_denied_redirect_uri": "https://a.example/no"})));
        let (stop, request) = ask(&elsewhere, "GET");
        assert_eq!((stop, request.response.status), (Err(Stop::Answered), 307));
        assert_eq!(sent(&request, "location"), Some("https://a.example/no"));
    }

    #[test]
    fn a_login_stays_one_whatever_other_plugins_change() {
        let path = json!({"password_grant_token_generation_incoming_uri": "/login"});
        let step = build::<AuthzKeycloak>(options(path));
        let post = |kind: &str| {
            let head = format!("POST /login HTTP/1.1\nHost: h\nContent-Type: {kind}\nContent-Length: 3");
            let mut request = exchange(&head);
            (on_request(&step, &mut request), request)
        };
        let (passed, mut login) = post("application/x-www-form-urlencoded");
        assert_eq!(passed, Ok(()));
        login.request.head.set(b"Content-Type", b"application/json").expect("valid");
        assert_eq!(step.whole_request(&mut login), Ok(Some(login::MOST_FORM)));
        assert_eq!(on_request_body(&step, &mut login, "a=b"), Err(Stop::Answered));
        assert_eq!(login.response.status, 422, "there is no user in the form");
        let (refused, mut other) = post("application/json");
        assert_eq!((refused, other.response.status), (Err(Stop::Answered), 401));
        other.request.head.set(b"Content-Type", b"application/x-www-form-urlencoded").expect("valid");
        assert_eq!(step.whole_request(&mut other), Ok(None), "it was none when it was decided about");
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"token_endpoint": "http://a"}), "the option `client_id` is missing"),
            (json!({"client_id": "a"}), "needs one of `discovery` and `token_endpoint`"),
            (options(json!({"token_endpoint": "a"})), "token_endpoint: `a` is not a URL"),
            (options(json!({"discovery": "a"})), "discovery: `a` is not a URL"),
            (options(json!({"lazy_load_paths": true})), "lazy_load_paths: needs `discovery` or"),
            (
                options(json!({"resource_registration_endpoint": "/r"})),
                "resource_registration_endpoint: `/r` is not a URL",
            ),
            (
                options(json!({"lazy_load_paths": true, "discovery": "http://a", "permissions": ["a"]})),
                "permissions: has no effect",
            ),
            (
                options(json!({"http_method_as_scope": true, "permissions": ["a", "b#c"]})),
                "permissions[1]: has a scope, and with `http_method_as_scope`",
            ),
            (options(json!({"permissions": ["a", "a"]})), "permissions"),
            (options(json!({"grant_type": "password"})), "grant_type: `password` is not an allowed value"),
            (options(json!({"policy_enforcement_mode": "OFF"})), "policy_enforcement_mode: `OFF` is not"),
            (options(json!({"access_denied_redirect_uri": "a\nb"})), "access_denied_redirect_uri: has a character"),
        ] {
            let error = refused::<AuthzKeycloak>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
