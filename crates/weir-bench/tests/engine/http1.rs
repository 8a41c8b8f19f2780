//! The HTTP/1.1 engine against a scripted peer.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Duration;

use crate::peer::{PeerDefinition, Then, answer};
use weir_bench::engine::{
    Errors, LoadPhase, LoadPlan, LoadResult, Pacing, Rate, RequestBody, RequestTemplate, Selection, Spacing,
    StopCondition, Think, run,
};
use weir_testkit::free_port;

/// Longer than any answer takes on a busy machine.
pub(crate) const PATIENT_MS: u64 = 60_000;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK";

fn load(plan: &LoadPlan) -> LoadResult {
    let result = run(plan, &mut |_| {}).expect("the plan is good");
    let total = &result.total;
    assert_eq!(total.due, total.completed + total.errors.sum() + total.missed, "every request has one outcome");
    assert_eq!(total.completed, total.latency.count());
    assert_eq!(total.completed, total.service_time.count());
    assert_eq!(total.completed, total.statuses.values().sum::<u64>());
    let measured = result.intervals.iter().filter(|interval| interval.phase != LoadPhase::WarmUp);
    assert_eq!(measured.map(|interval| interval.tally.completed).sum::<u64>(), total.completed);
    result
}

#[test]
fn sends_a_fixed_count_and_no_more() {
    let peer = PeerDefinition::ok();
    for threads in [1, 2] {
        let mut plan = LoadPlan::closed(peer.url(), 5, StopCondition::after_count(1_001));
        plan.threads = threads;
        let before = (peer.requests(), peer.connections());
        let result = load(&plan);
        assert_eq!(result.total.completed, 1_001);
        assert_eq!(result.total.class(2), 1_001);
        assert_eq!(result.total.unexpected, 0);
        assert_eq!((peer.requests() - before.0, peer.connections() - before.1), (1_001, 5));
        assert_eq!((result.connections.opened, result.connections.open_at_end), (5, 5));
        assert_eq!(result.generator.threads.len(), threads);
        assert!(result.measured_ns > 0 && result.rate() > 0.0);
    }
}

#[test]
fn a_duration_ends_a_closed_loop() {
    let peer = PeerDefinition::ok();
    let mut plan = LoadPlan::closed(peer.url(), 4, StopCondition::after_ms(300));
    plan.warm_up_ms = 150;
    plan.interval_ms = 100;
    let result = load(&plan);
    assert_eq!((result.warm_up_ns, result.measured_ns), (150_000_000, 300_000_000));
    let starts: Vec<u64> = result.intervals.iter().map(|interval| interval.start_ns / 1_000_000).collect();
    assert_eq!(starts[..5], [0, 100, 150, 250, 350]);
    assert!(result.total.completed < peer.requests() as u64, "warm-up is not in the totals");
    assert!(result.generator.in_flight_max <= 4 && result.generator.in_flight_mean <= 4.0);
}

#[test]
fn throughput_counts_the_answers_that_come_within_the_measured_time() {
    let held = || {
        PeerDefinition::start(|_, stream| {
            sleep(Duration::from_millis(40));
            answer(stream, OK)
        })
    };
    let completed = |result: &LoadResult, phase: LoadPhase| -> u64 {
        let intervals = result.intervals.iter().filter(|interval| interval.phase == phase);
        intervals.map(|interval| interval.tally.completed).sum()
    };
    // Each of the four clients has a request in flight when the time is over. Its answer is in the percentiles, but the time
    // that it took is not in the measured time.
    let peer = held();
    let mut plan = LoadPlan::closed(peer.url(), 4, StopCondition::after_ms(500));
    let result = load(&plan);
    let in_time = result.completed_in_time.expect("it is counted");
    assert_eq!((in_time, in_time + 4), (completed(&result, LoadPhase::Measured), result.total.completed));
    assert_eq!(result.rate(), in_time as f64 * 2.0);
    // With a warm-up, an answer counts in the time in which it comes, even if its request was due before.
    let peer = held();
    plan.requests = vec![RequestTemplate::get(peer.url())];
    plan.warm_up_ms = 500;
    let result = load(&plan);
    let in_time = result.completed_in_time.expect("it is counted");
    let outside = completed(&result, LoadPhase::WarmUp) + completed(&result, LoadPhase::Drain);
    assert_eq!(in_time + outside, peer.requests() as u64);
    // A count ends the run with its last answer: all answers are within.
    (plan.stop, plan.warm_up_ms) = (StopCondition::after_count(9), 0);
    let counted = load(&plan);
    assert_eq!((counted.total.completed, counted.completed_in_time), (9, Some(9)));
}

