use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};

use weir_testkit::{DEADLINE, TempDir, eventually};

use super::*;
use crate::account::AccountReading;
use crate::batching::{Batching, Retries};
use crate::destination::{Destination, Outcome, RecordSending, SendOutcome};
use crate::queue::Record;
use crate::register::SinkRegister;
use crate::ring::RingWriter;
use crate::sealed::SpoolKeys;
use crate::sink::RecordSink;
use crate::sink_core::SinkOptions;
use crate::spool::{SpoolFullPolicy, SpoolOptions};
use crate::spooling::SinkSpool;
use crate::test_record::TestRecords;

/// A store that can be down, and knows each record by its id.
#[derive(Default)]
struct Store {
    is_up: AtomicBool,
    /// Records that were sent, including duplicates.
    sent: AtomicU64,
    texts: Mutex<BTreeMap<String, String>>,
    order: Mutex<Vec<String>>,
}

struct Sender(Arc<Store>);

impl Destination for Sender {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        let is_up = self.0.is_up.load(std::sync::atomic::Ordering::Relaxed);
        let sent = match is_up {
            false => SendOutcome::Failed { error: "the store is down".into(), after: Some(Duration::ZERO) },
            true => {
                let mut texts = self.0.texts.lock().expect("no test panics with it");
                let outcome = |record: &Record| {
                    let text = String::from_utf8(record.payload.clone()).expect("text");
                    self.0.sent.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    match texts.insert(record.id(), text.clone()) {
                        Some(_) => Outcome::Duplicate,
                        None => {
                            self.0.order.lock().expect("no test panics with it").push(text);
                            Outcome::Delivered
                        }
                    }
                };
                SendOutcome::Each { outcomes: batch.iter().map(outcome).collect(), error: None }
            }
        };
        Box::pin(async { sent })
    }
}

impl Store {
    fn set_up(&self, is_up: bool) {
        self.is_up.store(is_up, std::sync::atomic::Ordering::Relaxed);
    }

    fn count(&self) -> usize {
        self.texts.lock().expect("no test panics with it").len()
    }
}

/// The parts of a sink in one process.
struct ProcessUnderTest {
    register: Arc<SinkRegister>,
    sink: Option<RecordSink>,
    writer: RingWriter,
    written: u64,
}

/// A store whose sink's thread does not run on until it is let.
struct Stuck {
    store: Sender,
    go_on: std::sync::mpsc::Receiver<()>,
}

impl Destination for Stuck {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        // Returns at once when the other end has been dropped.
        let _ = self.go_on.recv();
        self.store.send(batch)
    }
}

fn options(directory: &Path, spool: SpoolOptions) -> SinkOptions {
    let soon = Duration::from_millis(1);
    SinkOptions {
        name: "test-logger here".into(),
        batching: Batching { max_records: 7, max_bytes: 1 << 20, inactive: soon, oldest: soon },
        retries: Retries::Always,
        max_pending: None,
        spool: Some(SinkSpool { directory: directory.join("sink"), options: spool }),
        rejected: None,
        tests: None,
    }
}

impl ProcessUnderTest {
    fn start(directory: &Path, store: &Arc<Store>) -> ProcessUnderTest {
        ProcessUnderTest::with(options(directory, SpoolOptions::default()), store)
    }

    fn with(options: SinkOptions, store: &Arc<Store>) -> ProcessUnderTest {
        ProcessUnderTest::on(Arc::default(), options, Box::new(Sender(Arc::clone(store))))
    }

    fn on(
        register: Arc<SinkRegister>,
        options: SinkOptions,
        destination: Box<dyn Destination + Send>,
    ) -> ProcessUnderTest {
        let sink = RecordSink::new(&register, options, Box::new(|| Ok(destination as Box<dyn Destination>)));
        sink.start().expect("a thread");
        let writer = sink.writer().expect("a ring");
        ProcessUnderTest { register, sink: Some(sink), writer, written: 0 }
    }

