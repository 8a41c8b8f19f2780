//! Evens out connections between workers: a worker that has clearly more connections than another hands newly accepted ones
//! over to it. The kernel spreads connections by a hash of their addresses, which may put ten of ten on one worker.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use tokio::sync::mpsc::UnboundedSender;
use weir_telemetry::metrics::Metrics;

/// A connection is handed over if this worker has over an eighth more than the other: the kernel spreads many evenly enough.
const SLACK: u64 = 8;

/// `C` is the command that carries a connection to another worker.
pub(crate) struct ConnectionRebalancer<C> {
    members: Vec<WorkerLoad<C>>,
    metrics: Arc<Metrics>,
}

struct WorkerLoad<C> {
    inbox: UnboundedSender<C>,
    /// Connections handed over to this worker that it has not received yet.
    coming: AtomicU64,
    /// The worker accepts no more of them.
    leaves: AtomicBool,
}

impl<C> ConnectionRebalancer<C> {
    pub(crate) fn new(inboxes: Vec<UnboundedSender<C>>, metrics: Arc<Metrics>) -> ConnectionRebalancer<C> {
        let member = |inbox| WorkerLoad { inbox, coming: AtomicU64::new(0), leaves: AtomicBool::new(false) };
        ConnectionRebalancer { members: inboxes.into_iter().map(member).collect(), metrics }
    }

    fn load(&self, worker: usize) -> u64 {
        self.metrics.workers()[worker].connections_held.value() + self.members[worker].coming.load(Relaxed)
    }

    /// The worker that should serve a connection this one has accepted, if another has clearly fewer.
    pub(crate) fn less_loaded_than(&self, worker: usize) -> Option<usize> {
        let others = (0..self.members.len()).filter(|&other| other != worker);
        let (least, other) = others.map(|other| (self.load(other), other)).min()?;
        (self.load(worker) > least + least / SLACK).then_some(other)
    }

    /// Hands a connection over; returns it if the other worker is leaving or has ended.
    pub(crate) fn hand_over(&self, to: usize, connection: C) -> Result<(), C> {
        let member = &self.members[to];
        // `coming` is counted before `leaves` is read; a worker that leaves stores `leaves` before it reads `coming`, so at
        // least one of the two sees the other.
        member.coming.fetch_add(1, SeqCst);
        let back = match member.leaves.load(SeqCst) {
            true => connection,
            false => match member.inbox.send(connection) {
                Ok(()) => return Ok(()),
                Err(refused) => refused.0,
            },
        };
        member.coming.fetch_sub(1, Relaxed);
        Err(back)
    }

    /// From now on no connection is handed over to this worker.
    pub(crate) fn leave(&self, worker: usize) {
        self.members[worker].leaves.store(true, SeqCst);
    }

    /// Whether a connection that was handed over has not arrived yet.
    pub(crate) fn expects(&self, worker: usize) -> bool {
        self.members[worker].coming.load(SeqCst) > 0
    }

    /// A connection that was handed over has arrived.
    pub(crate) fn arrived(&self, at: usize) {
        self.members[at].coming.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc::unbounded_channel;

    #[test]
    fn ten_connections_on_two_workers_are_five_and_five() {
        let metrics = Arc::new(Metrics::new(2));
        let (inboxes, mut outboxes): (Vec<_>, Vec<_>) = (0..2).map(|_| unbounded_channel()).unzip();
        let rebalancer = ConnectionRebalancer::new(inboxes, Arc::clone(&metrics));
        for _ in 0..10 {
            // The kernel puts all of them on the first worker.
            match rebalancer.less_loaded_than(0) {
                Some(other) => rebalancer.hand_over(other, ()).expect("it is there"),
                None => metrics.worker(0).connections_held.increment(),
            }
        }
        assert_eq!((rebalancer.load(0), rebalancer.load(1)), (5, 5));
        while outboxes[1].try_recv().is_ok() {
            metrics.worker(1).connections_held.increment();
            rebalancer.arrived(1);
        }
        assert_eq!(rebalancer.load(1), 5);
        drop(outboxes);
        assert_eq!(rebalancer.hand_over(1, ()), Err(()), "it has ended");
        assert_eq!(rebalancer.load(1), 5);
    }

    #[test]
    fn f15_nothing_is_lost_that_is_handed_over_while_its_receiver_leaves() {
        for _ in 0..200 {
            let (inbox, mut outbox) = unbounded_channel();
            let rebalancer = ConnectionRebalancer::new(vec![inbox], Arc::new(Metrics::new(1)));
            std::thread::scope(|scope| {
                let given =
                    scope.spawn(|| (0..100).take_while(|&number| rebalancer.hand_over(0, number).is_ok()).count());
                rebalancer.leave(0);
                let mut taken = 0;
                while rebalancer.expects(0) {
                    if outbox.try_recv().is_ok() {
                        taken += 1;
                        rebalancer.arrived(0);
                    }
                }
                assert_eq!(outbox.try_recv().ok(), None);
                assert_eq!(given.join().expect("it does not panic"), taken);
            });
        }
    }

    #[test]
    fn of_many_connections_few_are_moved() {
        let metrics = Arc::new(Metrics::new(2));
        let (inboxes, _outboxes): (Vec<_>, Vec<_>) = (0..2).map(|_| unbounded_channel::<()>()).unzip();
        let rebalancer = ConnectionRebalancer::new(inboxes, Arc::clone(&metrics));
        metrics.worker(0).connections_held.set(1_100);
        metrics.worker(1).connections_held.set(1_000);
        assert_eq!(rebalancer.less_loaded_than(0), None);
        metrics.worker(0).connections_held.set(1_200);
        assert_eq!((rebalancer.less_loaded_than(0), rebalancer.less_loaded_than(1)), (Some(1), None));
    }
}
