//! A load that an agent runs on a thread, until it ends or the session does.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use super::message::LoadState;
use crate::engine::{self, LoadPlan, LoadResult, LoadStart, PlanError, clock::now_ns};

/// The last part of the wait for the start is left to the engine.
const LEAD_NS: u64 = 2_000_000;
/// The engine starts no earlier than this after it is told.
const SHORTEST_LEAD_NS: u64 = 1_000_000;
/// The longest wait without a look at whether the load is stopped.
const LOOK: Duration = Duration::from_millis(20);
/// The furthest ahead that a start may be.
pub(super) const FURTHEST_START: Duration = Duration::from_secs(60);

pub(super) struct SessionLoad {
    thread: Option<thread::JoinHandle<Result<LoadResult, PlanError>>>,
    go: Option<Sender<u64>>,
    shared: Arc<SharedLoad>,
}

#[derive(Default)]
struct SharedLoad {
    stop: Arc<AtomicBool>,
    is_ready: AtomicBool,
    late_ns: AtomicU64,
}

impl SessionLoad {
    /// Makes a load ready: prepares requests and opens the connections that the plan opens in advance.
    pub(super) fn prepare(plan: LoadPlan) -> std::io::Result<SessionLoad> {
        let shared = Arc::new(SharedLoad::default());
        let (go, gone) = channel();
        let theirs = shared.clone();
        let thread = thread::Builder::new().name("load".to_owned()).spawn(move || {
            let mut begin = || theirs.begin(&gone);
            engine::run_when(&plan, &theirs.stop, &LoadStart::default(), &mut begin, &mut |_| {})
        })?;
        Ok(SessionLoad { thread: Some(thread), go: Some(go), shared })
    }

    /// Lets the load begin at this monotonic time. `false` if it has been told before.
    pub(super) fn go(&mut self, start_ns: u64) -> bool {
        // A load that has failed receives nothing; its state says so.
        self.go.take().map(|go| go.send(start_ns)).is_some()
    }

    pub(super) fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.go = None;
    }

    /// The state. The result is given once.
    pub(super) fn state(&mut self) -> LoadState {
        let Some(thread) = &self.thread else { return LoadState::Failed("its result was already given".to_owned()) };
        if !thread.is_finished() {
            return match (self.shared.is_ready.load(Ordering::Acquire), self.go.is_some()) {
                (false, _) => LoadState::Preparing,
                (true, true) => LoadState::Ready,
                (true, false) => LoadState::Running,
            };
        }
        match self.thread.take().expect("it was there above").join() {
            Ok(Ok(result)) => {
                let late_ns = self.shared.late_ns.load(Ordering::Relaxed);
                LoadState::Ended { result: Box::new(result), late_ns }
            }
            Ok(Err(error)) => LoadState::Failed(error.to_string()),
            Err(_) => LoadState::Failed("the load engine panicked; the agent's output has the message".to_owned()),
        }
    }
}

impl SharedLoad {
    /// Waits for the order to start, and until shortly before that time.
    fn begin(&self, gone: &Receiver<u64>) -> u64 {
        self.is_ready.store(true, Ordering::Release);
        let Ok(start_ns) = gone.recv() else {
            self.stop.store(true, Ordering::Relaxed);
            return now_ns();
        };
        while !self.stop.load(Ordering::Relaxed) {
            let left_ns = start_ns.saturating_sub(now_ns() + LEAD_NS);
            if left_ns == 0 {
                break;
            }
            thread::sleep(LOOK.min(Duration::from_nanos(left_ns)));
        }
        let late_ns = (now_ns() + SHORTEST_LEAD_NS).saturating_sub(start_ns);
        self.late_ns.store(late_ns, Ordering::Relaxed);
        start_ns
    }
}

impl Drop for SessionLoad {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::{
        backend::{BackendCarries, BackendServer, Behaviour, Config},
        engine::StopCondition,
    };

    fn backend() -> BackendServer {
        let config = Config {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            threads: 1,
            carries: BackendCarries::Http,
            behaviour: Behaviour::default(),
            tls: None,
        };
        BackendServer::start(&config).unwrap()
    }

    fn until(load: &mut SessionLoad, is_reached: impl Fn(&LoadState) -> bool) -> LoadState {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let state = load.state();
            if is_reached(&state) || Instant::now() > deadline {
                return state;
            }
            thread::yield_now();
        }
    }

    #[test]
    fn a_load_begins_at_the_ordered_time_and_says_how_late_it_was() {
        let backend = backend();
        let url = format!("http://{}/", backend.addresses()[0]);
        for (ahead_ns, is_late) in [(300_000_000, false), (0, true)] {
            let plan = LoadPlan::closed(&url, 1, StopCondition::after_count(3));
            let mut load = SessionLoad::prepare(plan).unwrap();
            let ready = until(&mut load, |state| !matches!(state, LoadState::Preparing));
            assert!(matches!(ready, LoadState::Ready), "{ready:?}");
            let start_ns = now_ns() + ahead_ns;
            assert!(load.go(start_ns) && !load.go(start_ns), "it is told once");
            let ended = until(&mut load, |state| !matches!(state, LoadState::Running));
            let LoadState::Ended { result, late_ns } = ended else { panic!("{ended:?}") };
            assert_eq!(result.total.completed, 3);
            assert!(now_ns() >= start_ns);
            assert!(!is_late || late_ns > 0, "{late_ns}");
        }
    }

    #[test]
    fn a_load_without_an_order_ends_with_its_session() {
        let backend = backend();
        let plan =
            LoadPlan::closed(format!("http://{}/", backend.addresses()[0]), 1, StopCondition::after_ms(3_600_000));
        let mut load = SessionLoad::prepare(plan.clone()).unwrap();
        until(&mut load, |state| matches!(state, LoadState::Ready));
        drop(load);
        let mut load = SessionLoad::prepare(plan).unwrap();
        load.go(now_ns());
        until(&mut load, |state| matches!(state, LoadState::Running));
        drop(load);
    }
}
