//! F01–F05, F20, F30: upstreams that die, reset, close, hang or are gone; clients that do not read; an orderly end.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weir_testkit::{Answer, Client, DEADLINE, Gate, Gateway, Origin, ReadError, Reading, eventually, scaled};

use crate::harness::{Rig, weir};

/// A gateway with one route to these nodes and these lines in its upstream.
fn gateway(nodes: &[&Origin], upstream: &str) -> Gateway {
    let nodes: Vec<String> = nodes.iter().map(|origin| format!("\"{}\": 1", origin.addr())).collect();
    let nodes = nodes.join(", ");
    weir().start(&format!(
        "routes:\n  - {{ id: all, uri: /*, upstream: {{ type: roundrobin, nodes: {{ {nodes} }}{upstream} }} }}\n"
    ))
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn f01_a_response_cut_short_never_looks_complete() {
    let rig = Rig::before(Origin::scripted(Reading::Strict, |connection| {
        let Ok(request) = connection.request() else { return };
        let _ = match request.target.as_str() {
            target if target.starts_with("/length") => {
                connection.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
            }
            target if target.starts_with("/chunks") => {
                connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
            }
            target if target.starts_with("/inside") => {
                connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\nhalf")
            }
            target => connection.send(ok(&format!("GET {target} 0"))),
        };
        if request.target.ends_with("reset") {
            connection.reset();
        }
    }));
    for round in 0..scaled(50, 1700) {
        for target in ["/length-fin", "/length-reset", "/chunks-fin", "/chunks-reset", "/inside-fin", "/inside-reset"] {
            let mut client = rig.gateway.client();
            match client.get(target) {
                Err(ReadError::Closed { .. } | ReadError::Reset { .. }) => {}
                Ok(answer) if answer.status == 502 => {} // cut short before the head had gone
                other => panic!("{target}, round {round}: {other:?}"),
            }
        }
        rig.canary("/canary").unwrap_or_else(|what| panic!("round {round}: {what}"));
    }
}

/// Counts how often each request id arrived at any of the origins.
fn arrivals(origins: &[&Origin]) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for request in origins.iter().flat_map(|origin| origin.requests()) {
        *counts.entry(request.target).or_insert(0) += 1;
    }
    counts
}

#[test]
fn f02_a_reset_before_the_first_byte_is_retried_when_that_is_safe() {
    let resetting = Origin::scripted(Reading::Strict, |connection| {
        let _ = connection.request();
        connection.reset();
    });
    let healthy = Origin::echo(Reading::Strict);
    let gateway = gateway(&[&resetting, &healthy], "");
    let mut client = gateway.client();
    for number in 0..scaled(300, 50_000) {
        let answer = client.get(&format!("/get/{number}")).unwrap_or_else(|error| panic!("GET {number}: {error}"));
        assert_eq!(answer.status, 200, "GET {number}");
    }
    resetting.forget();
    healthy.forget();
    let posts = scaled(300, 100_000);
    let mut served = 0;
    for number in 0..posts {
        let post = format!("POST /post/{number} HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhello");
        match client.ask(post) {
            Ok(answer) if answer.status == 200 => served += 1,
            Ok(answer) => assert_eq!(answer.status, 502, "POST {number}"),
            Err(error) => panic!("POST {number}: {error}"),
        }
        if number % 64 == 63 {
            client = gateway.client();
        }
    }
    assert!(served > 0, "no POST reached the healthy node");
    let twice: Vec<_> = arrivals(&[&resetting, &healthy]).into_iter().filter(|(_, count)| *count > 1).collect();
    assert!(twice.is_empty(), "sent twice: {twice:?}");
}

