//! The Admin API: from a request to its response. Start reading at [`AdminApi::answer`].

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName,
    HeaderValue, ORIGIN, SERVER, VARY,
};
use http::request::Parts;
use http::{Method, StatusCode};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::answer::{self, AdminResponse, Refused, json_of, text};
use super::audit::{AuditSink, AuditedCaller, AuditedRequest};
use super::context::{AdminContext, MOST_WAITS, ServedRevisions, StandaloneResources, check_wait};
use super::environments::{EnvironmentParts, Environments};
use super::host::{RequestHost, shorten};
use super::identity::{AdminMode, NodeIdentity, host_of, is_own_name};
use super::keys::{AdminKeys, Caller, KeyFault, bearer};
use super::lanes::{ClientPresence, RequestLanes};
use super::log_in::{KnownCaller, LogIns, cross_site, is_of_session};
use super::node_pages::{NodePage, NodePages, NodeStream, OpenedStream};
use super::oidc::{OidcLogIns, OidcParts};
use super::query::{Query, decoded_path};
use super::refusals::{NOT_FOR_VIEWERS, WRONG_KEY_PAUSE, refused_token, unauthorized};
use super::request::{
    AdminPeer, AdminRequest, BodyFault, MAX_BODY, MAX_CONFIGURATION, MAX_DRAFT, is_change, is_check, unreadable,
};
use super::tokens::AcceptedTokens;
use super::{
    configs, draft, environments, explain, file_mode, history, hubs, kinds, nodes, plugins, resources, settings, table,
    test_record, trace, validate,
};
use crate::document::{AdminKey, AdminRole};
use crate::hubs::Hubs;
use crate::stores::checker::ResourceChecker;
use crate::stores::draft::DraftFiles;
use crate::stores::file_resources::FileResources;
use crate::stores::live::LiveResources;
use crate::stores::writes::ResourceWriter;

/// The base path of APISIX's API.
const BASE: &str = "/apisix/admin";
/// The base path of what Apache APISIX does not have.
const OWN_BASE: &str = "/weir/v1";
/// The tool ADC reads the version here, and uses the features of that version of Apache APISIX.
const SERVED_BY: &str = concat!("Weir/", env!("CARGO_PKG_VERSION"), " APISIX/3.18.0");
const API_VERSION: HeaderName = HeaderName::from_static("x-api-version");
const METHODS: HeaderValue = HeaderValue::from_static("POST, GET, PUT, OPTIONS, DELETE, PATCH");

/// The components of an Admin API.
pub struct AdminParts {
    pub live: Arc<LiveResources>,
    /// The resources with their places, if they stand in files.
    pub files: Option<Arc<FileResources>>,
    /// The files themselves, if the resources stand in them.
    pub draft: Option<DraftFiles>,
    pub hubs: Arc<Hubs>,
    pub writer: ResourceWriter,
    pub checker: Arc<ResourceChecker>,
    pub keys: AdminKeys,
    /// Tokens that are accepted in place of keys.
    pub tokens: Option<AcceptedTokens>,
    /// The identity provider at which people log in.
    pub oidc: Option<OidcParts>,
    /// Other environments that the resources are compared with.
    pub environments: Option<EnvironmentParts>,
    /// Whether the node shows results of the lab.
    pub has_lab: bool,
    /// Host names that requests may have, besides addresses and names of this machine.
    pub hosts: Vec<Box<str>>,
    /// Origins of web pages that may read responses (CORS).
    pub origins: Vec<Box<str>>,
    /// Where the resources are. Those in memory are replaced as a whole, by `PUT /apisix/admin/configs`.
    pub mode: AdminMode,
    pub served: ServedRevisions,
    /// Whether browsers may log in.
    pub has_sessions: bool,
    /// Whether clients use TLS.
    pub is_tls: bool,
    pub node: NodeIdentity,
    pub pages: Arc<dyn NodePages>,
    /// The sink for lines of the audit log, if there is one.
    pub audit: Option<AuditSink>,
}

/// The path and query of a request.
struct AdminTarget {
    /// Whether it is below Weir's own base path, not APISIX's.
    is_own: bool,
    path: Vec<String>,
    query: Query,
}

/// Responds to requests.
pub struct AdminApi {
    handlers: Arc<AdminHandlers>,
    lanes: RequestLanes,
    origins: Vec<Box<str>>,
    audit: Option<AuditSink>,
    log_ins: LogIns,
}

