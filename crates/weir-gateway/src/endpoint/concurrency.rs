//! The number of exchanges that one endpoint should have in flight: the fewest that keep its full throughput.
//!
//! Beyond that number a further request only waits inside the endpoint, where the gateway cannot see it, and each
//! connection that waits goes cold. The indicator is the *fastest* exchange of an epoch: where requests queue, even that
//! takes several times the least time ever seen (the record), while a mixture of fast and slow work keeps its fast
//! exchanges. Under a load that is heavy from the start there is no record from before it: then the limiter begins with a
//! fixed limit, tries whether a higher one helps, and if not, whether a lower one does.
//!
//! The indicator is no proof (the endpoint may have become slower, or the record may have been an error page), so each
//! reduction is a trial: if throughput falls with the limit, the reduction is undone and the record forgotten.
//!
//! The limiter belongs to the machine: all upstreams with `auto` that send there share it. It follows the endpoints of each of
//! these upstreams as a group, because they may share a processor (one host with several ports), where one with more in flight
//! than the others gains at their expense. So a reduction is tried at the whole group at once, and a higher limit at one
//! endpoint counts as a gain only if the throughput of the group rises too, or if its exchanges do not take longer.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};

use crate::snapshot::Concurrency;

/// The lowest limit of all workers together: with fewer in flight an endpoint runs dry where its answers, or the gateway's
/// requests, come in bursts. In a sweep before one nginx process 16, 32 and 64 were alike, and 8 brought an eighth less
/// throughput.
const LEAST: u32 = 16;
/// The initial limit. Without one, many clients that arrive at once would open a connection each, and most of these would
/// not be needed a moment later: 2,000 clients opened 3,600 connections in half a second.
const FIRST: u32 = 256;
/// The lowest limit of one worker, however many there are: with a single permit every exchange would wait for a round trip.
const LEAST_OF_ONE: u32 = 2;
/// With fewer than this in flight a reduction is not tried: at 64 the queue costs more CPU time (5 %) than it saves, at 256
/// it saves 6 %.
const WORTHWHILE: f64 = 128.0;
/// If the fastest exchange of an epoch took this many times the record, requests queue in the endpoint.
const QUEUEING: u64 = 4;
/// A limit binds if the mean number in flight is at least this fraction of it. Below that only bursts queue, which pass by
/// themselves.
const BINDING: f64 = 0.75;
/// The factor of throughput that a doubled limit must bring at least.
const GAINED: f64 = 1.05;
/// If throughput differs by this factor from what it was when the limit was found, the limit is examined again.
const CHANGED: f64 = 1.5;
/// The fraction of throughput that a halved limit must keep. Where throughput follows the limit, it would be a half.
const KEPT: f64 = 0.8;
/// With more in flight: if the fastest exchange takes at most this factor longer, the endpoint had capacity for them, even
/// if the group as a whole did not gain.
const NO_SLOWER: f64 = 1.25;
/// With fewer in flight: if the fastest exchange takes at least this fraction of its time before, none had waited in a
/// queue.
const NO_FASTER: f64 = 0.9;
/// If the fastest exchange of an epoch took at least this fraction of the mean, all of them may have queued.
const ALIKE: f64 = 0.125;
/// An epoch has at least this many completed exchanges,
const EPOCH_EXCHANGES: u64 = 256;
/// and lasts at least this long, and two mean latencies.
const EPOCH_NS: u64 = 40_000_000;
/// The first pause after a trial that did not help; it doubles with each further one in a row.
const PAUSE_NS: u64 = 500_000_000;
/// If no exchange completes for this long while requests wait, the limit doubles at every tick until one does.
const STALLED_NS: u64 = 60_000_000;
const LONGEST_PAUSE_NS: u64 = 16_000_000_000;

