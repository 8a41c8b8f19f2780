use super::*;

fn checks() -> PassiveChecks {
    PassiveChecks {
        healthy_successes: 2,
        healthy_statuses: vec![200],
        unhealthy_statuses: vec![500],
        http_failures: 3,
        tcp_failures: 2,
        timeouts: 1,
        retry_after: Duration::from_nanos(100),
        until_checked: false,
    }
}

fn health() -> Health {
    Health::new(SocketAddr::from(([127, 0, 0, 1], 1)))
}

const PATIENCE: Duration = Duration::from_nanos(100);

fn fails(health: &Health, stop: Stop, now_ns: u64) {
    health.failed(stop, &checks(), now_ns, now_ns);
}

#[test]
fn failures_in_a_row_take_an_endpoint_out() {
    let health = health();
    fails(&health, Stop::ConnectFailed, 10);
    health.answered(200, &checks(), 10, 10);
    fails(&health, Stop::ConnectFailed, 10);
    assert!(health.is_up(10));
    fails(&health, Stop::ConnectFailed, 10);
    assert!(!health.is_up(10) && !health.is_up(109) && health.is_up(110));
}

#[test]
fn u14_who_answers_no_http_is_taken_out() {
    for stop in [Stop::BadResponse(BadResponse::NotHttp), Stop::UpstreamHeadAborted] {
        let health = health();
        let by_default = PassiveChecks::default();
        for _ in 0..by_default.tcp_failures {
            assert!(health.is_up(10), "{stop:?}");
            health.failed(stop, &by_default, 10, 10);
        }
        assert!(!health.is_up(10), "{stop:?}");
    }
}

#[test]
fn a_faulty_response_is_no_fault_of_the_endpoint() {
    let health = health();
    for stop in [
        Stop::BadResponse(BadResponse::Syntax),
        Stop::BadResponse(BadResponse::Framing),
        Stop::BadResponse(BadResponse::HeadTooLarge),
        Stop::BadResponseBody,
        Stop::BadInterim,
    ] {
        for _ in 0..100 {
            fails(&health, stop, 10);
        }
        assert!(health.is_up(10), "{stop:?}");
    }
}

#[test]
fn f25_after_the_pause_one_at_a_time_may_show_that_it_has_recovered() {
    let health = health();
    assert!(health.admits(PATIENCE, 1) && health.admits(PATIENCE, 1), "in rotation anybody may come");
    fails(&health, Stop::ReadTimeout, 10);
    assert!(!health.is_up(50));
    assert!(health.is_up(110) && health.admits(PATIENCE, 110));
    assert!(!health.is_up(111), "one is under way");
    health.answered(200, &checks(), 150, 150);
    assert!(health.is_up(150) && health.admits(PATIENCE, 150) && !health.is_up(151), "the next one");
    health.answered(200, &checks(), 160, 160);
    assert!(health.is_up(160) && health.admits(PATIENCE, 160) && health.admits(PATIENCE, 160));
}

#[test]
fn f25_websockets_show_that_an_endpoint_has_recovered() {
    let health = health();
    fails(&health, Stop::ReadTimeout, 10);
    for _ in 0..checks().healthy_successes {
        assert!(health.admits(PATIENCE, 110) && !health.is_proven());
        health.answered(101, &checks(), 110, 110);
    }
    assert!(health.is_proven());
}

#[test]
fn f25_who_relapses_rests_twice_as_long() {
    let health = health();
    let mut now_ns = 10;
    for pause_ns in [100, 200, 400, 800, 1_600, 3_200, 3_200] {
        fails(&health, Stop::ReadTimeout, now_ns);
        assert!(!health.is_up(now_ns + pause_ns - 1) && health.is_up(now_ns + pause_ns), "after {pause_ns}");
        now_ns += pause_ns;
        health.answered(200, &checks(), now_ns, now_ns);
        health.answered(200, &checks(), now_ns, now_ns);
        assert!(health.admits(PATIENCE, now_ns) && health.admits(PATIENCE, now_ns), "it is back");
    }
    now_ns += CALM_NS;
    fails(&health, Stop::ReadTimeout, now_ns);
    assert!(health.is_up(now_ns + 100), "that was long ago");
}

#[test]
fn failures_that_began_before_the_endpoint_left_do_not_count_again() {
    let health = health();
    fails(&health, Stop::ReadTimeout, 10);
    for _ in 0..50 {
        health.failed(Stop::ReadTimeout, &checks(), 9, 60);
    }
    assert!(health.is_up(110), "the pause has not become longer");
}

#[test]
fn a_response_to_an_attempt_that_began_before_an_endpoint_left_does_not_bring_it_back() {
    let health = health();
    health.checked_down(PATIENCE, &"checks fail", 10);
    for _ in 0..5 {
        health.answered(200, &checks(), 9, 11);
    }
    assert!(!health.is_up(11));
    // It was found up before it left: the exchange that found it so does not put it on trial.
    assert!(!health.admits(PATIENCE, 9) && !health.is_up(u64::MAX - 1));
    (0..2).for_each(|_| health.answered(200, &checks(), 10, 11));
    assert!(health.is_up(11), "it answers what was sent to it since");
}

