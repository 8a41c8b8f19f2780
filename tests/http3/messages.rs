//! Requests and responses.

use std::cell::Cell;

use bytes::{Buf, Bytes};
use http::HeaderMap;
use weir_testkit::{Answer, Client, DEADLINE, Gate, Origin, Reading, TlsClient, eventually};

use crate::client::{NAME, Stream, ask, client, request, rest, run};
use crate::{serve, with_workers};

#[test]
fn a_variable_names_the_group_of_the_key_exchange_over_any_protocol() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let rule =
        "global_rules: [{ id: curve, plugins: { proxy-rewrite: { headers: { set: { X-Curve: $ssl_curve } } } } }]\n";
    let served = serve(&origin, rule);
    run(async {
        let (mut sender, _quic) = client(&served.authority, served.gateway.tls_addr()).await;
        assert_eq!(ask(&mut sender, request("GET", "/")).await.0.status(), 200);
    });
    let tls = TlsClient::trusting(&served.authority);
    let mut over_tcp = Client::connect_tls(served.gateway.tls_addr(), &tls, NAME).expect("it is served");
    let answer = over_tcp.ask(format!("GET / HTTP/1.1\r\nHost: {NAME}\r\n\r\n")).expect("an answer");
    assert_eq!(answer.status, 200);
    let raw = origin.raw_text().to_ascii_lowercase();
    assert_eq!(raw.matches("x-curve: x25519mlkem768\r\n").count(), 2, "{raw}");
}

#[test]
fn a_request_is_forwarded_and_answered_with_one_worker_and_with_two() {
    for workers in [1, 2] {
        let origin = Origin::serving(|request| Answer::with(200, "X-Answer: 1\r\n", request.target.as_bytes()));
        let served = with_workers(&origin, workers);
        run(async {
            for _ in 0..4 {
                let (mut sender, _quic) = client(&served.authority, served.gateway.tls_addr()).await;
                for path in ["/first?a=b", "/second"] {
                    let (response, content) = ask(&mut sender, request("GET", path)).await;
                    assert_eq!((response.status().as_u16(), content), (200, path.as_bytes().to_vec()));
                    assert_eq!(response.headers()["x-answer"], "1");
                }
            }
        });
        let seen = origin.wait_requests(8);
        assert!(
            seen.iter().all(|request| request.headers.get("X-Forwarded-Proto") == Some("https")),
            "{workers} workers"
        );
    }
}

#[test]
fn large_content_goes_both_ways() {
    let origin = Origin::serving(|request| Answer::ok(request.body.clone()));
    let served = serve(&origin, "");
    let content: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    let echoed = run(async {
        let (mut sender, _quic) = client(&served.authority, served.gateway.tls_addr()).await;
        let mut stream = sender.send_request(request("POST", "/")).await.expect("it is sent");
        for piece in content.chunks(50_000) {
            stream.send_data(Bytes::copy_from_slice(piece)).await.expect("it is taken");
        }
        stream.finish().await.expect("it ends");
        assert_eq!(stream.recv_response().await.expect("a response").status(), 200);
        rest(&mut stream).await.0
    });
    assert!(echoed == content, "{} bytes came back of {}", echoed.len(), content.len());
}

#[test]
fn many_streams_of_a_connection_are_served_at_the_same_time() {
    let gate = Gate::new();
    let opener = gate.clone();
    let origin = Origin::serving(move |request| {
        gate.wait();
        Answer::ok(&request.target)
    });
    let served = serve(&origin, "");
    run(async {
        let (mut sender, _quic) = client(&served.authority, served.gateway.tls_addr()).await;
        let mut streams = Vec::new();
        for number in 0..50 {
            let mut stream = sender.send_request(request("GET", &format!("/{number}"))).await.expect("it is sent");
            stream.finish().await.expect("it ends");
            streams.push(stream);
        }
        origin.wait_requests(50);
        opener.open();
        for (number, stream) in streams.iter_mut().enumerate() {
            assert_eq!(stream.recv_response().await.expect("a response").status(), 200);
            assert_eq!(rest(stream).await.0, format!("/{number}").into_bytes());
        }
    });
}

