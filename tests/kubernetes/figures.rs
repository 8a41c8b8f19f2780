//! What a large cluster costs: times until changes are served, memory, and writes.
//!
//! With `WEIR_TEST_FULL` there are 10,000 routes, and the bounds are asserted if the gateway is optimised; `--nocapture` shows the
//! figures: `WEIR_TEST_FULL=1 cargo test --release --workspace --test kubernetes figures -- --nocapture`. `WEIR_TEST_BINARY` names another
//! binary of the gateway.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_testkit::{Answer, Client, DEADLINE, Gateway, Origin, TempDir, eventually, free_port, is_full, scaled};

use crate::edge::weir;
use crate::objects::{gateway, route, service};
use crate::pulling::{MutualTrust, RunningController, pulling};
use crate::stand_in::StandIn;

/// As long as it takes in the worst case.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
/// The bounds, with 10,000 routes.
pub(crate) const START: Duration = Duration::from_secs(5);
pub(crate) const ENDPOINT: Duration = Duration::from_millis(50);
pub(crate) const ROUTE: Duration = Duration::from_millis(200);
/// Of a controller, and of a node.
const MEMORY_MIB: u64 = 150;
/// Of a process that is both.
pub(crate) const BOTH_MIB: u64 = 200;
/// The most that Secrets to which nothing refers may add.
const SECRETS_MIB: u64 = 5;
/// Writes are counted for as long as the Lease is renewed so many times, each two seconds after the one before.
const RENEWALS: usize = 5;

fn are_bounds_asserted() -> bool {
    is_full() && (!cfg!(debug_assertions) || std::env::var_os("WEIR_TEST_BINARY").is_some())
}

/// The time that a share of all is not longer than.
fn quantile(times: &[Duration], share: f64) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len()) - 1]
}

/// A cluster with as many routes as Services, all of which lead to one endpoint.
pub(crate) fn large(count: usize, endpoint: &Origin, port: u16) -> StandIn {
    let cluster = StandIn::start();
    cluster.apply(gateway(port));
    for number in 0..count {
        let name = format!("app-{number}");
        cluster.apply([route(&name, &format!("/{name}"))]);
        cluster.apply(service(&name, endpoint.addr()));
    }
    cluster
}

pub(crate) fn text(client: &mut Client, path: &str) -> String {
    client.get(path).map(|answer| format!("{} {}", answer.status, answer.text())).unwrap_or_default()
}

