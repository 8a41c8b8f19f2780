//! `proxy-cache`: responses that answer more than one request (RFC 9111). The tests need no clock: a response that is to be
//! too old says so by its `Age`.

use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use weir_testkit::{Answer, Client, DEADLINE, Gate, Gateway, Origin, Reading, Response, TempDir, eventually};

/// An origin that numbers its answers, and sends these fields with them.
fn origin(lines: &'static str) -> Origin {
    let count = AtomicUsize::new(0);
    Origin::serving(move |_| Answer::with(200, lines, format!("answer {}", count.fetch_add(1, Ordering::Relaxed) + 1)))
}

/// An origin whose next answer is told by the test.
fn told(first: Answer) -> (Origin, Arc<Mutex<Answer>>) {
    let next = Arc::new(Mutex::new(first));
    let shared = Arc::clone(&next);
    (Origin::serving(move |_| shared.lock().expect("no test panics with it").clone()), next)
}

fn gateway(origin: &Origin, plugins: &str) -> Gateway {
    workers(1, origin, plugins)
}

fn workers(count: usize, origin: &Origin, plugins: &str) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&document(count, origin, plugins))
}

fn document(workers: usize, origin: &Origin, plugins: &str) -> String {
    format!(
        "worker_processes: {workers}
plugin_metadata: [{{ id: proxy-cache, zones: {{ small: 1048576 }} }}]
consumers:
  - {{ username: jack, plugins: {{ key-auth: {{ key: jacks }} }} }}
  - {{ username: jill, plugins: {{ key-auth: {{ key: jills }} }} }}
routes:
  - id: all
    uri: /*
    plugins: {plugins}
    upstream: {{ nodes: {{ \"{}\": 1 }} }}
",
        origin.addr()
    )
}

fn ask(client: &mut Client, request: &str) -> Response {
    client.ask(request.replace('\n', "\r\n") + "\r\n\r\n").expect("an answer")
}

fn get(gateway: &Gateway, fields: &str) -> Response {
    ask(&mut gateway.client(), &format!("GET /a HTTP/1.1\nHost: t{fields}"))
}

fn status(response: &Response) -> &str {
    response.headers.get("apisix-cache-status").unwrap_or("none")
}

/// The statuses of the cache for requests one after the other, with the answers' bodies.
fn in_turn(gateway: &Gateway, fields: &[&str]) -> Vec<(String, String)> {
    let answer = |fields: &&str| {
        let response = get(gateway, fields);
        (status(&response).to_owned(), response.text())
    };
    fields.iter().map(answer).collect()
}

fn pairs(want: &[(&str, &str)]) -> Vec<(String, String)> {
    want.iter().map(|(status, body)| ((*status).to_owned(), (*body).to_owned())).collect()
}

/// The upstream of a response that came from there, and none for one from the cache, whose status is that of the cache.
#[test]
fn a_log_shows_the_upstream_of_a_miss() {
    let place = TempDir::new();
    let log = place.path().join("access.log");
    let (origin, next) = told(Answer::with(200, "Cache-Control: max-age=60\r\n", "kept"));
    let settings = format!(
        "enable_access_log: {{ path: {}, format: \"$uri $sent_http_apisix_cache_status $upstream_addr $upstream_status $upstream_response_length\" }}\n",
        log.display()
    );
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir"))
        .start(&(settings + &document(1, &origin, "{ proxy-cache: { cache_zone: small } }")));
    let addr = origin.addr();
    get(&gateway, "");
    get(&gateway, "");
    *next.lock().expect("no test panics with it") = Answer::with(404, "Cache-Control: no-store\r\n", "none");
    ask(&mut gateway.client(), "POST /b HTTP/1.1\nHost: t\nContent-Length: 0");
    ask(&mut gateway.client(), "GET /c HTTP/1.1\nHost: t");
    let expected = [
        format!("/a MISS {addr} 200 4"),
        "/a HIT - 200 -".to_owned(),
        format!("/b BYPASS {addr} 404 4"),
        format!("/c MISS {addr} 404 4"),
    ];
    eventually("it is logged", DEADLINE, || {
        std::fs::read_to_string(&log).is_ok_and(|text| text.lines().count() == expected.len())
    });
    let text = std::fs::read_to_string(&log).expect("it is there");
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_kept_response_answers_later_requests() {
    for count in [1, 2] {
        let origin = origin("ETag: \"a\"\r\nX-Own: 1\r\nCache-Control: max-age=60\r\nAge: 5\r\n");
        let gateway = workers(count, &origin, "{ proxy-cache: {} }");
        let first = get(&gateway, "");
        assert_eq!((status(&first), first.text().as_str()), ("MISS", "answer 1"));
        assert_eq!(first.headers.get("cache-status"), Some("Weir; fwd=miss"));
        // A client can have all of a response a moment before it is kept, and another worker serves the next.
        let kept = || gateway.metrics().get("weir_cache_stored_responses{zone=\"memory_cache\"}");
        eventually("it is kept", DEADLINE, || kept() == Some(1.0));
        for _ in 0..10 {
            let response = get(&gateway, "\nAccept: text/plain");
            assert_eq!((response.status, status(&response), response.text().as_str()), (200, "HIT", "answer 1"));
            assert_eq!((response.headers.get("x-own"), response.headers.get("etag")), (Some("1"), Some("\"a\"")));
            let age: u64 = response.headers.get("age").and_then(|age| age.parse().ok()).expect("an age");
            assert!((5..60).contains(&age), "{age}");
            assert!(response.headers.has("date") && response.headers.get("content-length") == Some("8"));
            assert!(response.headers.get("cache-status").is_some_and(|text| text.starts_with("Weir; hit; ttl=")));
        }
        let head = ask(&mut gateway.client(), "HEAD /a HTTP/1.1\nHost: t");
        assert_eq!((head.status, status(&head), head.headers.get("content-length")), (200, "HIT", Some("8")));
        assert_eq!(origin.targets(), ["/a"], "{count} workers");
        assert_eq!(gateway.metrics().get("weir_cache_responses_total{status=\"hit\"}"), Some(11.0));
        assert_eq!(kept(), Some(1.0));
    }
}

#[test]
fn other_hosts_targets_and_accepted_codings_are_other_responses() {
    let origin = origin("Vary: Accept-Encoding\r\n");
    let gateway = gateway(&origin, "{ proxy-cache: {} }");
    let mut client = gateway.client();
    let requests = [
        "GET /a HTTP/1.1\nHost: t",
        "GET /a?b HTTP/1.1\nHost: t",
        "GET /a HTTP/1.1\nHost: u",
        "GET /a HTTP/1.1\nHost: t\nAccept-Encoding: br, gzip",
    ];
    for (number, request) in requests.iter().enumerate() {
        assert_eq!(ask(&mut client, request).text(), format!("answer {}", number + 1));
    }
    for (number, request) in requests.iter().enumerate() {
        assert_eq!(ask(&mut client, request).text(), format!("answer {}", number + 1));
    }
    assert_eq!(ask(&mut client, "GET /a HTTP/1.1\nHost: t\nAccept-Encoding: br,gzip").text(), "answer 4");
}

#[test]
fn private_responses_are_not_kept() {
    for (lines, fields) in [
        ("Cache-Control: private\r\n", ""),
        ("Cache-Control: no-store\r\n", ""),
        ("Set-Cookie: a=b\r\n", ""),
        ("Vary: *\r\n", ""),
        ("Cache-Control: max-age=60\r\n", "\nAuthorization: Basic YTpi"),
        ("Content-Type: text/event-stream\r\n", ""),
    ] {
        let origin = origin(lines);
        let gateway = gateway(&origin, "{ proxy-cache: {} }");
        let got = in_turn(&gateway, &[fields, fields]);
        assert_eq!(got, pairs(&[("MISS", "answer 1"), ("MISS", "answer 2")]), "{lines}");
    }
    let public = origin("Cache-Control: s-maxage=60\r\n");
    let gateway = gateway(&public, "{ proxy-cache: {} }");
    let fields = "\nAuthorization: Basic YTpi";
    assert_eq!(in_turn(&gateway, &[fields, fields]), pairs(&[("MISS", "answer 1"), ("HIT", "answer 1")]));
}

#[test]
fn statuses_and_methods_are_chosen_by_the_options() {
    let count = AtomicUsize::new(0);
    let numbered = Origin::serving(move |request| {
        let status = request.target.trim_start_matches('/').parse().unwrap_or(200);
        Answer::status(status, count.fetch_add(1, Ordering::Relaxed).to_string())
    });
    let gateway = gateway(&numbered, "{ proxy-cache: { cache_http_status: [404], cache_method: [GET] } }");
    let mut client = gateway.client();
    for (target, is_kept) in [("/404", true), ("/200", false), ("/500", false)] {
        let bodies = [client.get(target).expect("an answer").text(), client.get(target).expect("an answer").text()];
        assert_eq!(bodies[0] == bodies[1], is_kept, "{target}");
    }
    assert_eq!(status(&ask(&mut client, "HEAD /404 HTTP/1.1\nHost: t")), "BYPASS", "only GET is chosen");
}

#[test]
fn the_upstream_is_asked_whether_an_old_response_is_still_valid() {
    let old = "ETag: \"a\"\r\nX-Time: 1\r\nCache-Control: max-age=10\r\nAge: 20\r\n";
    let (origin, next) = told(Answer::with(200, old, "first"));
    let gateway = gateway(&origin, "{ proxy-cache: {} }");
    let say = |answer: Answer| *next.lock().expect("no test panics with it") = answer;
    assert_eq!(in_turn(&gateway, &[""]), pairs(&[("MISS", "first")]));
    say(Answer::raw("HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nX-Time: 2\r\nCache-Control: max-age=9999\r\n\r\n"));
    let confirmed = get(&gateway, "\nIf-None-Match: \"other\"");
    assert_eq!((confirmed.status, status(&confirmed), confirmed.text().as_str()), (200, "REVALIDATED", "first"));
    assert_eq!(confirmed.headers.get("x-time"), Some("2"), "the fields of the 304 are newer");
    let asked = origin.requests();
    assert_eq!(asked[1].headers.get("if-none-match"), Some("\"a\""), "the cache asks for itself");
    let hit = get(&gateway, "");
    assert_eq!((status(&hit), hit.headers.get("x-time"), origin.requests().len()), ("HIT", Some("2"), 2));
    assert_eq!(get(&gateway, "\nIf-None-Match: W/\"a\"").status, 304);
}

#[test]
fn an_old_response_is_replaced() {
    let origin = origin("ETag: \"a\"\r\nCache-Control: max-age=10\r\nAge: 20\r\n");
    let gateway = gateway(&origin, "{ proxy-cache: {} }");
    let got = in_turn(&gateway, &["", "", ""]);
    assert_eq!(got, pairs(&[("MISS", "answer 1"), ("EXPIRED", "answer 2"), ("EXPIRED", "answer 3")]));
    assert_eq!(gateway.metrics().get("weir_cache_stored_responses{zone=\"memory_cache\"}"), Some(1.0));
}

#[test]
fn an_old_response_stands_in_for_a_failing_upstream() {
    let (origin, next) = told(Answer::with(200, "Cache-Control: max-age=10\r\nAge: 20\r\n", "old"));
    let gateway = gateway(&origin, "{ proxy-cache: { stale_if_error: 3600 } }");
    assert_eq!(in_turn(&gateway, &[""]), pairs(&[("MISS", "old")]));
    for failure in [Answer::status(503, "down"), Answer::raw("HTTP/1.1 broken"), Answer::raw("").then_close()] {
        *next.lock().expect("no test panics with it") = failure;
        let response = get(&gateway, "");
        assert_eq!((response.status, status(&response), response.text().as_str()), (200, "STALE", "old"));
    }
    *next.lock().expect("no test panics with it") = Answer::status(404, "gone");
    let response = get(&gateway, "");
    assert_eq!((response.status, status(&response)), (404, "EXPIRED"), "an answer is no failure");
}

#[test]
fn an_old_response_is_sent_while_a_newer_one_is_requested() {
    let (gate, count) = (Gate::new(), AtomicUsize::new(0));
    let waiting = gate.clone();
    let origin = Origin::serving(move |_| match count.fetch_add(1, Ordering::Relaxed) {
        0 => Answer::with(200, "Cache-Control: max-age=10, stale-while-revalidate=9999\r\nAge: 20\r\n", "old"),
        _ => {
            waiting.wait();
            Answer::with(200, "Cache-Control: max-age=9999\r\n", "new")
        }
    });
    let gateway = gateway(&origin, "{ proxy-cache: {} }");
    let got = in_turn(&gateway, &["", "", "", ""]);
    assert_eq!(got, pairs(&[("MISS", "old"), ("UPDATING", "old"), ("UPDATING", "old"), ("UPDATING", "old")]));
    gate.wait_arrived(1);
    assert_eq!(origin.requests().len(), 2, "one request brings the newer one");
    gate.open();
    eventually("the newer one is kept", DEADLINE, || in_turn(&gateway, &[""]) == pairs(&[("HIT", "new")]));
}

#[test]
fn the_upstream_is_asked_once_for_many_clients() {
    for count in [1, 2] {
        let gate = Gate::new();
        let waiting = gate.clone();
        let origin = Origin::serving(move |_| {
            waiting.wait();
            Answer::ok("shared")
        });
        let gateway = workers(count, &origin, "{ proxy-cache: { cache_lock_timeout: 3600 } }");
        let mut clients: Vec<Client> = (0..20).map(|_| Client::connect(gateway.addr())).collect();
        clients.iter_mut().for_each(|client| client.send("GET /a HTTP/1.1\r\nHost: t\r\n\r\n"));
        gate.wait_arrived(1);
        eventually("all requests are there", DEADLINE, || {
            gateway.metrics().get("weir_http_requests_total").is_some_and(|requests| requests >= 20.0)
        });
        gate.open();
        for client in &mut clients {
            let response = client.response().expect("an answer");
            assert_eq!((response.status, response.text().as_str()), (200, "shared"));
        }
        assert_eq!(origin.requests().len(), 1, "{count} workers");
    }
}

/// An origin that sends a head, then waits at the gate before each further part.
fn in_parts(head: &'static str, parts: &'static [&'static str]) -> (Origin, Gate) {
    let gate = Gate::new();
    let waiting = gate.clone();
    let origin = Origin::scripted(Reading::Strict, move |connection| {
        while connection.request().is_ok() {
            if connection.send(head).is_err() {
                return;
            }
            for part in parts {
                waiting.wait();
                if connection.send(part).is_err() {
                    return;
                }
            }
        }
    });
    (origin, gate)
}

#[test]
fn clients_get_a_response_while_it_arrives() {
    let (origin, gate) = in_parts("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n", &["one", "two"]);
    let gateway = workers(2, &origin, "{ proxy-cache: { cache_lock_timeout: 3600 } }");
    let begin = || {
        let mut client = Client::connect(gateway.addr());
        client.send("GET /a HTTP/1.1\r\nHost: t\r\n\r\n");
        assert_eq!(client.response_head("GET").expect("a head").headers.get("content-length"), Some("6"));
        client
    };
    let mut clients: Vec<Client> = (0..4).map(|_| begin()).collect();
    gate.open_once();
    clients.iter_mut().for_each(|client| assert_eq!(client.exact(3).expect("the first part"), b"one"));
    let mut late = begin();
    assert_eq!(late.exact(3).expect("the first part"), b"one", "what has arrived is there for later ones");
    gate.open_once();
    clients.push(late);
    clients.iter_mut().for_each(|client| assert_eq!(client.exact(3).expect("the second part"), b"two"));
    assert_eq!(origin.requests().len(), 1);
}

#[test]
fn a_client_that_leaves_does_not_end_what_others_wait_for() {
    let (origin, gate) = in_parts("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n", &["one", "two"]);
    let gateway = gateway(&origin, "{ proxy-cache: { cache_lock_timeout: 3600 } }");
    let mut first = Client::connect(gateway.addr());
    first.send("GET /a HTTP/1.1\r\nHost: t\r\n\r\n");
    first.response_head("GET").expect("a head");
    first.reset();
    gate.open();
    eventually("it is kept", DEADLINE, || in_turn(&gateway, &[""]) == pairs(&[("HIT", "onetwo")]));
    assert_eq!(origin.requests().len(), 1);
}

#[test]
fn a_response_that_has_begun_is_kept_though_all_its_clients_have_left() {
    for head in ["Content-Length: 6\r\n\r\n", "Connection: close\r\n\r\n"] {
        let (gate, requests) = (Gate::new(), Arc::<Mutex<usize>>::default());
        let (waiting, count) = (gate.clone(), Arc::clone(&requests));
        let origin = Origin::scripted(Reading::Strict, move |connection| {
            if connection.request().is_ok() {
                *count.lock().expect("no test panics with it") += 1;
                let _ = connection.send(format!("HTTP/1.1 200 OK\r\n{head}one"));
                waiting.wait();
                let _ = connection.send("two");
            }
        });
        for workers_count in [1, 2] {
            let gateway = workers(workers_count, &origin, "{ proxy-cache: { cache_lock_timeout: 3600 } }");
            let before = *requests.lock().expect("no test panics with it");
            // Each of them leaves before the response is whole, and those after the first find the one that is on its way.
            for number in 0..5 {
                let mut client = Client::connect(gateway.addr());
                client.send("GET /a HTTP/1.1\r\nHost: t\r\n\r\n");
                // Without a length, those who wait for another's response get nothing before it is whole.
                if number == 0 || head.starts_with("Content-Length") {
                    client.response_head("GET").expect("a head");
                }
                origin.wait_requests(before + 1);
                client.reset();
            }
            eventually("all have left", DEADLINE, || gateway.metrics().sum("weir_client_connections", &[]) == 0.0);
            gate.open_once();
            eventually("it is kept", DEADLINE, || in_turn(&gateway, &[""]) == pairs(&[("HIT", "onetwo")]));
            assert_eq!(*requests.lock().expect("no test panics with it"), before + 1, "{head}");
        }
    }
}

/// Few requests go on for a client that begins many and leaves.
#[test]
fn few_responses_go_on_for_a_client_that_has_left() {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        if connection.request().is_ok() && connection.send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\none").is_ok() {
            connection.wait_gone();
        }
    });
    let gateway = gateway(&origin, "{ proxy-cache: {} }");
    for (last, number) in (0..20).map(|number| (1, number)).chain([(2, 20)]) {
        let mut client = Client::connect_from([127, 0, 0, last].into(), gateway.addr()).expect("a connection");
        client.send(format!("GET /{number} HTTP/1.1\r\nHost: t\r\n\r\n"));
        client.response_head("GET").expect("a head");
        client.reset();
    }
    eventually("four go on for the one, and one for the other", DEADLINE, || origin.open_connections() == 5);
}

#[test]
fn requests_that_nobody_waits_for_any_more_are_ended() {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        if connection.request().is_ok() {
            connection.wait_gone();
        }
    });
    let gateway = gateway(&origin, "{ proxy-cache: {} }");
    for number in 0..20 {
        let mut client = Client::connect(gateway.addr());
        client.send(format!("GET /{number} HTTP/1.1\r\nHost: t\r\n\r\n"));
        origin.wait_requests(number + 1);
        client.reset();
    }
    eventually("the upstream is not asked any more", DEADLINE, || origin.open_connections() == 0);
}

#[test]
fn a_stream_that_nobody_reads_any_more_is_ended() {
    let (gate, gone) = (Gate::new(), Gate::new());
    let (waiting, missed) = (gate.clone(), gone.clone());
    let origin = Origin::scripted(Reading::Strict, move |connection| {
        if connection.request().is_err()
            || connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").is_err()
        {
            return;
        }
        waiting.wait();
        while connection.send("5\r\nhello\r\n").is_ok() {}
        missed.open();
    });
    let gateway = gateway(&origin, "{ proxy-cache: {} }");
    let mut client = Client::connect(gateway.addr());
    client.send("GET /a HTTP/1.1\r\nHost: t\r\n\r\n");
    client.response_head("GET").expect("a head");
    client.reset();
    eventually("the client has gone", DEADLINE, || gateway.metrics().sum("weir_client_connections", &[]) == 0.0);
    gate.open();
    gone.wait();
    eventually("nothing is kept of it", DEADLINE, || {
        gateway.metrics().get("weir_cache_bytes{zone=\"memory_cache\"}") == Some(0.0)
    });
}

#[test]
fn response_that_became_private_is_not_used_any_more() {
    let old = "Cache-Control: max-age=10, stale-while-revalidate=9999\r\nAge: 20\r\n";
    let (origin, next) = told(Answer::with(200, old, "old"));
    let gateway = gateway(&origin, "{ proxy-cache: {} }");
    assert_eq!(in_turn(&gateway, &[""]), pairs(&[("MISS", "old")]));
    *next.lock().expect("no test panics with it") = Answer::with(200, "Cache-Control: private\r\n", "own");
    eventually("the old one is gone", DEADLINE, || in_turn(&gateway, &[""]) == pairs(&[("MISS", "own")]));
}

#[test]
fn a_response_that_is_cut_is_not_kept() {
    let cut = Arc::new(AtomicU16::new(1));
    let wanted = Arc::clone(&cut);
    let origin = Origin::serving(move |_| match wanted.load(Ordering::Relaxed) {
        1 => Answer::raw("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf").then_close(),
        2 => Answer::raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n").then_close(),
        _ => Answer::ok("whole"),
    });
    let gateway = gateway(&origin, "{ proxy-cache: {} }");
    for kind in [1, 2] {
        cut.store(kind, Ordering::Relaxed);
        let outcome = gateway.client().get("/a");
        assert!(
            outcome.as_ref().map_or(true, |answer| answer.status == 502),
            "the client sees that it is cut: {outcome:?}"
        );
    }
    cut.store(0, Ordering::Relaxed);
    assert_eq!(in_turn(&gateway, &["", ""]), pairs(&[("MISS", "whole"), ("HIT", "whole")]));
}

#[test]
fn responses_that_cannot_be_kept_do_not_make_clients_wait_for_each_other() {
    let gate = Gate::new();
    let waiting = gate.clone();
    let origin = Origin::serving(move |request| {
        if request.target == "/a" && request.headers.has("x-slow") {
            waiting.wait();
        }
        Answer::with(200, "Cache-Control: no-store\r\n", "own")
    });
    let gateway = gateway(&origin, "{ proxy-cache: { cache_lock_timeout: 3600 } }");
    assert_eq!(in_turn(&gateway, &[""]), pairs(&[("MISS", "own")]));
    let mut clients: Vec<Client> = (0..5).map(|_| Client::connect(gateway.addr())).collect();
    clients.iter_mut().for_each(|client| client.send("GET /a HTTP/1.1\r\nHost: t\r\nX-Slow: 1\r\n\r\n"));
    gate.wait_arrived(5);
    gate.open();
    clients.iter_mut().for_each(|client| assert_eq!(client.response().expect("an answer").text(), "own"));
}

#[test]
fn parts_and_preconditions_are_answered_from_the_cache() {
    let origin = origin("ETag: \"a\"\r\nLast-Modified: Tue, 15 Nov 1994 12:00:00 GMT\r\n");
    let gateway = gateway(&origin, "{ proxy-cache: {} }");
    assert_eq!(get(&gateway, "").text(), "answer 1");
    let part = get(&gateway, "\nRange: bytes=2-5");
    assert_eq!((part.status, status(&part), part.text().as_str()), (206, "HIT", "swer"));
    assert_eq!(part.headers.get("content-range"), Some("bytes 2-5/8"));
    let none = get(&gateway, "\nRange: bytes=8-");
    assert_eq!((none.status, none.headers.get("content-range"), none.text().as_str()), (416, Some("bytes */8"), ""));
    let known = get(&gateway, "\nIf-Modified-Since: Tue, 15 Nov 1994 12:00:00 GMT");
    assert_eq!((known.status, known.headers.get("etag")), (304, Some("\"a\"")));
    assert_eq!(origin.requests().len(), 1);
}

#[test]
fn a_precondition_does_not_keep_a_response_out() {
    let origin = origin("ETag: \"a\"\r\n");
    let gateway = gateway(&origin, "{ proxy-cache: {} }");
    let known = get(&gateway, "\nIf-None-Match: \"a\"");
    assert_eq!((known.status, status(&known)), (304, "MISS"));
    assert!(!origin.requests()[0].headers.has("if-none-match"), "the whole response was requested");
    assert_eq!(in_turn(&gateway, &[""]), pairs(&[("HIT", "answer 1")]));
}

#[test]
fn a_part_of_what_is_not_kept_comes_from_the_upstream() {
    let origin = Origin::serving(|request| match request.headers.get("range") {
        Some(_) => Answer::with(206, "Content-Range: bytes 1-1/3\r\n", "b"),
        None => Answer::ok("abc"),
    });
    let gateway = gateway(&origin, "{ proxy-cache: {} }");
    let part = get(&gateway, "\nRange: bytes=1-1");
    assert_eq!((part.status, status(&part), part.text().as_str()), (206, "MISS", "b"));
    assert_eq!(in_turn(&gateway, &["", ""]), pairs(&[("MISS", "abc"), ("HIT", "abc")]));
}

#[test]
fn only_a_whole_response_replaces_an_old_one_in_the_background() {
    let old = "Cache-Control: max-age=10, stale-while-revalidate=9999\r\nAge: 20\r\n";
    let count = AtomicUsize::new(0);
    let origin = Origin::serving(move |request| match count.fetch_add(1, Ordering::Relaxed) {
        0 => Answer::with(200, old, "old"),
        _ if request.headers.has("range") => Answer::with(206, "Content-Range: bytes 0-0/3\r\n", "n"),
        _ => Answer::with(200, "Cache-Control: max-age=9999\r\n", "new"),
    });
    let gateway = gateway(&origin, "{ proxy-cache: {} }");
    assert_eq!(in_turn(&gateway, &[""]), pairs(&[("MISS", "old")]));
    let head = ask(&mut gateway.client(), "HEAD /a HTTP/1.1\nHost: t");
    assert_eq!((head.status, status(&head), head.headers.get("content-length")), (200, "STALE", Some("3")));
    assert_eq!(origin.requests().len(), 1, "the response to HEAD would have no content");
    let part = get(&gateway, "\nRange: bytes=0-0");
    assert_eq!((part.status, status(&part), part.text().as_str()), (206, "UPDATING", "o"));
    eventually("the newer one is kept", DEADLINE, || in_turn(&gateway, &[""]) == pairs(&[("HIT", "new")]));
    assert_eq!(origin.requests().len(), 2);
}

#[test]
fn p16_a_cookie_of_a_confirmation_is_for_one_client() {
    let (gate, count) = (Gate::new(), AtomicUsize::new(0));
    let waiting = gate.clone();
    let old = "ETag: \"a\"\r\nCache-Control: max-age=10\r\nAge: 20\r\n";
    let origin = Origin::serving(move |request| match count.fetch_add(1, Ordering::Relaxed) {
        0 => Answer::with(200, old, "old"),
        number => {
            waiting.wait();
            assert_eq!(request.headers.get("if-none-match"), Some("\"a\""));
            Answer::raw(format!("HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nSet-Cookie: session={number}\r\n\r\n"))
        }
    });
    let gateway = gateway(&origin, "{ proxy-cache: { cache_lock_timeout: 3600 } }");
    assert_eq!(in_turn(&gateway, &[""]), pairs(&[("MISS", "old")]));
    let mut clients: Vec<Client> = (0..5).map(|_| Client::connect(gateway.addr())).collect();
    clients.iter_mut().for_each(|client| client.send("GET /a HTTP/1.1\r\nHost: t\r\n\r\n"));
    eventually("all requests are there", DEADLINE, || {
        gateway.metrics().get("weir_http_requests_total").is_some_and(|requests| requests >= 6.0)
    });
    gate.open();
    let mut cookies: Vec<String> = clients
        .iter_mut()
        .map(|client| {
            let response = client.response().expect("an answer");
            assert_eq!((response.status, response.text().as_str()), (200, "old"));
            response.headers.get("set-cookie").expect("a cookie").to_owned()
        })
        .collect();
    cookies.sort_unstable();
    cookies.dedup();
    assert_eq!(cookies.len(), 5, "each client has its own");
}

#[test]
fn response_requested_before_a_change_is_not_kept() {
    for method in ["PURGE", "POST"] {
        let (gate, count) = (Gate::new(), AtomicUsize::new(0));
        let waiting = gate.clone();
        let origin = Origin::serving(move |request| {
            if request.method == "POST" {
                return Answer::ok("changed");
            }
            let number = count.fetch_add(1, Ordering::Relaxed);
            if number == 0 {
                waiting.wait();
            }
            Answer::ok(["before", "after"][number])
        });
        let gateway = gateway(&origin, "{ proxy-cache: { cache_lock_timeout: 3600 } }");
        let mut first = Client::connect(gateway.addr());
        first.send("GET /a HTTP/1.1\r\nHost: t\r\n\r\n");
        gate.wait_arrived(1);
        ask(&mut gateway.client(), &format!("{method} /a HTTP/1.1\nHost: t\nContent-Length: 0"));
        assert_eq!(in_turn(&gateway, &[""]), pairs(&[("MISS", "after")]), "{method}: it does not wait for the other");
        gate.open();
        assert_eq!(first.response().expect("an answer").text(), "before");
        assert_eq!(in_turn(&gateway, &[""]), pairs(&[("HIT", "after")]), "{method}");
    }
}

#[test]
fn a_request_that_the_upstream_cannot_stand_fails_alone() {
    let gate = Gate::new();
    let waiting = gate.clone();
    let origin = Origin::serving(move |request| {
        if request.headers.has("x-poison") {
            waiting.wait();
            return Answer::raw("HTTP/1.1 broken");
        }
        Answer::ok("good")
    });
    let gateway = gateway(&origin, "{ proxy-cache: { cache_lock_timeout: 3600 } }");
    let (mut bad, mut good) = (Client::connect(gateway.addr()), Client::connect(gateway.addr()));
    bad.send("GET /a HTTP/1.1\r\nHost: t\r\nX-Poison: 1\r\n\r\n");
    gate.wait_arrived(1);
    good.send("GET /a HTTP/1.1\r\nHost: t\r\n\r\n");
    eventually("both requests are there", DEADLINE, || {
        gateway.metrics().get("weir_http_requests_total").is_some_and(|requests| requests >= 2.0)
    });
    gate.open();
    assert_eq!(bad.response().expect("an answer").status, 502);
    let response = good.response().expect("an answer");
    assert_eq!((response.status, response.text().as_str()), (200, "good"));
}

#[test]
fn a_failure_leaves_what_is_kept_for_others() {
    let (origin, next) = told(Answer::with(200, "Vary: X-Kind\r\nCache-Control: max-age=60\r\n", "kept"));
    let gateway = gateway(&origin, "{ proxy-cache: {} }");
    let say = |answer: Answer| *next.lock().expect("no test panics with it") = answer;
    assert_eq!(in_turn(&gateway, &["\nX-Kind: 1"]), pairs(&[("MISS", "kept")]));
    say(Answer::with(200, "ETag: \"a\"\r\nVary: X-Kind\r\nCache-Control: max-age=0\r\n", "old"));
    assert_eq!(in_turn(&gateway, &["\nX-Kind: 2"]), pairs(&[("MISS", "old")]));
    for answer in [Answer::status(503, "down"), Answer::with(200, "Cache-Control: private\r\n", "own")] {
        say(answer);
        assert_eq!(status(&get(&gateway, "\nX-Kind: 2")), "EXPIRED");
        assert_eq!(in_turn(&gateway, &["\nX-Kind: 1"]), pairs(&[("HIT", "kept")]));
    }
    assert_eq!(status(&get(&gateway, "\nX-Kind: 2")), "MISS", "the old one is gone");
}

#[test]
fn a_response_of_unknown_length_is_kept_though_the_client_has_it() {
    let origin = Origin::serving(|_| {
        Answer::raw("HTTP/1.1 200 OK\r\nETag: \"a\"\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
    });
    let gateway = gateway(&origin, "{ proxy-cache: {} }");
    assert_eq!(get(&gateway, "\nIf-None-Match: \"a\"").status, 304);
    eventually("it is kept", DEADLINE, || {
        gateway.metrics().get("weir_cache_stored_responses{zone=\"memory_cache\"}") == Some(1.0)
    });
    assert_eq!(in_turn(&gateway, &[""]), pairs(&[("HIT", "abc")]));
    assert_eq!(origin.requests().len(), 1);
}

/// RFC 9111 §4.1: a response is not for requests that differ in what its `Vary` names.
#[test]
fn requests_do_not_wait_for_a_response_that_is_not_for_them() {
    let (gate, held) = (Gate::new(), Gate::new());
    let origin = Origin::scripted(Reading::Strict, {
        let (gate, held) = (gate.clone(), held.clone());
        move |connection| {
            while let Ok(request) = connection.request() {
                let kind = request.headers.get("x-kind").unwrap_or_default().to_owned();
                let head = "HTTP/1.1 200 OK\r\nVary: X-Kind\r\nCache-Control: max-age=60\r\n";
                let _ = connection.send(format!("{head}Transfer-Encoding: chunked\r\n\r\n1\r\n{kind}\r\n"));
                if kind == "1" {
                    gate.wait()
                } else {
                    held.wait()
                }
                let _ = connection.send("0\r\n\r\n");
            }
        }
    });
    let gateway = gateway(&origin, "{ proxy-cache: { cache_lock_timeout: 3600 } }");
    let ask_for = |kind: u8| {
        let mut client = gateway.client();
        client.send(format!("GET /a HTTP/1.1\r\nHost: t\r\nX-Kind: {kind}\r\n\r\n"));
        client
    };
    let mut first = ask_for(1);
    gate.wait_arrived(1);
    let mut others: Vec<Client> = (0..8).map(|number| ask_for(2 + number % 2)).collect();
    held.wait_arrived(2);
    held.open();
    for (number, client) in others.iter_mut().enumerate() {
        assert_eq!(client.response().expect("an answer").text(), if number % 2 == 0 { "2" } else { "3" });
    }
    assert_eq!(origin.requests().len(), 3, "each variant was asked for once");
    gate.open();
    assert_eq!(first.response().expect("an answer").text(), "1");
    assert_eq!(in_turn(&gateway, &["\nX-Kind: 3", "\nX-Kind: 1"]), pairs(&[("HIT", "3"), ("HIT", "1")]));
}

#[test]
fn trailers_are_kept_with_their_response() {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        while let Ok(request) = connection.request() {
            let control = if request.target == "/kept" { "max-age=60" } else { "no-store" };
            let head = format!("HTTP/1.1 200 OK\r\nCache-Control: {control}\r\nTransfer-Encoding: chunked\r\n\r\n");
            let _ = connection.send(format!("{head}4\r\nbody\r\n0\r\nX-Sum: 1\r\n\r\n"));
        }
    });
    let gateway = gateway(&origin, "{ proxy-cache: {} }");
    // By HTTP/1.1: a client of HTTP/2 takes trailers without saying so.
    let mut client = Client::connect(gateway.addr());
    let mut sum = |target: &str, fields: &str| {
        let answer = ask(&mut client, &format!("GET {target} HTTP/1.1\nHost: t{fields}"));
        let trailer = answer.trailers.get("x-sum").unwrap_or("none").to_owned();
        (status(&answer).to_owned(), answer.text(), trailer)
    };
    let wants = "\nTE: trailers\nConnection: TE";
    let got = |outcome: &str, trailer: &str| (outcome.to_owned(), "body".to_owned(), trailer.to_owned());
    // The first one does not want them, which does not keep them from others.
    assert_eq!(sum("/kept", ""), got("MISS", "none"));
    assert_eq!(sum("/kept", wants), got("HIT", "1"));
    assert_eq!(sum("/kept", ""), got("HIT", "none"));
    for _ in 0..2 {
        assert_eq!(sum("/passed", wants), got("MISS", "1"));
    }
    assert_eq!(sum("/other", &format!("{wants}\nRange: bytes=0-1")), got("MISS", "1"), "it is forwarded");
    let part = ask(&mut gateway.client(), &format!("GET /kept HTTP/1.1\nHost: t{wants}\nRange: bytes=0-1"));
    assert_eq!((part.status, part.text(), part.trailers.has("x-sum")), (206, "bo".to_owned(), false));
}

