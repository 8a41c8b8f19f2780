//! Limits that several gateways share: counted by a real Redis, alone, in a cluster, and monitored by sentinels.

use std::thread;
use std::time::{Duration, Instant};

use weir_testkit::{Answer, DEADLINE, Gate, Gateway, Origin, Reading, TempDir, eventually, free_port, is_full, scaled};

use crate::redis::Redis;

/// A gateway with a limit on `/limited/*` only.
fn gateway(origin: &Origin, plugins: &str) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes:
  - {{ id: limited, uri: /limited/*, plugins: {plugins}, upstream: {{ nodes: {{ \"{addr}\": 1 }}, type: roundrobin }} }}
  - {{ id: free, uri: /free, upstream: {{ nodes: {{ \"{addr}\": 1 }}, type: roundrobin }} }}
",
        addr = origin.addr()
    ))
}

/// A busy machine must not pass for a slow server.
fn limit(port: u16, more: &str) -> String {
    let timeout = if more.contains("redis_timeout:") { "" } else { "redis_timeout: 20000, " };
    format!(
        "{{ limit-count: {{ time_window: 86400, policy: redis, redis_host: 127.0.0.1, redis_port: {port}, {timeout}{more} }} }}"
    )
}

/// Sends `each` requests on each of four connections to each gateway concurrently; returns how many were let through.
fn let_through(gateways: &[Gateway], each: usize) -> usize {
    thread::scope(|scope| {
        let work = |gateway: &Gateway| {
            let mut client = gateway.client();
            (0..each).filter(|_| client.get("/limited/a").expect("an answer").status == 200).count()
        };
        let threads: Vec<_> = gateways
            .iter()
            .flat_map(|gateway| (0..4).map(move |_| gateway))
            .map(|gateway| scope.spawn(move || work(gateway)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    })
}

fn origin() -> Origin {
    Origin::serving(|_| Answer::ok("ok"))
}

#[test]
fn p08_three_gateways_let_through_exactly_the_count() {
    let Some(redis) = Redis::start(&[]) else { return };
    let origin = origin();
    let each = scaled(100, 20_000);
    let count = 3 * each;
    for window in ["fixed", "sliding"] {
        let limit = limit(redis.port, &format!("count: {count}, window_type: {window}"));
        let gateways = [(); 3].map(|()| gateway(&origin, &limit));
        assert_eq!(let_through(&gateways, each), count, "{window}");
        let answer = gateways[0].get("/limited/a");
        assert_eq!((answer.status, answer.headers.get("x-ratelimit-remaining")), (503, Some("0")), "{window}");
        assert_eq!(gateways[1].get("/free").status, 200);
    }
}

#[test]
fn p08_a_cluster_counts_exactly() {
    let Some(nodes) = Redis::cluster() else { return };
    let origin = origin();
    let limit = format!(
        "{{ limit-count: {{ count: 200, time_window: 86400, key: arg_k, policy: redis-cluster, redis_cluster_name: c, \
         redis_cluster_nodes: [\"127.0.0.1:{}\"], redis_timeout: 20000 }} }}",
        nodes[0].port
    );
    let gateways = [(); 3].map(|()| gateway(&origin, &limit));
    assert_eq!(let_through(&gateways, 100), 200);
    // Keys that are distributed over all nodes.
    for key in 0..20 {
        let answer = gateways[key % 3].get(&format!("/limited/a?k={key}"));
        assert_eq!((answer.status, answer.headers.get("x-ratelimit-remaining")), (200, Some("199")), "{key}");
    }
}

#[test]
fn a_limit_outlives_the_server_that_counted() {
    let Some((master, replica, sentinel)) = Redis::watched() else { return };
    let limit = format!(
        "{{ limit-count: {{ count: 1000000, time_window: 86400, policy: redis-sentinel, redis_master_name: counters, \
         redis_sentinels: [{{ host: 127.0.0.1, port: {} }}], redis_connect_timeout: 5000, redis_read_timeout: 5000 }} }}",
        sentinel.port
    );
    let origin = origin();
    let gateway = gateway(&origin, &limit);
    let left = || gateway.get("/limited/a").headers.get("x-ratelimit-remaining").map(str::to_owned);
    assert_eq!(left().as_deref(), Some("999999"));
    eventually("the replica has it", DEADLINE, || replica.ask("DBSIZE") == ":1");
    drop(master);
    eventually("the replica counts on", 2 * DEADLINE, || gateway.get("/limited/a").status == 200);
    let left: u64 = left().expect("told").parse().expect("a number");
    assert!(left < 999_998, "{left}");
}

#[test]
fn a_frozen_server_holds_nobody_longer_than_the_timeout() {
    let Some(redis) = Redis::start(&[]) else { return };
    let origin = origin();
    let strict = gateway(&origin, &limit(redis.port, "count: 1000, redis_timeout: 200"));
    let lenient = gateway(&origin, &limit(redis.port, "count: 1000, redis_timeout: 200, allow_degradation: true"));
    eventually("it counts", DEADLINE, || strict.get("/limited/a").status == 200);
    redis.freeze();
    // In the full test, it stays frozen for ten seconds.
    let frozen_until = Instant::now() + Duration::from_millis(scaled(1, 10_000) as u64);
    let mut took = Vec::new();
    for round in 0.. {
        if round >= 3 && Instant::now() > frozen_until {
            break;
        }
        for (gateway, status) in [(&strict, 500), (&lenient, 200)] {
            let began = Instant::now();
            assert_eq!(gateway.get("/limited/a").status, status);
            took.push(began.elapsed());
        }
        assert_eq!(strict.get("/free").status, 200);
    }
    took.sort();
    let (median, slowest) = (took[took.len() / 2], took[took.len() - 1]);
    println!("with a time-out of 200 ms answers took {median:?}, the slowest {slowest:?}");
    // A busy machine takes longer, and a client gives up after `DEADLINE`.
    assert!(!is_full() || (median < Duration::from_millis(300) && slowest < DEADLINE / 2), "{median:?}, {slowest:?}");
    strict.wait_stderr("it is said", |text| text.contains("limits cannot be counted in the Redis at 127.0.0.1"));
    redis.thaw();
    eventually("it counts again", DEADLINE, || strict.get("/limited/a").status == 200);
    let is_over = |text: &str| text.contains("limits are counted in the Redis at 127.0.0.1");
    strict.wait_stderr("the end is said", is_over);
    eventually("the end is said", DEADLINE, || {
        assert_eq!(lenient.get("/limited/a").status, 200);
        lenient.stderr().lines().any(is_over)
    });
}

#[test]
fn a_server_that_comes_back_counts_again() {
    let Some(redis) = Redis::start(&[]) else { return };
    let port = redis.port;
    let origin = origin();
    let gateway = gateway(&origin, &limit(port, "count: 1"));
    assert_eq!([gateway.get("/limited/a").status, gateway.get("/limited/a").status], [200, 503]);
    drop(redis);
    assert_eq!(gateway.get("/limited/a").status, 500, "nobody is let through because nobody counts");
    let _again = Redis::start_on(port, &[]);
    eventually("it counts again, from nothing", DEADLINE, || gateway.get("/limited/a").status == 200);
    assert_eq!(gateway.get("/limited/a").status, 503);
}

#[test]
fn a_password_is_needed_and_never_shown() {
    let Some(redis) = Redis::start(&["--requirepass", "s3cret"]) else { return };
    let origin = origin();
    let right = gateway(&origin, &limit(redis.port, "count: 1, redis_password: s3cret"));
    assert_eq!([right.get("/limited/a").status, right.get("/limited/a").status], [200, 503]);
    let wrong = gateway(&origin, &limit(redis.port, "count: 1, redis_password: wr0ng"));
    assert_eq!(wrong.get("/limited/a").status, 500);
    assert!(!wrong.stderr().contains("wr0ng"), "{}", wrong.stderr());
}

#[test]
fn an_outage_between_synchronisations_is_counted_and_fails_no_request() {
    let Some(redis) = Redis::start(&[]) else { return };
    let port = redis.port;
    let origin = origin();
    let gateway = gateway(&origin, &limit(port, "count: 1000000, sync_interval: 0.1"));
    let errors = || gateway.metrics().sum("weir_policy_errors_total", &["policy=\"limit-count\""]);
    assert_eq!(gateway.get("/limited/a").status, 200);
    drop(redis);
    eventually("requests are counted alone", DEADLINE, || {
        assert_eq!(gateway.get("/limited/a").status, 200);
        errors() > 0.0
    });
    let _again = Redis::start_on(port, &[]);
    let ends = |text: &str| {
        text.contains("limits are counted in the Redis at 127.0.0.1")
            && text.contains("requests that failed before: 0, reports of counts: ")
    };
    gateway.wait_stderr("the end is said", ends);
    let before = errors();
    assert_eq!((gateway.get("/limited/a").status, errors()), (200, before));
}

#[test]
fn a_delayed_count_is_told_and_heard_of() {
    let Some(redis) = Redis::start(&[]) else { return };
    let origin = origin();
    let limit = limit(redis.port, "count: 100, sync_interval: 0.1");
    let [here, there] = [(); 2].map(|()| gateway(&origin, &limit));
    let left = |gateway: &Gateway| {
        let answer = gateway.get("/limited/a");
        (answer.status, answer.headers.get("x-ratelimit-remaining").expect("told").parse::<u64>().expect("a number"))
    };
    assert_eq!([(); 5].map(|()| left(&here)), [(200, 99), (200, 98), (200, 97), (200, 96), (200, 95)]);
    eventually("Redis has been told", DEADLINE, || redis.counted() == "5");
    assert_eq!(left(&there), (200, 94), "the first of a window is counted exactly");
    assert_eq!(left(&there), (200, 93));
    eventually("Redis has been told", DEADLINE, || redis.counted() == "7");
    assert_eq!(left(&here), (200, 94), "it has not heard of the others yet");
    eventually("it has heard of them", DEADLINE, || redis.counted() == "8");
    eventually("it has heard of them", DEADLINE, || left(&here).1 < 92);
    // Used up, for all gateways.
    eventually("it is used up here", DEADLINE, || here.get("/limited/a").status == 503);
    eventually("it is used up there", DEADLINE, || there.get("/limited/a").status == 503);
    let reached = here.get("/limited/a");
    assert_eq!(reached.headers.get("x-ratelimit-remaining"), Some("0"));
    assert!(origin.requests().len() < 200, "never more than the count of each");
}

#[test]
fn a_rate_is_shared() {
    let Some(redis) = Redis::start(&[]) else { return };
    let origin = origin();
    let limit = format!(
        "{{ limit-req: {{ rate: 0.001, burst: 1, nodelay: true, key: remote_addr, rejected_code: 429, policy: redis, \
         redis_host: 127.0.0.1, redis_port: {}, redis_timeout: 20000 }} }}",
        redis.port
    );
    let gateways = [(); 2].map(|()| gateway(&origin, &limit));
    let ask = |turn: usize| gateways[turn % 2].get("/limited/a").status;
    assert_eq!([ask(0), ask(1), ask(2), ask(3)], [200, 200, 429, 429]);
}

/// An origin that blocks `/limited/slow` at a gate.
fn gated(gate: &Gate) -> Origin {
    let own = gate.clone();
    Origin::scripted(Reading::Strict, move |connection| {
        while let Ok(request) = connection.request() {
            if request.target == "/limited/slow" {
                own.wait();
            }
            if connection.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
                return;
            }
        }
    })
}

#[test]
fn a_restart_of_the_server_fails_no_request_after_it() {
    let directory = TempDir::new();
    let port = free_port();
    let start = || Redis::keeping(&directory, port);
    let Some(mut redis) = start() else { return };
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let limit = format!(
        "{{ limit-count: {{ count: 1000, time_window: 60, policy: redis, redis_host: 127.0.0.1, redis_port: {port}, \
         redis_timeout: 20000 }} }}"
    );
    let gateway = gateway(&origin, &limit);
    for _ in 0..3 {
        // Each worker has a connection of its own, which the restart closes.
        for _ in 0..8 {
            assert_eq!(gateway.get("/limited/a").status, 200);
        }
        drop(redis);
        redis = start().expect("it was there before");
    }
}

#[test]
fn u04_a_server_that_comes_back_has_the_places_that_are_taken_and_no_others() {
    let directory = TempDir::new();
    let port = free_port();
    let start = || Redis::keeping(&directory, port);
    let Some(redis) = start() else { return };
    let gate = Gate::new();
    let origin = gated(&gate);
    let limit = format!(
        "{{ limit-conn: {{ conn: 1, burst: 0, default_conn_delay: 0.1, key: remote_addr, key_ttl: 3, policy: redis, \
         redis_host: 127.0.0.1, redis_port: {port}, redis_timeout: 20000 }} }}"
    );
    let [here, there] = [(); 2].map(|()| gateway(&origin, &limit));
    let slow = |requests: usize| {
        let mut client = here.client();
        client.send("GET /limited/slow HTTP/1.1\r\nHost: t\r\n\r\n");
        origin.wait_requests(requests);
        client
    };
    // The exchange ends while the server is down, so its permit cannot be returned; the permit is freed when the lease expires.
    let mut first = slow(1);
    // If its gateway stands still, a lease expires, and is taken again.
    let is_taken = || there.get("/limited/a").status == 503;
    eventually("its place is taken", DEADLINE, is_taken);
    drop(redis);
    gate.open_once();
    assert_eq!(first.response().expect("an answer").status, 200);
    let redis = start().expect("it was there before");
    eventually("its place is free", DEADLINE, || there.get("/limited/a").status == 200);
    eventually("nobody is in", DEADLINE, || redis.ask("DBSIZE") == ":0");
    // The exchange is in flight while the server is down; afterwards the server has lost the permit, or its lease has expired.
    let mut second = slow(origin.requests().len() + 1);
    drop(redis);
    std::fs::remove_dir_all(directory.path().join("appendonlydir")).expect("it wrote there");
    let redis = start().expect("it was there before");
    eventually("its place is taken again", DEADLINE, || redis.ask("DBSIZE") == ":1" && is_taken());
    let renewals = || {
        let counts = redis.ask("INFO commandstats");
        counts.lines().find(|line| line.starts_with("cmdstat_zadd:")).map(str::to_owned)
    };
    for _ in 0..4 {
        let before = renewals();
        eventually("its lease is renewed", DEADLINE, || renewals() != before);
    }
    eventually("its place is taken, however long it takes", DEADLINE, is_taken);
    gate.open_once();
    assert_eq!(second.response().expect("an answer").status, 200);
    eventually("its place is free", DEADLINE, || there.get("/limited/a").status == 200);
}

#[test]
fn places_are_shared_and_given_back() {
    let Some(redis) = Redis::start(&[]) else { return };
    let gate = Gate::new();
    let origin = gated(&gate);
    let limit = format!(
        "{{ limit-conn: {{ conn: 1, burst: 0, default_conn_delay: 0.1, key: remote_addr, policy: redis, \
         redis_host: 127.0.0.1, redis_port: {}, redis_timeout: 20000 }} }}",
        redis.port
    );
    let [here, there] = [(); 2].map(|()| gateway(&origin, &limit));
    let mut slow = here.client();
    slow.send("GET /limited/slow HTTP/1.1\r\nHost: t\r\n\r\n");
    origin.wait_requests(1);
    assert_eq!([here.get("/limited/a").status, there.get("/limited/a").status], [503, 503]);
    gate.open_once();
    assert_eq!(slow.response().expect("an answer").status, 200);
    eventually("its place is free", DEADLINE, || there.get("/limited/a").status == 200);
    // A client that disconnects returns its permit, too.
    eventually("nobody is in", DEADLINE, || redis.ask("DBSIZE") == ":0");
    let mut gone = there.client();
    gone.send("GET /limited/slow HTTP/1.1\r\nHost: t\r\n\r\n");
    eventually("it is in", DEADLINE, || redis.ask("DBSIZE") == ":1");
    assert_eq!(here.get("/limited/a").status, 503);
    gone.reset();
    eventually("its place is free", DEADLINE, || here.get("/limited/a").status == 200);
    gate.open();
}
