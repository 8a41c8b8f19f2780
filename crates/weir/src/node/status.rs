//! The status address: `/status`, `/status/ready`, `/policies`, `/records`, `/tail`, `/metrics`, and the health checks of
//! orchestrators.

use std::io;
use std::net::{IpAddr, TcpListener};
use std::sync::Arc;

use bytes::Bytes;
use hyper::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::{Method, Response, StatusCode};
use tokio::sync::Semaphore;
use weir_gateway::tail::Tail;
use weir_telemetry::exposition::Format;

use super::health::EndpointQuery;
use super::records;
use super::server::bounds::ServerBounds;
use super::server::{NodeServer, ServerAnswer, ServerOptions, ServerPeer, ServerRequest, whole};
use super::state::NodeState;
use super::tail::{self, TailStream};

/// Streams are those of `/tail`.
pub(super) const BOUNDS: ServerBounds = ServerBounds { connections: 64, streams: 16 };

/// The most bytes of the query of `/tail`: its condition is evaluated for each exchange.
const MOST_FILTER: usize = 4 << 10;

/// Starts the server of the status address.
pub(super) fn start(listeners: Vec<TcpListener>, state: Arc<NodeState>) -> io::Result<NodeServer> {
    let tally = Arc::clone(&state.servers.status);
    let options = ServerOptions {
        name: "status",
        title: "the status address",
        bounds: BOUNDS,
        tcp: listeners,
        unix: None,
        tls: None,
        tally,
    };
    let status = Arc::new(StatusService { state, turn: Semaphore::new(1) });
    NodeServer::start(options, Arc::new(move |request| Box::pin(Arc::clone(&status).answer(request))))
}

/// Answers requests to the status address.
struct StatusService {
    state: Arc<NodeState>,
    /// Long pages are made one at a time, and requests for short ones are answered in between: nobody delays whether the node is
    /// ready by asking for its metrics.
    turn: Semaphore,
}

impl StatusService {
    async fn answer(self: Arc<Self>, request: ServerRequest) -> Response<ServerAnswer> {
        let (local, peer) = match request.peer {
            ServerPeer::Tcp { local, remote } => (local.ip(), remote.ip()),
            ServerPeer::Unix => (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 1])),
        };
        let path = request.head.uri.path();
        if path == "/tail" {
            return tail(&request, (local, peer));
        }
        // The semaphore is never closed.
        let _turn = if is_short(path) { None } else { self.turn.acquire().await.ok() };
        whole(answer(&request.head, local, &self.state))
    }
}

/// The supported paths.
const PATHS: &str = "/status /status/ready /policies /records /tail /metrics /livez /readyz /healthz";

/// The paths whose answers cost next to nothing.
fn is_short(path: &str) -> bool {
    matches!(path, "/status/ready" | "/livez" | "/readyz" | "/healthz")
}

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
pub(super) fn refusal(request: &Parts, local: IpAddr) -> Option<Response<Bytes>> {
    let named = request.headers.get(HOST).and_then(|value| value.to_str().ok());
    let named = request.uri.authority().map(Authority::as_str).or(named);
    if named.is_some_and(|host| !is_own_name(host, local)) {
        let problem = "this is a loopback address: use 127.0.0.1, [::1] or localhost as the host\n";
        return Some(text(StatusCode::MISDIRECTED_REQUEST, problem.into()));
    }
    if request.method != Method::GET && request.method != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are supported\n".into());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Some(response);
    }
    None
}

