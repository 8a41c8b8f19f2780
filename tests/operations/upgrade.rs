//! F15: another binary carries on with the same sockets, or does not, and clients notice nothing.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, test_kill_process};
use weir_testkit::{
    Answer, Authority, Client, DEADLINE, Gateway, Identity, Origin, Reading, Signal, TempDir, TlsClient, eventually,
    eventually_some, scaled,
};

use crate::load::{Events, Load, Tunnel, origin, routes};
use crate::{script, weir};

/// The process that answers at the status address and does not drain.
fn serving(gateway: &Gateway) -> Option<u32> {
    let status = gateway.status();
    (status["state"] == "serving").then(|| status["pid"].as_u64().expect("a process has an id") as u32)
}

fn signal(process: u32, signal: Signal) {
    let process = Pid::from_raw(process as i32).expect("not 0");
    rustix::process::kill_process(process, signal).expect("it runs");
}

fn runs(process: u32) -> bool {
    // A process that has ended and was not waited for answers too; its state tells.
    let running = Pid::from_raw(process as i32).is_some_and(|process| test_kill_process(process).is_ok());
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    running && !stat.rsplit(')').next().unwrap_or_default().starts_with(" Z")
}

/// Upgrades the process that serves, and returns the one that does afterwards.
#[track_caller]
pub(crate) fn upgrade(gateway: &Gateway) -> u32 {
    let before = eventually_some("somebody serves", DEADLINE, || serving(gateway));
    signal(before, Signal::USR2);
    gateway.wait_stderr("that another serves", |line| line.ends_with(&format!("; process {before} drains")));
    serving(gateway).expect("only the new one answers now")
}

/// A gateway whose binary can be replaced.
struct Installed {
    place: TempDir,
    gateway: Gateway,
}

impl Installed {
    fn start(yaml: &str, arguments: &[&str]) -> Installed {
        let place = TempDir::new();
        let binary = place.join("weir");
        symlink(env!("CARGO_BIN_EXE_weir"), &binary).expect("its own directory");
        let launcher =
            arguments.iter().fold(Gateway::with_binary(&binary), |launcher, argument| launcher.arg(argument));
        Installed { gateway: launcher.start(yaml), place }
    }

    /// Puts a script where the binary was. The running process keeps the file it was started from.
    fn install(&self, text: &str) {
        fs::rename(script(&self.place, "new", text), self.binary()).expect("its own directory");
    }

    fn install_weir(&self) {
        symlink(env!("CARGO_BIN_EXE_weir"), self.place.join("new")).expect("its own directory");
        fs::rename(self.place.join("new"), self.binary()).expect("its own directory");
    }

    fn binary(&self) -> PathBuf {
        self.place.join("weir")
    }

    /// An upgrade that must fail, and be said everywhere, while everybody is served by the same process.
    fn upgrade_in_vain(&self, why: &str) {
        let gateway = &self.gateway;
        let failed = |gateway: &Gateway| gateway.metrics().get("weir_upgrades_failed_total").expect("it is counted");
        let before = failed(gateway);
        gateway.signal(Signal::USR2);
        eventually(why, DEADLINE, || failed(gateway) > before);
        assert_eq!(serving(gateway), Some(gateway.pid()), "{why}");
        let status = gateway.status();
        let said = status["upgrade"]["error"].as_str().expect("it says why");
        assert!(said.contains(why), "{said:?} does not say {why:?}");
        gateway.wait_stderr(why, |line| line.starts_with("weir: upgrade failed: ") && line.contains(why));
        assert_eq!(gateway.ask_status("/status/ready").status, 200);
    }
}

#[test]
fn f15_upgrades_under_load_fail_nothing() {
    let origin = origin();
    let mut gateway = weir().start(&format!("worker_processes: 2\n{}", routes(&origin)));
    let load = Load::start(gateway.addr());
    let mut processes = vec![gateway.pid()];
    for _ in 0..scaled(3, 20) {
        // Twenty upgrades last five minutes or so.
        for _ in 0..scaled(1, 100) {
            load.wait_for(scaled(100, 5_000));
            origin.forget();
        }
        processes.push(upgrade(&gateway));
    }
    load.wait_for(100);
    load.finish();
    let last = processes.pop().expect("there is one");
    assert!(gateway.wait_exit(DEADLINE).success());
    eventually("all others end", DEADLINE, || processes.iter().all(|process| !runs(*process)));
    assert!(runs(last));
    // The last one listens where the first one did.
    assert_eq!(gateway.get("/a").text(), "GET /a 0");
}

