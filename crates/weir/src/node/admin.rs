//! The listener of the Admin API: sockets, TLS and connections. Requests are handled by the control plane.
//!
//! It runs on a separate thread, so that it delays no worker.

mod key_file;
mod tokens;
mod unix_socket;

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::warn;
use weir_control::Hubs;
use weir_control::admin::{
    AdminApi, AdminKeys, AdminParts, AdminPeer, AuditSink, BodyFault, WaitingClient, generated_key,
};
use weir_control::document::{AdminAddress, AdminSettings, AdminTls, NodeSettings, StoreKind};
use weir_control::stores::{LiveResources, ResourceChecker, ResourceWriter, data_directory};
use weir_gateway::DataPlane;
use weir_net::tls::{self, ClientTerms, Server, ServerTerms, Versions};
use weir_telemetry::log_file::LineSender;

use crate::exit::ExitFailure;
use crate::node::PLUGINS;
use crate::say::say;
use unix_socket::{SocketFile, UnixSocket};

/// The most connections served at a time. Others wait in the listening socket's backlog.
const CONNECTIONS: usize = 128;
/// A connection without a request for this long is closed.
const IDLE: Duration = Duration::from_secs(60);
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The time limit for receiving a body.
const BODY: Duration = Duration::from_secs(60);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long responses in progress may take when the server is dropped.
const FINISH: Duration = Duration::from_secs(1);
/// The most intermediate certificates between a client's certificate and the authority.
const CLIENT_DEPTH: usize = 2;

/// The running server. Dropping it stops accepting, and finishes the requests in progress.
pub struct AdminServer {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    socket_file: Option<SocketFile>,
}

/// The listening sockets of the Admin API.
pub struct AdminSockets {
    tcp: Vec<TcpListener>,
    unix: Option<UnixSocket>,
}

/// Adds the Unix socket to the sockets, if it is configured. An error has been logged when this returns.
pub fn sockets(
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
        say!("cannot listen on unix:{}: {error}", path.display());
        ExitFailure::Listen
    })?;
    Ok(AdminSockets { tcp, unix: Some(unix) })
}

/// The store's resources and the hubs of a node.
pub struct NodeResources {
    pub live: Arc<LiveResources>,
    pub hubs: Arc<Hubs>,
    pub writer: ResourceWriter,
    pub checker: Arc<ResourceChecker>,
}

/// Starts the Admin API, if it is configured. An error has been logged when this returns.
pub fn start(
    sockets: AdminSockets,
    settings: &NodeSettings,
    file: &Path,
    resources: NodeResources,
    gateway: &Arc<DataPlane>,
    audit: Option<LineSender>,
) -> Result<Option<AdminServer>, ExitFailure> {
    let Some(admin) = &settings.admin else { return Ok(None) };
    let failed = |problem: String| {
        say!("{problem}");
        ExitFailure::System
    };
    let beside = file.parent().unwrap_or(Path::new(""));
    let tls = tls(admin, beside).map_err(failed)?;
    let mut keys = admin.keys.clone();
    if keys.is_empty() && admin.tokens.is_none() && matches!(admin.listen, AdminAddress::Tcp(_)) {
        let directory = data_directory(settings, beside);
        let (key, path) = key_file::generated(&directory).map_err(|error| {
            failed(format!("the generated key of the Admin API cannot be stored in {}: {error}", directory.display()))
        })?;
        say!("the key of the Admin API is in {}", path.display());
        keys.push(generated_key(&key));
    }
    let tokens = admin.tokens.as_ref().map(|tokens| tokens::accepted(tokens, settings, beside));
    let tokens = tokens.transpose().map_err(failed)?;
    let is_standalone = settings.store.as_ref().is_some_and(|store| store.kind == StoreKind::Standalone);
    let gateway = Arc::downgrade(gateway);
    let api = AdminApi::new(AdminParts {
        live: resources.live,
        hubs: resources.hubs,
        writer: resources.writer,
        checker: resources.checker,
        registry: PLUGINS,
        keys: AdminKeys::new(keys),
        tokens,
        hosts: admin.hosts.clone(),
        origins: admin.origins.clone(),
        is_standalone,
        audit: audit.map(|log| Box::new(move |line| log.line(line)) as AuditSink),
        served: Box::new(move || gateway.upgrade().map(|gateway| gateway.revisions()).unwrap_or_default()),
    });
    let server = api.and_then(|api| AdminServer::start(sockets, api, tls));
    server.map(Some).map_err(|error| failed(format!("a thread or its async runtime cannot be started: {error}")))
}

struct AdminService {
    api: AdminApi,
    tls: Option<TlsAcceptor>,
}

