//! F24: an upstream that fails is not asked more often for it.

use weir_testkit::{Origin, Reading};

use crate::{one_route, weir};

/// Origins that take a request and reset.
fn resetting(count: usize) -> Vec<Origin> {
    let one = |_| {
        Origin::scripted(Reading::Strict, |connection| {
            let _ = connection.request();
            connection.reset();
        })
    };
    (0..count).map(one).collect()
}

#[test]
fn f24_retries_are_at_most_a_fifth_of_the_requests() {
    let origins = resetting(3);
    let never_out = "checks: { passive: { unhealthy: { tcp_failures: 0, timeouts: 0, http_failures: 0 } } }";
    let gateway = weir().start(&one_route(&origins, never_out));
    let mut client = gateway.client();
    let requests = 1_000;
    for _ in 0..requests {
        assert_eq!(client.get("/").expect("an answer").status, 502);
    }
    let attempts: usize = origins.iter().map(Origin::connections).sum();
    // Twenty more for an upstream that is seldom asked.
    assert!(attempts <= requests * 12 / 10 + 20, "{attempts} attempts for {requests} requests");
    assert!(attempts > requests * 11 / 10, "{attempts} attempts for {requests} requests: nothing was tried again");
    let metrics = gateway.metrics();
    let counted = metrics.get("weir_upstream_retries_total").zip(metrics.get("weir_upstream_retries_refused_total"));
    let (retries, refused) = counted.expect("both are there");
    assert_eq!(retries as usize, attempts - requests);
    assert!(refused > 0.0);
}

#[test]
fn f24_once_all_are_out_requests_are_refused_without_asking_anybody() {
    let origins = resetting(2);
    let gateway = weir().start(&one_route(&origins, "all_down: refuse"));
    let mut client = gateway.client();
    while client.get("/").expect("an answer").status != 503 {}
    let before: usize = origins.iter().map(Origin::connections).sum();
    let refused = (0..200).filter(|_| {
        let status = client.get("/").expect("an answer").status;
        assert!(matches!(status, 502 | 503), "{status}");
        status == 503
    });
    assert!(refused.count() > 180, "nine of ten are told without a try");
    let after: usize = origins.iter().map(Origin::connections).sum();
    // One for each that was out for long enough to be asked how it is.
    assert!(after - before <= 4, "{} attempts while all were out", after - before);
}