/// Answers requests whose senders are known.
struct AdminHandlers {
    context: AdminContext,
    hubs: Arc<Hubs>,
    pages: Arc<dyn NodePages>,
    environments: Option<Environments>,
    mode: AdminMode,
}

impl AdminApi {
    /// # Errors
    /// If no threads can be started, or there are no random numbers.
    pub fn new(parts: AdminParts) -> io::Result<AdminApi> {
        let AdminParts { live, files, draft, hubs, writer, checker, keys, tokens, oidc, hosts, origins, mode, .. } =
            parts;
        let oidc = oidc.map(OidcLogIns::new).transpose();
        let oidc = oidc.map_err(|_| io::Error::other("the random number generator failed"))?;
        let standalone = (mode == AdminMode::Memory).then(StandaloneResources::default);
        let waits = Semaphore::new(MOST_WAITS);
        let has_draft = draft.is_some();
        let can_write_files = draft.as_ref().is_some_and(DraftFiles::may_write);
        let context = AdminContext { live, files, draft, writer, checker, served: parts.served, standalone, waits };
        let environments = parts.environments.map(|other| Environments::new(other, parts.node.name.clone()));
        let has_environments = environments.is_some();
        let handlers = Arc::new(AdminHandlers { context, hubs, pages: parts.pages, environments, mode });
        Ok(AdminApi {
            handlers,
            lanes: RequestLanes::start()?,
            origins,
            audit: parts.audit,
            log_ins: LogIns {
                sessions: parts.has_sessions.then(Arc::default),
                keys,
                tokens,
                oidc,
                hosts,
                is_tls: parts.is_tls,
                has_draft,
                can_write_files,
                has_lab: parts.has_lab,
                has_environments,
                mode,
                node: parts.node,
            },
        })
    }