/// Streams exchanges as they end. Only for clients on this machine, since it shows what clients request.
fn tail(request: &ServerRequest, (local, peer): (IpAddr, IpAddr)) -> Response<ServerAnswer> {
    let ServerRequest { head, progress, .. } = request;
    let refused = refusal(head, local).or_else(|| {
        let problem = "exchanges are shown to this machine alone: ask from there\n";
        (!peer.to_canonical().is_loopback()).then(|| text(StatusCode::FORBIDDEN, problem.into()))
    });
    if let Some(refused) = refused {
        return whole(refused);
    }
    let query = head.uri.query().unwrap_or_default();
    if query.len() > MOST_FILTER {
        return whole(text(StatusCode::BAD_REQUEST, format!("a query may have {MOST_FILTER} bytes; shorten vars\n")));
    }
    let filter = match tail::filter(query) {
        Ok(filter) => filter,
        Err(problem) => return whole(text(StatusCode::BAD_REQUEST, format!("{problem}\n"))),
    };
    let head = |body: &str| respond(StatusCode::OK, "application/x-ndjson", body.to_owned());
    if request.head.method == Method::HEAD {
        return whole(head(""));
    }
    let Some(permit) = progress.open_stream() else { return whole(too_many_streams()) };
    let last_words = tail::unread();
    head("").map(|_| ServerAnswer::Stream { permit, source: Box::new(TailStream(Tail::open(filter))), last_words })
}

fn too_many_streams() -> Response<Bytes> {
    let problem = format!(
        "there are as many streams as there may be: {} of the node, half of them of one client address; end another `weir tail` or \
         `weir trace`, or try again later\n",
        BOUNDS.streams
    );
    let mut refused = text(StatusCode::SERVICE_UNAVAILABLE, problem);
    refused.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
    refused
}

fn answer(request: &Parts, local: IpAddr, state: &NodeState) -> Response<Bytes> {
    if let Some(refused) = refusal(request, local) {
        return refused;
    }
    let query = request.uri.query().unwrap_or_default();
    let accept = request.headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    if let Some(page) = page(request.uri.path(), query, accept, state) {
        return page;
    }
    match request.uri.path() {
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
        _ => text(StatusCode::NOT_FOUND, format!("not found; the paths are {PATHS}\n")),
    }
}

/// A page about the node that can also be had at the admin address.
pub(super) fn page(path: &str, query: &str, accept: Option<&str>, state: &NodeState) -> Option<Response<Bytes>> {
    Some(match path {
        "/status" => match EndpointQuery::parse(query) {
            Ok(query) => json(StatusCode::OK, &state.report(&query)),
            Err(problem) => text(StatusCode::BAD_REQUEST, format!("{problem}\n")),
        },
        "/policies" => json(StatusCode::OK, &state.policies()),
        "/records" => json(StatusCode::OK, &records::report()),
        "/metrics" => {
            let format = Format::for_accept(accept);
            respond(StatusCode::OK, format.content_type(), state.page().text(format))
        }
        _ => return None,
    })
}

pub(super) fn json(status: StatusCode, value: &serde_json::Value) -> Response<Bytes> {
    respond(status, "application/json", format!("{value:#}\n"))
}

pub(super) fn text(status: StatusCode, text: String) -> Response<Bytes> {
    respond(status, "text/plain; charset=utf-8", text)
}

fn respond(status: StatusCode, content_type: &'static str, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::configuration::SnapshotPublisher;
    use crate::node::listening::ClientListeners;
    use crate::node::state::NodePhase;
    use std::net::SocketAddr;
    use weir_control::{NameLookups, Publisher, WorkloadHandle, check_text};
    use weir_net::inherit::InheritedSockets;
    use weir_net::limits::ProcessLimits;
    use weir_net::quic::InheritedQuic;
    use weir_plugin::Registry;
    use weir_telemetry::metrics::Metrics;
    use weir_testkit::Client;

    fn serve() -> (NodeServer, Arc<NodeState>, SocketAddr) {
        let limits = ProcessLimits { open_files: Some(100), open_files_before: Some(100), backlog: 16, ports: 10 };
        let metrics = Arc::new(Metrics::new(2));
        let clients =
            Arc::new(ClientListeners::new(2, 16, InheritedSockets::default(), InheritedQuic::default(), None));
        let subscriber = SnapshotPublisher::new(Arc::clone(&metrics), clients);
        let publisher = Publisher::new("weir.yaml", Registry::new(&[]), Box::new(subscriber));
        let state = Arc::new(NodeState::new(
            metrics,
            limits,
            Arc::new(publisher),
            NameLookups::default(),
            WorkloadHandle::default(),
            None,
        ));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("an option");
        let addr = listener.local_addr().expect("it is bound");
        (start(vec![listener], Arc::clone(&state)).expect("a thread"), state, addr)
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
