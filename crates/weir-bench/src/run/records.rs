//! Counts the access records that a target writes during a run: in a file, in an index of a store, or as syslog messages.

use std::{
    cell::Cell,
    collections::BTreeMap,
    fmt,
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{
    AskError, AskProblem,
    log_store::{LogTargets, StoreIndex, SyslogReceiver, ask},
};
use crate::{
    engine::LoadResult,
    result::{AccessRecords, AccountOfRun},
};

/// The policy that writes a file.
const FILE_POLICY: &str = "file-logger";
/// How long the lab waits after the last new record: Envoy flushes only every ten seconds.
const PATIENCE: Duration = Duration::from_secs(12);
/// The same before a run: what is pending then would be delivered during the run. A store that has just been started is slow.
const PATIENCE_BEFORE: Duration = Duration::from_secs(60);
/// The longest time the lab waits for records of one run. A store may take far fewer records than a target sends.
const LIMIT: Duration = Duration::from_secs(120);
/// How often the lab says what it waits for.
const TELL_EVERY: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(200);

/// What ends a wait early, and what hears of a long one.
pub(super) struct RecordWatch<'a> {
    pub stop: &'a AtomicBool,
    pub tell: &'a dyn Fn(&str),
}

/// The destination of a target's access records, and the address of the target's account of them.
pub(super) struct TargetRecords {
    destination: RecordDestination,
    /// The address that serves the target's account.
    account: Option<SocketAddr>,
}

enum RecordDestination {
    File(RecordFile),
    Index(StoreIndex),
    Syslog(SyslogReceiver),
}

struct RecordFile {
    path: PathBuf,
    /// The number of lines counted, and the byte offset up to which they were counted.
    counted: Cell<(u64, u64)>,
}

/// Totals since the target started, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordReading {
    written: u64,
    account: Option<AccountOfRun>,
}

impl fmt::Display for RecordReading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} are at the destination", self.written)?;
        let Some(account) = self.account else { return Ok(()) };
        let AccountOfRun { accepted, delivered, pending, .. } = account;
        write!(f, "; of {accepted} that the target has accepted, {delivered} are delivered and {pending} pending")
    }
}

impl TargetRecords {
    /// The access records of a target with these policies; `None` if it records nothing that can be counted.
    pub(super) fn of(
        policies: &BTreeMap<String, Value>,
        logs: &LogTargets,
        account: Option<SocketAddr>,
    ) -> Option<TargetRecords> {
        let file = policies.get(FILE_POLICY).and_then(|options| options.get("path")?.as_str());
        let file = file.map(|path| RecordFile { path: PathBuf::from(path), counted: Cell::default() });
        let index = logs.index.clone().map(RecordDestination::Index);
        let syslog = logs.syslog.clone().map(RecordDestination::Syslog);
        let destination = file.map(RecordDestination::File).or(index).or(syslog)?;
        Some(TargetRecords { destination, account })
    }

    /// The totals before a run, once no records of earlier requests are pending.
    pub(super) fn settled(&self, watch: &RecordWatch<'_>) -> Result<RecordReading, AskError> {
        let is_settled = |account: AccountOfRun| account.accepted > 0 && account.pending == 0;
        self.wait(PATIENCE_BEFORE, watch, |reading| reading.account.is_none_or(is_settled))
    }

    /// Counts the records of a run once they are complete or no more arrive. Empties a file afterwards: over hours, access logs
    /// would fill a disk.
    pub(super) fn count(
        &self,
        before: RecordReading,
        load: &LoadResult,
        watch: &RecordWatch<'_>,
    ) -> Result<AccessRecords, AskError> {
        // Warm-up and drain are recorded as well.
        let answered: u64 = load.intervals.iter().map(|interval| interval.tally.completed).sum();
        let begun = load.intervals.iter().map(|interval| interval.tally.due).sum();
        let after = self.wait(PATIENCE, watch, |now| match now.account {
            None => now.written - before.written >= answered,
            Some(account) => {
                let since = account.since(before.account.unwrap_or_default(), begun);
                since.accepted >= answered && since.pending == 0 && now.written - before.written >= since.delivered
            }
        })?;
        if let RecordDestination::File(file) = &self.destination {
            file.empty();
        }
        let account = after.account.map(|account| account.since(before.account.unwrap_or_default(), begun));
        Ok(AccessRecords { answered, written: after.written - before.written, account })
    }

