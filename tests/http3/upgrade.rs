//! Upgrades of the binary: connections stay with the process that they began in, and new ones begin in the newest.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use h3::error::{Code, StreamError};
use quinn::{ConnectionError, VarInt};
use rustix::process::{Pid, kill_process, test_kill_process};
use tokio::task::JoinHandle;
use weir_testkit::{Answer, DEADLINE, Gate, Gateway, Origin, Signal, eventually, eventually_some, scaled};

use crate::client::{NAME, Sender, Stream, ask, client, endpoint, request, rest, run};
use crate::{Served, file, serve, with_workers};

/// More than the network takes at once, so that packets of the client are needed for the rest.
const LARGE: usize = 900 * 1024;

/// The process that answers at the status address and does not drain.
fn serving(gateway: &Gateway) -> Option<u32> {
    let status = gateway.status();
    (status["state"] == "serving").then(|| status["pid"].as_u64().expect("a process has an id") as u32)
}

fn send(process: u32, signal: Signal) {
    kill_process(Pid::from_raw(process as i32).expect("not 0"), signal).expect("it runs");
}

fn runs(process: u32) -> bool {
    Pid::from_raw(process as i32).is_some_and(|process| test_kill_process(process).is_ok())
}

/// Whether a process has ended, also if its parent does not know yet.
fn has_ended(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat"));
    status.map_or(true, |status| status.contains(") Z "))
}

/// Upgrades the process that serves, and returns the one that does afterwards.
#[track_caller]
fn upgrade(gateway: &Gateway) -> u32 {
    let before = eventually_some("a process serves", DEADLINE, || serving(gateway));
    send(before, Signal::USR2);
    gateway.wait_stderr("another serves", |line| line.ends_with(&format!("; process {before} drains")));
    serving(gateway).expect("only the new one answers now")
}

/// An origin whose answers to `/held` wait for the gate.
fn holding(gate: &Gate) -> Origin {
    let gate = gate.clone();
    Origin::serving(move |request| {
        if &*request.target == "/held" {
            gate.wait();
            return Answer::ok(vec![b'x'; LARGE]);
        }
        Answer::ok("ok")
    })
}

/// A connection with a request that waits at the gate.
struct HeldConnection {
    _sender: Sender,
    stream: Stream,
    quic: quinn::Connection,
}

impl HeldConnection {
    /// `count`: how many wait then.
    async fn begin(served: &Served, gate: &Gate, count: usize) -> HeldConnection {
        let (mut sender, quic) = client(&served.authority, served.gateway.tls_addr()).await;
        let mut stream = sender.send_request(request("GET", "/held")).await.expect("it is sent");
        stream.finish().await.expect("it ends");
        gate.wait_arrived(count);
        HeldConnection { _sender: sender, stream, quic }
    }

    async fn ends_well(mut self) {
        assert_eq!(self.stream.recv_response().await.expect("a response").status(), 200);
        assert_eq!(rest(&mut self.stream).await.0.len(), LARGE);
        match self.quic.closed().await {
            ConnectionError::ApplicationClosed(closed) => assert_eq!(closed.error_code, VarInt::from_u32(0x100)),
            error => panic!("{error}"),
        }
    }
}

/// Checks that a new connection is served, by the process that answers at the status address.
async fn new_connection_is_served(served: &Served) {
    let accepted = || served.gateway.metrics().sum("weir_quic_connections_total", &["outcome=\"accepted\""]) as u64;
    let before = accepted();
    let (mut sender, _quic) = client(&served.authority, served.gateway.tls_addr()).await;
    assert_eq!(ask(&mut sender, request("GET", "/new")).await.0.status(), 200);
    assert_eq!(accepted(), before + 1);
}

/// Upgrades to these numbers of workers, one after another, while a request in each process waits.
fn upgraded_while_all_serve(workers: &[usize]) {
    let gate = Gate::new();
    let origin = holding(&gate);
    let mut served = with_workers(&origin, workers[0]);
    let identity = served.authority.identity(&[NAME]);
    run(async {
        let mut held = vec![HeldConnection::begin(&served, &gate, 1).await];
        let mut processes = vec![served.gateway.pid()];
        for (index, workers) in workers.iter().enumerate().skip(1) {
            served.gateway.replace_file(&file(&identity, &origin, &format!("worker_processes: {workers}\n")));
            processes.push(upgrade(&served.gateway));
            for _ in 0..4 {
                new_connection_is_served(&served).await;
            }
            held.push(HeldConnection::begin(&served, &gate, index + 1).await);
        }
        assert!(processes.iter().all(|process| runs(*process)), "each has a connection");
        gate.open();
        // The last process serves on, and closes nothing.
        let last = held.pop().expect("there is one");
        for held in held {
            held.ends_well().await;
        }
        assert_eq!(last.quic.close_reason(), None);
    });
    assert!(served.gateway.wait_exit(DEADLINE).success());
    run(async {
        // Some of the sockets are now those of a process that has ended.
        upgrade(&served.gateway);
        for _ in 0..4 {
            new_connection_is_served(&served).await;
        }
    });
}

