//! A worker of the gateway that serves HTTP/3 on a simulated network, and answers by itself.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::task::JoinHandle;
use weir_net::clock::Clock;
use weir_net::quic::{OtherProcesses, ProcessTag, QuicSecrets, SocketGroup};
use weir_net::timer::TICK_NS;
use weir_net::tls::{Server, ServerTerms, Versions, certificates, certified};
use weir_plugin::{Content, Reply, Responder, ResponderRequest, Responding, RouteFacts, Stop};
use weir_proto::Trailers;
use weir_telemetry::metrics::Metrics;
use weir_testkit::Authority;

use super::network::SimulatedNetwork;
use super::{NAME, PATIENCE, Sum, pattern};
use crate::connection::h3::QuicShare;
use crate::connection::h3::listener::drive;
use crate::context::WorkerContext;
use crate::context::lifecycle::ListenerId;
use crate::endpoint::pool::Pools;
use crate::endpoint::state::SharedState;
use crate::published::Published;
use crate::route::RouteRule;
use crate::snapshot::{
    Certificate, Certificates, Chain, ClientSettings, ListenerTable, Pieces, Route, RouteTable, Snapshot, StreamTables,
    Target,
};
use crate::worker::Worker;
use crate::worker::client_connections::ClientConnections;
use crate::worker::snapshot::WorkerSnapshot;

/// Answers `/NUMBER` with so many bytes, once it has the whole content, and `/early/NUMBER` without reading that.
struct Answers;

impl Responder for Answers {
    fn respond(self: Arc<Self>, request: ResponderRequest, mut content: Content, mut reply: Reply) -> Responding {
        Box::pin(async move {
            let path = std::str::from_utf8(request.head.path()).map_err(|_| Stop::Respond(400))?;
            let (length, is_early) = match path.strip_prefix("/early/") {
                Some(length) => (length, true),
                None => (path.trim_start_matches('/'), false),
            };
            let length = length.parse().map_err(|_| Stop::Respond(404))?;
            let mut sum = Sum::default();
            if !is_early {
                while let Some(piece) = content.next().await {
                    sum.add(&piece);
                }
            }
            reply.begin(200, &[("x-received", &sum.to_string())]);
            for from in (0..length).step_by(PIECE) {
                reply.send(&pattern(from, PIECE.min(length - from))).await;
            }
            let mut trailers = Trailers::default();
            trailers.add(b"x-sent", length.to_string().as_bytes()).expect("a valid field");
            reply.set_trailers(trailers);
            Ok(())
        })
    }
}

const PIECE: usize = 5000;

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let identity = Authority::of_tests().identity(&[NAME]);
    let chain = certificates(identity.certificate.as_bytes()).expect("a certificate");
    let keys = vec![certified(chain, identity.key.as_bytes()).expect("its key")];
    Server::new(ServerTerms { keys, versions: Versions::ALL, clients: None, protocols: &[] }).expect("it is valid")
});

fn snapshot() -> Snapshot {
    let rule = RouteRule {
        uris: vec!["/*".to_owned()],
        hosts: Vec::new(),
        listeners: Box::default(),
        methods: None,
        remote_addrs: Vec::new(),
        priority: 0,
        vars: None,
        among: None,
        order: 0,
        route: 0,
    };
    let route = Route {
        facts: RouteFacts::default(),
        chain: Chain::default(),
        target: Target::Responder(Arc::new(Answers)),
        timeouts: None,
        request_timeout: None,
        upgrades: true,
        encoded_separators: false,
        merge_slashes: false,
    };
    let mut routes = Pieces::default();
    routes.set(0, Arc::new(route));
    let mut certificates = Certificates::default();
    let certificate = Certificate { server: SERVER.clone(), proof: None };
    certificates.add(certificate, [NAME].into_iter()).expect("it is the first");
    // What is tested is that nothing is lost or stands still, so a bad network is no reason to give up.
    let clients = ClientSettings {
        handshake_timeout: PATIENCE,
        header_timeout: PATIENCE,
        idle_timeout: PATIENCE,
        first_byte_timeout: PATIENCE,
        write_timeout: PATIENCE,
        body_min_rate: 0,
        ..ClientSettings::default()
    };
    Snapshot {
        revision: 0,
        clients,
        listeners: ListenerTable::default(),
        table: RouteTable::build(vec![rule]).expect("the rule is right"),
        streams: StreamTables::default(),
        routes,
        upstreams: Pieces::default(),
        unmatched: Chain::default(),
        certificates,
        overlays: Vec::new(),
        identities: Arc::default(),
        secret_arguments: Vec::new(),
        price_every: 0,
    }
}

/// Advances the timers, as the thread of a worker does.
async fn tick(worker: Rc<Worker>) {
    let mut ticks = tokio::time::interval(Duration::from_nanos(TICK_NS));
    loop {
        ticks.tick().await;
        worker.wheel.advance(worker.wake_up());
    }
}

/// A worker, and the task that serves.
pub(super) struct SimulatedServer {
    worker: Rc<Worker>,
    driver: JoinHandle<()>,
    ticks: JoinHandle<()>,
}

impl SimulatedServer {
    pub(super) fn start(network: &SimulatedNetwork) -> SimulatedServer {
        let (clock, metrics, shared) = (Clock::default(), Metrics::new(1), SharedState::default());
        let published = Published::new(Arc::new(snapshot()), None, &metrics, &shared.health, clock.now_ns());
        let pools = Rc::new(Pools::new(1));
        let current = WorkerSnapshot::new(Arc::new(published), 0, &pools, &shared);
        let context = Rc::new(WorkerContext::new(clock, metrics.worker(0), None, 0));
        let worker = Rc::new(Worker::new(0, context, pools, current, Arc::new(ClientConnections::new(1000))));
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let group = SocketGroup::bind(nowhere, 1, ProcessTag(1)).expect("a free port");
        let share = QuicShare::new(group, Arc::new(OtherProcesses::default()), QuicSecrets::new());
        let service = worker.lifecycle.begin_service(ListenerId(1));
        let driver =
            tokio::task::spawn_local(drive(Rc::clone(&worker), Box::new(network.gateway()), share, service, 1000));
        let ticks = tokio::task::spawn_local(tick(Rc::clone(&worker)));
        SimulatedServer { worker, driver, ticks }
    }

    /// Drains the worker, which has to end by itself; nothing may be left of its connections.
    pub(super) async fn end(self) {
        self.worker.drain(4 * PATIENCE);
        let ended = tokio::time::timeout(2 * PATIENCE, self.driver).await;
        ended.expect("connections without requests end").expect("the driver does not panic");
        self.ticks.abort();
        assert_eq!(self.worker.lifecycle.tasks(), 0, "every connection has ended");
    }

    /// Begins to drain.
    pub(super) fn drain(&self) {
        self.worker.drain(4 * PATIENCE);
    }

    /// Waits until no client is connected.
    pub(super) async fn wait_idle(&self, most: Duration) {
        let deadline = tokio::time::Instant::now() + most;
        while self.worker.lifecycle.tasks() > 1 {
            assert!(tokio::time::Instant::now() < deadline, "a connection of a client that has gone stays");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
}
