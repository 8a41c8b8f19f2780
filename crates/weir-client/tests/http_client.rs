//! The client over real sockets. Servers run on the same runtime as the calls; nothing sleeps to synchronise.

mod server;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use server::{Script, Server};
use weir_client::{
    AddressFilter, Authorities, CallError, CallSettings, DnsSettings, HttpClient, HttpClientSettings, HttpProtocol,
    IdleConnections, ServerVerification, ServiceUrl,
};
use weir_testkit::{Authority, Dns};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test)
}

fn url(text: impl AsRef<str>) -> ServiceUrl {
    ServiceUrl::parse(text.as_ref()).expect("a URL")
}

fn get() -> Request<Bytes> {
    Request::get("/").body(Bytes::new()).expect("a request")
}

/// Long enough for a busy machine.
fn patient() -> CallSettings {
    CallSettings {
        connect_timeout: Duration::from_secs(30),
        timeout: Duration::from_secs(30),
        ..CallSettings::default()
    }
}

/// Runs into its time-outs.
fn hasty() -> CallSettings {
    let soon = Duration::from_millis(200);
    CallSettings { connect_timeout: soon, timeout: soon * 2, ..CallSettings::default() }
}

async fn text(client: &HttpClient, to: &ServiceUrl, how: &CallSettings) -> Result<String, CallError> {
    let answer: Response<Bytes> = client.call(to, get(), how).await?;
    assert_eq!(answer.status(), StatusCode::OK);
    Ok(String::from_utf8(answer.into_body().into()).expect("text"))
}

#[test]
fn calls_share_connections_of_clients_with_equal_settings() {
    run(async {
        let server = Server::start(Script::Answers(OK)).await;
        let to = url(server.url("/"));
        for client in [HttpClient::default(), HttpClient::default()] {
            for _ in 0..2 {
                assert_eq!(text(&client, &to, &patient()).await.expect("an answer"), "ok");
            }
        }
        assert_eq!(server.connections(), 1);
        let other = HttpClient::new(HttpClientSettings {
            addresses: AddressFilter { denied: vec!["10.0.0.0/8".parse().expect("a network")], ..Default::default() },
            ..HttpClientSettings::default()
        });
        text(&other, &to, &patient()).await.expect("an answer");
        assert_eq!(server.connections(), 2, "a connection never serves a client with another filter");
        let idle = IdleConnections { max_per_origin: 0, ..IdleConnections::default() };
        for _ in 0..2 {
            text(&HttpClient::default(), &to, &CallSettings { idle, ..patient() }).await.expect("an answer");
        }
        assert_eq!(server.connections(), 3, "one was idle, and was not kept again");
    });
}

#[test]
fn a_connection_that_the_server_closed_is_replaced() {
    run(async {
        // Each connection ends after its first answer, which does not announce it.
        let server = Server::start(Script::OneAnswerEach(OK)).await;
        let (client, to) = (HttpClient::default(), url(server.url("/")));
        for expected in 1..=3 {
            assert_eq!(text(&client, &to, &patient()).await.expect("an answer"), "ok");
            assert_eq!(server.connections(), expected);
        }
    });
}

#[test]
fn a_request_that_may_have_been_received_is_repeated_only_if_that_does_no_harm() {
    run(async {
        // The second request of a connection is read, and then the connection closes.
        let server = Server::start(Script::ClosesAtSecond(OK)).await;
        let (client, to) = (HttpClient::default(), url(server.url("/")));
        text(&client, &to, &patient()).await.expect("an answer");
        text(&client, &to, &patient()).await.expect("GET is sent again on a new connection");
        assert_eq!((server.connections(), server.requests()), (2, 3));
        let post = Request::post("/").body(Bytes::from_static(b"x")).expect("a request");
        let error = client.call(&to, post, &patient()).await.expect_err("POST is not sent again");
        assert!(matches!(error, CallError::Broken { .. }), "{error}");
        assert!(error.to_string().contains("failed before the answer was complete"), "{error}");
        assert_eq!((server.connections(), server.requests()), (2, 4));
    });
}

#[test]
fn a_connection_of_a_runtime_that_has_ended_is_not_used() {
    let outer = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let server = outer.block_on(Server::start(Script::Answers(OK)));
    let (client, to) = (HttpClient::default(), url(server.url("/")));
    for expected in 1..=3 {
        run(async {
            for _ in 0..2 {
                text(&client, &to, &patient()).await.expect("an answer");
            }
        });
        assert_eq!(server.connections(), expected);
    }
}

