//! Limits count exactly, whoever counts.

use std::thread;

use weir_testkit::{Answer, DEADLINE, Gate, Gateway, Origin, Reading, eventually};

use crate::Rig;

/// Sends `each` requests on each of `connections` connections at once; counts those that were let through.
fn let_through(rig: &Rig, connections: usize, each: usize) -> usize {
    thread::scope(|scope| {
        let work = || {
            let mut client = rig.gateway.client();
            (0..each).filter(|_| client.get("/").expect("an answer").status == 200).count()
        };
        let threads: Vec<_> = (0..connections).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    })
}

#[test]
fn exactly_the_count_is_let_through() {
    for window in ["fixed", "sliding"] {
        // A window that does not end during the test: 366 days, and a sliding one that began long ago.
        let limit = format!("{{ limit-count: {{ count: 500, time_window: 31622400, window_type: {window} }} }}");
        let rig = Rig::workers(2, &limit);
        assert_eq!(let_through(&rig, 16, 100), 500, "{window}");
        assert_eq!(rig.origin.requests().len(), 500, "{window}");
    }
}

#[test]
fn a_client_is_told_what_is_left() {
    let rig =
        Rig::with("{ limit-count: { count: 2, time_window: 3600, rejected_code: 429, rejected_msg: slow down } }");
    let told: Vec<_> = (0..3)
        .map(|_| {
            let answer = rig.gateway.get("/");
            let field = |name| answer.headers.get(name).expect("told").to_owned();
            (answer.status, field("x-ratelimit-limit"), field("x-ratelimit-remaining"))
        })
        .collect();
    let expected = [(200, "2", "1"), (200, "2", "0"), (429, "2", "0")];
    assert_eq!(told, expected.map(|(status, limit, left)| (status, limit.to_owned(), left.to_owned())));
    let refused = rig.gateway.get("/");
    assert_eq!(refused.text(), "{\"error_msg\":\"slow down\"}\n");
    assert!(refused.headers.get("retry-after").is_some_and(|seconds| seconds.parse::<u64>().is_ok()));
}

#[test]
fn a_reload_that_changes_nothing_about_a_limit_resets_nothing() {
    let limit = "limit-count: { count: 1, time_window: 3600 }";
    let rig = Rig::with(&format!("{{ {limit} }}"));
    assert_eq!([rig.gateway.get("/").status, rig.gateway.get("/").status], [200, 503]);
    rig.change(&format!("{{ {limit}, request-id: {{}} }}"));
    assert_eq!(rig.gateway.get("/").status, 503);
    rig.change("{ limit-count: { count: 2, time_window: 3600 } }");
    assert_eq!(rig.gateway.get("/").status, 200);
}

#[test]
fn p08_a_forwarded_address_is_no_key_of_its_own() {
    let rig = Rig::with("{ limit-count: { count: 1, time_window: 3600, key: remote_addr } }");
    let ask = |forwarded: &str| {
        let request =
            format!("GET / HTTP/1.1\r\nHost: t\r\nX-Forwarded-For: {forwarded}\r\nX-Real-IP: {forwarded}\r\n\r\n");
        rig.gateway.client().ask(request).expect("an answer").status
    };
    assert_eq!([ask("1.1.1.1"), ask("2.2.2.2"), ask("3.3.3.3")], [200, 503, 503]);
}

#[test]
fn p08_a_path_in_another_spelling_is_no_way_around_a_limit() {
    let origin = Origin::serving(|request| Answer::ok(request.target.clone()));
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes:
  - uri: /limited/*
    plugins: {{ limit-count: {{ count: 1, time_window: 31622400, key: $uri, key_type: var_combination }} }}
    upstream: {{ nodes: {{ \"{addr}\": 1 }} }}
",
        addr = origin.addr()
    ));
    assert_eq!(gateway.get("/limited/a").status, 200);
    let same = ["/limited/%61", "/l%69mited/a", "/limited/./a", "/x/../limited/a", "//limited//a", "/limited/b/../a"];
    for target in same.into_iter().chain(["/limited/a?x", "/limited/%2E/a"]) {
        assert!(matches!(gateway.get(target).status, 503 | 400 | 404), "{target}");
    }
    // Upper case is another path, which has no route.
    assert_eq!([gateway.get("/Limited/a").status, gateway.get("/LIMITED/A").status], [404, 404]);
    assert_eq!(origin.targets(), ["/limited/a"]);
}

#[test]
fn a_rate_refuses_what_is_too_early() {
    let rig =
        Rig::with("{ limit-req: { rate: 0.001, burst: 1, key: remote_addr, nodelay: true, rejected_code: 429 } }");
    assert_eq!([(); 3].map(|()| rig.gateway.get("/").status), [200, 200, 429]);
}

#[test]
fn a_connection_limit_is_given_back_however_a_request_ends() {
    let gate = Gate::new();
    let own = gate.clone();
    let origin = Origin::scripted(Reading::Strict, move |connection| {
        while let Ok(request) = connection.request() {
            if request.target == "/slow" {
                own.wait();
            }
            if connection.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
                return;
            }
        }
    });
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes: [{{ uri: /*, upstream: {{ nodes: {{ \"{}\": 1 }}, type: roundrobin }}, plugins: {{ limit-conn: \
         {{ conn: 1, burst: 0, default_conn_delay: 0.1, key: remote_addr }} }} }}]",
        origin.addr()
    ));
    let mut slow = gateway.client();
    slow.send("GET /slow HTTP/1.1\r\nHost: t\r\n\r\n");
    origin.wait_requests(1);
    assert_eq!([gateway.get("/").status, gateway.get("/").status], [503, 503]);
    gate.open_once();
    assert_eq!(slow.response().expect("an answer").status, 200);
    eventually("its place is free", DEADLINE, || gateway.get("/").status == 200);
    // A client that goes away gives its place back, too.
    let mut gone = gateway.client();
    let before = origin.requests().len();
    gone.send("GET /slow HTTP/1.1\r\nHost: t\r\n\r\n");
    origin.wait_requests(before + 1);
    assert_eq!(gateway.get("/").status, 503);
    gone.reset();
    eventually("its place is free", DEADLINE, || gateway.get("/").status == 200);
    gate.open();
}

#[test]
fn a_breaker_spares_an_upstream_that_fails() {
    let rig = Rig::with(
        "{ api-breaker: { break_response_code: 502, break_response_body: spared, max_breaker_sec: 86400, unhealthy: \
         { http_statuses: [503], failures: 3 } } }",
    );
    let ask = || rig.gateway.get("/status/503");
    assert_eq!([(); 3].map(|()| ask().status), [503; 3]);
    // The first pause is two seconds; a slow machine may see its end.
    let answers: Vec<_> = (0..5).map(|_| ask().text()).collect();
    assert!(answers.iter().any(|text| text == "spared"), "{answers:?}");
    assert_eq!(rig.gateway.get("/other").status, 200);
}

#[test]
fn limits_and_their_answers_pass_other_plugins() {
    let rig = Rig::with("{ limit-count: { count: 1, time_window: 3600 }, cors: {}, request-id: {} }");
    rig.gateway.get("/");
    let refused = rig.gateway.get("/");
    assert_eq!(refused.status, 503);
    assert_eq!(refused.headers.get("access-control-allow-origin"), Some("*"));
    assert!(refused.headers.has("x-request-id"));
}
