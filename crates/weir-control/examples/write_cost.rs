//! What a write of one route among many costs, from the request to the publication: planned, compiled, committed to the disk,
//! published. `cargo run --release -p weir-control --example write_cost -- 10000`.
//!
//! The argument is the number of routes, each with an upstream of its own. Prints how long the start takes, the time of a write,
//! and the memory of the process. Workers are not among it: `change_cost` shows what they are told.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_control::stores::resources::{Author, ResourceKey, ResourceView};
use weir_control::stores::{ResourceEdit, WriteOutcome, WriteRequest, import_into_store};
use weir_control::{
    Diagnostic, DocumentLoader, PreparedPublication, Publication, Publisher, Subscriber, publish_first, watch,
};
use weir_plugin::Registry;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const WRITES: usize = 200;

struct Silent;

impl Subscriber for Silent {
    fn published(&self, _: &Publication, _: PreparedPublication<'_>) {}

    fn refused(&self, diagnostics: &[Diagnostic]) {
        panic!("{diagnostics:#?}");
    }
}

fn main() {
    let routes: usize = std::env::args().nth(1).map_or(10_000, |count| count.parse().expect("a number"));
    let directory: PathBuf = std::env::temp_dir().join(format!("weir-write-cost-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a disk");
    let file = directory.join("weir.yaml");
    std::fs::write(&file, "store: { path: store.redb }\n").expect("a disk");
    let all: BTreeMap<ResourceKey, Value> =
        (0..routes).map(|number| (ResourceKey::new("routes", &format!("r{number}")), route(number, 1))).collect();
    import_into_store(&file, all, &Registry::new(&[])).unwrap_or_else(|faults| panic!("{faults:#?}"));

    let began = Instant::now();
    let (mut loader, loaded) = DocumentLoader::open(&file).unwrap_or_else(|faults| panic!("{faults:#?}"));
    let publisher = Arc::new(Publisher::new("weir.yaml", Registry::new(&[]), Box::new(Silent)));
    let (loaded, _) = publish_first(&mut loader, loaded, &publisher).unwrap_or_else(|faults| panic!("{faults:#?}"));
    println!("{routes} routes: read, compiled and published at start in {:?}", began.elapsed());

    let watch = watch(loader, loaded, publisher).expect("a thread");
    let writer = watch.writer();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let mut times: Vec<Duration> = Vec::new();
    for write in 0..WRITES {
        let number = write * 7_919 % routes;
        let key = ResourceKey::new("routes", &format!("r{number}"));
        let value = route(number, write + 2);
        let edit = ResourceEdit::Put { key, value, expires_ms: None };
        let plan = Box::new(move |_: &ResourceView| Ok(vec![edit.clone()]));
        let request =
            WriteRequest { plan, author: Author::default(), of_admin: true, forced: false, pattern_bytes: 1 << 20 };
        let began = Instant::now();
        let outcome = runtime.block_on(writer.write(request));
        times.push(began.elapsed());
        assert!(matches!(outcome, WriteOutcome::Applied(_)), "{outcome:?}");
    }
    times.sort();
    println!(
        "a write: median {:?}, p99 {:?}, at most {:?}",
        times[WRITES / 2],
        times[WRITES * 99 / 100],
        times[WRITES - 1]
    );
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .filter(|line| line.starts_with("VmHWM") || line.starts_with("VmRSS"))
        .for_each(|line| println!("{line}"));
    drop(watch);
    // What is left behind is in the directory for temporary files.
    let _ = std::fs::remove_dir_all(&directory);
}

fn route(number: usize, timeout: usize) -> Value {
    let (a, b, c) = (number >> 16 & 255, number >> 8 & 255, number & 255);
    let timeout = timeout % 50 + 1;
    json!({
        "uri": format!("/service{number}/*"),
        "upstream": { "nodes": { format!("10.{a}.{b}.{c}:80"): 1 } },
        "timeout": { "connect": timeout, "send": timeout, "read": timeout },
    })
}