#[test]
fn head_and_204_have_no_content() {
    let origin = Origin::serving(|request| match &*request.target {
        "/none" => Answer::raw("HTTP/1.1 204 No Content\r\n\r\n"),
        _ => Answer::raw("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
    });
    let served = serve(&origin, "");
    run(async {
        let (mut sender, _quic) = client(&served.authority, served.gateway.tls_addr()).await;
        let (response, content) = ask(&mut sender, request("HEAD", "/")).await;
        assert_eq!((response.status().as_u16(), content.len()), (200, 0));
        assert_eq!(response.headers()["content-length"], "5");
        let (response, content) = ask(&mut sender, request("GET", "/none")).await;
        assert_eq!((response.status().as_u16(), content.len()), (204, 0));
    });
}

#[test]
fn trailers_go_both_ways() {
    let origin = Origin::serving(|_| {
        Answer::raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 7\r\n\r\n")
    });
    let served = serve(&origin, "");
    run(async {
        let (mut sender, _quic) = client(&served.authority, served.gateway.tls_addr()).await;
        let mut stream = sender.send_request(request("POST", "/")).await.expect("it is sent");
        stream.send_data(Bytes::from_static(b"abc")).await.expect("it is taken");
        let mut trailers = HeaderMap::new();
        trailers.insert("x-check", "9".parse().expect("a value"));
        stream.send_trailers(trailers).await.expect("they are taken");
        stream.finish().await.expect("it ends");
        assert_eq!(stream.recv_response().await.expect("a response").status(), 200);
        let (content, trailers) = rest(&mut stream).await;
        assert_eq!(content, b"ok");
        assert_eq!(trailers.expect("trailers")["x-sum"], "7");
    });
    let raw = origin.raw_text();
    assert!(raw.to_ascii_lowercase().contains("x-check: 9\r\n"), "{raw}");
}

#[test]
fn an_early_answer_reaches_a_client_that_still_sends() {
    let origin = Origin::serving(|_| Answer::ok("never asked"));
    let served = serve(&origin, "client_max_body_size: 1000\n");
    run(async {
        let (mut sender, _quic) = client(&served.authority, served.gateway.tls_addr()).await;
        let mut stream = sender.send_request(request("POST", "/")).await.expect("it is sent");
        let piece = Bytes::from(vec![b'x'; 100_000]);
        while stream.send_data(piece.clone()).await.is_ok() {}
        assert_eq!(stream.recv_response().await.expect("a response").status(), 413);
        let (response, _) = ask(&mut sender, request("GET", "/")).await;
        assert_eq!(response.status(), 200, "the connection is not affected");
    });
}

#[test]
fn requests_that_http1_answers_with_400_are_answered_so() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = serve(&origin, "");
    run(async {
        let (mut sender, _quic) = client(&served.authority, served.gateway.tls_addr()).await;
        let (response, _) = ask(&mut sender, request("GET", "/a/%2e%2e%2f..;/b")).await;
        assert_eq!(response.status(), 400);
        let mut long = request("GET", "/");
        long.headers_mut().insert("x-long", "x".repeat(40_000).parse().expect("a value"));
        let mut stream = sender.send_request(long).await;
        // The client knows the limit from the settings, if they have come.
        if let Ok(stream) = &mut stream {
            stream.finish().await.expect("it ends");
            assert_eq!(stream.recv_response().await.expect("a response").status(), 431);
        }
        let (response, _) = ask(&mut sender, request("GET", "/")).await;
        assert_eq!(response.status(), 200);
    });
}

#[test]
fn a_client_that_reads_slowly_gets_everything() {
    let origin = Origin::serving(|_| Answer::ok(vec![b'y'; 2_000_000]));
    let served = serve(&origin, "");
    run(async {
        let (mut sender, _quic) = client(&served.authority, served.gateway.tls_addr()).await;
        let mut slow = sender.send_request(request("GET", "/")).await.expect("it is sent");
        slow.finish().await.expect("it ends");
        assert_eq!(slow.recv_response().await.expect("a response").status(), 200);
        for _ in 0..5 {
            let (_, content) = ask(&mut sender, request("GET", "/")).await;
            assert_eq!(content.len(), 2_000_000, "others are served meanwhile");
        }
        assert_eq!(rest(&mut slow).await.0.len(), 2_000_000);
    });
}

#[test]
fn a_request_that_is_reset_while_nothing_reads_it_ends_at_once() {
    let gate = Gate::new();
    let opener = gate.clone();
    let authority = Origin::serving(move |_| {
        gate.wait();
        Answer::ok("")
    });
    let origin = Origin::serving(|_| Answer::ok("never asked"));
    let rule = format!("plugins: {{ forward-auth: {{ uri: \"http://{}/\" }} }}", authority.addr());
    let served = serve(&origin, &format!("global_rules:\n  - id: auth\n    {rule}\n"));
    run(async {
        let (mut sender, _quic) = client(&served.authority, served.gateway.tls_addr()).await;
        let mut stream = sender.send_request(request("POST", "/")).await.expect("it is sent");
        stream.send_data(Bytes::from_static(b"abc")).await.expect("it is taken");
        authority.wait_requests(1);
        // RESET_STREAM without STOP_SENDING.
        stream.stop_stream(h3::error::Code::H3_REQUEST_CANCELLED);
        let (gateway, gone) = (&served.gateway, &["cause=\"client_gone\""]);
        while gateway.metrics().sum("weir_http_errors_total", gone) == 0.0 {
            tokio::task::yield_now().await;
        }
    });
    opener.open();
}

