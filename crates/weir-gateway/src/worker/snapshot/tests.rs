//! Upstreams with common addresses: whatever was configured before, a worker treats a load as one that has just started.

use std::net::SocketAddr;
use std::task::Context;

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use weir_net::clock::Clock;
use weir_proto::h1::{Limits, Tolerance};
use weir_telemetry::metrics::Metrics;

use super::*;
use crate::context::served_exchange::ServedExchange;
use crate::endpoint::pool::Freshness;
use crate::snapshot::{
    Balance, Certificates, Chain, ClientSettings, Concurrency, Endpoint, HashKey, Hashing, Keepalive, ListenerTable,
    PassHost, Queue, RouteTable, StreamTables, Timeouts, Upstream,
};
use crate::worker::client_connections::ClientConnections;

/// The settings that upstreams with a common address may have differently.
#[derive(Clone, Debug)]
struct Settings {
    nodes: Vec<usize>,
    /// Each exchange has its endpoint, and waits for that one.
    is_hashed: bool,
    concurrency: Concurrency,
    queue: usize,
    keepalive: usize,
}

fn settings() -> impl Strategy<Value = Settings> {
    let concurrency = vec![
        Concurrency::Auto,
        Concurrency::Unlimited,
        Concurrency::Fixed(1),
        Concurrency::Fixed(2),
        Concurrency::Fixed(3),
    ];
    (subsequence(vec![0, 1], 1..=2), any::<bool>(), select(concurrency), 0..4_usize, 0..4_usize).prop_map(
        |(nodes, is_hashed, concurrency, queue, keepalive)| Settings {
            nodes,
            is_hashed,
            concurrency,
            queue,
            keepalive,
        },
    )
}

const NAMES: [&str; 3] = ["a", "b", "route/c"];

/// One of the upstreams is defined, changed or removed.
type Edit = (usize, Option<Settings>);

fn edit() -> impl Strategy<Value = Edit> {
    (0..NAMES.len(), prop::option::weighted(0.85, settings()))
}

fn upstream(name: &str, settings: &Settings, addrs: &[SocketAddr]) -> Upstream {
    let endpoint = |&node: &usize| Endpoint {
        name: addrs[node].to_string().into(),
        addr: addrs[node],
        weight: 1,
        priority: 0,
        host: "".into(),
        checks: None,
    };
    let endpoints: Vec<_> = settings.nodes.iter().map(endpoint).collect();
    Upstream {
        name: name.into(),
        balance: match settings.is_hashed {
            true => Balance::Hash(Arc::new(Hashing::new(HashKey::ClientAddr, &endpoints))),
            false => Balance::RoundRobin,
        },
        endpoints,
        persistence: None,
        slow_start: None,
        timeouts: Timeouts::default(),
        stream_idle_timeout: Duration::from_secs(600),
        session_idle_timeout: Duration::from_secs(60),
        of_streams: None,
        retries: 0,
        retry_timeout: None,
        retry_budget: 20,
        response_limits: Limits::default(),
        retry_read_timeouts: false,
        retry_statuses: Box::default(),
        retry_same_endpoint: false,
        all_down: AllDownPolicy::Try,
        tolerance: Tolerance::default(),
        pass_host: PassHost::Pass,
        tls: None,
        http2: false,
        proxy_protocol: None,
        keepalive: Keepalive { size: settings.keepalive, ..Keepalive::default() },
        passive: Arc::default(),
        concurrency: settings.concurrency,
        queue: Queue { size: settings.queue, timeout: None },
    }
}

fn snapshot(revision: u64, upstreams: Pieces<Arc<Upstream>>) -> Arc<Snapshot> {
    Arc::new(Snapshot {
        revision,
        clients: ClientSettings::default(),
        listeners: ListenerTable::default(),
        table: RouteTable::build(Vec::new()).expect("nothing is wrong with no rules"),
        streams: StreamTables::default(),
        routes: Pieces::default(),
        upstreams,
        unmatched: Chain::default(),
        certificates: Certificates::default(),
        overlays: Vec::new(),
        identities: Arc::default(),
        secret_arguments: Vec::new(),
        price_every: 0,
    })
}

