//! The threads that keep tables on disk.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_plugin::state;

use super::DurableCounter;
use super::keeper::{Keeper, WRITE_EVERY};

/// How often a process that ends looks whether the last changes are written.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// The keepers of this process.
#[derive(Default)]
struct Keepers {
    running: Mutex<Vec<RunningKeeper>>,
}

struct RunningKeeper {
    signal: Arc<Signal>,
    thread: JoinHandle<()>,
    /// How many counters have changed since the last write.
    changed: Box<dyn Fn() -> u64 + Send>,
}

#[derive(Default)]
struct Signal {
    is_stopped: Mutex<bool>,
    wake: Condvar,
    /// Changes have been taken from the table and may not be written yet.
    is_writing: AtomicBool,
}

/// Stops a keeper, after a last write, when it is dropped.
pub(super) struct StopKeeper(Arc<Signal>);

impl Drop for StopKeeper {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Signal {
    fn stop(&self) {
        *lock(&self.is_stopped) = true;
        self.wake.notify_all();
    }
}

fn all() -> Arc<Keepers> {
    state::permanent("counter-keepers")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the thread of a keeper.
///
/// # Errors
/// The system has no more threads.
pub(super) fn start<C: DurableCounter>(keeper: Keeper<C>) -> io::Result<StopKeeper> {
    let signal = Arc::new(Signal::default());
    let table = Arc::downgrade(keeper.table());
    let changed = Box::new(move || table.upgrade().map_or(0, |table| table.changed()));
    let of_thread = Arc::clone(&signal);
    let thread = std::thread::Builder::new().name("counters".into()).spawn(move || run(keeper, &of_thread))?;
    let keepers = all();
    let mut running = lock(&keepers.running);
    running.retain(|keeper| !keeper.thread.is_finished());
    running.push(RunningKeeper { signal: Arc::clone(&signal), thread, changed });
    Ok(StopKeeper(signal))
}

fn run<C: DurableCounter>(mut keeper: Keeper<C>, signal: &Signal) {
    let mut pause = WRITE_EVERY;
    loop {
        let waited = signal.wake.wait_timeout_while(lock(&signal.is_stopped), pause, |is_stopped| !*is_stopped);
        let is_stopped = *waited.unwrap_or_else(PoisonError::into_inner).0;
        signal.is_writing.store(true, Ordering::Release);
        pause = keeper.step();
        signal.is_writing.store(false, Ordering::Release);
        if is_stopped {
            return;
        }
    }
}

/// Writes the last changes, for at most `patience`. To be called when the process serves no more.
pub fn finish(patience: Duration) {
    let deadline = Instant::now() + patience;
    let running = std::mem::take(&mut *lock(&all().running));
    running.iter().for_each(|keeper| keeper.signal.stop());
    // A disk that hangs must not hold up the end of the process.
    while running.iter().any(|keeper| !keeper.thread.is_finished()) && Instant::now() < deadline {
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// How many counters have changed since they were last written; `None` if no limit is durable.
pub fn unwritten() -> Option<u64> {
    let keepers = all();
    let running = lock(&keepers.running);
    let of_one = |keeper: &RunningKeeper| {
        // In this order: changes are taken from the table after `is_writing` is set.
        let changed = (keeper.changed)();
        changed.max(u64::from(keeper.signal.is_writing.load(Ordering::Acquire)))
    };
    let mut running = running.iter().filter(|keeper| !keeper.thread.is_finished()).peekable();
    running.peek().is_some().then(|| running.map(of_one).sum())
}
