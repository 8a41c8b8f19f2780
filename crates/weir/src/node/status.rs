//! The status address: `/status`, `/status/ready`, `/policies`, `/records`, `/tail`, `/metrics`, and the health checks of
//! orchestrators.
//!
//! It runs on a separate thread, so that it responds however busy the workers and the control loop are.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use http_body_util::{Either, Full};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderValue};
use hyper::http::uri::Authority;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tracing::warn;
use weir_gateway::tail::Tail;
use weir_telemetry::exposition::Format;

use super::health::EndpointQuery;
use super::records;
use super::state::NodeState;
use super::tail::{self, TailBody};

/// The most connections served at a time. Others wait in the listening socket's backlog.
const CONNECTIONS: usize = 64;
/// A connection without a request for this long is closed, so that idle ones do not block others.
const IDLE: Duration = Duration::from_secs(15);
/// The pause after `accept` failed, usually for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long responses in progress may take when the server is dropped.
const FINISH: Duration = Duration::from_secs(1);

/// The running server. Dropping it stops accepting, and finishes the requests in progress.
pub struct StatusServer {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl StatusServer {
    pub fn start(listeners: Vec<TcpListener>, state: Arc<NodeState>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("status".into()).spawn(move || {
            runtime.block_on(async {
                let open = Arc::new(GracefulShutdown::new());
                let permits = Arc::new(Semaphore::new(CONNECTIONS));
                let mut accepting = JoinSet::new();
                for listener in listeners {
                    accepting.spawn(accept(listener, Arc::clone(&state), Arc::clone(&permits), Arc::clone(&open)));
                }
                // An error means that the server was dropped, which ends it as well.
                let _ = stopped.await;
                accepting.shutdown().await;
                let open = Arc::into_inner(open).expect("only the tasks that were ended shared it");
                let _ = tokio::time::timeout(FINISH, open.shutdown()).await;
            });
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for StatusServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been logged already.
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, state: Arc<NodeState>, permits: Arc<Semaphore>, open: Arc<GracefulShutdown>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return warn!("the status address cannot be served: {error}"),
    };
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!("the status address cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(local) = stream.local_addr() else { continue };
        let state = Arc::clone(&state);
        let service = service_fn(move |request| {
            let response = match request.uri().path() {
                "/tail" => tail(&request, (local.ip(), peer.ip())),
                _ => answer(&request, local.ip(), &state).map(Either::Left),
            };
            async { Ok::<_, Infallible>(response) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE)
            .serve_connection(TokioIo::new(stream), service);
        let connection = open.watch(connection);
        tokio::spawn(async move {
            // An error of the client's connection needs no action.
            let _ = connection.await;
            drop(permit);
        });
    }
}

/// The supported paths.
const PATHS: &str = "/status /status/ready /policies /records /tail /metrics /livez /readyz /healthz";

/// Whether a request may have this host. A page in a browser on this machine could use a host name of its own that resolves to a
/// loopback address (DNS rebinding), and read what is for this machine only; such names contain dots. An address that others can
/// reach accepts any name.
fn is_own_name(host: &str, local: IpAddr) -> bool {
    let name = host.parse::<Authority>().map(|authority| authority.host().to_ascii_lowercase());
    let Ok(name) = name else { return false };
    let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    !local.is_loopback() || is_address || !name.contains('.') || name.ends_with(".localhost")
}

/// The refusal that applies to a request regardless of its path, if there is one.
fn refusal<B>(request: &Request<B>, local: IpAddr) -> Option<Response<Full<Bytes>>> {
    let named = request.headers().get(HOST).and_then(|value| value.to_str().ok());
    let named = request.uri().authority().map(Authority::as_str).or(named);
    if named.is_some_and(|host| !is_own_name(host, local)) {
        let problem = "this is a loopback address: use 127.0.0.1, [::1] or localhost as the host\n";
        return Some(text(StatusCode::MISDIRECTED_REQUEST, problem.into()));
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are supported\n".into());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Some(response);
    }
    None
}

/// Streams exchanges as they end. Only for clients on this machine, since it shows what clients request.
fn tail<B>(request: &Request<B>, (local, peer): (IpAddr, IpAddr)) -> Response<Either<Full<Bytes>, TailBody>> {
    let refused = refusal(request, local).or_else(|| {
        let problem = "exchanges are shown to this machine alone: ask from there\n";
        (!peer.to_canonical().is_loopback()).then(|| text(StatusCode::FORBIDDEN, problem.into()))
    });
    if let Some(refused) = refused {
        return refused.map(Either::Left);
    }
    match tail::filter(request.uri().query().unwrap_or_default()) {
        Err(problem) => text(StatusCode::BAD_REQUEST, format!("{problem}\n")).map(Either::Left),
        Ok(_) if request.method() == Method::HEAD => {
            respond(StatusCode::OK, "application/x-ndjson", String::new()).map(Either::Left)
        }
        Ok(filter) => respond(StatusCode::OK, "application/x-ndjson", String::new())
            .map(|_| Either::Right(TailBody(Tail::open(filter)))),
    }
}

fn answer<B>(request: &Request<B>, local: IpAddr, state: &NodeState) -> Response<Full<Bytes>> {
    if let Some(refused) = refusal(request, local) {
        return refused;
    }
    match request.uri().path() {
        "/status" => {
            json(StatusCode::OK, &state.report(&EndpointQuery::parse(request.uri().query().unwrap_or_default())))
        }
        "/policies" => json(StatusCode::OK, &state.policies()),
        "/records" => json(StatusCode::OK, &records::report()),
        "/status/ready" => match state.not_ready() {
            None => json(StatusCode::OK, &serde_json::json!({ "status": "ok" })),
            Some(why) => json(StatusCode::SERVICE_UNAVAILABLE, &serde_json::json!({ "status": "error", "error": why })),
        },
        "/readyz" => match state.not_ready() {
            None => text(StatusCode::OK, "ok\n".into()),
            Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
        // A process that responds is alive, also while it drains, when it must not be killed.
        "/livez" | "/healthz" => text(StatusCode::OK, "ok\n".into()),
        "/metrics" => {
            let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
            let format = Format::for_accept(accept);
            respond(StatusCode::OK, format.content_type(), state.page().text(format))
        }
        _ => text(StatusCode::NOT_FOUND, format!("not found; the paths are {PATHS}\n")),
    }
}

fn json(status: StatusCode, value: &serde_json::Value) -> Response<Full<Bytes>> {
    respond(status, "application/json", format!("{value:#}\n"))
}

fn text(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    respond(status, "text/plain; charset=utf-8", text)
}

fn respond(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::configuration::SnapshotPublisher;
    use crate::node::state::NodePhase;
    use std::net::SocketAddr;
    use weir_control::{NameLookups, Publisher, check_text};
    use weir_net::limits::ProcessLimits;
    use weir_plugin::Registry;
    use weir_telemetry::metrics::Metrics;
    use weir_testkit::Client;

    fn serve() -> (StatusServer, Arc<NodeState>, SocketAddr) {
        let limits = ProcessLimits { open_files: Some(100), open_files_before: Some(100), backlog: 16, ports: 10 };
        let metrics = Arc::new(Metrics::new(2));
        let publisher =
            Publisher::new("weir.yaml", Registry::new(&[]), Box::new(SnapshotPublisher::new(Arc::clone(&metrics))));
        let state = Arc::new(NodeState::new(metrics, limits, Arc::new(publisher), NameLookups::default()));
        let listeners = weir_net::listener::bind(SocketAddr::from(([127, 0, 0, 1], 0)), 1, 16).expect("a free port");
        let addr = listeners[0].local_addr().expect("it is bound");
        (StatusServer::start(listeners, Arc::clone(&state)).expect("a thread"), state, addr)
    }

    #[test]
    fn f30_ready_is_who_serves_a_configuration_and_is_not_about_to_leave() {
        let (_server, state, addr) = serve();
        let ask = |path| {
            let answer = Client::connect(addr).get(path).expect("an answer");
            (answer.status, answer.text())
        };
        let not_ready = |why: &str| {
            assert_eq!(ask("/livez").0, 200);
            assert_eq!(ask("/healthz").0, 200);
            assert_eq!(ask("/readyz"), (503, format!("{why}\n")));
            let (status, body) = ask("/status/ready");
            let body: serde_json::Value = serde_json::from_str(&body).expect("JSON");
            assert_eq!((status, body["status"].as_str(), body["error"].as_str()), (503, Some("error"), Some(why)));
        };
        not_ready("starting");
        state.enter(NodePhase::Serving);
        not_ready("a worker has no configuration yet");

        let revisions = Arc::new(std::sync::Mutex::new(vec![1, 0]));
        let shared = Arc::clone(&revisions);
        state.started(move || shared.lock().expect("no test panics with it").clone());
        not_ready("a worker has no configuration yet");
        *revisions.lock().expect("no test panics with it") = vec![2, 1];
        assert_eq!(ask("/readyz").0, 200);
        assert_eq!(ask("/status/ready").0, 200);
        let status: serde_json::Value = serde_json::from_str(&ask("/status").1).expect("JSON");
        assert_eq!(status["revision"], 1, "what every worker serves at least");

        state.enter(NodePhase::Draining);
        not_ready("draining");
    }

    #[test]
    fn u08_a_loopback_address_answers_to_its_own_names() {
        let (_server, _state, addr) = serve();
        for (host, status) in [
            ("localhost:7085", 200),
            ("127.0.0.1", 200),
            ("[::1]:7085", 200),
            ("status.localhost", 200),
            ("weir", 200),
            ("rebound.example", 421),
            ("rebound.example:7085", 421),
            ("localhost.example", 421),
        ] {
            for target in ["/status", &format!("http://{host}/status")] {
                let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
                let answer = Client::connect(addr).ask(request).expect("an answer");
                assert_eq!(answer.status, status, "{target} {host}");
            }
        }
        let everywhere = "10.1.2.3".parse().expect("an address");
        assert!(is_own_name("weir.example:7085", everywhere), "who lets others read says so");
    }

    #[test]
    fn f13_status_says_what_is_wrong_with_the_file() {
        let (_server, state, addr) = serve();
        state.publisher.refuse(check_text("rutes: []").expect_err("there is no such key"));
        let status = Client::connect(addr).get("/status").expect("an answer").text();
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        let fault = &status["configuration"]["last_error"]["diagnostics"][0];
        assert_eq!((fault["line"].as_u64(), fault["path"].as_str()), (Some(1), Some("rutes")), "{status:#}");
        assert_eq!(status["workers"].as_array().map(Vec::len), Some(2));
        assert_eq!(status["limits"]["open_files"], 100);
    }

    #[test]
    fn every_field_of_status_stands_in_the_guide() {
        let (_server, state, addr) = serve();
        state.started(|| vec![1, 1]);
        let status = Client::connect(addr).get("/status").expect("an answer").text();
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        let page = include_str!("../../../../docs/guide/observing.md");
        let keys = |value: &serde_json::Value, before: &str| -> Vec<String> {
            value.as_object().expect("a map").keys().map(|key| format!("`{before}{key}")).collect()
        };
        let fields = [
            keys(&status, "").into_iter().filter(|key| key != "`configuration" && key != "`upgrade").collect(),
            keys(&status["configuration"], "configuration."),
            keys(&status["upgrade"], "upgrade."),
            keys(&status["workers"][0], ""),
            keys(&status["limits"], ""),
        ];
        for field in fields.concat() {
            assert!(page.contains(&field), "docs/guide/observing.md has no {field}`");
        }
    }

    #[test]
    fn only_what_reads_is_answered() {
        let (_server, _, addr) = serve();
        let mut client = Client::connect(addr);
        let refused = client.ask("POST /status HTTP/1.1\r\nHost: s\r\nContent-Length: 0\r\n\r\n").expect("an answer");
        assert_eq!(refused.status, 405);
        assert_eq!(client.get("/else").expect("an answer").status, 404);
        let metrics = client.get("/metrics").expect("an answer");
        assert!(metrics.text().contains("weir_http_requests_total 0\n"), "{}", metrics.text());
    }

    #[test]
    fn a_server_that_was_dropped_accepts_nothing() {
        let (server, _, addr) = serve();
        drop(server);
        assert!(Client::try_connect(addr).is_err());
    }
}