#[test]
fn looking_up_a_name_has_a_time_limit() {
    run(async {
        let dns = Dns::start();
        dns.be_silent(true);
        let error = text(&with_dns(&dns), &url("http://slow.example/"), &hasty()).await.expect_err("no answer");
        assert!(error.is_timeout() && error.is_unsent());
        assert_eq!(
            error.to_string(),
            "looking up the name `slow.example` timed out after 200 ms; check `dns_resolver`"
        );
    });
}

#[test]
fn connecting_has_a_time_limit() {
    run(async {
        let full = server::with_full_backlog();
        let to = url(format!("http://{}/", full.address));
        let error = text(&HttpClient::default(), &to, &hasty()).await.expect_err("no connection");
        assert!(error.is_timeout() && error.is_unsent());
        let host = full.address.ip();
        assert_eq!(error.to_string(), format!("connecting to {} ({host}) timed out after 200 ms", full.address));
    });
}

#[test]
fn a_tls_handshake_has_a_time_limit() {
    run(async {
        let server = Server::start(Script::Silent).await;
        let to = url(format!("https://{}/", server.address));
        let how = CallSettings { verification: ServerVerification::Skip, ..hasty() };
        let error = text(&HttpClient::default(), &to, &how).await.expect_err("no handshake");
        assert!(error.is_timeout() && error.is_unsent());
        let told = format!("TLS handshake with {} (127.0.0.1) timed out after 200 ms", server.address);
        assert_eq!(error.to_string(), told);
    });
}

#[test]
fn an_answer_has_a_time_limit_to_its_last_byte() {
    run(async {
        for script in [Script::Silent, Script::Answers("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok")] {
            let server = Server::start(script).await;
            let error = text(&HttpClient::default(), &url(server.url("/")), &hasty()).await.expect_err("no answer");
            assert!(error.is_timeout() && !error.is_unsent());
            let told = format!("http://{} did not answer completely within 400 ms", server.address);
            assert_eq!(error.to_string(), told);
        }
    });
}

#[test]
fn a_refused_connection_is_told_with_its_address() {
    run(async {
        let address = SocketAddr::from(([127, 0, 0, 1], weir_testkit::free_port()));
        let error = text(&HttpClient::default(), &url(format!("http://{address}/")), &patient()).await;
        let error = error.expect_err("nothing listens there").to_string();
        assert!(
            error.starts_with(&format!("connecting to {address} (127.0.0.1) failed: Connection refused")),
            "{error}"
        );
    });
}

#[test]
fn an_answer_has_a_limit_of_size_whether_declared_or_not() {
    run(async {
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nabcdef\r\n0\r\n\r\n";
        let declared = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabcdef";
        for script in [chunked, declared] {
            let server = Server::start(Script::Answers(script)).await;
            let (client, to) = (HttpClient::default(), url(server.url("/")));
            let limited = |max_content_bytes| CallSettings { max_content_bytes, ..patient() };
            assert_eq!(text(&client, &to, &limited(6)).await.expect("it fits"), "abcdef");
            let error = text(&client, &to, &limited(5)).await.expect_err("it is too large");
            let told = format!("the answer of http://{} is larger than 5 bytes", server.address);
            assert_eq!(error.to_string(), told);
        }
    });
}

#[test]
fn redirects_are_followed_only_where_asked_for() {
    run(async {
        let last = Server::start(Script::Answers(OK)).await;
        let moved = format!("HTTP/1.1 302 Found\r\nLocation: {}\r\nContent-Length: 0\r\n\r\n", last.url("/x"));
        let first = Server::start(Script::Answers(moved.leak())).await;
        let (client, to) = (HttpClient::default(), url(first.url("/")));
        let answer = client.call(&to, get(), &patient()).await.expect("an answer");
        assert_eq!((answer.status(), last.requests()), (StatusCode::FOUND, 0));
        let following = CallSettings { max_redirects: 1, ..patient() };
        assert_eq!(text(&client, &to, &following).await.expect("an answer"), "ok");
        assert!(last.recorded().starts_with("GET /x HTTP/1.1\r\n"), "{}", last.recorded());
        let around = Server::start(Script::Answers("HTTP/1.1 307 X\r\nLocation: /\r\nContent-Length: 0\r\n\r\n")).await;
        let error = client.call(&url(around.url("/")), get(), &following).await.expect_err("a circle").to_string();
        assert!(error.ends_with("is not followed: there were 1 before it"), "{error}");
        assert_eq!(around.requests(), 2);
    });
}

fn with_dns(dns: &Dns) -> HttpClient {
    let dns = DnsSettings { servers: vec![dns.addr()], valid: None };
    HttpClient::new(HttpClientSettings { dns, ..HttpClientSettings::default() })
}

