//! Limits with `durable: true`: what is left of a quota after the process was killed, stopped or replaced.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use weir_testkit::{
    Answer, Client, DEADLINE, EndOfAttack, Gateway, Origin, Signal, TempDir, eventually, is_full, on_small_disk, scaled,
};

use crate::{upgrade::upgrade, weir};

const COUNT: u64 = 100_000_000;
/// What a process that is killed may forget: the last tenth of a second, and the time that the disk of a busy machine takes.
const WINDOW: Duration = Duration::from_millis(100 + 400);

/// The bytes of the files below a directory.
fn bytes(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes(&entry.path()),
        Ok(metadata) => metadata.len(),
        // It has just been removed.
        Err(_) => 0,
    };
    entries.map(size).sum()
}

/// Waits until everything that was counted before is on disk, though requests are counted all the time: the first write may have begun
/// before this call, and the one after it has not.
#[track_caller]
fn wait_for_two_writes(data: &Path) {
    for _ in 0..2 {
        let before = bytes(data);
        eventually("changes are written", DEADLINE, || bytes(data) > before);
    }
}

fn yaml(data: &Path, origin: &Origin, more: &str) -> String {
    format!(
        "worker_processes: 2
data_dir: {}
routes:
  - id: quota
    uri: /*
    plugins: {{ limit-count: {{ count: {COUNT}, time_window: 2592000, key: all, key_type: constant, durable: true{more} }} }}
    upstream: {{ nodes: {{ \"{}\": 1 }} }}
",
        data.display(),
        origin.addr()
    )
}

/// What the answer to one request says was counted so far, with this request.
fn try_count(gateway: &Gateway) -> Option<u64> {
    let answer = Client::try_connect(gateway.addr()).ok()?.get("/").ok()?;
    assert_eq!(answer.status, 200);
    Some(COUNT - answer.headers.get("x-ratelimit-remaining")?.parse::<u64>().ok()?)
}

#[track_caller]
fn count(gateway: &Gateway) -> u64 {
    try_count(gateway).expect("an answer")
}

fn all_is_written(gateway: &Gateway) {
    let unwritten = || gateway.metrics().get("weir_durable_counters_unwritten");
    eventually("all counts are on disk", DEADLINE, || unwritten() == Some(0.0));
}

fn kill(mut gateway: Gateway) {
    gateway.signal(Signal::KILL);
    gateway.wait_exit(DEADLINE);
}

/// Requests of one load: how many were sent, and when each of those that were answered was.
struct Sent {
    sent: u64,
    answered: Vec<Instant>,
}

/// Two clients that ask one after the other until `end` returns; then what they have sent.
fn load<T>(gateway: &Gateway, end: impl FnOnce(&AtomicU64) -> T) -> (Sent, T) {
    let (is_over, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    let ask = || {
        let mut own = Sent { sent: 0, answered: Vec::new() };
        while !is_over.load(Relaxed) {
            own.sent += 1;
            if try_count(gateway).is_some() {
                own.answered.push(Instant::now());
                answers.fetch_add(1, Relaxed);
            }
        }
        own
    };
    thread::scope(|scope| {
        let clients = [scope.spawn(ask), scope.spawn(ask)];
        let ended = {
            // Also when a check fails: the scope waits for the clients.
            let _end = EndOfAttack(&is_over);
            end(&answers)
        };
        let [one, mut other] = clients.map(|client| client.join().expect("no panic"));
        other.answered.extend(one.answered);
        (Sent { sent: one.sent + other.sent, answered: other.answered }, ended)
    })
}

#[test]
fn f17_a_killed_process_forgets_at_most_its_last_requests() {
    for window in ["fixed", "sliding"] {
        let (data, origin) = (TempDir::new(), Origin::serving(|_| Answer::ok("ok")));
        let text = yaml(data.path(), &origin, &format!(", window_type: {window}"));
        let mut gateway = weir().start(&text);
        let mut known = count(&gateway);
        let mut worst = Duration::ZERO;
        for _ in 0..scaled(3, 100) {
            all_is_written(&gateway);
            let (load, (certain, killed)) = load(&gateway, |answers| {
                eventually("it answers for a while", DEADLINE, || answers.load(Relaxed) > 200);
                let certain = answers.load(Relaxed);
                wait_for_two_writes(&data.path().join("counters"));
                let killed = Instant::now();
                gateway.signal(Signal::KILL);
                eventually("it has ended", DEADLINE, || Client::try_connect(gateway.addr()).is_err());
                (certain, killed)
            });
            kill(gateway);
            gateway = weir().start(&text);
            let counted = count(&gateway) - 1 - known;
            let mut ages: Vec<_> = load.answered.iter().map(|at| killed.saturating_duration_since(*at)).collect();
            ages.sort();
            assert!(counted >= certain, "{window}: {counted} of {certain} answered requests were counted");
            assert!(counted <= load.sent, "{window}: {counted} of {} requests were counted", load.sent);
            let forgotten = (load.answered.len() as u64).saturating_sub(counted) as usize;
            worst = worst.max(forgotten.checked_sub(1).and_then(|last| ages.get(last)).copied().unwrap_or_default());
            known += counted + 1;
        }
        println!("{window}: at most the last {worst:?} were forgotten");
        assert!(!is_full() || worst <= WINDOW, "{window}: the last {worst:?} were forgotten");
    }
}

#[test]
fn f17_upgrades_and_a_stop_lose_no_count() {
    let (data, origin) = (TempDir::new(), Origin::serving(|_| Answer::ok("ok")));
    let text = yaml(data.path(), &origin, "");
    let mut gateway = weir().start(&text);
    let mut total = count(&gateway);
    for _ in 0..scaled(2, 20) {
        let (load, _) = load(&gateway, |answers| {
            eventually("it answers", DEADLINE, || answers.load(Relaxed) > 50);
            let process = upgrade(&gateway);
            let before = answers.load(Relaxed);
            eventually("the next process answers", DEADLINE, || answers.load(Relaxed) > before + 50);
            process
        });
        assert_eq!(load.answered.len() as u64, load.sent, "every request was answered");
        total += load.sent + 1;
        assert_eq!(count(&gateway), total);
    }
    eventually("the last process keeps the counts", DEADLINE, || {
        gateway.metrics().get("weir_durable_counters_unwritten") == Some(0.0)
    });
    let last = gateway.status()["pid"].as_u64().expect("a process") as i32;
    let last = rustix::process::Pid::from_raw(last).expect("not 0");
    rustix::process::kill_process(last, Signal::TERM).expect("it runs");
    eventually("it has ended", DEADLINE, || Client::try_connect(gateway.addr()).is_err());
    assert!(gateway.wait_exit(DEADLINE).success());
    let gateway = weir().start(&text);
    assert_eq!(count(&gateway), total + 1);
}

#[test]
fn f17_a_stop_right_after_a_request_counts_it() {
    let (data, origin) = (TempDir::new(), Origin::serving(|_| Answer::ok("ok")));
    let text = yaml(data.path(), &origin, "");
    for total in 1..=scaled(3, 20) as u64 {
        let mut gateway = weir().start(&text);
        assert_eq!(count(&gateway), total);
        gateway.signal(Signal::TERM);
        assert!(gateway.wait_exit(DEADLINE).success());
    }
}

#[test]
fn f17_two_processes_cannot_keep_the_same_counters() {
    let (data, origin) = (TempDir::new(), Origin::serving(|_| Answer::ok("ok")));
    let text = yaml(data.path(), &origin, "");
    let first = weir().start(&text);
    assert_eq!(count(&first), 1);
    let mut second = weir().spawn(&text);
    assert!(!second.wait_exit(DEADLINE).success());
    let said = second.stderr();
    let want = format!("are kept by another process, {}, and cannot be kept by two", first.pid());
    assert_eq!(said.matches(&want).count(), 1, "it is said once: {said}");
    assert_eq!(count(&first), 2, "the first is not disturbed");
}

/// Starts a second limit whose counters are durable, in a reload, after requests without it.
#[test]
fn f17_a_reload_that_makes_a_limit_durable_finds_what_was_kept() {
    let (data, origin) = (TempDir::new(), Origin::serving(|_| Answer::ok("ok")));
    let durable = yaml(data.path(), &origin, "");
    let gateway = weir().start(&durable);
    assert_eq!([count(&gateway), count(&gateway)], [1, 2]);
    gateway.rewrite(&durable.replace(", durable: true", ""));
    assert_eq!(count(&gateway), 1, "another limit");
    gateway.rewrite(&durable);
    // Requests are counted while what was kept is still being read, and join it.
    let mut asked = 0;
    eventually("it counts on top of what was kept", DEADLINE, || {
        asked += 1;
        count(&gateway) == 2 + asked
    });
}

#[test]
fn f17_a_folder_that_cannot_be_written_refuses_no_request_and_is_used_once_it_can() {
    let (data, origin) = (TempDir::new(), Origin::serving(|_| Answer::ok("ok")));
    let text = yaml(data.path(), &origin, "");
    // A file where a directory should be.
    let place = data.path().join("counters");
    fs::write(&place, "").expect("its own directory");
    let gateway = weir().start(&text);
    assert_eq!((1..=20).map(|_| count(&gateway)).collect::<Vec<_>>(), (1..=20).collect::<Vec<_>>());
    gateway.wait_stderr("it is said", |line| line.contains("cannot be kept on disk"));
    let failed = || gateway.metrics().get("weir_durable_counters_failed_writes_total").unwrap_or_default();
    eventually("it is counted", DEADLINE, || failed() > 0.0);
    fs::remove_file(&place).expect("its own file");
    all_is_written(&gateway);
    kill(gateway);
    assert_eq!(count(&weir().start(&text)), 21);
}

#[test]
fn f17_a_full_disk_refuses_no_request() {
    let (data, origin) = (TempDir::new(), Origin::serving(|_| Answer::ok("ok")));
    let Some(place) = on_small_disk(env!("CARGO_BIN_EXE_weir"), 1, data.path()) else { return };
    let gateway = Gateway::with_binary(place.join("weir")).start(&yaml(data.path(), &origin, ""));
    assert_eq!(count(&gateway), 1);
    all_is_written(&gateway);
    let inside = Path::new("/proc").join(gateway.pid().to_string()).join("root");
    let filler = inside.join(data.path().strip_prefix("/").expect("absolute")).join("filler");
    // Stops when there is no more room.
    let _ = fs::write(&filler, vec![0; 1 << 20]);
    let failed = || gateway.metrics().get("weir_durable_counters_failed_writes_total").unwrap_or_default();
    let mut counted = 1;
    eventually("a write fails", DEADLINE, || {
        counted += 1;
        assert_eq!(count(&gateway), counted, "requests are counted in memory");
        failed() > 0.0
    });
    fs::remove_file(&filler).expect("its own file");
    all_is_written(&gateway);
    assert_eq!(count(&gateway), counted + 1);
}
