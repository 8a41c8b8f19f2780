//! The Admin API of a node: its sockets, its TLS settings and its keys. Connections are the business of the server, requests that
//! of the control plane.

mod console;
mod encoding;
mod oidc;
mod pages;
mod streams;
mod test_record;
mod tokens;
mod trace;
mod unix_socket;

use std::io;
use std::net::TcpListener;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, RETRY_AFTER, VARY};
use hyper::{Response, StatusCode};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio_rustls::TlsAcceptor;
use weir_control::Hubs;
use weir_control::admin::{
    AdminApi, AdminKeys, AdminMode, AdminParts, AdminPeer, AuditSink, BodyFault, EnvironmentParts, HasRoom,
    NodeIdentity, OpenedStream, PresentClient, RequestHost, ShortAnswer, TakenRoom, WaitForRoom, generated_key,
};
use weir_control::document::{AdminAddress, AdminKey, AdminSettings, AdminTls, DraftRight, NodeSettings, StoreKind};
use weir_control::stores::{
    DraftFiles, FileAccess, FileResources, LiveResources, ResourceChecker, ResourceWriter, data_directory, http_client,
};
use weir_gateway::DataPlane;
use weir_net::tls::{self, ClientDemand, ClientTerms, ClientTrust, Server, ServerTerms, Versions};
use weir_telemetry::log_file::LineSender;
use weir_telemetry::process;

use super::figures::{FigureThread, Figures};
use super::key_file;
use super::lab::LabFolder;
use super::listening::ClientListeners;
use super::server::bounds::ServerBounds;
use super::server::{
    NodeServer, ReceivedBodyFault, RequestProgress, ServerAnswer, ServerOptions, ServerPeer, ServerRequest, ServerTls,
    whole,
};
use super::server_tally::ServerTally;
use super::state::NodeState;
use super::status;
use crate::exit::ExitFailure;
use crate::say::{say, say_error};
use console::ConsoleFiles;
use encoding::AnswerCoding;
use pages::OwnPages;
use test_record::OwnTestRecords;
use trace::OwnTraces;
use unix_socket::{SocketFile, UnixSocket};

/// Half of the connections for each client is enough for tools that send many requests at a time. Each tab of a console has a stream,
/// and another one while it shows requests.
pub(super) const BOUNDS: ServerBounds = ServerBounds { connections: 128, streams: 32 };
/// Smaller responses are sent as they are, in bytes.
const LEAST_COMPRESSED: usize = 1 << 10;
/// The most responses that are compressed at a time; others are sent as they are.
const COMPRESSING: usize = 2;
/// The most intermediate certificates between a client's certificate and the authority.
const CLIENT_DEPTH: usize = 2;
/// The key of a node that has none configured.
const KEY_FILE: &str = "admin.key";
const KEY_BYTES: usize = 24;

/// The running server. Dropping it stops accepting, finishes the requests in progress, and removes the Unix socket.
pub(super) struct AdminServer {
    _server: NodeServer,
    _figures: Option<FigureThread>,
    socket_file: Option<SocketFile>,
}

/// Answers requests to the admin address.
struct AdminService {
    api: Arc<AdminApi>,
    /// The console, if the address serves it.
    console: Option<ConsoleFiles>,
    figures: Option<Arc<Figures>>,
    /// The right to compress a response.
    compressing: Semaphore,
}

/// The listening sockets of the Admin API.
pub(super) struct AdminSockets {
    tcp: Vec<TcpListener>,
    unix: Option<UnixSocket>,
}

/// Adds the Unix socket to the sockets, if it is configured. An error has been logged when this returns.
pub(super) fn sockets(
    tcp: Vec<TcpListener>,
    settings: &NodeSettings,
    beside: &Path,
    backlog: i32,
) -> Result<AdminSockets, ExitFailure> {
    let Some(AdminAddress::Unix(path)) = settings.admin.as_ref().map(|admin| &admin.listen) else {
        return Ok(AdminSockets { tcp, unix: None });
    };
    let path = beside.join(path);
    let unix = UnixSocket::open(&path, backlog).map_err(|error| {
        say_error!("cannot listen on unix:{}: {error}", path.display());
        ExitFailure::Listen
    })?;
    Ok(AdminSockets { tcp, unix: Some(unix) })
}

/// What the Admin API of a node uses: the store's resources, the hubs, the audit log and the counters of the server.
pub(super) struct NodeResources {
    pub live: Arc<LiveResources>,
    /// The resources with their places, if they stand in files.
    pub files: Option<Arc<FileResources>>,
    pub hubs: Arc<Hubs>,
    pub writer: ResourceWriter,
    pub checker: Arc<ResourceChecker>,
    pub audit: Option<LineSender>,
    pub tally: Arc<ServerTally>,
    pub state: Arc<NodeState>,
    /// The listeners for clients.
    pub listeners: Arc<ClientListeners>,
}

