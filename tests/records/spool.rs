//! Records that wait on disk: through kill -9, reloads and upgrades, the account and the store agree.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_testkit::{
    Answer, Client, DEADLINE, Gateway, Origin, Reading, Signal, TempDir, eventually, on_small_disk, scaled,
};

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

/// A logger that gives a receiver time for its answer: of a batch that it has taken late, all records would be sent twice.
fn yaml(data: &TempDir, receiver: &Receiver, origin: &Origin, more: &str) -> String {
    format!(
        "data_dir: {}
routes:
  - uri: /*
    plugins:
      http-logger: {{ uri: \"http://{}/\", timeout: 60, batch_max_size: 20, inactive_timeout: 1, spool: {{}}{more} }}
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
    // Connected before the threads start: one of them may run only when the process has been killed.
    let clients = [(); CLIENTS].map(|()| gateway.client());
    std::thread::scope(|scope| {
        for mut client in clients {
            let answered = &answered;
            scope.spawn(move || {
                while client.get("/").is_ok_and(|answer| answer.status == 200) {
                    answered.fetch_add(1, Relaxed);
                }
            });
        }
        eventually("so many are answered", 6 * DEADLINE, || answered.load(Relaxed) >= kill_after);
        gateway.signal(Signal::KILL);
    });
    gateway.wait_exit(DEADLINE);
    answered.into_inner()
}

const CLIENTS: usize = 2;

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
    let uncertain = CLIENTS as u64 * kills;
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
    eventually("they are on disk", DEADLINE, || {
        let account = account(&gateway);
        number(&account, "accepted") == 400 && number(&account, "memory") == 0
    });
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

/// How a store behaves that speaks the bulk language of Elasticsearch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreMood {
    Well,
    Unavailable,
    Busy,
    /// Takes small batches only.
    Narrow,
    /// Takes every third record, and has no room for the others now.
    Partial,
    /// Takes everything, and breaks off while it says so.
    HalfAnswer,
    /// Takes everything, and says nothing.
    Silent,
    /// Takes everything, and says so one byte after the other.
    Slow,
}

impl StoreMood {
    const BAD: [StoreMood; 7] = [
        StoreMood::Unavailable,
        StoreMood::Busy,
        StoreMood::Narrow,
        StoreMood::Partial,
        StoreMood::HalfAnswer,
        StoreMood::Silent,
        StoreMood::Slow,
    ];
}

/// What a store has, and how often it was asked in its present mood.
struct BulkState {
    mood: StoreMood,
    asked: usize,
    ids: BTreeSet<String>,
}

impl BulkState {
    /// Stores records whose ids are new; the others are there already.
    fn store(&mut self, body: &[u8]) -> String {
        let mut items = Vec::new();
        let (lines, mut has_errors) = (String::from_utf8_lossy(body), false);
        for (index, action) in lines.lines().step_by(2).enumerate() {
            let action: Value = serde_json::from_str(action).expect("JSON");
            let id = action["create"]["_id"].as_str().expect("an id").to_owned();
            let status = match self.mood == StoreMood::Partial && index % 3 > 0 {
                true => 429,
                false if self.ids.insert(id) => 201,
                false => 409,
            };
            has_errors |= status != 201;
            items.push(format!("{{\"create\":{{\"status\":{status},\"error\":{{\"type\":\"t\",\"reason\":\"r\"}}}}}}"));
        }
        format!("{{\"errors\":{has_errors},\"items\":[{}]}}", items.join(","))
    }
}

fn bulk_store(state: &Arc<Mutex<BulkState>>) -> Origin {
    let state = Arc::clone(state);
    Origin::scripted(Reading::Strict, move |connection| {
        while let Ok(request) = connection.request() {
            let (mood, answer) = {
                let mut state = state.lock().expect("no test panics with it");
                state.asked += 1;
                let status = match state.mood {
                    StoreMood::Unavailable => 503,
                    StoreMood::Busy => 429,
                    StoreMood::Narrow if request.body.len() > 8_000 => 413,
                    _ => 200,
                };
                let body = if status == 200 { state.store(&request.body) } else { String::new() };
                let length = body.len();
                (state.mood, format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes())
            };
            let sent = match mood {
                StoreMood::HalfAnswer => return drop(connection.send(&answer[..answer.len() / 2])),
                StoreMood::Silent => return connection.wait_gone(),
                StoreMood::Slow => answer.iter().try_for_each(|byte| connection.send([*byte])),
                _ => connection.send(&answer),
            };
            if sent.is_err() {
                return;
            }
        }
    })
}

#[test]
fn k02_a_store_with_every_fault_has_each_record_once() {
    let state = Arc::new(Mutex::new(BulkState { mood: StoreMood::Well, asked: 0, ids: BTreeSet::new() }));
    let (store, origin, data) = (bulk_store(&state), Origin::serving(|_| Answer::ok("ok")), TempDir::new());
    let text = format!(
        "data_dir: {}
routes:
  - uri: /*
    plugins:
      elasticsearch-logger: {{ endpoint_addr: \"http://{}\", field: {{ index: weir }}, timeout: 1, batch_max_size: 50, inactive_timeout: 1,
        spool: {{}} }}
    upstream: {{ nodes: {{ \"{}\": 1 }}, type: roundrobin }}
",
        data.path().display(),
        store.addr(),
        origin.addr()
    );
    let mut gateway = start(&text);
    let mut sent = 0;
    for (turn, mood) in StoreMood::BAD.into_iter().cycle().take(StoreMood::BAD.len() * scaled(1, 20)).enumerate() {
        {
            let mut state = state.lock().expect("no test panics with it");
            (state.mood, state.asked) = (mood, 0);
        }
        sent += ask(&gateway, 150);
        eventually("it was asked in this mood", 3 * DEADLINE, || {
            state.lock().expect("no test panics with it").asked >= 2
        });
        if turn % 3 == 1 {
            // For what is in memory at the end, the process waits no longer than a busy disk may take.
            eventually("they are on disk", 3 * DEADLINE, || {
                let account = account(&gateway);
                number(&account, "accepted") == sent && number(&account, "memory") == 0
            });
            gateway.signal(Signal::TERM);
            assert!(gateway.wait_exit(3 * DEADLINE).success(), "{mood:?}");
            gateway = start(&text);
        }
    }
    state.lock().expect("no test panics with it").mood = StoreMood::Well;
    eventually("all are delivered", 6 * DEADLINE, || {
        let account = account(&gateway);
        number(&account, "accepted") == sent && number(&account, "delivered") == sent
    });
    assert_eq!(state.lock().expect("no test panics with it").ids.len() as u64, sent);
}

/// Asks so often in a second, over several connections; says how often there was an answer.
fn ask_at_rate(gateway: &Gateway, rate: usize, seconds: usize) -> u64 {
    let begin = Instant::now();
    let client = |number: usize| {
        let mut client = gateway.client();
        let due = (0..rate * seconds).skip(number).step_by(CLIENTS);
        let answered = due.take_while(|turn| {
            let due = Duration::from_secs_f64(*turn as f64 / rate as f64);
            // It is late where the machine is busy, and catches up.
            std::thread::sleep(due.saturating_sub(begin.elapsed()));
            client.get("/").is_ok_and(|answer| answer.status == 200)
        });
        answered.count() as u64
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(move || client(number))).collect();
        clients.into_iter().map(|client| client.join().expect("no panic")).sum()
    })
}

/// With `WEIR_TEST_FULL` the store is down for 20 minutes at 2,000 requests a second.
#[test]
fn k02_a_store_that_is_down_under_load_misses_nothing_and_gets_nothing_twice() {
    let (data, receiver, origin) = (TempDir::new(), Receiver::start(), Origin::serving(|_| Answer::ok("ok")));
    let text = yaml(&data, &receiver, &origin, "");
    let text = text
        .replace("spool: {}", "spool: { max_size: 8589934592 }")
        .replace("batch_max_size: 20", "batch_max_size: 1000");
    receiver.is_up.store(false, Relaxed);
    let gateway = start(&text);
    let (rate, seconds) = (scaled(500, 2000), scaled(10, 1200));
    let mut answered = ask_at_rate(&gateway, rate, seconds);
    assert_eq!(answered, (rate * seconds) as u64);
    let before = account(&gateway);
    assert_eq!((number(&before, "delivered"), number(&before, "memory_full")), (0, 0), "{before:?}");
    receiver.is_up.store(true, Relaxed);
    // While what waits is delivered.
    answered += ask_at_rate(&gateway, rate, seconds.div_ceil(10));
    eventually("all are delivered", scaled(6, 90) as u32 * DEADLINE, || {
        number(&account(&gateway), "delivered") == answered
    });
    let ids = receiver.ids.lock().expect("no test panics with it");
    assert_eq!((ids.len() as u64, ids.values().all(|count| *count == 1)), (answered, true));
}

#[test]
fn k06_reloads_and_an_upgrade_leave_no_gap_and_repeat_no_number() {
    let (data, receiver, origin) = (TempDir::new(), Receiver::start(), Origin::serving(|_| Answer::ok("ok")));
    let text = |turn: usize| yaml(&data, &receiver, &origin, &format!(", retry_delay: {}", 1 + turn % 2));
    let gateway = start(&text(0));
    let has_reloaded = AtomicBool::new(false);
    let mut sent = 0;
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut sent = 0;
            while !has_reloaded.load(Relaxed) {
                sent += ask(&gateway, 25);
            }
            sent
        });
        (1..=scaled(10, 100)).for_each(|turn| gateway.rewrite(&text(turn)));
        has_reloaded.store(true, Relaxed);
        sent += asking.join().expect("every request has its answer");
    });
    sent += ask(&gateway, 25);
    gateway.signal(Signal::USR2);
    gateway.wait_stderr("another process serves", |line| line.contains("drains"));
    sent += ask(&gateway, 25);
    let accepted = || number(&account(&gateway), "accepted");
    eventually("the account of the new process contains that of the old one", DEADLINE, || accepted() >= sent);
    assert_eq!(accepted(), sent);
    eventually("all are delivered", 3 * DEADLINE, || receiver.count() == sent);
    for (boot, numbers) in receiver.numbers() {
        let whole: BTreeSet<u64> = (1..=numbers.len() as u64).collect();
        assert_eq!(numbers, whole, "{boot}");
    }
    let counts: Vec<u64> = receiver.ids.lock().expect("no test panics with it").values().copied().collect();
    assert!(counts.iter().all(|count| *count == 1));
}

#[test]
fn records_of_an_address_that_was_corrected_are_named_and_can_be_moved_or_dropped() {
    let (wrong, right) = (Receiver::start(), Receiver::start());
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let sink = |receiver: &Receiver| format!("http-logger http://{}", receiver.origin.addr());
    let data = TempDir::new();
    wrong.is_up.store(false, Relaxed);
    let text = |receiver: &Receiver| yaml(&data, receiver, &origin, "");
    let records = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.arg("records").arg(data.path()).args(arguments).output().expect("it was built")
    };
    let leave_waiting = || {
        let mut gateway = start(&text(&wrong));
        assert_eq!(ask(&gateway, 50), 50);
        // The directory is made a while after the start.
        eventually("they are on disk", DEADLINE, || {
            let shown = account_on_disk(&data);
            let of_wrong = shown["sinks"].as_array().into_iter().flatten().find(|one| one["name"] == sink(&wrong));
            let waits = |place: &str| of_wrong.and_then(|one| one["pending"][place]["records"].as_u64()).unwrap_or(0);
            waits("spool") + waits("inflight") == 50
        });
        let busy = records(&["--drop", &sink(&wrong)]);
        let by = format!("is in use by process {}; if the process is ending, wait until it has ended", gateway.pid());
        assert!(String::from_utf8_lossy(&busy.stderr).contains(&by), "{busy:?}");
        gateway.signal(Signal::TERM);
        gateway.wait_exit(DEADLINE);
    };
    leave_waiting();
    let gateway = start(&text(&right));
    let of_wrong = |name: &str| {
        let metrics = gateway.metrics();
        let labels = format!("sink=\"{}\"", sink(&wrong));
        metrics.sum(name, &[&labels])
    };
    gateway.wait_stderr("whose records wait", |line| {
        line.contains(&sink(&wrong)) && line.contains("50 records wait on disk")
    });
    assert_eq!((of_wrong("weir_log_sink_up"), of_wrong("weir_log_pending_records")), (0.0, 50.0));
    let unknown = records(&["--move", &sink(&wrong), "--to", "nothing"]);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("no sink nothing has been here"), "{unknown:?}");
    assert_eq!(ask(&gateway, 1), 1);
    let moved = records(&["--move", &sink(&wrong), "--to", &sink(&right)]);
    assert!(String::from_utf8_lossy(&moved.stderr).contains("moved: 50 records"), "{moved:?}");
    eventually("the other one delivers them", DEADLINE, || right.count() == 51);
    assert_eq!(of_wrong("weir_log_pending_records"), 0.0);
    drop(gateway);

    leave_waiting();
    let dropped = records(&["--drop", &sink(&wrong)]);
    assert!(String::from_utf8_lossy(&dropped.stderr).contains("dropped: 50 records"), "{dropped:?}");
    let sinks = account_on_disk(&data)["sinks"].clone();
    let of_wrong =
        sinks.as_array().expect("a list").iter().find(|one| one["name"] == sink(&wrong)).expect("its account");
    assert_eq!(
        (&of_wrong["dropped"]["abandoned"]["records"], &of_wrong["pending"]["spool"]["records"]),
        (&50.into(), &0.into()),
        "{of_wrong:#}"
    );
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

/// Records contain bodies and headers of requests.
#[test]
fn records_on_disk_are_for_the_owner_of_the_process_only() {
    let (receiver, origin) = (Receiver::start(), Origin::serving(|_| Answer::ok("ok")));
    receiver.is_up.store(false, Relaxed);
    let data = TempDir::new();
    let gateway = start(&yaml(&data, &receiver, &origin, ""));
    assert_eq!(ask(&gateway, 50), 50);
    // The account does not say it for long: what is tried again counts as in flight.
    gateway.wait_stderr("they are on disk", |line| line.contains("records wait on disk, and are tried again"));
    let files = below(&data.path().join("records"));
    assert!(files.len() > 3, "{files:?}");
    for file in files {
        let mode = std::fs::metadata(&file).expect("it exists").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", file.display());
    }
}

/// A directory, and everything below it.
fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    let inside = entries.map(|entry| entry.expect("a name").path());
    let all = inside.flat_map(|path| if path.is_dir() { below(&path) } else { vec![path] });
    all.chain([directory.to_owned()]).collect()
}

#[test]
fn k04_a_directory_that_is_removed_costs_what_was_written_to_it_and_holds_no_request_up() {
    let (data, receiver, origin) = (TempDir::new(), Receiver::start(), Origin::serving(|_| Answer::ok("ok")));
    let gateway = start(&yaml(&data, &receiver, &origin, ""));
    receiver.is_up.store(false, Relaxed);
    assert_eq!(ask(&gateway, 200), 200);
    // Those that are being sent come from there, too.
    eventually("they are on disk", DEADLINE, || {
        let account = account(&gateway);
        number(&account, "accepted") == 200 && number(&account, "memory") == 0
    });
    std::fs::remove_dir_all(data.path().join("records")).expect("its own directory");
    assert_eq!(ask(&gateway, 200), 200);
    receiver.is_up.store(true, Relaxed);
    eventually("nothing waits any more", 3 * DEADLINE, || {
        let account = account(&gateway);
        number(&account, "accepted") == 400 && pending(&account) == 0
    });
    let settled = account(&gateway);
    let (delivered, corrupt) = (number(&settled, "delivered"), number(&settled, "corrupt"));
    assert_eq!((receiver.count(), delivered + corrupt), (delivered, 400), "{settled:?}");
    assert_eq!(ask(&gateway, 100), 100);
    eventually("what comes later is delivered", DEADLINE, || {
        number(&account(&gateway), "delivered") == delivered + 100
    });
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
    let Some(place) = on_small_disk(env!("CARGO_BIN_EXE_weir"), 6, data.path()) else { return };
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
fn an_encrypted_spool_shows_nothing_and_its_keys_can_be_replaced() {
    let (data, receiver, origin) = (TempDir::new(), Receiver::start(), Origin::serving(|_| Answer::ok("ok")));
    let [old, new] = ["MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=", "YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXphYmNkZWY="];
    let text = |keys: &str| {
        yaml(&data, &receiver, &origin, "").replace("spool: {}", &format!("spool: {{ encryption_keyring: [{keys}] }}"))
    };
    receiver.is_up.store(false, Relaxed);
    let mut gateway = start(&text(old));
    let mut client = gateway.client();
    (0..200).for_each(|_| assert_eq!(client.get("/marked0by1us").expect("an answer").status, 200));
    // Those that are being sent come from there, too.
    eventually("they are on disk", DEADLINE, || {
        let account = account(&gateway);
        number(&account, "accepted") == 200 && number(&account, "memory") == 0
    });
    gateway.signal(Signal::TERM);
    assert!(gateway.wait_exit(2 * DEADLINE).success());
    let grep = Command::new("grep").args(["-rqa", "marked0by1us"]).arg(data.path().join("records")).status();
    assert_eq!(grep.expect("it is there").code(), Some(1), "it is found nowhere");
    receiver.is_up.store(true, Relaxed);
    let gateway = start(&text(&format!("{new}, {old}")));
    ask(&gateway, 1);
    eventually("all are delivered", 3 * DEADLINE, || receiver.count() == 201);
    let place = TempDir::new();
    let file = place.write("weir.yaml", text("short"));
    let check = Command::new(env!("CARGO_BIN_EXE_weir")).arg("check").arg(file).output().expect("it runs");
    let refused = String::from_utf8_lossy(&check.stderr);
    assert!(refused.contains("spool.encryption_keyring[0]: must be 32 bytes in base64"), "{refused}");
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
    let mut small = 50 + 120 * 20;
    eventually("the memory is used up", DEADLINE, || {
        small += ask(&gateway, 100);
        number(&account(&gateway), "memory_full") > 0
    });
    // An answer comes before its record is accepted.
    eventually("all are accepted", DEADLINE, || number(&account(&gateway), "accepted") == small + 120);
    // What may wait, what a ring may hold beside, and a batch of 5 MiB as JSON and as it is sent.
    let bound = before + (64 + 17 + 16 + 32) * MIB;
    assert!(peak <= bound, "{} MiB, from {} MiB", peak / MIB, before / MIB);
}

#[test]
fn k05_bodies_are_left_out_of_records_while_there_is_no_memory_for_them() {
    const REQUESTS: u64 = 40;
    let (receiver, origin) = (Receiver::start(), Origin::serving(|_| Answer::ok("ok")));
    receiver.is_up.store(false, Relaxed);
    let gateway = start(&format!(
        "records_max_memory: 8MiB
routes:
  - uri: /*
    plugins: {{ http-logger: {{ uri: \"http://{}/\", inactive_timeout: 1, retry_delay: 1, max_retry_count: 600,
        batch_max_size: 2, include_req_body: true }} }}
    upstream: {{ nodes: {{ \"{}\": 1 }}, type: roundrobin }}
",
        receiver.origin.addr(),
        origin.addr()
    ));
    let body = "b".repeat(500 << 10);
    let post = format!("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let mut client = gateway.client();
    for count in 1..=REQUESTS {
        assert_eq!(client.ask(&post).expect("an answer").status, 200);
        // The sink takes what is in its ring and counts it before the next one comes.
        eventually("it waits in memory", DEADLINE, || pending(&account(&gateway)) == count);
    }
    receiver.is_up.store(true, Relaxed);
    eventually("no record was lost", DEADLINE, || number(&account(&gateway), "delivered") == REQUESTS);
    let (mut whole, mut omitted) = (BTreeSet::new(), BTreeSet::new());
    for request in receiver.origin.requests() {
        let records: Value = serde_json::from_slice(&request.body).expect("JSON");
        for record in records.as_array().expect("a list") {
            let id = record["record_id"].as_str().expect("text").to_owned();
            match record["request"]["body"].as_str() {
                Some(text) => {
                    assert!(text == body && record.get("bodies_omitted").is_none());
                    whole.insert(id);
                }
                None => {
                    assert_eq!(record["bodies_omitted"], "the logger had no memory for them");
                    omitted.insert(id);
                }
            }
        }
    }
    assert_eq!((whole.len() + omitted.len()) as u64, REQUESTS);
    assert!(whole.len() >= 7 && omitted.len() >= 10, "{} and {}", whole.len(), omitted.len());
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
    // The last record is accepted after its response was sent.
    let served = served as u64 + 1;
    eventually("nothing was lost", DEADLINE, || {
        let now = account(&gateway);
        (number(&now, "accepted"), number(&now, "delivered"), pending(&now)) == (served, served, 0)
    });
    assert_eq!(receiver.count(), served);
    assert!(gateway.metrics().sum("weir_policy_refusals_total", &["policy=\"http-logger\""]) >= 21.0);
}

#[test]
fn a_relative_data_directory_is_beside_the_configuration() {
    let (receiver, elsewhere) = (Receiver::start(), TempDir::new());
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let text = yaml(&elsewhere, &receiver, &origin, "");
    let text = text.replace(&elsewhere.path().display().to_string(), "data");
    let launcher = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).working_directory(elsewhere.path());
    let gateway = launcher.start(&text);
    assert_eq!(gateway.get("/").status, 200);
    eventually("the record is delivered", DEADLINE, || receiver.count() == 1);
    assert!(gateway.directory().join("data/records").is_dir(), "the spool is beside the file");
    assert!(!elsewhere.join("data").exists(), "nothing is written to the working directory");
}