#[test]
fn new_connections_begin_in_the_new_process_while_two_others_serve_theirs_to_their_end() {
    upgraded_while_all_serve(&[1, 1, 1]);
    upgraded_while_all_serve(&[2, 2, 2]);
}

#[test]
fn processes_with_other_numbers_of_workers_share_the_address() {
    upgraded_while_all_serve(&[1, 3, 2]);
}

/// Requests without a pause, on connections that are kept and on new ones.
struct Load {
    state: Arc<LoadState>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct LoadState {
    is_over: AtomicBool,
    kept: AtomicU64,
    new: AtomicU64,
    /// Connections that were opened to be kept.
    kept_connections: AtomicU64,
}

/// The clients that keep their connections, and as many that do not.
const KEEPERS: u64 = 4;

impl Load {
    fn start(served: &Served) -> Load {
        let state = Arc::new(LoadState::default());
        let endpoint = endpoint(&served.authority);
        let to = served.gateway.tls_addr();
        let tasks = (0..2 * KEEPERS).map(|index| {
            let (state, endpoint) = (Arc::clone(&state), endpoint.clone());
            tokio::spawn(async move {
                while !state.is_over.load(Ordering::Relaxed) {
                    let quic = endpoint.connect(to, NAME).expect("it is begun").await.expect("it is established");
                    let is_kept = index % 2 == 0;
                    state.kept_connections.fetch_add(u64::from(is_kept), Ordering::Relaxed);
                    state.use_connection(quic, is_kept).await;
                }
            })
        });
        Load { tasks: tasks.collect(), state }
    }

    /// Waits for so many more requests of each kind.
    fn wait_for(&self, count: u64) {
        for counter in [&self.state.kept, &self.state.new] {
            let before = counter.load(Ordering::Relaxed);
            eventually("requests are served", DEADLINE, || counter.load(Ordering::Relaxed) >= before + count);
        }
    }

    fn kept_connections(&self) -> u64 {
        self.state.kept_connections.load(Ordering::Relaxed)
    }

    async fn finish(self) {
        self.state.is_over.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("no request has failed");
        }
    }
}

impl LoadState {
    /// Sends requests until the gateway wants no more, or one.
    async fn use_connection(&self, quic: quinn::Connection, is_kept: bool) {
        let (mut driver, mut sender) =
            h3::client::new(h3_quinn::Connection::new(quic.clone())).await.expect("it begins");
        tokio::spawn(async move { std::future::poll_fn(|context| driver.poll_close(context)).await });
        while !self.is_over.load(Ordering::Relaxed) {
            match attempt(&mut sender).await {
                Ok(()) => {}
                // Not sent, or rejected before it began, so that a client repeats it: RFC 9114 section 5.2.
                Err(StreamError::RemoteClosing { .. }) => return,
                Err(StreamError::RemoteTerminate { code: Code::H3_REQUEST_REJECTED, .. }) if is_kept => return,
                Err(error) if error.is_h3_no_error() && is_kept => return,
                Err(error) => panic!("{error}; {:?}", quic.close_reason()),
            }
            if !is_kept {
                self.new.fetch_add(1, Ordering::Relaxed);
                return quic.close(VarInt::from_u32(0x100), b"");
            }
            self.kept.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A request; panics if its response has begun and is not complete.
async fn attempt(sender: &mut Sender) -> Result<(), StreamError> {
    let mut stream = sender.send_request(request("GET", "/load")).await?;
    stream.finish().await?;
    let response = stream.recv_response().await?;
    assert_eq!(response.status(), 200);
    assert_eq!(rest(&mut stream).await.0, b"ok");
    Ok(())
}

/// Reloads before each upgrade: with the three upgrades of the short run, more than twenty.
const RELOADS: usize = 7;

#[test]
fn reloads_and_upgrades_in_a_row_under_load_fail_no_request() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    for workers in [1, 2] {
        let served = with_workers(&origin, workers);
        let identity = served.authority.identity(&[NAME]);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let load = Load::start(&served);
            for upgrades in 0..scaled(3, 20) as u64 {
                // Those of before were asked to leave, once.
                let connections = KEEPERS * (upgrades + 1);
                eventually("all are connected", DEADLINE, || load.kept_connections() == connections);
                for reload in 0..RELOADS {
                    load.wait_for(5);
                    let rule =
                        format!("{{ response-rewrite: {{ headers: {{ set: {{ X-Reload: \"{reload}\" }} }} }} }}");
                    let more = format!("worker_processes: {workers}\nglobal_rules: [{{ id: g, plugins: {rule} }}]\n");
                    served.gateway.rewrite(&file(&identity, &origin, &more));
                }
                load.wait_for(20);
                assert_eq!(load.kept_connections(), connections, "a reload ends no connection");
                upgrade(&served.gateway);
                origin.forget();
            }
            load.wait_for(20);
            load.finish().await;
        });
        let metrics = served.gateway.metrics();
        assert_eq!(metrics.sum("weir_quic_connections_total", &["outcome=\"refused\""]) as u64, 0);
    }
}