/// Starts the Admin API, if it is configured. An error has been logged when this returns.
pub(super) fn start(
    sockets: AdminSockets,
    settings: &NodeSettings,
    file: &Path,
    resources: NodeResources,
    gateway: &Arc<DataPlane>,
) -> Result<Option<AdminServer>, ExitFailure> {
    let Some(admin) = &settings.admin else { return Ok(None) };
    let failed = |problem: String| {
        say_error!("{problem}");
        ExitFailure::System
    };
    let beside = file.parent().unwrap_or(Path::new(""));
    let tls = tls(admin, beside).map_err(failed)?;
    let (keys, key_file) = keys(admin, settings, beside).map_err(failed)?;
    let tokens = admin.tokens.as_ref().map(|tokens| tokens::accepted(tokens, settings, beside));
    let tokens = tokens.transpose().map_err(failed)?;
    let oidc = admin.oidc.as_ref().map(|oidc| oidc::parts(oidc, settings, beside)).transpose().map_err(failed)?;
    let figures = admin.console.then(|| Figures::start(Arc::clone(&resources.state))).transpose();
    let figures = figures.map_err(|error| failed(format!("the thread of figures cannot be started: {error}")))?;
    let (figures, figure_thread) = figures.unzip();
    let lab = admin.lab.as_ref().map(|folder| LabFolder::new(beside.join(folder)));
    let (traces, test_records) = (OwnTraces::new(resources.listeners), OwnTestRecords::default());
    let pages = OwnPages { state: resources.state, figures: figures.clone(), traces, test_records, lab };
    let environments = environments(admin, settings, beside).map_err(failed)?;
    let gateway = Arc::downgrade(gateway);
    let api = AdminApi::new(AdminParts {
        live: resources.live,
        draft: resources.files.as_ref().and(draft(admin, file)),
        files: resources.files,
        hubs: resources.hubs,
        writer: resources.writer,
        checker: resources.checker,
        keys: AdminKeys::new(keys),
        tokens,
        oidc,
        environments,
        has_lab: admin.lab.is_some(),
        hosts: admin.hosts.clone(),
        origins: admin.origins.clone(),
        mode: mode(settings),
        has_sessions: admin.console,
        is_tls: tls.is_some(),
        node: NodeIdentity { name: machine_name(), started_ms: started_ms(), key_file },
        pages: Arc::new(pages),
        audit: resources.audit.map(|log| Box::new(move |line| log.line(line)) as AuditSink),
        served: Box::new(move || gateway.upgrade().map(|gateway| gateway.revisions()).unwrap_or_default()),
    });
    let server = api.and_then(|api| {
        let service = AdminService {
            api: Arc::new(api),
            console: admin.console.then(ConsoleFiles::default),
            figures,
            compressing: Semaphore::new(COMPRESSING),
        };
        AdminServer::start(sockets, service, tls, resources.tally, figure_thread)
    });
    server.map(Some).map_err(|error| failed(format!("a thread or its async runtime cannot be started: {error}")))
}

impl AdminServer {
    fn start(
        sockets: AdminSockets,
        service: AdminService,
        tls: Option<TlsAcceptor>,
        tally: Arc<ServerTally>,
        figures: Option<FigureThread>,
    ) -> io::Result<Self> {
        let AdminSockets { tcp, unix } = sockets;
        let (unix, socket_file) = unix.map(|UnixSocket { listener, file }| (listener, file)).unzip();
        let tls = tls.map(ServerTls::new);
        let options = ServerOptions { name: "admin", title: "the Admin API", bounds: BOUNDS, tcp, unix, tls, tally };
        let service = Arc::new(service);
        let server =
            NodeServer::start(options, Arc::new(move |request| Box::pin(Arc::clone(&service).answer(request))))?;
        Ok(AdminServer { _server: server, _figures: figures, socket_file })
    }

    /// Renames the Unix socket to its final name. An error has been logged when this returns.
    pub(super) fn show_socket(&self) -> Result<(), ExitFailure> {
        let Some(file) = &self.socket_file else { return Ok(()) };
        file.show().map_err(|error| {
            say_error!("cannot listen on {file}: {error}");
            ExitFailure::Listen
        })
    }
}