/// The limiter of one worker for one endpoint.
#[derive(Debug)]
pub(crate) struct ConcurrencyLimiter {
    setting: Cell<Concurrency>,
    /// This worker's parts of [`LEAST`], [`FIRST`] and [`WORTHWHILE`].
    least: u32,
    first: u32,
    worthwhile: f64,
    /// The groups of the upstreams that use it, and how often each does: an endpoint as it was before an edit lives as long as its
    /// exchanges.
    groups: RefCell<HashMap<*const LimiterGroup, (Weak<LimiterGroup>, usize)>>,
    /// A group has left since the completed exchanges were last counted.
    has_lost_group: Cell<bool>,
    /// The time of the latest reduction in one of its groups that it has followed, or begun.
    noted_ns: Cell<u64>,
    limit: Cell<u32>,
    trial: Cell<Trial>,
    /// The record: the time of the fastest exchange since a trial last showed the record to be wrong.
    record_ns: Cell<u64>,
    epoch: Cell<Epoch>,
    pause_ns: Cell<u64>,
    paused_until_ns: Cell<u64>,
    /// A reduction has been tried; before that, the record may itself be a time with queueing under a heavy load.
    explored: Cell<bool>,
    /// Throughput when the limit was found, in exchanges per nanosecond.
    found_rate: Cell<f64>,
    /// When the last exchange completed.
    last_ns: Cell<u64>,
    /// The result of the previous epoch, if no trial runs in this one.
    before: Cell<Option<EpochResult>>,
}

/// The endpoints of one upstream at one worker: what their limiters have in common.
#[derive(Debug, Default)]
pub(crate) struct LimiterGroup {
    /// Exchanges of this upstream that have completed.
    completed: Cell<u64>,
    /// When the last exchange completed at any of them.
    last_ns: Cell<u64>,
    /// When one of their limiters last began a reduction.
    reduced_ns: Cell<u64>,
}

impl LimiterGroup {
    /// When an exchange last completed at any of the endpoints.
    pub(crate) fn last_completed_ns(&self) -> u64 {
        self.last_ns.get()
    }
}

/// The trial that runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trial {
    Nothing,
    /// The limit was lowered to about half of `from`.
    Down {
        from: u32,
        before: EpochResult,
    },
    /// The limit was raised above `from`.
    Up {
        from: u32,
        before: EpochResult,
    },
}

/// The result of an epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
struct EpochResult {
    /// Exchanges per nanosecond.
    rate: f64,
    /// The same of all groups together.
    whole_rate: f64,
    latency_ns: u64,
    fastest_ns: u64,
    /// Exchanges waited for a permit.
    queued: bool,
}

/// An epoch: what is measured between two decisions.
#[derive(Clone, Copy, Debug, Default)]
struct Epoch {
    /// Exchanges that began before this are not counted: they ran under the previous limit.
    started_ns: u64,
    first_ns: u64,
    exchanges: u64,
    latency_sum_ns: u64,
    fastest_ns: u64,
    queued: bool,
    /// Exchanges that the groups had completed when the first one of this epoch completed.
    groups_completed: u64,
}

impl EpochResult {
    /// The mean number in flight (Little's law).
    fn in_flight(&self) -> f64 {
        self.rate * self.latency_ns as f64
    }

    /// More in flight than `before` have raised throughput, and not at the expense of the group.
    fn throughput_rose(&self, before: &EpochResult) -> bool {
        self.rate >= before.rate * GAINED
            && (self.whole_rate >= before.whole_rate * GAINED
                || self.fastest_ns as f64 <= before.fastest_ns as f64 * NO_SLOWER)
    }

    /// Fewer in flight than `before` have lowered throughput, and not because the group does more.
    fn throughput_fell(&self, before: &EpochResult) -> bool {
        self.rate < before.rate * KEPT && (self.whole_rate < before.whole_rate * KEPT || !self.is_faster(before))
    }

    fn is_faster(&self, before: &EpochResult) -> bool {
        (self.fastest_ns as f64) < before.fastest_ns as f64 * NO_FASTER
    }
}

impl ConcurrencyLimiter {
    /// `workers` is the number of workers that send to the endpoint, each with a limiter of its own.
    pub(crate) fn new(setting: Concurrency, workers: u32) -> ConcurrencyLimiter {
        let workers = workers.max(1);
        let limiter = ConcurrencyLimiter {
            setting: Cell::new(setting),
            least: LEAST.div_ceil(workers).max(LEAST_OF_ONE),
            first: FIRST.div_ceil(workers).max(LEAST),
            worthwhile: WORTHWHILE / f64::from(workers),
            groups: RefCell::default(),
            has_lost_group: Cell::new(false),
            noted_ns: Cell::new(0),
            limit: Cell::new(u32::MAX),
            trial: Cell::new(Trial::Nothing),
            record_ns: Cell::new(u64::MAX),
            epoch: Cell::default(),
            pause_ns: Cell::new(PAUSE_NS),
            paused_until_ns: Cell::new(0),
            explored: Cell::new(false),
            found_rate: Cell::new(0.0),
            last_ns: Cell::new(0),
            before: Cell::new(None),
        };
        limiter.set(setting);
        limiter
    }

