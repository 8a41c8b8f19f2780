//! The register of all sinks of a process.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use crate::account::{AccountReading, RecordAccount};
use crate::lock::locked;
use crate::memory::RecordMemory;
use crate::spool::{SpoolPlace, by_name, read_places};
use crate::test_record::{SentTest, TestFault};
use crate::threads::{SinkThreads, StartTask};

/// How often a process that ends checks whether its sinks have ended.
const LOOK: Duration = Duration::from_millis(5);
/// How long sinks may take to book the records that they could not send. In tests none is left behind.
const FINAL_BOOKING_LIMIT: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 1 });

struct RegisteredSpool {
    place: Arc<SpoolPlace>,
    /// A sink uses it now.
    is_used: bool,
}

/// The most sinks of one name that get a test record.
const MOST_TESTED: usize = 16;

/// A sink whose task runs.
pub(crate) trait RunningSink: Send + Sync {
    fn name(&self) -> &str;
    /// No plugin uses it any more.
    fn is_closed(&self) -> bool;
    fn takes_tests(&self) -> bool;
    /// It shall end, and lose what it cannot deliver at once.
    fn give_up(&self);
    fn send_test(&self, id: &str) -> Result<SentTest, TestFault>;
}

/// What is said of records on disk that no sink sends.
const ORPHANED: &str = "records wait on disk for a logger that the configuration does not have, such as one whose address was changed; \
                        `weir records DIR --move SINK --to SINK` gives them to another one, and `--drop SINK` removes them";

/// The limits of sinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SinkLimits {
    /// Bytes of records in memory, of all sinks together.
    pub memory: u64,
    /// Bytes of records in memory, of each sink.
    pub sink_memory: u64,
    /// Threads shared by the sinks.
    pub threads: usize,
}

impl Default for SinkLimits {
    fn default() -> SinkLimits {
        SinkLimits { memory: 256 << 20, sink_memory: 64 << 20, threads: 1 }
    }
}

/// The sinks of a process, and the threads they run on.
pub struct SinkRegister {
    accounts: Mutex<BTreeMap<String, Arc<RecordAccount>>>,
    threads: SinkThreads,
    /// The most threads.
    most_threads: AtomicUsize,
    pub(crate) memory: Arc<RecordMemory>,
    /// The processors for threads of sinks; empty means any.
    cpus: Mutex<Box<[u16]>>,
    running: Mutex<Vec<Arc<dyn RunningSink>>>,
    /// Where the spools of the node are, whether a sink has one or not.
    directory: Mutex<Option<PathBuf>>,
    /// All open places on disk; they stay open until the process ends.
    places: Mutex<Vec<RegisteredSpool>>,
    pub(crate) tasks: AtomicUsize,
}

impl Default for SinkRegister {
    fn default() -> SinkRegister {
        let SinkLimits { memory, sink_memory, threads } = SinkLimits::default();
        SinkRegister {
            accounts: Mutex::default(),
            threads: SinkThreads::default(),
            most_threads: threads.into(),
            memory: Arc::new(RecordMemory::new(memory, sink_memory)),
            cpus: Mutex::default(),
            running: Mutex::default(),
            directory: Mutex::default(),
            places: Mutex::default(),
            tasks: AtomicUsize::default(),
        }
    }
}

