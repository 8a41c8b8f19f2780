//! Where records of exchanges go: a bounded queue, and a thread that sends what is in it in batches.
//!
//! No request waits for a log. A full queue drops what comes and counts it, and so does a batch that could not be
//! delivered. Plugins with the same options share a sink; it ends, and sends what it still has, when nobody uses it any
//! more.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_plugin::{Build, Held, state};

use crate::rate_limited_log::RateLimitedLog;

/// When a batch is sent, and what becomes of one that cannot be.
#[derive(Clone, Copy, Debug)]
pub struct Batching {
    /// Records in a batch.
    pub most: usize,
    /// A batch to which nothing is added for so long is sent,
    pub inactive: Duration,
    /// and so is one that is so old.
    pub oldest: Duration,
    /// Further tries, and the pause before each.
    pub retries: u32,
    pub retry_delay: Duration,
    /// Records that wait.
    pub pending: usize,
}

/// How many records were delivered, and how many were lost.
#[derive(Debug, Default)]
struct SinkCounts {
    delivered: AtomicU64,
    dropped: AtomicU64,
    /// Bytes of records that wait, those that are being sent among them.
    waiting: AtomicU64,
}

/// Bytes of records that may wait for one sink.
const MOST_WAITING: u64 = 64 << 20;

/// A record that waits, and what counts it.
type Pending = (Vec<u8>, Held);

/// What became of the records of sinks of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkTally {
    pub sink: String,
    pub delivered: u64,
    pub dropped: u64,
    /// Bytes of records that wait.
    pub waiting: u64,
}