#[test]
fn statuses_count_as_configured() {
    let (health, checks) = (health(), checks());
    for _ in 0..5 {
        health.answered(404, &checks, 10, 10);
        health.answered(503, &checks, 10, 10);
    }
    assert!(health.is_up(10));
    for _ in 0..3 {
        health.answered(500, &checks, 10, 10);
    }
    assert!(!health.is_up(10));
}

#[test]
fn failures_of_others_do_not_count_against_the_endpoint() {
    let health = health();
    for stop in [Stop::ClientGone, Stop::Internal, Stop::Shutdown, Stop::BodyTooLarge] {
        fails(&health, stop, 10);
    }
    assert!(health.is_up(10));
}

#[test]
fn endpoint_taken_out_by_checks_comes_back_by_checks_or_answers_only() {
    let health = health();
    health.checked_down(PATIENCE, &"checks fail", 10);
    assert!(!health.is_up(u64::MAX - 1));
    health.checked_up(11);
    assert!(health.is_up(11));
    let until_checked = PassiveChecks { until_checked: true, ..checks() };
    health.failed(Stop::ReadTimeout, &until_checked, 20, 20);
    assert!(!health.is_up(u64::MAX - 1), "there are checks");
    health.checked_up(30);
    assert!(!health.is_up(30), "it has relapsed, and rests first");
    health.checked_up(220);
    assert!(health.is_up(220));
    health.checked_down(PATIENCE, &"checks fail", 300);
    health.answered(200, &checks(), 310, 310);
    health.answered(200, &checks(), 310, 310);
    assert!(health.is_up(310), "all were out, and it answered");
}

#[test]
fn requests_that_fail_while_all_are_out_do_not_keep_an_endpoint_from_returning_by_checks() {
    let health = health();
    let checks = PassiveChecks { until_checked: true, ..checks() };
    let fails = |stop, now_ns| health.failed(stop, &checks, now_ns, now_ns);
    fails(Stop::ConnectFailed, 10);
    fails(Stop::ConnectFailed, 10);
    assert!(!health.is_up(10));
    for now_ns in 11..40 {
        fails(Stop::ConnectFailed, now_ns);
        fails(Stop::ReadTimeout, now_ns);
        health.answered(500, &checks, now_ns, now_ns);
    }
    health.checked_up(41);
    assert!(health.is_up(41), "checks succeed");
    fails(Stop::ReadTimeout, 50);
    assert!(!health.is_up(50));
    health.checked_up(51);
    assert!(!health.is_up(51), "one that fails again soon after its return waits");
    health.checked_up(50 + 200);
    assert!(health.is_up(250));
}

#[test]
fn f25_the_share_of_an_endpoint_that_comes_back_grows() {
    let health = health();
    let ramp = Duration::from_nanos(1_000);
    assert_eq!(health.share(ramp, 0), 1.0, "it was there from the beginning");
    health.checked_down(PATIENCE, &"checks fail", 10);
    health.checked_up(110);
    let shares = [110, 410, 610, 1_110, 9_999].map(|now_ns| health.share(ramp, now_ns));
    assert_eq!(shares, [FIRST_SHARE, 0.3, 0.5, 1.0, 1.0]);
}

/// The health of an address, as an upstream with these checks sees it.
fn seen(table: &HealthTable, port: u16, passive: &PassiveChecks, now_ns: u64) -> Arc<Health> {
    let terms = CheckTerms { active: None, passive: Arc::new(passive.clone()) };
    let addr = SocketAddr::from(([127, 0, 0, 1], port));
    table.known(table.endpoints.lock().expect("no panic").entry(addr).or_default(), addr, terms, now_ns)
}

#[test]
fn f25_so_does_the_share_of_one_that_joins_others() {
    let table = HealthTable::default();
    let ramp = Duration::from_nanos(1_000);
    let first = seen(&table, 1, &checks(), 50);
    table.begin();
    let second = seen(&table, 2, &checks(), 50);
    assert_eq!((first.share(ramp, 550), second.share(ramp, 550)), (1.0, 0.5));
    assert_eq!(seen(&table, 2, &checks(), 500).share(ramp, 550), 0.5, "known already");
    let otherwise = PassiveChecks { timeouts: 7, ..checks() };
    assert_eq!(seen(&table, 1, &otherwise, 500).share(ramp, 550), 1.0, "other checks are no new beginning for it");
}

#[test]
fn thresholds_of_one_upstream_take_no_endpoint_away_from_another_with_other_thresholds() {
    let (table, strict) = (HealthTable::default(), PassiveChecks { http_failures: 1, ..checks() });
    let (own, same, other) = (seen(&table, 1, &strict, 1), seen(&table, 1, &strict, 1), seen(&table, 1, &checks(), 1));
    own.answered(500, &strict, 10, 10);
    assert!(!own.is_up(10) && !same.is_up(10) && other.is_up(10));
    let edited = seen(&table, 1, &PassiveChecks { http_failures: 2, ..checks() }, 10);
    assert!(edited.is_up(10) && !edited.is_proven(), "what others know of the machine makes it prove itself");
}
