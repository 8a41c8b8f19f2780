//! The engine of the process, and the clock by which calls into plugins are ended.

use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use wasmtime::{Config, Engine};

use crate::limits;

/// How often the clock advances.
const TICK: Duration = Duration::from_millis(1);

static ENGINE: LazyLock<Engine> = LazyLock::new(|| {
    let mut config = Config::new();
    config.epoch_interruption(true).max_wasm_stack(limits::STACK_BYTES);
    Engine::new(&config).expect("the settings are those of every platform that Weir runs on")
});

pub(crate) fn engine() -> &'static Engine {
    &ENGINE
}

/// The ticks after which a call has had this much time. A tick more, because the first one may be about to come.
pub(crate) fn ticks(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).saturating_add(1)
}

/// Keeps the clock running. Its thread ends with the last of them.
#[derive(Debug)]
pub(crate) struct EpochClock(#[expect(dead_code, reason = "only held")] Arc<()>);

impl EpochClock {
    /// Starts the clock, unless it runs.
    ///
    /// # Errors
    /// The system has no room for a thread.
    pub(crate) fn run() -> Result<EpochClock, String> {
        static RUNNING: Mutex<Weak<()>> = Mutex::new(Weak::new());
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = running.upgrade() {
            return Ok(EpochClock(held));
        }
        let held = Arc::new(());
        let of_thread = Arc::downgrade(&held);
        let ticking = thread::Builder::new().name("weir-wasm-clock".to_owned()).spawn(move || {
            while of_thread.strong_count() > 0 {
                thread::sleep(TICK);
                engine().increment_epoch();
            }
        });
        ticking.map_err(|error| format!("the clock of WebAssembly plugins cannot be started: {error}"))?;
        *running = Arc::downgrade(&held);
        Ok(EpochClock(held))
    }
}