#[test]
fn a_failed_upgrade_changes_nothing_for_http3() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = with_workers(&origin, 2);
    let identity = served.authority.identity(&[NAME]);
    let good = file(&identity, &origin, "worker_processes: 2\n");
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let occupied = other.local_addr().expect("it is bound");
    // The first one cannot be read. The second one fails when the UDP sockets have been taken over.
    let faulty = ["routes: none\n", &good.replace("http3: true }", &format!("http3: true }}, \"{occupied}\""))];
    run(async {
        let (mut sender, _quic) = client(&served.authority, served.gateway.tls_addr()).await;
        for (failed, file) in (1..).zip(faulty) {
            served.gateway.replace_file(file);
            served.gateway.signal(Signal::USR2);
            let has_failed = || served.gateway.stderr().matches("weir: upgrade failed: ").count() == failed;
            eventually("it has failed", DEADLINE, has_failed);
            for _ in 0..4 {
                assert_eq!(ask(&mut sender, request("GET", "/")).await.0.status(), 200);
                new_connection_is_served(&served).await;
            }
        }
        served.gateway.replace_file(&good);
        upgrade(&served.gateway);
        new_connection_is_served(&served).await;
    });
}

/// The processes that were started for upgrades so far.
fn started(gateway: &Gateway) -> impl Iterator<Item = u32> {
    let said = gateway.stderr();
    let pid = |line: &str| line.strip_prefix("weir: upgrade: process ")?.split(' ').next()?.parse().ok();
    said.lines().filter_map(pid).collect::<Vec<u32>>().into_iter()
}

#[test]
fn a_process_that_may_lose_the_service_again_starts_no_other() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = with_workers(&origin, 2);
    served.gateway.signal(Signal::USR2);
    let second = eventually_some("it begins", DEADLINE, || started(&served.gateway).next());
    // Stopped, the first process cannot hand over.
    served.gateway.signal(Signal::STOP);
    served.gateway.wait_stderr("it has taken over", |line| line.contains("new connections over HTTP/3"));
    send(second, Signal::USR2);
    served.gateway.wait_stderr("it has been asked", |line| line.starts_with("weir: upgrade: it waits"));
    send(second, Signal::KILL);
    eventually("it has ended", DEADLINE, || has_ended(second));
    served.gateway.signal(Signal::CONT);
    served.gateway.wait_stderr("it has failed", |line| line.starts_with("weir: upgrade failed: "));
    assert_eq!(started(&served.gateway).collect::<Vec<_>>(), [second], "one process serves");
    run(new_connection_is_served(&served));
}

#[test]
fn an_upgrade_that_is_asked_for_too_early_begins_when_the_process_before_has_handed_over() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = with_workers(&origin, 2);
    served.gateway.signal(Signal::USR2);
    let second = eventually_some("it begins", DEADLINE, || started(&served.gateway).next());
    served.gateway.signal(Signal::STOP);
    served.gateway.wait_stderr("it has taken over", |line| line.contains("new connections over HTTP/3"));
    send(second, Signal::USR2);
    served.gateway.wait_stderr("it has been asked", |line| line.starts_with("weir: upgrade: it waits"));
    served.gateway.signal(Signal::CONT);
    served.gateway.wait_stderr("another serves", |line| line.ends_with(&format!("; process {second} drains")));
    run(new_connection_is_served(&served));
}