/// What became of a load: for each upstream the exchanges that were let through at once, that waited and that were refused, and
/// the connections that could be used again afterwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Outcome {
    in_flight: usize,
    waiting: usize,
    refused: usize,
    kept: usize,
}

/// A worker, and the upstreams that it knows, with their numbers.
struct Edited {
    worker: Rc<Worker>,
    shared: SharedState,
    metrics: Metrics,
    addrs: Vec<SocketAddr>,
    numbers: Vec<(&'static str, usize)>,
}

impl Edited {
    /// Adds upstreams in this order to a worker without any.
    fn new(addrs: &[SocketAddr]) -> Edited {
        let (clock, metrics, shared) = (Clock::default(), Metrics::new(1), SharedState::default());
        let published = Published::new(snapshot(0, Pieces::default()), None, &metrics, &shared.health, clock.now_ns());
        let pools = Rc::new(Pools::new(1));
        let current = WorkerSnapshot::new(Arc::new(published), 0, &pools, &shared);
        let context = Rc::new(WorkerContext::new(clock, metrics.worker(0), None, 0));
        let worker = Rc::new(Worker::new(0, context, pools, current, Arc::new(ClientConnections::new(100))));
        Edited { worker, shared, metrics, addrs: addrs.to_vec(), numbers: Vec::new() }
    }

    async fn edit(&mut self, name: &'static str, settings: Option<&Settings>) {
        let current = self.worker.current();
        let mut upstreams = current.snapshot.upstreams.clone();
        let known = self.numbers.iter().position(|(known, _)| *known == name);
        match settings {
            Some(settings) => {
                let is_free = |number: &usize| self.numbers.iter().all(|(_, known)| known != number);
                let number = known.map_or_else(|| (0..).find(is_free), |index| Some(self.numbers[index].1));
                let number = number.expect("there are enough numbers");
                upstreams.set(number, Arc::new(upstream(name, settings, &self.addrs)));
                if known.is_none() {
                    self.numbers.push((name, number));
                    self.numbers.sort_unstable();
                }
            }
            None => {
                let removed = known.map(|index| self.numbers.remove(index));
                removed.map(|(_, number)| upstreams.remove(number));
            }
        }
        self.publish(upstreams).await;
    }

    async fn publish(&self, upstreams: Pieces<Arc<Upstream>>) {
        let current = self.worker.current();
        let snapshot = snapshot(current.snapshot.revision + 1, upstreams);
        let (health, now_ns) = (&self.shared.health, self.worker.wake_up());
        let published = Published::new(snapshot, Some(&current.published), &self.metrics, health, now_ns);
        let next = current.successor(Arc::new(published), &self.worker, &self.shared).await;
        drop(current);
        self.worker.replace(next);
        self.worker.current().retired().free_some(&self.worker.pools);
        self.worker.pools.maintain(&self.worker);
    }

    /// So many exchanges come for each upstream, in turn, and stay; after them each upstream opens connections and keeps what it
    /// keeps.
    async fn loaded(&self, arrivals: usize) -> Vec<Outcome> {
        let (current, context) = (self.worker.current(), self.worker.context());
        let exchange = ServedExchange::default();
        let mut outcomes = vec![Outcome::default(); self.numbers.len()];
        let (mut permits, mut waiting) = (Vec::new(), Vec::new());
        for (index, number) in (0..arrivals).flat_map(|_| self.numbers.iter().map(|(_, number)| *number).enumerate()) {
            let (upstream, now_ns) = (current.upstream(number), context.now_ns());
            let picked = upstream.pick(&exchange, TriedEndpoints::default(), now_ns).expect("all are in rotation");
            if let Some(permit) = upstream.state.endpoints[picked].try_permit(context) {
                outcomes[index].in_flight += 1;
                permits.push(permit);
                continue;
            }
            let mut wait = Box::pin(waits(upstream, picked, context, &exchange));
            match wait.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())) {
                std::task::Poll::Pending => {
                    outcomes[index].waiting += 1;
                    waiting.push(wait);
                }
                std::task::Poll::Ready(is_granted) => {
                    assert!(!is_granted, "a permit was free");
                    outcomes[index].refused += 1;
                }
            }
        }
        drop(waiting);
        drop(permits);
        let mut exchange = ServedExchange::default();
        for (index, (_, number)) in self.numbers.iter().enumerate() {
            outcomes[index].kept = kept(current.upstream(*number), context, &mut exchange).await;
        }
        outcomes
    }
}