    /// A sink whose thread is busy with its first batch until the returned end is dropped.
    fn stuck(options: SinkOptions, store: &Arc<Store>) -> (ProcessUnderTest, std::sync::mpsc::Sender<()>) {
        let (end, go_on) = std::sync::mpsc::channel();
        let stuck = Stuck { store: Sender(Arc::clone(store)), go_on };
        let mut process = ProcessUnderTest::on(Arc::default(), options, Box::new(stuck));
        process.write(1);
        eventually("the thread is busy", DEADLINE, || process.read().pending.inflight.records == 1);
        (process, end)
    }

    fn write(&mut self, count: u64) {
        for _ in 0..count {
            self.written += 1;
            let text = format!("record {:06}", self.written);
            self.writer.write(Vec::new(), |out| out.extend_from_slice(text.as_bytes()));
        }
    }

    fn read(&self) -> AccountReading {
        let reading = self.register.read().remove(0);
        assert!(reading.balances(), "{reading:?}");
        reading
    }

    fn end(&mut self, patience: Duration) -> AccountReading {
        self.sink = None;
        self.register.finish(patience);
        self.read()
    }
}

#[test]
fn records_wait_on_disk_in_order_while_their_store_is_down() {
    let (directory, store) = (TempDir::new(), Arc::new(Store::default()));
    let mut process = ProcessUnderTest::start(directory.path(), &store);
    store.set_up(true);
    process.write(10);
    eventually("they are delivered", DEADLINE, || process.read().delivered.records == 10);
    store.set_up(false);
    process.write(100);
    eventually("they are on disk", DEADLINE, || {
        process.read().pending.spool.records + process.read().pending.inflight.records == 100
    });
    process.write(50);
    eventually("these too", DEADLINE, || process.read().pending.memory.records == 0);
    store.set_up(true);
    eventually("all are delivered", DEADLINE, || process.read().delivered.records == 160);
    process.write(5);
    let reading = process.end(DEADLINE);
    assert_eq!((reading.delivered.records, reading.accepted.records, reading.duplicates.records), (165, 165, 0));
    let order = store.order.lock().expect("no test panics with it");
    assert!(order.is_sorted(), "in their order");
}

#[test]
fn the_next_process_delivers_what_was_left() {
    let (directory, store) = (TempDir::new(), Arc::new(Store::default()));
    let mut process = ProcessUnderTest::start(directory.path(), &store);
    process.write(30);
    let reading = process.end(Duration::from_millis(50));
    assert_eq!((reading.pending.spool.records, reading.dropped_records("shutdown")), (30, 0), "{reading:?}");
    drop(process);
    store.set_up(true);
    let mut process = ProcessUnderTest::start(directory.path(), &store);
    process.write(3);
    eventually("all are delivered", DEADLINE, || process.read().delivered.records == 33);
    let reading = process.end(DEADLINE);
    assert_eq!((reading.accepted.records, store.count()), (33, 33), "the account goes on: {reading:?}");
}

#[test]
fn records_are_encrypted_with_the_first_key_and_stay_where_there_is_no_key_for_them() {
    let (directory, store) = (TempDir::new(), Arc::new(Store::default()));
    let start = |keys: &[[u8; 32]]| {
        let keys = SpoolKeys::new(keys).expect("few");
        ProcessUnderTest::with(options(directory.path(), SpoolOptions { keys, ..SpoolOptions::default() }), &store)
    };
    let mut process = start(&[[1; 32]]);
    process.write(30);
    assert_eq!(process.end(Duration::from_millis(50)).pending.spool.records, 30);
    drop(process);
    // Without the key they stay, and the sink has another place.
    store.set_up(true);
    let mut process = start(&[[2; 32]]);
    process.write(3);
    eventually("new ones are delivered", DEADLINE, || process.read().delivered.records == 3);
    process.end(DEADLINE);
    drop(process);
    assert_eq!(store.count(), 3);
    let mut process = start(&[[2; 32], [1; 32]]);
    process.write(3);
    eventually("all are delivered", DEADLINE, || store.count() == 36);
    process.end(DEADLINE);
}