    /// Sets the mode. If it stays the same, what was learnt is kept.
    pub(crate) fn configure(&self, setting: Concurrency) {
        if setting != self.setting.get() {
            self.set(setting);
        }
    }

    /// Whether the limit is found by trials, and not configured.
    pub(crate) fn is_found(&self) -> bool {
        self.setting.get() == Concurrency::Auto
    }

    /// Makes this limiter a member of the group, if it finds its limit. What it measures begins anew with another group, and goes on
    /// with one that it is a member of: the same upstream has been edited.
    pub(crate) fn join(&self, group: &Rc<LimiterGroup>) {
        if !self.is_found() {
            return;
        }
        // The address of a group is not used again as long as there is a weak reference to it.
        if let Some((_, uses)) = self.groups.borrow_mut().get_mut(&Rc::as_ptr(group)) {
            *uses += 1;
            return;
        }
        group.last_ns.set(group.last_ns.get().max(self.last_ns.get()));
        self.noted_ns.set(self.noted_ns.get().max(group.reduced_ns.get()));
        self.epoch.take();
        self.groups.borrow_mut().insert(Rc::as_ptr(group), (Rc::downgrade(group), 1));
    }

    /// Takes back one [`ConcurrencyLimiter::join`].
    pub(crate) fn leave(&self, group: &Rc<LimiterGroup>) {
        let mut groups = self.groups.borrow_mut();
        let Some((_, uses)) = groups.get_mut(&Rc::as_ptr(group)) else { return };
        *uses -= 1;
        if *uses == 0 {
            groups.remove(&Rc::as_ptr(group));
            self.has_lost_group.set(true);
        }
    }

    /// Exchanges that its groups have completed; `None` if an upstream has gone since the last call. Called at the beginning and
    /// the end of an epoch only: the limiter of a machine may have many groups.
    fn groups_completed(&self) -> Option<u64> {
        let mut groups = self.groups.borrow_mut();
        let before = groups.len();
        let mut completed = 0;
        groups.retain(|_, (group, _)| match group.upgrade() {
            Some(group) => {
                completed += group.completed.get();
                true
            }
            None => false,
        });
        let is_whole = groups.len() == before && !self.has_lost_group.take();
        is_whole.then_some(completed)
    }

    fn set(&self, setting: Concurrency) {
        self.setting.set(setting);
        self.trial.set(Trial::Nothing);
        self.limit.set(self.configured_limit(setting));
    }

    /// The most exchanges that this worker should have in flight at the endpoint.
    pub(crate) fn limit(&self) -> u32 {
        self.limit.get()
    }

    /// Called when an exchange of the group that began at `began_ns` has returned its permit; `queued`: others wait for one.
    pub(crate) fn completed(&self, group: &LimiterGroup, began_ns: u64, now_ns: u64, queued: bool) {
        if self.setting.get() != Concurrency::Auto {
            return;
        }
        self.last_ns.set(now_ns);
        group.completed.set(group.completed.get() + 1);
        group.last_ns.set(now_ns);
        if group.reduced_ns.get() > self.noted_ns.get() {
            self.noted_ns.set(group.reduced_ns.get());
            self.follow(now_ns);
        }
        let mut epoch = self.epoch.get();
        if began_ns < epoch.started_ns {
            return;
        }
        let latency_ns = (now_ns - began_ns).max(1);
        if epoch.exchanges == 0 {
            epoch.first_ns = now_ns;
            epoch.fastest_ns = latency_ns;
            epoch.groups_completed = self.groups_completed().or_else(|| self.groups_completed()).unwrap_or(0);
        }
        epoch.exchanges += 1;
        epoch.latency_sum_ns += latency_ns;
        epoch.fastest_ns = epoch.fastest_ns.min(latency_ns);
        epoch.queued |= queued;
        self.epoch.set(epoch);
        if epoch.fastest_ns >= EPOCH_NS
            && epoch.exchanges >= self.least.into()
            && self.should_end_trial(epoch.fastest_ns, now_ns)
        {
            return;
        }
        let lasted_ns = now_ns - epoch.first_ns;
        if epoch.exchanges >= EPOCH_EXCHANGES && lasted_ns >= EPOCH_NS {
            let latency_ns = epoch.latency_sum_ns / epoch.exchanges;
            if lasted_ns >= 2 * latency_ns {
                self.start_epoch(now_ns);
                self.record_ns.set(self.record_ns.get().min(epoch.fastest_ns));
                // Without a group that has gone meanwhile the whole cannot be compared.
                let Some(groups_completed) = self.groups_completed() else { return };
                let seen = EpochResult {
                    rate: epoch.exchanges as f64 / lasted_ns as f64,
                    whole_rate: (groups_completed - epoch.groups_completed) as f64 / lasted_ns as f64,
                    latency_ns,
                    fastest_ns: epoch.fastest_ns,
                    queued: epoch.queued,
                };
                self.decide(seen, now_ns);
                self.before.set((self.trial.get() == Trial::Nothing).then_some(seen));
            }
        }
    }