/// Waits for a permit, as an exchange does; `false` if it is refused.
async fn waits(upstream: UpstreamView<'_>, picked: usize, context: &Rc<WorkerContext>, exchange: &Exchange) -> bool {
    let (now_ns, patience) = (context.now_ns(), Duration::from_secs(600));
    let endpoints = &upstream.state.endpoints;
    match upstream.shared_queue_for(exchange, picked, TriedEndpoints::default(), now_ns) {
        Some(queue) => queue.wait(endpoints, context, now_ns, patience, Default::default()).await.is_ok(),
        None => endpoints[picked].wait_for_permit(context, now_ns, patience, Default::default()).await.is_ok(),
    }
}

/// Opens up to four connections to each endpoint at once, and returns how many of them can be used again.
async fn kept(upstream: UpstreamView<'_>, context: &Rc<WorkerContext>, exchange: &mut Exchange) -> usize {
    let (timeouts, mut kept) = (Timeouts::default(), 0);
    for endpoint in &upstream.state.endpoints {
        let mut opened = Vec::new();
        while opened.len() < 4
            && let Some(permit) = endpoint.try_permit(context)
        {
            opened.push(permit.open(Freshness::New, timeouts, exchange).await.expect("an endpoint listens"));
        }
        opened.into_iter().for_each(|mut connection| connection.keep(context.now_ns()));
        let mut again = Vec::new();
        while let Some(permit) = endpoint.try_permit(context)
            && let Ok(connection) = permit.reuse(Freshness::Any, timeouts.send, exchange)
        {
            again.push(connection);
        }
        kept += again.len();
    }
    kept
}

/// The address of a listener whose connections stay open until the peer closes them.
async fn listener() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    tokio::task::spawn_local(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            tokio::task::spawn_local(async move { connection.read(&mut [0]).await });
        }
    });
    addr
}

fn on_a_worker<T>(run: impl AsyncFnOnce(Vec<SocketAddr>) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default());
    runtime.expect("a runtime").block_on(async { run(vec![listener().await, listener().await]).await })
}

