//! A node that serves a cluster.

use std::net::SocketAddr;
use std::path::Path;

use weir_testkit::{Client, DEADLINE, Gateway, Launcher, Response, TempDir, eventually, free_port};

use crate::objects::gateway;
use crate::stand_in::StandIn;

/// A node that serves the Gateway of [`gateway`].
pub struct Edge {
    pub node: Gateway,
    file: String,
    address: SocketAddr,
    data: TempDir,
}

/// The gateway under test.
pub fn weir() -> Launcher {
    Gateway::with_binary(Path::new(env!("CARGO_BIN_EXE_weir")))
}

impl Edge {
    /// Puts the Gateway and what `fill` adds into the cluster, and starts the node.
    #[track_caller]
    pub fn start(cluster: &StandIn, fill: impl FnOnce(&StandIn)) -> Edge {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        cluster.apply(gateway(address.port()));
        fill(cluster);
        let data = TempDir::new();
        let file = node_file(cluster, address, &data);
        Edge { node: weir().start(&file), file, address, data }
    }

    /// Starts a node, and does not wait until it is ready.
    #[track_caller]
    pub fn spawn(cluster: &StandIn) -> Edge {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let data = TempDir::new();
        let file = node_file(cluster, address, &data);
        Edge { node: weir().spawn(&file), file, address, data }
    }

    /// Ends the node, and starts it again with the same directory for data.
    #[track_caller]
    pub fn restart(&mut self) {
        self.node.signal(weir_testkit::Signal::TERM);
        self.node.wait_exit(DEADLINE);
        self.node = weir().start(&self.file);
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Response {
        Client::connect(self.address).get(path).unwrap_or_else(|error| panic!("{path}: {error}\n{}", self.node.stderr()))
    }

    /// Waits until a path has this status.
    #[track_caller]
    pub fn wait(&self, path: &str, status: u16) {
        eventually(&format!("{path} has {status}"), DEADLINE, || self.get(path).status == status);
    }

    /// Waits until the node says that it is connected to the cluster, or that it is not.
    #[track_caller]
    pub fn wait_store(&self, connected: bool) {
        eventually(&format!("`connected` is {connected}"), DEADLINE, || {
            self.node.status()["configuration"]["store"]["connected"] == connected
        });
    }

    /// Waits until the copy on disk has been written.
    #[track_caller]
    pub fn wait_copy(&self) {
        let copy = self.data.join("kubernetes-copy.redb");
        eventually("there is a copy", DEADLINE, || copy.exists());
    }
}

fn node_file(cluster: &StandIn, address: SocketAddr, data: &TempDir) -> String {
    format!("{}listen: [\"{address}\"]\ndata_dir: {}\n", cluster.node(""), data.path().display())
}
