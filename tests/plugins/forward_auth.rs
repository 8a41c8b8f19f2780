//! An auth service of somebody else's decides who passes.

use std::io::Read;
use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::thread;

use weir_testkit::{Answer, Authority, DEADLINE, Gateway, Origin, TlsServer, eventually};

/// A gateway with two routes. Requests to `/guarded/*` are checked with this service, which can answer slowly on a busy machine; requests
/// to `/free` are not checked.
fn gateway(origin: &Origin, uri: &str, more: &str) -> Gateway {
    let timeout = if more.contains("timeout:") { "" } else { "timeout: 20000, " };
    let authority = Authority::of_tests();
    let directory = weir_testkit::TempDir::new();
    let roots = directory.write("roots.pem", &authority.certificate);
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).env("SSL_CERT_FILE", &roots.to_string_lossy()).start(&format!(
        "routes:
  - {{ id: guarded, uri: /guarded/*, plugins: {{ forward-auth: {{ uri: \"{uri}\", {timeout}{more} }} }}, upstream: {{ nodes: {{ \"{addr}\": 1 }}, type: roundrobin }} }}
  - {{ id: free, uri: /free, upstream: {{ nodes: {{ \"{addr}\": 1 }}, type: roundrobin }} }}
",
        addr = origin.addr()
    ))
}

/// Answers with what it was told of the user.
fn origin() -> Origin {
    Origin::serving(|request| Answer::ok(request.headers.all("x-user").collect::<Vec<_>>().join("+")))
}

/// Lets `Authorization: jack` pass, as jack.
fn service() -> Origin {
    Origin::serving(|request| match request.headers.get("authorization") {
        Some("jack") => Answer::with(200, "X-User: jack\r\nX-Other: 1\r\n", String::new()),
        Some("away") => Answer::with(302, "Location: https://login.example/\r\n", "go there"),
        _ => Answer::with(401, "WWW-Authenticate: Own\r\nContent-Type: application/json\r\nX-Inner: 1\r\n", "{}"),
    })
}

const HEADERS: &str =
    "request_headers: [Authorization], upstream_headers: [X-User], client_headers: [WWW-Authenticate, Location]";

#[test]
fn a_service_decides_and_says_who_it_is() {
    let (origin, service) = (origin(), service());
    let gateway = gateway(&origin, &format!("http://{}/check?a=1", service.addr()), HEADERS);
    let ask = |fields: &str| {
        let request =
            format!("POST /guarded/a?b=1 HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 2\r\n{fields}\r\nhi");
        gateway.client().ask(request).expect("an answer")
    };
    let passed = ask("Authorization: jack\r\nX-User: admin\r\n");
    assert_eq!((passed.status, passed.text()), (200, "jack".to_owned()));
    let refused = ask("X-User: admin\r\n");
    assert_eq!((refused.status, refused.text()), (401, "{}".to_owned()));
    assert_eq!(refused.headers.get("www-authenticate"), Some("Own"));
    assert_eq!(refused.headers.get("content-type"), Some("application/json"));
    assert!(!refused.headers.has("x-inner"));
    let away = ask("Authorization: away\r\n");
    assert_eq!((away.status, away.headers.get("location")), (302, Some("https://login.example/")));
    assert_eq!(origin.requests().len(), 1);
    let asked = &service.requests()[0];
    assert_eq!((&*asked.method, &*asked.target), ("GET", "/check?a=1"));
    let told = |name| asked.headers.get(name).unwrap_or_default().to_owned();
    assert_eq!(told("x-forwarded-method"), "POST");
    assert_eq!(told("x-forwarded-uri"), "/guarded/a?b=1");
    assert_eq!(told("x-forwarded-host"), "shop.example");
    assert_eq!(told("x-forwarded-for"), "127.0.0.1");
    assert!(asked.body.is_empty() && !asked.headers.has("x-user"));
}

#[test]
fn a_service_is_told_what_the_client_asked_for_and_not_what_was_made_of_it() {
    let (origin, service) = (origin(), service());
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes:
  - uri: /guarded/*
    plugins:
      proxy-rewrite: {{ uri: \"/inner?c=2\", method: PUT, host: \"inner.example:81\" }}
      forward-auth: {{ uri: \"http://{}/check\", {HEADERS} }}
    upstream: {{ nodes: {{ \"{}\": 1 }}, type: roundrobin }}
",
        service.addr(),
        origin.addr()
    ));
    let request = "REPORT /guarded/a?b=1 HTTP/1.1\r\nHost: shop.example:8443\r\nAuthorization: jack\r\n\r\n";
    assert_eq!(gateway.client().ask(request).expect("an answer").status, 200);
    let (asked, sent) = (&service.requests()[0], &origin.requests()[0]);
    let told = ["proto", "method", "host", "uri", "for"]
        .map(|name| asked.headers.get(&format!("x-forwarded-{name}")).unwrap_or_default().to_owned());
    assert_eq!(told, ["http", "REPORT", "shop.example", "/guarded/a?b=1", "127.0.0.1"]);
    let host = sent.headers.get("host");
    assert_eq!((&*sent.method, &*sent.target, host), ("PUT", "/inner?c=2&b=1", Some("inner.example:81")));
}

#[test]
fn a_service_judges_the_path_that_the_upstream_gets() {
    let (origin, service) = (origin(), service());
    let gateway = gateway(&origin, &format!("http://{}/check", service.addr()), HEADERS);
    for target in
        ["/free/%2e%2e/guarded/a?b=%2e", "/guarded/%61?b=%2e", "/guarded/x/../a?b=%2e", "http://t/guarded/./a?b=%2e"]
    {
        let request = format!("GET {target} HTTP/1.1\r\nHost: t\r\nAuthorization: jack\r\n\r\n");
        assert_eq!(gateway.client().ask(request).expect("an answer").status, 200, "{target}");
        let asked = service.requests().pop().expect("it was asked");
        assert_eq!(asked.headers.get("x-forwarded-uri"), Some("/guarded/a?b=%2e"), "{target}");
        assert_eq!(origin.targets().pop().as_deref(), Some("/guarded/a?b=%2e"), "{target}");
    }
}

#[test]
fn a_service_is_asked_over_tls_if_it_can_prove_who_it_is() {
    let authority = Authority::of_tests();
    let origin = origin();
    let answer = |_: &weir_testkit::Request| Answer::with(204, "X-User: tls\r\n", String::new());
    let known = Origin::serving_tls(&TlsServer::new(&authority.identity(&["localhost"])), answer);
    let uri = format!("https://localhost:{}/", known.addr().port());
    assert_eq!(gateway(&origin, &uri, HEADERS).get("/guarded/a").text(), "tls");
    let stranger = Origin::serving_tls(&TlsServer::new(&Authority::new().identity(&["localhost"])), answer);
    let uri = format!("https://localhost:{}/", stranger.addr().port());
    assert_eq!(gateway(&origin, &uri, HEADERS).get("/guarded/a").status, 403);
    assert_eq!(gateway(&origin, &uri, &format!("{HEADERS}, ssl_verify: false")).get("/guarded/a").text(), "tls");
}

#[test]
fn a_service_that_is_gone_fails_closed() {
    let origin = origin();
    let uri = format!("http://127.0.0.1:{}/", weir_testkit::free_port());
    let strict = gateway(&origin, &uri, "status_on_error: 503");
    assert_eq!([strict.get("/guarded/a").status, strict.get("/free").status], [503, 200]);
    strict.wait_stderr("it is said", |text| text.contains("forward-auth: http://127.0.0.1"));
    let lenient = gateway(&origin, &uri, "allow_degradation: true, upstream_headers: [X-User]");
    let request = "GET /guarded/a HTTP/1.1\r\nHost: t\r\nX-User: admin\r\n\r\n";
    let answer = lenient.client().ask(request).expect("an answer");
    assert_eq!((answer.status, answer.text()), (200, String::new()), "nobody has said who it is");
}

#[test]
fn the_end_of_an_outage_of_the_service_is_logged_once() {
    let (origin, port) = (origin(), weir_testkit::free_port());
    let gateway = gateway(&origin, &format!("http://127.0.0.1:{port}/"), "status_on_error: 503");
    assert_eq!([gateway.get("/guarded/a").status, gateway.get("/guarded/a").status], [503, 503]);
    let _service = Origin::serving_at(([127, 0, 0, 1], port).into(), |_| Answer::ok(""));
    assert_eq!([gateway.get("/guarded/a").status, gateway.get("/guarded/a").status], [200, 200]);
    let end = format!("forward-auth: http://127.0.0.1:{port} answers again; requests that failed before: 2");
    gateway.wait_stderr("the end is logged", |text| text.contains(&end));
    assert_eq!(gateway.stderr().matches("answers again").count(), 1, "{}", gateway.stderr());
}

#[test]
fn a_service_that_does_not_answer_holds_only_its_own_route() {
    // Takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let uri = format!("http://{}/", silent.local_addr().expect("it is bound"));
    let (last, last_is_there) = channel();
    let hold = thread::spawn(move || {
        let held: Vec<_> = silent.incoming().take(17).collect();
        last.send(()).expect("the test waits");
        held.into_iter().flatten().for_each(|mut stream| drop(stream.read_to_end(&mut Vec::new())));
    });
    let origin = origin();
    let gateway = gateway(&origin, &uri, "timeout: 1000");
    let mut waiting: Vec<_> = (0..16).map(|_| gateway.client()).collect();
    waiting.iter_mut().for_each(|client| client.send("GET /guarded/a HTTP/1.1\r\nHost: t\r\n\r\n"));
    for _ in 0..50 {
        assert_eq!(gateway.get("/free").status, 200);
    }
    for mut client in waiting {
        assert_eq!(client.response().expect("an answer").status, 403);
    }
    // A client that goes away waits for nobody.
    let mut gone = gateway.client();
    gone.send("GET /guarded/a HTTP/1.1\r\nHost: t\r\n\r\n");
    last_is_there.recv_timeout(DEADLINE).expect("the service is asked");
    gone.reset();
    hold.join().expect("each connection was ended by the gateway");
}

#[test]
fn connections_are_used_again_and_a_stale_one_is_no_failure() {
    let (origin, service) = (origin(), service());
    let uri = format!("http://{}/", service.addr());
    let with_pool = gateway(&origin, &uri, HEADERS);
    let mut client = with_pool.client();
    for _ in 0..5 {
        client.send("GET /guarded/a HTTP/1.1\r\nHost: t\r\nAuthorization: jack\r\n\r\n");
        assert_eq!(client.response().expect("an answer").status, 200);
    }
    assert_eq!(service.connections(), 1);
    let without = gateway(&origin, &uri, &format!("{HEADERS}, keepalive: false"));
    for _ in 0..2 {
        without.get("/guarded/a");
    }
    assert_eq!(service.connections(), 3);
    // Closes after each answer, without having said so.
    let closing = Origin::scripted(weir_testkit::Reading::Strict, |connection| {
        if connection.request().is_ok() {
            let _ = connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let gateway = gateway(&origin, &format!("http://{}/", closing.addr()), "");
    for _ in 0..10 {
        eventually("it passes", DEADLINE, || gateway.get("/guarded/a").status == 200);
    }
}

#[test]
fn a_service_may_look_at_what_a_request_carries() {
    let origin = Origin::serving(|request| {
        let user = request.headers.all("x-user").collect::<Vec<_>>().join("+");
        Answer::ok(format!("{user} {}", String::from_utf8_lossy(&request.body)))
    });
    let service = Origin::serving(|request| match &*request.body {
        b"let me in" => Answer::with(200, "X-User: jack\r\n", String::new()),
        _ => Answer::status(403, "no"),
    });
    let more = "request_method: POST, max_req_body_size: 20, upstream_headers: [X-User]";
    let gateway = gateway(&origin, &format!("http://{}/", service.addr()), more);
    let mut client = gateway.client();
    let mut post = |fields: &str, body: &str| {
        let request = format!(
            "PUT /guarded/a HTTP/1.1\r\nHost: t\r\nX-User: admin\r\nContent-Type: text/x\r\n{fields}\r\n{body}"
        );
        let answer = client.ask(request).expect("an answer");
        (answer.status, answer.text())
    };
    assert_eq!(post("Content-Length: 9\r\n", "let me in"), (200, "jack let me in".to_owned()));
    assert_eq!(post("Transfer-Encoding: chunked\r\n", "3\r\nlet\r\n6\r\n me in\r\n0\r\n\r\n").0, 200);
    assert_eq!(post("Content-Length: 2\r\n", "hi"), (403, "no".to_owned()));
    assert_eq!(post("", "").0, 403, "there is nothing to look at");
    assert_eq!(post("Content-Length: 21\r\n", "let me in let me in !").0, 413);
    assert_eq!(origin.requests().len(), 2);
    let asked = service.requests();
    assert_eq!((asked.len(), &*asked[0].method, asked[0].headers.get("content-type")), (4, "POST", Some("text/x")));
    // A client that goes away waits for nobody.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let uri = format!("http://{}/", silent.local_addr().expect("it is bound"));
    let gateway = self::gateway(&origin, &uri, "request_method: POST, timeout: 60000");
    let mut gone = gateway.client();
    gone.send("PUT /guarded/a HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\nhi");
    let (mut asked, _) = silent.accept().expect("it is asked");
    gone.reset();
    asked.read_to_end(&mut Vec::new()).expect("its connection ends");
    assert_eq!(gateway.get("/free").status, 200);
}

/// What wraps a plugin for its `_meta` did not ask it about content, so a question that waits for content was never put.
#[test]
fn with_meta_requests_with_content_passed_unasked() {
    let (origin, service) = (origin(), Origin::serving(|_| Answer::status(403, "no")));
    let meta = "request_method: POST, _meta: { error_response: { message: denied }, filter: [[uri, \"~~\", guarded]] }";
    let gateway = gateway(&origin, &format!("http://{}/", service.addr()), meta);
    let request = "POST /guarded/a HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\nhi";
    let answer = gateway.client().ask(request).expect("an answer");
    assert_eq!((answer.status, answer.text()), (403, "{\"message\":\"denied\"}\n".to_owned()));
    assert_eq!((service.requests().len(), origin.requests().len()), (1, 0));
}

/// Knows two sessions, and extends them.
fn sessions() -> Origin {
    Origin::serving(|request| match request.headers.get("cookie") {
        Some("session=jack") => Answer::with(200, "X-User: jack\r\nSet-Cookie: session=jack2\r\n", String::new()),
        Some("session=jill") => Answer::with(200, "X-User: jill\r\nX-Inner: 1\r\n", String::new()),
        _ => Answer::with(401, "Set-Cookie: csrf=1\r\nLocation: /elsewhere\r\n", "no"),
    })
}

#[test]
fn fields_of_an_allowing_answer_reach_the_client() {
    let (origin, service) = (origin(), sessions());
    let options = "request_headers: [\"*\"], upstream_headers: [X-User], client_headers_on_success: [Set-Cookie]";
    let gateway = gateway(&origin, &format!("http://{}/", service.addr()), options);
    let ask = |cookie: &str| {
        let request =
            format!("GET /guarded/a HTTP/1.1\r\nHost: h\r\nCookie: {cookie}\r\nX-More: 1\r\nContent-Type: a/b\r\n\r\n");
        gateway.client().ask(request).expect("an answer")
    };
    let extended = ask("session=jack");
    assert_eq!((extended.status, extended.text()), (200, "jack".to_owned()));
    assert_eq!(extended.headers.get("set-cookie"), Some("session=jack2"));
    let other = ask("session=jill");
    assert!(other.status == 200 && !other.headers.has("set-cookie") && !other.headers.has("x-inner"));
    let asked = &service.requests()[0];
    assert_eq!(asked.headers.get("x-more"), Some("1"), "all fields are sent");
    assert!(!asked.headers.has("content-type") && asked.headers.all("host").count() == 1);
}

#[test]
fn a_client_without_a_session_is_sent_to_the_sign_in_page() {
    let (origin, service) = (origin(), sessions());
    let options = "request_headers: [Cookie], client_headers: [Set-Cookie, Location], signin_url: \"https://login.example/start?a=1\"";
    let gateway = gateway(&origin, &format!("http://{}/", service.addr()), options);
    let response = gateway.get("/guarded/a?b=c&d=%20");
    assert_eq!(response.status, 302);
    let locations: Vec<&str> = response.headers.all("location").collect();
    assert_eq!(locations, ["https://login.example/start?a=1&rd=http%3A%2F%2Ft%2Fguarded%2Fa%3Fb%3Dc%26d%3D%2520"]);
    assert_eq!(response.headers.get("set-cookie"), Some("csrf=1"));
    assert!(origin.requests().is_empty());
}

#[test]
fn a_decision_is_used_again_for_requests_with_the_same_key() {
    let (origin, service) = (origin(), sessions());
    let options = "request_headers: [Cookie], upstream_headers: [X-User], cache_key: $cookie_session";
    let gateway = gateway(&origin, &format!("http://{}/", service.addr()), options);
    let ask = |target: &str, cookie: &str| {
        let request = format!("GET {target} HTTP/1.1\r\nHost: h\r\n{cookie}\r\n");
        let response = gateway.client().ask(request).expect("an answer");
        (response.status, response.text(), service.requests().len())
    };
    let user = |name: &str, asked: usize| (200, name.to_owned(), asked);
    assert_eq!(ask("/guarded/a", "Cookie: session=jill\r\n"), user("jill", 1));
    assert_eq!(ask("/guarded/b", "Cookie: session=jill\r\nX-User: admin\r\n"), user("jill", 1), "asked once");
    assert_eq!(ask("/guarded/a", "Cookie: session=jack\r\n"), user("jack", 2));
    assert_eq!(ask("/guarded/a", "Cookie: session=jack\r\n"), user("jack", 3), "the answer sets a cookie");
    assert_eq!(ask("/guarded/a", "").2, 4);
    assert_eq!(ask("/guarded/a", "").2, 5, "without a session, the service is asked each time");
}