    /// Checks a request in the order of Apache APISIX; the first failed check determines the response. `read` reads at most the
    /// given number of bytes of the body; it is not called for unauthenticated requests.
    pub async fn answer(
        &self,
        head: Parts,
        peer: AdminPeer,
        (client, host): (ClientPresence, Arc<dyn RequestHost>),
        read: impl AsyncFnOnce(usize) -> Result<Bytes, BodyFault>,
    ) -> AdminResponse {
        let origin = head.headers.get(ORIGIN).cloned();
        let is_head = head.method == Method::HEAD;
        let audited = self.audit.as_ref().map(|sink| (sink, AuditedRequest::of(&head, peer)));
        let mut answer = match self.refusal_of_origin(&head, peer, origin.as_ref()) {
            Some(refusal) => refusal,
            None => self.answer_own(head, peer, (client, host), read).await,
        };
        if let Some((sink, request)) = audited
            && let Some(line) = request.line(&mut answer)
        {
            sink(line);
        }
        if is_head {
            answer.body_mut().clear();
        }
        let headers = answer.headers_mut();
        headers.insert(SERVER, HeaderValue::from_static(SERVED_BY));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(origin) = origin.filter(|origin| self.is_allowed(origin)) {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(VARY, HeaderValue::from_static("Origin"));
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
            headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("3600"));
        }
        answer
    }

    fn is_allowed(&self, origin: &HeaderValue) -> bool {
        let origin = origin.to_str().unwrap_or_default().to_ascii_lowercase();
        self.origins.iter().any(|own| **own == *origin)
    }

    /// Refuses requests that a web page of another site makes a browser on this machine send, by this address (CSRF) or by a host
    /// name of its own that resolves to it (DNS rebinding).
    fn refusal_of_origin(&self, head: &Parts, peer: AdminPeer, origin: Option<&HeaderValue>) -> Option<AdminResponse> {
        if self.is_misdirected(head, peer) {
            let problem =
                "the Admin API does not accept this host name; use its IP address, or add the name to `admin.hosts`";
            return Some(answer::json_of(StatusCode::MISDIRECTED_REQUEST, &json!({ "error_msg": problem })));
        }
        let (origin, host) = (origin?, host_of(head));
        let is_same =
            origin.to_str().ok().and_then(|origin| origin.split_once("://")).is_some_and(|(_, own)| own == host);
        if is_same || self.is_allowed(origin) {
            return None;
        }
        if is_of_session(head) {
            return Some(cross_site());
        }
        let problem = "web pages of this origin may not use the Admin API; add the origin to `admin.origins`";
        Some(answer::json_of(StatusCode::FORBIDDEN, &json!({ "error_msg": problem })))
    }

    /// Whether a request has a host name that is none of this node.
    pub fn is_misdirected(&self, head: &Parts, peer: AdminPeer) -> bool {
        // Browsers cannot connect to a Unix socket.
        matches!(peer, AdminPeer::Tcp { local, .. } if !is_own_name(host_of(head), local.ip(), &self.log_ins.hosts))
    }

    async fn answer_own(
        &self,
        head: Parts,
        peer: AdminPeer,
        (client, host): (ClientPresence, Arc<dyn RequestHost>),
        read: impl AsyncFnOnce(usize) -> Result<Bytes, BodyFault>,
    ) -> AdminResponse {
        let below = |base: &str| {
            let rest = head.uri.path().strip_prefix(base).filter(|rest| rest.is_empty() || rest.starts_with('/'))?;
            Some((base == OWN_BASE, rest))
        };
        let Some((is_own, rest)) = below(BASE).or_else(|| below(OWN_BASE)) else { return answer::not_found() };
        let path: Vec<String> = rest.split('/').filter(|part| !part.is_empty()).map(decoded_path).collect();
        match head.method {
            Method::OPTIONS => return options(),
            // A ping; the response contains only the version.
            Method::HEAD if path.is_empty() => return text(StatusCode::OK, ""),
            Method::HEAD if path != ["configs"] => return answer::not_found(),
            Method::GET | Method::HEAD | Method::PUT | Method::POST | Method::PATCH | Method::DELETE => {}
            _ => return answer::other_method(&head.method, "GET, HEAD, PUT, POST, PATCH, DELETE, OPTIONS"),
        }
        let mut read = Some(read);
        if is_own
            && let Some(answer) = self.log_ins.answer(&head, &path, (peer, &*host), &mut read, self.revision()).await
        {
            return answer;
        }
        let Some(read) = read else { return answer::not_found() };
        let query = Query::parse(head.uri.query().unwrap_or_default());
        let known = match self.log_ins.caller_of_session(&head, peer) {
            Some(known) => known,
            None => self.caller(&query, &head.headers, peer, &*host).await,
        };
        let KnownCaller { caller, session, until_ms } = match known {
            Ok(known) => known,
            Err(refusal) => return *refusal,
        };
        host.recognize();
        let audited = AuditedCaller { name: caller.name.to_string(), role: caller.role };
        if is_own && path == ["session"] && head.method == Method::GET {
            let expires_ms = session.map(|(_, expires_ms)| expires_ms);
            return answer::json_of(StatusCode::OK, &self.log_ins.told(&caller, expires_ms, self.revision()));
        }
        let target = AdminTarget { is_own, path, query };
        let hold = self.log_ins.hold(session.as_ref(), until_ms);
        let mut answer = self.answer_known(head, target, KnownSender { caller, peer, client, host }, read).await;
        if let Some(stream) = answer.extensions_mut().remove::<NodeStream>() {
            answer.extensions_mut().insert(OpenedStream { stream, hold });
        }
        answer.extensions_mut().insert(audited);
        answer
    }

    /// The revision of the store.
    fn revision(&self) -> u64 {
        self.handlers.context.live.committed().revision
    }

    /// Authenticates by the key, or by the token if there is no key. If neither is configured, the API is on a Unix socket, and
    /// everyone who can connect to it is an admin.
    async fn caller(
        &self,
        query: &Query,
        headers: &HeaderMap,
        peer: AdminPeer,
        host: &dyn RequestHost,
    ) -> Refused<KnownCaller> {
        let LogIns { keys, tokens, .. } = &self.log_ins;
        if matches!(peer, AdminPeer::Unix) && keys.is_empty() && tokens.is_none() {
            return Ok(Caller::of_socket().into());
        }
        let fault = match keys.of_request(query, headers) {
            Ok(key) => return Ok(Caller::of_key(key).into()),
            Err(fault) => fault,
        };
        match (fault, tokens, bearer(headers)) {
            (KeyFault::Missing, Some(tokens), Some(token)) => {
                // The keys of the issuer may have to be fetched.
                host.pause();
                tokens.caller(token).await.map(KnownCaller::from).map_err(refused_token)
            }
            (KeyFault::Missing, ..) => Err(Box::new(unauthorized("missing apikey"))),
            (KeyFault::Wrong, ..) => {
                host.pause();
                sleep(WRONG_KEY_PAUSE).await;
                Err(Box::new(unauthorized("wrong apikey")))
            }
        }
    }

    async fn answer_known(
        &self,
        head: Parts,
        target: AdminTarget,
        sender: KnownSender,
        read: impl AsyncFnOnce(usize) -> Result<Bytes, BodyFault>,
    ) -> AdminResponse {
        let AdminTarget { is_own, path, query } = target;
        let KnownSender { caller, peer, client, host } = sender;
        if is_own && caller.role < least_role(&head.method, &path, self.log_ins.mode) {
            let problem = format!("the role {} may not use this", caller.role.name());
            return answer::json_of(StatusCode::FORBIDDEN, &json!({ "error_msg": problem }));
        }
        if !is_own && caller.role == AdminRole::Viewer && head.method != Method::GET && !is_check(&path) {
            return unauthorized(NOT_FOR_VIEWERS);
        }
        if head.method != Method::GET
            && let Err(refusal) = query.check().and_then(|()| check_wait(&query))
        {
            return *refusal;
        }
        let changes = is_change(&head.method, &path, &query);
        let lane = self.lanes.of(caller.role, changes);
        // Before the body is read, so that bodies are bounded as well.
        let place = match lane.place(&caller) {
            Ok(place) => place,
            Err(refusal) => return *refusal,
        };
        let limit = match head.method {
            // Clients of APISIX may send a body with these, which means nothing.
            Method::GET | Method::HEAD => MAX_BODY,
            _ if path == ["configs"] => MAX_CONFIGURATION,
            _ if is_own && path.first().is_some_and(|first| first == "draft") => MAX_DRAFT,
            _ => MAX_BODY,
        };
        let body = match read(limit).await {
            Ok(body) => body,
            Err(fault) => return unreadable(fault, limit),
        };
        let Parts { method, headers, uri, .. } = head;
        let presence = client.clone();
        let request = AdminRequest { method, path, query, headers, body, caller, peer, client, host };
        let handlers = Arc::clone(&self.handlers);
        let answering = async move {
            match is_own {
                true => handlers.route_own(&request, uri.query().unwrap_or_default()).await,
                false => handlers.route(&request).await,
            }
        };
        let mut answer = lane.answer(place, presence, answering).await;
        if changes && answer.status().is_success() {
            shorten(&mut answer);
        }
        answer
    }
}