#[test]
fn purge_and_changes_remove_what_is_kept() {
    let origin = origin("Vary: X-Kind\r\n");
    let gateway = gateway(&origin, "{ proxy-cache: {} }");
    let mut client = gateway.client();
    assert_eq!(ask(&mut client, "PURGE /a HTTP/1.1\nHost: t").status, 404);
    in_turn(&gateway, &["", "\nX-Kind: 1"]);
    assert_eq!(ask(&mut client, "PURGE /a HTTP/1.1\nHost: t").status, 200);
    let got = in_turn(&gateway, &["", "\nX-Kind: 1", ""]);
    assert_eq!(got, pairs(&[("MISS", "answer 3"), ("MISS", "answer 4"), ("HIT", "answer 3")]));
    for (number, method) in ["POST", "PUT", "DELETE", "PATCH"].iter().enumerate() {
        let changed = ask(&mut client, &format!("{method} /a HTTP/1.1\nHost: t\nContent-Length: 0"));
        assert_eq!((changed.status, status(&changed)), (200, "BYPASS"));
        let next = format!("answer {}", 6 + 2 * number);
        assert_eq!(in_turn(&gateway, &["", ""]), pairs(&[("MISS", &next), ("HIT", &next)]), "{method}");
    }
}

#[test]
fn others_may_not_purge() {
    let origin = origin("");
    let gateway = gateway(&origin, "{ proxy-cache: { purge_from: [192.0.2.0/24] } }");
    in_turn(&gateway, &[""]);
    assert_eq!(ask(&mut gateway.client(), "PURGE /a HTTP/1.1\nHost: t").status, 403);
    assert_eq!(in_turn(&gateway, &[""]), pairs(&[("HIT", "answer 1")]));
}

