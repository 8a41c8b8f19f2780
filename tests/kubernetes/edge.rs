//! A node that serves a cluster.

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::PathBuf;

use weir_testkit::{Answer, Client, DEADLINE, Gateway, Launcher, Origin, Response, TempDir, eventually, free_port};

use crate::objects::{gateway, route, service};
use crate::stand_in::StandIn;

/// A node that serves a cluster.
pub(crate) struct Edge {
    pub node: Gateway,
    address: SocketAddr,
    /// Whether it has listened for its Gateway. From then on no connection is refused.
    listens: Cell<bool>,
    file: String,
    data: TempDir,
}

/// The program under test.
pub(crate) fn binary() -> PathBuf {
    std::env::var_os("WEIR_TEST_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_weir").into()).into()
}

/// The gateway under test.
pub(crate) fn weir() -> Launcher {
    Gateway::with_binary(binary())
}

/// A cluster with an HTTPRoute from `/orders` to an origin, and a node that serves it.
pub(crate) fn serving() -> (StandIn, Origin, Edge) {
    serving_with("")
}

/// The same with further settings of the node.
pub(crate) fn serving_with(settings: &str) -> (StandIn, Origin, Edge) {
    let cluster = StandIn::start();
    let origin = Origin::serving(|_| Answer::ok("orders"));
    cluster.apply([route("orders", "/orders")]);
    cluster.apply(service("orders", origin.addr()));
    let edge = Edge::start_with(&cluster, settings);
    edge.wait("/orders", 200);
    (cluster, origin, edge)
}

impl Edge {
    /// Puts a Gateway into the cluster, starts a node, and waits until it is ready.
    #[track_caller]
    pub(crate) fn start(cluster: &StandIn) -> Edge {
        Edge::start_with(cluster, "")
    }

    /// The same with further settings of the node.
    #[track_caller]
    pub(crate) fn start_with(cluster: &StandIn, settings: &str) -> Edge {
        Edge::launch(weir(), cluster, settings)
    }

    /// The same with this launcher.
    #[track_caller]
    pub(crate) fn launch(launcher: Launcher, cluster: &StandIn, settings: &str) -> Edge {
        let (data, file, address) = place(cluster);
        let file = file + settings;
        Edge { node: launcher.start(&file), address, listens: Cell::default(), file, data }
    }

    /// Starts a node with this file, which has the data directory `data`, and a Gateway at this port.
    #[track_caller]
    pub(crate) fn with_file(file: String, data: TempDir, port: u16) -> Edge {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        Edge { node: weir().start(&file), address, listens: Cell::default(), file, data }
    }

    /// Starts a node, and does not wait until it is ready.
    #[track_caller]
    pub(crate) fn spawn(cluster: &StandIn) -> Edge {
        let (data, file, address) = place(cluster);
        Edge { node: weir().spawn(&file), address, listens: Cell::default(), file, data }
    }

    /// Ends the node, and starts it again with the same data directory.
    #[track_caller]
    pub(crate) fn restart(&mut self) {
        self.node.signal(weir_testkit::Signal::TERM);
        self.node.wait_exit(DEADLINE);
        self.node = weir().spawn(&self.file);
        self.listens.set(false);
        // Where it finds no cluster, it waits for a part of this time before it uses its copy.
        eventually("the node is ready", 3 * DEADLINE, || self.node.stderr().contains("weir: ready"));
    }

    /// Replaces a text in the file of the node, and waits until the node serves by it.
    #[track_caller]
    pub(crate) fn rewrite(&self, from: &str, to: &str) {
        assert!(self.file.contains(from), "{from} is in the file");
        self.node.rewrite(&self.file.replace(from, to));
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Response {
        let answer = Client::try_connect(self.address).map(|mut client| client.get(path));
        let answer = answer.unwrap_or_else(|error| panic!("{}: {error}\n{}", self.address, self.node.stderr()));
        answer.unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Waits until a path has this status. A node may be ready with the Gateway as it was before, and listen for the present one only then.
    /// It tries again after pauses that grow, to 5 seconds and more, so it may take longer than other facts.
    #[track_caller]
    pub(crate) fn wait(&self, path: &str, status: u16) {
        eventually(&format!("{path} has {status}"), 3 * DEADLINE, || {
            if !self.listens.get() && Client::try_connect(self.address).is_err() {
                return false;
            }
            self.listens.set(true);
            self.get(path).status == status
        });
    }

    /// Waits until the node says that it is connected to the cluster, or that it is not.
    #[track_caller]
    pub(crate) fn wait_store(&self, connected: bool) {
        eventually(&format!("`connected` is {connected}"), 3 * DEADLINE, || {
            self.node.status()["configuration"]["store"]["connected"] == connected
        });
    }

    /// Where its Gateway is reached.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The data directory of the node.
    pub(crate) fn data(&self) -> &TempDir {
        &self.data
    }
}

/// The data directory of a node, its file, and the address of the Gateway that is put into the cluster.
fn place(cluster: &StandIn) -> (TempDir, String, SocketAddr) {
    let (data, port) = (TempDir::new(), free_port());
    cluster.apply(gateway(port));
    let file = format!(
        "{}data_dir: {}\nresource_listeners: [\":{port}\"]\n",
        cluster.node(", publish_addresses: [\"203.0.113.7\"]"),
        data.path().display()
    );
    (data, file, SocketAddr::from(([127, 0, 0, 1], port)))
}
