//! Nodes join and leave a cluster while requests and changes go on.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use weir_testkit::{Client, DEADLINE, Gateway, Signal, TempDir, eventually, scaled};

use crate::api::Api;
use crate::commands::done;
use crate::etcd::{Etcd, mocking, serves};
use crate::weir;

/// The nodes that new connections go to, as a load balancer knows them.
#[derive(Clone, Default)]
struct Available(Arc<Mutex<Vec<SocketAddr>>>);

impl Available {
    fn nodes(&self) -> MutexGuard<'_, Vec<SocketAddr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, gateway: &Gateway) {
        self.nodes().push(gateway.addr());
    }

    fn remove(&self, gateway: &Gateway) {
        self.nodes().retain(|node| *node != gateway.addr());
    }
}

/// Clients that send requests to all nodes, on connections that they keep until a node closes them.
struct BalancedTraffic {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<()>>,
}

impl BalancedTraffic {
    fn to(available: &Available) -> BalancedTraffic {
        let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let clients = (0..2).map(|_| {
            let (stop, served, available) = (Arc::clone(&stop), Arc::clone(&served), available.clone());
            thread::spawn(move || {
                let mut connections = BTreeMap::new();
                while !stop.load(Relaxed) {
                    connect(&mut connections, &available);
                    connections.retain(|node, connection| keeps_open(*node, connection));
                    served.fetch_add(connections.len(), Relaxed);
                }
            })
        });
        BalancedTraffic { clients: clients.collect(), stop, served }
    }

    /// The number of requests. All of them were answered as they should be.
    fn end(self) -> usize {
        self.stop.store(true, Relaxed);
        self.clients.into_iter().for_each(|client| client.join().expect("no request fails"));
        self.served.load(Relaxed)
    }
}

/// Connects to the nodes that are available and not connected yet. A node is not stopped meanwhile.
fn connect(connections: &mut BTreeMap<SocketAddr, Client>, available: &Available) {
    for node in available.nodes().iter() {
        connections.entry(*node).or_insert_with(|| Client::connect(*node));
    }
}

/// Sends a request, which must not fail, and returns whether the node keeps the connection open.
fn keeps_open(node: SocketAddr, connection: &mut Client) -> bool {
    let answer = connection.get("/steady").unwrap_or_else(|error| panic!("a request to {node}: {error}"));
    assert_eq!((answer.status, answer.text().as_str()), (200, "steady"));
    !answer.closes()
}

/// Changes a route through one node after the other, and asks all nodes for it as soon as the change is answered.
#[derive(Default)]
struct Changes {
    made: usize,
}

impl Changes {
    fn make(&mut self, nodes: &[Gateway]) {
        self.made += 1;
        let text = format!("change {}", self.made);
        let node = &nodes[self.made % nodes.len()];
        eventually("etcd answers the node", DEADLINE, || {
            let answer = Api::of(node).ask("PUT", "routes/r?wait=60s", "", &mocking(&text));
            // 503: etcd did not answer in time, so the change may have been made or not. It is made again.
            assert!(matches!(answer.status, 200 | 201 | 503), "{} {}", answer.status, answer.text());
            answer.status != 503
        });
        for node in nodes {
            assert!(serves(node, "/r", &text), "{} does not serve change {}", node.addr(), self.made);
        }
    }

    /// Makes changes until something that takes a while is done.
    fn make_during<T>(&mut self, nodes: &[Gateway], task: JoinHandle<T>) -> T {
        let before = self.made;
        while self.made < before + scaled(5, 100) || !task.is_finished() {
            self.make(nodes);
        }
        task.join().expect("it does not panic")
    }
}

/// The output of `weir nodes`: for each node, whether it is in step.
fn listed(gateway: &Gateway) -> Vec<String> {
    let table = done(&["nodes"], gateway);
    // Who tells is said on standard error.
    let lines = table.lines().skip(1).filter(|line| !line.starts_with("weir: "));
    let lines = lines.filter_map(|line| line.split_whitespace().nth(3));
    lines.map(str::to_owned).collect()
}

#[track_caller]
fn all_listed_in_step(nodes: &[Gateway]) {
    for node in nodes {
        assert_eq!(listed(node), vec!["yes"; nodes.len()]);
    }
}

#[test]
fn one_node_becomes_three_and_one_again_and_no_request_fails() {
    let Some(etcd) = Etcd::of(1) else { return };
    let etcd = Arc::new(etcd);
    let start = || {
        let (etcd, directory) = (Arc::clone(&etcd), TempDir::new());
        thread::spawn(move || (weir().start(&etcd.node(&directory)), directory))
    };
    let (first, directory) = start().join().expect("it starts");
    let (mut nodes, mut directories) = (vec![first], vec![directory]);
    Api::of(&nodes[0]).put("routes/steady", &mocking("steady").replace("/r", "/steady"));
    let (available, mut changes) = (Available::default(), Changes::default());
    available.add(&nodes[0]);
    let traffic = BalancedTraffic::to(&available);
    while nodes.len() < 3 {
        let (joined, directory) = changes.make_during(&nodes, start());
        available.add(&joined);
        nodes.push(joined);
        directories.push(directory);
        // From its first request on, a node counts: it is listed, and changes wait for it.
        assert_eq!(listed(&nodes[0]).len(), nodes.len());
        changes.make(&nodes);
        all_listed_in_step(&nodes);
    }
    while nodes.len() > 1 {
        // The clients of the oldest node learn from its answers that it is leaving.
        let mut leaving = nodes.remove(0);
        available.remove(&leaving);
        leaving.signal(Signal::TERM);
        let ended = thread::spawn(move || leaving.wait_exit(DEADLINE).success());
        assert!(changes.make_during(&nodes, ended), "it ends in order");
        all_listed_in_step(&nodes);
    }
    let served = traffic.end();
    println!("{} changes beside {served} requests", changes.made);
    assert!(served > 0);
}
