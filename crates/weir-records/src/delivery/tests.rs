use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{SystemTime, UNIX_EPOCH};

use weir_testkit::{DEADLINE, eventually, eventually_some};

use super::*;
use crate::account::AccountReading;
use crate::batching::{Batching, Retries};
use crate::books::{DropReason, RecordTally, RejectReason};
use crate::destination::{Destination, Outcome, RecordSending, SendOutcome};
use crate::queue::Record;
use crate::register::SinkRegister;
use crate::ring::{Attachment, RingWriter};
use crate::sink::RecordSink;
use crate::sink_core::SinkOptions;
use crate::test_record::{TestFault, TestOutcome, TestRecords};

type Script = Box<dyn FnMut(&[Record]) -> SendOutcome + Send>;

struct Scripted(Script);

impl Destination for Scripted {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        let sent = (self.0)(batch);
        Box::pin(async { sent })
    }
}

/// Never answers.
struct Dead;

impl Destination for Dead {
    fn send<'a>(&'a mut self, _: &'a [Record]) -> RecordSending<'a> {
        Box::pin(std::future::pending())
    }
}

struct Harness {
    register: Arc<SinkRegister>,
    sink: Option<RecordSink>,
    writer: RingWriter,
}

fn options(max_records: usize) -> SinkOptions {
    let hour = Duration::from_secs(3600);
    SinkOptions {
        name: "test-logger here".into(),
        batching: Batching { max_records, max_bytes: 1 << 20, inactive: hour, oldest: hour },
        retries: Retries::Some { most: 3, pause: Duration::ZERO },
        max_pending: None,
        spool: None,
        rejected: None,
        tests: None,
    }
}

impl Harness {
    fn start(options: SinkOptions, script: impl FnMut(&[Record]) -> SendOutcome + Send + 'static) -> Harness {
        Harness::open(options, Box::new(Scripted(Box::new(script))))
    }

    fn open(options: SinkOptions, destination: Box<dyn Destination + Send>) -> Harness {
        let register = Arc::new(SinkRegister::default());
        let sink = RecordSink::new(&register, options, Box::new(|| Ok(destination as Box<dyn Destination>)));
        sink.start().expect("a thread");
        let writer = sink.writer().expect("a ring");
        Harness { register, sink: Some(sink), writer }
    }

    fn write(&self, texts: &[&str]) {
        texts.iter().for_each(|text| self.writer.write(Vec::new(), |out| out.extend_from_slice(text.as_bytes())));
    }

    fn read(&self) -> AccountReading {
        let reading = self.register.read().remove(0);
        assert!(reading.balances(), "{reading:?}");
        reading
    }

    /// Records that have left the ring.
    fn sink_has(&self) -> u64 {
        self.sink.as_ref().expect("it is open").account().book(|books| books.drained.records)
    }

    fn close(&mut self) {
        self.sink = None;
    }

    fn end(&mut self) -> AccountReading {
        self.close();
        self.register.finish(DEADLINE);
        self.read()
    }
}

fn texts(batch: &[Record]) -> Vec<String> {
    batch.iter().map(|record| String::from_utf8(record.payload.clone()).expect("text")).collect()
}

fn sent_to() -> (Sender<Vec<String>>, Receiver<Vec<String>>) {
    channel()
}

#[test]
fn every_record_is_delivered_or_its_fate_is_booked() {
    let (sender, batches) = sent_to();
    let mut tries = 0;
    let mut harness = Harness::start(options(2), move |batch| {
        tries += 1;
        let _ = sender.send(texts(batch));
        match tries {
            1 => SendOutcome::Failed { error: "refused".into(), after: None },
            2 => SendOutcome::Taken,
            3 => SendOutcome::Each {
                outcomes: vec![Outcome::Retry, Outcome::Rejected(RejectReason::Mapping)],
                error: Some("a field".into()),
            },
            4 => SendOutcome::Each { outcomes: vec![Outcome::Duplicate], error: None },
            _ => SendOutcome::Refused { reason: RejectReason::Invalid, error: "no".into() },
        }
    });
    harness.write(&["1", "2", "3", "4", "5"]);
    eventually("four are settled", DEADLINE, || harness.read().pending.memory.records == 1);
    let reading = harness.end();
    assert_eq!(
        batches.try_iter().collect::<Vec<_>>(),
        [vec!["1", "2"], vec!["1", "2"], vec!["3", "4"], vec!["3"], vec!["5"]]
    );
    assert_eq!((reading.accepted.records, reading.delivered.records, reading.duplicates.records), (5, 3, 1));
    let rejected: Vec<_> = reading.rejected.iter().map(|(reason, tally)| (*reason, tally.records)).collect();
    assert_eq!(rejected, [("invalid", 1), ("mapping", 1)]);
    assert_eq!(reading.last_error.as_deref(), Some("no"));
}