#[test]
fn f15_sessions_are_resumed_in_the_new_process() {
    let origin = origin();
    let Identity { certificate, key } = Authority::of_tests().identity(&["t"]);
    let gateway = weir().start(&format!(
        "listen: [\"127.0.0.1:0\", {{ address: \"127.0.0.1:0\", tls: true }}]\n\
         ssls: [{{ sni: t, cert: {certificate:?}, key: {key:?} }}]\n{}",
        routes(&origin)
    ));
    let tls = TlsClient::trusting(Authority::of_tests());
    let resumed = || {
        let tcp = TcpStream::connect(gateway.tls_addr()).expect("it listens");
        let mut client = Client::over_tls(tcp, &tls, "t").expect("a handshake");
        // The ticket comes behind the handshake.
        assert_eq!(client.get("/a").expect("an answer").text(), "GET /a 0");
        client.agreed().expect("TLS").resumed
    };
    assert_eq!([resumed(), resumed()], [false, true]);
    upgrade(&gateway);
    upgrade(&gateway);
    assert!(resumed(), "two processes later");
}

#[test]
fn quotas_are_handed_over_and_exact_while_both_processes_serve() {
    const QUOTA: usize = 12_000;
    let month = format!("count: {QUOTA}, time_window: 2592000, key: all, key_type: constant, rejected_code: 429");
    let origin = origin();
    let yaml = format!(
        "worker_processes: 2
routes:
  - {{ uri: /*, plugins: {{ limit-count: {{ {month} }} }}, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}
",
        origin.addr()
    );
    let installed = Installed::start(&yaml, &[]);
    let gateway = &installed.gateway;
    // Each client asks until its first refusal, on a new connection each time: at the new process, or at the one that drains.
    let until_refused = || (0..).take_while(|_| gateway.get("/").status == 200).count();
    let passed: usize = thread::scope(|scope| {
        let clients: Vec<_> = (0..3).map(|_| scope.spawn(until_refused)).collect();
        (0..2).for_each(|_| _ = upgrade(gateway));
        clients.into_iter().map(|client| client.join().expect("no panic")).sum()
    });
    assert_eq!(passed, QUOTA);
    upgrade(gateway);
    assert_eq!(gateway.get("/").status, 429, "a month has not passed");
}

#[test]
fn f15_streams_stay_with_the_old_process_and_it_waits_for_them() {
    let origin = origin();
    let mut gateway = weir().start(&routes(&origin));
    let mut events = Events::open(gateway.addr());
    let mut tunnel = Tunnel::open(gateway.addr());
    let mut both = || events.next().and_then(|()| tunnel.echo()).expect("they stay open");
    both();
    upgrade(&gateway);
    for _ in 0..20 {
        both();
    }
    assert!(!gateway.has_exited(), "it left its streams behind");
    drop((events, tunnel));
    assert!(gateway.wait_exit(DEADLINE).success());
}

#[test]
fn a_process_that_drains_follows_no_change_of_the_file() {
    let origin = origin();
    let mut gateway = weir().start(&routes(&origin));
    let mut events = Events::open(gateway.addr());
    events.next().expect("an event");
    upgrade(&gateway);
    gateway.rewrite(&format!("worker_shutdown_timeout: 60\n{}", routes(&origin)));
    gateway.signal(Signal::HUP); // the one that drains is asked, too
    events.next().expect("another event");
    drop(events);
    assert!(gateway.wait_exit(DEADLINE).success());
    let said = gateway.stderr();
    let applied = said.lines().filter(|line| line.contains("configuration applied")).count();
    assert_eq!((applied, said.contains("has not adopted")), (1, false), "{said}");
}

#[test]
fn f15_a_stream_that_does_not_end_is_cut_off_when_the_time_is_up() {
    let origin = origin();
    let mut gateway = weir().start(&format!("worker_shutdown_timeout: 1\n{}", routes(&origin)));
    let mut events = Events::open(gateway.addr());
    events.next().expect("an event");
    upgrade(&gateway);
    assert!(gateway.wait_exit(DEADLINE).success());
    gateway.wait_stderr("what was lost", |line| line == "weir: drain time-out: closing 1 open connections");
}

#[test]
fn f15_any_number_of_workers_takes_over_from_any_other() {
    let origin = origin();
    let file = |workers: usize| format!("worker_processes: {workers}\n{}", routes(&origin));
    let gateway = weir().start(&file(1));
    let load = Load::start(gateway.addr());
    for workers in [3, 2, 1, 2] {
        gateway.rewrite(&file(workers));
        upgrade(&gateway);
        let status = gateway.status();
        assert_eq!(status["workers"].as_array().map(Vec::len), Some(workers));
        // Every socket of the group is accepted from, or some of these would wait for ever.
        for _ in 0..40 {
            assert_eq!(gateway.get("/a").text(), "GET /a 0");
        }
        load.wait_for(100);
    }
    load.finish();
}

#[test]
fn f15_a_binary_that_cannot_serve_leaves_the_old_one_serving() {
    let origin = origin();
    let installed = Installed::start(&routes(&origin), &[]);
    let load = Load::with_streams(installed.gateway.addr());
    load.wait_for(100);
    installed.install("#!/bin/sh\nexit 7\n");
    installed.upgrade_in_vain("ended before it was ready (exit status: 7)");
    installed.install("no program at all");
    installed.upgrade_in_vain("cannot be started: it is no program for this machine");
    installed.install("#!/bin/sh\n");
    fs::set_permissions(installed.binary(), fs::Permissions::from_mode(0o644)).expect("its own file");
    installed.upgrade_in_vain("cannot be started: Permission denied");
    fs::remove_file(installed.binary()).expect("it is there");
    installed.upgrade_in_vain("cannot be started: No such file");
    load.wait_for(100);
    load.finish();

    // And a good one still works.
    installed.install_weir();
    let now = upgrade(&installed.gateway);
    assert_ne!(now, installed.gateway.pid());
    assert!(installed.gateway.status()["upgrade"]["error"].is_null());
}

#[test]
fn f15_a_binary_that_hangs_leaves_the_old_one_serving() {
    let origin = origin();
    // So short a time is for what never becomes ready: a good binary may need longer on a busy machine.
    let installed = Installed::start(&routes(&origin), &["--upgrade-timeout", "0.5"]);
    let load = Load::with_streams(installed.gateway.addr());
    load.wait_for(100);
    installed.install("#!/bin/sh\nexec sleep 1000\n");
    installed.upgrade_in_vain("was not ready after 0.5 s");
    load.wait_for(100);
    load.finish();
}

#[test]
fn f15_a_file_the_new_process_refuses_leaves_the_old_one_serving() {
    let origin = origin();
    let installed = Installed::start(&routes(&origin), &[]);
    let load = Load::start(installed.gateway.addr());
    load.wait_for(100);
    installed.gateway.replace_file("routes: nonsense\n");
    installed.upgrade_in_vain("ended before it was ready (exit status: 1)");
    load.wait_for(100);
    load.finish();
    installed.gateway.replace_file(&routes(&origin));
    upgrade(&installed.gateway);
}

#[test]
fn a_signal_to_end_ends_an_upgrade_that_is_under_way_too() {
    let origin = origin();
    let installed = Installed::start(&routes(&origin), &[]);
    installed.install("#!/bin/sh\necho \"weir: new one is $$\" >&2\nexec sleep 1000\n");
    let mut gateway = installed.gateway;
    gateway.signal(Signal::USR2);
    let said = gateway.wait_stderr("the new process's id", |line| line.starts_with("weir: new one is "));
    let new: u32 = said.trim_start_matches("weir: new one is ").parse().expect("a number");
    gateway.signal(Signal::TERM);
    assert!(gateway.wait_exit(DEADLINE).success());
    eventually("the new process is ended", DEADLINE, || !runs(new));
}

/// Drains a gateway with six streams of events and one answer that is none; whether all streams were ended in time.
fn event_streams_end(origin: &Origin, workers: usize, seconds: u32) -> bool {
    let mut gateway = weir().start(&format!(
        "worker_processes: {workers}\nworker_shutdown_timeout: {seconds}\n\
         routes: [{{ uri: /*, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}]\n",
        origin.addr()
    ));
    let (arrived, arrivals) = channel();
    let ask = |mut client: Client, target: &'static str| {
        let arrived = arrived.clone();
        thread::spawn(move || client.get_noting(target, || arrived.send(()).expect("the test waits")))
    };
    let client = |number: usize| if number.is_multiple_of(2) { gateway.client().by_http2() } else { gateway.client() };
    let whole: Vec<_> = (0..6).map(|number| ask(client(number), "/events")).collect();
    let cut = ask(gateway.client(), "/file");
    // What an origin has not sent when the time is up is lost, so all have the beginning before it runs.
    for _ in 0..7 {
        arrivals.recv_timeout(DEADLINE).expect("the beginning of an answer arrives");
    }
    gateway.signal(Signal::TERM);
    let answers: Vec<_> = whole.into_iter().map(|client| client.join().expect("no panic")).collect();
    for answer in answers.iter().flatten() {
        assert_eq!((answer.status, answer.text().as_str()), (200, "data: 1\n\n"));
    }
    assert!(cut.join().expect("no panic").is_err(), "what is not a stream of events is not complete");
    assert!(gateway.wait_exit(DEADLINE).success());
    answers.iter().all(Result::is_ok)
}

#[test]
fn u16_event_streams_end_in_order_while_the_gateway_drains() {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        let Ok(request) = connection.request() else { return };
        let kind = if request.target == "/events" { "Text/Event-Stream; charset=utf-8" } else { "text/plain" };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n");
        let _ = connection.send(format!("{head}9\r\ndata: 1\n\n\r\n"));
        while connection.some().is_ok_and(|part| !part.is_empty()) {}
    });
    for workers in [1, 2] {
        // The last stream is ended a fortieth of the time before all are cut, which a busy machine may need for another process.
        let ended = [2, 2, 4, 8, 16].into_iter().any(|seconds| event_streams_end(&origin, workers, seconds));
        assert!(ended, "streams of events do not end in order with {workers} workers");
    }
}

#[test]
fn u16_websockets_are_told_that_the_gateway_leaves() {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        let Ok(request) = connection.request() else { return };
        // The beginning of a message together with the 101.
        let early = if request.target == "/early" { "\x01\x05hel" } else { "" };
        let _ = connection.send(format!("HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n{early}"));
        while let Ok(part) = connection.some() {
            if part.is_empty() || connection.send(part).is_err() {
                return;
            }
        }
    });
    let mut gateway = weir().start(&format!(
        "worker_shutdown_timeout: 2\nroutes: [{{ uri: /*, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}]\n",
        origin.addr()
    ));
    let open = |target: &str| {
        let mut client = gateway.client();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: t\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"));
        assert_eq!(client.response_head("GET").expect("an answer").status, 101);
        client
    };
    let mut whole: Vec<Client> = (0..8).map(|_| open("/chat")).collect();
    // Messages that have not ended, in which nothing can be said.
    let (mut broken, mut early) = (open("/chat"), open("/early"));
    assert_eq!(early.exact(5).expect("it came with the 101"), b"\x01\x05hel");
    for client in &mut whole {
        client.send(b"\x81\x02hi");
        assert_eq!(client.exact(4).expect("it comes back"), b"\x81\x02hi");
    }
    broken.send(b"\x81\x05hel");
    assert_eq!(broken.exact(5).expect("it comes back"), b"\x81\x05hel");
    gateway.signal(Signal::TERM);
    for client in &mut whole {
        assert_eq!(client.exact(4).expect("a close frame"), [0x88, 2, 0x03, 0xe9], "1001, going away");
    }
    for client in [&mut broken, &mut early] {
        assert!(client.exact(1).is_err(), "no frame can be put within another");
    }
    assert!(gateway.wait_exit(DEADLINE).success());
}

#[test]
fn shutdown_delay_serves_while_readiness_is_withdrawn() {
    let origin = Origin::serving(|_| Answer::ok("served"));
    for (workers, second) in [(1, Signal::TERM), (2, Signal::INT)] {
        let mut gateway = weir().start(&format!(
            "worker_processes: {workers}\nshutdown_delay: 1h\n\
             routes: [{{ uri: /*, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}]\n",
            origin.addr()
        ));
        assert_eq!(gateway.ask_status("/status/ready").status, 200);
        gateway.signal(Signal::TERM);
        eventually("readiness is withdrawn", DEADLINE, || gateway.ask_status("/status/ready").status == 503);
        // Connections that are made after readiness is withdrawn, by clients that do not know of it yet.
        for _ in 0..20 {
            assert_eq!(gateway.get("/").text(), "served");
        }
        gateway.signal(Signal::HUP);
        gateway.wait_stderr("the refusal", |said| said.contains("already shutting down"));
        // A second signal ends the delay.
        gateway.signal(second);
        assert!(gateway.wait_exit(DEADLINE).success());
    }
}

#[test]
fn shutdown_delay_ends_by_itself() {
    let mut gateway = weir().start("shutdown_delay: 1s\nroutes: []\n");
    let begun = Instant::now();
    gateway.signal(Signal::TERM);
    assert!(gateway.wait_exit(DEADLINE).success());
    assert!(begun.elapsed() >= Duration::from_secs(1), "it has ended before the delay was over");
}
