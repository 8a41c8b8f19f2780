//! How many requests one endpoint should have in flight: as few as keep its full throughput.
//!
//! Beyond that number a further request only waits inside the endpoint, where it is not seen, and each connection it
//! waits on goes cold. The sign of it is the *fastest* exchange of an epoch: where requests queue, even the luckiest one
//! takes several times what the fastest ever took, while a mixture of fast and slow work keeps its fast ones. Under a
//! load that was heavy from the first moment there is no such record yet, so it begins with a limit, tries whether more
//! helps, and if not, whether less does.
//!
//! A sign is not proof (the endpoint may have become slower to answer, or the record may have been an error page), so
//! each reduction is a trial: if throughput falls with the limit, it is undone and the record forgotten.
//!
//! The endpoints of an upstream may share a machine, and one that gets more in flight than the others of its group then takes from
//! them what it gains. So a reduction is tried at all of them together, and what one gains by more is a gain only if the
//! others do not lose it or if nothing waits longer for it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::snapshot::Concurrency;

/// Fewer are never allowed, all workers together: an endpoint with so few runs dry where its answers, or we, come in bursts. In a sweep before
/// one nginx process 16, 32 and 64 were alike, and 8 brought an eighth less throughput.
const LEAST: u32 = 16;
/// What it begins with. A crowd that arrives at once would otherwise open a connection each, and most of them are not
/// needed a moment later: of 2,000 clients, 3,600 connections in half a second.
const FIRST: u32 = 256;
/// The least of one worker, however many there are: with a single place each round trip would be waited for.
const LEAST_OF_ONE: u32 = 2;
/// Below this many in flight there is nothing to gain by looking: at 64 the queue costs more (5 % of CPU time) than it
/// saves, at 256 it saves 6 %.
const WORTHWHILE: f64 = 128.0;
/// The fastest exchange of an epoch took this many times the fastest ever: requests queue in the endpoint.
const QUEUEING: u64 = 4;
/// A limit binds where the mean in flight is at least this share of it. Below it only bursts queue, which pass by
/// themselves.
const BINDING: f64 = 0.75;
/// The throughput a doubled limit must bring at least.
const GAINED: f64 = 1.05;
/// Throughput that differs so many times from what it was when the limit was found: what was found no longer holds.
const CHANGED: f64 = 1.5;
/// The share of throughput a halved limit must keep. Where throughput follows the limit, half of it would be gone.
const KEPT: f64 = 0.8;
/// Where several endpoints share the load, the fastest exchange takes no longer than this many times what it did: there
/// was room for more.
const NO_SLOWER: f64 = 1.25;
/// With fewer in flight the fastest takes no less than this share of what it did: none had waited for another.
const NO_FASTER: f64 = 0.9;
/// The fastest exchange of an epoch took no less than this part of the mean: none of them had it easy.
const ALIKE: f64 = 0.125;
/// An epoch has at least this many completed exchanges,
const EPOCH_EXCHANGES: u64 = 256;
/// and lasts at least this long, and two mean latencies.
const EPOCH_NS: u64 = 40_000_000;
/// The first pause after a change that did not help; it doubles with each such change in a row.
const PAUSE_NS: u64 = 500_000_000;
/// Nothing completed for so long while requests wait: the limit doubles with every look until something does.
const STALLED_NS: u64 = 60_000_000;
const LONGEST_PAUSE_NS: u64 = 16_000_000_000;

/// The controller of one worker for one endpoint.
#[derive(Debug)]
pub struct ConcurrencyLimiter {
    setting: Cell<Concurrency>,
    /// The worker's parts of [`LEAST`], [`FIRST`] and [`WORTHWHILE`].
    least: u32,
    first: u32,
    worthwhile: f64,
    group: RefCell<Rc<LimiterGroup>>,
    /// The reductions of the group that it has taken note of.
    noted: Cell<u32>,
    limit: Cell<u32>,
    trial: Cell<Trial>,
    /// The record: the fastest exchange, since a trial last proved it worthless.
    record_ns: Cell<u64>,
    epoch: Cell<Epoch>,
    pause_ns: Cell<u64>,
    paused_until_ns: Cell<u64>,
    /// A reduction was tried, so the record is not just the least that a heavy load allowed.
    explored: Cell<bool>,
    /// Throughput when the limit was found, in exchanges per nanosecond.
    found_rate: Cell<f64>,
    /// When the last exchange completed.
    last_ns: Cell<u64>,
    /// The epoch before, if this one began with no trial.
    before: Cell<Option<EpochResult>>,
}

