//! The login with redirects (OpenID Connect Core 1.0 §3.1): the browser is redirected to the provider, returns with a
//! code, and gets a session in a cookie.

use std::time::{SystemTime, UNIX_EPOCH};

use http::header::HeaderMap;
use serde_json::{Map, Value};
use weir_plugin::proto::Method;
use weir_plugin::{Exchange, Stop, form};
use weir_tokens::openid_login::{challenge, fault_of_login, random_text};
use weir_tokens::{ClientAuthMethod, TokenRules};

use super::bearer::{TokenRejection, verified};
use super::provider::{Provider, ProviderError, missing_endpoint, token_endpoint};
use super::pushed::PushedRequests;
use super::session::{Cookies, OpenidSession, PendingLogin, Sealer};
use crate::answer::RefusalResponse;
use crate::rate_limited_log::RateLimitedLog;

pub(super) struct LoginFlow {
    pub cookies: Cookies,
    pub sealer: Sealer,
    /// Where the provider redirects browsers back to: a URL, or a path on the host of the request.
    pub redirect_uri: Option<String>,
    pub logout_path: String,
    pub post_logout_redirect_uri: Option<String>,
    pub scope: String,
    pub params: Vec<(String, String)>,
    pub force_reauthorize: bool,
    pub proof: ClientAuthMethod,
    /// `None` if browsers carry the authorization request to the provider.
    pub pushed: Option<PushedRequests>,
    /// Tokens of a session are revoked at the provider when it ends by a logout.
    pub revokes: bool,
    pub failures: RateLimitedLog,
    /// The rules for ID tokens.
    pub rules: TokenRules,
    pub wants_userinfo: bool,
    pub wants_raw: bool,
    pub renews: bool,
    /// The lifetime of an access token in seconds, if the provider does not send one.
    pub expires_in_s: u64,
    pub leeway_s: u64,
    /// The lifetime of a session in seconds.
    pub absolute_s: u64,
}