/// The TLS server configuration, from the files named in the settings.
fn tls(settings: &AdminSettings, beside: &Path) -> Result<Option<TlsAcceptor>, String> {
    let Some(AdminTls { cert, key, ca }) = &settings.tls else { return Ok(None) };
    let read = |name: &str| {
        let path = beside.join(name);
        std::fs::read(&path).map_err(|error| format!("admin.tls: {} cannot be read: {error}", path.display()))
    };
    let wrong = |name: &str, error: &dyn std::fmt::Display| format!("admin.tls: `{name}` cannot be used: {error}");
    let chain = tls::certificates(&read(cert)?).map_err(|error| wrong(cert, &error))?;
    let certified = tls::certified(chain, &read(key)?).map_err(|error| wrong(key, &error))?;
    let authorities = match ca {
        Some(ca) => Some(tls::certificates(&read(ca)?).map_err(|error| wrong(ca, &error))?),
        None => None,
    };
    let clients = authorities.as_ref();
    let clients = clients.map(|authorities| ClientTerms {
        trust: ClientTrust::Authorities(authorities, CLIENT_DEPTH),
        demand: ClientDemand::Valid,
    });
    let terms = ServerTerms { keys: vec![certified], versions: Versions::ALL, clients, protocols: &["h2", "http/1.1"] };
    let server = Server::new(terms).map_err(|error| wrong(cert, &error))?;
    Ok(Some(TlsAcceptor::from(Arc::clone(server.config()))))
}

fn admin_peer(peer: ServerPeer) -> AdminPeer {
    match peer {
        ServerPeer::Tcp { local, remote } => AdminPeer::Tcp { local, remote },
        ServerPeer::Unix => AdminPeer::Unix,
    }
}

impl AdminService {
    async fn answer(self: Arc<Self>, request: ServerRequest) -> Response<ServerAnswer> {
        if let Some(console) = &self.console {
            let is_misdirected = self.api.is_misdirected(&request.head, admin_peer(request.peer));
            if !is_misdirected && let Some(answer) = console.answer(&request.head).await {
                return whole(answer);
            }
        }
        let progress = Arc::clone(&request.progress);
        let coding = AnswerCoding::accepted(&request.head.headers);
        let mut answer = answer(Arc::clone(&self.api), request).await;
        if let Some(opened) = answer.extensions_mut().remove::<OpenedStream>() {
            return self.stream(answer, opened, &progress);
        }
        server_answer(self.compressed(answer, coding).await)
    }

    /// Opens a stream that was allowed.
    fn stream(
        &self,
        answer: Response<Bytes>,
        opened: OpenedStream,
        progress: &RequestProgress,
    ) -> Response<ServerAnswer> {
        let Some(permit) = progress.open_stream() else {
            let problem = format!(
                "there are as many streams as there may be: {} of the node, half of them of one client address; close another tab",
                BOUNDS.streams
            );
            let body = serde_json::json!({ "error_msg": problem });
            let mut refused = status::json(StatusCode::SERVICE_UNAVAILABLE, &body);
            refused.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
            return whole(refused);
        };
        let Some((source, last_words)) = streams::source(opened, self.figures.as_ref()) else {
            return whole(status::json(StatusCode::NOT_FOUND, &serde_json::json!({ "error_msg": "not found" })));
        };
        let mut answer = answer.map(|_| ServerAnswer::Stream { permit, source, last_words });
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
        answer
    }

    /// The response in a coding that its client accepts, if that makes it smaller.
    async fn compressed(&self, answer: Response<Bytes>, coding: Option<AnswerCoding>) -> Response<Bytes> {
        let (mut head, plain) = answer.into_parts();
        if plain.len() >= LEAST_COMPRESSED {
            head.headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
        }
        // What is sent in place of a change's response is not compressed, and has the same head.
        let is_replaceable = head.extensions.get::<ShortAnswer>().is_some();
        let wanted = coding.filter(|_| plain.len() >= LEAST_COMPRESSED && !is_replaceable);
        let Some((coding, _permit)) = wanted.zip(self.compressing.try_acquire().ok()) else {
            return Response::from_parts(head, plain);
        };
        let encoding = plain.clone();
        // Compression takes longer than a request may delay others.
        let encoded = spawn_blocking(move || coding.encode(&encoding, false)).await;
        match encoded {
            Ok(Ok(encoded)) if encoded.len() < plain.len() => {
                // The room was that of the text, which is dropped here.
                head.extensions.remove::<HasRoom>();
                head.headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
                Response::from_parts(head, encoded.into())
            }
            _ => Response::from_parts(head, plain),
        }
    }
}