/// The endpoints of one upstream, as far as their controllers know of each other.
#[derive(Debug, Default)]
pub struct LimiterGroup {
    completed: Cell<u64>,
    /// When the last exchange completed at any of them.
    last_ns: Cell<u64>,
    /// Reductions that one of them began.
    reductions: Cell<u32>,
}

/// What is being tried.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trial {
    Nothing,
    /// Half of `from`.
    Down {
        from: u32,
        before: EpochResult,
    },
    /// More than `from`.
    Up {
        from: u32,
        before: EpochResult,
    },
}

/// What an epoch showed.
#[derive(Clone, Copy, Debug, PartialEq)]
struct EpochResult {
    /// Exchanges per nanosecond.
    rate: f64,
    /// Those of the group included.
    whole_rate: f64,
    latency_ns: u64,
    fastest_ns: u64,
    /// Some waited for a place.
    queued: bool,
}

/// What is measured between two decisions.
#[derive(Clone, Copy, Debug, Default)]
struct Epoch {
    /// Exchanges that began before it are left out: they ran under the limit before.
    started_ns: u64,
    first_ns: u64,
    exchanges: u64,
    latency_sum_ns: u64,
    fastest_ns: u64,
    queued: bool,
    /// What the group had completed when it began.
    fellows_completed: u64,
}

impl EpochResult {
    /// The mean number in flight (Little's law).
    fn in_flight(&self) -> f64 {
        self.rate * self.latency_ns as f64
    }

    /// More in flight than `before` have brought more, and not at the cost of the group.
    fn has_gained(&self, before: &EpochResult) -> bool {
        self.rate >= before.rate * GAINED
            && (self.whole_rate >= before.whole_rate * GAINED
                || self.fastest_ns as f64 <= before.fastest_ns as f64 * NO_SLOWER)
    }

    /// Fewer in flight than `before` do less, and not because the group does more.
    fn has_lost(&self, before: &EpochResult) -> bool {
        self.rate < before.rate * KEPT && (self.whole_rate < before.whole_rate * KEPT || !self.is_faster(before))
    }

    fn is_faster(&self, before: &EpochResult) -> bool {
        (self.fastest_ns as f64) < before.fastest_ns as f64 * NO_FASTER
    }
}