/// The entrance of a queue.
pub struct RecordSink {
    queue: SyncSender<Pending>,
    counts: Arc<SinkCounts>,
    /// What its thread will do, until it is started.
    work: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

/// All sinks of the process.
#[derive(Default)]
struct SinkRegister {
    counts: Mutex<BTreeMap<String, Arc<SinkCounts>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

fn register() -> Arc<SinkRegister> {
    state::permanent("log-sinks")
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What became of all records so far, by sink.
pub fn tallies() -> Vec<SinkTally> {
    let tally = |(sink, counts): (&String, &Arc<SinkCounts>)| SinkTally {
        sink: sink.clone(),
        delivered: counts.delivered.load(Relaxed),
        dropped: counts.dropped.load(Relaxed),
        waiting: counts.waiting.load(Relaxed),
    };
    locked(&register().counts).iter().map(tally).collect()
}

/// Waits until sinks that nobody uses any more have sent what they had, but no longer than that.
pub fn finish(patience: Duration) {
    let deadline = Instant::now() + patience;
    let threads = std::mem::take(&mut *locked(&register().threads));
    while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl RecordSink {
    /// The sink with this identity; where there is none yet, one that sends batches, once it is started, with what `open`
    /// makes on its thread. `name` stands in metrics and logs.
    pub fn of<D>(
        build: &Build,
        identity: &str,
        name: String,
        batching: Batching,
        open: impl FnOnce() -> std::io::Result<D> + Send + 'static,
    ) -> Arc<RecordSink>
    where
        D: FnMut(&[Vec<u8>]) -> Result<(), String> + 'static,
    {
        build.shared("log-sink", identity, || {
            let counts = Arc::clone(locked(&register().counts).entry(name.clone()).or_default());
            let (queue, records) = sync_channel(batching.pending);
            let own = Arc::clone(&counts);
            let work = move || match open() {
                Ok(deliver) => run(&records, &own, &name, batching, deliver),
                Err(error) => tracing::error!("{name}: {error}; its records are lost"),
            };
            RecordSink { queue, counts, work: Mutex::new(Some(Box::new(work))) }
        })
    }

    /// Starts its thread, unless that was done before.
    ///
    /// # Errors
    /// The system gives no thread; records are lost.
    pub fn start(&self) -> Result<(), String> {
        let Some(work) = locked(&self.work).take() else { return Ok(()) };
        let thread = std::thread::Builder::new().name("log-sink".into()).spawn(work);
        let thread = thread.map_err(|error| format!("cannot start a thread that sends records: {error}"))?;
        let register = register();
        let mut threads = locked(&register.threads);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// Takes a record, or drops and counts it.
    pub fn record(&self, record: Vec<u8>) {
        let bytes = record.len() as u64;
        let mut held = Held::default();
        let fits = self.counts.waiting.fetch_add(bytes, Relaxed) + bytes <= MOST_WAITING && held.set(bytes).is_ok();
        if !fits || self.queue.try_send((record, held)).is_err() {
            self.counts.waiting.fetch_sub(bytes, Relaxed);
            self.counts.dropped.fetch_add(1, Relaxed);
        }
    }
}

fn run(
    records: &Receiver<Pending>,
    counts: &SinkCounts,
    name: &str,
    batching: Batching,
    mut deliver: impl FnMut(&[Vec<u8>]) -> Result<(), String>,
) {
    let failures = RateLimitedLog::default();
    while let Ok(first) = records.recv() {
        let (batch, held) = collect(first, records, batching);
        let bytes: u64 = batch.iter().map(|record| record.len() as u64).sum();
        let mut outcome = deliver(&batch);
        for _ in 0..batching.retries {
            if outcome.is_ok() {
                break;
            }
            std::thread::sleep(batching.retry_delay);
            outcome = deliver(&batch);
        }
        match outcome {
            Ok(()) => counts.delivered.fetch_add(batch.len() as u64, Relaxed),
            Err(error) => {
                failures.error(format_args!("{name}: {error}; records are lost"));
                counts.dropped.fetch_add(batch.len() as u64, Relaxed)
            }
        };
        counts.waiting.fetch_sub(bytes, Relaxed);
        drop(held);
    }
}

/// A batch that begins with this record.
fn collect(first: Pending, records: &Receiver<Pending>, batching: Batching) -> (Vec<Vec<u8>>, Vec<Held>) {
    let began = Instant::now();
    let (mut batch, mut held) = (vec![first.0], vec![first.1]);
    while batch.len() < batching.most {
        let Some(left) = batching.oldest.checked_sub(began.elapsed()) else { break };
        match records.recv_timeout(left.min(batching.inactive)) {
            Ok((record, counted)) => {
                batch.push(record);
                held.push(counted);
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    (batch, held)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const BATCHING: Batching = Batching {
        most: 2,
        inactive: Duration::from_secs(3600),
        oldest: Duration::from_secs(3600),
        retries: 1,
        retry_delay: Duration::ZERO,
        pending: 4,
    };

    fn tally(name: &str) -> (u64, u64) {
        let tally = tallies().into_iter().find(|tally| tally.sink == name).expect("it is known");
        (tally.delivered, tally.dropped)
    }

    #[test]
    fn every_record_is_delivered_or_counted_as_lost() {
        let (delivered, batches) = channel();
        let mut tries = 0;
        let start = move || {
            Ok(move |batch: &[Vec<u8>]| {
                tries += 1;
                // The first batch takes two tries, the second fails.
                if matches!(tries, 1 | 3 | 4) {
                    return Err("not now".to_owned());
                }
                delivered.send(batch.to_vec()).map_err(|error| error.to_string())
            })
        };
        let sink = RecordSink::of(&Build::default(), "a", "test a".into(), BATCHING, start);
        sink.start().expect("a thread");
        for text in ["1", "2", "3", "4"] {
            sink.record(text.into());
        }
        assert_eq!(batches.recv(), Ok(vec![b"1".to_vec(), b"2".to_vec()]));
        sink.record("5".into());
        drop(sink);
        assert_eq!(batches.recv(), Ok(vec![b"5".to_vec()]), "what is left is sent when nobody uses it any more");
        assert!(batches.recv().is_err(), "and its thread ends");
        assert_eq!(tally("test a"), (3, 2));
    }

    #[test]
    fn u03_records_that_wait_are_bounded_in_bytes() {
        let (go, wait) = channel::<()>();
        let start = move || {
            Ok(move |_: &[Vec<u8>]| {
                // Until the test lets it go.
                let _ = wait.recv();
                Ok(())
            })
        };
        let batching = Batching { pending: 4096, ..BATCHING };
        let sink = RecordSink::of(&Build::default(), "c", "test c".into(), batching, start);
        sink.start().expect("a thread");
        (0..200).for_each(|_| sink.record(vec![0; 512 << 10]));
        let tally = tallies().into_iter().find(|tally| tally.sink == "test c").expect("it is known");
        assert_eq!((tally.waiting, tally.dropped), (MOST_WAITING, 200 - (MOST_WAITING >> 19)));
        drop(go);
    }

    #[test]
    fn a_full_queue_makes_nobody_wait() {
        let (go, wait) = channel::<()>();
        let start = move || {
            Ok(move |_: &[Vec<u8>]| {
                // Until the test lets it go.
                let _ = wait.recv();
                Ok(())
            })
        };
        let sink = RecordSink::of(&Build::default(), "b", "test b".into(), BATCHING, start);
        sink.start().expect("a thread");
        // Two in the batch at most, four in the queue.
        (0..100).for_each(|_| sink.record(Vec::new()));
        let (_, dropped) = tally("test b");
        assert!((94..=96).contains(&dropped), "{dropped}");
        drop(go);
    }
}
