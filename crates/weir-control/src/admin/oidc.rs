//! Log-in at an identity provider, by OpenID Connect: authorization code flow with PKCE, which ends at the node.
//!
//! 1. A page of the console makes a secret, keeps it in its tab, and sends the browser to `session/oidc` with the hash of it. The node
//!    sends the browser to the provider, with a cookie that binds the log-in to this browser (`pending`).
//! 2. The provider sends the browser back to `session/oidc/callback` with a code. The node exchanges the code, verifies the ID token,
//!    and sends the browser to the console with a ticket in the fragment of the URL, which no server and no other page sees (`tickets`).
//! 3. The page logs in with the ticket and its secret, as others do with a key. So both secrets of the session come as in any log-in,
//!    and neither is ever part of a URL.
//!
//! The ticket is in no cookie: a server on another port of the host, which gets all cookies, can begin a log-in with a secret of its own
//! and have the victim's browser complete it.

mod page;
mod pending;
mod tickets;

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;

use http::header::{HeaderValue, LOCATION};
use http::request::Parts;
use http::{Response, StatusCode};
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use weir_client::ServiceUrl;

use super::answer::{AdminResponse, Refused, json_of, refuse};
use super::audit::AuditedRefusal;
use super::cookies::{CookieSite, HostCookie};
use super::host::RequestHost;
use super::identity::host_of;
use super::query::Query;
use super::refusals::{refused_session, too_often};
use super::sessions::{AdminSessions, SessionRefusal};
use super::tokens::{TokenCaller, TokenFault, caller_of_claims, subject};
use crate::document::AdminOidc;
use crate::stores::live::now_ms;
use page::page_of;
use pending::{PendingLogIn, PendingLogIns};
use tickets::LogInTickets;

/// Log-ins that have begun in a browser. A `Strict` cookie would not come back from the provider.
const PENDING: HostCookie = HostCookie { name: "__Host-weir-oidc", same_site: CookieSite::Lax };
/// The most codes that are exchanged at a time. Anyone can come back with a code.
const MOST_EXCHANGES: usize = 8;
/// Where a browser goes with its ticket, from the path of the callback. The query tells the page to log in, and the ticket follows.
const CONSOLE: &str = "../../../../console/?oidc#";

/// The secrets of a log-in that has begun.
#[derive(Clone, Copy, Debug)]
pub struct PendingSecrets<'a> {
    pub state: &'a str,
    pub nonce: &'a str,
    /// The code verifier of PKCE.
    pub verifier: &'a str,
}

/// What a browser has brought back from the provider.
#[derive(Clone, Copy, Debug)]
pub struct BroughtCode<'a> {
    pub code: &'a str,
    /// The parameter `iss` (RFC 9207).
    pub issuer: Option<&'a str>,
}

/// The future of the URL that a browser is sent to.
pub type BeginningLogIn<'a> = Pin<Box<dyn Future<Output = Result<String, TokenFault>> + Send + 'a>>;
/// The future of the claims of a user who has logged in.
pub type FinishingLogIn<'a> = Pin<Box<dyn Future<Output = Result<Map<String, Value>, TokenFault>> + Send + 'a>>;

/// The future of the URL at which a user logs out at the provider, if there is one.
pub type LeavingProvider<'a> = Pin<Box<dyn Future<Output = Result<Option<String>, TokenFault>> + Send + 'a>>;

/// Asks the provider.
pub trait LogInProvider: Send + Sync {
    fn begin<'a>(&'a self, secrets: PendingSecrets<'a>) -> BeginningLogIn<'a>;

    /// Exchanges a code, and verifies the ID token that comes for it.
    fn finish<'a>(&'a self, brought: BroughtCode<'a>, secrets: PendingSecrets<'a>) -> FinishingLogIn<'a>;

    /// Where a browser is sent to log out, from where it goes on to `after`.
    fn leave<'a>(&'a self, after: &'a str) -> LeavingProvider<'a>;
}

/// The identity provider at which people log in, and the settings.
pub struct OidcParts {
    pub settings: AdminOidc,
    pub provider: Box<dyn LogInProvider>,
}

/// Log-ins at the identity provider.
pub(super) struct OidcLogIns {
    settings: AdminOidc,
    provider: Box<dyn LogInProvider>,
    /// The address that the provider sends browsers back to.
    redirect_uri: ServiceUrl,
    pending: PendingLogIns,
    tickets: LogInTickets,
    exchanges: Semaphore,
}