#[test]
fn consumers_do_not_share_responses() {
    for (options, other) in [("{}", "answer 2"), ("{ consumer_isolation: false }", "answer 1")] {
        let origin = origin("");
        let gateway = gateway(&origin, &format!("{{ key-auth: {{}}, proxy-cache: {options} }}"));
        let bodies: Vec<_> = ["\nApikey: jacks", "\nApikey: jills", "\nApikey: jacks"]
            .iter()
            .map(|fields| get(&gateway, fields).text())
            .collect();
        assert_eq!(bodies, ["answer 1", other, "answer 1"], "{options}");
        assert_eq!(get(&gateway, "").status, 401, "a kept response is no way past authentication");
    }
}

#[test]
fn other_plugins_run_for_each_request_and_change_no_kept_response() {
    let origin = origin("X-Own: 1\r\n");
    let gateway = gateway(
        &origin,
        "{ proxy-cache: {}, cors: { allow_origins: 'https://one.example,https://two.example' },
           limit-count: { count: 3, time_window: 600, rejected_code: 429 },
           response-rewrite: { headers: { set: { X-Asked: $http_x_name } } } }",
    );
    for name in ["one", "two"] {
        let response = get(&gateway, &format!("\nX-Name: {name}\nOrigin: https://{name}.example"));
        assert_eq!((response.text().as_str(), response.headers.get("x-asked")), ("answer 1", Some(name)));
        let origin = format!("https://{name}.example");
        assert_eq!(response.headers.get("access-control-allow-origin"), Some(&*origin));
    }
    let other = get(&gateway, "\nOrigin: https://three.example");
    assert_eq!((status(&other), other.headers.get("access-control-allow-origin")), ("HIT", None));
    assert_eq!(get(&gateway, "").status, 429, "kept responses count");
}