#[test]
fn two_processes_have_places_of_their_own_and_the_second_takes_over() {
    let (directory, store) = (TempDir::new(), Arc::new(Store::default()));
    let mut first = ProcessUnderTest::start(directory.path(), &store);
    first.write(20);
    eventually("on disk", DEADLINE, || first.read().pending.memory.records == 0);
    let mut second = ProcessUnderTest::start(directory.path(), &store);
    second.write(20);
    eventually("all are on disk", DEADLINE, || second.read().pending.memory.records == 0);
    let (of_first, of_second) = (first.read().accepted.records, second.read().accepted.records);
    assert_eq!(
        (of_first, of_second),
        (40, 40),
        "each sees the account of both, so that nothing jumps when a place changes hands"
    );
    let left = first.end(Duration::from_millis(50));
    assert!(left.pending.spool.records >= 20, "{left:?}");
    drop(first);
    assert_eq!(second.read().accepted.records, 40);
    store.set_up(true);
    eventually("all are delivered", DEADLINE, || store.count() == 40);
    eventually("and booked", DEADLINE, || second.read().delivered.records == 40);
    assert_eq!(second.read().accepted.records, 40);
}

#[test]
fn a_full_spool_drops_what_is_new_or_what_is_old() {
    for when_full in [SpoolFullPolicy::DropNewest, SpoolFullPolicy::DropOldest] {
        let (directory, store) = (TempDir::new(), Arc::new(Store::default()));
        let spool = SpoolOptions { max_bytes: 4 << 20, when_full, ..SpoolOptions::default() };
        let mut process = ProcessUnderTest::with(options(directory.path(), spool), &store);
        for _ in 0..80 {
            process.writer.write(Vec::new(), |out| out.resize(out.len() + (100 << 10), b'x'));
            eventually("it was written or dropped", DEADLINE, || process.read().pending.memory.records == 0);
        }
        let reading = process.read();
        let dropped = reading.dropped_records("spool_full");
        assert!((35..=60).contains(&dropped), "{reading:?}");
        store.set_up(true);
        let reading = process.end(DEADLINE);
        let dropped = reading.dropped_records("spool_full") + reading.dropped_records("memory_full");
        assert_eq!(reading.delivered.records, 80 - dropped, "{reading:?}");
    }
}

#[test]
fn a_directory_that_cannot_be_used_leaves_memory() {
    let store = Arc::new(Store::default());
    store.set_up(true);
    let mut process = ProcessUnderTest::start(Path::new("/proc/nowhere"), &store);
    process.write(10);
    let reading = process.end(DEADLINE);
    assert_eq!((reading.delivered.records, store.count()), (10, 10));
}

#[test]
fn a_directory_that_is_removed_costs_what_was_in_it_and_no_more() {
    let (directory, store) = (TempDir::new(), Arc::new(Store::default()));
    let mut process = ProcessUnderTest::start(directory.path(), &store);
    process.write(30);
    eventually("on disk", DEADLINE, || process.read().pending.memory.records == 0);
    std::fs::remove_dir_all(directory.path().join("sink")).expect("its own directory");
    process.write(30);
    store.set_up(true);
    eventually("everything is settled", DEADLINE, || {
        let reading = process.read();
        reading.delivered.records + reading.dropped_records("corrupt") == 60
    });
}

#[test]
fn a_burst_while_the_thread_is_busy_costs_nothing() {
    let (directory, store) = (TempDir::new(), Arc::new(Store::default()));
    store.set_up(true);
    let mut options = options(directory.path(), SpoolOptions::default());
    options.max_pending = Some(8192);
    let (mut process, end) = ProcessUnderTest::stuck(options, &store);
    // Some 3 MiB, while a ring has 1 MiB.
    process.write(150_000);
    assert_eq!(process.read().dropped, [].into());
    drop(end);
    eventually("all are delivered", 6 * DEADLINE, || process.read().delivered.records == 150_001);
    let reading = process.end(DEADLINE);
    assert_eq!((store.count(), process.register.memory.in_use()), (150_001, 0), "{reading:?}");
    assert!(store.order.lock().expect("no test panics with it").is_sorted(), "in their order");
}

