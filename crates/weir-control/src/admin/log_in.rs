//! Log-in and log-out of browsers, and requests of their sessions.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, ORIGIN};
use http::request::Parts;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::answer::{self, AdminResponse, Refused, json_of};
use super::audit::AuditedCaller;
use super::cookies::{CookieSite, HostCookie};
use super::host::RequestHost;
use super::identity::{AdminMode, NodeIdentity, host_of, is_own_name};
use super::keys::{AdminKeys, Caller};
use super::node_pages::SessionHold;
use super::oidc::OidcLogIns;
use super::refusals::{WRONG_KEY_PAUSE, refused_session, refused_token, too_often, unauthorized};
use super::request::{AdminPeer, BodyFault, unreadable};
use super::sessions::{AdminSession, AdminSessions, SessionOrigin, SessionSecrets};
use super::tokens::{AcceptedTokens, TokenCaller};
use crate::document::{AdminRole, AdminScope};
use crate::stores::live::now_ms;

/// The field with the token of a session.
pub(super) const SESSION: HeaderName = HeaderName::from_static("x-weir-session");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// One of the two secrets of a session.
const COOKIE: HostCookie = HostCookie { name: "__Host-weir", same_site: CookieSite::Strict };
/// The most bytes of a log-in.
const MAX_LOG_IN: usize = 16 << 10;

/// The sender of a request, and the session that it belongs to.
pub(super) struct KnownCaller {
    pub(super) caller: Caller,
    /// The token of the session and its end in milliseconds since 1970; `None` for a key or a token.
    pub(super) session: Option<(String, u64)>,
    /// The end of the caller's own token, in milliseconds since 1970; `None` for a key or a session.
    pub(super) until_ms: Option<u64>,
}

impl From<Caller> for KnownCaller {
    fn from(caller: Caller) -> KnownCaller {
        KnownCaller { caller, session: None, until_ms: None }
    }
}

impl From<TokenCaller> for KnownCaller {
    fn from(TokenCaller { caller, until_ms }: TokenCaller) -> KnownCaller {
        KnownCaller { caller, session: None, until_ms: Some(until_ms) }
    }
}

/// Who may use the API, and the sessions of those who have logged in.
pub(super) struct LogIns {
    /// `None` if browsers may not log in.
    pub(super) sessions: Option<Arc<AdminSessions>>,
    pub(super) keys: AdminKeys,
    pub(super) tokens: Option<AcceptedTokens>,
    /// Log-ins at an identity provider.
    pub(super) oidc: Option<OidcLogIns>,
    /// Host names that requests may have, besides addresses and names of this machine.
    pub(super) hosts: Vec<Box<str>>,
    /// Whether clients use TLS.
    pub(super) is_tls: bool,
    /// Whether there is a draft of the files that resources stand in.
    pub(super) has_draft: bool,
    /// Whether the API may write these files.
    pub(super) can_write_files: bool,
    /// Whether the node shows results of the lab.
    pub(super) has_lab: bool,
    /// Whether the node knows other environments.
    pub(super) has_environments: bool,
    pub(super) mode: AdminMode,
    pub(super) node: NodeIdentity,
}

impl LogIns {
    /// Answers a log-in or log-out, and what a page asks before a log-in; `None` if the request is something else. `revision` is that
    /// of the store.
    pub(super) async fn answer(
        &self,
        head: &Parts,
        path: &[String],
        (peer, host): (AdminPeer, &dyn RequestHost),
        read: &mut Option<impl AsyncFnOnce(usize) -> Result<Bytes, BodyFault>>,
        revision: u64,
    ) -> Option<AdminResponse> {
        let sessions = self.sessions.as_ref()?;
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        Some(match (path.as_slice(), &head.method) {
            (["session"], &Method::POST) => {
                let read = read.take()?;
                self.log_in(sessions, head, (peer, host), read, revision).await.unwrap_or_else(|refusal| *refusal)
            }
            (["session"], &Method::DELETE) => self.log_out(sessions, head, peer).await,
            (["session", "hint"], &Method::GET) => self.hint(head, peer),
            (["session", "oidc"], &Method::GET) => {
                let oidc = self.oidc.as_ref()?;
                let begun = match self.check_page(head, peer) {
                    Ok(()) => oidc.begin(head, host).await,
                    Err(refusal) => Err(refusal),
                };
                begun.unwrap_or_else(|refusal| oidc.page_of(*refusal))
            }
            (["session", "oidc", "callback"], &Method::GET) => {
                let oidc = self.oidc.as_ref()?;
                // Another site, the provider, has sent the browser.
                let ended = match self.check_place(head, peer) {
                    Ok(()) => oidc.finish(head, host, (sessions, address_of(peer))).await,
                    Err(refusal) => Err(refusal),
                };
                ended.unwrap_or_else(|refusal| oidc.page_of(*refusal))
            }
            _ => return None,
        })
    }