    fn start_epoch(&self, now_ns: u64) {
        self.epoch.set(Epoch { started_ns: now_ns, ..Epoch::default() });
    }

    /// Another limiter of the group tries a reduction. If requests seem to queue here too, this one takes part.
    fn follow(&self, now_ns: u64) {
        if let Some(before) = self.before.take()
            && before.in_flight() >= f64::from(self.least)
            && self.seems_to_queue(&before)
        {
            self.start_epoch(now_ns);
            self.halve_limit(before);
        }
    }

    /// Called when exchanges take long. If the fastest takes no less time with fewer in flight, throughput follows the
    /// limit, and the trial ends without waiting for a whole epoch. Returns whether it did.
    fn should_end_trial(&self, fastest_ns: u64, now_ns: u64) -> bool {
        match self.trial.get() {
            Trial::Down { from, before } if fastest_ns as f64 >= before.fastest_ns as f64 * NO_FASTER => {
                self.start_epoch(now_ns);
                self.record_ns.set(fastest_ns);
                self.settle_on_limit(from, before.rate, false, now_ns);
                true
            }
            _ => false,
        }
    }

    /// Evaluates an epoch that is over.
    fn decide(&self, seen: EpochResult, now_ns: u64) {
        let (limit, in_flight) = (self.limit.get(), seen.in_flight());
        tracing::debug!(
            "concurrency: {:.0}/s of {:.0}/s, {in_flight:.0} in flight of {limit}, fastest {} µs of {} µs, {:?}",
            seen.rate * 1e9,
            seen.whole_rate * 1e9,
            seen.fastest_ns / 1000,
            self.record_ns.get() / 1000,
            self.trial.get()
        );
        match self.trial.get() {
            Trial::Nothing => self.consider(seen, now_ns),
            Trial::Down { from, before } if seen.throughput_fell(&before) => {
                // Throughput follows the limit, so nothing queues: the new record is how long an exchange takes now.
                self.record_ns.set(seen.fastest_ns);
                self.settle_on_limit(from, before.rate, false, now_ns);
            }
            // While even the fastest exchange gets faster, requests still queue.
            Trial::Down { before, .. } if seen.fastest_ns < before.fastest_ns / 4 * 3 && limit > self.least => {
                let before = EpochResult { fastest_ns: seen.fastest_ns, ..before };
                self.begin_trial(Trial::Down { from: limit, before }, limit / 2);
            }
            Trial::Down { .. } => self.settle_on_limit(limit.min(2 * in_flight as u32), seen.rate, true, now_ns),
            Trial::Up { before, .. } if seen.throughput_rose(&before) && in_flight >= BINDING * f64::from(limit) => {
                self.begin_trial(Trial::Up { from: limit, before: seen }, limit.saturating_mul(2));
            }
            Trial::Up { .. } if !self.explored.get() => self.try_lower_limit(seen, now_ns),
            Trial::Up { from, before } if !seen.throughput_rose(&before) => {
                self.settle_on_limit(from, seen.rate, false, now_ns)
            }
            Trial::Up { .. } => self.settle_on_limit(limit, seen.rate, true, now_ns),
        }
    }

    /// No trial runs: begins one if the epoch suggests it.
    fn consider(&self, seen: EpochResult, now_ns: u64) {
        let (limit, found) = (self.limit.get(), self.found_rate.get());
        let rested = now_ns >= self.paused_until_ns.get() || seen.rate * CHANGED < found || seen.rate > found * CHANGED;
        let queues = seen.whole_rate * seen.latency_ns as f64 >= self.worthwhile && self.seems_to_queue(&seen);
        let binds = seen.queued && seen.in_flight() >= BINDING * f64::from(limit);
        if rested && binds && (!queues || !self.explored.get() || limit == self.least) {
            self.begin_trial(Trial::Up { from: limit, before: seen }, limit.saturating_mul(2));
        } else if rested && queues {
            self.try_lower_limit(seen, now_ns);
        }
    }