    /// Reads until the totals are complete, have not changed for `patience`, or `LIMIT` has passed.
    fn wait(
        &self,
        patience: Duration,
        watch: &RecordWatch<'_>,
        is_complete: impl Fn(RecordReading) -> bool,
    ) -> Result<RecordReading, AskError> {
        let begin = Instant::now();
        let mut last = self.reading()?;
        let (mut changed, mut told) = (begin, begin);
        while !is_complete(last) && !watch.stop.load(Ordering::Relaxed) {
            if changed.elapsed() >= patience || begin.elapsed() >= LIMIT {
                (watch.tell)(&format!("waits no longer for log records after {:.0?}: {last}", begin.elapsed()));
                break;
            }
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                (watch.tell)(&format!(
                    "waits for log records, {:.0?} at most: {last}",
                    LIMIT.saturating_sub(begin.elapsed())
                ));
            }
            thread::sleep(POLL);
            let now = self.reading()?;
            if now != last {
                (last, changed) = (now, Instant::now());
            }
        }
        Ok(last)
    }

    fn reading(&self) -> Result<RecordReading, AskError> {
        // The account is read before the destination: records it counts as delivered have arrived by the time of the second
        // reading.
        let account = self.account.map(account_at).transpose()?;
        let written = match &self.destination {
            RecordDestination::File(file) => file.lines(),
            RecordDestination::Index(index) => index.count()?,
            RecordDestination::Syslog(receiver) => receiver.received.load(Ordering::Relaxed),
        };
        Ok(RecordReading { written, account })
    }
}

impl Drop for TargetRecords {
    fn drop(&mut self) {
        if let RecordDestination::Index(index) = &self.destination {
            index.delete();
        }
    }
}

/// A target's account at `/records`, summed over its sinks.
fn account_at(address: SocketAddr) -> Result<AccountOfRun, AskError> {
    let (status, answer) = ask(address, "GET", "/records")?;
    let sinks = answer["sinks"].as_array().filter(|_| status == 200);
    let missing = || AskError::new("GET", address, "/records", AskProblem::NoAccount { status });
    let sinks = sinks.ok_or_else(missing)?;
    let count = |value: &Value| value["records"].as_u64().unwrap_or(0);
    let by_reason = |value: &Value| value.as_object().map_or(0, |reasons| reasons.values().map(count).sum());
    let mut account = AccountOfRun::default();
    for sink in sinks {
        account.accepted += count(&sink["accepted"]);
        account.delivered += count(&sink["delivered"]);
        account.rejected += by_reason(&sink["rejected"]);
        account.dropped += by_reason(&sink["dropped"]);
        account.pending += by_reason(&sink["pending"]);
    }
    Ok(account)
}

impl AccountOfRun {
    /// The difference to an earlier reading, for this number of requests begun.
    fn since(self, before: AccountOfRun, begun: u64) -> AccountOfRun {
        AccountOfRun {
            begun,
            accepted: self.accepted - before.accepted,
            delivered: self.delivered - before.delivered,
            rejected: self.rejected - before.rejected,
            dropped: self.dropped - before.dropped,
            pending: self.pending - before.pending.min(self.pending),
        }
    }
}

impl AccessRecords {
    /// The sum of two runs.
    pub fn and(self, other: AccessRecords) -> AccessRecords {
        let account = self.account.zip(other.account).map(|(ours, theirs)| AccountOfRun {
            begun: ours.begun + theirs.begun,
            accepted: ours.accepted + theirs.accepted,
            delivered: ours.delivered + theirs.delivered,
            rejected: ours.rejected + theirs.rejected,
            dropped: ours.dropped + theirs.dropped,
            pending: ours.pending + theirs.pending,
        });
        AccessRecords { answered: self.answered + other.answered, written: self.written + other.written, account }
    }
}

impl RecordFile {
    /// Lines written since the target started.
    fn lines(&self) -> u64 {
        let (mut lines, mut at) = self.counted.get();
        // The file does not exist before the first record.
        lines += lines_from(&self.path, &mut at).unwrap_or(0);
        self.counted.set((lines, at));
        lines
    }

