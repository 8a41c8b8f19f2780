//! Where records of exchanges go: a bounded queue, and a thread that sends what is in it in batches.
//!
//! No request waits for a log. A full queue drops what comes and counts it, and so does a batch that could not be
//! delivered. Plugins with the same options share a sink; it ends, and sends what it still has, when nobody uses it any
//! more.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_plugin::ConfigError;

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
}

/// What became of the records of sinks of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkTally {
    pub sink: String,
    pub delivered: u64,
    pub dropped: u64,
}

/// The entrance of a queue.
#[derive(Debug)]
pub struct RecordSink {
    queue: SyncSender<Vec<u8>>,
    counts: Arc<SinkCounts>,
}

#[derive(Default)]
struct KnownSinks {
    sinks: HashMap<String, Weak<RecordSink>>,
    counts: BTreeMap<String, Arc<SinkCounts>>,
    threads: Vec<JoinHandle<()>>,
}

static KNOWN: LazyLock<Mutex<KnownSinks>> = LazyLock::new(Mutex::default);

fn known() -> MutexGuard<'static, KnownSinks> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What became of all records so far, by sink.
pub fn tallies() -> Vec<SinkTally> {
    let tally = |(sink, counts): (&String, &Arc<SinkCounts>)| SinkTally {
        sink: sink.clone(),
        delivered: counts.delivered.load(Relaxed),
        dropped: counts.dropped.load(Relaxed),
    };
    known().counts.iter().map(tally).collect()
}

/// Waits until sinks that nobody uses any more have sent what they had, but no longer than that.
pub fn finish(patience: Duration) {
    let deadline = Instant::now() + patience;
    let threads = std::mem::take(&mut known().threads);
    while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl RecordSink {
    /// The sink with this identity; where there is none yet, one that sends batches with what `start` makes on its thread.
    /// `name` stands in metrics and logs.
    pub fn of<D>(
        identity: String,
        name: String,
        batching: Batching,
        start: impl FnOnce() -> std::io::Result<D> + Send + 'static,
    ) -> Result<Arc<RecordSink>, ConfigError>
    where
        D: FnMut(&[Vec<u8>]) -> Result<(), String>,
    {
        let mut known = known();
        if let Some(sink) = known.sinks.get(&identity).and_then(Weak::upgrade) {
            return Ok(sink);
        }
        known.sinks.retain(|_, sink| sink.strong_count() > 0);
        known.threads.retain(|thread| !thread.is_finished());
        let counts = Arc::clone(known.counts.entry(name.clone()).or_default());
        let (queue, records) = sync_channel(batching.pending);
        let own = Arc::clone(&counts);
        let run = move || match start() {
            Ok(deliver) => run(&records, &own, &name, batching, deliver),
            Err(error) => tracing::error!("{name}: {error}; its records are lost"),
        };
        let thread = std::thread::Builder::new().name("log-sink".into()).spawn(run);
        let thread = thread.map_err(|error| ConfigError::new("", format!("no thread can be had for it: {error}")))?;
        known.threads.push(thread);
        let sink = Arc::new(RecordSink { queue, counts });
        known.sinks.insert(identity, Arc::downgrade(&sink));
        Ok(sink)
    }

    /// Takes a record, or drops and counts it.
    pub fn record(&self, record: Vec<u8>) {
        if self.queue.try_send(record).is_err() {
            self.counts.dropped.fetch_add(1, Relaxed);
        }
    }
}

fn run(
    records: &Receiver<Vec<u8>>,
    counts: &SinkCounts,
    name: &str,
    batching: Batching,
    mut deliver: impl FnMut(&[Vec<u8>]) -> Result<(), String>,
) {
    let failures = RateLimitedLog::default();
    while let Ok(first) = records.recv() {
        let batch = collect(first, records, batching);
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
    }
}

/// A batch that begins with this record.
fn collect(first: Vec<u8>, records: &Receiver<Vec<u8>>, batching: Batching) -> Vec<Vec<u8>> {
    let began = Instant::now();
    let mut batch = vec![first];
    while batch.len() < batching.most {
        let Some(left) = batching.oldest.checked_sub(began.elapsed()) else { break };
        match records.recv_timeout(left.min(batching.inactive)) {
            Ok(record) => batch.push(record),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    batch
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
        let sink = RecordSink::of("a".into(), "test a".into(), BATCHING, start).expect("a thread");
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
    fn a_full_queue_makes_nobody_wait() {
        let (go, wait) = channel::<()>();
        let start = move || {
            Ok(move |_: &[Vec<u8>]| {
                // Until the test lets it go.
                let _ = wait.recv();
                Ok(())
            })
        };
        let sink = RecordSink::of("b".into(), "test b".into(), BATCHING, start).expect("a thread");
        // Two in the batch at most, four in the queue.
        (0..100).for_each(|_| sink.record(Vec::new()));
        let (_, dropped) = tally("test b");
        assert!((94..=96).contains(&dropped), "{dropped}");
        drop(go);
    }
}