#[test]
fn account_shows_when_the_next_attempt_begins() {
    let (sender, batches) = sent_to();
    let is_back = Arc::new(AtomicBool::new(false));
    let back = Arc::clone(&is_back);
    let retries = Retries::Always;
    let mut harness = Harness::start(SinkOptions { retries, ..options(1) }, move |batch| {
        let _ = sender.send(texts(batch));
        match back.load(Ordering::Relaxed) {
            false => SendOutcome::Failed { error: "refused".into(), after: Some(Duration::from_secs(1)) },
            true => SendOutcome::Taken,
        }
    });
    let before = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64;
    harness.write(&["1"]);
    // The account says it between attempts only, however often there is one.
    let (next, error) = eventually_some("the next attempt is known", DEADLINE, || {
        let reading = harness.read();
        Some((reading.next_attempt_ms?, reading.last_error))
    });
    assert!((before + 1_000..before + 60_000).contains(&next), "{next} is after {before}");
    assert_eq!(error.as_deref(), Some("refused"));
    is_back.store(true, Ordering::Relaxed);
    eventually("it is delivered", DEADLINE, || harness.read().delivered.records == 1);
    let reading = harness.end();
    assert_eq!((reading.next_attempt_ms, reading.last_error), (None, None));
    let batches: Vec<_> = batches.try_iter().collect();
    assert!(batches.len() >= 2 && batches.iter().all(|batch| *batch == ["1"]), "{batches:?}");
}

#[test]
fn a_record_without_an_outcome_is_tried_again() {
    let (sender, batches) = sent_to();
    let mut harness = Harness::start(options(2), move |batch| {
        let _ = sender.send(texts(batch));
        SendOutcome::Each { outcomes: vec![Outcome::Delivered], error: Some("half an answer".into()) }
    });
    harness.write(&["1", "2"]);
    eventually("both are delivered", DEADLINE, || harness.read().delivered.records == 2);
    assert_eq!(batches.try_iter().collect::<Vec<_>>(), [vec!["1", "2"], vec!["2"]]);
    assert_eq!(harness.end().pending, Default::default());
}

#[test]
fn records_are_lost_after_the_last_try() {
    let mut harness = Harness::start(options(2), |_| SendOutcome::Failed { error: "refused".into(), after: None });
    harness.write(&["1", "2"]);
    eventually("it is given up", DEADLINE, || harness.read().dropped_records("retries") == 2);
    assert_eq!(harness.end().pending.memory, RecordTally::default());
}

#[test]
fn batch_that_is_too_large_is_halved_until_it_is_taken_or_single() {
    let (sender, batches) = sent_to();
    let mut harness = Harness::start(options(4), move |batch| {
        if batch.len() > 1 || batch[0].payload == b"large" {
            return SendOutcome::TooLarge("the answer is 413".into());
        }
        let _ = sender.send(texts(batch));
        SendOutcome::Taken
    });
    harness.write(&["1", "2", "large", "4"]);
    eventually("three are delivered", DEADLINE, || harness.read().delivered.records == 3);
    assert_eq!(batches.try_iter().collect::<Vec<_>>().concat(), ["1", "2", "4"], "in their order");
    assert_eq!(harness.end().rejected["too_large"].records, 1);
}

#[test]
fn an_invalid_record_is_found_and_takes_no_other_with_it() {
    let (sender, batches) = sent_to();
    let (counting, counts) = channel();
    let mut harness = Harness::start(options(64), move |batch| {
        let _ = counting.send(batch.len());
        if batch.iter().any(|record| record.payload == b"bad") {
            return SendOutcome::Invalid { reason: RejectReason::Mapping, error: "a field".into() };
        }
        let _ = sender.send(texts(batch));
        SendOutcome::Taken
    });
    let mut written: Vec<String> = (0..256).map(|number| number.to_string()).collect();
    (written[100], written[130]) = ("bad".into(), "bad".into());
    harness.write(&written.iter().map(String::as_str).collect::<Vec<_>>());
    // The last batch need not be a full one: after a search, batches are as large as what has been written by then.
    let reading = harness.end();
    assert_eq!((reading.delivered.records, reading.rejected["mapping"].records), (254, 2), "{reading:?}");
    written.retain(|text| text != "bad");
    assert_eq!(batches.try_iter().collect::<Vec<_>>().concat(), written, "in their order");
    let requests = counts.try_iter().count();
    assert!(requests < 40, "{requests} requests, where 4 are needed without an invalid record");
}

