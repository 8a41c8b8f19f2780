//! The behaviour of a fleet of nodes on one etcd.
//!
//! The nodes are real except for listeners and workers: each follows etcd on a thread of its own, compiles changes, publishes
//! them, and reports its content. The test prints how long a change takes until a node has published it, the cost for etcd and
//! the nodes, and the time until all nodes have recovered after a restart of etcd. It uses a few nodes, or 300 if
//! `WEIR_TEST_FULL` is set; `WEIR_FLEET` sets another number. With `WEIR_FLEET_PROXY`, etcd's own gRPC proxy is in between.

use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;
use weir_control::stores::resources::{Author, ResourceKey, ResourceView};
use weir_control::stores::{ResourceEdit, WriteOutcome, WriteRequest};
use weir_control::{
    ConfigWatch, Diagnostic, DocumentLoader, PreparedPublication, Publication, Publisher, Subscriber, publish_first,
    watch,
};
use weir_plugin::Registry;
use weir_testkit::{Program, TempDir, eventually, free_port, scaled};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CHANGES: usize = 30;
const PATIENCE: Duration = Duration::from_secs(120);
const AWAY: Duration = Duration::from_secs(5);

/// The number of publications of a node, and the time of the last one.
#[derive(Clone, Default)]
struct Published(Arc<Mutex<(usize, Option<Instant>)>>);

impl Published {
    fn now(&self) -> (usize, Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber for Published {
    fn published(&self, _: &Publication, _: PreparedPublication<'_>) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *told = (told.0 + 1, Some(Instant::now()));
    }

    fn refused(&self, _: &[Diagnostic]) {}
}

struct FleetNode {
    published: Published,
    watch: ConfigWatch,
    // Dropped last: the node's data is stored there.
    _directory: TempDir,
}

#[test]
fn a_change_reaches_every_node_of_a_fleet() {
    if Program::find("etcd").is_none() {
        return;
    }
    let chosen = std::env::var("WEIR_FLEET").ok().map(|count| count.parse().expect("WEIR_FLEET is a number"));
    let count: usize = chosen.unwrap_or_else(|| scaled(20, 300));
    let ports = EtcdPorts { client: free_port(), peer: free_port() };
    let data = TempDir::new();
    let mut etcd = ports.start(data.path());
    eventually("etcd answers", PATIENCE, || TcpStream::connect(("127.0.0.1", ports.client)).is_ok());
    let alone_mib = memory_mib(ports.pid());
    let proxy = std::env::var_os("WEIR_FLEET_PROXY").map(|_| ports.proxy());
    let asked = proxy.as_ref().map_or(ports.client, |(port, _)| *port);
    let began = Instant::now();
    let nodes: Vec<FleetNode> = (0..count).map(|number| node(number, asked)).collect();
    println!("{count} nodes started one after the other in {:.1?}", began.elapsed());
    rest(&ports, count, alone_mib);
    print_changes(&ports, &nodes);

    etcd.crash();
    // The length of the outage; not a wait for an event.
    std::thread::sleep(AWAY);
    let began = Instant::now();
    etcd = ports.start(data.path());
    let times = changed(&nodes, CHANGES);
    let etcd_mib = memory_mib(ports.pid());
    println!(
        "etcd was away for {AWAY:?}: after its start, half of the nodes serve a new change within {:.1?}, all within {:.1?}; \
         etcd needs {:.0} ms of CPU until then and has {etcd_mib} MiB",
        times[times.len() / 2],
        began.elapsed(),
        cpu_ms(ports.pid()),
    );
    nodes.into_iter().for_each(|node| drop(node.watch));
    drop(etcd);
}

/// Prints the cost for etcd and the nodes while nothing changes.
fn rest(ports: &EtcdPorts, count: usize, alone_mib: u64) {
    let (etcd, own, began) = (cpu_ms(ports.pid()), cpu_ms(std::process::id()), Instant::now());
    // The length of the measurement; not a wait for an event.
    std::thread::sleep(Duration::from_secs(scaled(1, 10) as u64));
    let node_seconds = began.elapsed().as_secs_f64() * count as f64;
    println!(
        "at rest, per node and second: {:.2} ms of CPU of etcd, {:.2} ms of the node; etcd has {} MiB, {alone_mib} MiB before \
         the first node; all nodes have {} MiB",
        (cpu_ms(ports.pid()) - etcd) / node_seconds,
        (cpu_ms(std::process::id()) - own) / node_seconds,
        memory_mib(ports.pid()),
        memory_mib(std::process::id()),
    );
}

fn print_changes(ports: &EtcdPorts, nodes: &[FleetNode]) {
    let (etcd, own) = (cpu_ms(ports.pid()), cpu_ms(std::process::id()));
    let mut times: Vec<Duration> = (0..CHANGES).flat_map(|change| changed(nodes, change)).collect();
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!(
        "a change is published by a node after {:.1?} (p50), {:.1?} (p99), {:.1?} at most",
        at(50),
        at(99),
        at(100)
    );
    println!(
        "a change costs {:.1} ms of CPU of etcd, {:.1} ms of all nodes together",
        (cpu_ms(ports.pid()) - etcd) / CHANGES as f64,
        (cpu_ms(std::process::id()) - own) / CHANGES as f64,
    );
}

/// The ports of etcd.
struct EtcdPorts {
    client: u16,
    peer: u16,
}

impl EtcdPorts {
    fn start(&self, data: &Path) -> Program {
        let mut command = Program::find("etcd").expect("it was there just now");
        let (client, peer) = (format!("http://127.0.0.1:{}", self.client), format!("http://127.0.0.1:{}", self.peer));
        command.arg("--data-dir").arg(data.join("data"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("default={peer}"), "--logger", "zap"]);
        Program::start(command, TempDir::new())
    }

    /// Starts a gRPC proxy in front of etcd; returns its port.
    fn proxy(&self) -> (u16, Program) {
        let mut command = Program::find("etcd").expect("it was there just now");
        let port = free_port();
        command.args(["grpc-proxy", "start", "--endpoints", &format!("127.0.0.1:{}", self.client)]);
        command.args(["--listen-addr", &format!("127.0.0.1:{port}")]);
        let proxy = Program::start(command, TempDir::new());
        eventually("the proxy answers", PATIENCE, || TcpStream::connect(("127.0.0.1", port)).is_ok());
        (port, proxy)
    }

    /// The process of etcd, which is the only one with this URL on its command line.
    fn pid(&self) -> u32 {
        let wanted = format!("http://127.0.0.1:{}", self.client);
        let pids = std::fs::read_dir("/proc").expect("it is there").flatten();
        let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let found = pids.find(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&wanted)
        });
        found.expect("it runs")
    }
}