/// The keys, and the file with the one that is generated if there are none.
fn keys(
    admin: &AdminSettings,
    settings: &NodeSettings,
    beside: &Path,
) -> Result<(Vec<AdminKey>, Option<String>), String> {
    let mut keys = admin.keys.clone();
    let has_others = admin.tokens.is_some() || admin.oidc.is_some();
    if !keys.is_empty() || has_others || !matches!(admin.listen, AdminAddress::Tcp(_)) {
        return Ok((keys, None));
    }
    let directory = data_directory(settings, beside);
    let (key, path) = key_file::generated(&directory, KEY_FILE, KEY_BYTES).map_err(|error| {
        format!("the key of the Admin API cannot be read or generated in {}: {error}", directory.display())
    })?;
    say!("the key of the Admin API is in {}", path.display());
    keys.push(generated_key(&key));
    Ok((keys, Some(path.display().to_string())))
}

/// The files that resources stand in, if admins may change them.
fn draft(admin: &AdminSettings, file: &Path) -> Option<DraftFiles> {
    admin.draft.map(|right| DraftFiles::new(file, right == DraftRight::Write))
}

/// The other environments, with the client that asks them; `None` if there are none. No request is sent yet.
fn environments(
    admin: &AdminSettings,
    settings: &NodeSettings,
    beside: &Path,
) -> Result<Option<EnvironmentParts>, String> {
    if admin.environments.is_empty() {
        return Ok(None);
    }
    let client = http_client(settings, beside, &FileAccess::limited());
    let client = client.map_err(|stall| format!("ssl_trusted_certificate cannot be read: {stall}"))?;
    Ok(Some(EnvironmentParts { settings: admin.environments.clone(), client }))
}

fn mode(settings: &NodeSettings) -> AdminMode {
    match settings.store.as_ref().map(|store| &store.kind) {
        Some(StoreKind::Standalone) => AdminMode::Memory,
        Some(StoreKind::Etcd(_)) => AdminMode::Etcd,
        Some(StoreKind::Kubernetes(_) | StoreKind::Controller(_)) => AdminMode::Kubernetes,
        Some(StoreKind::Embedded { .. }) => AdminMode::Embedded,
        None => AdminMode::File,
    }
}

fn machine_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// When the process started, in milliseconds since 1970.
fn started_ms() -> u64 {
    process::start_time().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Runs in a task of its own, which goes on if the client disconnects: a change that is being made is to be in the audit log as well,
/// and in the state of standalone mode. What changes nothing ends.
async fn answer(api: Arc<AdminApi>, request: ServerRequest) -> Response<Bytes> {
    let ServerRequest { head, body, peer, progress, .. } = request;
    let read = async move |limit: usize| {
        body.read(limit).await.map_err(|fault| match fault {
            ReceivedBodyFault::TooLarge => BodyFault::TooLarge,
            ReceivedBodyFault::Incomplete => BodyFault::Incomplete,
            ReceivedBodyFault::TimedOut => BodyFault::TimedOut,
            ReceivedBodyFault::NoRoom => BodyFault::NoRoom,
        })
    };
    let (_waiting, client) = PresentClient::new();
    let answering = tokio::spawn(async move {
        let host: Arc<dyn RequestHost> = Arc::new(HostedRequest(progress));
        api.answer(head, admin_peer(peer), (client, host), read).await
    });
    match answering.await {
        Ok(answer) => answer,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The process is ending.
            Err(_) => {
                let mut answer = Response::default();
                *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                answer
            }
        },
    }
}

/// A request to the Admin API, as its server knows it.
struct HostedRequest(Arc<RequestProgress>);

impl RequestHost for HostedRequest {
    fn pause(&self) {
        self.0.pause();
    }

    fn recognize(&self) {
        self.0.recognize();
    }

    fn room(&self, bytes: usize) -> WaitForRoom<'_> {
        Box::pin(async move {
            if let Some(room) = self.0.try_answer_room(bytes) {
                return Some(Box::new(room) as TakenRoom);
            }
            self.0.pause();
            let room = self.0.answer_room(bytes).await;
            self.0.recognize();
            Some(Box::new(room?) as TakenRoom)
        })
    }
}

fn server_answer(answer: Response<Bytes>) -> Response<ServerAnswer> {
    let (has_room, short) = (answer.extensions().get::<HasRoom>().is_some(), answer.extensions().get::<ShortAnswer>());
    match short.cloned() {
        Some(ShortAnswer(short)) => answer.map(|whole| ServerAnswer::Change { whole, short }),
        None if has_room => answer.map(ServerAnswer::WithRoom),
        None => whole(answer),
    }
}
