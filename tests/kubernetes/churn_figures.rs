//! What a node keeps of routes that come and go.
//!
//! With `WEIR_TEST_FULL` these are 100 times 1,000 routes; bounds and other binaries as for `figures`.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_testkit::{Answer, Client, DEADLINE, Gateway, Origin, eventually, eventually_some, free_port, scaled};

use crate::edge::weir;
use crate::figures::{Missed, PATIENCE, large};
use crate::objects::{route, service};
use crate::stand_in::StandIn;

/// The share of the memory after the first cycle that those after later ones may have, in percent.
const GROWTH: u64 = 120;
/// The routes that stay.
const LASTING: usize = 10;
/// Memory is read when the Lease has been renewed so many times since the node has served the last change, each two seconds after the
/// one before: what is done once a second at most, such as writing the copy on disk, is done by then.
const RENEWALS: usize = 2;

/// A cluster whose routes come and go, and its node.
struct ChurningCluster {
    cluster: StandIn,
    node: Gateway,
    address: SocketAddr,
    endpoint: Origin,
    /// The number of the mark that the cluster has.
    mark: usize,
    /// What the node has to serve without the routes that come and go.
    lasting: ServedCounts,
}

/// How many routes and upstreams all workers of a node serve.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct ServedCounts {
    routes: u64,
    upstreams: u64,
}

impl ServedCounts {
    /// `None` while a worker serves another configuration than the last one.
    fn of(node: &Gateway) -> Option<ServedCounts> {
        let status = node.status();
        let configuration = &status["configuration"];
        let workers = status["workers"].as_array().into_iter().flatten();
        workers.map(|worker| &worker["revision"]).all(|it| *it == configuration["revision"]).then_some(())?;
        Some(ServedCounts {
            routes: configuration["routes"].as_u64()?,
            upstreams: configuration["upstreams"].as_u64()?,
        })
    }
}

impl ChurningCluster {
    fn start() -> ChurningCluster {
        let (endpoint, port) = (Origin::serving(|_| Answer::ok("first")), free_port());
        let cluster = large(LASTING, &endpoint, port);
        let settings = cluster.node(", publish_addresses: [\"203.0.113.7\"]");
        let node = weir().start(&format!("{settings}resource_listeners: [\":{port}\"]\nworker_processes: 2\n"));
        let (address, lasting) = (([127, 0, 0, 1], port).into(), ServedCounts::default());
        let mut churning = ChurningCluster { cluster, node, address, endpoint, mark: 0, lasting };
        churning.put(&mark(0));
        churning.pass_mark();
        churning.lasting = eventually_some("all workers agree", DEADLINE, || ServedCounts::of(&churning.node));
        churning
    }

    /// Creates a route with its Service and its endpoint.
    fn put(&self, name: &str) {
        self.cluster.apply([route(name, &format!("/{name}"))]);
        self.cluster.apply(service(name, self.endpoint.addr()));
    }

    fn delete(&self, name: &str) {
        self.cluster.objects().delete("httproutes", "shop", name);
        self.cluster.objects().delete("services", "shop", name);
        self.cluster.objects().delete("endpointslices", "shop", &format!("{name}-1"));
    }

    /// Waits until each of these routes is answered like this.
    fn wait(&self, names: &[String], expected: &str) {
        let mut client = None::<Client>;
        let mut is_answered = |path: &str| {
            client = client.take().or_else(|| Client::try_connect(self.address).ok());
            let answer = client.as_mut().and_then(|client| client.get(path).ok());
            if answer.is_none() {
                client = None;
            }
            answer.is_some_and(|answer| format!("{} {}", answer.status, answer.text()).starts_with(expected))
        };
        for name in names {
            let path = format!("/{name}");
            eventually(&format!("{path} is answered with {expected}"), PATIENCE, || is_answered(&path));
        }
    }

    /// Puts a route into the cluster in place of the last such one, and waits until it is served. Watches tell changes in their order, so
    /// by then the node has taken all that were made before.
    fn pass_mark(&mut self) {
        self.delete(&mark(self.mark));
        self.mark += 1;
        let name = mark(self.mark);
        self.put(&name);
        self.wait(&[name], "200 first");
    }

    fn wait_for_statuses(&self) {
        let is_untold = |route: &Value| route["status"].is_null();
        eventually("all routes have their status", PATIENCE, || {
            self.cluster.objects().find("httproutes", is_untold).is_empty()
        });
    }

    /// Creates these routes, has all lists read again while they are there, and deletes them. Each one is served, with its status, before
    /// it is deleted, and none is served after, so that each cycle is the same work.
    fn cycle(&mut self, names: &[String]) {
        names.iter().for_each(|name| self.put(name));
        self.wait(names, "200 first");
        self.wait_for_statuses();
        self.cluster.begin_watches_anew();
        self.pass_mark();
        names.iter().for_each(|name| self.delete(name));
        self.pass_mark();
        self.wait(names, "404");
        self.wait(&["app-1".to_owned()], "200 first");
    }

    /// When the Lease of the node was renewed.
    fn renewal(&self) -> String {
        let all = self.cluster.objects().all("leases");
        all.iter().map(|lease| lease["spec"]["renewTime"].to_string()).collect()
    }

    /// The memory of the node in KiB when it has nothing left to do.
    fn settled_memory(&self) -> u64 {
        eventually("all workers serve what is left, and nothing else", PATIENCE, || {
            ServedCounts::of(&self.node) == Some(self.lasting)
        });
        self.wait_for_statuses();
        for _ in 0..RENEWALS {
            let last = self.renewal();
            eventually("the Lease is renewed", DEADLINE * 2, || self.renewal() != last);
        }
        self.node.rss() >> 10
    }
}

/// The name of a route that marks a moment.
fn mark(number: usize) -> String {
    format!("mark-{number}")
}

#[test]
fn routes_that_come_and_go_leave_no_memory() {
    let (cycles, routes, measured) = (scaled(3, 100), scaled(50, 1_000), scaled(1, 10));
    let names: Vec<String> = (0..routes).map(|number| format!("brief-{number}")).collect();
    let mut churning = ChurningCluster::start();
    println!("memory in KiB with {LASTING} routes: {}", churning.settled_memory());
    let (mut missed, mut most, mut busy) = (Missed::default(), None, Duration::ZERO);
    for cycle in 1..=cycles {
        let start = Instant::now();
        churning.cycle(&names);
        busy += start.elapsed();
        if cycle == 1 || cycle.is_multiple_of(measured) {
            let memory = churning.settled_memory();
            let most = *most.get_or_insert(memory * GROWTH / 100);
            missed.check(&format!("memory in KiB after {cycle} cycles of {routes} routes"), memory, most);
        }
    }
    println!("{cycles} cycles in {busy:?}");
    missed.assert_none();
}