impl OidcLogIns {
    pub(super) fn new(parts: OidcParts) -> Result<OidcLogIns, SessionRefusal> {
        let OidcParts { settings, provider } = parts;
        Ok(OidcLogIns {
            redirect_uri: ServiceUrl::parse(&settings.redirect_uri).expect("the settings were read as a URL"),
            pending: PendingLogIns::new()?,
            tickets: LogInTickets::default(),
            exchanges: Semaphore::new(MOST_EXCHANGES),
            settings,
            provider,
        })
    }

    /// What the log-in page has to know.
    pub(super) fn hint(&self) -> Value {
        json!({ "name": self.settings.name, "console": self.console() })
    }

    /// A refusal as a page.
    pub(super) fn page_of(&self, refusal: AdminResponse) -> AdminResponse {
        page_of(refusal, &self.console())
    }

    /// Sends a browser to the provider.
    pub(super) async fn begin(&self, head: &Parts, host: &dyn RequestHost) -> Refused<AdminResponse> {
        self.check_address(head)?;
        let query = Query::parse(head.uri.query().unwrap_or_default());
        let is_hash = |page: &&str| page.len() == 64 && page.bytes().all(|byte| byte.is_ascii_hexdigit());
        let Some(page) = query.get("page").filter(is_hash) else {
            return refuse("a log-in begins on the log-in page of the console");
        };
        // The metadata of the provider may have to be fetched.
        host.pause();
        let begun = self.pending.begin(page).map_err(refused_session)?;
        let (nonce, verifier) = self.pending.secrets(&begun);
        let secrets = PendingSecrets { state: &begun.state, nonce: &nonce, verifier: &verifier };
        let location = self.provider.begin(secrets).await.map_err(|fault| self.refused(fault, None))?;
        let mut answer = redirect(StatusCode::FOUND, &location)?;
        let mut log_ins = self.pending.of_cookie(PENDING.value(&head.headers));
        log_ins.push(begun);
        PENDING.set(&mut answer, &self.pending.cookie(&log_ins), pending::LONGEST);
        Ok(answer)
    }

    /// The provider has sent a browser back: exchanges the code, and sends the browser to the console with a ticket.
    pub(super) async fn finish(
        &self,
        head: &Parts,
        host: &dyn RequestHost,
        (sessions, address): (&AdminSessions, Option<IpAddr>),
    ) -> Refused<AdminResponse> {
        self.check_address(head)?;
        let query = Query::parse(head.uri.query().unwrap_or_default());
        let Some(state) = query.get("state") else { return refuse("the response of the provider has no `state`") };
        let mut log_ins = self.pending.of_cookie(PENDING.value(&head.headers));
        let own = log_ins.iter().position(|log_in| log_in.state == state).map(|at| log_ins.remove(at));
        let Some(log_in) = own else {
            return Err(forbidden(
                "no log-in of this browser has this state, or it began more than 10 minutes ago; log in again",
            ));
        };
        let _permit = self.exchanges.try_acquire().map_err(|_| busy())?;
        // A code costs requests to the provider, and whether it is right is known only then.
        sessions.take_log_in(address).map_err(|wait| Box::new(too_often(wait)))?;
        host.pause();
        let ended = match self.pending.take(state) {
            true => self.claims(&query, &log_in).await.and_then(|claims| self.caller(&claims)),
            false => Err(forbidden("this log-in has ended already; log in again")),
        };
        let ticket = ended.and_then(|caller| self.tickets.give(&log_in.page, caller).map_err(refused_session));
        let answered = ticket.and_then(|ticket| {
            let answer = redirect(StatusCode::SEE_OTHER, &format!("{CONSOLE}{ticket}"))?;
            sessions.give_back_log_in(address);
            Ok(answer)
        });
        let (mut answer, is_refused) = match answered {
            Ok(answer) => (answer, false),
            Err(refusal) => {
                // That the provider is away is not the user's fault.
                if refusal.status() == StatusCode::SERVICE_UNAVAILABLE {
                    sessions.give_back_log_in(address);
                }
                (*refusal, true)
            }
        };
        match log_ins.is_empty() {
            true => PENDING.clear(&mut answer),
            false => PENDING.set(&mut answer, &self.pending.cookie(&log_ins), pending::LONGEST),
        }
        if is_refused { Err(Box::new(answer)) } else { Ok(answer) }
    }

    /// Whose ticket this is, if it comes with what the page keeps that began the log-in.
    pub(super) fn redeem(&self, ticket: &str, kept: &str) -> Option<TokenCaller> {
        self.tickets.take(ticket, kept)
    }

    /// Where the browser of a user who has logged out goes, to log out at the provider as well; `None` if it stays here, also if the
    /// provider cannot be asked.
    pub(super) async fn leave(&self, user: &TokenCaller) -> Option<String> {
        let is_own = self.settings.end_session && user.caller.name.starts_with(NAMED_BY);
        if !is_own {
            return None;
        }
        self.provider.leave(&self.console()).await.ok().flatten()
    }