#[test]
fn records_without_room_in_memory_are_dropped_as_memory_full() {
    let (directory, store) = (TempDir::new(), Arc::new(Store::default()));
    store.set_up(true);
    let (mut process, end) = ProcessUnderTest::stuck(options(directory.path(), SpoolOptions::default()), &store);
    // 10 records in the ring, and 655 in 64 MiB of memory.
    for _ in 0..800 {
        process.writer.write(Vec::new(), |out| out.resize(out.len() + (100 << 10), b'x'));
    }
    let dropped = process.read().dropped_records("memory_full");
    assert_eq!(dropped, 800 - 665);
    drop(end);
    let reading = process.end(6 * DEADLINE);
    assert_eq!((reading.delivered.records, reading.dropped.len()), (801 - dropped, 1), "{reading:?}");
}

#[test]
fn a_sink_that_blocks_says_so_before_its_memory_is_full() {
    let (directory, store) = (TempDir::new(), Arc::new(Store::default()));
    store.set_up(true);
    let block = SpoolOptions { when_full: SpoolFullPolicy::Block, ..SpoolOptions::default() };
    let (mut process, end) = ProcessUnderTest::stuck(options(directory.path(), block), &store);
    let writer = crate::SinkWriter::new(Arc::new(process.sink.take().expect("it is open")));
    let mut written = 1;
    while !writer.is_full() {
        writer.write(Vec::new(), |out| out.resize(out.len() + (100 << 10), b'x'));
        written += 1;
    }
    // Requests that have begun are recorded.
    (0..100).for_each(|_| writer.write(Vec::new(), |out| out.resize(out.len() + (100 << 10), b'x')));
    drop(end);
    eventually("all are delivered", DEADLINE, || process.read().delivered.records == written + 100);
    eventually("it is not full", DEADLINE, || !writer.is_full());
    drop(writer);
    assert_eq!(process.end(DEADLINE).dropped, [].into());
}

/// Starts a further sink in a process whose sink has ended.
fn restarted(process: ProcessUnderTest, options: SinkOptions, store: &Arc<Store>) -> ProcessUnderTest {
    ProcessUnderTest::on(process.register, options, Box::new(Sender(Arc::clone(store))))
}

#[test]
fn a_later_sink_of_the_process_delivers_what_an_earlier_one_left() {
    let (directory, store) = (TempDir::new(), Arc::new(Store::default()));
    let options = options(directory.path(), SpoolOptions::default());
    let mut process = ProcessUnderTest::with(options.clone(), &store);
    for number in 1..=5 {
        process.write(1);
        eventually("it is on disk, or being sent", DEADLINE, || {
            let pending = process.read().pending;
            pending.spool.records + pending.inflight.records == number
        });
    }
    let left = process.end(Duration::from_millis(50));
    assert_eq!((left.pending.spool.records, left.pending.inflight.records), (5, 0), "{left:?}");
    // The second one takes all parcels as one group, and returns it.
    let mut process = restarted(process, options.clone(), &store);
    eventually("they are being sent", DEADLINE, || process.read().pending.inflight.records == 5);
    assert_eq!(process.end(Duration::from_millis(50)).pending.spool.records, 5);
    store.set_up(true);
    let mut process = restarted(process, options, &store);
    eventually("all are delivered", DEADLINE, || process.read().delivered.records == 5);
    assert_eq!((store.count(), process.end(DEADLINE).dropped), (5, [].into()));
}