/// The sender of a request, who was authenticated.
struct KnownSender {
    caller: Caller,
    peer: AdminPeer,
    client: ClientPresence,
    host: Arc<dyn RequestHost>,
}

impl AdminHandlers {
    async fn route_own(&self, request: &AdminRequest, query: &str) -> AdminResponse {
        let path = request.path();
        let answered = match (path.as_slice(), &request.method) {
            (["hubs", rest @ ..], _) => match request.caller.needs_all("the state of hubs") {
                Ok(()) => hubs::answer(&self.hubs, request, rest).await,
                Err(refusal) => Err(refusal),
            },
            (["table", list], &Method::GET) => table::answer(&self.context, request, list).await,
            (["explain"], &Method::POST) => explain::answer(&self.context, request),
            (["draft", rest @ ..], _) => draft::answer(&self.context, request, rest).await,
            (["environments", rest @ ..], _) => {
                environments::answer(&self.context, self.environments.as_ref(), request, rest).await
            }
            (["lab"] | ["lab", _], &Method::GET) => self.lab(request).await,
            (["settings"], &Method::GET) => settings::answer(&self.context, request),
            (["trace"], &Method::POST) => trace::answer(&*self.pages, request).await,
            (["records", "test"], &Method::POST) => test_record::answer(&*self.pages, request).await,
            (["explain" | "trace"] | ["records", "test"], method) => Ok(answer::other_method(method, "POST")),
            (["table", _], method) => Ok(answer::other_method(method, "GET")),
            (path, method) if is_page(path) && *method != Method::GET => Ok(answer::other_method(method, "GET")),
            (_, &Method::GET) => self.node_page(request, query),
            _ => Ok(hubs::no_such_path()),
        };
        answered.unwrap_or_else(|refused| *refused)
    }

    /// The results of the lab, one of them, or what differs in another one.
    async fn lab(&self, request: &AdminRequest) -> Refused<AdminResponse> {
        request.caller.needs_all("the results of the lab")?;
        let name = request.path.get(1).cloned();
        let other = request.query.get("with").map(str::to_owned);
        match self.pages.lab(name, other) {
            Some(answering) => Ok(answering.await),
            None => {
                let problem = "this node shows no results of the lab; configure `admin.lab`";
                Ok(answer::json_of(StatusCode::NOT_FOUND, &json!({ "error_msg": problem })))
            }
        }
    }

