//! What an open console costs: the node, and the browser.
//!
//! With `WEIR_TEST_FULL`, on a quiet machine: `WEIR_TEST_FULL=1 WEIR_TEST_BINARY=target/release/weir cargo test --workspace --test
//! console -- figures the_console_is_small --nocapture --test-threads 1` shows the figures, and those of sizes, which are in `rules`. All
//! bounds are asserted; those of times by the clock, and of the node, only then.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_testkit::{BrowserPage, Gateway, Origin, eventually, runs_for_minutes};

use crate::api;
use crate::bench::{Bench, ten_thousand_routes};

/// The processor time of the node for an open console, in milliseconds a second: 0.5 % of a core.
const NODE_MS: f64 = 5.0;
/// The time of the main thread until the first screen is there, and of a task while a table scrolls. Both with a processor of a
/// fourth of the speed.
const FIRST_SCREEN: Duration = Duration::from_secs(1);
const LONGEST_TASK_MS: f64 = 100.0;
const SLOWER: u32 = 4;
/// A node's processor time has a resolution of 10 ms.
const MEASURED: Duration = Duration::from_secs(30);

/// Whether the machine is quiet, and the gateway optimised.
fn is_asserted() -> bool {
    !cfg!(debug_assertions) || std::env::var_os("WEIR_TEST_BINARY").is_some()
}

/// 10,000 routes, and 1,000 endpoints.
fn large(origin: &Origin) -> Vec<(String, Value)> {
    let upstream = |number: usize| {
        let nodes = (1..=50).map(|port| (format!("127.0.0.1:{port}"), json!(1)));
        (format!("upstreams/u{number}"), json!({ "nodes": nodes.collect::<serde_json::Map<_, _>>() }))
    };
    let used = |number: usize| {
        let value = json!({ "uri": format!("/used/{number}"), "upstream_id": format!("u{number}") });
        (format!("routes/used-{number}"), value)
    };
    let more = (0..20).flat_map(|number| [upstream(number), used(number)]);
    ten_thousand_routes(origin).into_iter().chain(more).collect()
}

fn start() -> Option<Bench> {
    let page = BrowserPage::open()?;
    let binary = std::env::var_os("WEIR_TEST_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_weir").into());
    let bench = Bench::of(page, Gateway::with_binary(PathBuf::from(binary)).start(&api::file()));
    bench.fill(&large(&bench.origin));
    bench.log_in(api::ADMIN);
    Some(bench)
}

/// Milliseconds of the node's processor time for each second.
fn node_ms(bench: &Bench) -> f64 {
    let (began, before) = (Instant::now(), bench.gateway.cpu_ms());
    eventually("the time is over", 2 * MEASURED, || began.elapsed() >= MEASURED);
    (bench.gateway.cpu_ms() - before) as f64 / began.elapsed().as_secs_f64()
}

#[test]
fn an_open_console_costs_the_node_little() {
    if !runs_for_minutes("the processor time of a node is measured for a minute") {
        return;
    }
    let Some(bench) = start() else { return };
    bench.page.wait("the page has come to live figures", "document.querySelector('header .dot.good')");
    let open = node_ms(&bench);
    bench.page.visit("about:blank");
    bench.page.wait("the console is closed", "location.href === 'about:blank'");
    let closed = node_ms(&bench);
    println!("a node: {open:.1} ms a second with an open console, {closed:.1} ms without");
    assert!(!is_asserted() || open - closed <= NODE_MS, "{open} ms and {closed} ms a second");
}

/// The time of the main thread so far.
fn main_thread(bench: &Bench) -> Duration {
    let metrics = bench.page.call("Performance.getMetrics", &json!({}));
    let all = metrics["metrics"].as_array().expect("a list");
    let task = all.iter().find(|one| one["name"] == "TaskDuration").expect("it is among them");
    Duration::from_secs_f64(task["value"].as_f64().expect("a number"))
}

const SCROLL: &str = "new Promise((done) => {
    const tasks = [0];
    new PerformanceObserver((list) => tasks.push(...list.getEntries().map((one) => one.duration))).observe({ type: 'longtask' });
    const table = document.querySelector('weir-table');
    let frames = 0;
    const step = () => {
        table.scrollTop += 64 * (1 + frames % 7);
        frames += 1;
        if (frames < 200) requestAnimationFrame(step);
        else setTimeout(() => done(Math.max(...tasks)));
    };
    step();
})";

#[test]
fn the_first_screen_and_a_long_table_cost_the_browser_little() {
    if !runs_for_minutes("times of a browser need a quiet machine") {
        return;
    }
    let Some(bench) = start() else { return };
    bench.page.call("Performance.enable", &json!({ "timeDomain": "threadTicks" }));
    bench.page.call("Emulation.setCPUThrottlingRate", &json!({ "rate": SLOWER }));
    let before = main_thread(&bench);
    bench.page.evaluate("window.isOld = true; location.reload()");
    bench.page.wait("a new page", "!window.isOld && document.querySelector('#content h1')");
    bench.settle("the first screen");
    let first = main_thread(&bench).saturating_sub(before);
    bench.go("#/routes");
    bench.wait_text("10,020 routes");
    let longest = bench.page.evaluate(SCROLL).as_f64().expect("a number");
    println!("first screen: {first:?} of the main thread; the longest task while a table scrolls: {longest} ms");
    // Processor time, which other programs take none of.
    assert!(first <= FIRST_SCREEN, "{first:?}");
    assert!(!is_asserted() || longest <= LONGEST_TASK_MS, "{longest} ms");
}
