//! The plugin contract, shown with plugins as others would write them, over real sockets: a file each.

mod counts_on_all_workers;
mod counts_per_worker;
mod echoes;
mod shouts_later;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use weir_control::document::WrittenDocument;
use weir_control::text::yaml::TextLimits;
use weir_control::{Compiled, compile};
use weir_gateway::gateway::{DataPlane, GatewayOptions, Listener, ListenerId};
use weir_gateway::snapshot::ListenerProtocol;
use weir_gateway::snapshot::Snapshot;
use weir_plugin::{Entry, Registry};
use weir_telemetry::metrics::Metrics;
use weir_testkit::Client;

static REGISTRY: Registry = Registry::new(&[
    Entry::of::<counts_on_all_workers::CountAll>(),
    Entry::of::<counts_per_worker::CountOwn>(),
    Entry::of::<echoes::Echo>(),
    Entry::of::<shouts_later::ShoutLater>(),
]);

const WORKERS: usize = 2;

/// A gateway whose only route has these plugins.
struct Rig {
    gateway: DataPlane,
    address: SocketAddr,
}

fn snapshot(plugins: &str, revision: u64) -> Arc<Snapshot> {
    let text = format!("routes: [{{ id: a, uri: /*, plugins: {{ {plugins} }} }}]");
    let document = WrittenDocument::parse("weir.yaml", &text, &|_| None, TextLimits::default()).expect("is YAML");
    match compile(&document.without_secrets().alone(), &REGISTRY, None) {
        Ok(Compiled { mut snapshot, .. }) => {
            snapshot.revision = revision;
            Arc::new(snapshot)
        }
        Err(faults) => panic!("{faults:#?}"),
    }
}

impl Rig {
    fn start(plugins: &str) -> Rig {
        let snapshot = snapshot(plugins, 1);
        let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
        socket.set_nonblocking(true).expect("a socket");
        let address = socket.local_addr().expect("it is bound");
        let listener = || {
            let sockets = vec![socket.try_clone().expect("a descriptor").into()];
            vec![Listener { id: ListenerId(1), sockets, settings: ListenerProtocol::Http.into() }]
        };
        let options = GatewayOptions {
            listeners: (0..WORKERS).map(|_| listener()).collect(),
            snapshot: Arc::clone(&snapshot),
            metrics: Arc::new(Metrics::new(WORKERS)),
            access_log: None,
            connections_per_worker: 100,
            pipes_per_worker: 0,
        };
        let gateway = DataPlane::start(options).expect("threads");
        snapshot.start_plugins(None);
        Rig { gateway, address }
    }

    /// As a reload does it.
    fn reload(&self, plugins: &str) {
        let snapshot = snapshot(plugins, 2);
        assert!(self.gateway.publish(Arc::clone(&snapshot), Duration::from_secs(30)), "it was not published in time");
        snapshot.start_plugins(None);
    }

    fn client(&self) -> Client {
        Client::connect(self.address)
    }
}

/// What a plugin that counts says in the field `X-Count`.
fn count(client: &mut Client) -> u64 {
    let response = client.get("/").expect("a response");
    let value = response.headers.get("X-Count").expect("it counts");
    value.parse().expect("a number")
}