#[test]
fn responses_of_different_upstreams_are_kept_apart() {
    let (stable, canary) = (Origin::serving(|_| Answer::ok("stable")), Origin::serving(|_| Answer::ok("canary")));
    let split = format!(
        "{{ proxy-cache: {{}}, traffic-split: {{ rules: [{{ match: [{{ vars: [[http_x_canary, '==', '1']] }}],
           weighted_upstreams: [{{ upstream: {{ nodes: {{ \"{}\": 1 }} }}, weight: 1 }}] }}] }} }}",
        canary.addr()
    );
    let gateway = gateway(&stable, &split);
    let got = in_turn(&gateway, &["", "\nX-Canary: 1", "", "\nX-Canary: 1"]);
    let want = [("MISS", "stable"), ("MISS", "canary"), ("HIT", "stable"), ("HIT", "canary")];
    assert_eq!(got, pairs(&want));
}

#[test]
fn large_responses_pass_whole_and_are_not_kept() {
    let body: Arc<str> = (0..200_000_u32).map(|at| char::from(b'a' + (at % 23) as u8)).collect::<String>().into();
    let sent = Arc::clone(&body);
    let origin = Origin::serving(move |request| match request.target.as_str() {
        "/known" => Answer::ok(&*sent),
        _ => {
            let mut raw = String::from("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            for part in sent.as_bytes().chunks(7000) {
                raw += &format!("{:x}\r\n{}\r\n", part.len(), String::from_utf8_lossy(part));
            }
            Answer::raw(raw + "0\r\n\r\n")
        }
    });
    let gateway = gateway(&origin, "{ proxy-cache: { max_resp_body_size: 100000 } }");
    for target in ["/known", "/known", "/unknown", "/unknown"] {
        let response = gateway.get(target);
        assert_eq!(status(&response), "MISS", "{target}");
        assert!(response.text() == *body, "{target}: {} bytes", response.body.len());
    }
    assert_eq!(gateway.metrics().get("weir_cache_bytes{zone=\"memory_cache\"}"), Some(0.0));
    let whole = self::gateway(&origin, "{ proxy-cache: {} }");
    for (target, want) in [("/known", "MISS"), ("/known", "HIT"), ("/unknown", "MISS"), ("/unknown", "HIT")] {
        let response = whole.get(target);
        assert!(status(&response) == want && response.text() == *body, "{target} {want}");
    }
    let part = ask(&mut whole.client(), "GET /unknown HTTP/1.1\nHost: t\nRange: bytes=70000-140000");
    assert!(part.status == 206 && part.text() == body[70_000..=140_000]);
}

#[test]
fn a_zone_stays_within_its_memory() {
    let origin = Origin::serving(|_| Answer::ok([b'x'; 50_000]));
    let gateway = gateway(&origin, "{ proxy-cache: { cache_zone: small } }");
    let mut client = gateway.client();
    for number in 0..100 {
        assert_eq!(client.get(&format!("/{number}")).expect("an answer").body.len(), 50_000);
        let used = gateway.metrics().get("weir_cache_bytes{zone=\"small\"}").expect("the zone is listed");
        assert!(used <= 1_048_576.0, "{used}");
    }
    assert_eq!(status(&client.get("/99").expect("an answer")), "HIT");
    assert_eq!(status(&client.get("/0").expect("an answer")), "MISS");
    assert!(gateway.metrics().get("weir_cache_evictions_total").is_some_and(|count| count > 50.0));
}

#[test]
fn options_leave_the_cache_out() {
    let origin = origin("");
    let gateway =
        gateway(&origin, "{ proxy-cache: { cache_bypass: [$arg_new, $http_x_new], no_cache: [$http_x_secret] } }");
    let got = in_turn(&gateway, &["\nX-Secret: 1", "", "\nX-New: 0", "\nX-New: 1", ""]);
    let want =
        [("MISS", "answer 1"), ("MISS", "answer 2"), ("HIT", "answer 2"), ("BYPASS", "answer 3"), ("HIT", "answer 3")];
    assert_eq!(got, pairs(&want), "what a request brings that leaves out the cache is kept");
}

#[test]
fn clients_choose_only_where_they_may() {
    let origin = origin("Cache-Control: max-age=6000\r\nAge: 30\r\n");
    let plain = gateway(&origin, "{ proxy-cache: {} }");
    let got = in_turn(&plain, &["", "\nCache-Control: no-cache", "\nPragma: no-cache", "\nCache-Control: no-store"]);
    assert!(got[1..].iter().all(|answer| *answer == ("HIT".to_owned(), "answer 1".to_owned())), "{got:?}");
    let following = gateway(&origin, "{ proxy-cache: { cache_control: true } }");
    assert_eq!(get(&following, "\nCache-Control: only-if-cached").status, 504);
    let fields = ["", "\nCache-Control: max-age=10", "\nCache-Control: no-cache", "", "\nPragma: no-cache"];
    let want = [
        ("MISS", "answer 2"),
        ("EXPIRED", "answer 3"),
        ("EXPIRED", "answer 4"),
        ("HIT", "answer 4"),
        ("EXPIRED", "answer 5"),
    ];
    assert_eq!(in_turn(&following, &fields), pairs(&want));
}

#[test]
fn kept_responses_outlive_a_reload() {
    let origin = origin("Cache-Control: max-age=600\r\nExpires: 0\r\n");
    let gateway = gateway(&origin, "{ proxy-cache: {} }");
    in_turn(&gateway, &[""]);
    gateway.rewrite(&document(1, &origin, "{ proxy-cache: { hide_cache_headers: true } }"));
    let response = get(&gateway, "");
    assert_eq!((status(&response), response.text().as_str()), ("HIT", "answer 1"));
    assert!(!response.headers.has("cache-control") && !response.headers.has("expires"));
    gateway.rewrite(&document(1, &origin, "{}"));
    assert_eq!(in_turn(&gateway, &[""]), pairs(&[("none", "answer 2")]));
}

#[test]
fn the_upstream_is_told_whose_request_it_is() {
    let origin = origin("Connection: X-Hop\r\nX-Hop: 1\r\n");
    let gateway = gateway(&origin, "{ proxy-cache: {} }");
    let first = get(&gateway, "\nX-Forwarded-For: 203.0.113.9\nConnection: X-Mine\nX-Mine: 1");
    assert!(!first.headers.has("x-hop") && !get(&gateway, "").headers.has("x-hop"));
    let asked = &origin.requests()[0].headers;
    assert_eq!((asked.get("host"), asked.get("x-forwarded-for")), (Some("t"), Some("127.0.0.1")));
    assert_eq!((asked.get("x-forwarded-proto"), asked.get("x-mine")), (Some("http"), None));
}

/// An origin that says what it was told about the client, as upstreams do that write absolute links.
fn telling() -> Origin {
    Origin::serving(|request| {
        let told = ["host", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port", "x-user"];
        let told = told.map(|name| request.headers.get(name).unwrap_or("-"));
        Answer::ok(told.join(" "))
    })
}

#[test]
fn p16_what_one_client_says_does_not_reach_another() {
    let origin = telling();
    let plain = gateway(&origin, "{ proxy-cache: {} }");
    let port = plain.addr().port();
    let own = format!("t http t {port} -");
    assert_eq!(get(&plain, "\nX-Forwarded-Host: evil\nX-Forwarded-Proto: https").text(), own);
    assert_eq!(get(&plain, "").text(), own);
    let mut client = plain.client();
    assert_eq!(ask(&mut client, "GET /b HTTP/1.1\nHost: t:1234").text(), "t:1234 http t:1234 1234 -");
    assert_eq!(ask(&mut client, "GET /b HTTP/1.1\nHost: t").text(), own);
    let document = document(1, &origin, "{ proxy-cache: {} }");
    let trusting = Gateway::with_binary(env!("CARGO_BIN_EXE_weir"))
        .start(&format!("trusted_addresses: [127.0.0.0/8]\n{document}"));
    for scheme in ["http", "https", "http"] {
        let text = get(&trusting, &format!("\nX-Forwarded-Proto: {scheme}")).text();
        assert!(text.starts_with(&format!("t {scheme} ")), "{text}");
    }
    for (fields, want) in [
        ("X-Forwarded-Proto: https", "HIT"),
        ("X-Forwarded-Proto: https\nForwarded: for=192.0.2.1", "HIT"),
        ("X-Forwarded-Proto: https\nForwarded: for=192.0.2.1;host=evil", "MISS"),
        ("X-Forwarded-Proto: https\nX-Original-URL: /evil", "MISS"),
        ("X-Forwarded-Proto: https\nX-Rewrite-URL: /evil", "MISS"),
        ("X-Forwarded-Proto: https", "HIT"),
    ] {
        assert_eq!(status(&get(&trusting, &format!("\n{fields}"))), want, "{fields}");
    }
}

#[test]
fn p16_what_authentication_tells_the_upstream_keeps_responses_apart() {
    let service = Origin::serving(|request| {
        let name = request.headers.get("x-name").unwrap_or("nobody");
        Answer::with(200, &format!("X-User: {name}\r\n"), "")
    });
    let origin = telling();
    let auth = format!(
        "{{ proxy-cache: {{}}, forward-auth: {{ uri: 'http://{}/', timeout: 20000, request_headers: [X-Name], upstream_headers: [X-User] }} }}",
        service.addr()
    );
    let gateway = gateway(&origin, &auth);
    for (name, want) in [("ann", "MISS"), ("bob", "MISS"), ("ann", "HIT"), ("bob", "HIT")] {
        let response = get(&gateway, &format!("\nX-Name: {name}\nX-User: root"));
        assert!(response.text().ends_with(&format!(" {name}")), "{name}: {}", response.text());
        assert_eq!(status(&response), want, "{name}");
    }
}

#[test]
fn s11_what_follows_a_kept_response_is_a_request_of_its_own() {
    let origin = origin("");
    let gateway = gateway(&origin, "{ proxy-cache: {} }");
    in_turn(&gateway, &[""]);
    let mut client = Client::connect(gateway.addr());
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: t\r\n\r\n";
    client.send(format!("GET /a HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{smuggled}", smuggled.len()));
    assert_eq!(status(&client.response().expect("an answer")), "BYPASS", "a request with content is not for the cache");
    client.send("PURGE /a HTTP/1.1\r\nHost: t\r\nContent-Length: 40\r\n\r\n");
    assert_eq!(client.response().expect("an answer").status, 200);
    drop(client);
    assert_eq!(get(&gateway, "").text(), "answer 3");
    assert!(!origin.targets().contains(&"/smuggled".to_owned()), "{:?}", origin.targets());
}
