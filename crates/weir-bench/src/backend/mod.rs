//! Built-in backends: upstreams for a gateway under test that are never the bottleneck, and have a configurable behaviour.
//!
//! One server supports HTTP/1.1, WebSocket, server-sent events, and HTTP/2 with gRPC, with or without TLS. Its
//! [`Behaviour`] applies to ordinary requests; some paths have a fixed behaviour:
//!
//! | path | answer |
//! |---|---|
//! | `/echo` | the request's body |
//! | `/bytes/N` | N bytes |
//! | `/status/N` | status N |
//! | `/delay/10ms` | `OK` after that time |
//! | `/cpu/50us` | `OK` after that much processor time |
//! | `/sse?rate=10&bytes=82&count=0` | events per second, bytes per event, number of events (0: for ever) |
//! | any, with `Upgrade: websocket` | each message back; its bytes reversed when the path ends in `/reverse` |
//! | any, with `Content-Type: application/grpc` over HTTP/2 | each message back; with the metadata `x-repeat: N` all of them N times, with `x-status: N` and then the status N |
//!
//! Or it speaks no HTTP, and returns the bytes of TCP connections, or datagrams, as they are ([`BackendCarries`]).

pub mod behaviour;
mod echo;
mod http1;
mod http2;
mod prefixed;
mod request;
mod sse;
mod tls;
mod websocket;
mod work;

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::{LocalSet, spawn_local};
use tokio_rustls::TlsAcceptor;

pub use self::behaviour::{BackendAnswer, BackendDelay, Behaviour, InjectedFailure, InjectedFailureKind};
use crate::stats::SeededRandom;

/// The backlog of the listeners; limited by `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// A backend to start.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The addresses to listen on. Port 0 selects a free one.
    pub listen: Vec<SocketAddr>,
    /// Threads, each with a listener of its own per address.
    pub threads: usize,
    pub carries: BackendCarries,
    pub behaviour: Behaviour,
    pub tls: Option<TlsFiles>,
}

/// What the connections of a backend carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum BackendCarries {
    /// HTTP, and what upgrades to WebSocket
    #[default]
    Http,
    /// Bytes over TCP, which come back as they are
    Tcp,
    /// Datagrams of UDP, which come back as they are
    Udp,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            threads: 1,
            carries: BackendCarries::default(),
            behaviour: Behaviour::default(),
            tls: None,
        }
    }
}

/// The certificate of a backend with TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsFiles {
    /// A certificate for `localhost` and `127.0.0.1`, made at start.
    SelfSigned,
    /// PEM files.
    Files { certificate: PathBuf, key: PathBuf },
}

/// How long a backend that is told to drain waits for its open requests.
const DRAIN: Duration = Duration::from_secs(10);

/// A running backend. Dropping it stops it.
pub struct BackendServer {
    addresses: Vec<SocketAddr>,
    phase: watch::Sender<BackendPhase>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BackendPhase {
    Serving,
    /// No connection is accepted, and those that stand are told to end: by a GOAWAY, or by `Connection: close`.
    Draining,
    Stopped,
}

impl BackendServer {
    /// Starts a backend; when this returns, it listens.
    pub fn start(config: &Config) -> io::Result<Self> {
        refuse_duplicates(&config.listen)?;
        let tls = config.tls.as_ref().map(tls::acceptor).transpose()?;
        let (phase, phases) = watch::channel(BackendPhase::Serving);
        let started = Instant::now();
        let mut backend = Self { addresses: config.listen.clone(), phase, threads: Vec::new() };
        for thread in 0..config.threads.max(1) {
            let mut listeners = Vec::new();
            for address in &mut backend.addresses {
                if thread == 0 {
                    refuse_taken(*address, config.carries)?;
                }
                let listener = listen(*address, config.carries)?;
                // If the first thread was given a free port, the others share it.
                *address = listener.local_addr()?.as_socket().unwrap_or(*address);
                listeners.push(listener);
            }
            let (behaviour, carries) = (config.behaviour.clone(), config.carries);
            let (tls, phases) = (tls.clone(), phases.clone());
            let random = SeededRandom::new(thread as u64 + 1);
            let work = move || {
                let (open, all_ended) = mpsc::channel(1);
                let open = Rc::new(open);
                let host = Rc::new(BackendState {
                    behaviour,
                    carries,
                    started,
                    random: RefCell::new(random),
                    phases,
                    is_draining: Cell::new(false),
                    open: Rc::downgrade(&open),
                });
                serve(listeners, &host, tls, open, all_ended);
            };
            backend.threads.push(std::thread::Builder::new().name(format!("backend-{thread}")).spawn(work)?);
        }
        Ok(backend)
    }

    /// The addresses it listens on, in the order of [`Config::listen`].
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Ends as servers do that lose no request: accepts no more connections, tells clients of HTTP/2 by a GOAWAY, answers others with
    /// `Connection: close`, and waits until open requests are answered, at most [`DRAIN`]. WebSockets, streams of events and bytes
    /// without HTTP, which have no end of their own, are cut.
    pub fn drain(mut self) {
        let _ = self.phase.send(BackendPhase::Draining);
        self.join();
    }