#[test]
fn names_are_resolved_by_the_servers_that_are_configured() {
    run(async {
        let dns = Dns::start();
        dns.addresses("auth.example", 60, [Ipv4Addr::LOCALHOST]);
        let server = Server::start(Script::Answers(OK)).await;
        let client = with_dns(&dns);
        let to = url(format!("http://auth.example:{}/check?a", server.address.port()));
        let how = CallSettings { idle: IdleConnections { max_per_origin: 0, ..Default::default() }, ..patient() };
        for _ in 0..2 {
            assert_eq!(text(&client, &to, &how).await.expect("an answer"), "ok");
        }
        assert_eq!(server.connections(), 2);
        assert_eq!(dns.asked("auth.example"), 1, "an answer is used until its time to live is over");
        let host = format!("host: auth.example:{}\r\n", server.address.port());
        assert!(server.recorded().starts_with("GET /check?a HTTP/1.1\r\n"), "{}", server.recorded());
        assert!(server.recorded().contains(&host), "{}", server.recorded());
        let error = text(&client, &url("http://gone.example/"), &patient()).await.expect_err("no such name");
        assert!(error.to_string().starts_with("the name `gone.example` cannot be resolved: "), "{error}");
    });
}

#[test]
fn only_addresses_that_the_filter_allows_are_connected_to() {
    run(async {
        let dns = Dns::start();
        dns.addresses("inside.example", 60, [Ipv4Addr::LOCALHOST]);
        let inside = Server::start(Script::Answers(OK)).await;
        let moved = format!("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.2:{}/\r\nContent-Length: 0\r\n\r\n", 80);
        let allowed = Server::start(Script::Answers(moved.leak())).await;
        let settings = HttpClientSettings {
            dns: DnsSettings { servers: vec![dns.addr()], valid: None },
            addresses: AddressFilter::public(),
            ..HttpClientSettings::default()
        };
        let client = HttpClient::new(settings.clone());
        let port = inside.address.port();
        for host in ["inside.example", "127.0.0.1", "[::ffff:127.0.0.1]"] {
            let denied = text(&client, &url(format!("http://{host}:{port}/")), &patient()).await;
            let denied = denied.expect_err("it is inside").to_string();
            assert!(denied.contains("are not allowed"), "{host}: {denied}");
        }
        assert_eq!(inside.connections(), 0);
        let filter =
            AddressFilter { allowed: vec!["127.0.0.1/32".parse().expect("a network")], ..AddressFilter::public() };
        let client = HttpClient::new(HttpClientSettings { addresses: filter, ..settings });
        assert_eq!(text(&client, &url(inside.url("/")), &patient()).await.expect("allowed"), "ok");
        let following = CallSettings { max_redirects: 3, ..patient() };
        let denied = client.call(&url(allowed.url("/")), get(), &following).await.expect_err("it leads inside");
        assert!(matches!(denied, CallError::AddressDenied { .. }), "{denied}");
    });
}

fn with_authority(authority: &Authority) -> HttpClient {
    let chain = weir_net::tls::certificates(authority.certificate.as_bytes()).expect("PEM");
    HttpClient::new(HttpClientSettings { authorities: Authorities::Own(chain.into()), ..HttpClientSettings::default() })
}

#[test]
fn servers_are_verified_by_the_authorities_of_the_node() {
    run(async {
        let (authority, other) = (Authority::new(), Authority::new());
        let server = Server::start_tls(&authority.identity(&["127.0.0.1"]), &["http/1.1"], Script::Answers(OK)).await;
        let to = url(format!("https://{}/", server.address));
        let client = with_authority(&authority);
        for _ in 0..2 {
            assert_eq!(text(&client, &to, &patient()).await.expect("an answer"), "ok");
        }
        assert_eq!(server.connections(), 1);
        let error = text(&with_authority(&other), &to, &patient()).await.expect_err("another authority").to_string();
        let begin = format!("TLS handshake with {} (127.0.0.1) failed: ", server.address);
        assert!(error.starts_with(&begin) && error.contains("UnknownIssuer"), "{error}");
        let careless = CallSettings { verification: ServerVerification::Skip, ..patient() };
        assert_eq!(text(&with_authority(&other), &to, &careless).await.expect("not verified"), "ok");
        let named = Server::start_tls(&authority.identity(&["a.example"]), &[], Script::Answers(OK)).await;
        let to = url(format!("https://{}/", named.address));
        let error = text(&client, &to, &patient()).await.expect_err("another name").to_string();
        assert!(error.contains("failed: ") && error.contains("not valid for"), "{error}");
    });
}