#[test]
fn numbers_tell_of_what_is_missing() {
    let (sender, numbers) = channel();
    let mut options = options(1000);
    options.max_pending = Some(3);
    let mut harness = Harness::start(options, move |batch| {
        let _ = sender.send(batch.iter().map(|record| record.sequence).collect::<Vec<_>>());
        SendOutcome::Taken
    });
    harness.write(&["1", "2", "3", "4", "5"]);
    eventually("they are taken over", DEADLINE, || harness.read().dropped_records("memory_full") == 2);
    let reading = harness.end();
    assert_eq!((reading.delivered.records, reading.accepted.records), (3, 5));
    assert_eq!(numbers.try_iter().collect::<Vec<_>>(), [[1, 2, 3]]);
}

#[test]
fn u03_records_that_wait_are_bounded_in_bytes() {
    let mut harness = Harness::open(options(1), Box::new(Dead));
    for turn in 1..=200 {
        let attached = Attachment::new(vec![0; (512 << 10) - 1]);
        harness.writer.write(vec![attached], |out| out.push(b'x'));
        // One at a time, so that it is the sink that refuses, and not the ring.
        eventually("the sink has it", DEADLINE, || harness.sink_has() == turn);
    }
    let reading = harness.read();
    let waits = reading.pending.memory.bytes + reading.pending.inflight.bytes;
    assert_eq!((waits, reading.dropped_records("memory_full")), (64 << 20, 72), "{reading:?}");
    harness.close();
    harness.register.finish(Duration::ZERO);
    assert_eq!(harness.read().dropped_records("shutdown"), 128);
}

#[test]
fn records_left_at_shutdown_are_counted_as_dropped() {
    let mut options = options(1);
    options.retries = Retries::Always;
    let mut harness = Harness::start(options, |_| SendOutcome::Failed { error: "refused".into(), after: None });
    harness.write(&["1", "2", "3"]);
    harness.close();
    harness.register.finish(Duration::from_millis(50));
    let reading = harness.read();
    assert_eq!(reading.dropped_records("shutdown"), 3, "{reading:?}");
}

#[test]
fn a_single_record_is_sent_when_its_time_has_come() {
    let mut options = options(1000);
    options.batching.inactive = Duration::from_millis(1);
    let harness = Harness::start(options, |_| SendOutcome::Taken);
    harness.write(&["alone"]);
    eventually("it is delivered", DEADLINE, || harness.read().delivered.records == 1);
}

#[test]
fn a_dead_destination_costs_the_others_nothing() {
    let register = Arc::new(SinkRegister::default());
    let dead =
        RecordSink::new(&register, SinkOptions { name: "dead".into(), ..options(1) }, Box::new(|| Ok(Box::new(Dead))));
    let alive = Scripted(Box::new(|_| SendOutcome::Taken));
    let alive = RecordSink::new(
        &register,
        SinkOptions { name: "alive".into(), ..options(1) },
        Box::new(|| Ok(Box::new(alive))),
    );
    let writers = [&dead, &alive].map(|sink| {
        sink.start().expect("a thread");
        sink.writer().expect("a ring")
    });
    writers.iter().for_each(|writer| writer.write(Vec::new(), |out| out.extend_from_slice(b"x")));
    eventually("one is delivered", DEADLINE, || register.read()[0].delivered.records == 1);
    let waits = || register.read()[1].pending;
    eventually("the other is on its way", DEADLINE, || waits().inflight.records == 1);
    drop((dead, alive));
    register.finish(Duration::from_millis(50));
    assert_eq!(register.read()[1].dropped_records("shutdown"), 1);
}

/// Sends one test record to the sink of the harness.
fn outcome_of_test(harness: &Harness, id: &str) -> TestOutcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let mut sent = harness.register.send_test("test-logger here", id).expect("it takes test records");
    assert_eq!(sent.len(), 1);
    runtime.block_on(sent.remove(0).outcome(DEADLINE))
}

fn options_with_tests() -> SinkOptions {
    // Nothing is due for an hour, except test records.
    SinkOptions { tests: Some(TestRecords::new(|id| format!("test {id}").into_bytes())), ..options(100) }
}