#[test]
fn a_request_that_is_reset_ends_at_the_origin_as_well() {
    let gate = Gate::new();
    let opener = gate.clone();
    let origin = Origin::scripted(Reading::Strict, move |connection| {
        if let Ok(request) = connection.head() {
            connection.record(&request);
            connection.wait_gone();
            opener.open();
        }
    });
    let served = serve(&origin, "");
    run(async {
        let (mut sender, _quic) = client(&served.authority, served.gateway.tls_addr()).await;
        let mut stream = sender.send_request(request("POST", "/")).await.expect("it is sent");
        stream.send_data(Bytes::from_static(b"abc")).await.expect("it is taken");
        origin.wait_requests(1);
        stream.stop_stream(h3::error::Code::H3_REQUEST_CANCELLED);
        stream.stop_sending(h3::error::Code::H3_REQUEST_CANCELLED);
        tokio::task::spawn_blocking(move || gate.wait()).await.expect("the origin sees it");
    });
}

#[test]
fn a_request_whose_end_does_not_come_is_answered_as_one_with_content() {
    let origin = Origin::serving(|request| Answer::ok(request.headers.get("Transfer-Encoding").unwrap_or("-")));
    let served = serve(&origin, "");
    run(async {
        let (mut sender, _quic) = client(&served.authority, served.gateway.tls_addr()).await;
        let mut stream = sender.send_request(request("GET", "/")).await.expect("it is sent");
        eventually("it is forwarded", DEADLINE, || origin.connections() == 1);
        stream.finish().await.expect("it ends");
        assert_eq!(stream.recv_response().await.expect("a response").status(), 200);
        assert_eq!(rest(&mut stream).await.0, b"chunked");
        assert_eq!(ask(&mut sender, request("GET", "/")).await.1, b"-", "its end has come");
    });
}

#[test]
fn a_more_urgent_response_goes_first() {
    let (large, small) = (700 * 1024, 128 * 1024);
    let gate = Gate::new();
    let opener = gate.clone();
    let origin = Origin::serving(move |request| {
        gate.wait();
        Answer::ok(vec![b'x'; if request.target == "/large" { large } else { small }])
    });
    let served = serve(&origin, "");
    let received = || served.gateway.metrics().sum("weir_upstream_bytes_total", &["direction=\"received\""]) as usize;
    let prioritized = |path: &str, priority: &str| {
        let mut request = request("GET", path);
        request.headers_mut().insert("priority", priority.parse().expect("a value"));
        request
    };
    // Of one thread, so that the client acknowledges nothing while that waits for something else.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let ended = runtime.block_on(async {
        let (mut sender, _quic) = client(&served.authority, served.gateway.tls_addr()).await;
        let mut streams = Vec::new();
        for (path, priority) in [("/large", "u=6"), ("/small", "u=1")] {
            let mut stream = sender.send_request(prioritized(path, priority)).await.expect("it is sent");
            stream.finish().await.expect("it ends");
            streams.push(stream);
        }
        while origin.requests().len() < 2 {
            tokio::task::yield_now().await;
        }
        opener.open();
        eventually("the gateway has both", DEADLINE, || received() >= large + small);
        let (second, first) = (streams.pop().expect("two"), streams.pop().expect("two"));
        let of_first = Cell::new(0);
        let read = async |mut stream: Stream, count: &Cell<usize>| {
            assert_eq!(stream.recv_response().await.expect("a response").status(), 200);
            while let Some(piece) = stream.recv_data().await.expect("content") {
                count.set(count.get() + piece.remaining());
            }
        };
        let of_second = Cell::new(0);
        let second = async {
            read(second, &of_second).await;
            of_first.get()
        };
        // What has come of the urgent response is read first, whatever has come of the other meanwhile.
        let both = async { tokio::join!(biased; second, read(first, &of_first)) };
        let (ended, ()) = tokio::task::unconstrained(both).await;
        assert_eq!((of_first.get(), of_second.get()), (large, small));
        ended
    });
    assert!(ended < small / 2, "{ended} bytes of the less urgent response came first");
}