    async fn log_in(
        &self,
        sessions: &AdminSessions,
        head: &Parts,
        (peer, host): (AdminPeer, &dyn RequestHost),
        read: impl AsyncFnOnce(usize) -> Result<Bytes, BodyFault>,
        revision: u64,
    ) -> Refused<AdminResponse> {
        self.check_page(head, peer)?;
        let body = read(MAX_LOG_IN).await.map_err(|fault| Box::new(unreadable(fault, MAX_LOG_IN)))?;
        let origin = self.proven(sessions, &body, (address_of(peer), host)).await?;
        let caller = self.caller_of(&origin).ok_or_else(|| Box::new(unauthorized("wrong apikey")))?;
        // A second log-in makes new secrets and ends the session of the former ones.
        if let Some((token, _)) = self.session_of(sessions, &head.headers) {
            sessions.end(token);
        }
        let SessionSecrets { token, cookie, lifetime, expires_ms } = sessions.begin(origin).map_err(refused_session)?;
        let mut told = self.told(&caller, Some(expires_ms), revision);
        told["token"] = token.into();
        let mut answer = json_of(StatusCode::OK, &told);
        COOKIE.set(&mut answer, &cookie, lifetime);
        answer.extensions_mut().insert(AuditedCaller { name: caller.name.to_string(), role: caller.role });
        Ok(answer)
    }

    /// What a log-in proves. A right key, token or ticket is accepted however many log-ins of its address have failed, since others
    /// could keep its owner out otherwise, and any request may try a key or a token. Everything else is limited.
    async fn proven(
        &self,
        sessions: &AdminSessions,
        body: &[u8],
        (address, host): (Option<IpAddr>, &dyn RequestHost),
    ) -> Refused<SessionOrigin> {
        let body: Result<Value, _> = serde_json::from_slice(body);
        let text = |name: &str| body.as_ref().ok()?.get(name)?.as_str().filter(|text| !text.is_empty());
        let (key, token, oidc) = (text("key"), text("bearer"), text("oidc").zip(text("ticket")));
        if let (Some(key), None) = (key, token)
            && let Some(key) = self.keys.of_text(key)
        {
            return Ok(SessionOrigin::Key(key.name.clone(), key.hash));
        }
        if let (None, None, Some((kept, ticket)), Some(oidc)) = (key, token, oidc, &self.oidc)
            && let Some(caller) = oidc.redeem(ticket, kept)
        {
            return Ok(SessionOrigin::Token(caller));
        }
        let mut fault = None;
        if let (None, Some(token), Some(tokens)) = (key, token, &self.tokens) {
            // The keys of the issuer may have to be fetched.
            host.pause();
            match tokens.caller(token).await {
                Ok(token) => return Ok(SessionOrigin::Token(token)),
                Err(refused) => fault = Some(refused),
            }
        }
        if let Err(wait) = sessions.take_log_in(address) {
            host.pause();
            sleep(WRONG_KEY_PAUSE).await;
            return Err(Box::new(too_often(wait)));
        }
        if let Err(error) = &body {
            return answer::refuse(format!("the body of a log-in is not JSON: {error}"));
        }
        match (key, token, fault) {
            (_, _, Some(fault)) => Err(refused_token(fault)),
            (Some(_), None, None) => {
                host.pause();
                sleep(WRONG_KEY_PAUSE).await;
                Err(Box::new(unauthorized("wrong apikey")))
            }
            (None, Some(_), None) => answer::refuse("this node accepts no tokens; configure `admin.tokens`"),
            (None, None, None) if text("oidc").is_some() && self.oidc.is_some() => Err(Box::new(unauthorized(
                "the log-in at the provider was not of this page, or took too long; log in again",
            ))),
            _ => answer::refuse("a log-in has either `key` or `bearer`, a text that is not empty"),
        }
    }

