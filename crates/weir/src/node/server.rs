//! The HTTP server of the node's own addresses: the Admin API's and the status address. It bounds what clients take, and for how
//! long ([`bounds`]); paths and answers are the business of the services that it is given. Start reading at [`NodeServer::start`].
//!
//! Each server has a thread of its own, so that it responds however busy the workers are, and delays none of them.

pub(super) mod bounds;
mod executor;
mod listening;
mod message;
mod peer;
mod places;
mod progress;
mod stream;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{
    CONNECTION, CONTENT_SECURITY_POLICY, HOST, HeaderMap, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::sync::oneshot;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tracing::warn;

use super::server_tally::ServerTally;
use bounds::{ACCEPT_PAUSE, FAREWELL, ServerBounds};
use executor::{StreamExecutor, StreamReset};
use listening::{ClientBytes, NotedBytes, SeldomLogged, ServerSocket};
use message::{AnswerBody, ReceivedBody, plain, refused, sent};
pub(super) use message::{PeerCertificate, ReceivedBodyFault, ServerAnswer, ServerRequest};
pub(super) use peer::ServerPeer;
pub(super) use places::RequestProgress;
use places::{EndOrder, PlaceRefusal, ServerPlace, ServerPlaces};
pub(super) use stream::AnswerStream;

/// How often the poller is asked, in polls of tasks: often, so that what clients have sent is seen before the next few
/// connections are accepted, which may take their places.
const POLLS_BETWEEN_EVENTS: u32 = 8;

/// Answers a request.
pub(super) type ServerService =
    Arc<dyn Fn(ServerRequest) -> Pin<Box<dyn Future<Output = Response<ServerAnswer>> + Send>> + Send + Sync>;

/// What a server is started with.
pub(super) struct ServerOptions {
    /// The name of the thread.
    pub name: &'static str,
    /// What the log calls the server, such as `the Admin API`.
    pub title: &'static str,
    pub bounds: ServerBounds,
    pub tcp: Vec<TcpListener>,
    pub unix: Option<UnixListener>,
    pub tls: Option<ServerTls>,
    pub tally: Arc<ServerTally>,
}

/// The TLS of a server. Clones are the same.
#[derive(Clone)]
pub(super) struct ServerTls(Arc<RwLock<TlsAcceptor>>);

impl ServerTls {
    pub(super) fn new(acceptor: TlsAcceptor) -> ServerTls {
        ServerTls(Arc::new(RwLock::new(acceptor)))
    }

    /// Connections that are accepted from now on have this one.
    pub(super) fn replace(&self, acceptor: TlsAcceptor) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = acceptor;
    }