#[test]
fn a_new_process_that_dies_soon_leaves_new_connections_to_the_old_one() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let mut served = with_workers(&origin, 2);
    // The sockets of the first process are those that the third one uses.
    let second = upgrade(&served.gateway);
    assert!(served.gateway.wait_exit(DEADLINE).success());
    run(async {
        let (mut sender, _quic) = client(&served.authority, served.gateway.tls_addr()).await;
        send(second, Signal::USR2);
        let third = eventually_some("it begins", DEADLINE, || started(&served.gateway).find(|pid| *pid != second));
        let has_taken = || served.gateway.stderr().matches("new connections over HTTP/3").count() == 2;
        eventually("it has taken over", DEADLINE, has_taken);
        send(third, Signal::KILL);
        served.gateway.wait_stderr("it has failed", |line| line.starts_with("weir: upgrade failed: "));
        for _ in 0..4 {
            assert_eq!(ask(&mut sender, request("GET", "/")).await.0.status(), 200);
            new_connection_is_served(&served).await;
        }
    });
}

#[test]
fn clients_of_a_process_that_dies_while_it_drains_are_told_by_the_new_one() {
    let gate = Gate::new();
    let origin = holding(&gate);
    let served = serve(&origin, "");
    run(async {
        let held = HeldConnection::begin(&served, &gate, 1).await;
        upgrade(&served.gateway);
        served.gateway.signal(Signal::KILL);
        // Whatever the client sends next.
        let _stream = held.quic.open_uni().await.expect("it may").write_all(b"!").await;
        match held.quic.closed().await {
            ConnectionError::Reset => {}
            error => panic!("{error}"),
        }
        new_connection_is_served(&served).await;
    });
    gate.open();
}

/// Checks that clients learn at once that there is no HTTP/3 for them any more. Their first packets come to any of the workers.
async fn new_connections_are_refused(served: &Served) {
    let mut refused = 0;
    while refused < 12 {
        let connecting = endpoint(&served.authority).connect(served.gateway.tls_addr(), NAME).expect("it is begun");
        match connecting.await.map(|_| ()) {
            // RFC 9000 section 20.1.
            Err(ConnectionError::ConnectionClosed(closed)) => assert_eq!(u64::from(closed.error_code), 2),
            // A worker has not begun to drain.
            Ok(()) if refused == 0 => continue,
            outcome => panic!("{outcome:?} after {refused}"),
        }
        refused += 1;
    }
}

/// A file for as many workers, without HTTP/3.
fn file_without_http3(served: &Served, origin: &Origin, workers: usize) -> String {
    let more = format!("worker_processes: {workers}\n");
    file(&served.authority.identity(&[NAME]), origin, &more).replace(", http3: true", "")
}

/// Drops HTTP/3 by a reload, by an upgrade, or by a reload before an upgrade, while a request waits.
fn http3_is_dropped(workers: usize, by_reload: bool, by_upgrade: bool) {
    let gate = Gate::new();
    let origin = holding(&gate);
    let served = with_workers(&origin, workers);
    let without = file_without_http3(&served, &origin, workers);
    run(async {
        let held = HeldConnection::begin(&served, &gate, 1).await;
        match by_reload {
            true => served.gateway.rewrite(&without),
            false => served.gateway.replace_file(&without),
        }
        if by_upgrade {
            upgrade(&served.gateway);
        }
        new_connections_are_refused(&served).await;
        gate.open();
        held.ends_well().await;
    });
}

#[test]
fn requests_over_http3_are_served_and_new_connections_are_refused_when_a_file_drops_it() {
    for workers in [1, 2] {
        for (by_reload, by_upgrade) in [(true, false), (false, true), (true, true)] {
            http3_is_dropped(workers, by_reload, by_upgrade);
        }
    }
}

#[test]
fn a_process_before_the_last_refuses_new_connections_where_the_newest_serves_none() {
    for by_reload in [false, true] {
        let gate = Gate::new();
        let origin = holding(&gate);
        let served = with_workers(&origin, 2);
        let without = file_without_http3(&served, &origin, 2);
        run(async {
            let held = HeldConnection::begin(&served, &gate, 1).await;
            let second = upgrade(&served.gateway);
            new_connection_is_served(&served).await;
            match by_reload {
                true => served.gateway.rewrite(&without),
                false => {
                    served.gateway.replace_file(&without);
                    upgrade(&served.gateway);
                    eventually("it has no connections", DEADLINE, || has_ended(second));
                }
            }
            new_connections_are_refused(&served).await;
            gate.open();
            held.ends_well().await;
        });
    }
}