/// The longest duration of a login, in seconds.
const LOGIN_S: u64 = 600;
/// The most logins that a browser has at a time, such as one for each of its windows.
const MOST_LOGINS: usize = 5;
/// Appended to the path of the request for the redirect URI, if none is configured.
const SUFFIX: &str = "/.apisix/redirect";

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn random() -> Result<String, Stop> {
    random_text().map_err(|_| Stop::Internal)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The result of looking for a session.
pub(super) enum LoginStep {
    /// The request has this valid session.
    Session(Box<OpenidSession>),
    /// The exchange has been answered.
    Answered(Stop),
    NoSession,
}

impl LoginFlow {
    /// The origin as the browser sees it: of `redirect_uri`, or of the request.
    fn origin(&self, exchange: &Exchange) -> String {
        if let Some((scheme, rest)) = self.redirect_uri.as_deref().and_then(|uri| uri.split_once("://")) {
            return format!("{scheme}://{}", rest.split('/').next().unwrap_or_default());
        }
        format!("{}://{}", exchange.scheme(), text(exchange.request.client_authority()))
    }

    /// The path of the redirect URI, where a login ends.
    fn callback(&self, path: &str) -> String {
        match &self.redirect_uri {
            Some(uri) => match uri.split_once("://") {
                Some((_, rest)) => rest.find('/').map_or("/", |at| &rest[at..]).to_owned(),
                None => uri.clone(),
            },
            None if path.ends_with(SUFFIX) => path.to_owned(),
            None => format!("{}{SUFFIX}", path.trim_end_matches('/')),
        }
    }

    /// Handles a request without a bearer token: completes a login, logs out, or finds the session and renews it if needed.
    pub(super) async fn visit(
        &self,
        provider: &Provider,
        exchange: &mut Exchange,
    ) -> Result<LoginStep, TokenRejection> {
        let path = text(exchange.request.path());
        if path == self.callback(&path) {
            return self.finish(provider, exchange).await;
        }
        let sealed = self.cookies.read(exchange);
        let session = sealed.and_then(|sealed| self.sealer.open::<OpenidSession>("session", &sealed));
        if path == self.logout_path {
            return self.leave(provider, exchange, session).await;
        }
        let now_s = now_s();
        match session.filter(|session| now_s < session.began_s + self.absolute_s) {
            None => Ok(LoginStep::NoSession),
            Some(session) if now_s + self.leeway_s < session.until_s => Ok(LoginStep::Session(Box::new(session))),
            Some(session) => self.renew(provider, exchange, session).await,
        }
    }

    /// Redirects a browser to the provider. A request that cannot lead to a login is refused with 401.
    pub(super) async fn begin(&self, provider: &Provider, exchange: &mut Exchange) -> Result<Stop, TokenRejection> {
        // A redirect would lose the content of a form, and a script or an image cannot show the page for logging in.
        if !matches!(exchange.request.method, Method::Get | Method::Head) || is_in_the_background(exchange) {
            return Ok(RefusalResponse::new(401, "message", "A login is needed").send(exchange));
        }
        let discovery = provider.discovery().await?;
        let endpoint = discovery.authorization_endpoint.as_deref();
        let endpoint = endpoint.ok_or_else(|| missing_endpoint("authorization_endpoint"))?;
        let begun = PendingLogin {
            state: random()?,
            nonce: random()?,
            verifier: random()?,
            target: text(&exchange.request.origin_form()),
            at_s: now_s(),
        };
        let path = text(exchange.request.path());
        let redirect_uri = format!("{}{}", self.origin(exchange), self.callback(&path));
        let challenge = challenge(&begun.verifier);
        let mut pairs = vec![
            ("response_type", "code"),
            ("client_id", &*provider.client.id),
            ("redirect_uri", &redirect_uri),
            ("scope", &self.scope),
            ("state", &begun.state),
            ("nonce", &begun.nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ];
        if self.force_reauthorize {
            pairs.push(("prompt", "login"));
        }
        pairs.extend(self.params.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let request_uri: String;
        if let Some(pushed) = &self.pushed {
            request_uri = pushed.push(provider, &pairs).await?;
            pairs = vec![("client_id", &*provider.client.id), ("request_uri", &request_uri)];
        }
        let location = form::with_pairs(endpoint, &pairs);
        let stop = redirect(exchange, 302, &location)?;
        for surplus in self.surplus_logins(exchange) {
            self.cookies.set_login_cookie(exchange, &surplus, "", 0)?;
        }
        let sealed = self.sealer.seal("login", &begun)?;
        self.cookies.set_login_cookie(exchange, &self.login_cookie_name(&begun.state), &sealed, LOGIN_S)?;
        Ok(stop)
    }

    /// The name of the cookie for a login. It depends on the state, so that a browser can have several logins at a time.
    fn login_cookie_name(&self, state: &str) -> String {
        format!("{}{}", self.cookies.login_prefix(), &state[..8])
    }

    /// The cookies of logins in the request that another login leaves no room for: the oldest ones, and those that are not valid.
    /// A browser that begins many logins and completes none would else send more cookies than a request may have.
    fn surplus_logins(&self, exchange: &Exchange) -> Vec<String> {
        let began_s = |sealed: &str| self.sealer.open::<PendingLogin>("login", sealed).map_or(0, |begun| begun.at_s);
        let logins = self.cookies.logins(exchange).into_iter();
        let mut logins: Vec<(u64, String)> = logins.map(|(name, sealed)| (began_s(&sealed), name)).collect();
        logins.sort_unstable();
        logins.truncate(logins.len().saturating_sub(MOST_LOGINS - 1));
        logins.into_iter().map(|(_, name)| name).collect()
    }

    /// The browser has returned from the provider: exchanges the code for tokens, and starts the session.
    async fn finish(&self, provider: &Provider, exchange: &mut Exchange) -> Result<LoginStep, TokenRejection> {
        let query = exchange.request.query().unwrap_or_default().to_vec();
        let argument =
            |name: &str| form::pairs(&query).find(|(key, _)| **key == *name.as_bytes()).map(|(_, value)| text(&value));
        let wrong = |why: &'static str| Err(TokenRejection::Token(why));
        let is_state = |state: &String| {
            state.len() == 43 && state.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        let Some(state) = argument("state").filter(is_state) else { return wrong("the request has no valid state") };
        let name = self.login_cookie_name(&state);
        let begun =
            Cookies::value(exchange, &name).and_then(|sealed| self.sealer.open::<PendingLogin>("login", &sealed));
        let begun = begun.filter(|begun| begun.state == state && now_s() < begun.at_s + LOGIN_S);
        let Some(begun) = begun else {
            return wrong("no login with this state was started in this browser, or the login took too long");
        };
        if argument("error").is_some() {
            return wrong("the provider has refused the login");
        }
        let Some(code) = argument("code") else { return wrong("the request has no code") };
        let discovery = provider.discovery().await?;
        if !discovery.may_have_answered(argument("iss").as_deref()) {
            return wrong("the response of the login is from another provider");
        }
        let path = text(exchange.request.path());
        let redirect_uri = format!("{}{}", self.origin(exchange), self.callback(&path));
        let pairs = [
            ("grant_type", "authorization_code"),
            ("code", &code),
            ("redirect_uri", &redirect_uri),
            ("code_verifier", &begun.verifier),
        ];
        let Some(answer) = self.tokens(provider, &pairs).await? else {
            return wrong("the provider does not accept the code");
        };
        let session = self.session(provider, &answer, Some(&begun.nonce), None).await?;
        let location = format!("{}{}", self.origin(exchange), begun.target);
        let stop = redirect(exchange, 302, &location)?;
        self.cookies.set_login_cookie(exchange, &name, "", 0)?;
        self.give(exchange, &session)?;
        Ok(LoginStep::Answered(stop))
    }

    fn give(&self, exchange: &mut Exchange, session: &OpenidSession) -> Result<(), Stop> {
        let left_s = (session.began_s + self.absolute_s).saturating_sub(now_s());
        self.cookies.write(exchange, &self.sealer.seal("session", session)?, left_s)
    }

    /// The answer of the token endpoint; `None` if it does not accept the code.
    async fn tokens(
        &self,
        provider: &Provider,
        pairs: &[(&str, &str)],
    ) -> Result<Option<Map<String, Value>>, ProviderError> {
        let discovery = provider.discovery().await?;
        let endpoint = provider.endpoint(token_endpoint(&discovery)?)?;
        match provider.post(&endpoint, self.proof, HeaderMap::new(), pairs).await {
            Ok(answer) => Ok(Some(answer)),
            // RFC 6749 §5.2.
            Err(ProviderError::Refused(_, 400)) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    async fn session(
        &self,
        provider: &Provider,
        answer: &Map<String, Value>,
        nonce: Option<&str>,
        before: Option<OpenidSession>,
    ) -> Result<OpenidSession, TokenRejection> {
        let member = |name: &str| answer.get(name).and_then(Value::as_str).map(str::to_owned);
        let access_token = member("access_token").ok_or(TokenRejection::Token("the provider sent no access token"))?;
        let (identity, raw) = match (member("id_token"), &before) {
            (Some(token), _) => (verified(provider, &self.rules, None, token.as_bytes()).await?, Some(token)),
            // OpenID Connect Core 1.0 §12.2: the answer to a refresh may lack an ID token.
            (None, Some(before)) => (before.identity.clone(), before.raw.clone()),
            (None, None) => return Err(TokenRejection::Token("the provider sent no ID token")),
        };
        if let Some(fault) = fault_of_login(&identity, &provider.client.id, nonce) {
            return Err(TokenRejection::Token(fault));
        }
        if before.as_ref().is_some_and(|before| before.identity.get("sub") != identity.get("sub")) {
            return Err(TokenRejection::Token("the ID token is for another user"));
        }
        let userinfo = match (before.as_ref().and_then(|before| before.userinfo.clone()), self.wants_userinfo) {
            (Some(userinfo), _) => Some(userinfo),
            (None, true) => self.userinfo(provider, &access_token, &identity).await?,
            (None, false) => None,
        };
        let now_s = now_s();
        let expires_in_s = answer.get("expires_in").and_then(Value::as_u64).unwrap_or(self.expires_in_s);
        Ok(OpenidSession {
            refresh_token: member("refresh_token").or_else(|| before.as_ref()?.refresh_token.clone()),
            raw: raw.filter(|_| self.wants_raw),
            scope: member("scope")
                .or_else(|| Some(before.as_ref()?.scope.clone()))
                .unwrap_or_else(|| self.scope.clone()),
            // At least 5 s beyond the leeway: otherwise the token would be refreshed with every request.
            until_s: now_s + expires_in_s.clamp(self.leeway_s + 5, 400 * 86_400),
            began_s: before.as_ref().map_or(now_s, |before| before.began_s),
            access_token,
            identity,
            userinfo,
        })
    }

    async fn userinfo(
        &self,
        provider: &Provider,
        token: &str,
        identity: &Map<String, Value>,
    ) -> Result<Option<Map<String, Value>>, TokenRejection> {
        let discovery = provider.discovery().await?;
        let Some(endpoint) = &discovery.userinfo_endpoint else { return Ok(None) };
        let userinfo = provider.get_as(&provider.endpoint(endpoint)?, token).await?;
        // OpenID Connect Core 1.0 §5.3.2.
        match userinfo.get("sub") == identity.get("sub") {
            true => Ok(Some(userinfo)),
            false => Err(TokenRejection::Token("the provider's user information is about another user")),
        }
    }

    /// Refreshes an expired access token, and sets the new session with a redirect to the same URL.
    async fn renew(
        &self,
        provider: &Provider,
        exchange: &mut Exchange,
        session: OpenidSession,
    ) -> Result<LoginStep, TokenRejection> {
        let Some(token) = session.refresh_token.clone().filter(|_| self.renews) else {
            return Ok(LoginStep::NoSession);
        };
        let endpoint = provider.endpoint(token_endpoint(&*provider.discovery().await?)?)?;
        let Some(answer) = provider.refresh(endpoint, self.proof, &token).await? else {
            return Ok(LoginStep::NoSession);
        };
        let session = self.session(provider, &answer, None, Some(session)).await?;
        let location = format!("{}{}", self.origin(exchange), text(&exchange.request.origin_form()));
        let stop = redirect(exchange, 307, &location)?;
        self.give(exchange, &session)?;
        Ok(LoginStep::Answered(stop))
    }

    async fn leave(
        &self,
        provider: &Provider,
        exchange: &mut Exchange,
        session: Option<OpenidSession>,
    ) -> Result<LoginStep, TokenRejection> {
        if let Some(session) = session.filter(|_| self.revokes) {
            // The session of the browser ends even so, in the time that is left of this visit.
            let fault = match tokio::time::timeout(provider.timeout() / 2, self.revoke(provider, &session)).await {
                Ok(Ok(())) => None,
                Ok(Err(trouble)) => Some(trouble.to_string()),
                Err(_) => Some("no answer in time".to_owned()),
            };
            if let Some(fault) = fault {
                self.failures
                    .error(format_args!("openid-connect: {}: tokens were not revoked: {fault}", provider.name()));
            }
        }
        let discovery = provider.discovery().await?;
        let location = match (&discovery.end_session_endpoint, &self.post_logout_redirect_uri) {
            (Some(endpoint), after) => {
                let mut pairs = vec![("client_id", provider.client.id.as_str())];
                pairs.extend(after.as_deref().map(|after| ("post_logout_redirect_uri", after)));
                Some(form::with_pairs(endpoint, &pairs))
            }
            (None, after) => after.clone(),
        };
        let stop = match location {
            Some(location) => redirect(exchange, 302, &location)?,
            None => exchange.respond(200, "text/plain", b"You have logged out.\n"),
        };
        self.cookies.write(exchange, "", 0)?;
        Ok(LoginStep::Answered(stop))
    }

    /// Revokes the tokens of a session: the refresh token first, since with it the access token can be renewed.
    async fn revoke(&self, provider: &Provider, session: &OpenidSession) -> Result<(), ProviderError> {
        let discovery = provider.discovery().await?;
        let url = discovery.revocation_endpoint.as_deref().ok_or_else(|| missing_endpoint("revocation_endpoint"))?;
        let endpoint = provider.endpoint(url)?;
        let first = match &session.refresh_token {
            Some(token) => provider.revoke(&endpoint, self.proof, token, "refresh_token").await,
            None => Ok(()),
        };
        provider.revoke(&endpoint, self.proof, &session.access_token, "access_token").await.and(first)
    }
}

/// Whether a page has sent the request by itself (Fetch Metadata §2.2): no user would see the login. Browsers that do not send the
/// field are recognised by the one that libraries for scripts add.
fn is_in_the_background(exchange: &Exchange) -> bool {
    let head = &exchange.request.head;
    match head.value(b"sec-fetch-mode") {
        Some(mode) => mode != b"navigate",
        None => head.value(b"x-requested-with").is_some_and(|by| by.eq_ignore_ascii_case(b"XMLHttpRequest")),
    }
}

fn redirect(exchange: &mut Exchange, status: u16, location: &str) -> Result<Stop, Stop> {
    let stop = exchange.respond(status, "text/plain", b"");
    let head = &mut exchange.response.head;
    head.add(b"Location", location.as_bytes()).map_err(|_| Stop::Internal)?;
    head.add(b"Cache-Control", b"no-store").map_err(|_| Stop::Internal)?;
    Ok(stop)
}