#[test]
fn a_sink_with_new_keys_reads_what_it_and_an_earlier_one_have_written() {
    let (directory, store) = (TempDir::new(), Arc::new(Store::default()));
    let with = |keys: &[[u8; 32]]| {
        let keys = SpoolKeys::new(keys).expect("few");
        options(directory.path(), SpoolOptions { keys, ..SpoolOptions::default() })
    };
    let mut process = ProcessUnderTest::with(with(&[[1; 32]]), &store);
    process.write(10);
    assert_eq!(process.end(Duration::from_millis(50)).pending.spool.records, 10);
    let mut process = restarted(process, with(&[[2; 32], [1; 32]]), &store);
    process.write(10);
    eventually("on disk", DEADLINE, || process.read().pending.memory.records == 0);
    store.set_up(true);
    eventually("all are delivered", DEADLINE, || process.read().delivered.records == 20);
    assert_eq!(process.end(DEADLINE).dropped, [].into());
}

#[test]
fn a_running_sink_takes_over_what_another_of_the_process_has_left() {
    let (directory, store) = (TempDir::new(), Arc::new(Store::default()));
    let options = options(directory.path(), SpoolOptions::default());
    let mut first = ProcessUnderTest::with(options.clone(), &store);
    first.write(10);
    eventually("on disk", DEADLINE, || first.read().pending.memory.records == 0);
    let register = Arc::clone(&first.register);
    let second = ProcessUnderTest::on(register, options, Box::new(Sender(Arc::clone(&store))));
    let signals = Arc::clone(&first.sink.as_ref().expect("it is open").core().signals);
    first.sink = None;
    signals.give_up();
    let tasks = || second.register.tasks.load(std::sync::atomic::Ordering::Relaxed);
    eventually("the first has ended", DEADLINE, || tasks() == 1);
    store.set_up(true);
    eventually("all are delivered", DEADLINE, || second.read().delivered.records == 10);
    assert_eq!(store.count(), 10);
}

#[test]
fn a_batch_with_a_limit_of_tries_is_kept_when_the_process_ends() {
    let (directory, store) = (TempDir::new(), Arc::new(Store::default()));
    let mut options = options(directory.path(), SpoolOptions::default());
    options.retries = Retries::Some { most: 1, pause: Duration::from_secs(3600) };
    let mut process = ProcessUnderTest::with(options, &store);
    process.write(5);
    eventually("they are tried", DEADLINE, || process.read().last_error.is_some());
    let reading = process.end(Duration::from_millis(50));
    assert_eq!((reading.pending.spool.records, reading.dropped), (5, [].into()));
}

#[test]
fn a_sink_without_a_destination_leaves_the_disk_to_others() {
    let (directory, store) = (TempDir::new(), Arc::new(Store::default()));
    let options = options(directory.path(), SpoolOptions::default());
    let mut process = ProcessUnderTest::with(options.clone(), &store);
    process.write(5);
    assert_eq!(process.end(Duration::from_millis(50)).pending.spool.records, 5);
    drop(process);
    let register = Arc::new(SinkRegister::default());
    let open = Box::new(|| Err(io::Error::other("it cannot be opened")));
    let sink = RecordSink::new(&register, options.clone(), open);
    sink.start().expect("a thread");
    let writer = sink.writer().expect("a ring");
    writer.write(Vec::new(), |out| out.push(b'x'));
    eventually("it is lost", DEADLINE, || register.read()[0].dropped_records("abandoned") == 1);
    drop((writer, sink));
    register.finish(DEADLINE);
    store.set_up(true);
    let mut process = ProcessUnderTest::with(options, &store);
    eventually("all are delivered", DEADLINE, || process.read().delivered.records == 5);
    process.end(DEADLINE);
}

/// A store that never takes one record.
struct Picky;

const NEVER_TAKEN: &[u8] = b"record 000003";

impl Destination for Picky {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        let outcome = |record: &Record| match record.payload == NEVER_TAKEN {
            true => Outcome::Retry,
            false => Outcome::Delivered,
        };
        let (outcomes, error) = (batch.iter().map(outcome).collect(), Some("its index is closed".to_owned()));
        Box::pin(async { SendOutcome::Each { outcomes, error } })
    }
}