#[test]
fn a_test_record_goes_the_way_of_all_and_has_its_own_outcome() {
    let mut harness = Harness::start(options_with_tests(), |batch| match &*batch[0].payload {
        b"test 2" => SendOutcome::Refused { reason: RejectReason::Invalid, error: "status 400: no".into() },
        b"test 3" => SendOutcome::Each {
            outcomes: vec![Outcome::Rejected(RejectReason::Mapping)],
            error: Some("a field".into()),
        },
        b"test 4" => SendOutcome::Each { outcomes: vec![Outcome::Duplicate], error: None },
        b"test 5" => SendOutcome::Invalid { reason: RejectReason::TooLarge, error: "that one".into() },
        _ => SendOutcome::Taken,
    });
    assert_eq!(outcome_of_test(&harness, "1"), TestOutcome::Delivered);
    let rejected = |reason, error: &str| TestOutcome::Rejected { reason, error: error.into() };
    assert_eq!(outcome_of_test(&harness, "2"), rejected(RejectReason::Invalid, "status 400: no"));
    // Beside another record, which waits for its time.
    harness.write(&["other"]);
    eventually("it waits", DEADLINE, || harness.sink_has() == 3);
    assert_eq!(outcome_of_test(&harness, "3"), rejected(RejectReason::Mapping, "a field"));
    assert_eq!(outcome_of_test(&harness, "4"), TestOutcome::Delivered);
    harness.write(&["other"]);
    eventually("it waits", DEADLINE, || harness.sink_has() == 6);
    assert_eq!(outcome_of_test(&harness, "5"), rejected(RejectReason::TooLarge, "that one"));
    let reading = harness.end();
    assert_eq!((reading.accepted.records, reading.delivered.records), (7, 4), "{reading:?}");
}

#[test]
fn a_test_record_that_is_not_taken_costs_no_other_record() {
    let (batches, sent) = channel();
    let mut harness = Harness::start(SinkOptions { retries: Retries::Always, ..options_with_tests() }, move |batch| {
        batches.send(batch.iter().map(|record| record.payload.clone()).collect::<Vec<_>>()).expect("the test waits");
        match batch.iter().any(|record| record.payload.starts_with(b"test")) {
            true => SendOutcome::Failed { error: "status 500".into(), after: None },
            false => SendOutcome::Taken,
        }
    });
    harness.write(&["before"]);
    eventually("it waits", DEADLINE, || harness.sink_has() == 1);
    let lost = TestOutcome::Dropped { reason: DropReason::Retries, error: Some("status 500".into()) };
    assert_eq!(outcome_of_test(&harness, "1"), lost);
    // Also if its outcome is not waited for.
    drop(harness.register.send_test("test-logger here", "2").expect("it takes test records"));
    eventually("it is lost, too", DEADLINE, || harness.read().dropped_records("retries") == 2);
    harness.write(&["after"]);
    let reading = harness.end();
    assert_eq!((reading.delivered.records, reading.dropped_records("retries")), (2, 2), "{reading:?}");
    let sent: Vec<Vec<Vec<u8>>> = sent.try_iter().collect();
    let expected = ["before", "test 1", "test 2", "after"].map(|text| vec![text.as_bytes().to_vec()]);
    assert_eq!(sent, expected, "each once, and alone");
}

#[test]
fn a_test_record_waits_behind_others() {
    // The destination does not answer: nothing is known of it yet.
    let harness = Harness::open(options_with_tests(), Box::new(Dead));
    let sent = harness.register.send_test("test-logger here", "1").expect("it takes test records").remove(0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    assert_eq!(runtime.block_on(sent.outcome(Duration::from_millis(1))), TestOutcome::Pending { error: None });
    harness.register.finish(Duration::ZERO);
}

#[test]
fn test_records_need_a_sink_that_runs_and_can_mark_them() {
    let harness = Harness::start(options(1), |_| SendOutcome::Taken);
    let fault = |name| harness.register.send_test(name, "1").err();
    assert_eq!(fault("another"), Some(TestFault::NoSink));
    assert_eq!(fault("test-logger here"), Some(TestFault::NoTests));
    let mut harness = Harness::open(options_with_tests(), Box::new(Dead));
    let send = |harness: &Harness, id: &str| harness.register.send_test("test-logger here", id);
    let mut kept: Vec<_> = (0..16).map(|number| send(&harness, &number.to_string()).expect("room")).collect();
    assert_eq!(send(&harness, "17").err(), Some(TestFault::TooMany));
    // One whose outcome is not waited for any more is still on its way.
    kept.pop();
    assert_eq!(send(&harness, "17").err(), Some(TestFault::TooMany));
    // A sink that ends takes no more.
    harness.close();
    assert_eq!(send(&harness, "18").err(), Some(TestFault::NoSink));
    drop(kept);
    harness.register.finish(Duration::ZERO);
}
