//! The lab counts a target's records at their destination, and compares them with the target's account.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use weir_testkit::{TempDir, skipped};

const SCENARIO: &str = r#"
name: records
title: Records
about: Records in an OpenSearch and at a receiver of syslog messages.
targets: [weir]
baseline: weir
connections: [4]
columns: [kept, account]
method: { warmup_s: 0.2, measured_s: 1, repeats: 1 }
rows:
  - name: without
  - name: store
    policies:
      elasticsearch-logger: { endpoint_addr: "{store}", field: { index: "{index}" }, inactive_timeout: 1, spool: {} }
    compare_with: without
  # So few datagrams that the socket of a receiver that stands still has room for all of them.
  - name: syslog
    rate: 100
    policies: { syslog: { host: 127.0.0.1, port: "{syslog_port}", sock_type: udp, batch_max_size: 1 } }
"#;

/// The installed programs are kept between runs of the tests.
const CACHE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/bench");

fn lab(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("bench").args(arguments).current_dir(directory).output().expect("it starts")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs the scenario; returns the result and the output.
fn run(directory: &Path, cache: &str) -> (Value, String) {
    std::fs::write(directory.join("records.yaml"), SCENARIO).expect("its own directory");
    let output = lab(directory, &["run", "records.yaml", "--out", "out", "--cache", cache]);
    let printed = text(&output);
    let files = std::fs::read_dir(directory.join("out")).unwrap_or_else(|_| panic!("{printed}"));
    let is_result = |path: &std::path::PathBuf| path.extension().is_some_and(|ending| ending == "json");
    let file = files.map(|file| file.expect("an entry").path()).find(is_result).expect("a result");
    (serde_json::from_slice(&std::fs::read(file).expect("it is there")).expect("JSON"), printed)
}

fn cell<'a>(result: &'a Value, row: &str) -> &'a Value {
    let cells = result["cells"].as_array().expect("a list");
    cells.iter().find(|cell| cell["row"] == row).expect("every row has one")
}

#[test]
fn every_record_of_a_row_is_found_at_its_destination() {
    let directory = TempDir::new();
    let installed = lab(directory.path(), &["install", "opensearch", "--cache", CACHE]);
    if !installed.status.success() {
        return skipped(text(&installed).lines().last().unwrap_or_default());
    }
    let (result, printed) = run(directory.path(), CACHE);
    for row in ["store", "syslog"] {
        let records = &cell(&result, row)["runs"][0]["records"];
        let account = &records["account"];
        assert!(account["accepted"].as_u64().is_some_and(|count| count > 0), "{records:#}");
        let count = |name: &str| account[name].as_u64().unwrap_or_else(|| panic!("{name}: {records:#}"));
        // Without a spool, records are dropped when a busy machine cannot send them fast enough; the account says how many.
        let outcomes = count("delivered") + count("rejected") + count("dropped") + count("pending");
        assert_eq!(count("accepted"), outcomes, "{records:#}");
        assert!(row == "syslog" || count("dropped") == 0, "{records:#}");
        assert_eq!(account["delivered"], records["written"], "{records:#}");
        assert_eq!(account["begun"], account["accepted"], "{records:#}");
    }
    assert_eq!(printed.matches("balances").count(), 2, "{printed}");
    let store = &result["backends"][0];
    assert_eq!(store["version"], "OpenSearch 2.19.1", "{store:#}");
}

#[test]
fn without_a_store_the_lab_says_how_to_get_it() {
    let directory = TempDir::new();
    let (result, printed) = run(directory.path(), "cache");
    let words = "opensearch is not installed: `weir bench install opensearch` does it";
    assert!(printed.contains(words), "{printed}");
    assert_eq!(cell(&result, "store")["status"], "unsupported");
    assert_eq!(cell(&result, "syslog")["status"], "measured", "other rows are measured: {printed}");
}
