//! The screen of the lab: a folder with results of this project.

use std::fs;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use weir_testkit::TempDir;

use crate::api;
use crate::bench::{Bench, axe};

const DRAIN: &str = "drain-20261127T032438Z.json";
const OLDER: &str = "failover-20261126T000000Z.json";
const NEWER: &str = "failover-20261127T032318Z.json";

/// A page whose node has three results, two of them of one scenario.
fn start(folder: &TempDir) -> Option<Bench> {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/results");
    for (number, (from, to)) in [(NEWER, OLDER), (DRAIN, DRAIN), (NEWER, NEWER)].into_iter().enumerate() {
        fs::copy(results.join(from), folder.join(to)).expect("it is copied");
        let file = fs::File::options().write(true).open(folder.join(to)).expect("it is there");
        let day = UNIX_EPOCH + Duration::from_secs(1_700_000_000 + 86_400 * number as u64);
        file.set_modified(day).expect("its time is set");
    }
    let file = api::file().replace("admin:\n", &format!("admin:\n  lab: {}\n", folder.path().display()));
    Bench::logged_out(&file)
}

#[test]
fn a_result_is_found_with_its_table_and_its_verdict() {
    let folder = TempDir::new();
    let Some(bench) = start(&folder) else { return };
    bench.log_in(api::VIEWER);
    bench.page.take_clicks();
    bench.page.click("#menu a[href='#/lab']");
    bench.settle("the results");
    let names = "[...document.querySelectorAll('weir-table .body a')].map((one) => one.textContent)";
    assert_eq!(bench.page.evaluate(names), serde_json::json!([NEWER, DRAIN, OLDER]), "the newest first");
    bench.page.click(&format!("weir-table a[href='#/lab/{NEWER}']"));
    bench.page.wait("the figures", "document.querySelectorAll('.wide-table tbody tr').length > 0");
    // All of them, not as many as are left room for.
    let clipped = "(() => { const table = document.querySelector('.wide-table'); return table.scrollHeight > table.clientHeight; })()";
    assert_eq!(bench.page.evaluate(clipped), false);
    bench.page.wait("the verdict", "document.querySelector('.verdict b')?.textContent.includes('alid')");
    assert_eq!(bench.page.take_clicks(), 2);
    bench.check_quiet();
}

#[test]
fn two_results_are_compared_by_keys() {
    let folder = TempDir::new();
    let Some(bench) = start(&folder) else { return };
    bench.log_in(api::ADMIN);
    bench.page.press("g");
    bench.page.press("a");
    bench.page.wait("the results", "document.querySelectorAll('weir-table .body a').length === 3");
    // The newest and the oldest.
    for key in ["j", "x", "j", "j", "x"] {
        bench.page.press(key);
    }
    bench.wait_text("Compare");
    bench.page.press("Ctrl+Enter");
    bench.page.wait("the comparison", &format!("location.hash === '#/lab/{OLDER}/{NEWER}'"));
    bench.page.wait("its lines", "document.querySelectorAll('.wide-table tbody tr').length > 0");
    bench.wait_text("is not different at 95 %");
    bench.go(&format!("#/lab/{DRAIN}/{NEWER}"));
    bench.wait_text("Nothing to compare");
    bench.wait_text("scenario: drain → failover");
    bench.check_quiet();
}

#[test]
fn the_lab_is_accessible() {
    let folder = TempDir::new();
    let (Some(axe), Some(bench)) = (axe(), start(&folder)) else { return };
    bench.log_in(api::ADMIN);
    bench.page.evaluate(&axe);
    bench.check_accessible(&["#/lab", &format!("#/lab/{DRAIN}"), &format!("#/lab/{OLDER}/{NEWER}")]);
}

#[test]
fn texts_of_a_result_make_no_elements() {
    let folder = TempDir::new();
    let Some(bench) = start(&folder) else { return };
    let text = fs::read_to_string(folder.join(DRAIN)).expect("it is there");
    let hostile = "<img src=x onerror=document.title='hostile'>";
    let mut result: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    result["scenario"]["title"] = hostile.into();
    result["scenario"]["about"] = hostile.into();
    result["manifest"]["kernel"] = hostile.into();
    fs::write(folder.join("hostile.json"), result.to_string()).expect("it is written");
    bench.log_in(api::ADMIN);
    bench.go("#/lab/hostile.json");
    bench.wait_text(hostile);
    assert_eq!(bench.page.evaluate("document.querySelectorAll('#content img').length"), 0);
    bench.check_quiet();
}