/// How long it takes until a change is served on all of these connections, for each of these changes.
pub(crate) fn times(
    clients: &mut [Client],
    path: &str,
    changes: impl Iterator<Item = (Value, &'static str)>,
    apply: impl Fn(Value),
) -> Vec<Duration> {
    let mut time = |(object, expected): (Value, &str)| {
        let start = Instant::now();
        apply(object);
        for client in &mut *clients {
            while !text(client, path).starts_with(expected) {
                assert!(start.elapsed() < PATIENCE, "{path} is never answered with {expected}");
            }
        }
        start.elapsed()
    };
    changes.map(&mut time).collect()
}

/// So many connections that each worker has some.
pub(crate) fn connections(address: SocketAddr) -> Vec<Client> {
    (0..8).map(|_| Client::connect(address)).collect()
}

/// Figures beyond their bounds.
#[derive(Default)]
pub(crate) struct Missed(Vec<String>);

impl Missed {
    pub(crate) fn check<T: PartialOrd + std::fmt::Debug>(&mut self, what: &str, figure: T, most: T) {
        println!("{what}: {figure:?}, at most {most:?}");
        if figure > most {
            self.0.push(format!("{what}: {figure:?} is more than {most:?}"));
        }
    }

    /// Fails if bounds are asserted, and some figure is beyond its one.
    pub(crate) fn assert_none(self) {
        assert!(!are_bounds_asserted() || self.0.is_empty(), "{:#?}", self.0);
    }

    pub(crate) fn check_times(&mut self, what: &str, times: &[Duration], most: Duration) {
        println!("{what}: p50 {:?} of {}", quantile(times, 0.5), times.len());
        self.check(&format!("{what}, p99"), quantile(times, 0.99), most);
    }
}

/// The memory of a node in MiB.
fn memory(node: &Gateway) -> u64 {
    node.rss() >> 20
}

#[test]
fn changes_are_served_soon_in_a_large_cluster() {
    let (routes, changes) = (scaled(100, 10_000), scaled(10, 200));
    let (first, second) = (Origin::serving(|_| Answer::ok("first")), Origin::serving(|_| Answer::ok("second")));
    let port = free_port();
    let cluster = large(routes, &first, port);
    let data = TempDir::new();
    let settings = ", publish_addresses: [\"203.0.113.7\"]";
    let file = format!(
        "{}data_dir: {}\nresource_listeners: [\":{port}\"]\nworker_processes: 2\n",
        cluster.node(settings),
        data.path().display()
    );
    let start = Instant::now();
    let node = weir().start(&file);
    let last = format!("/app-{}", routes - 1);
    let address = ([127, 0, 0, 1], port).into();
    let is_served = || Client::try_connect(address).is_ok_and(|mut client| text(&mut client, &last) == "200 first");
    eventually("the last route is served", PATIENCE, is_served);
    let mut missed = Missed::default();
    missed.check(&format!("start to {routes} routes"), start.elapsed(), START);
    missed.check("memory in MiB", memory(&node), BOTH_MIB);
    let begun = Instant::now();
    eventually("all statuses are written", PATIENCE, || cluster.objects().write_count() >= routes);
    println!("statuses of {routes} routes: {:?} more", begun.elapsed());

    let mut clients = connections(address);
    let clients = &mut *clients;
    let apply = |object| cluster.apply([object]);
    let slice = |number: usize| {
        let (origin, expected) = if number.is_multiple_of(2) { (&second, "200 second") } else { (&first, "200 first") };
        let [_, slice] = service("app-1", origin.addr());
        (slice, expected)
    };
    missed.check_times("EndpointSlice", &times(clients, "/app-1", (0..changes).map(slice), apply), ENDPOINT);
    let moved = |number: usize| match number % 2 {
        0 => (route("app-2", "/elsewhere"), "404"),
        _ => (route("app-2", "/app-2"), "200"),
    };
    missed.check_times("HTTPRoute", &times(clients, "/app-2", (0..changes).map(moved), apply), ROUTE);
    missed.check(&format!("memory in MiB after {} changes", 2 * changes), memory(&node), BOTH_MIB);

    eventually("the last statuses are written", PATIENCE, || writes_in_a_while(&cluster) == 0);
    assert_eq!(writes_in_a_while(&cluster), 0, "nothing changes, so nothing is written");
    missed.assert_none();
}

/// The number of writes, but for renewals of the Lease, in a time of [`RENEWALS`].
fn writes_in_a_while(cluster: &StandIn) -> usize {
    let (writes, renewals) = (cluster.objects().write_count(), cluster.requests("leases"));
    eventually("the Lease is renewed", DEADLINE * 2, || cluster.requests("leases") >= renewals + RENEWALS);
    cluster.objects().write_count() - writes
}

#[test]
fn secrets_to_which_nothing_refers_cost_nothing() {
    let count = scaled(20, 4_000);
    let first = Origin::serving(|_| Answer::ok("first"));
    let port = free_port();
    let memory_with = |secrets: usize| {
        let cluster = large(10, &first, port);
        for number in 0..secrets {
            let release = json!({ "release": "x".repeat(500_000) });
            cluster.apply([json!({
                "apiVersion": "v1",
                "kind": "Secret",
                "type": "helm.sh/release.v1",
                "metadata": { "name": format!("release-{number}"), "namespace": "shop" },
                "data": release,
            })]);
            // No watch is to see them.
            cluster.objects().forget_history();
        }
        let node = weir().start(&format!("{}resource_listeners: [\":{port}\"]\n", cluster.node("")));
        let address = ([127, 0, 0, 1], port).into();
        let is_served =
            || Client::try_connect(address).is_ok_and(|mut client| text(&mut client, "/app-1") == "200 first");
        eventually("a route is served", DEADLINE, is_served);
        memory(&node)
    };
    let (without, with) = (memory_with(0), memory_with(count));
    println!("{count} Secrets of 500 kB: {with} MiB, without them {without} MiB");
    assert!(with <= without + SECRETS_MIB, "{with} MiB, and {without} MiB without {count} Secrets");
}

/// A controller alone, and a node that pulls from it.
#[test]
fn a_controller_of_a_large_cluster_is_small_and_its_nodes_watch_nothing() {
    let routes = scaled(100, 10_000);
    let first = Origin::serving(|_| Answer::ok("first"));
    let cluster = large(routes, &first, free_port());
    let trust = MutualTrust::new();
    let start = Instant::now();
    let controller = RunningController::start(&cluster, &trust, "");
    eventually("the controller is ready", PATIENCE, || controller.is_ready());
    let mut missed = Missed::default();
    missed.check(&format!("start to {routes} routes of the controller"), start.elapsed(), START);
    // It is ready when it has all lists.
    eventually("the controller watches what it has listed", PATIENCE, || cluster.has_watches_of_all_lists());
    let watches = cluster.watches();
    let start = Instant::now();
    let edge = pulling(&cluster, &trust, &[&controller]);
    let last = format!("/app-{}", routes - 1);
    // The node may have pulled the Gateway as it was before it got the node's port.
    eventually("the node listens for the Gateway", PATIENCE, || Client::try_connect(edge.address()).is_ok());
    eventually("the last route is served", PATIENCE, || edge.get(&last).status == 200);
    println!("start to {routes} routes of the node: {:?}", start.elapsed());
    eventually("all statuses are written", PATIENCE, || cluster.objects().write_count() >= routes);
    missed.check("memory of the controller in MiB", controller.memory() >> 20, MEMORY_MIB);
    missed.check("memory of the node in MiB", memory(&edge.node), MEMORY_MIB);
    // The controller may have opened one anew, when its time was over.
    let again = cluster.watches() - watches;
    assert!(again == 0 || start.elapsed() > Duration::from_secs(60), "{again} watches of a node");
    missed.assert_none();
}