    async fn log_out(&self, sessions: &AdminSessions, head: &Parts, peer: AdminPeer) -> AdminResponse {
        if let Err(refusal) = self.check_page(head, peer) {
            return *refusal;
        }
        let mut answer = answer::text(StatusCode::NO_CONTENT, "");
        if let Some((token, session)) = self.session_of(sessions, &head.headers) {
            sessions.end(token);
            if let (SessionOrigin::Token(user), Some(oidc)) = (&session.origin, &self.oidc)
                && let Some(url) = oidc.leave(user).await
            {
                answer = json_of(StatusCode::OK, &json!({ "end_session": url }));
            }
            if let Some(Caller { name, role, .. }) = self.caller_of(&session.origin) {
                answer.extensions_mut().insert(AuditedCaller { name: name.to_string(), role });
            }
        }
        COOKIE.clear(&mut answer);
        answer
    }

    /// What a page without a session is told: how to log in here.
    fn hint(&self, head: &Parts, peer: AdminPeer) -> AdminResponse {
        let is_here = matches!(peer, AdminPeer::Tcp { remote, .. } if remote.ip().to_canonical().is_loopback());
        let mut body = json!({
            "secure": self.check_page(head, peer).is_ok(),
            "key_file": self.node.key_file.as_ref().filter(|_| is_here),
            "tokens": self.tokens.is_some(),
        });
        if let Some(oidc) = &self.oidc {
            body["oidc"] = oidc.hint();
        }
        json_of(StatusCode::OK, &body)
    }

    /// The sender of a request with a session's token; `None` if the request has none.
    pub(super) fn caller_of_session(&self, head: &Parts, peer: AdminPeer) -> Option<Refused<KnownCaller>> {
        let sessions = self.sessions.as_ref().filter(|_| head.headers.contains_key(SESSION))?;
        let known = || {
            self.check_page(head, peer)?;
            let has_cookie = COOKIE.value(&head.headers).is_some();
            let missing = || if has_cookie { ended() } else { Box::new(unauthorized(NO_COOKIE)) };
            let (token, session) = self.session_of(sessions, &head.headers).ok_or_else(missing)?;
            let Some(caller) = self.caller_of(&session.origin) else {
                sessions.end(token);
                return Err(ended());
            };
            Ok(KnownCaller { caller, session: Some((token.to_owned(), session.expires_ms)), until_ms: None })
        };
        Some(known())
    }

    /// Whether what was allowed at the beginning of a stream is still allowed.
    pub(super) fn hold(&self, session: Option<&(String, u64)>, until_ms: Option<u64>) -> SessionHold {
        if let Some((sessions, (token, _))) = self.sessions.clone().zip(session.cloned()) {
            return SessionHold::new(Arc::new(move || sessions.is_open(&token)));
        }
        match until_ms {
            Some(until_ms) => SessionHold::new(Arc::new(move || now_ms() < until_ms)),
            None => SessionHold::default(),
        }
    }