    /// The claims of the user, by the response of the provider.
    async fn claims(&self, query: &Query, log_in: &PendingLogIn) -> Refused<Map<String, Value>> {
        if let Some(error) = query.get("error") {
            let is_code = error.len() <= 64 && error.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            let told = if is_code { format!(": {error}") } else { String::new() };
            return Err(forbidden(&format!("the provider has refused the log-in{told}")));
        }
        let Some(code) = query.get("code") else { return refuse("the response of the provider has no `code`") };
        let (nonce, verifier) = self.pending.secrets(log_in);
        let secrets = PendingSecrets { state: &log_in.state, nonce: &nonce, verifier: &verifier };
        let brought = BroughtCode { code, issuer: query.get("iss") };
        self.provider.finish(brought, secrets).await.map_err(|fault| self.refused(fault, None))
    }

    fn caller(&self, claims: &Map<String, Value>) -> Refused<TokenCaller> {
        let caller = caller_of_claims(&self.settings.roles, claims, NAMED_BY);
        let caller = caller.map_err(|fault| self.refused(fault, subject(claims)))?;
        let until_ms = now_ms().saturating_add(self.settings.session_lifetime.as_millis() as u64);
        Ok(TokenCaller { caller, until_ms })
    }

    fn refused(&self, fault: TokenFault, who: Option<String>) -> Box<AdminResponse> {
        let (status, problem) = match fault {
            TokenFault::Invalid(problem) => (StatusCode::FORBIDDEN, problem),
            TokenFault::Unverifiable(problem) => {
                (StatusCode::SERVICE_UNAVAILABLE, format!("the provider cannot be asked: {problem}"))
            }
            TokenFault::NoRole => {
                let claim = &self.settings.roles.claim;
                let who = who.as_deref().unwrap_or("this user");
                (
                    StatusCode::FORBIDDEN,
                    format!(
                        "the provider knows {who}, but no value of the claim `{claim}` gives a role here; \
                         `admin.oidc.roles.map` has the values that do"
                    ),
                )
            }
        };
        let mut answer = json_of(status, &json!({ "error_msg": problem }));
        let who = who.map(|who| format!("{NAMED_BY}{who}"));
        answer.extensions_mut().insert(AuditedRefusal { who, reason: problem });
        Box::new(answer)
    }

    /// Refuses a browser at another address than the one that it comes back to, where it would not have its cookie.
    fn check_address(&self, head: &Parts) -> Refused<()> {
        let own = self.redirect_uri.origin();
        let scheme = if own.is_https { "https" } else { "http" };
        let asked = ServiceUrl::parse(&format!("{scheme}://{}", host_of(head)));
        if asked.is_ok_and(|asked| asked.origin() == own) {
            return Ok(());
        }
        let problem = format!("log-ins at the provider begin at {}, the address in `redirect_uri`", self.console());
        Err(Box::new(json_of(StatusCode::MISDIRECTED_REQUEST, &json!({ "error_msg": problem }))))
    }

    /// The console at the address that browsers come back to.
    fn console(&self) -> String {
        // As browsers write it: without the usual port, and in lower case.
        let origin = self.redirect_uri.origin();
        let (scheme, usual) = if origin.is_https { ("https", 443) } else { ("http", 80) };
        let host = if origin.host.contains(':') { format!("[{}]", origin.host) } else { origin.host.to_string() };
        let port = if origin.port == usual { String::new() } else { format!(":{}", origin.port) };
        format!("{scheme}://{host}{port}/console/")
    }
}

/// Distinguishes the names of users from names of keys and of callers with tokens.
const NAMED_BY: &str = "oidc:";

fn forbidden(problem: &str) -> Box<AdminResponse> {
    Box::new(json_of(StatusCode::FORBIDDEN, &json!({ "error_msg": problem })))
}

fn busy() -> Box<AdminResponse> {
    let problem = "as many log-ins end as may at a time; reload this page in a few seconds";
    Box::new(json_of(StatusCode::SERVICE_UNAVAILABLE, &json!({ "error_msg": problem })))
}

fn redirect(status: StatusCode, location: &str) -> Refused<AdminResponse> {
    let location = HeaderValue::from_str(location);
    let location = location.map_err(|_| {
        let problem = "the metadata of the provider: `authorization_endpoint` is not a URL";
        Box::new(json_of(StatusCode::SERVICE_UNAVAILABLE, &json!({ "error_msg": problem })))
    })?;
    let mut answer = Response::default();
    *answer.status_mut() = status;
    answer.headers_mut().insert(LOCATION, location);
    Ok(answer)
}
