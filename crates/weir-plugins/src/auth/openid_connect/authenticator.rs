//! The decision on each request, and the fields that are forwarded to the upstream.

use std::rc::Rc;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jsonschema::Validator;
use serde_json::{Map, Value, json};
use weir_plugin::{CallerClaims, Exchange, Flow, Plugin, Stop};

use super::bearer::{Bearer, TokenRejection};
use super::login::{LoginFlow, LoginStep};
use super::provider::Provider;
use super::session::OpenidSession;
use crate::answer::RefusalResponse;
use crate::rate_limited_log::RateLimitedLog;

/// Which fields are forwarded to the upstream.
pub(super) struct ForwardedFields {
    pub access_token: bool,
    pub authorization: bool,
    pub userinfo: bool,
    /// The claims of the ID token.
    pub identity: bool,
    pub raw_identity: bool,
    pub refresh_token: bool,
}

pub(super) struct OpenidAuthenticator {
    pub provider: Provider,
    /// `None` if bearer tokens are not accepted.
    pub bearer: Option<Bearer>,
    /// `None` if browsers are not redirected to a login.
    pub login: Option<LoginFlow>,
    pub shown: ForwardedFields,
    /// The schema of the claims of a token, or of a session.
    pub claim_schema: Option<Arc<Validator>>,
    pub required_scopes: Vec<String>,
    /// Requests without a session are refused instead of redirected to a login.
    pub refuses_without_session: bool,
    /// Requests without a valid token are forwarded without an identity.
    pub forwards_unauthenticated: bool,
    pub realm: String,
    pub failures: RateLimitedLog,
}

/// Fields that are removed from requests, because only this plugin may set them.
const OWN_FIELDS: [&[u8]; 5] = [b"X-Access-Token", b"X-ID-Token", b"X-Raw-ID-Token", b"X-Userinfo", b"X-Refresh-Token"];

/// The bearer token, from `Authorization` or `X-Access-Token`.
fn token(exchange: &Exchange) -> Option<Vec<u8>> {
    let head = &exchange.request.head;
    let authorization = head.value(b"authorization").and_then(|value| value.split_at_checked(7));
    let in_authorization = authorization.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
    let token = in_authorization.map(|(_, token)| token.trim_ascii()).or_else(|| head.value(b"x-access-token"))?;
    (!token.is_empty()).then(|| token.to_vec())
}

impl Plugin for OpenidAuthenticator {
    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        Ok(Flow::wait(self.enter(exchange)))
    }
}

impl OpenidAuthenticator {
    /// Admits the request. The time-out covers all calls to the provider together.
    async fn enter(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let token = token(exchange).filter(|_| self.bearer.is_some());
        for name in OWN_FIELDS {
            exchange.request.head.remove(name);
        }
        let timeout = self.provider.timeout();
        match tokio::time::timeout(timeout, self.admit(exchange, token)).await {
            Ok(Ok(())) => {}
            Ok(Err(TokenRejection::Token(fault))) => self.refuse_or_pass(exchange, Some(fault))?,
            Ok(Err(TokenRejection::Trouble(trouble))) => return Err(self.fail(exchange, &trouble.to_string())),
            Ok(Err(TokenRejection::Stop(stop))) => return Err(stop),
            Err(_) => return Err(self.fail(exchange, &format!("no answer within {} ms", timeout.as_millis()))),
        }
        // However the request was admitted: who has the cookies has the session.
        self.login.as_ref().map_or(Ok(()), |login| login.cookies.hide(exchange))
    }

    async fn admit(&self, exchange: &mut Exchange, token: Option<Vec<u8>>) -> Result<(), TokenRejection> {
        if let (Some(token), Some(bearer)) = (token, &self.bearer) {
            let claims = bearer.verify(&self.provider, &token, exchange).await?;
            self.check_scopes(exchange, &scopes(&claims))?;
            self.check_claims(|| Value::Object(claims.as_ref().clone()))?;
            exchange.set_token_claims(CallerClaims::Object(Rc::clone(&claims)));
            return self.tell(exchange, &token, Some(&claims));
        }
        let Some(login) = &self.login else { return Ok(self.refuse_or_pass(exchange, None)?) };
        match login.visit(&self.provider, exchange).await? {
            LoginStep::Answered(stop) => Err(TokenRejection::Stop(stop)),
            LoginStep::Session(session) => {
                self.check_scopes(exchange, &session.scope.split(' ').collect::<Vec<_>>())?;
                self.check_claims(|| checked_session(&session))?;
                exchange.set_token_claims(session_claims(&session));
                self.forward_session(exchange, &session)
            }
            LoginStep::NoSession if self.forwards_unauthenticated || self.refuses_without_session => {
                Ok(self.refuse_or_pass(exchange, None)?)
            }
            LoginStep::NoSession => Err(TokenRejection::Stop(login.begin(&self.provider, exchange).await?)),
        }
    }