#[test]
fn a_record_that_is_never_taken_stops_those_behind_it_no_longer_than_it_may_wait() {
    let directory = TempDir::new();
    let spool = SpoolOptions { max_age: Duration::from_secs(1), ..SpoolOptions::default() };
    let mut process = ProcessUnderTest::on(Arc::default(), options(directory.path(), spool), Box::new(Picky));
    process.write(5);
    eventually("it is given up", DEADLINE, || process.read().dropped_records("expired") >= 1);
    let before = process.read().delivered.records;
    // What a busy disk keeps for longer than `max_age` expires as well.
    eventually("those behind it are delivered", DEADLINE, || {
        process.write(1);
        process.read().delivered.records > before
    });
    process.end(DEADLINE);
}

/// A store that never takes a test record.
struct Untestable(Sender);

impl Destination for Untestable {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        match batch.iter().any(|record| record.payload.starts_with(b"test")) {
            true => Box::pin(async { SendOutcome::Failed { error: "status 500".into(), after: None } }),
            false => self.0.send(batch),
        }
    }
}

#[test]
fn a_test_record_on_disk_is_tried_once_too() {
    let (directory, store) = (TempDir::new(), Arc::new(Store::default()));
    let tests = Some(TestRecords::new(|id| format!("test {id}").into_bytes()));
    let options = SinkOptions { tests, ..options(directory.path(), SpoolOptions::default()) };
    let mut process = ProcessUnderTest::on(Arc::default(), options, Box::new(Untestable(Sender(Arc::clone(&store)))));
    process.write(3);
    eventually("they are on disk", DEADLINE, || process.read().pending.memory.records == 0);
    drop(process.register.send_test("test-logger here", "1").expect("it takes test records"));
    eventually("the test is there, too", DEADLINE, || {
        let reading = process.read();
        reading.accepted.records == 4 && reading.pending.memory.records == 0
    });
    process.write(3);
    store.set_up(true);
    eventually("all others are delivered", DEADLINE, || process.read().delivered.records == 6);
    let reading = process.end(DEADLINE);
    assert_eq!((store.count(), reading.dropped_records("retries")), (6, 1), "{reading:?}");
}

#[test]
fn a_place_that_cannot_be_used_does_not_turn_the_spool_off() {
    let (directory, store) = (TempDir::new(), Arc::new(Store::default()));
    // Where the directory of the first place would be, there is a file.
    std::fs::create_dir(directory.path().join("sink")).expect("its own directory");
    std::fs::write(directory.path().join("sink/0"), "").expect("its own directory");
    let mut process = ProcessUnderTest::start(directory.path(), &store);
    process.write(5);
    let reading = process.end(Duration::from_millis(50));
    assert_eq!((reading.pending.spool.records, reading.dropped), (5, [].into()));
}

#[test]
fn a_sink_works_before_it_has_read_a_large_spool() {
    let (directory, store) = (TempDir::new(), Arc::new(Store::default()));
    let mut process = ProcessUnderTest::start(directory.path(), &store);
    let large = "x".repeat(1 << 20);
    // More than is read at once, in steps that fit into memory.
    for written in 1..=40 {
        process.writer.write(Vec::new(), |out| out.extend_from_slice(format!("{written} {large}").as_bytes()));
        eventually("on disk", DEADLINE, || process.read().pending.memory.records == 0);
    }
    process.end(Duration::from_millis(50));
    drop(process);
    store.set_up(true);
    let mut process = ProcessUnderTest::start(directory.path(), &store);
    process.write(1);
    let sink_place = directory.path().join("sink/1");
    eventually("all are delivered, from two places", DEADLINE, || sink_place.exists() && store.count() == 41);
    let (delivered, duplicates) = {
        let reading = process.end(DEADLINE);
        (reading.delivered.records, reading.duplicates.records)
    };
    assert_eq!((delivered, duplicates), (41, 0));
}