#[test]
fn http2_carries_calls_on_one_connection() {
    run(async {
        let authority = Authority::new();
        let identity = authority.identity(&["127.0.0.1"]);
        let tls = Server::start_http2(Some(&identity)).await;
        let clear = Server::start_http2(None).await;
        let client = with_authority(&authority);
        for (server, scheme, protocol) in [
            (&tls, "https", HttpProtocol::Negotiate),
            (&tls, "https", HttpProtocol::Http2),
            (&clear, "http", HttpProtocol::Http2),
        ] {
            let before = server.connections();
            let how = CallSettings { protocol, ..patient() };
            let to = url(format!("{scheme}://{}/", server.address));
            text(&client, &to, &how).await.expect("an answer");
            let both = tokio::join!(text(&client, &to, &how), text(&client, &to, &how));
            assert_eq!((both.0.expect("an answer"), both.1.expect("an answer")), ("h2".to_owned(), "h2".to_owned()));
            assert_eq!(server.connections(), before + 1, "{protocol:?}");
        }
        // A server that does not choose it speaks HTTP/1.1.
        let old = Server::start_tls(&identity, &["http/1.1"], Script::Answers(OK)).await;
        let how = CallSettings { protocol: HttpProtocol::Negotiate, ..patient() };
        assert_eq!(text(&client, &url(format!("https://{}/", old.address)), &how).await.expect("an answer"), "ok");
    });
}

#[test]
fn a_duplex_call_is_answered_while_it_is_sent() {
    run(async {
        let authority = Authority::new();
        let identity = authority.identity(&["127.0.0.1"]);
        let (tls, clear) = (Server::start_http2(Some(&identity)).await, Server::start_http2(None).await);
        let client = with_authority(&authority);
        let how = CallSettings { protocol: HttpProtocol::Http2, ..patient() };
        for (server, scheme) in [(&tls, "https"), (&clear, "http")] {
            let to = url(format!("{scheme}://{}/", server.address));
            let request = Request::post("/").body(()).expect("a request");
            let mut calls = Vec::new();
            for _ in 0..2 {
                calls.push(client.duplex(&to, &request, &how).await.expect("a connection"));
            }
            for (sender, receiver) in &mut calls {
                for piece in ["one", "two"] {
                    let sent = tokio::join!(sender.send(piece.into()), receiver.next());
                    assert_eq!((sent.0, sent.1.expect("a piece").as_deref()), (true, Some(piece.as_bytes())));
                }
                assert_eq!(receiver.head().map(Response::status), Some(StatusCode::OK));
            }
            for (sender, mut receiver) in calls {
                drop(sender);
                assert_eq!(receiver.next().await.expect("the end"), None, "the end of the request ends its echo");
            }
            assert_eq!(server.connections(), 1, "the calls share a connection");
        }
        let old = Server::start_tls(&identity, &["http/1.1"], Script::Answers(OK)).await;
        let how = CallSettings { protocol: HttpProtocol::Negotiate, ..patient() };
        let request = Request::post("/").body(()).expect("a request");
        let refused = client.duplex(&url(format!("https://{}/", old.address)), &request, &how).await;
        assert!(matches!(refused, Err(CallError::NoHttp2 { .. })), "{refused:?}");
    });
}

/// The error of a call to this server, which is not the time-out.
async fn refused(server: &Server, how: &CallSettings) -> String {
    let error = text(&HttpClient::default(), &url(server.url("/")), how).await.expect_err("it is too much");
    assert!(!error.is_timeout() && !error.is_unsent(), "{error}");
    error.to_string()
}

#[test]
fn an_endless_answer_without_content_is_an_error() {
    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    run(async {
        for (first, again, what) in [
            ("", "HTTP/1.1 102 Processing\r\n\r\n", "more than 8 interim responses (1xx) to one request"),
            ("", "HTTP/1.1 100 Continue\r\nLink: </a.css>\r\n\r\n", "more than 8 interim responses"),
            ("HTTP/1.1 200 OK\r\nX-A: ", "x", "too large"),
            ("HTTP/1.1 200 OK\r\n", "X-A: b\r\n", "too large"),
            (CHUNKED, "0", "262144 bytes without a response head or content"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1", " ", "262144 bytes without"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", "a", "chunk extensions over limit"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "X-A: b\r\n", "trailers"),
            (CHUNKED, "1\r\nx\r\n", "is larger than 1048576 bytes"),
        ] {
            let server = Server::start(Script::Endless(first, again)).await;
            let error = refused(&server, &patient()).await;
            assert!(error.contains(what), "{again:?}: {error}");
            assert_eq!(server.connections(), 1, "{again:?}: it is not asked again");
        }
    });
}