    fn join(&mut self) {
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for BackendServer {
    fn drop(&mut self) {
        let _ = self.phase.send(BackendPhase::Stopped);
        self.join();
    }
}

/// The state that the connections of a thread share.
struct BackendState {
    behaviour: Behaviour,
    carries: BackendCarries,
    started: Instant,
    random: RefCell<SeededRandom>,
    phases: watch::Receiver<BackendPhase>,
    is_draining: Cell<bool>,
    open: Weak<mpsc::Sender<()>>,
}

/// Held for what has to end before a thread that drains does: a connection of HTTP/2, a request of HTTP/1, a handshake, a listener. The
/// receiver notices when the last one is dropped.
type OpenWork = Rc<mpsc::Sender<()>>;

impl BackendState {
    /// `None` if the thread ends already.
    fn open(&self) -> Option<OpenWork> {
        self.open.upgrade()
    }

    fn delay(&self) -> Duration {
        self.behaviour.delay.draw(&mut self.random.borrow_mut(), self.started.elapsed())
    }

    fn failure(&self) -> Option<InjectedFailureKind> {
        let failure = self.behaviour.failure?;
        (self.random.borrow_mut().unit() < failure.share).then_some(failure.how)
    }
}

fn refuse_duplicates(addresses: &[SocketAddr]) -> io::Result<()> {
    let is_known = |(index, one): &(usize, &SocketAddr)| one.port() != 0 && addresses[..*index].contains(*one);
    match addresses.iter().enumerate().find(is_known) {
        Some((_, address)) => {
            let problem = format!("the address {address} is given twice; give each address once");
            Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
        }
        None => Ok(()),
    }
}

/// Refuses an address on which another process listens: sockets of threads share addresses, and would share it with this one too.
fn refuse_taken(address: SocketAddr, carries: BackendCarries) -> io::Result<()> {
    bound(address, carries, false).map(drop)
}

/// A bound socket. `shared`: further ones may have the same address.
fn bound(address: SocketAddr, carries: BackendCarries, shared: bool) -> io::Result<Socket> {
    let kind = match carries {
        BackendCarries::Http | BackendCarries::Tcp => Type::STREAM,
        BackendCarries::Udp => Type::DGRAM,
    };
    let socket = Socket::new(Domain::for_address(address), kind.nonblocking(), None)?;
    // For datagrams, this would share the address.
    socket.set_reuse_address(shared || kind == Type::STREAM)?;
    socket.set_reuse_port(shared)?;
    let told = |error: io::Error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"));
    socket.bind(&address.into()).map_err(told)?;
    Ok(socket)
}

fn listen(address: SocketAddr, carries: BackendCarries) -> io::Result<Socket> {
    let socket = bound(address, carries, true)?;
    if carries != BackendCarries::Udp {
        socket.listen(BACKLOG)?;
    }
    Ok(socket)
}

/// The body of a thread.
fn serve(
    listeners: Vec<Socket>,
    host: &Rc<BackendState>,
    tls: Option<Arc<rustls::ServerConfig>>,
    open: OpenWork,
    mut all_ended: mpsc::Receiver<()>,
) {
    let runtime =
        runtime::Builder::new_current_thread().enable_all().build().expect("a runtime needs only descriptors");
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        for listener in listeners {
            if host.carries == BackendCarries::Udp {
                let socket = UdpSocket::from_std(listener.into()).expect("each is a non-blocking socket");
                spawn_local(echo::datagrams(socket));
                continue;
            }
            let listener = TcpListener::from_std(listener.into()).expect("each listener is a non-blocking socket");
            spawn_local(accept(listener, host.clone(), tls.clone().map(TlsAcceptor::from), open.clone()));
        }
        drop(open);
        let mut phases = host.phases.clone();
        // An error means that the backend has been dropped.
        let _ = phases.wait_for(|phase| *phase != BackendPhase::Serving).await;
        host.is_draining.set(true);
        let ended = async {
            tokio::select! {
                _ = all_ended.recv() => {}
                _ = phases.wait_for(|phase| *phase == BackendPhase::Stopped) => {}
            }
        };
        let _ = tokio::time::timeout(DRAIN, ended).await;
    });
}

/// Accepts connections until the thread drains, and then those that wait already.
async fn accept(listener: TcpListener, host: Rc<BackendState>, tls: Option<TlsAcceptor>, open: OpenWork) {
    let (mut phases, mut is_last_look) = (host.phases.clone(), false);
    loop {
        let accepted = tokio::select! {
            biased;
            accepted = listener.accept() => accepted,
            _ = phases.wait_for(|phase| *phase != BackendPhase::Serving) => {
                if is_last_look {
                    return;
                }
                // What has come until now is known once the runtime has asked the operating system.
                is_last_look = true;
                tokio::task::yield_now().await;
                continue;
            }
        };
        let Ok((stream, _)) = accepted else {
            // No file descriptors are left: connections must end before others can be accepted.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let (host, tls, open) = (host.clone(), tls.clone(), open.clone());
        spawn_local(async move {
            let _ = stream.set_nodelay(true);
            // An error of one connection does not affect others.
            let _ = match tls {
                None => connection(stream, host, open).await,
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => connection(stream, host, open).await,
                    Err(error) => Err(error),
                },
            };
        });
    }
}

async fn connection(stream: impl BackendConnection, host: Rc<BackendState>, open: OpenWork) -> io::Result<()> {
    match host.carries {
        BackendCarries::Tcp => {
            drop(open);
            echo::bytes(stream).await
        }
        BackendCarries::Http | BackendCarries::Udp => http1::connection(stream, host, open).await,
    }
}

/// A connection with or without TLS.
trait BackendConnection: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + 'static {
    /// The TCP socket.
    fn socket(&self) -> &TcpStream;
}

impl BackendConnection for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

impl BackendConnection for tokio_rustls::server::TlsStream<TcpStream> {
    fn socket(&self) -> &TcpStream {
        self.get_ref().0
    }
}
