//! How a fleet of nodes on one etcd behaves: `cargo run --release -p weir-control --example fleet -- 300`.
//!
//! The nodes are real but for listeners and workers: each follows etcd on a thread of its own, compiles what has changed, publishes
//! it, and tells the others what it serves. Prints how long a change takes until a node has published it, what etcd and the nodes
//! cost, and how long it takes until all are back after etcd was started anew. Needs `etcd`, as `scripts/setup` unpacks it.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;
use weir_control::stores::resources::{Author, ResourceKey, ResourceView};
use weir_control::stores::{ResourceEdit, WriteOutcome, WriteRequest};
use weir_control::{ConfigWatch, Diagnostic, DocumentLoader, Publication, Publisher, Subscriber, publish_first, watch};
use weir_plugin::Registry;
use weir_testkit::{Program, TempDir, free_port};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CHANGES: usize = 30;
const PATIENCE: Duration = Duration::from_secs(120);

/// When each node has published last, and how often.
#[derive(Clone, Default)]
struct Published(Arc<Mutex<(usize, Option<Instant>)>>);

impl Published {
    fn now(&self) -> (usize, Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber for Published {
    fn published(&self, _: &Publication) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *told = (told.0 + 1, Some(Instant::now()));
    }

    fn refused(&self, _: &[Diagnostic]) {}
}

struct FleetNode {
    published: Published,
    watch: ConfigWatch,
    // Last: what the node keeps stands there.
    _directory: TempDir,
}

fn main() {
    let count: usize = std::env::args().nth(1).map_or(300, |count| count.parse().expect("a number"));
    let (client, peer, data) = (free_port(), free_port(), TempDir::new());
    let mut etcd = etcd(client, peer, data.path());
    let began = Instant::now();
    let nodes: Vec<FleetNode> = (0..count).map(|number| node(number, client)).collect();
    println!("{count} nodes started in {:.1?}", began.elapsed());
    let (cpu, own, began) = (cpu_ms(etcd_pid(client)), cpu_ms(std::process::id()), Instant::now());
    std::thread::sleep(Duration::from_secs(10));
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "at rest: etcd {:.3} ms of CPU a node and second, nodes {:.3}; etcd has {} MiB, all nodes {} MiB",
        (cpu_ms(etcd_pid(client)) - cpu) / seconds / count as f64,
        (cpu_ms(std::process::id()) - own) / seconds / count as f64,
        memory_mib(etcd_pid(client)),
        memory_mib(std::process::id()),
    );
    let cpu = cpu_ms(etcd_pid(client));
    let mut times: Vec<Duration> = (0..CHANGES).flat_map(|change| changed(&nodes, change)).collect();
    println!("etcd {:.1} ms of CPU a change", (cpu_ms(etcd_pid(client)) - cpu) / CHANGES as f64);
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!(
        "a change is published by a node after {:.1?} (p50), {:.1?} (p99), {:.1?} at most",
        at(50),
        at(99),
        at(100)
    );

    etcd.crash();
    std::thread::sleep(Duration::from_secs(5));
    let cpu = Instant::now();
    etcd = self::etcd(client, peer, data.path());
    let mut times = changed(&nodes, CHANGES);
    times.sort();
    println!(
        "after etcd was away for 5 s: half of the nodes are back and serve a change {:.1?} after it, all after {:.1?}",
        times[times.len() / 2],
        times[times.len() - 1],
    );
    println!("all of it took {:.1?}, and etcd {:.0} ms of CPU", cpu.elapsed(), cpu_ms(etcd_pid(client)));
    drop(nodes.into_iter().map(|node| node.watch).collect::<Vec<_>>());
    drop(etcd);
}

fn etcd(client: u16, peer: u16, data: &Path) -> Program {
    let mut command = Program::find("etcd").expect("scripts/setup unpacks it");
    let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    command.arg("--data-dir").arg(data.join("data"));
    command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &format!("default={peer}"), "--logger", "zap"]);
    Program::start(command, TempDir::new())
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

/// Makes a change by one node, and says how long it took each until it had published it.
fn changed(nodes: &[FleetNode], change: usize) -> Vec<Duration> {
    let before: Vec<usize> = nodes.iter().map(|node| node.published.now().0).collect();
    let key = ResourceKey::new("routes", &format!("r{}", change % 10));
    let value = json!({ "uri": format!("/{change}/*"), "upstream": { "nodes": { "127.0.0.1:80": 1 } } });
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let began = Instant::now();
    loop {
        let edit = ResourceEdit::Put { key: key.clone(), value: value.clone(), expires_ms: None };
        let plan = Box::new(move |_: &ResourceView| Ok(vec![edit.clone()]));
        let request = WriteRequest { plan, author: Author::default(), forced: false, dry_run: false };
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
    nodes.iter().filter_map(|node| Some(node.published.now().1?.saturating_duration_since(began))).collect()
}

/// The process that listens there, which is the only one with this port on its command line.
fn etcd_pid(client: u16) -> u32 {
    let wanted = format!("http://127.0.0.1:{client}");
    let pids = std::fs::read_dir("/proc").expect("it is there").flatten();
    let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let found = pids.find(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&wanted)
    });
    found.expect("it runs")
}

fn cpu_ms(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    // In hundredths of a second, as Linux tells them.
    let ticks = |field: usize| fields.get(field).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) * 10.0
}

fn memory_mib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}