impl ConcurrencyLimiter {
    /// For one of so many workers, which send to the endpoint side by side.
    pub fn new(setting: Concurrency, workers: u32) -> ConcurrencyLimiter {
        let workers = workers.max(1);
        let limiter = ConcurrencyLimiter {
            setting: Cell::new(setting),
            least: LEAST.div_ceil(workers).max(LEAST_OF_ONE),
            first: FIRST.div_ceil(workers).max(LEAST),
            worthwhile: WORTHWHILE / f64::from(workers),
            group: RefCell::default(),
            noted: Cell::new(0),
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

    /// A setting that stays the same keeps what was learnt.
    pub fn configure(&self, setting: Concurrency) {
        if setting != self.setting.get() {
            self.set(setting);
        }
    }

    /// From now on it is one of these.
    pub fn join(&self, group: &Rc<LimiterGroup>) {
        self.noted.set(group.reductions.get());
        self.epoch.take();
        group.last_ns.set(group.last_ns.get().max(self.last_ns.get()));
        *self.group.borrow_mut() = Rc::clone(group);
    }

    fn set(&self, setting: Concurrency) {
        self.setting.set(setting);
        self.trial.set(Trial::Nothing);
        self.limit.set(self.asked(setting));
    }

    /// Requests the endpoint should have in flight from this worker at most.
    pub fn limit(&self) -> u32 {
        self.limit.get()
    }

    /// An exchange that began at `began_ns` has given its place back; `queued` says whether others wait for one.
    pub fn completed(&self, began_ns: u64, now_ns: u64, queued: bool) {
        if self.setting.get() != Concurrency::Auto {
            return;
        }
        self.last_ns.set(now_ns);
        let fellows_completed = {
            let group = self.group.borrow();
            group.completed.set(group.completed.get() + 1);
            group.last_ns.set(now_ns);
            if self.noted.replace(group.reductions.get()) != group.reductions.get() {
                self.follow(now_ns);
            }
            group.completed.get()
        };
        let mut epoch = self.epoch.get();
        if began_ns < epoch.started_ns {
            return;
        }
        let latency_ns = (now_ns - began_ns).max(1);
        if epoch.exchanges == 0 {
            epoch.first_ns = now_ns;
            epoch.fastest_ns = latency_ns;
            epoch.fellows_completed = fellows_completed;
        }
        epoch.exchanges += 1;
        epoch.latency_sum_ns += latency_ns;
        epoch.fastest_ns = epoch.fastest_ns.min(latency_ns);
        epoch.queued |= queued;
        self.epoch.set(epoch);
        if epoch.fastest_ns >= EPOCH_NS
            && epoch.exchanges >= self.least.into()
            && self.gives_up(epoch.fastest_ns, now_ns)
        {
            return;
        }
        let lasted_ns = now_ns - epoch.first_ns;
        if epoch.exchanges >= EPOCH_EXCHANGES && lasted_ns >= EPOCH_NS {
            let latency_ns = epoch.latency_sum_ns / epoch.exchanges;
            if lasted_ns >= 2 * latency_ns {
                self.start_epoch(now_ns);
                self.record_ns.set(self.record_ns.get().min(epoch.fastest_ns));
                let seen = EpochResult {
                    rate: epoch.exchanges as f64 / lasted_ns as f64,
                    whole_rate: (fellows_completed - epoch.fellows_completed) as f64 / lasted_ns as f64,
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

    /// A fellow tries less. If it queues here too, so does this one.
    fn follow(&self, now_ns: u64) {
        if let Some(before) = self.before.take()
            && before.in_flight() >= f64::from(self.least)
            && self.seems_to_queue(&before)
        {
            self.start_epoch(now_ns);
            self.halve(before);
        }
    }

    /// Exchanges take long, and fewer in flight have not made even the fastest of them faster. Then throughput follows the
    /// limit, and two latencies more would only cost. Says whether a trial was ended for it.
    fn gives_up(&self, fastest_ns: u64, now_ns: u64) -> bool {
        match self.trial.get() {
            Trial::Down { from, before } if fastest_ns as f64 >= before.fastest_ns as f64 * NO_FASTER => {
                self.start_epoch(now_ns);
                self.record_ns.set(fastest_ns);
                self.settle(from, before.rate, false, now_ns);
                true
            }
            _ => false,
        }
    }

    /// An epoch is over.
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
            Trial::Down { from, before } if seen.has_lost(&before) => {
                // Throughput follows the limit, so nothing queues: this is how long an exchange takes now.
                self.record_ns.set(seen.fastest_ns);
                self.settle(from, before.rate, false, now_ns);
            }
            // As long as even the fastest gets faster, they queue.
            Trial::Down { before, .. } if seen.fastest_ns < before.fastest_ns / 4 * 3 && limit > self.least => {
                let before = EpochResult { fastest_ns: seen.fastest_ns, ..before };
                self.begin(Trial::Down { from: limit, before }, limit / 2);
            }
            Trial::Down { .. } => self.settle(limit.min(2 * in_flight as u32), seen.rate, true, now_ns),
            Trial::Up { before, .. } if seen.has_gained(&before) && in_flight >= BINDING * f64::from(limit) => {
                self.begin(Trial::Up { from: limit, before: seen }, limit.saturating_mul(2));
            }
            Trial::Up { .. } if !self.explored.get() => self.try_less(seen),
            Trial::Up { from, before } if !seen.has_gained(&before) => self.settle(from, seen.rate, false, now_ns),
            Trial::Up { .. } => self.settle(limit, seen.rate, true, now_ns),
        }
    }

    /// Nothing is being tried. Is there something worth trying?
    fn consider(&self, seen: EpochResult, now_ns: u64) {
        let (limit, found) = (self.limit.get(), self.found_rate.get());
        let rested = now_ns >= self.paused_until_ns.get() || seen.rate * CHANGED < found || seen.rate > found * CHANGED;
        let queues = seen.whole_rate * seen.latency_ns as f64 >= self.worthwhile && self.seems_to_queue(&seen);
        let binds = seen.queued && seen.in_flight() >= BINDING * f64::from(limit);
        if rested && binds && (!queues || !self.explored.get() || limit == self.least) {
            self.begin(Trial::Up { from: limit, before: seen }, limit.saturating_mul(2));
        } else if rested && queues {
            self.try_less(seen);
        }
    }

    fn seems_to_queue(&self, seen: &EpochResult) -> bool {
        let slower = seen.fastest_ns / self.record_ns.get().max(1);
        let unproven = !self.explored.get() && seen.fastest_ns as f64 >= ALIKE * seen.latency_ns as f64;
        slower >= QUEUEING || unproven
    }

    /// Half as many, here and in the rest of the group.
    fn try_less(&self, seen: EpochResult) {
        let group = self.group.borrow();
        group.reductions.set(group.reductions.get() + 1);
        self.noted.set(group.reductions.get());
        self.halve(seen);
    }

    fn halve(&self, seen: EpochResult) {
        let limit = self.limit.get();
        self.begin(Trial::Down { from: limit, before: seen }, limit.min(seen.in_flight() as u32) / 2);
    }

    /// Requests wait, those of `anywhere` for whichever endpoint of the group has a permit: is the limit too low? Says whether it was
    /// raised.
    pub fn lift_if_too_low(&self, anywhere: bool, now_ns: u64) -> bool {
        match self.setting.get() {
            // One that hangs would be given everybody whom the others could have served.
            Concurrency::Auto if anywhere => self.lift_if_stalled(self.group.borrow().last_ns.get(), now_ns),
            Concurrency::Auto => self.lift_if_stalled(self.last_ns.get(), now_ns),
            setting => {
                // Only a shortage has lowered it, and that may be over.
                let lowered = self.limit.get() < self.asked(setting) && now_ns >= self.paused_until_ns.get();
                if lowered {
                    self.limit.set(self.asked(setting));
                }
                lowered
            }
        }
    }

    /// None has completed since `last_ns`: whatever was learnt no longer holds.
    fn lift_if_stalled(&self, last_ns: u64, now_ns: u64) -> bool {
        let limit = self.limit.get();
        if limit == u32::MAX || now_ns < last_ns + STALLED_NS {
            return false;
        }
        self.record_ns.set(u64::MAX);
        self.settle(limit.saturating_mul(2), 0.0, false, now_ns);
        self.explored.set(false);
        true
    }

    /// With `in_use` places taken there is no descriptor left for one more connection, so fewer have to do for a while.
    /// `false` where they are so few that somebody else must have the descriptors.
    pub fn make_do(&self, in_use: u32, now_ns: u64) -> bool {
        if in_use <= self.least {
            return false;
        }
        // A wave of connections fails together. Only the first finds as many in use as the limit allows.
        if in_use <= self.limit.get() {
            self.trial.set(Trial::Nothing);
            self.limit.set((in_use / 8 * 7).max(self.least));
            self.paused_until_ns.set(now_ns + PAUSE_NS);
        }
        true
    }

    fn begin(&self, trial: Trial, limit: u32) {
        self.trial.set(trial);
        self.limit.set(limit.max(self.least));
    }

    fn settle(&self, limit: u32, rate: f64, helped: bool, now_ns: u64) {
        self.explored.set(true);
        self.trial.set(Trial::Nothing);
        self.limit.set(limit.max(self.least));
        self.found_rate.set(rate);
        let pause_ns = if helped { PAUSE_NS } else { (self.pause_ns.get() * 2).min(LONGEST_PAUSE_NS) };
        self.pause_ns.set(pause_ns);
        self.paused_until_ns.set(now_ns + pause_ns);
    }

    /// What a setting asks for, before anything is learnt.
    fn asked(&self, setting: Concurrency) -> u32 {
        match setting {
            Concurrency::Auto => self.first,
            Concurrency::Unlimited => u32::MAX,
            Concurrency::Fixed(limit) => limit.max(1),
        }
    }
}

#[cfg(test)]
mod tests;