fn node(number: usize, client: u16) -> FleetNode {
    let directory = TempDir::new();
    let text = format!("data_dir: .\nstore: {{ etcd: {{ hosts: [\"http://127.0.0.1:{client}\"] }} }}\n");
    let file = directory.write("weir.yaml", &text);
    std::fs::write(directory.join("node-name"), format!("node-{number}")).expect("a disk");
    let (mut loader, loaded) = DocumentLoader::open(&file).unwrap_or_else(|faults| panic!("{faults:#?}"));
    let published = Published::default();
    let publisher = Arc::new(Publisher::new("weir.yaml", Registry::new(&[]), Box::new(published.clone())));
    let (loaded, _) = publish_first(&mut loader, loaded, &publisher).unwrap_or_else(|faults| panic!("{faults:#?}"));
    let watch = watch(loader, loaded, publisher).expect("a thread");
    FleetNode { published, watch, _directory: directory }
}

/// Makes a change through one node; returns how long each node took to publish it, in ascending order.
fn changed(nodes: &[FleetNode], change: usize) -> Vec<Duration> {
    let before: Vec<usize> = nodes.iter().map(|node| node.published.now().0).collect();
    let key = ResourceKey::new("routes", &format!("r{}", change % 10));
    let value = json!({ "uri": format!("/{change}/*"), "upstream": { "nodes": { "127.0.0.1:80": 1 } } });
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let began = Instant::now();
    loop {
        let edit = ResourceEdit::Put { key: key.clone(), value: value.clone(), expires_ms: None };
        let plan = Box::new(move |_: &ResourceView| Ok(vec![edit.clone()]));
        let request =
            WriteRequest { plan, author: Author::default(), of_admin: true, forced: false, pattern_bytes: 1 << 20 };
        let outcome = runtime.block_on(nodes[change % nodes.len()].watch.writer().write(request));
        if matches!(outcome, WriteOutcome::Applied(_)) {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{outcome:?}");
    }
    while nodes.iter().zip(&before).any(|(node, before)| node.published.now().0 == *before) {
        assert!(began.elapsed() < PATIENCE, "some nodes have not published it");
        std::thread::sleep(Duration::from_millis(1));
    }
    let times = nodes.iter().filter_map(|node| Some(node.published.now().1?.saturating_duration_since(began)));
    let mut times: Vec<Duration> = times.collect();
    times.sort();
    times
}

fn cpu_ms(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    // The unit of Linux is 10 ms.
    let ticks = |field: usize| fields.get(field).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) * 10.0
}

fn memory_mib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}
