//! Records that wait on disk: through kill -9, reloads and upgrades, the account and the store agree.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use weir_testkit::{Answer, Client, DEADLINE, Gateway, Origin, Signal, TempDir, eventually, scaled, skipped};

/// A receiver that can be down, and knows records by their ids.
struct Receiver {
    origin: Origin,
    is_up: Arc<AtomicBool>,
    ids: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl Receiver {
    fn start() -> Receiver {
        let (is_up, ids) = (Arc::new(AtomicBool::new(true)), Arc::new(Mutex::new(BTreeMap::new())));
        let (up, known) = (Arc::clone(&is_up), Arc::clone(&ids));
        let origin = Origin::serving(move |request| {
            if !up.load(Relaxed) {
                return Answer::status(503, "");
            }
            let records: Vec<Value> = serde_json::from_slice(&request.body).expect("a list");
            let mut known = known.lock().expect("no test panics with it");
            for record in records {
                *known.entry(record["record_id"].as_str().expect("text").to_owned()).or_default() += 1;
            }
            Answer::ok("")
        });
        Receiver { origin, is_up, ids }
    }

    fn count(&self) -> u64 {
        self.ids.lock().expect("no test panics with it").len() as u64
    }

    /// The numbers that came from each process.
    fn numbers(&self) -> BTreeMap<String, BTreeSet<u64>> {
        let mut numbers: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
        for id in self.ids.lock().expect("no test panics with it").keys() {
            let (boot, number) = id.split_once('-').expect("two parts");
            numbers.entry(boot.to_owned()).or_default().insert(number.parse().expect("a number"));
        }
        numbers
    }
}

fn yaml(data: &TempDir, receiver: &Receiver, origin: &Origin, more: &str) -> String {
    format!(
        "data_dir: {}
routes:
  - uri: /*
    plugins:
      http-logger: {{ uri: \"http://{}/\", batch_max_size: 20, inactive_timeout: 1, spool: {{}}{more} }}
    upstream: {{ nodes: {{ \"{}\": 1 }}, type: roundrobin }}
",
        data.path().display(),
        receiver.origin.addr(),
        origin.addr()
    )
}

/// The account of the one sink, which balances whenever it is read.
fn account(gateway: &Gateway) -> BTreeMap<String, u64> {
    let report: Value = serde_json::from_slice(&gateway.ask_status("/records").body).expect("JSON");
    let Some(sink) = report["sinks"].get(0) else { return BTreeMap::new() };
    let records = |tally: &Value| tally["records"].as_u64().expect("a number");
    let mut numbers = BTreeMap::from([
        ("accepted".to_owned(), records(&sink["accepted"])),
        ("delivered".to_owned(), records(&sink["delivered"])),
    ]);
    for group in ["rejected", "dropped", "pending"] {
        for (name, tally) in sink[group].as_object().expect("by name") {
            numbers.insert(name.clone(), records(tally));
        }
    }
    let parts: u64 = numbers.iter().filter(|(name, _)| *name != "accepted").map(|(_, number)| number).sum();
    assert_eq!(numbers["accepted"], parts, "{sink:#}");
    numbers
}

fn number(account: &BTreeMap<String, u64>, name: &str) -> u64 {
    account.get(name).copied().unwrap_or_default()
}

fn pending(account: &BTreeMap<String, u64>) -> u64 {
    ["memory", "spool", "inflight"].iter().map(|place| number(account, place)).sum()
}

fn start(text: &str) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(text)
}

/// Asks until something fails, at most so often; says how often there was an answer.
fn ask(gateway: &Gateway, times: usize) -> u64 {
    let mut client = gateway.client();
    (0..times).take_while(|_| client.get("/").is_ok_and(|answer| answer.status == 200)).count() as u64
}

/// What the account on disk says.
fn account_on_disk(data: &TempDir) -> Value {
    let shown =
        Command::new(env!("CARGO_BIN_EXE_weir")).arg("records").arg(data.path()).output().expect("it was built");
    serde_json::from_slice(&shown.stdout).unwrap_or_default()
}

fn accepted_on_disk(data: &TempDir) -> u64 {
    account_on_disk(data)["sinks"][0]["accepted"]["records"].as_u64().unwrap_or_default()
}

/// Asks from several connections until the process is killed, once it has answered so often; says how often it answered.
fn ask_until_killed(data: &TempDir, mut gateway: Gateway, kill_after: u64) -> u64 {
    // What is recorded before the spool is open is counted in memory alone until the sink takes it.
    let before = accepted_on_disk(data);
    assert_eq!(ask(&gateway, 1), 1);
    eventually("the spool is open", DEADLINE, || accepted_on_disk(data) > before);
    let answered = AtomicU64::new(1);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = gateway.client();
                while client.get("/").is_ok_and(|answer| answer.status == 200) {
                    answered.fetch_add(1, Relaxed);
                }
            });
        }
        eventually("so many are answered", DEADLINE, || answered.load(Relaxed) >= kill_after);
        gateway.signal(Signal::KILL);
    });
    gateway.wait_exit(DEADLINE);
    answered.into_inner()
}

const CLIENTS: u64 = 2;

#[test]
fn k03_the_account_survives_kill_9_at_any_moment() {
    let (data, receiver, origin) = (TempDir::new(), Receiver::start(), Origin::serving(|_| Answer::ok("ok")));
    let text = yaml(&data, &receiver, &origin, "");
    let kills = scaled(50, 1000) as u64;
    let mut answered = 0;
    for turn in 0..kills {
        // Down in two of three turns, so that some is killed in memory, some on its way to the disk, some on its way out.
        receiver.is_up.store(turn % 3 == 0, Relaxed);
        answered += ask_until_killed(&data, start(&text), 10 + 37 * turn % 211);
    }
    let shown = account_on_disk(&data);
    let accepted = shown["sinks"][0]["accepted"]["records"].as_u64().expect("a number");
    // Of each client one exchange is under way at each kill: answered and not recorded, or recorded and not answered.
    let uncertain = CLIENTS * kills;
    assert!(accepted.abs_diff(answered) <= uncertain, "{answered} answered: {shown:#}");
    receiver.is_up.store(true, Relaxed);
    let gateway = start(&text);
    ask(&gateway, 1);
    eventually("everything is settled, the last one included", 3 * DEADLINE, || {
        let account = account(&gateway);
        number(&account, "accepted") > accepted && pending(&account) == 0
    });
    let (account, stored) = (account(&gateway), receiver.count());
    let (accepted, delivered, crashed) = (account["accepted"], account["delivered"], number(&account, "crash"));
    assert_eq!(accepted, delivered + crashed, "{account:?}");
    assert!(accepted.abs_diff(answered + 1) <= uncertain, "{answered} answered: {account:?}");
    // What was sent, and not booked before the kill, is booked as lost, and was sent again only from the disk.
    assert!((delivered..=accepted).contains(&stored), "{stored} stored: {account:?}");
    assert!(accepted - stored <= crashed, "{stored} stored: {account:?}");
}

#[test]
fn k02_a_store_that_is_down_for_a_while_misses_nothing_and_gets_nothing_twice() {
    let (data, receiver, origin) = (TempDir::new(), Receiver::start(), Origin::serving(|_| Answer::ok("ok")));
    let text = yaml(&data, &receiver, &origin, "");
    receiver.is_up.store(false, Relaxed);
    let mut gateway = start(&text);
    ask(&gateway, 400);
    eventually("they are on disk", DEADLINE, || number(&account(&gateway), "memory") == 0);
    // A restart in between.
    gateway.signal(Signal::TERM);
    assert!(gateway.wait_exit(2 * DEADLINE).success());
    receiver.is_up.store(true, Relaxed);
    let gateway = start(&text);
    ask(&gateway, 100);
    eventually("all are delivered", 3 * DEADLINE, || number(&account(&gateway), "delivered") == 500);
    let counts: Vec<u64> = receiver.ids.lock().expect("no test panics with it").values().copied().collect();
    assert_eq!((counts.len(), counts.iter().all(|count| *count == 1)), (500, true));
}

#[test]
fn k06_reloads_and_an_upgrade_leave_no_gap_and_repeat_no_number() {
    let (data, receiver, origin) = (TempDir::new(), Receiver::start(), Origin::serving(|_| Answer::ok("ok")));
    let text = |turn: usize| yaml(&data, &receiver, &origin, &format!(", retry_delay: {}", 1 + turn % 2));
    let gateway = start(&text(0));
    let mut sent = 0;
    for turn in 1..=scaled(10, 100) {
        sent += ask(&gateway, 25);
        gateway.rewrite(&text(turn));
    }
    sent += ask(&gateway, 25);
    gateway.signal(Signal::USR2);
    gateway.wait_stderr("another process serves", |line| line.contains("drains"));
    sent += ask(&gateway, 25);
    eventually("all are delivered", 3 * DEADLINE, || receiver.count() == sent);
    for (boot, numbers) in receiver.numbers() {
        let whole: BTreeSet<u64> = (1..=numbers.len() as u64).collect();
        assert_eq!(numbers, whole, "{boot}");
    }
    let counts: Vec<u64> = receiver.ids.lock().expect("no test panics with it").values().copied().collect();
    assert!(counts.iter().all(|count| *count == 1));
}

#[test]
fn k04_a_disk_that_cannot_be_used_holds_no_request_up() {
    let (receiver, origin) = (Receiver::start(), Origin::serving(|_| Answer::ok("ok")));
    let data = TempDir::new();
    let text = yaml(&data, &receiver, &origin, "");
    // A file where a directory should be.
    std::fs::write(data.path().join("records"), "").expect("its own directory");
    let gateway = start(&text);
    assert_eq!(ask(&gateway, 50), 50);
    eventually("memory does", DEADLINE, || number(&account(&gateway), "delivered") == 50);
    gateway
        .wait_stderr("it is said", |text| text.contains("cannot be used") && text.contains("records wait in memory"));
}

/// A launcher that gives the process a small disk of its own, mounted where its records are.
fn on_small_disk(data: &TempDir) -> Option<TempDir> {
    let place = TempDir::new();
    let mount = format!("mount -t tmpfs -o size=6m tmpfs {}", data.path().display());
    let is_allowed = Command::new("unshare").args(["-rm", "sh", "-c", &mount]).stderr(Stdio::null()).status();
    if !is_allowed.is_ok_and(|status| status.success()) {
        skipped("nothing can be mounted here, not even in a namespace of its own");
        return None;
    }
    let binary = env!("CARGO_BIN_EXE_weir");
    let script = format!("#!/bin/sh\nexec unshare -rm sh -c '{mount} && exec {binary} \"$@\"' weir \"$@\"\n");
    let path = place.write("weir", &script);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("its own file");
    Some(place)
}

/// Asks with so large a field that a few hundred records are more than the disk takes.
fn ask_largely(gateway: &Gateway, times: usize) {
    let mut client = gateway.client();
    let request = format!("GET / HTTP/1.1\r\nHost: t\r\nX-Large: {}\r\n\r\n", "x".repeat(6000));
    for _ in 0..times {
        assert_eq!(client.ask(&request).expect("an answer").status, 200);
    }
}

#[test]
fn k04_a_full_disk_holds_no_request_up_and_memory_does() {
    let (receiver, origin, data) = (Receiver::start(), Origin::serving(|_| Answer::ok("ok")), TempDir::new());
    let Some(place) = on_small_disk(&data) else { return };
    receiver.is_up.store(false, Relaxed);
    let launcher = Gateway::with_binary(place.path().join("weir").to_str().expect("text"));
    let gateway = launcher.start(&yaml(&data, &receiver, &origin, ""));
    // 9 MB of records on a disk of 6 MB, and memory for the others, but for what comes while the disk is being tried.
    ask_largely(&gateway, 1500);
    gateway.wait_stderr("it is said", |text| text.contains("No space left on device"));
    // An answer comes before its record is accepted.
    eventually("all are accepted", DEADLINE, || number(&account(&gateway), "accepted") == 1500);
    let full = account(&gateway);
    let kept = pending(&full);
    assert_eq!((number(&full, "accepted"), kept + number(&full, "memory_full")), (1500, 1500), "{full:?}");
    assert!(number(&full, "spool") > 0 && kept > number(&full, "spool"), "{full:?}");
    receiver.is_up.store(true, Relaxed);
    eventually("all that was kept is delivered", 6 * DEADLINE, || number(&account(&gateway), "delivered") == kept);
    assert_eq!(receiver.count(), kept);
}

/// Connections are taken, and nothing ever comes back.
fn silent() -> (std::net::TcpListener, std::net::SocketAddr) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let addr = listener.local_addr().expect("it is bound");
    (listener, addr)
}

#[test]
fn k05_a_collector_that_never_answers_takes_no_more_than_its_memory() {
    const MIB: u64 = 1 << 20;
    let (_listener, collector) = silent();
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let gateway = start(&format!(
        "records_max_memory: 64MiB
routes:
  - uri: /*
    plugins: {{ http-logger: {{ uri: \"http://{collector}/\", timeout: 3, inactive_timeout: 1, include_req_body: true,
        max_req_body_bytes: 1048576 }} }}
    upstream: {{ nodes: {{ \"{}\": 1 }}, type: roundrobin }}
",
        origin.addr()
    ));
    ask(&gateway, 50);
    let before = gateway.rss();
    let body = "b".repeat(MIB as usize);
    let large = format!("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let mut client = gateway.client();
    let mut peak = 0;
    for _ in 0..120 {
        assert_eq!(client.ask(&large).expect("an answer").status, 200);
        assert_eq!(ask(&gateway, 20), 20);
        peak = peak.max(gateway.rss());
    }
    eventually("the memory is used up", DEADLINE, || number(&account(&gateway), "memory_full") > 0);
    let account = account(&gateway);
    assert_eq!(account["accepted"], 50 + 120 * 21, "{account:?}");
    // What may wait, what a ring may hold beside, and a batch of 5 MiB as JSON and as it is sent.
    let bound = before + (64 + 17 + 16 + 32) * MIB;
    assert!(peak <= bound, "{} MiB, from {} MiB", peak / MIB, before / MIB);
}

#[test]
fn requests_that_cannot_be_recorded_are_not_served() {
    let (data, receiver) = (TempDir::new(), Receiver::start());
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let gateway = start(&format!(
        "data_dir: {}
records_max_memory: 8MiB
routes:
  - uri: /*
    plugins:
      http-logger:
        uri: \"http://{}/\"
        batch_max_size: 5
        inactive_timeout: 1
        include_req_body: true
        spool: {{ max_size: 4194304, when_full: block }}
    upstream: {{ nodes: {{ \"{}\": 1 }}, type: roundrobin }}
",
        data.path().display(),
        receiver.origin.addr(),
        origin.addr()
    ));
    let body = "x".repeat(100_000);
    let request = format!("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    // A connection is closed after a refusal that leaves so much unread.
    let post = || Client::connect(gateway.addr()).ask(&request).expect("an answer").status;
    receiver.is_up.store(false, Relaxed);
    let (mut served, mut refused_in_a_row) = (0, 0);
    eventually("all room is used", DEADLINE, || {
        match post() {
            200 => (served, refused_in_a_row) = (served + 1, 0),
            status => {
                assert_eq!(status, 503);
                refused_in_a_row += 1;
            }
        }
        assert!(served < 1000, "100 MB of records fit nowhere");
        refused_in_a_row > 20 && number(&account(&gateway), "spool") > 20
    });
    gateway.wait_stderr("it is said", |text| text.contains("there is nearly no room for records"));
    assert_eq!(origin.requests().len(), served, "what is refused does not reach the upstream");
    let now = account(&gateway);
    assert_eq!((number(&now, "accepted"), pending(&now)), (served as u64, served as u64), "{now:?}");
    receiver.is_up.store(true, Relaxed);
    eventually("requests are served again", DEADLINE, || post() == 200);
    eventually("nothing was lost", DEADLINE, || {
        let now = account(&gateway);
        number(&now, "delivered") == number(&now, "accepted") && pending(&now) == 0
    });
    assert_eq!(receiver.count(), served as u64 + 1);
    assert!(gateway.metrics().sum("weir_policy_refusals_total", &["policy=\"http-logger\""]) >= 21.0);
}