impl SinkRegister {
    /// The sinks of this process.
    pub fn of_process() -> &'static Arc<SinkRegister> {
        static REGISTER: LazyLock<Arc<SinkRegister>> = LazyLock::new(Arc::default);
        &REGISTER
    }

    /// The limits of memory apply at once, the number of threads to sinks that are started from now on.
    pub fn set_limits(&self, limits: SinkLimits) {
        self.memory.set_limits(limits.memory, limits.sink_memory);
        self.most_threads.store(limits.threads, Ordering::Relaxed);
    }

    pub fn limits(&self) -> SinkLimits {
        SinkLimits {
            memory: self.memory.most(),
            sink_memory: self.memory.most_of_sink(),
            threads: self.most_threads.load(Ordering::Relaxed),
        }
    }

    /// The directory of the spools of the node. What ended processes have left there is read as well.
    pub fn set_directory(&self, directory: &Path) {
        *locked(&self.directory) = Some(directory.to_owned());
    }

    /// The processors for threads that are started from now on; empty means those of the process.
    pub fn set_cpus(&self, cpus: &[u16]) {
        *locked(&self.cpus) = cpus.into();
    }

    /// Runs `start` on one of the threads.
    ///
    /// # Errors
    /// The system refuses to start a thread.
    pub(crate) fn run(&self, start: StartTask) -> io::Result<()> {
        let cpus = locked(&self.cpus).clone();
        self.threads.run(self.limits().threads, &cpus, start)
    }

    /// The account with this name. Sinks of the same name share it.
    pub(crate) fn account(&self, name: &str) -> Arc<RecordAccount> {
        let mut accounts = locked(&self.accounts);
        Arc::clone(accounts.entry(name.to_owned()).or_insert_with(|| Arc::new(RecordAccount::in_memory(name))))
    }

    pub(crate) fn began(&self, sink: Arc<dyn RunningSink>) {
        self.tasks.fetch_add(1, Ordering::AcqRel);
        locked(&self.running).push(sink);
    }

    pub(crate) fn ended<S: RunningSink>(&self, sink: &Arc<S>) {
        locked(&self.running).retain(|other| !std::ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(sink)));
        self.tasks.fetch_sub(1, Ordering::AcqRel);
    }

    /// Sends a test record to each running sink of this name, up to 16, at once, whatever the sink waits for otherwise.
    ///
    /// # Errors
    /// There is no such sink, or none takes such a record now.
    pub fn send_test(&self, name: &str, id: &str) -> Result<Vec<SentTest>, TestFault> {
        let running: Vec<_> = {
            let running = locked(&self.running);
            let used = running.iter().filter(|sink| sink.name() == name && !sink.is_closed());
            used.take(MOST_TESTED).cloned().collect()
        };
        let (mut sent, mut fault) = (Vec::new(), TestFault::NoSink);
        for sink in running {
            match sink.send_test(id) {
                Ok(one) => sent.push(one),
                Err(other) => fault = other,
            }
        }
        if sent.is_empty() { Err(fault) } else { Ok(sent) }
    }

    /// The accounts of all sinks, by name. Those with a spool count since their directory was made: the places of other processes are
    /// included, as of the previous one during an upgrade, so that no counter falls back or jumps when a place is taken over. So are
    /// sinks that the configuration no longer has, whose records still wait on the disk: their error says so.
    pub fn read(&self) -> Vec<AccountReading> {
        let in_memory: Vec<_> = locked(&self.accounts).values().cloned().collect();
        let on_disk: Vec<_> = locked(&self.places).iter().map(|known| Arc::clone(&known.place)).collect();
        let own: BTreeSet<&Path> = on_disk.iter().map(|place| place.directory()).collect();
        // DATA_DIR/records/SINK/PLACE
        let known = locked(&self.directory).clone();
        let of_sinks = own.iter().filter_map(|place| place.parent()?.parent());
        let directories: BTreeSet<&Path> = of_sinks.chain(known.as_deref()).collect();
        let of_others = |directory| read_places(directory, |place| !own.contains(place)).unwrap_or_default();
        let others: Vec<_> = directories.into_iter().flat_map(of_others).collect();
        let here = in_memory.iter().chain(on_disk.iter().map(|place| &place.account)).map(|account| account.read());
        let mut all = by_name(here.chain(others));
        let waits = |reading: &AccountReading| !(reading.pending.spool.is_zero() && reading.pending.inflight.is_zero());
        let running = locked(&self.running);
        let is_orphaned =
            |reading: &&mut AccountReading| waits(reading) && !running.iter().any(|sink| sink.name() == reading.name);
        let takes_tests =
            |name: &str| running.iter().any(|sink| sink.name() == name && !sink.is_closed() && sink.takes_tests());
        all.iter_mut().for_each(|reading| reading.takes_tests = takes_tests(&reading.name));
        all.iter_mut().filter(is_orphaned).for_each(|reading| {
            reading.is_orphaned = true;
            reading.last_error = Some(ORPHANED.to_owned());
        });
        all
    }

    /// Says which records on disk are of no sink of the configuration.
    pub fn tell_orphaned(&self, tell: impl Fn(&str)) {
        for AccountReading { name, pending, .. } in self.read().into_iter().filter(|reading| reading.is_orphaned) {
            let records = pending.spool.records + pending.inflight.records;
            tell(&format!("{name}: {records} {ORPHANED}"));
        }
    }

    /// Adds a place that a sink has opened and uses.
    pub(crate) fn add_place(&self, place: &Arc<SpoolPlace>) {
        locked(&self.places).push(RegisteredSpool { place: Arc::clone(place), is_used: true });
    }

    /// Claims the places in a directory that this process has open, that no sink uses, and that are wanted.
    pub(crate) fn claim_places(
        &self,
        directory: &Path,
        is_wanted: impl Fn(&SpoolPlace) -> bool,
    ) -> Vec<Arc<SpoolPlace>> {
        let mut places = locked(&self.places);
        let free = |known: &&mut RegisteredSpool| {
            !known.is_used && known.place.directory().parent() == Some(directory) && is_wanted(&known.place)
        };
        let claim = |known: &mut RegisteredSpool| {
            known.is_used = true;
            Arc::clone(&known.place)
        };
        places.iter_mut().filter(free).map(claim).collect()
    }

    pub(crate) fn give_back_place(&self, place: &Arc<SpoolPlace>) {
        let mut places = locked(&self.places);
        places.iter_mut().filter(|known| Arc::ptr_eq(&known.place, place)).for_each(|known| known.is_used = false);
    }

    /// Waits for at most `patience` until closed sinks have sent their records. The rest is dropped, or stays on disk; the
    /// account and the log show that.
    pub fn finish(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        while self.has_tasks() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        locked(&self.running).iter().for_each(|sink| sink.give_up());
        let deadline = Instant::now() + FINAL_BOOKING_LIMIT;
        while self.has_tasks() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
    }

    fn has_tasks(&self) -> bool {
        self.tasks.load(Ordering::Acquire) > 0
    }
}