    fn check_scopes(&self, exchange: &mut Exchange, scopes: &[&str]) -> Result<(), Stop> {
        if self.required_scopes.iter().all(|wanted| scopes.contains(&wanted.as_str())) {
            return Ok(());
        }
        let wanted = self.required_scopes.join(", ");
        let body = json!({ "error": format!("required scopes {wanted} not present") });
        Err(exchange.respond(403, "application/json", format!("{body}\n").as_bytes()))
    }

    fn check_claims(&self, claims: impl FnOnce() -> Value) -> Result<(), TokenRejection> {
        match &self.claim_schema {
            Some(schema) if !schema.is_valid(&claims()) => {
                Err(TokenRejection::Token("the claims do not match the schema of this route"))
            }
            _ => Ok(()),
        }
    }

    /// Logs the failure, and refuses the request with 503.
    fn fail(&self, exchange: &mut Exchange, why: &str) -> Stop {
        exchange.note_service_failure();
        self.failures.error(format_args!("openid-connect: {}: {why}", self.provider.name()));
        Stop::Respond(503)
    }

    /// Refuses the request with a challenge (RFC 6750 §3), unless `forwards_unauthenticated` is set.
    fn refuse_or_pass(&self, exchange: &mut Exchange, fault: Option<&'static str>) -> Result<(), Stop> {
        if self.forwards_unauthenticated {
            // An invalid token must not reach the upstream.
            if fault.is_some() {
                exchange.request.head.remove(b"Authorization");
            }
            return Ok(());
        }
        let realm = &self.realm;
        let (challenge, message) = match fault {
            None => (format!("Bearer realm=\"{realm}\""), "No bearer token found in request".to_owned()),
            Some(fault) => {
                let error = format!("Bearer realm=\"{realm}\", error=\"invalid_token\", error_description=\"{fault}\"");
                (error, format!("The request is refused: {fault}"))
            }
        };
        let stop = RefusalResponse::new(401, "message", &message).send(exchange);
        let added = exchange.response.head.add(b"WWW-Authenticate", challenge.as_bytes());
        Err(added.map_or(Stop::Internal, |()| stop))
    }

    fn tell(
        &self,
        exchange: &mut Exchange,
        token: &[u8],
        claims: Option<&Map<String, Value>>,
    ) -> Result<(), TokenRejection> {
        if self.shown.access_token {
            add(exchange, "X-Access-Token", token)?;
        }
        if self.shown.authorization {
            exchange.request.head.remove(b"Authorization");
            add(exchange, "Authorization", &[b"Bearer ", token].concat())?;
        }
        if let Some(claims) = claims.filter(|_| self.shown.userinfo) {
            add(exchange, "X-Userinfo", in_base64(claims).as_bytes())?;
        }
        Ok(())
    }

    fn forward_session(&self, exchange: &mut Exchange, session: &OpenidSession) -> Result<(), TokenRejection> {
        self.tell(exchange, session.access_token.as_bytes(), session.userinfo.as_ref())?;
        if self.shown.identity {
            add(exchange, "X-ID-Token", in_base64(&session.identity).as_bytes())?;
        }
        if let Some(raw) = session.raw.as_ref().filter(|_| self.shown.raw_identity) {
            add(exchange, "X-Raw-ID-Token", raw.as_bytes())?;
        }
        if let Some(token) = session.refresh_token.as_ref().filter(|_| self.shown.refresh_token) {
            add(exchange, "X-Refresh-Token", token.as_bytes())?;
        }
        Ok(())
    }
}

fn add(exchange: &mut Exchange, name: &str, value: &[u8]) -> Result<(), Stop> {
    exchange.mark_personal(name.as_bytes());
    exchange.request.head.add(name.as_bytes(), value).map_err(|_| Stop::Internal)
}

/// The claims of the ID token, with the scopes that the provider has granted to the session (RFC 6749 §5.1).
fn session_claims(session: &OpenidSession) -> CallerClaims {
    let mut claims = session.identity.clone();
    claims.insert("scope".to_owned(), Value::from(session.scope.as_str()));
    CallerClaims::Object(Rc::new(claims))
}

/// What `claim_schema` is about, in the form of APISIX.
fn checked_session(session: &OpenidSession) -> Value {
    let mut checked = json!({ "access_token": session.access_token, "id_token": session.identity });
    if let Some(user) = &session.userinfo {
        checked["user"] = Value::Object(user.clone());
    }
    checked
}

fn in_base64(claims: &Map<String, Value>) -> String {
    STANDARD.encode(serde_json::to_vec(claims).expect("maps of values are JSON"))
}

/// The scopes of a token, from the claims `scope` and `scp`, each a list or text with spaces.
fn scopes(claims: &Map<String, Value>) -> Vec<&str> {
    let mut scopes = Vec::new();
    for claim in ["scope", "scp"] {
        match claims.get(claim) {
            Some(Value::String(text)) => scopes.extend(text.split(' ')),
            Some(Value::Array(list)) => scopes.extend(list.iter().filter_map(Value::as_str)),
            _ => {}
        }
    }
    scopes
}
