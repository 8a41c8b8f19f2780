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

use std::cell::Cell;

use crate::snapshot::Concurrency;

/// Fewer are never allowed: an endpoint with so few runs dry where its answers, or we, come in bursts. In a sweep before
/// one nginx process 16, 32 and 64 were alike, and 8 brought an eighth less throughput.
const LEAST: u32 = 16;
/// What it begins with. A crowd that arrives at once would otherwise open a connection each, and most of them are not
/// needed a moment later: of 2,000 clients, 3,600 connections in half a second.
const FIRST: u32 = 256;
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
pub struct Limiter {
    setting: Cell<Concurrency>,
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
}

/// What is being tried.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trial {
    Nothing,
    /// Half of `from`, at which throughput was `rate` and the fastest exchange took `fastest_ns`.
    Down {
        from: u32,
        rate: f64,
        fastest_ns: u64,
    },
    /// More than `from`.
    Up {
        from: u32,
        rate: f64,
    },
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
}

impl Limiter {
    pub fn new(setting: Concurrency) -> Limiter {
        let limiter = Limiter {
            setting: Cell::new(setting),
            limit: Cell::new(u32::MAX),
            trial: Cell::new(Trial::Nothing),
            record_ns: Cell::new(u64::MAX),
            epoch: Cell::default(),
            pause_ns: Cell::new(PAUSE_NS),
            paused_until_ns: Cell::new(0),
            explored: Cell::new(false),
            found_rate: Cell::new(0.0),
            last_ns: Cell::new(0),
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

    fn set(&self, setting: Concurrency) {
        self.setting.set(setting);
        self.trial.set(Trial::Nothing);
        self.limit.set(asked(setting));
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
        let mut epoch = self.epoch.get();
        if began_ns < epoch.started_ns {
            return;
        }
        let latency_ns = (now_ns - began_ns).max(1);
        if epoch.exchanges == 0 {
            epoch.first_ns = now_ns;
            epoch.fastest_ns = latency_ns;
        }
        epoch.exchanges += 1;
        epoch.latency_sum_ns += latency_ns;
        epoch.fastest_ns = epoch.fastest_ns.min(latency_ns);
        epoch.queued |= queued;
        self.epoch.set(epoch);
        if epoch.fastest_ns >= EPOCH_NS && epoch.exchanges >= LEAST.into() && self.gives_up(epoch.fastest_ns, now_ns) {
            return;
        }
        let lasted_ns = now_ns - epoch.first_ns;
        if epoch.exchanges >= EPOCH_EXCHANGES && lasted_ns >= EPOCH_NS {
            let latency_ns = epoch.latency_sum_ns / epoch.exchanges;
            if lasted_ns >= 2 * latency_ns {
                self.epoch.set(Epoch { started_ns: now_ns, ..Epoch::default() });
                self.record_ns.set(self.record_ns.get().min(epoch.fastest_ns));
                let rate = epoch.exchanges as f64 / lasted_ns as f64;
                self.decide(rate, rate * latency_ns as f64, epoch.fastest_ns, epoch.queued, now_ns);
            }
        }
    }

    /// Exchanges take long, and fewer in flight have not made even the fastest of them faster. Then throughput follows the
    /// limit, and two latencies more would only cost. Says whether a trial was ended for it.
    fn gives_up(&self, fastest_ns: u64, now_ns: u64) -> bool {
        match self.trial.get() {
            Trial::Down { from, rate, fastest_ns: before_ns } if fastest_ns >= before_ns / 10 * 9 => {
                self.epoch.set(Epoch { started_ns: now_ns, ..Epoch::default() });
                self.record_ns.set(fastest_ns);
                self.settle(from, rate, false, now_ns);
                true
            }
            _ => false,
        }
    }

    /// An epoch is over: `rate` in exchanges per nanosecond, the mean number in flight (Little's law), and the latency
    /// of its fastest exchange.
    fn decide(&self, rate: f64, in_flight: f64, fastest_ns: u64, queued: bool, now_ns: u64) {
        let limit = self.limit.get();
        tracing::debug!(
            "concurrency: {:.0}/s, {in_flight:.0} in flight of {limit}, fastest {} µs of {} µs, {:?}",
            rate * 1e9,
            fastest_ns / 1000,
            self.record_ns.get() / 1000,
            self.trial.get()
        );
        match self.trial.get() {
            Trial::Nothing => self.consider(rate, in_flight, fastest_ns, queued, now_ns),
            Trial::Down { from, rate: before, .. } if rate < before * KEPT => {
                // Throughput follows the limit, so nothing queues: this is how long an exchange takes now.
                self.record_ns.set(fastest_ns);
                self.settle(from, before, false, now_ns);
            }
            // As long as even the fastest gets faster, they queue.
            Trial::Down { rate: before, fastest_ns: slower_ns, .. }
                if fastest_ns < slower_ns / 4 * 3 && limit > LEAST =>
            {
                self.begin(Trial::Down { from: limit, rate: before, fastest_ns }, limit / 2);
            }
            Trial::Down { .. } => self.settle(limit.min(2 * in_flight as u32), rate, true, now_ns),
            Trial::Up { rate: before, .. } if rate >= before * GAINED && in_flight >= BINDING * f64::from(limit) => {
                self.begin(Trial::Up { from: limit, rate }, limit.saturating_mul(2));
            }
            Trial::Up { .. } if !self.explored.get() => self.try_less(rate, in_flight, fastest_ns),
            Trial::Up { from, rate: before } if rate < before * GAINED => self.settle(from, rate, false, now_ns),
            Trial::Up { .. } => self.settle(limit, rate, true, now_ns),
        }
    }

    /// Nothing is being tried. Is there something worth trying?
    fn consider(&self, rate: f64, in_flight: f64, fastest_ns: u64, queued: bool, now_ns: u64) {
        let limit = self.limit.get();
        let found = self.found_rate.get();
        let rested = now_ns >= self.paused_until_ns.get() || rate * CHANGED < found || rate > found * CHANGED;
        let slower = fastest_ns / self.record_ns.get().max(1);
        let unproven = !self.explored.get() && fastest_ns as f64 >= ALIKE * in_flight / rate;
        let queues = in_flight >= WORTHWHILE && (slower >= QUEUEING || unproven);
        let binds = queued && in_flight >= BINDING * f64::from(limit);
        if rested && binds && (!queues || !self.explored.get()) {
            self.begin(Trial::Up { from: limit, rate }, limit.saturating_mul(2));
        } else if rested && queues {
            self.try_less(rate, in_flight, fastest_ns);
        }
    }

    fn try_less(&self, rate: f64, in_flight: f64, fastest_ns: u64) {
        let limit = self.limit.get();
        self.begin(Trial::Down { from: limit, rate, fastest_ns }, limit.min(in_flight as u32) / 2);
    }

    /// Requests wait: is the limit too low? Says whether it was raised.
    pub fn lift_if_too_low(&self, now_ns: u64) -> bool {
        match self.setting.get() {
            Concurrency::Auto => self.lift_if_stalled(now_ns),
            setting => {
                // Only a shortage has lowered it, and that may be over.
                let lowered = self.limit.get() < asked(setting) && now_ns >= self.paused_until_ns.get();
                if lowered {
                    self.limit.set(asked(setting));
                }
                lowered
            }
        }
    }

    /// None completes: whatever was learnt no longer holds.
    fn lift_if_stalled(&self, now_ns: u64) -> bool {
        let limit = self.limit.get();
        if limit == u32::MAX || now_ns < self.last_ns.get() + STALLED_NS {
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
        if in_use <= LEAST {
            return false;
        }
        // A wave of connections fails together. Only the first finds as many in use as the limit allows.
        if in_use <= self.limit.get() {
            self.trial.set(Trial::Nothing);
            self.limit.set((in_use / 8 * 7).max(LEAST));
            self.paused_until_ns.set(now_ns + PAUSE_NS);
        }
        true
    }

    fn begin(&self, trial: Trial, limit: u32) {
        self.trial.set(trial);
        self.limit.set(limit.max(LEAST));
    }

    fn settle(&self, limit: u32, rate: f64, helped: bool, now_ns: u64) {
        self.explored.set(true);
        self.trial.set(Trial::Nothing);
        self.limit.set(limit.max(LEAST));
        self.found_rate.set(rate);
        let pause_ns = if helped { PAUSE_NS } else { (self.pause_ns.get() * 2).min(LONGEST_PAUSE_NS) };
        self.pause_ns.set(pause_ns);
        self.paused_until_ns.set(now_ns + pause_ns);
    }
}

/// What a setting asks for, before anything is learnt.
fn asked(setting: Concurrency) -> u32 {
    match setting {
        Concurrency::Auto => FIRST,
        Concurrency::Unlimited => u32::MAX,
        Concurrency::Fixed(limit) => limit.max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A closed loop of clients before an endpoint that can do `capacity` requests a second, each taking `service_ns`
    /// at least. Returns throughput a second at the end, and the limit.
    fn run(
        limiter: &Limiter,
        clients: u32,
        capacity: f64,
        service_ns: f64,
        seconds: f64,
        now_ns: &mut u64,
    ) -> (f64, u32) {
        let end_ns = *now_ns + (seconds * 1e9) as u64;
        let mut last = 0.0;
        // They come all at once, and the clock ticks until the first of them is served.
        let served_ns = *now_ns + service_ns as u64;
        while *now_ns + 10_000_000 < served_ns {
            *now_ns += 10_000_000;
            if clients > limiter.limit() {
                limiter.lift_if_too_low(*now_ns);
            }
        }
        while *now_ns < end_ns {
            let in_flight = f64::from(clients.min(limiter.limit()));
            let rate = (in_flight / service_ns).min(capacity / 1e9);
            let latency_ns = (in_flight / rate) as u64;
            // A batch of exchanges that take the same time is as good as one at a time.
            let batch = (rate * 1e6).ceil().max(1.0);
            *now_ns += (batch / rate) as u64;
            for _ in 0..batch as u64 {
                let began_ns = now_ns.saturating_sub(latency_ns);
                limiter.completed(began_ns, *now_ns, clients > limiter.limit());
            }
            last = rate * 1e9;
        }
        (last, limiter.limit())
    }

    fn warmed(service_ns: u64) -> (Limiter, u64) {
        let limiter = Limiter::new(Concurrency::Auto);
        limiter.completed(1, 1 + service_ns, false);
        (limiter, 1 + service_ns)
    }

    #[test]
    fn a_busy_processor_gets_few_requests_at_full_throughput() {
        let (limiter, mut now_ns) = warmed(50_000);
        let (rate, limit) = run(&limiter, 9000, 100_000.0, 50_000.0, 20.0, &mut now_ns);
        assert!(rate >= 95_000.0, "{rate}");
        assert!(limit <= 64, "{limit}");
    }

    #[test]
    fn a_sleeper_keeps_all_of_its_requests() {
        let (limiter, mut now_ns) = warmed(1_000_000_000);
        let (rate, limit) = run(&limiter, 5000, 1e9, 1e9, 30.0, &mut now_ns);
        assert!(rate >= 4900.0 && limit >= 5000, "{rate} {limit}");
    }

    #[test]
    fn a_sleeper_that_looks_busy_is_left_alone_after_a_trial() {
        // One fast answer makes the mean look long; the trial shows that fewer in flight means less throughput.
        let (limiter, mut now_ns) = warmed(1_000_000);
        let (rate, _) = run(&limiter, 5000, 1e9, 250e6, 30.0, &mut now_ns);
        assert!(rate >= 0.95 * 5000.0 / 0.25, "{rate}");
    }

    #[test]
    fn a_load_that_is_heavy_from_the_start_is_understood() {
        let limiter = Limiter::new(Concurrency::Auto);
        let mut now_ns = 1_000_000_000;
        let (rate, limit) = run(&limiter, 9000, 100_000.0, 50_000.0, 10.0, &mut now_ns);
        assert!(rate >= 95_000.0 && limit <= 64, "{rate} {limit}");
        let limiter = Limiter::new(Concurrency::Auto);
        let (rate, _) = run(&limiter, 5000, 1e9, 1e9, 10.0, &mut now_ns);
        assert!(rate >= 4900.0, "{rate}");
    }

    #[test]
    fn a_first_look_at_clients_that_still_connect_does_not_last() {
        let (limiter, mut now_ns) = (Limiter::new(Concurrency::Auto), 1_000_000_000);
        run(&limiter, 2000, 24_000.0, 50_000.0, 0.06, &mut now_ns);
        assert_eq!(limiter.limit(), 2 * FIRST, "more is tried, and will look like a gain");
        let (rate, limit) = run(&limiter, 2000, 60_000.0, 50_000.0, 5.0, &mut now_ns);
        assert!(rate >= 57_000.0 && limit <= 64, "{rate} {limit}");
    }

    #[test]
    fn a_mixture_of_fast_and_slow_work_is_left_alone() {
        // Half of 5,000 clients see 1 ms and half 500 ms; nothing queues.
        let (limiter, mut now_ns) = warmed(1_000_000);
        for round in 0..2_000_000u64 {
            now_ns += 100_000;
            let latency_ns = if round % 2 == 0 { 1_000_000 } else { 500_000_000 };
            limiter.completed(now_ns.saturating_sub(latency_ns), now_ns, false);
        }
        assert_eq!(limiter.limit(), FIRST);
    }

    #[test]
    fn a_noisy_machine_does_not_hide_a_queue() {
        // Throughput wavers by a sixth from epoch to epoch, as on a shared processor.
        let (limiter, mut now_ns) = warmed(50_000);
        for round in 0..200 {
            let capacity = if round % 2 == 0 { 100_000.0 } else { 85_000.0 };
            run(&limiter, 9000, capacity, 50_000.0, 0.1, &mut now_ns);
        }
        assert!(limiter.limit() <= 64, "{}", limiter.limit());
    }

    #[test]
    fn an_endpoint_that_becomes_slower_to_answer_gets_more_in_flight() {
        let (limiter, mut now_ns) = warmed(1_000_000);
        run(&limiter, 2000, 20_000.0, 1e6, 20.0, &mut now_ns);
        let (rate, _) = run(&limiter, 2000, 20_000.0, 10e6, 20.0, &mut now_ns);
        assert!(rate >= 0.9 * 20_000.0, "{rate}");
    }

    #[test]
    fn a_limit_under_which_nothing_completes_is_lifted() {
        let (limiter, mut now_ns) = warmed(50_000);
        run(&limiter, 9000, 100_000.0, 50_000.0, 20.0, &mut now_ns);
        let low = limiter.limit();
        assert!(!limiter.lift_if_too_low(now_ns));
        for tick in 1..=20 {
            limiter.lift_if_too_low(now_ns + STALLED_NS + tick * 20_000_000);
        }
        assert!(limiter.limit() >= low * 1000, "{low} {}", limiter.limit());
    }

    #[test]
    fn where_descriptors_run_out_fewer_do_for_a_while() {
        for setting in [Concurrency::Unlimited, Concurrency::Fixed(9000)] {
            let limiter = Limiter::new(setting);
            assert!(limiter.make_do(8000, 1));
            assert_eq!(limiter.limit(), 7000);
            assert!(limiter.make_do(7999, 1), "one of the same wave waits too");
            assert_eq!(limiter.limit(), 7000, "and changes nothing");
            assert!(!limiter.lift_if_too_low(PAUSE_NS));
            assert!(limiter.lift_if_too_low(1 + PAUSE_NS));
            assert_eq!(limiter.limit(), asked(setting));
            assert!(!limiter.make_do(LEAST, 1), "these few have not taken the descriptors");
        }
    }

    #[test]
    fn fixed_and_unlimited_stay_what_they_are() {
        let limiter = Limiter::new(Concurrency::Fixed(5));
        let mut now_ns = 1;
        assert_eq!(run(&limiter, 100, 1e6, 1e6, 5.0, &mut now_ns).1, 5);
        limiter.configure(Concurrency::Unlimited);
        assert_eq!(run(&limiter, 100, 1e4, 1e6, 5.0, &mut now_ns).1, u32::MAX);
    }
}