#[test]
fn u14_a_get_whose_answer_broke_off_within_its_head_is_asked_elsewhere() {
    let breaking = Origin::scripted(Reading::Strict, |connection| {
        let _ = connection.request();
        let _ = connection.send("HTTP/1.1 200 OK\r\nContent-Le");
    });
    let healthy = Origin::echo(Reading::Strict);
    let gateway = gateway(&[&breaking, &healthy], "");
    let mut client = gateway.client();
    for number in 0..20 {
        let answer = client.get(&format!("/get/{number}")).expect("an answer");
        assert_eq!(answer.status, 200, "GET {number}");
    }
    assert!(!breaking.requests().is_empty(), "it was asked");
    let posts: Vec<u16> = (0..20)
        .map(|number| {
            let post = format!("POST /post/{number} HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhello");
            client.ask(post).expect("an answer").status
        })
        .collect();
    let twice =
        arrivals(&[&breaking, &healthy]).into_iter().filter(|(target, count)| target.contains("post") && *count > 1);
    assert_eq!(twice.count(), 0, "{posts:?}");
}

#[test]
fn u14_a_get_that_nobody_answers_in_time_is_asked_elsewhere_where_that_is_wanted() {
    let frozen = Origin::scripted(Reading::Strict, |connection| {
        let _ = connection.request();
        connection.wait_gone();
    });
    let healthy = Origin::echo(Reading::Strict);
    // So long may the healthy one take on a busy machine. All wait for the other at once.
    let timeout = "timeout: { connect: 5, send: 5, read: 3 }";
    let route = |id: &str, more: &str| {
        let (frozen, healthy) = (frozen.addr(), healthy.addr());
        let nodes = format!("nodes: {{ \"{frozen}\": 1, \"{healthy}\": 1 }}");
        format!("  - {{ id: {id}, uri: /{id}, upstream: {{ {nodes}, {timeout}{more} }} }}\n")
    };
    let retry_on = ", retry_on: [read_timeout]";
    let routes = [route("again", retry_on), route("posted", retry_on), route("once", "")];
    let gateway = weir().start(&format!("routes:\n{}", routes.concat()));
    let statuses = |request: &'static str| {
        let mut statuses = [(); 2].map(|()| gateway.client().ask(request).expect("an answer").status);
        statuses.sort_unstable();
        statuses
    };
    thread::scope(|scope| {
        let again = scope.spawn(|| statuses("GET /again HTTP/1.1\r\nHost: t\r\n\r\n"));
        let posted = scope.spawn(|| statuses("POST /posted HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n"));
        assert_eq!(statuses("GET /once HTTP/1.1\r\nHost: t\r\n\r\n"), [200, 504]);
        assert_eq!(again.join().expect("an answer"), [200, 200]);
        assert_eq!(posted.join().expect("an answer"), [200, 504], "a POST may have been acted on");
    });
}

#[test]
fn u14_a_node_that_answers_garbage_loses_its_traffic() {
    let garbage = Origin::scripted(Reading::Strict, |connection| {
        while connection.request().is_ok() && connection.send("hello, I am no HTTP\r\n\r\n").is_ok() {}
    });
    let healthy = Origin::echo(Reading::Strict);
    // Long enough out, so that it does not return while the test runs.
    let gateway = gateway(&[&garbage, &healthy], ", checks: { passive: { unhealthy: { interval: 600 } } }");
    let mut client = gateway.client();
    let statuses: Vec<u16> = (0..60).map(|_| client.get("/").expect("an answer").status).collect();
    assert!(statuses.iter().filter(|&&status| status == 502).count() <= 8, "{statuses:?}");
    assert!(statuses[30..].iter().all(|&status| status == 200), "{statuses:?}");
}

#[test]
fn f02_a_refused_connection_is_retried_for_every_method() {
    let refusing = weir_testkit::free_port();
    let healthy = Origin::echo(Reading::Strict);
    let gateway = weir().start(&format!(
        "routes:\n  - {{ id: all, uri: /*, upstream: {{ nodes: {{ \"127.0.0.1:{refusing}\": 1, \"{}\": 1 }} }} }}\n",
        healthy.addr()
    ));
    let mut client = gateway.client();
    for number in 0..20 {
        let post = format!("POST /post/{number} HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhello");
        assert_eq!(client.ask(post).expect("an answer").text(), format!("POST /post/{number} 5"));
    }
    assert!(arrivals(&[&healthy]).values().all(|&count| count == 1));
}