    fn seems_to_queue(&self, seen: &EpochResult) -> bool {
        let slower = seen.fastest_ns / self.record_ns.get().max(1);
        let unproven = !self.explored.get() && seen.fastest_ns as f64 >= ALIKE * seen.latency_ns as f64;
        slower >= QUEUEING || unproven
    }

    /// Halves the limit, here and in the rest of the groups.
    fn try_lower_limit(&self, seen: EpochResult, now_ns: u64) {
        self.noted_ns.set(now_ns);
        let groups = self.groups.borrow();
        groups.values().filter_map(|(group, _)| group.upgrade()).for_each(|group| group.reduced_ns.set(now_ns));
        self.halve_limit(seen);
    }

    fn halve_limit(&self, seen: EpochResult) {
        let limit = self.limit.get();
        self.begin_trial(Trial::Down { from: limit, before: seen }, limit.min(seen.in_flight() as u32) / 2);
    }

    /// Called while requests wait; if they wait in shared queues only, for a permit of any endpoint of their upstreams, with the
    /// time when such an upstream last completed an exchange. Raises a limit that is too low; returns whether it did.
    pub(crate) fn raise_if_too_low(&self, others_ns: Option<u64>, now_ns: u64) -> bool {
        match self.setting.get() {
            // An endpoint that hangs must not get the requests that others could serve, so only a stall of all of them counts.
            Concurrency::Auto => self.raise_if_stalled(others_ns.unwrap_or(self.last_ns.get()), now_ns),
            setting => {
                // Only a shortage of file descriptors has lowered it, and that may be over.
                let lowered = self.limit.get() < self.configured_limit(setting) && now_ns >= self.paused_until_ns.get();
                if lowered {
                    self.limit.set(self.configured_limit(setting));
                }
                lowered
            }
        }
    }

    /// If no exchange has completed since `last_ns` for too long, what was learnt no longer holds, and the limit is
    /// doubled.
    fn raise_if_stalled(&self, last_ns: u64, now_ns: u64) -> bool {
        let limit = self.limit.get();
        if limit == u32::MAX || now_ns < last_ns + STALLED_NS {
            return false;
        }
        self.record_ns.set(u64::MAX);
        self.settle_on_limit(limit.saturating_mul(2), 0.0, false, now_ns);
        self.explored.set(false);
        true
    }

    /// Called when there is no file descriptor for one more connection, with `in_use` permits granted: lowers the limit for
    /// a while. `false` if so few are granted that other endpoints or clients hold the descriptors.
    pub(crate) fn lower_for_shortage(&self, in_use: u32, now_ns: u64) -> bool {
        if in_use <= self.least {
            return false;
        }
        // Many connections fail at once: only the first of them lowers the limit, since the others find more in use than it
        // allows.
        if in_use <= self.limit.get() {
            self.trial.set(Trial::Nothing);
            self.limit.set((in_use / 8 * 7).max(self.least));
            self.paused_until_ns.set(now_ns + PAUSE_NS);
        }
        true
    }

    fn begin_trial(&self, trial: Trial, limit: u32) {
        self.trial.set(trial);
        self.limit.set(limit.max(self.least));
    }

    fn settle_on_limit(&self, limit: u32, rate: f64, helped: bool, now_ns: u64) {
        self.explored.set(true);
        self.trial.set(Trial::Nothing);
        self.limit.set(limit.max(self.least));
        self.found_rate.set(rate);
        let pause_ns = if helped { PAUSE_NS } else { (self.pause_ns.get() * 2).min(LONGEST_PAUSE_NS) };
        self.pause_ns.set(pause_ns);
        self.paused_until_ns.set(now_ns + pause_ns);
    }

    /// The limit of a setting before anything has been learnt.
    fn configured_limit(&self, setting: Concurrency) -> u32 {
        match setting {
            Concurrency::Auto => self.first,
            Concurrency::Unlimited => u32::MAX,
            Concurrency::Fixed(limit) => limit.max(1),
        }
    }
}

#[cfg(test)]
mod tests;