    fn acceptor(&self) -> TlsAcceptor {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The running server. Dropping it stops accepting, and finishes the requests in progress.
pub(super) struct NodeServer {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What the tasks of a server share.
struct SharedServer {
    title: &'static str,
    tls: Option<ServerTls>,
    tally: Arc<ServerTally>,
    places: Arc<ServerPlaces>,
    service: ServerService,
    http: auto::Builder<StreamExecutor>,
    failed_handshakes: SeldomLogged,
    refused: SeldomLogged,
    accept_errors: SeldomLogged,
}

impl NodeServer {
    pub(super) fn start(options: ServerOptions, service: ServerService) -> io::Result<NodeServer> {
        let ServerOptions { name, title, bounds, tcp, unix, tls, tally } = options;
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().event_interval(POLLS_BETWEEN_EVENTS).build()?;
        let (stop, stopped) = oneshot::channel();
        let places = Arc::new(ServerPlaces::new(bounds, tls.is_some(), Arc::clone(&tally)));
        let shared = Arc::new(SharedServer {
            title,
            tls,
            tally,
            places: Arc::clone(&places),
            service,
            http: http(),
            failed_handshakes: SeldomLogged::default(),
            refused: SeldomLogged::default(),
            accept_errors: SeldomLogged::default(),
        });
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            runtime.block_on(async {
                let mut tasks = JoinSet::new();
                let tcp =
                    tcp.into_iter().map(|socket| tokio::net::TcpListener::from_std(socket).map(ServerSocket::Tcp));
                let unix = unix.map(|socket| tokio::net::UnixListener::from_std(socket).map(ServerSocket::Unix));
                for socket in tcp.chain(unix) {
                    match socket {
                        Ok(socket) => drop(tasks.spawn(Arc::clone(&shared).accept(socket))),
                        Err(error) => warn!("{title} cannot be served: {error}"),
                    }
                }
                tasks.spawn(Arc::clone(&places).watch_times());
                // An error means that the server was dropped, which ends it as well.
                let _ = stopped.await;
                tasks.shutdown().await;
                let _ = timeout(FAREWELL, places.end_all()).await;
            });
        })?;
        Ok(NodeServer { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for NodeServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been logged already.
            let _ = thread.join();
        }
    }
}

/// HTTP/1.1 and HTTP/2 with all their bounds. Those of time that hyper has as well are left to [`ServerPlaces`], which has one
/// set for all protocols and knows which connections are idle.
fn http() -> auto::Builder<StreamExecutor> {
    let mut builder = auto::Builder::new(StreamExecutor);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_headers(bounds::FIELDS)
        .max_buf_size(bounds::HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(bounds::PING)
        .keep_alive_timeout(bounds::PONG)
        .max_concurrent_streams(bounds::REQUESTS as u32)
        // Also bounds the CONTINUATION frames of a head.
        .max_header_list_size(bounds::HEAD_BYTES as u32)
        .initial_stream_window_size(bounds::STREAM_WINDOW)
        .initial_connection_window_size(bounds::CONNECTION_WINDOW)
        .max_send_buf_size(bounds::SEND_BUFFER)
        .max_pending_accept_reset_streams(bounds::PENDING_RESETS)
        .max_local_error_reset_streams(bounds::LOCAL_RESETS);
    builder
}

impl SharedServer {
    async fn accept(self: Arc<Self>, socket: ServerSocket) {
        loop {
            match socket.accept().await {
                Ok((stream, peer)) => {
                    tokio::spawn(Arc::clone(&self).serve(stream, peer));
                    // What the clients of open connections have sent is read between two new ones.
                    yield_now().await;
                }
                // A client that has gone already is no reason to pause.
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) => {}
                Err(error) => {
                    if socket.has_client() {
                        self.tally.accept_errors.fetch_add(1, Relaxed);
                        if let Some(left_out) = self.accept_errors.is_due(None) {
                            warn!("{} cannot accept a connection: {error}{left_out}", self.title);
                        }
                        self.places.shed_one();
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Serves a connection from the wait for its place to its end.
    async fn serve(self: Arc<Self>, stream: Box<dyn ClientBytes>, peer: ServerPeer) {
        let Some((place, mut order)) = self.places.enter(peer.client()).await else {
            self.tally.refused.fetch_add(1, Relaxed);
            if let Some(left_out) = self.refused.is_due(Some(peer.client())) {
                warn!("{} refuses a connection of {peer}: it works for as many as it may{left_out}", self.title);
            }
            return;
        };
        let place = Arc::new(place);
        let stream = NotedBytes::new(stream, Arc::clone(&place));
        let Some((stream, certificate)) = self.secured(stream, peer, &place, &mut order).await else { return };
        let answering = service_fn(|request| self.answer(request, peer, certificate.clone(), &place));
        let mut connection = pin!(self.http.serve_connection(TokioIo::new(stream), answering));
        // An error of the client's connection needs no action.
        let order = tokio::select! {
            biased;
            _ = connection.as_mut() => return,
            order = &mut order => order,
        };
        if order == Ok(EndOrder::Gently) {
            connection.as_mut().graceful_shutdown();
            while timeout(FAREWELL, connection.as_mut()).await.is_err() && place.is_worked_for() {}
        }
    }

    /// The connection after its TLS handshake, if there is to be one; `None` if it has failed, or is not waited for any longer.
    async fn secured(
        &self,
        stream: NotedBytes,
        peer: ServerPeer,
        place: &ServerPlace,
        order: &mut oneshot::Receiver<EndOrder>,
    ) -> Option<(Box<dyn ClientBytes>, Option<PeerCertificate>)> {
        let Some(tls) = &self.tls else { return Some((Box::new(stream), None)) };
        let shaken = tokio::select! {
            biased;
            shaken = tls.acceptor().accept(stream) => shaken,
            _ = order => return None,
        };
        match shaken {
            Ok(stream) => {
                place.note(|progress, now| progress.secured(now));
                let chain = stream.get_ref().1.peer_certificates();
                let certificate =
                    chain.and_then(|chain| chain.first()).map(|first| Arc::new(first.clone().into_owned()));
                Some((Box::new(stream), certificate))
            }
            Err(error) => {
                if let Some(left_out) = self.failed_handshakes.is_due(Some(peer.client())) {
                    warn!("a TLS handshake of {peer} with {} failed: {error}{left_out}", self.title);
                }
                None
            }
        }
    }

    fn answer(
        &self,
        request: Request<Incoming>,
        peer: ServerPeer,
        certificate: Option<PeerCertificate>,
        place: &Arc<ServerPlace>,
    ) -> impl Future<Output = Result<Response<AnswerBody>, Infallible>> + Send + use<> {
        let (service, progress) = (Arc::clone(&self.service), place.begin().map(Arc::new));
        async move {
            let progress = match progress {
                Ok(progress) => progress,
                Err(PlaceRefusal::TooMany) => return Ok(protected(refused(TOO_MANY))),
                Err(PlaceRefusal::Ending) => return Ok(protected(ending(request.version()))),
            };
            progress.set_reset(StreamReset::current());
            if request.headers().get_all(HOST).iter().nth(1).is_some() {
                return Ok(protected(plain(StatusCode::BAD_REQUEST, TWO_HOSTS)));
            }
            let (head, body) = request.into_parts();
            let body = ReceivedBody::new(body, Arc::clone(&progress));
            let progress_of_request = Arc::clone(&progress);
            let request = ServerRequest { head, body, peer, certificate, progress: progress_of_request };
            let mut answer = service(request).await;
            protect(answer.headers_mut());
            Ok(sent(answer, progress).await)
        }
    }
}

/// What browsers may do with a response unless the service allows more: neither run anything in it, nor show it in a frame, nor
/// guess its type.
const PROTECTION: [(HeaderName, HeaderValue); 4] = [
    (CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'")),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
];

fn protect(fields: &mut HeaderMap) {
    for (name, value) in PROTECTION {
        fields.entry(name).or_insert(value);
    }
}

/// HTTP/1 has one request at a time, and HTTP/2 has its limit of streams; more are only those that a client has reset while the node
/// still works for them.
const TOO_MANY: &str = "requests that you have cancelled are still in progress; try again later\n";

/// RFC 9112 §3.2. A proxy in front may have looked at the other field.
const TWO_HOSTS: &str = "the request has more than one `Host` field\n";

/// Over HTTP/1, these requests were pipelined.
const ENDING: &str = "this connection ends to make room for others; send the request again on a new one\n";

fn protected(mut answer: Response<AnswerBody>) -> Response<AnswerBody> {
    protect(answer.headers_mut());
    answer
}

fn ending(version: Version) -> Response<AnswerBody> {
    let mut answer = refused(ENDING);
    if version < Version::HTTP_2 {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

/// A response with a whole body.
pub(super) fn whole(answer: Response<Bytes>) -> Response<ServerAnswer> {
    answer.map(ServerAnswer::Whole)
}