    fn session_of<'h>(&self, sessions: &AdminSessions, headers: &'h HeaderMap) -> Option<(&'h str, AdminSession)> {
        let token = headers.get(SESSION)?.to_str().ok()?;
        Some((token, sessions.of(token, COOKIE.value(headers)?)?))
    }

    /// The caller that a session stands for; `None` if its key is one no longer.
    fn caller_of(&self, origin: &SessionOrigin) -> Option<Caller> {
        match origin {
            SessionOrigin::Key(name, hash) => self.keys.find(name, hash).map(Caller::of_key),
            SessionOrigin::Token(token) => Some(token.caller.clone()),
        }
    }

    /// Refuses sessions to names that other hosts may have, and where the secrets of a session would cross the network in the clear.
    fn check_place(&self, head: &Parts, peer: AdminPeer) -> Refused<()> {
        let is_local = match peer {
            AdminPeer::Tcp { local, remote } => {
                local.ip().to_canonical().is_loopback() && remote.ip().to_canonical().is_loopback()
            }
            AdminPeer::Unix => true,
        };
        if !is_local && !self.is_tls {
            let problem = "a log-in over plain HTTP is possible on a loopback address only, since the key would cross the network \
                in the clear; configure `admin.tls`, or use an SSH tunnel to the address";
            return refused("insecure", problem);
        }
        let host = host_of(head);
        if !is_own_name(host, IpAddr::V4(Ipv4Addr::LOCALHOST), &self.hosts) {
            return refused("host", "sessions need a host name of this node; add the name to `admin.hosts`");
        }
        Ok(())
    }

    /// As [`LogIns::check_place`], and refuses sessions to pages of other origins.
    fn check_page(&self, head: &Parts, peer: AdminPeer) -> Refused<()> {
        self.check_place(head, peer)?;
        let host = host_of(head);
        let scheme = if self.is_tls { "https" } else { "http" };
        let field = |name: &HeaderName| head.headers.get(name).map(|value| value.to_str().unwrap_or_default());
        let is_own_site = field(&FETCH_SITE).is_none_or(|site| matches!(site, "same-origin" | "none"));
        let is_own_origin = field(&ORIGIN)
            .is_none_or(|origin| origin.split_once("://").is_some_and(|(own, name)| own == scheme && name == host));
        match is_own_site && is_own_origin {
            true => Ok(()),
            false => Err(Box::new(cross_site())),
        }
    }

    /// The caller and the node, for `GET /weir/v1/session`.
    pub(super) fn told(&self, caller: &Caller, expires_ms: Option<u64>, revision: u64) -> Value {
        let scope = |scope: &AdminScope| {
            let labels: serde_json::Map<String, Value> =
                scope.labels.iter().map(|(name, text)| (name.to_string(), text.to_string().into())).collect();
            json!({ "kinds": scope.kinds, "id_prefix": scope.id_prefix, "labels": labels })
        };
        let (role, has_all) = (caller.role, caller.scopes.is_empty());
        let can_write = role != AdminRole::Viewer && self.mode.is_writable();
        json!({
            "name": caller.name,
            "role": role.name(),
            "scopes": caller.scopes.iter().map(scope).collect::<Vec<_>>(),
            "mode": self.mode.name(),
            "node": self.node.name,
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "started_ms": self.node.started_ms,
            "now_ms": now_ms(),
            "revision": revision,
            "expires_ms": expires_ms,
            "can_write": can_write,
            "can_trace": has_all && (role == AdminRole::Admin || can_write),
            "can_tail": role != AdminRole::Viewer && has_all,
            "can_draft": has_all && role == AdminRole::Admin && self.has_draft,
            "can_write_files": has_all && role == AdminRole::Admin && self.can_write_files,
            "can_lab": has_all && self.has_lab,
            "can_environments": has_all && role != AdminRole::Viewer && self.has_environments,
            "can_rollback": role == AdminRole::Admin && self.mode.is_writable(),
            "features": FEATURES,
        })
    }
}

/// What this version answers; a page hides what needs something else.
const FEATURES: &[&str] =
    &["status", "tail", "table", "explain", "history", "events", "certificates", "metrics_history", "trace"];

/// The address of a client, by which log-ins are limited; `None` for the Unix socket.
fn address_of(peer: AdminPeer) -> Option<IpAddr> {
    match peer {
        AdminPeer::Tcp { remote, .. } => Some(remote.ip()),
        AdminPeer::Unix => None,
    }
}

/// Whether a request is about a session, or sent with one: then `admin.origins` does not count.
pub(super) fn is_of_session(head: &Parts) -> bool {
    let session = head.uri.path().strip_prefix("/weir/v1/session");
    head.headers.contains_key(SESSION) || session.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The response to a page of another origin that uses a session or logs in.
pub(super) fn cross_site() -> AdminResponse {
    let problem = "a session is for pages of this address alone, and `admin.origins` does not change that: open the console at the \
        address of the Admin API; a proxy in front of it has to pass `Host` on as the browser sends it, and to use the same scheme";
    json_of(StatusCode::FORBIDDEN, &json!({ "error_msg": problem, "reason": "cross_site" }))
}

fn refused(reason: &str, problem: &str) -> Refused<()> {
    Err(Box::new(json_of(StatusCode::FORBIDDEN, &json!({ "error_msg": problem, "reason": reason }))))
}

/// Both secrets of a session are needed: a page knows one, and only the browser the other.
const NO_COOKIE: &str = "the request has the token of a session and not its cookie; send both, or an API key";

fn ended() -> Box<AdminResponse> {
    Box::new(unauthorized("the session has ended"))
}