fn fixed(limit: u32) -> Settings {
    Settings {
        nodes: vec![0],
        is_hashed: false,
        concurrency: Concurrency::Fixed(limit),
        queue: 1,
        keepalive: limit as usize,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn edits_of_upstreams_with_common_addresses_lead_to_the_same_treatment_of_a_load_as_a_start(
        edits in prop::collection::vec(edit(), 1..8),
        loads in prop::collection::vec(any::<bool>(), 8),
        reversed in any::<bool>(),
    ) {
        let (edited, started) = on_a_worker(async |addrs| {
            let mut edited = Edited::new(&addrs);
            let mut last: [Option<&Settings>; NAMES.len()] = [None; NAMES.len()];
            for ((place, settings), load) in edits.iter().zip(loads) {
                last[*place] = settings.as_ref();
                edited.edit(NAMES[*place], settings.as_ref()).await;
                if load {
                    edited.loaded(3).await;
                }
            }
            let mut started = Edited::new(&addrs);
            let mut places: Vec<usize> = (0..NAMES.len()).collect();
            if reversed {
                places.reverse();
            }
            for place in places {
                if let Some(settings) = last[place] {
                    started.edit(NAMES[place], Some(settings)).await;
                }
            }
            (edited.loaded(20).await, started.loaded(20).await)
        });
        prop_assert_eq!(edited, started);
    }
}

#[test]
fn limits_queues_and_kept_connections_of_upstreams_with_one_address_are_their_own() {
    on_a_worker(async |addrs| {
        let (a, b) = (fixed(1), Settings { queue: 2, ..fixed(3) });
        let of_a = Outcome { in_flight: 1, waiting: 1, refused: 4, kept: 1 };
        let of_b = Outcome { in_flight: 3, waiting: 2, refused: 1, kept: 3 };
        for order in [["a", "b"], ["b", "a"]] {
            let mut edited = Edited::new(&addrs);
            for name in order {
                edited.edit(name, Some(if name == "a" { &a } else { &b })).await;
            }
            assert_eq!(edited.loaded(6).await, [of_a, of_b]);
            edited.edit("b", Some(&a)).await;
            assert_eq!(edited.loaded(6).await, [of_a, of_a]);
        }
    });
}

#[test]
fn an_edit_of_an_upstream_keeps_count_of_its_exchanges() {
    on_a_worker(async |addrs| {
        let mut edited = Edited::new(&addrs);
        edited.edit("a", Some(&fixed(2))).await;
        let worker = Rc::clone(&edited.worker);
        let (before, context) = (worker.current(), worker.context());
        let held = [(); 2].map(|()| before.upstream(0).state.endpoints[0].try_permit(context).expect("two are free"));
        let exchange = ServedExchange::default();
        let mut waits_since_before = Box::pin(waits(before.upstream(0), 0, context, &exchange));
        let mut noop = Context::from_waker(std::task::Waker::noop());
        assert!(waits_since_before.as_mut().poll(&mut noop).is_pending());
        let has_free = || worker.current().upstream(0).state.endpoints[0].try_permit(context).is_some();
        edited.edit("a", Some(&Settings { keepalive: 7, ..fixed(2) })).await;
        assert!(!has_free(), "both are in use");
        let now = worker.current();
        let mut one_too_many = Box::pin(waits(now.upstream(0), 0, context, &exchange));
        let refused = one_too_many.as_mut().poll(&mut noop);
        assert_eq!(refused, std::task::Poll::Ready(false), "the queue has one place, which is taken");
        drop(one_too_many);
        edited.edit("a", Some(&fixed(4))).await;
        worker.pools.maintain(&worker);
        assert_eq!(waits_since_before.as_mut().poll(&mut noop), std::task::Poll::Ready(true));
        drop(held);
        assert!(has_free());
    });
}

#[test]
fn many_upstreams_with_one_address_share_its_connections_and_what_auto_has_found() {
    const MANY: usize = 10_000;
    on_a_worker(async |addrs| {
        let mut edited = Edited::new(&addrs);
        let settings = Settings { concurrency: Concurrency::Auto, queue: 1, keepalive: 4, ..fixed(1) };
        let upstreams: Pieces<_> =
            (0..MANY).map(|number| Arc::new(upstream(&format!("route/{number}"), &settings, &addrs))).collect();
        edited.publish(upstreams).await;
        edited.numbers = (0..MANY).map(|number| ("one of many", number)).collect();
        let current = edited.worker.current();
        let context = edited.worker.context();
        let first = |number: usize| &current.upstream(number).state.endpoints[0];
        let held = (0..MANY).filter_map(|number| first(number).try_permit(context)).collect::<Vec<_>>();
        assert_eq!(held.len(), 256, "the limit that `auto` begins with, for all of them together");
        drop(held);
        let mut exchange = ServedExchange::default();
        let mut opened = Vec::new();
        for number in 0..20 {
            let permit = first(number).try_permit(context).expect("it is free again");
            opened.push(
                permit.open(Freshness::New, Timeouts::default(), &mut exchange).await.expect("an endpoint listens"),
            );
        }
        opened.into_iter().for_each(|mut connection| connection.keep(context.now_ns()));
        let reused = |number| {
            let permit = first(number).try_permit(context).expect("it is free");
            permit.reuse(Freshness::Any, Duration::ZERO, &exchange).ok()
        };
        let reused: Vec<_> = (5_000..5_020).filter_map(reused).collect();
        assert_eq!(reused.len(), 4, "the size of the pool, for all of them together");
    });
}
