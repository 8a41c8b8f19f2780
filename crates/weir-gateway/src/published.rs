//! A snapshot with the state that all workers share for it: created once, on the publishing thread, and freed on a thread
//! of its own.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_telemetry::metrics::Metrics;
use weir_telemetry::routes::RouteSlot;
use weir_telemetry::upstreams::UpstreamCounters;

use crate::endpoint::state::{Health, HealthTable};
use crate::pieces::Pieces;
use crate::snapshot::{Snapshot, Upstream};

/// How often the thread checks whether the last worker has dropped a snapshot.
const LOOK: Duration = Duration::from_millis(100);

/// The least time between two searches for endpoints and counters that no snapshot uses any more. A search looks at all of them,
/// so its cost must not depend on how often the configuration changes.
const SEARCH_EVERY: Duration = Duration::from_secs(1);

pub(crate) struct Published {
    pub snapshot: Arc<Snapshot>,
    /// Has the same indices as [`Snapshot::routes`].
    pub slots: Arc<[RouteSlot]>,
    /// Has the same indices as [`Snapshot::upstreams`]; each slice those of the upstream's endpoints.
    pub health: Pieces<Arc<[Arc<Health>]>>,
    /// Has the same indices as [`Snapshot::upstreams`]; the counters of each worker.
    pub counters: Pieces<Arc<[Arc<UpstreamCounters>]>>,
}

impl Published {
    /// Looks up only what differs from `before`.
    pub(crate) fn new(
        snapshot: Arc<Snapshot>,
        before: Option<&Published>,
        metrics: &Metrics,
        table: &HealthTable,
        now_ns: u64,
    ) -> Published {
        let none = Pieces::default();
        let (mut health, mut counters, known) = match before {
            Some(before) => (before.health.clone(), before.counters.clone(), &before.snapshot.upstreams),
            None => (Pieces::default(), Pieces::default(), &none),
        };
        for number in snapshot.upstreams.changes_from(known) {
            match snapshot.upstreams.get(number) {
                Some(upstream) => {
                    health.set(number, table.of(upstream, now_ns));
                    let names: Vec<String> = upstream.endpoints.iter().map(|one| one.addr.to_string()).collect();
                    let names = names.iter().map(String::as_str);
                    counters.set(number, metrics.upstreams.counters(&upstream.name, names));
                }
                None => drop((health.remove(number), counters.remove(number))),
            }
        }
        let slots = match before {
            Some(before) if has_same_ids(&snapshot, &before.snapshot) => Arc::clone(&before.slots),
            _ => slots(metrics, &snapshot),
        };
        Published { snapshot, slots, health, counters }
    }

    /// The upstreams, each with the health of its endpoints.
    pub(crate) fn upstreams(&self) -> impl Iterator<Item = (&Upstream, &[Arc<Health>])> {
        self.snapshot.upstreams.iter().map(|(number, upstream)| (&**upstream, &*self.health[number]))
    }

    /// Whether the active checks may differ from before.
    pub(crate) fn has_other_checks(&self, before: &Published) -> bool {
        let (new, old) = (&self.snapshot.upstreams, &before.snapshot.upstreams);
        let is_checked = |upstreams: &Pieces<Arc<Upstream>>, number: usize| {
            upstreams.get(number).is_some_and(|upstream| upstream.endpoints.iter().any(|one| one.checks.is_some()))
        };
        new.changes_from(old).into_iter().any(|number| is_checked(new, number) || is_checked(old, number))
    }
}

fn has_same_ids(new: &Snapshot, old: &Snapshot) -> bool {
    let id = |snapshot: &Snapshot, number: usize| snapshot.routes.get(number).map(|route| route.facts.route_id.clone());
    new.routes.changes_from(&old.routes).into_iter().all(|number| id(new, number) == id(old, number))
}

/// The metrics slots by route number; numbers without a route have the slot that such exchanges share.
fn slots(metrics: &Metrics, snapshot: &Snapshot) -> Arc<[RouteSlot]> {
    let ids = snapshot.routes.iter().map(|(_, route)| &*route.facts.route_id);
    let assigned = metrics.routes.assign(metrics.workers(), ids);
    let numbers = snapshot.routes.iter().last().map_or(0, |(last, _)| last + 1);
    let mut slots = vec![RouteSlot::default(); numbers];
    snapshot.routes.iter().zip(assigned).for_each(|((number, _), slot)| slots[number] = slot);
    slots.into()
}

/// Holds replaced snapshots until no worker uses them any more, so that no worker has to free them.
pub(crate) struct RetiredSnapshotDropper {
    inbox: Option<mpsc::Sender<Arc<Published>>>,
    thread: Option<JoinHandle<()>>,
}

impl RetiredSnapshotDropper {
    pub(crate) fn start(table: Arc<HealthTable>, metrics: Arc<Metrics>) -> std::io::Result<RetiredSnapshotDropper> {
        let (inbox, retired) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("snapshots".into())
            .spawn(move || free_retired_snapshots(&retired, &table, &metrics))?;
        Ok(RetiredSnapshotDropper { inbox: Some(inbox), thread: Some(thread) })
    }

    /// Takes over a snapshot that was replaced.
    pub(crate) fn take(&self, published: Arc<Published>) {
        // If the thread has panicked, the last worker frees the snapshot.
        let _ = self.inbox.as_ref().map(|inbox| inbox.send(published));
    }
}

impl Drop for RetiredSnapshotDropper {
    fn drop(&mut self) {
        self.inbox = None;
        // If the thread has panicked, that has been logged.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn free_retired_snapshots(retired: &mpsc::Receiver<Arc<Published>>, table: &HealthTable, metrics: &Metrics) {
    let mut held: Vec<Arc<Published>> = Vec::new();
    // Whether snapshots have been freed since the last search for unused parts, and when that was.
    let (mut is_due, mut searched) = (false, None::<Instant>);
    loop {
        let next = match held.is_empty() && !is_due {
            true => retired.recv().map_err(RecvTimeoutError::from),
            false => retired.recv_timeout(LOOK),
        };
        match next {
            Ok(published) => held.push(published),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let before = held.len();
        held.retain(|published| Arc::strong_count(published) > 1);
        is_due |= held.len() < before;
        if is_due && searched.is_none_or(|at| at.elapsed() >= SEARCH_EVERY) {
            table.forget_unused();
            metrics.upstreams.forget_unused();
            (is_due, searched) = (false, Some(Instant::now()));
        }
    }
}

/// The snapshot that is served now, for the threads that publish and that report.
pub(crate) struct Latest(Mutex<Arc<Published>>);

impl Latest {
    pub(crate) fn new(published: Arc<Published>) -> Latest {
        Latest(Mutex::new(published))
    }

    pub(crate) fn get(&self) -> Arc<Published> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the previous one.
    pub(crate) fn replace(&self, published: Arc<Published>) -> Arc<Published> {
        std::mem::replace(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner), published)
    }
}