    /// A page about the node, or a stream, which the node opens.
    fn node_page(&self, request: &AdminRequest, query: &str) -> Refused<AdminResponse> {
        request.caller.needs_all("the state of the node")?;
        let accept = request.headers.get(ACCEPT).and_then(|value| value.to_str().ok());
        Ok(match self.pages.page(&request.path(), query, accept) {
            Some(NodePage::Whole(answer)) => answer,
            Some(NodePage::Stream(stream)) => {
                let mut answer = text(StatusCode::OK, "");
                answer.extensions_mut().insert(stream);
                answer
            }
            None => hubs::no_such_path(),
        })
    }

    async fn route(&self, request: &AdminRequest) -> AdminResponse {
        let (context, path) = (&self.context, request.path());
        if let Some(refusal) = context.files.as_ref().and_then(|files| file_mode::refusal(files, request)) {
            return refusal;
        }
        if self.mode == AdminMode::Kubernetes && file_mode::is_refused(request) {
            let problem = "the resources of this node are objects of a Kubernetes cluster; change them there";
            return json_of(StatusCode::CONFLICT, &json!({ "error_msg": problem }));
        }
        let answered = match (path.as_slice(), &request.method) {
            (["plugins", rest @ ..] | ["schema", "plugins", rest @ ..], method) => {
                Ok(plugins::answer(context.registry(), method, rest, &request.query))
            }
            (["schema", "validate", list], &Method::POST) => validate::one(list, context.registry(), request),
            (["schema", name], &Method::GET) => Ok(match kinds::schema(name) {
                Some(schema) => answer::json_of(StatusCode::OK, &schema),
                None => answer::wrong(format!("not found schema: {name}")),
            }),
            (["configs", "validate"], &Method::POST) => validate::lists(context, request),
            (["configs"], _) => configs::answer(context, request).await,
            (["nodes"], &Method::GET) => nodes::answer(context).await,
            (["nodes"] | ["schema", _], method) => Ok(answer::other_method(method, "GET")),
            (["history", rest @ ..], _) => history::answer(context, request, rest).await,
            (["schema", ..], _) => Ok(answer::json_of(StatusCode::NOT_FOUND, &json!({ "error_msg": "not found" }))),
            ([], _) => Ok(answer::not_found()),
            _ if context.standalone.is_some() && request.method != Method::GET => Ok(answer::not_found()),
            _ => Ok(versioned(resources::answer(context, request).await)),
        };
        answered.unwrap_or_else(|refused| *refused)
    }
}

/// Whether a path below `/weir/v1` is that of a page about the node, or of a stream.
fn is_page(path: &[&str]) -> bool {
    matches!(
        path,
        ["status" | "policies" | "records" | "metrics" | "certificates" | "tail" | "events" | "settings"]
            | ["metrics", "history"]
            | ["lab"]
            | ["lab", _]
    )
}

/// The role that a path below `/weir/v1` needs at least. A line of `tail` has the address of a client. A trace reaches routes that are
/// for this machine only, as an editor does who may change them.
fn least_role(method: &Method, path: &[String], mode: AdminMode) -> AdminRole {
    match (*method == Method::GET, path.first().map(String::as_str)) {
        // The files have the keys of the Admin API, and secrets that other roles may not see.
        (_, Some("draft")) => AdminRole::Admin,
        (true, Some("tail" | "environments")) => AdminRole::Editor,
        // With the key of this node, which may do more there than the caller may.
        (false, Some("environments")) => AdminRole::Admin,
        (true, _) => AdminRole::Viewer,
        (false, _) if is_check(path) => AdminRole::Viewer,
        (false, Some("trace")) if !mode.is_writable() => AdminRole::Admin,
        (false, _) => AdminRole::Editor,
    }
}

fn versioned(mut answer: AdminResponse) -> AdminResponse {
    answer.headers_mut().insert(API_VERSION, HeaderValue::from_static("v3"));
    answer
}

fn options() -> AdminResponse {
    let mut answer = text(StatusCode::OK, "");
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(
        ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static("X-API-KEY, Authorization, Content-Type, If-Match, If-None-Match"),
    );
    answer
}

/// The author name of a generated key in the history.
pub const GENERATED_KEY: &str = "generated";

/// The key that is generated for a node without keys.
pub fn generated_key(key: &str) -> AdminKey {
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, key.as_bytes());
    let hash = hash.as_ref().try_into().expect("SHA-256 has 32 bytes");
    AdminKey { name: GENERATED_KEY.into(), hash, role: AdminRole::Admin, scopes: Arc::default() }
}
