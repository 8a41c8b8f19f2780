//! What a change of one route among many costs: `cargo run --release -p weir-control --example change_cost -- 100000 1`.
//!
//! The arguments are the number of routes, each with an upstream of its own, and of endpoints that each of these has. Prints the
//! time that each step takes, median and longest of the changes, and the memory of the process.

use std::fmt::Write;
use std::time::{Duration, Instant};

use weir_control::document::{CompleteDocument, WrittenDocument};
use weir_control::text::yaml::TextLimits;
use weir_control::{Compiled, compile};
use weir_plugin::Registry;

/// That of the binary: others may tidy up after the document before while the next one is compiled.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Changes that are tried.
const CHANGES: usize = 21;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse().expect("a number"));
    let routes: usize = arguments.next().unwrap_or(100_000);
    let endpoints: usize = arguments.next().unwrap_or(1);
    let (first, parsing) = timed(|| document(routes, endpoints, 0));
    let (compiled, compiling) = timed(|| compile(&first, &Registry::new(&[]), None));
    drop(first);
    let mut served = compiled.unwrap_or_else(|faults| panic!("{faults:#?}"));
    println!("parsed and read in {parsing:?}, compiled in {compiling:?}");
    let mut times = Vec::new();
    let mut differences = Vec::new();
    for change in 1..=CHANGES {
        let document = document(routes, endpoints, change);
        let (compiled, time) = timed(|| compile(&document, &Registry::new(&[]), Some(&served.parts)));
        let compiled: Compiled = compiled.unwrap_or_else(|faults| panic!("{faults:#?}"));
        let (changed, comparing) = timed(|| {
            let routes = compiled.snapshot.routes.changes_from(&served.snapshot.routes).len();
            (routes, compiled.snapshot.upstreams.changes_from(&served.snapshot.upstreams).len())
        });
        let routes = if change == 1 { 1 } else { 2 };
        assert_eq!(changed, (routes, 0), "this change's route, and that of the change before");
        times.push(time);
        differences.push(comparing);
        served = compiled;
    }
    for (what, times) in [("a change compiled", &mut times), ("what differs found", &mut differences)] {
        times.sort();
        println!("{what} in {:?}, at most {:?}", times[CHANGES / 2], times[CHANGES - 1]);
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .filter(|line| line.starts_with("VmHWM") || line.starts_with("VmRSS"))
        .for_each(|line| println!("{line}"));
}

/// Where one route has another timeout than the others.
fn document(routes: usize, endpoints: usize, changed: usize) -> CompleteDocument {
    let mut text = String::from("routes:\n");
    for route in 0..routes {
        write!(text, "- {{ id: r{route}, uri: /service{route}/*, upstream: {{ nodes: {{ ").expect("there is room");
        for endpoint in 0..endpoints {
            let number = route * endpoints + endpoint;
            let (a, b, c) = (number >> 16 & 255, number >> 8 & 255, number & 255);
            write!(text, "\"10.{a}.{b}.{c}:80\": 1, ").expect("there is room");
        }
        text.push_str("} }");
        if changed > 0 && route == routes * changed / (CHANGES + 1) {
            text.push_str(", timeout: { connect: 1, send: 1, read: 1 }");
        }
        text.push_str(" }\n");
    }
    let document = WrittenDocument::parse("weir.yaml", &text, &|_| None, TextLimits::default());
    document.expect("is YAML").without_secrets().alone()
}

fn timed<T>(run: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let done = run();
    (done, began.elapsed())
}
