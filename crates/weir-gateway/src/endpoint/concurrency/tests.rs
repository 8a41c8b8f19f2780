use super::*;

/// A limiter with the group of the one upstream that uses it.
struct Limiter {
    limiter: ConcurrencyLimiter,
    group: Rc<LimiterGroup>,
}

impl Limiter {
    fn new(setting: Concurrency) -> Limiter {
        Limiter::of(Rc::default(), setting)
    }

    fn of(group: Rc<LimiterGroup>, setting: Concurrency) -> Limiter {
        let limiter = ConcurrencyLimiter::new(setting, 1);
        limiter.join(&group);
        Limiter { limiter, group }
    }

    fn completed(&self, began_ns: u64, now_ns: u64, queued: bool) {
        self.limiter.completed(&self.group, began_ns, now_ns, queued);
    }

    /// As when exchanges wait in the shared queue of its upstream.
    fn raise_for_any(&self, now_ns: u64) -> bool {
        self.limiter.raise_if_too_low(Some(self.group.last_completed_ns()), now_ns)
    }
}

impl std::ops::Deref for Limiter {
    type Target = ConcurrencyLimiter;

    fn deref(&self) -> &ConcurrencyLimiter {
        &self.limiter
    }
}

/// A closed loop of clients before an endpoint that can do `capacity` requests a second, each taking `service_ns`
/// at least. Returns throughput a second at the end, and the limit.
fn run(limiter: &Limiter, clients: u32, capacity: f64, service_ns: f64, seconds: f64, now_ns: &mut u64) -> (f64, u32) {
    let end_ns = *now_ns + (seconds * 1e9) as u64;
    let mut last = 0.0;
    // All clients send at once, and the clock advances until the first response.
    let served_ns = *now_ns + service_ns as u64;
    while *now_ns + 10_000_000 < served_ns {
        *now_ns += 10_000_000;
        if clients > limiter.limit() {
            limiter.raise_if_too_low(None, *now_ns);
        }
    }
    while *now_ns < end_ns {
        let in_flight = f64::from(clients.min(limiter.limit()));
        let rate = (in_flight / service_ns).min(capacity / 1e9);
        let latency_ns = (in_flight / rate) as u64;
        // A batch of exchanges that take equal time stands for the same number one by one.
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
    // One fast answer makes the mean look long; the trial shows that a lower limit means less throughput.
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
    // Throughput varies by a sixth from epoch to epoch, as on a shared processor.
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
    assert!(!limiter.raise_if_too_low(None, now_ns));
    for tick in 1..=20 {
        limiter.raise_if_too_low(None, now_ns + STALLED_NS + tick * 20_000_000);
    }
    assert!(limiter.limit() >= low * 1000, "{low} {}", limiter.limit());
}

#[test]
fn one_that_hangs_is_not_given_those_whom_its_fellows_serve() {
    let (mut limiters, now_ns) = (group(2), 1_000_000_000);
    let [hung, other] = &limiters[..] else { panic!("two") };
    limiters.iter().for_each(|limiter| limiter.completed(now_ns - 1_000_000, now_ns, true));
    for tick in 1..=20 {
        let now_ns = now_ns + tick * 20_000_000;
        other.completed(now_ns - 1_000_000, now_ns, true);
        hung.raise_for_any(now_ns);
    }
    assert_eq!(hung.limit(), FIRST);
    let reloaded = Rc::default();
    limiters.iter_mut().for_each(|limiter| {
        limiter.join(&reloaded);
        limiter.group = Rc::clone(&reloaded);
    });
    let hung = &limiters[0];
    assert!(!hung.raise_for_any(now_ns + 20 * 20_000_000), "what others did is not forgotten");
    assert!(hung.raise_if_too_low(None, now_ns + 20 * 20_000_000), "who waits for it alone has nobody else");
    assert!(hung.raise_for_any(now_ns + 20 * 20_000_000 + STALLED_NS), "all of them hang");
}

#[test]
fn limit_is_lowered_for_a_while_when_descriptors_run_out() {
    for setting in [Concurrency::Unlimited, Concurrency::Fixed(9000)] {
        let limiter = Limiter::new(setting);
        assert!(limiter.lower_for_shortage(8000, 1));
        assert_eq!(limiter.limit(), 7000);
        assert!(limiter.lower_for_shortage(7999, 1), "one of the same wave waits too");
        assert_eq!(limiter.limit(), 7000, "and changes nothing");
        assert!(!limiter.raise_if_too_low(None, PAUSE_NS));
        assert!(limiter.raise_if_too_low(None, 1 + PAUSE_NS));
        assert_eq!(limiter.limit(), limiter.configured_limit(setting));
        assert!(!limiter.lower_for_shortage(LEAST, 1), "these few have not taken the descriptors");
    }
}

#[test]
fn an_epoch_ends_when_it_has_its_exchanges_and_has_lasted_its_time() {
    let left_in_epoch = |exchanges: u64, lasted_ns: u64| {
        let limiter = Limiter::new(Concurrency::Auto);
        (1..exchanges).for_each(|_| limiter.completed(1, 1_001, false));
        limiter.completed(1 + lasted_ns, 1_001 + lasted_ns, false);
        limiter.epoch.get().exchanges
    };
    assert_eq!(left_in_epoch(EPOCH_EXCHANGES, EPOCH_NS - 1), EPOCH_EXCHANGES);
    assert_eq!(left_in_epoch(EPOCH_EXCHANGES - 1, EPOCH_NS), EPOCH_EXCHANGES - 1);
    assert_eq!(left_in_epoch(EPOCH_EXCHANGES, EPOCH_NS), 0, "the next epoch has begun");
}

#[test]
fn a_limit_that_only_bursts_reach_is_not_raised() {
    for (share, is_raised) in [(0.4, false), (1.0, true)] {
        let (limiter, now_ns) = warmed(1_000_000);
        let before = limiter.limit();
        let rate = share * f64::from(before) / 1e6;
        let seen = EpochResult { rate, whole_rate: rate, latency_ns: 1_000_000, fastest_ns: 1_000_000, queued: true };
        limiter.consider(seen, now_ns + LONGEST_PAUSE_NS);
        assert_eq!(limiter.limit() > before, is_raised, "with {share} of it in flight");
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

/// Endpoints on one processor with a capacity of `capacity` requests a second, which serves all that are in flight in turn;
/// enough clients wait at each. Returns the limits at the end.
fn run_together(limiters: &[Limiter], capacity: f64, service_ns: f64, seconds: f64, now_ns: &mut u64) -> Vec<u32> {
    let end_ns = *now_ns + (seconds * 1e9) as u64;
    while *now_ns < end_ns {
        let whole: f64 = limiters.iter().map(|limiter| f64::from(limiter.limit())).sum();
        let rate = (whole / service_ns).min(capacity / 1e9);
        let latency_ns = (whole / rate) as u64;
        *now_ns += 1_000_000;
        for limiter in limiters {
            for _ in 0..(rate * 1e6 * f64::from(limiter.limit()) / whole).round() as u64 {
                limiter.completed(now_ns.saturating_sub(latency_ns), *now_ns, true);
            }
        }
    }
    limiters.iter().map(|limiter| limiter.limit()).collect()
}

fn group(count: usize) -> Vec<Limiter> {
    let group = Rc::default();
    (0..count).map(|_| Limiter::of(Rc::clone(&group), Concurrency::Auto)).collect()
}

#[test]
fn limits_do_not_grow_at_the_cost_of_other_limiters() {
    let (limiters, mut now_ns) = (group(5), 1_000_000_000);
    let limits = run_together(&limiters, 50_000.0, 50_000.0, 60.0, &mut now_ns);
    assert!(limits.iter().all(|&limit| limit <= 64), "{limits:?}");
}

#[test]
fn fellows_that_were_given_too_much_give_it_back_together() {
    let (limiters, mut now_ns) = (group(5), 1_000_000_000);
    run_together(&limiters, 50_000.0, 50_000.0, 5.0, &mut now_ns);
    // All stall for a moment, and each gets all waiting requests.
    limiters
        .iter()
        .for_each(|limiter| while limiter.limit() < 1000 && limiter.raise_if_too_low(None, now_ns + STALLED_NS) {});
    now_ns += STALLED_NS;
    let limits = run_together(&limiters, 50_000.0, 50_000.0, 20.0, &mut now_ns);
    assert!(limits.iter().all(|&limit| limit <= 64), "{limits:?}");
}

#[test]
fn a_sleeper_among_fellows_gets_what_it_needs() {
    // One of five takes 30 ms for each request, however many there are, and 600 wait for it; the others are busy.
    let (limiters, mut now_ns) = (group(5), 1_000_000_000);
    let (busy, sleeper) = (&limiters[..4], &limiters[4]);
    for _ in 0..400 {
        run_together(busy, 40_000.0, 50_000.0, 0.05, &mut now_ns);
        for _ in 0..(f64::from(sleeper.limit().min(600)) / 30.0 * 50.0) as u64 {
            sleeper.completed(now_ns - 30_000_000, now_ns, sleeper.limit() < 600);
        }
    }
    assert!(sleeper.limit() >= 300, "{}", sleeper.limit());
    assert!(busy.iter().all(|limiter| limiter.limit() <= 64));
}

/// Limits at the end of a time in which clients of two upstreams wait at the machine of `shared`.
fn run_of_two(shared: &ConcurrencyLimiter, groups: &[Rc<LimiterGroup>; 2], now_ns: &mut u64) -> u32 {
    let end_ns = *now_ns + 20_000_000_000;
    while *now_ns < end_ns {
        *now_ns += 1_000_000;
        // 50,000 exchanges a second, of the two upstreams in turn.
        let latency_ns = u64::from(shared.limit()) * 20_000;
        for number in 0..50 {
            shared.completed(&groups[number % 2], now_ns.saturating_sub(latency_ns), *now_ns, true);
        }
    }
    shared.limit()
}

#[test]
fn a_machine_of_two_upstreams_gets_few_requests_whichever_of_them_was_configured_last() {
    for last in [0, 1] {
        let (limiter, groups) = (ConcurrencyLimiter::new(Concurrency::Auto, 1), [Rc::default(), Rc::default()]);
        limiter.join(&groups[1 - last]);
        limiter.join(&groups[last]);
        let mut now_ns = 1_000_000_000;
        let limit = run_of_two(&limiter, &groups, &mut now_ns);
        assert!(limit <= 64, "{limit}");
        // One is edited: its group is another, and the earlier one is gone.
        let [first, _] = groups;
        let edited = [first, Rc::default()];
        limiter.join(&edited[1]);
        let limit = run_of_two(&limiter, &edited, &mut now_ns);
        assert!(limit <= 64, "{limit}");
    }
}

#[test]
fn an_edit_of_an_upstream_does_not_disturb_what_is_measured() {
    let limiter = Limiter::new(Concurrency::Auto);
    let now_ns = 1_000_000_000;
    (0..100).for_each(|_| limiter.completed(now_ns - 1_000_000, now_ns, true));
    let exchanges = || limiter.limiter.epoch.get().exchanges;
    assert_eq!(exchanges(), 100);
    // The endpoints of the edited upstream are members beside those from before, until the last exchange of these has ended.
    for _ in 0..3 {
        limiter.join(&limiter.group);
        limiter.completed(now_ns - 1_000_000, now_ns, true);
        limiter.leave(&limiter.group);
    }
    assert_eq!(exchanges(), 103);
    assert_eq!(limiter.limiter.groups_completed(), Some(103));
    // Another upstream with this machine changes the whole, by its coming and by its going.
    let other = Rc::default();
    limiter.join(&other);
    assert_eq!(exchanges(), 0);
    limiter.leave(&other);
    assert_eq!((limiter.limiter.groups_completed(), limiter.limiter.groups_completed()), (None, Some(103)));
}