#[test]
fn after_a_warm_up_a_count_ends_when_its_last_request_is_due() {
    // Answers to requests of the warm-up are not counted. The last of them come after the warm-up.
    const HELD: Duration = Duration::from_millis(20);
    let peer = PeerDefinition::start(|_, stream| {
        sleep(HELD);
        answer(stream, OK)
    });
    // Four clients send together: one of them takes the last ticket, and the next finds none.
    let mut plan = LoadPlan::closed(peer.url(), 4, StopCondition::after_count(41));
    assert_eq!(load(&plan).drain_ns, 0, "without a warm-up every answer is within");
    plan.warm_up_ms = 50;
    let result = load(&plan);
    assert_eq!(result.total.completed, 41);
    assert!(result.drain_ns > 0);
    assert!(result.generator.in_flight_mean <= 4.0, "{}", result.generator.in_flight_mean);
}

#[test]
fn progress_is_reported_while_it_runs() {
    let peer = PeerDefinition::ok();
    let mut plan = LoadPlan::closed(peer.url(), 1, StopCondition::after_ms(900));
    plan.interval_ms = 100;
    let mut seen = Vec::new();
    run(&plan, &mut |progress| seen.push(progress.clone())).expect("the plan is good");
    assert!(
        seen.iter().any(|progress| progress.completed > 0 && progress.rate > Some(0.0) && progress.p50_ns > Some(0))
    );
    assert!(seen.iter().all(|progress| progress.planned_ns == Some(900_000_000)));
}

