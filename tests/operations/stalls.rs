//! Files that answer nobody: a process reloads, reopens and ends all the same.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use weir_testkit::{DEADLINE, Signal, TempDir, eventually};

use crate::load::{Load, origin, routes};
use crate::weir;

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a directory of our own");
}

#[test]
fn p12_a_fifo_as_configuration_file_stops_neither_signals_nor_traffic() {
    let origin = origin();
    let mut gateway = weir().start(&routes(&origin));
    let before = gateway.file().with_extension("before");
    fs::rename(gateway.file(), &before).expect("it is there");
    fifo(gateway.file());
    // More signals than a queue would hold.
    (0..20).for_each(|_| gateway.signal(Signal::HUP));
    gateway.wait_stderr("why it is refused", |line| {
        line.contains("cannot be read: no data was written to the pipe in time")
    });
    assert_eq!(gateway.get("/").status, 200);
    let revision = gateway.revision();
    fs::rename(&before, gateway.file()).expect("it is there");
    // Reading the pipe again takes half of the usual time already.
    eventually("the file serves again", 3 * DEADLINE, || gateway.revision() > revision);
    fs::rename(gateway.file(), &before).expect("it is there");
    fifo(gateway.file());
    gateway.signal(Signal::HUP);
    gateway.signal(Signal::TERM);
    assert!(gateway.wait_exit(DEADLINE).success());
}

#[test]
fn p12_a_file_that_stalls_at_the_start_ends_the_node_as_a_store_that_is_away_does() {
    let directory = TempDir::new();
    let path = directory.join("weir.yaml");
    fifo(&path);
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).arg("run").arg(&path).output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("cannot be read: no data was written to the pipe in time"), "{told}");
    assert_eq!(output.status.code(), Some(5), "a later start may succeed: {told}");
}

#[test]
fn p12_a_log_whose_reader_stalls_is_opened_again_and_keeps_no_process() {
    let origin = origin();
    let directory = TempDir::new();
    let path = directory.join("pipe");
    fifo(&path);
    // Each line is long, so that the pipe is soon full.
    let yaml = format!(
        "worker_shutdown_timeout: 1\nenable_access_log: {{ path: {}, format: \"{}\" }}\n{}",
        path.display(),
        format_args!("$uri {}", "x".repeat(4_000)),
        routes(&origin)
    );
    let mut gateway = weir().start(&yaml);
    let stall = || {
        let load = Load::start(gateway.addr());
        load.wait_for(200);
        load.finish();
    };
    stall();
    fs::rename(&path, directory.join("moved")).expect("it is there");
    gateway.signal(Signal::USR1);
    eventually("a new file is there", DEADLINE, || path.exists());
    stall();
    fs::remove_file(&path).expect("it is there");
    fifo(&path);
    gateway.signal(Signal::USR1);
    stall();
    gateway.signal(Signal::TERM);
    assert!(gateway.wait_exit(DEADLINE).success());
}

#[test]
fn p12_a_standard_error_that_nobody_reads_stops_no_signal() {
    let origin = origin();
    let mut gateway = weir().start(&routes(&origin));
    let (mut refused, good) = ("routes:\n".to_owned(), routes(&origin));
    for _ in 0..50 {
        refused.push_str(&format!("  - {{ uri: /a, {}: 1 }}\n", "y".repeat(2_000)));
    }
    gateway.stop_reading_stderr();
    for number in 1..=3_u32 {
        gateway.replace_file(&refused);
        eventually("it is refused", DEADLINE, || {
            gateway.metrics().sum("weir_config_reloads_total", &["outcome=\"refused\""]) >= f64::from(number)
        });
        gateway.replace_file(&good);
        eventually("the file serves again", DEADLINE, || gateway.revision() > Some(u64::from(number)));
    }
    gateway.signal(Signal::TERM);
    assert!(gateway.wait_exit(DEADLINE).success());
}
