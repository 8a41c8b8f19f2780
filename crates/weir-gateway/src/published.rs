//! A snapshot with what all workers share of it: made once, on the thread that publishes, and freed on a thread of its own.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_telemetry::metrics::Metrics;
use weir_telemetry::routes::RouteSlot;
use weir_telemetry::upstreams::UpstreamCounters;

use crate::endpoint::state::{Health, HealthTable};
use crate::pieces::Pieces;
use crate::snapshot::Snapshot;

/// How often it is looked whether the last worker has left a snapshot behind.
const LOOK: Duration = Duration::from_millis(100);

pub struct Published {
    pub snapshot: Arc<Snapshot>,
    /// Beside [`Snapshot::routes`].
    pub slots: Arc<[RouteSlot]>,
    /// Beside [`Snapshot::upstreams`], and there beside the endpoints.
    pub health: Pieces<Arc<[Arc<Health>]>>,
    /// Beside [`Snapshot::upstreams`]: where each worker counts.
    pub counters: Pieces<Arc<[Arc<UpstreamCounters>]>>,
}

impl Published {
    /// Looks up only what `before` does not have already.
    pub fn new(
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
                    health.set(number, table.endpoints(&upstream.endpoints, now_ns));
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

    /// Whether active checks may have to be other ones than before.
    pub fn has_other_checks(&self, before: &Published) -> bool {
        let (new, old) = (&self.snapshot.upstreams, &before.snapshot.upstreams);
        let is_checked = |upstreams: &Pieces<Arc<crate::snapshot::Upstream>>, number: usize| {
            upstreams.get(number).is_some_and(|upstream| upstream.endpoints.iter().any(|one| one.checks.is_some()))
        };
        new.changes_from(old).into_iter().any(|number| is_checked(new, number) || is_checked(old, number))
    }
}

fn has_same_ids(new: &Snapshot, old: &Snapshot) -> bool {
    let id = |snapshot: &Snapshot, number: usize| snapshot.routes.get(number).map(|route| route.facts.route_id.clone());
    new.routes.changes_from(&old.routes).into_iter().all(|number| id(new, number) == id(old, number))
}

/// By the number of the route; numbers without a route have the slot of those that share one.
fn slots(metrics: &Metrics, snapshot: &Snapshot) -> Arc<[RouteSlot]> {
    let ids = snapshot.routes.iter().map(|(_, route)| &*route.facts.route_id);
    let assigned = metrics.routes.assign(metrics.workers(), ids);
    let numbers = snapshot.routes.iter().last().map_or(0, |(last, _)| last + 1);
    let mut slots = vec![RouteSlot::default(); numbers];
    snapshot.routes.iter().zip(assigned).for_each(|((number, _), slot)| slots[number] = slot);
    slots.into()
}

/// Holds what was published until no worker needs it any more, so that none of them has to free it.
pub struct SnapshotShredder {
    inbox: Option<mpsc::Sender<Arc<Published>>>,
    thread: Option<JoinHandle<()>>,
}

impl SnapshotShredder {
    pub fn start(table: Arc<HealthTable>, metrics: Arc<Metrics>) -> std::io::Result<SnapshotShredder> {
        let (inbox, retired) = mpsc::channel();
        let thread =
            std::thread::Builder::new().name("snapshots".into()).spawn(move || shred(&retired, &table, &metrics))?;
        Ok(SnapshotShredder { inbox: Some(inbox), thread: Some(thread) })
    }

    /// Takes a snapshot that was replaced.
    pub fn take(&self, published: Arc<Published>) {
        // A thread that has ended has panicked; then the last worker frees it.
        let _ = self.inbox.as_ref().map(|inbox| inbox.send(published));
    }
}

impl Drop for SnapshotShredder {
    fn drop(&mut self) {
        self.inbox = None;
        // A thread that panicked has said so already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn shred(retired: &mpsc::Receiver<Arc<Published>>, table: &HealthTable, metrics: &Metrics) {
    let mut held: Vec<Arc<Published>> = Vec::new();
    loop {
        let next = match held.is_empty() {
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
        if held.len() < before {
            table.forget_unused();
            metrics.upstreams.forget_unused();
        }
    }
}

/// What serves now, for those who publish and those who look.
pub struct Latest(Mutex<Arc<Published>>);

impl Latest {
    pub fn new(published: Arc<Published>) -> Latest {
        Latest(Mutex::new(published))
    }

    pub fn get(&self) -> Arc<Published> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the one before.
    pub fn replace(&self, published: Arc<Published>) -> Arc<Published> {
        std::mem::replace(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner), published)
    }
}