#[test]
fn takes_bodies_of_every_framing() {
    let peer = PeerDefinition::start(|seen, stream| match seen.number % 4 {
        0 => answer(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
        1 => {
            for piece in ["HTTP/1.1 20", "0 OK\r\nContent-Le", "ngth: 10\r\n\r\n01234", "56789"] {
                stream.write_all(piece.as_bytes()).expect("the engine reads");
                stream.flush().expect("the engine reads");
                sleep(Duration::from_millis(2));
            }
            Then::Next
        }
        2 => {
            let body = "x".repeat(300_000);
            answer(stream, &format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
        }
        _ => {
            answer(stream, "HTTP/1.1 200 OK\r\n\r\nuntil the end");
            Then::Close
        }
    });
    let result = load(&LoadPlan::closed(peer.url(), 1, StopCondition::after_count(40)));
    assert_eq!((result.total.completed, result.total.errors), (40, Errors::default()));
    assert!(result.total.bytes_received > 3_000_000);
    assert_eq!(peer.connections(), 10);
}

#[test]
fn sends_what_the_template_says() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let peer = PeerDefinition::start(move |request, stream| {
        log.lock().expect("no panic").push(request.clone());
        answer(stream, "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
    });
    let mut plan = LoadPlan::closed(format!("{}a/b?c=d", peer.url()), 1, StopCondition::after_count(1));
    plan.requests[0].method = "POST".into();
    plan.requests[0].headers = vec![("X-Key".into(), "secret".into())];
    plan.requests[0].body = RequestBody::Sized(3_000_000);
    plan.requests[0].expect_status = vec![200];
    plan.source_addresses = vec!["127.0.0.9".parse().expect("an address")];
    let result = load(&plan);
    assert_eq!((result.total.statuses[&201], result.total.unexpected), (1, 1));
    let seen = seen.lock().expect("no panic");
    assert_eq!(seen[0].line, "POST /a/b?c=d HTTP/1.1");
    assert!(seen[0].fields.contains(&"X-Key: secret".to_owned()));
    assert_eq!(seen[0].body.len(), 3_000_000);
    assert_eq!(seen[0].from.ip().to_string(), "127.0.0.9");
}

#[test]
fn without_keep_alive_every_request_has_its_connection() {
    let peer = PeerDefinition::start(|_, stream| {
        answer(stream, OK);
        Then::Close
    });
    let mut plan = LoadPlan::closed(peer.url(), 3, StopCondition::after_count(60));
    plan.keep_alive = false;
    let result = load(&plan);
    assert_eq!((result.total.completed, result.connections.opened, peer.connections()), (60, 60, 60));
}

#[test]
fn a_connection_the_peer_closes_is_opened_again() {
    let peer = PeerDefinition::start(|seen, stream| {
        answer(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nOK");
        if seen.number % 2 == 0 { Then::Close } else { Then::Next }
    });
    let result = load(&LoadPlan::closed(peer.url(), 2, StopCondition::after_count(6)));
    assert_eq!((result.total.completed, result.total.errors), (6, Errors::default()));
}

#[test]
fn errors_are_counted_by_cause() {
    let errors = |response_ms: u64, script: fn(&mut std::net::TcpStream) -> Then| {
        let peer = PeerDefinition::start(move |_, stream| script(stream));
        let mut plan = LoadPlan::closed(peer.url(), 1, StopCondition::after_count(3));
        plan.timeouts.response_ms = response_ms;
        load(&plan).total.errors
    };
    let closed = errors(PATIENT_MS, |stream| {
        answer(stream, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort");
        Then::Close
    });
    assert_eq!(closed, Errors { closed: 3, ..Errors::default() });
    assert_eq!(errors(PATIENT_MS, |_| Then::Reset), Errors { reset: 3, ..Errors::default() });
    let protocol = errors(PATIENT_MS, |stream| answer(stream, "220 mail.example ESMTP\r\n"));
    assert_eq!(protocol, Errors { protocol: 3, ..Errors::default() });
    let unasked =
        errors(PATIENT_MS, |stream| answer(stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK, and more"));
    assert_eq!(unasked, Errors { protocol: 3, ..Errors::default() });
    assert_eq!(errors(200, |_| Then::Next), Errors { timeout: 3, ..Errors::default() });
}

#[test]
fn a_refused_connection_is_an_error_and_not_a_busy_loop() {
    let free = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let url = format!("http://{free}/");
    let result = load(&LoadPlan::closed(&url, 2, StopCondition::after_ms(500)));
    assert_eq!(result.total.completed, 0);
    assert!((2..=14).contains(&result.total.errors.connect), "{:?}", result.total.errors);
    let result = load(&LoadPlan::open(&url, 1_000.0, 2, StopCondition::after_ms(200)));
    assert_eq!((result.total.due, result.total.errors.connect + result.total.missed), (200, 200));
}

#[test]
fn an_open_loop_offers_its_rate() {
    let peer = PeerDefinition::ok();
    for spacing in [Spacing::Even, Spacing::Poisson] {
        let mut plan = LoadPlan::open(peer.url(), 1_000.0, 20, StopCondition::after_ms(500));
        plan.pacing = Pacing::Open { rate: Rate::Constant(1_000.0), spacing };
        plan.threads = 2;
        let result = load(&plan);
        assert!(result.total.due.abs_diff(500) <= if spacing == Spacing::Even { 1 } else { 120 });
        assert_eq!(result.total.errors, Errors::default());
        assert!(peer.connections() >= 20, "every connection is opened");
    }
}

#[test]
fn an_open_loop_ends_with_its_count_or_its_schedule() {
    let peer = PeerDefinition::ok();
    let result = load(&LoadPlan::open(peer.url(), 2_000.0, 4, StopCondition::after_count(150)));
    assert_eq!((result.total.due, result.total.completed), (150, 150));
    let mut plan = LoadPlan::open(peer.url(), 1.0, 4, StopCondition::after_count(1_000));
    plan.pacing = Pacing::Replay { at_ns: (0..70).map(|at| at * 1_000_000).collect() };
    assert_eq!(load(&plan).total.completed, 70);
}

#[test]
fn a_stall_shows_in_latency_and_not_in_service_time() {
    // One connection, 200 requests/s, and one answer that takes 400 ms: 80 requests become due meanwhile.
    let peer = PeerDefinition::start(|seen, stream| {
        if seen.number == 50 {
            sleep(Duration::from_millis(400));
        }
        answer(stream, OK)
    });
    let result = load(&LoadPlan::open(peer.url(), 200.0, 1, StopCondition::after_ms(1_500)));
    // Half of those that became due meanwhile, and one. More than a busy machine adds to each.
    let over = |histogram: &weir_bench::engine::LatencyHistogram| 1.0 - histogram.share_within(200_000_000);
    assert!(over(&result.total.latency) > 0.1, "{}", over(&result.total.latency));
    assert!(over(&result.total.service_time) < 0.05, "{}", over(&result.total.service_time));
    assert!(result.total.queued >= 60, "{}", result.total.queued);
}

#[test]
fn request_that_was_never_sent_counts_as_missed() {
    let peer = PeerDefinition::start(|_, stream| {
        sleep(Duration::from_millis(100));
        answer(stream, OK)
    });
    let result = load(&LoadPlan::open(peer.url(), 1_000.0, 2, StopCondition::after_ms(500)));
    assert_eq!(result.total.due, 500);
    assert!(result.total.missed > 400, "{}", result.total.missed);
    assert!(result.drain_ns > 0, "answers to what was due are waited for");
}

#[test]
fn clients_think_and_start_one_after_another() {
    let peer = PeerDefinition::ok();
    let mut plan = LoadPlan::closed(peer.url(), 4, StopCondition::after_ms(2_000));
    plan.pacing = Pacing::Closed { think: Think::FixedMs(250.0), ramp_up_ms: 1_000 };
    let result = load(&plan);
    // Clients start at 0, 250, 500 and 750 ms and send every 250 ms: at most 8 + 7 + 6 + 5.
    assert!((4..=26).contains(&result.total.completed), "{}", result.total.completed);
}

#[test]
fn several_requests_go_to_several_places() {
    let (one, two) = (PeerDefinition::ok(), PeerDefinition::ok());
    let named = |name: &str, url: String, weight| RequestTemplate {
        name: Some(name.into()),
        weight,
        ..RequestTemplate::get(url)
    };
    let mut plan = LoadPlan::closed(one.url(), 4, StopCondition::after_count(4_000));
    plan.requests = vec![named("often", one.url(), 3), named("seldom", two.url(), 1)];
    let result = load(&plan);
    let names: Vec<&str> = result.requests.iter().map(|request| request.name.as_str()).collect();
    assert_eq!(names, ["often", "seldom"]);
    assert_eq!(one.requests() as u64, result.requests[0].tally.completed);
    assert_eq!((one.requests() + two.requests(), one.connections(), two.connections()), (4_000, 4, 4));
    assert!(one.requests().abs_diff(3_000) < 200);

    plan.selection = Selection::Sequence;
    plan.stop = StopCondition::after_count(400);
    // Each of the four clients may be in the middle of its sequence at the end.
    assert!(load(&plan).requests[1].tally.completed.abs_diff(200) <= 4);
}

#[test]
fn stopping_keeps_what_was_measured() {
    let peer = PeerDefinition::ok();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let plan = LoadPlan::closed(peer.url(), 1, StopCondition::after_ms(60_000));
    let calls = AtomicUsize::new(0);
    let result = weir_bench::engine::run_until(&plan, &stop, &mut |_| {
        calls.fetch_add(1, Ordering::SeqCst);
        stop.store(true, Ordering::SeqCst);
    })
    .expect("the plan is good");
    assert!(calls.load(Ordering::SeqCst) > 0 && result.total.completed > 0);
    assert!(result.measured_ns < 60_000_000_000);
}

#[test]
fn results_survive_their_file() {
    let peer = PeerDefinition::ok();
    let result = load(&LoadPlan::closed(peer.url(), 1, StopCondition::after_count(10)));
    let text = serde_json::to_string(&result).expect("serialises");
    let mut back: LoadResult = serde_json::from_str(&text).expect("reads its own form");
    // A mean may lose its last digit.
    assert!((back.generator.in_flight_mean - result.generator.in_flight_mean).abs() < 1e-9);
    back.generator.in_flight_mean = result.generator.in_flight_mean;
    assert_eq!(back, result);
    let plan = LoadPlan::open(peer.url(), 5.0, 1, StopCondition::after_count(10));
    let text = serde_json::to_string(&plan).expect("serialises");
    assert_eq!(serde_json::from_str::<LoadPlan>(&text).expect("reads its own form"), plan);
}