    fn empty(&self) {
        // Targets open the file for appending, so they continue at its new end.
        let _ = fs::OpenOptions::new().write(true).open(&self.path).and_then(|file| file.set_len(0));
        self.counted.set((self.counted.get().0, 0));
    }
}

/// Counts the line ends after byte `at`, and moves `at` to the end of the file.
fn lines_from(path: &Path, at: &mut u64) -> std::io::Result<u64> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(*at))?;
    let (mut buffer, mut lines) = (vec![0; 1 << 16], 0);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(lines),
            read => {
                lines += memchr::memchr_iter(b'\n', &buffer[..read]).count() as u64;
                *at += read as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, net::TcpListener};

    use super::*;

    #[test]
    fn the_account_is_the_sum_of_all_sinks() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let sink = r#"{"accepted":{"records":9,"bytes":1},"delivered":{"records":3,"bytes":1},
            "rejected":{"mapping":{"records":1,"bytes":1}},"dropped":{"crash":{"records":1},"expired":{"records":1}},
            "pending":{"memory":{"records":1},"spool":{"records":2},"inflight":{"records":0}}}"#;
        let answering = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 512];
            let _ = stream.read(&mut request).unwrap();
            write!(stream, "HTTP/1.1 200 OK\r\n\r\n{{\"sinks\":[{sink},{sink}]}}").unwrap();
        });
        let account = account_at(address).unwrap();
        answering.join().unwrap();
        let want = AccountOfRun { begun: 0, accepted: 18, delivered: 6, rejected: 2, dropped: 4, pending: 6 };
        assert_eq!(account, want);
        assert!(account_at(address).unwrap_err().to_string().starts_with(&format!("GET http://{address}/records: ")));
    }

    #[test]
    fn an_account_has_to_agree_with_the_run() {
        let account = AccountOfRun { begun: 10, accepted: 9, delivered: 7, rejected: 1, dropped: 1, pending: 0 };
        let records = AccessRecords { answered: 8, written: 7, account: Some(account) };
        assert_eq!(records.disagreement(), None);
        assert_eq!(AccessRecords { account: None, ..records }.disagreement(), None);
        let slow = AccountOfRun { delivered: 3, rejected: 0, dropped: 0, pending: 6, ..account };
        let waiting = AccessRecords { answered: 8, written: 3, account: Some(slow) };
        assert_eq!((waiting.lost_share(), waiting.pending(), waiting.disagreement()), (0.0, 6, None));
        let shown = RecordReading { written: 3, account: Some(slow) }.to_string();
        assert_eq!(shown, "3 are at the destination; of 9 that the target has accepted, 3 are delivered and 6 pending");
        let said = |change: &dyn Fn(&mut AccessRecords, &mut AccountOfRun)| {
            let (mut records, mut account) = (records, account);
            change(&mut records, &mut account);
            AccessRecords { account: Some(account), ..records }.disagreement().unwrap()
        };
        assert_eq!(said(&|_, account| account.dropped = 0), "9 records were accepted, and 8 are accounted for");
        let of = "9 records were accepted of";
        assert_eq!(said(&|_, account| account.begun = 8), format!("{of} 8 requests, 8 of them answered"));
        assert_eq!(said(&|records, _| records.answered = 10), format!("{of} 10 requests, 10 of them answered"));
        assert_eq!(said(&|records, _| records.written = 6), "7 records were delivered, and 6 are at the destination");
    }

    #[test]
    fn lines_are_counted_as_they_come() {
        let path = std::env::temp_dir().join(format!("weir-bench-records-{}", std::process::id()));
        let mut at = 0;
        assert!(lines_from(&path, &mut at).is_err(), "nothing was written yet");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"{}\n{}\n{\"half").unwrap();
        assert_eq!(lines_from(&path, &mut at).unwrap(), 2);
        file.write_all(b"\":1}\n").unwrap();
        assert_eq!(lines_from(&path, &mut at).unwrap(), 1);
        assert_eq!(lines_from(&path, &mut at).unwrap(), 0);
        fs::remove_file(path).unwrap();
    }
}