#[test]
fn interim_responses_that_come_with_the_response_are_counted() {
    let interim = "HTTP/1.1 103 Early Hints\r\n\r\n";
    run(async {
        let few = Server::start(Script::Answers(format!("{}{OK}", interim.repeat(8)).leak())).await;
        for _ in 0..3 {
            assert_eq!(text(&HttpClient::default(), &url(few.url("/")), &patient()).await.expect("an answer"), "ok");
        }
        assert_eq!(few.connections(), 1, "they are counted for each request");
        let many = Server::start(Script::Answers(format!("{}{OK}", interim.repeat(9)).leak())).await;
        assert!(refused(&many, &patient()).await.contains("more than 8 interim responses"));
    });
}

#[test]
fn a_connection_that_is_to_be_forgotten_is_not_used_again() {
    run(async {
        let server = Server::start_http2(None).await;
        let (client, to) = (HttpClient::default(), url(server.url("/")));
        let how = CallSettings { protocol: HttpProtocol::Http2, ..patient() };
        let other = CallSettings { protocol: HttpProtocol::Http2, ..hasty() };
        for connections in [1, 1, 2] {
            if connections == 2 {
                client.forget(&to, &other);
            }
            client.call(&to, get(), &how).await.expect("an answer");
            assert_eq!(server.connections(), connections);
        }
    });
}

#[test]
fn endless_frames_of_http2_are_an_error() {
    // A HEADERS frame with `:status: 102`, and a PING.
    let interim = b"\0\0\x05\x01\x04\0\0\0\x01\x08\x03102".to_vec();
    let ping = b"\0\0\x08\x06\0\0\0\0\x0001234567".to_vec();
    run(async {
        for (frame, what) in [(interim, "more than 8 interim responses"), (ping, "more than 1000 HTTP/2 frames")] {
            let server = server::endless_http2(frame).await;
            let how = CallSettings { protocol: HttpProtocol::Http2, ..patient() };
            let error = refused(&server, &how).await;
            assert!(error.contains(what), "{error}");
        }
    });
}

#[test]
fn calls_beside_one_that_breaks_a_limit_of_http2_are_repeated() {
    let ping = b"\0\0\x08\x06\0\0\0\0\x0001234567".to_vec();
    run(async {
        let server = server::http2_that_turns_bad(ping).await;
        let (client, to) = (HttpClient::default(), url(server.url("/")));
        let how = CallSettings { protocol: HttpProtocol::Http2, ..patient() };
        text(&client, &to, &how).await.expect("an answer");
        // The first of them is on its way, and the others wait for it when the connection ends.
        let call = || text(&client, &to, &how);
        let (first, second, third, fourth) = tokio::join!(call(), call(), call(), call());
        for answer in [first, second, third, fourth] {
            assert_eq!(answer.expect("on another connection"), "");
        }
        assert!(server.connections() > 1);
    });
}

#[test]
fn an_answer_of_any_length_may_come_in_small_pieces() {
    const PIECES: usize = 300_000;
    let content = format!("{}0\r\n\r\n", "1\r\nx\r\n".repeat(PIECES));
    let answer = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{content}");
    run(async {
        let server = Server::start(Script::Answers(answer.leak())).await;
        let all = text(&HttpClient::default(), &url(server.url("/")), &patient()).await.expect("an answer");
        assert_eq!(all.len(), PIECES);
    });
}

#[test]
fn a_streamed_answer_comes_piece_by_piece() {
    run(async {
        let gate = Arc::new(tokio::sync::Notify::new());
        let server = Server::start(Script::TwoPieces(Arc::clone(&gate))).await;
        let (client, to) = (HttpClient::default(), url(server.url("/")));
        for _ in 0..2 {
            let mut content = client.open(&to, get(), &patient()).await.expect("a head").into_body();
            assert_eq!(content.next().await.expect("a piece").as_deref(), Some(&b"one"[..]));
            gate.notify_one();
            assert_eq!(content.next().await.expect("a piece").as_deref(), Some(&b"two"[..]));
            assert_eq!(content.next().await.expect("the end"), None);
        }
        assert_eq!(server.connections(), 1, "an answer that was read to its end leaves its connection");
        drop(client.open(&to, get(), &patient()).await.expect("a head"));
        gate.notify_one();
        let mut content = client.open(&to, get(), &patient()).await.expect("a head").into_body();
        assert!(content.next().await.expect("a piece").is_some());
        assert_eq!(server.connections(), 2, "one that was not does not");
    });
}