#[test]
fn f02_nobody_left_is_a_502() {
    let refusing = weir_testkit::free_port();
    let gateway = weir().start(&format!(
        "routes:\n  - {{ id: all, uri: /*, upstream: {{ nodes: {{ \"127.0.0.1:{refusing}\": 1 }} }} }}\n"
    ));
    let mut client = gateway.client();
    for _ in 0..3 {
        let answer = client.get("/").expect("an answer");
        assert_eq!(answer.status, 502);
        assert!(!answer.text().contains("127.0.0.1"), "an internal detail: {}", answer.text());
    }
}

#[test]
fn f03_connections_closed_while_idle_cost_no_get() {
    let (ending, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let origin = Origin::scripted(Reading::Strict, {
        let (ending, ended) = (Arc::clone(&ending), Arc::clone(&ended));
        move |connection| {
            // Each connection closes after another number of answers, unannounced, some with a reset.
            let last = 1 + connection.index % 7;
            for number in 1..=last {
                let Ok(request) = connection.request() else { return };
                let is_last = number == last;
                ending.fetch_add(usize::from(is_last), Ordering::SeqCst);
                let body = format!("{} {}", request.method, request.target);
                if connection.send(ok(&body)).is_err() && !is_last {
                    return;
                }
            }
            if connection.index % 3 == 0 {
                connection.reset();
            } else {
                connection.close();
            }
            ended.fetch_add(1, Ordering::SeqCst);
        }
    });
    let gateway = gateway(&[&origin], "");
    let mut client = gateway.client();
    let count = scaled(2000, 100_000);
    for number in 0..count {
        let answer = client.get(&format!("/get/{number}")).unwrap_or_else(|error| panic!("GET {number}: {error}"));
        assert_eq!((answer.status, answer.text()), (200, format!("GET /get/{number}")));
    }
    let mut failed = 0;
    for number in 0..count {
        let post = format!("POST /post/{number} HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhello");
        match client.ask(post) {
            Ok(answer) if answer.status == 200 => assert_eq!(answer.text(), format!("POST /post/{number}")),
            Ok(answer) => {
                assert_eq!(answer.status, 502, "POST {number}");
                failed += 1;
            }
            Err(error) => panic!("POST {number}: {error}"),
        }
        // A POST that meets the close on its way cannot be saved: the next one comes after it.
        eventually("it has closed", DEADLINE, || ended.load(Ordering::SeqCst) >= ending.load(Ordering::SeqCst));
    }
    let twice: Vec<_> =
        arrivals(&[&origin]).into_iter().filter(|(target, count)| target.starts_with("/post") && *count > 1).collect();
    assert!(twice.is_empty(), "sent twice: {twice:?}");
    // One connection in four requests is closed, and that is seen before.
    assert!(failed <= count / 10, "{failed} of {count} POSTs failed");
}

#[test]
fn f04_a_slow_upstream_is_given_up_and_harms_no_other_route() {
    let gate = Gate::new();
    let slow = Origin::reading(Reading::Strict, {
        let gate = gate.clone();
        move |_| {
            gate.wait();
            Answer::ok("late")
        }
    });
    let quick = Origin::echo(Reading::Strict);
    let gateway = weir().start(&format!(
        "routes:
  - {{ id: slow, uri: /slow, upstream: {{ nodes: {{ \"{}\": 1 }}, timeout: {{ connect: 1, send: 1, read: 1 }} }} }}
  - {{ id: quick, uri: /*, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}\n",
        slow.addr(),
        quick.addr()
    ));
    let start = Instant::now();
    let mut waiting: Vec<Client> = (0..20).map(|_| gateway.client()).collect();
    for client in &mut waiting {
        client.send("GET /slow HTTP/1.1\r\nHost: t\r\n\r\n");
    }
    let mut other = gateway.client();
    for _ in 0..200 {
        assert_eq!(other.get("/quick").expect("an answer").status, 200);
    }
    for client in &mut waiting {
        assert_eq!(client.response().expect("an answer").status, 504);
    }
    assert!(start.elapsed() >= Duration::from_secs(1), "before its time: {:?}", start.elapsed());
    gate.open();
    eventually("no connection with a late answer is kept", DEADLINE, || slow.open_connections() == 0);
}

#[test]
fn f04_an_upstream_that_takes_no_connection_is_given_up() {
    // A listener whose queue is full drops further attempts in silence.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let address = listener.local_addr().expect("a bound socket has an address");
    let socket = socket_with_full_queue(&listener, address);
    let gateway = weir().start(&format!(
        "routes:\n  - {{ id: all, uri: /*, upstream: {{ nodes: {{ \"{address}\": 1 }}, timeout: {{ connect: 1, send: 1, read: 1 }} }} }}\n"
    ));
    let start = Instant::now();
    assert_eq!(gateway.get("/").status, 504);
    assert!(start.elapsed() >= Duration::from_secs(1), "before its time: {:?}", start.elapsed());
    drop(socket);
}

/// Fills the queue of connections nobody has accepted, and keeps them.
fn socket_with_full_queue(listener: &std::net::TcpListener, address: std::net::SocketAddr) -> Vec<std::net::TcpStream> {
    weir_testkit::shrink_backlog(listener);
    let patience = Duration::from_millis(300);
    std::iter::from_fn(|| std::net::TcpStream::connect_timeout(&address, patience).ok()).take(64).collect()
}

#[test]
fn f05_an_endpoint_that_keeps_failing_is_left_out() {
    let failing = Origin::scripted(Reading::Strict, |connection| connection.reset());
    let healthy = Origin::echo(Reading::Strict);
    let checks = ", checks: { passive: { unhealthy: { tcp_failures: 3, timeouts: 3, http_failures: 3 } } }";
    let gateway = gateway(&[&failing, &healthy], checks);
    let mut client = gateway.client();
    for number in 0..200 {
        let answer = client.get(&format!("/{number}")).expect("an answer");
        assert_eq!(answer.text(), format!("GET /{number} 0"));
    }
    assert!(failing.connections() <= 10, "{} attempts at a failing endpoint", failing.connections());
}

/// The kernel gives up a peer that takes nothing for the time of `TCP_USER_TIMEOUT`, which is at least 30 s, and must not
/// do so before `timeout.send`: in a full run the pause lies between the two. Otherwise the test of the socket's option sees it.
#[test]
fn f05_an_endpoint_that_pauses_is_waited_for_as_long_as_configured() {
    const BODY: usize = 32 << 20;
    let origin = Origin::scripted(Reading::Strict, |connection| {
        let Ok(request) = connection.head() else { return };
        std::thread::sleep(Duration::from_secs(scaled(1, 35) as u64));
        if connection.body(request.framing).is_ok_and(|(body, _)| body.len() == BODY) {
            let _ = connection.send(ok("all"));
        }
    });
    let gateway = gateway(&[&origin], ", timeout: { connect: 5, send: 50, read: 50 }");
    let mut client = std::net::TcpStream::connect(gateway.addr()).expect("it listens");
    let head = format!("POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {BODY}\r\n\r\n");
    client.write_all(head.as_bytes()).expect("it is taken");
    client.write_all(&vec![b'x'; BODY]).expect("it is taken");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("all"), "{answer}");
}

#[test]
fn f20_clients_that_read_slowly_cost_little_memory_and_hold_the_origin_back() {
    const BODY: u64 = 64 << 20;
    let sent = Arc::new(AtomicU64::new(0));
    let origin = Origin::scripted(Reading::Strict, {
        let sent = Arc::clone(&sent);
        move |connection| {
            let Ok(_) = connection.request() else { return };
            let block = vec![b'x'; 1 << 16];
            let _ = connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\n\r\n"));
            for _ in 0..BODY >> 16 {
                if connection.send(&block).is_err() {
                    return;
                }
                sent.fetch_add(1 << 16, Ordering::Relaxed);
            }
        }
    });
    let gateway = gateway(&[&origin], "");
    let count = scaled(40, 1000) as u64;
    let before = gateway.rss();
    let mut clients: Vec<Client> = (0..count)
        .map(|_| {
            let mut client = Client::connect_narrow(gateway.addr()).expect("it listens");
            client.send("GET /large HTTP/1.1\r\nHost: t\r\n\r\n");
            client
        })
        .collect();
    for client in &mut clients {
        assert_eq!(client.response_head("GET").expect("a head").status, 200);
        client.exact(100_000).expect("some of the body");
    }
    // Nothing is read from here on, so what the origin can send is what fits into buffers on the way.
    let mut still = 0;
    let mut last = 0;
    eventually("the origin is held back", DEADLINE, || {
        let now = sent.load(Ordering::Relaxed);
        still = if now == last { still + 1 } else { 0 };
        last = now;
        still == 100
    });
    assert!(last < count * BODY / 2, "the origin sent {last} bytes that nobody read");
    let grown = gateway.rss().saturating_sub(before);
    assert!(grown <= count * (128 << 10) + (4 << 20), "{count} slow clients took {grown} bytes");
    // They are only slow: whoever goes on reading gets everything.
    let mut first = clients.swap_remove(0);
    let mut left = BODY - 100_000;
    while left > 0 {
        let some = first.some().expect("the rest of the body");
        assert!(!some.is_empty(), "closed {left} bytes before the end");
        left -= some.len() as u64;
    }
}

/// `send_timeout` is the time in which a client may take nothing, however much waits for it.
#[test]
fn f20_a_client_that_keeps_reading_gets_a_long_response_that_was_held() {
    const BODY: usize = 24 << 20;
    let origin = Origin::serving(|_| Answer::ok(vec![b'x'; BODY]));
    let rewritten = ", plugins: { response-rewrite: { filters: [{ regex: nowhere, replace: there, scope: once }] } }";
    let takes_all = |timeout_s: u64, pause: Duration| {
        let gateway = weir().start(&format!(
            "send_timeout: {timeout_s}
held_content_max: 256MiB
held_content_max_per_client: 128MiB
routes:
  - {{ uri: /*, upstream: {{ nodes: {{ \"{}\": 1 }} }}{rewritten} }}
",
            origin.addr()
        ));
        let mut client = Client::connect_narrow(gateway.addr()).expect("it listens");
        client.send("GET /held HTTP/1.1\r\nHost: t\r\n\r\n");
        assert_eq!(client.response_head("GET").expect("a head").status, 200);
        (0..BODY >> 19).all(|_| {
            thread::sleep(pause);
            client.exact(512 << 10).is_ok()
        })
    };
    // Longer than the time-out in all. On a machine that stands still for so long, a longer one is tried.
    let is_whole = takes_all(5, Duration::from_millis(150)) || takes_all(20, Duration::from_millis(450));
    assert!(is_whole, "it was not sent to its end");
}

#[test]
fn f20_a_slow_upload_is_held_back() {
    let gate = Gate::new();
    let origin = Origin::scripted(Reading::Strict, {
        let gate = gate.clone();
        move |connection| {
            let Ok(head) = connection.head() else { return };
            gate.wait();
            let Ok((body, _)) = connection.body(head.framing) else { return };
            let _ = connection.send(ok(&body.len().to_string()));
        }
    });
    let gateway = gateway(&[&origin], "");
    let before = gateway.rss();
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 67108864\r\n\r\n");
    let (sent, sending) = (Arc::new(AtomicUsize::new(0)), gate.clone());
    let taken = Arc::clone(&sent);
    let upload = std::thread::spawn(move || {
        for _ in 0..64 {
            client.send(vec![b'x'; 1 << 20]);
            taken.fetch_add(1 << 20, Ordering::Relaxed);
        }
        client.response().expect("an answer")
    });
    sending.wait_arrived(1);
    let (mut still, mut last) = (0, usize::MAX);
    eventually("the client is held back", DEADLINE, || {
        let now = sent.load(Ordering::Relaxed);
        still = if now == last { still + 1 } else { 0 };
        last = now;
        still == 100
    });
    assert!(last < 48 << 20, "{last} bytes were taken that nobody read");
    let grown = gateway.rss().saturating_sub(before);
    assert!(grown <= 4 << 20, "a held back upload took {grown} bytes");
    gate.open();
    assert_eq!(upload.join().expect("it was sent").text(), "67108864");
}

#[test]
fn f30_sigterm_ends_nothing_that_has_begun() {
    let gate = Gate::new();
    let origin = Origin::reading(Reading::Strict, {
        let gate = gate.clone();
        move |request| {
            if request.target == "/slow" {
                gate.wait();
            }
            Answer::ok(format!("GET {} 0", request.target))
        }
    });
    let mut gateway = gateway(&[&origin], "");
    let mut idle = gateway.client();
    assert_eq!(idle.get("/a").expect("an answer").status, 200);
    let mut busy = gateway.client();
    busy.send("GET /slow HTTP/1.1\r\nHost: t\r\n\r\n");
    gate.wait_arrived(1);
    assert_eq!(gateway.ask_status("/status/ready").status, 200);
    gateway.signal(weir_testkit::Signal::TERM);
    eventually("it says that it is not ready", DEADLINE, || gateway.ask_status("/status/ready").status == 503);
    // An idle connection is served once more, and told that this was the last time; or it is closed by then.
    match idle.get("/b") {
        Ok(answer) => assert!(answer.status == 200 && answer.closes(), "{answer:?}"),
        Err(error) => assert!(error.is_gone() || error.to_string().contains("cannot send"), "{error}"),
    }
    assert!(!gateway.has_exited(), "it left a request behind");
    gate.open();
    let answer = busy.response().expect("an answer");
    assert_eq!((answer.status, answer.text().as_str()), (200, "GET /slow 0"));
    assert!(answer.closes());
    assert!(gateway.wait_exit(DEADLINE).success());
}

#[test]
fn f30_a_drain_has_a_deadline() {
    let gate = Gate::new();
    let origin = Origin::reading(Reading::Strict, {
        let gate = gate.clone();
        move |_| {
            gate.wait();
            Answer::ok("late")
        }
    });
    let mut gateway = weir().start(&format!(
        "worker_shutdown_timeout: 1\nroutes:\n  - {{ id: all, uri: /*, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}\n",
        origin.addr()
    ));
    let mut busy = gateway.client();
    busy.send("GET /slow HTTP/1.1\r\nHost: t\r\n\r\n");
    gate.wait_arrived(1);
    gateway.signal(weir_testkit::Signal::TERM);
    gateway.wait_exit(DEADLINE);
    gate.open();
}

#[test]
fn client_that_leaves_the_queue_is_not_sent_to_the_upstream() {
    let gate = Gate::new();
    let inside = gate.clone();
    let origin = Origin::serving(move |request| {
        if request.target == "/slow" {
            inside.wait();
        }
        Answer::ok("done")
    });
    let gateway = gateway(&[&origin], ", concurrency: 1");
    let queued = |count: f64| {
        eventually("the queue", DEADLINE, || gateway.metrics().get("weir_upstream_queued") == Some(count));
    };
    let mut first = gateway.client();
    first.send("GET /slow HTTP/1.1\r\nHost: t\r\n\r\n");
    gate.wait_arrived(1);
    for leave in [Client::reset, drop] {
        let mut impatient = gateway.client();
        impatient.send("GET /left HTTP/1.1\r\nHost: t\r\n\r\n");
        queued(1.0);
        leave(impatient);
        queued(0.0);
    }
    let mut patient = gateway.client();
    patient.send("GET /stayed HTTP/1.1\r\nHost: t\r\n\r\n");
    queued(1.0);
    gate.open();
    assert_eq!(first.response().expect("it is answered").status, 200);
    assert_eq!(patient.response().expect("it is answered").status, 200);
    assert_eq!(origin.targets(), ["/slow", "/stayed"]);
}

/// An origin whose answers wait for the gate to open.
fn held_back() -> (Gate, Origin) {
    let gate = Gate::new();
    let inside = gate.clone();
    let origin = Origin::serving(move |_| {
        inside.wait();
        Answer::ok("done")
    });
    (gate, origin)
}

#[test]
fn client_waits_in_the_queue_no_longer_than_timeout_connect() {
    let (gate, origin) = held_back();
    let gateway = gateway(&[&origin], ", concurrency: 1, timeout: { connect: 1, send: 60, read: 60 }");
    let mut first = gateway.client();
    first.send("GET /first HTTP/1.1\r\nHost: t\r\n\r\n");
    gate.wait_arrived(1);
    let mut second = gateway.client();
    let refusal = second.get("/second").expect("it is answered");
    assert_eq!((refusal.status, refusal.headers.get("retry-after")), (503, Some("1")));
    eventually("the queue is empty", DEADLINE, || gateway.metrics().get("weir_upstream_queued") == Some(0.0));
    gate.open();
    assert_eq!(first.response().expect("it is answered").status, 200);
    assert_eq!(second.get("/again").expect("its connection is still good").status, 200);
    assert_eq!(origin.targets(), ["/first", "/again"]);
}

#[test]
fn client_that_finds_the_queue_full_is_refused_at_once() {
    let (gate, origin) = held_back();
    let gateway = gateway(&[&origin], ", concurrency: 1, queue: { size: 1, timeout: 60 }");
    let mut clients = [gateway.client(), gateway.client()];
    clients[0].send("GET /first HTTP/1.1\r\nHost: t\r\n\r\n");
    gate.wait_arrived(1);
    clients[1].send("GET /second HTTP/1.1\r\nHost: t\r\n\r\n");
    eventually("the second waits", DEADLINE, || gateway.metrics().get("weir_upstream_queued") == Some(1.0));
    let refusal = gateway.get("/third");
    assert_eq!((refusal.status, refusal.headers.get("retry-after")), (503, Some("1")));
    gate.open();
    clients.iter_mut().for_each(|client| assert_eq!(client.response().expect("it is answered").status, 200));
    assert_eq!(origin.targets(), ["/first", "/second"]);
}

#[test]
fn client_that_leaves_while_a_plugin_waits_ends_its_exchange() {
    let origin = Origin::serving(|_| Answer::ok("done"));
    let mut gateway = weir().start(&format!(
        "routes:\n  - {{ id: all, uri: /*, plugins: {{ fault-injection: {{ delay: {{ duration: 600 }} }} }}, \
         upstream: {{ type: roundrobin, nodes: {{ \"{}\": 1 }} }} }}\n",
        origin.addr()
    ));
    let left = |count: f64| {
        let series = "weir_http_errors_total{cause=\"client_gone\"}";
        eventually("it is noticed", DEADLINE, || gateway.metrics().get(series) == Some(count));
    };
    for (count, leave) in [(1.0, Client::reset as fn(Client)), (2.0, drop)] {
        let mut impatient = gateway.client();
        impatient.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
        eventually("it has come", DEADLINE, || gateway.metrics().get("weir_http_requests_total") == Some(count));
        leave(impatient);
        left(count);
    }
    assert!(origin.requests().is_empty());
    // Nor does the end of the gateway wait ten minutes.
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    eventually("it has come", DEADLINE, || gateway.metrics().get("weir_http_requests_total") == Some(3.0));
    gateway.signal(weir_testkit::Signal::INT);
    gateway.wait_exit(DEADLINE);
}