impl AdminServer {
    pub fn start(sockets: AdminSockets, api: AdminApi, tls: Option<TlsAcceptor>) -> io::Result<Self> {
        let AdminSockets { tcp, unix } = sockets;
        let (unix, socket_file) = unix.map(|UnixSocket { listener, file }| (listener, file)).unzip();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("admin".into()).spawn(move || {
            runtime.block_on(async {
                let service = Arc::new(AdminService { api, tls });
                let open = Arc::new(GracefulShutdown::new());
                let permits = Arc::new(Semaphore::new(CONNECTIONS));
                let mut accepting = JoinSet::new();
                let tcp =
                    tcp.into_iter().map(|socket| tokio::net::TcpListener::from_std(socket).map(AdminListener::Tcp));
                let unix = unix.into_iter().map(|socket| UnixListener::from_std(socket).map(AdminListener::Unix));
                for listener in tcp.chain(unix) {
                    let listener = match listener {
                        Ok(listener) => listener,
                        Err(error) => {
                            warn!("the Admin API cannot be served: {error}");
                            continue;
                        }
                    };
                    accepting.spawn(accept(listener, Arc::clone(&service), Arc::clone(&permits), Arc::clone(&open)));
                }
                // An error means that the server was dropped, which ends it as well.
                let _ = stopped.await;
                accepting.shutdown().await;
                let open = Arc::into_inner(open).expect("only the tasks that were ended shared it");
                let _ = timeout(FINISH, open.shutdown()).await;
            });
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread), socket_file })
    }

    /// Renames the Unix socket to its final name. An error has been logged when this returns.
    pub fn show_socket(&self) -> Result<(), ExitFailure> {
        let Some(file) = &self.socket_file else { return Ok(()) };
        file.show().map_err(|error| {
            say!("cannot listen on {file}: {error}");
            ExitFailure::Listen
        })
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been logged already.
            let _ = thread.join();
        }
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
    let clients = clients.map(|authorities| ClientTerms { authorities, depth: CLIENT_DEPTH, optional: false });
    let terms = ServerTerms { keys: vec![certified], versions: Versions::ALL, clients, protocols: &["h2", "http/1.1"] };
    let server = Server::new(terms).map_err(|error| wrong(cert, &error))?;
    Ok(Some(TlsAcceptor::from(Arc::clone(server.config()))))
}

/// The byte stream of a client, over TCP or a Unix socket.
trait AdminStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> AdminStream for S {}

enum AdminListener {
    Tcp(tokio::net::TcpListener),
    Unix(UnixListener),
}

impl AdminListener {
    async fn accept(&self) -> io::Result<(Box<dyn AdminStream>, AdminPeer)> {
        match self {
            AdminListener::Tcp(listener) => {
                let (stream, remote) = listener.accept().await?;
                let local = stream.local_addr()?;
                // Responses are small, and their last segment must not be delayed by Nagle's algorithm.
                let _ = stream.set_nodelay(true);
                Ok((Box::new(stream), AdminPeer::Tcp { local, remote }))
            }
            AdminListener::Unix(listener) => Ok((Box::new(listener.accept().await?.0), AdminPeer::Unix)),
        }
    }
}

async fn accept(
    listener: AdminListener,
    service: Arc<AdminService>,
    permits: Arc<Semaphore>,
    open: Arc<GracefulShutdown>,
) {
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!("the Admin API cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (service, watcher) = (Arc::clone(&service), open.watcher());
        tokio::spawn(async move {
            match service.tls.clone() {
                None => serve(stream, service, watcher, peer).await,
                Some(tls) => match timeout(HANDSHAKE, tls.accept(stream)).await {
                    Ok(Ok(stream)) => serve(stream, service, watcher, peer).await,
                    Ok(Err(error)) => warn!("a TLS handshake of {peer} with the Admin API failed: {error}"),
                    Err(_) => warn!("a TLS handshake of {peer} with the Admin API timed out after {HANDSHAKE:?}"),
                },
            }
            drop(permit);
        });
    }
}

async fn serve<S>(stream: S, service: Arc<AdminService>, watcher: Watcher, peer: AdminPeer)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let answering = service_fn(move |request| {
        let service = Arc::clone(&service);
        async move { Ok::<_, Infallible>(answer(service, request, peer).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(IDLE).max_concurrent_streams(64);
    let connection = builder.serve_connection(TokioIo::new(stream), answering).into_owned();
    // An error of the client's connection needs no action.
    let _ = watcher.watch(connection).await;
}

/// Runs in a task of its own, which goes on if the client disconnects: a change that is being made is to be in the audit log as well,
/// and in the state of standalone mode. What is not being made yet, and what changes nothing, ends.
async fn answer(service: Arc<AdminService>, request: Request<Incoming>, peer: AdminPeer) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let read = async move |limit: usize| match timeout(BODY, Limited::new(body, limit).collect()).await {
        Ok(Ok(content)) => Ok(content.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(BodyFault::TooLarge),
        Ok(Err(_)) | Err(_) => Err(BodyFault::Incomplete),
    };
    let (_waiting, client) = WaitingClient::new();
    let answering = tokio::spawn(async move { service.api.answer(head, peer, client, read).await });
    match answering.await {
        Ok(answer) => answer.map(Full::new),
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
