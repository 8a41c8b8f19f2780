//! `error-page` with `fetch`: pages that another upstream makes.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};

use weir_testkit::{Answer, Gateway, Origin, Reading, TempDir, free_port};

use crate::error_pages::origin;

/// An upstream whose pages tell what they were asked for.
fn pages() -> Origin {
    Origin::serving(|request| {
        let told = |name: &str| request.headers.get(name).unwrap_or("-").to_owned();
        let fields = ["x-code", "x-format", "x-original-uri", "x-from", "cookie", "authorization", "x-own", "host"];
        let lines: Vec<String> = fields.map(|name| format!("{name}={}", told(name))).into();
        let body = format!("{} {} {} {}", request.method, request.target, request.body.len(), lines.join(" "));
        Answer::with(218, "Content-Type: text/x-page\r\nSet-Cookie: a=1\r\nServer: pages\r\n", body)
    })
}

fn gateway(origin: &Origin, pages: &str, more: &str) -> Gateway {
    let (origin, closed) = (origin.addr(), free_port());
    let fetch = format!(
        "fetch: {{ statuses: [401, 404, 500, 502, 503], upstream_id: pages, path: /errors, headers: {{ X-From: $uri }}{more} }}"
    );
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "upstreams: [{{ id: pages, nodes: {{ '{pages}': 1 }} }}]
routes:
  - {{ uri: /own/*, plugins: {{ error-page: {{ {fetch} }} }}, upstream: {{ nodes: {{ '{origin}': 1 }} }} }}
  - {{ uri: /dead, plugins: {{ error-page: {{ {fetch} }} }}, upstream: {{ nodes: {{ '127.0.0.1:{closed}': 1 }} }} }}
  - {{ uri: /static/*, plugins: {{ error-page: {{ {fetch}, upstream_errors: true, error_5xx: {{ body: static }} }} }}, upstream: {{ nodes: {{ '{origin}': 1 }} }} }}
  - uri: /all/*
    plugins:
      basic-auth: {{ _meta: {{ filter: [[http_x_guard, '==', '1']] }} }}
      response-rewrite: {{ headers: {{ set: {{ X-Rewritten: 'yes' }} }} }}
      error-page: {{ {fetch}, upstream_errors: true }}
    upstream: {{ nodes: {{ '{origin}': 1 }} }}
"
    ))
}

fn page(code: u16, accept: &str, uri: &str) -> String {
    format!(
        "GET /errors 0 x-code={code} x-format={accept} x-original-uri={uri} x-from={uri} cookie=- authorization=- x-own=- host=t"
    )
}

#[test]
fn an_error_of_an_upstream_gets_the_page_of_another() {
    let (origin, pages) = (origin(), pages());
    let gateway = gateway(&origin, &pages.addr().to_string(), "");
    let mut client = gateway.client();
    for method in ["GET", "POST"] {
        let content = if method == "POST" { "Content-Length: 3\r\n\r\nabc" } else { "\r\n" };
        let answer = client
            .ask(format!(
                "{method} /all/x?q=/503 HTTP/1.1\r\nHost: t\r\nAccept: text/x\r\nCookie: s=1\r\nAuthorization: x y\r\nX-Own: 1\r\n{content}"
            ))
            .expect("an answer on the same connection");
        assert_eq!((answer.status, answer.text()), (503, page(503, "text/x", "/all/x")));
        let field = |name: &str| answer.headers.get(name);
        assert_eq!(
            (field("content-type"), field("etag"), field("x-rewritten")),
            (Some("text/x-page"), None, Some("yes"))
        );
        assert!(!answer.headers.has("set-cookie"), "a page does not end a session");
        assert_ne!(field("server"), Some("pages"));
    }
    let answer = client.ask("GET /all/429 HTTP/1.1\r\nHost: t\r\n\r\n").expect("an answer");
    assert_eq!((answer.status, answer.text().as_str()), (429, "of the origin"), "not one of the statuses");
    let answer = client.ask("GET /own/503 HTTP/1.1\r\nHost: t\r\n\r\n").expect("an answer");
    assert_eq!((answer.status, answer.text().as_str()), (503, "of the origin"), "without `upstream_errors`");
    let answer = client.ask("HEAD /all/404 HTTP/1.1\r\nHost: t\r\n\r\n").expect("an answer");
    let length = page(404, "", "/all/404").len().to_string();
    assert_eq!((answer.status, answer.headers.get("content-length")), (404, Some(&*length)));
    assert_eq!((origin.requests().len(), pages.requests().len()), (5, 3));
}

#[test]
fn an_error_of_the_gateway_gets_the_page_of_an_upstream() {
    let (origin, pages) = (origin(), pages());
    let gateway = gateway(&origin, &pages.addr().to_string(), "");
    let mut client = gateway.client();
    let answer = client.ask("GET /dead HTTP/1.1\r\nHost: t\r\n\r\n").expect("an answer");
    assert_eq!((answer.status, answer.text()), (502, page(502, "", "/dead")));
    let answer = client.ask("GET /all/200 HTTP/1.1\r\nHost: t\r\nX-Guard: 1\r\n\r\n").expect("an answer");
    assert_eq!((answer.status, answer.text()), (401, page(401, "", "/all/200")));
    assert!(answer.headers.has("www-authenticate"), "the other fields stay");
    let call = "POST /all/503 HTTP/1.1\r\nHost: t\r\nContent-Type: application/grpc\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(client.ask(call).expect("an answer").text(), "of the origin", "no page for a call");
}

#[test]
fn the_status_of_a_page_is_told_on_request() {
    let (origin, pages) = (origin(), pages());
    let gateway = gateway(&origin, &pages.addr().to_string(), ", keep_status: false");
    let answer = gateway.client().ask("GET /all/503 HTTP/1.1\r\nHost: t\r\n\r\n").expect("an answer");
    assert_eq!((answer.status, answer.text()), (218, page(503, "", "/all/503")));
}

#[test]
fn an_error_without_a_page_gets_another_answer() {
    let origin = origin();
    let nowhere = format!("127.0.0.1:{}", free_port());
    let large = Origin::serving(|_| Answer::ok("x".repeat((1 << 20) + 1)));
    let broken = Origin::scripted(Reading::Strict, |connection| {
        if connection.request().is_ok() {
            let _ = connection.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab");
        }
    });
    for pages in [nowhere, large.addr().to_string(), broken.addr().to_string()] {
        let gateway = gateway(&origin, &pages, "");
        let answer = gateway.client().ask("GET /all/503 HTTP/1.1\r\nHost: t\r\nAccept: application/json\r\n\r\n");
        let answer = answer.expect("an answer");
        assert_eq!(
            (answer.status, answer.text().trim_end()),
            (503, "{\"error_msg\":\"503 Service Temporarily Unavailable\"}")
        );
        assert_eq!(answer.headers.get("content-type"), Some("application/json"));
        let answer = gateway.client().ask("GET /static/503 HTTP/1.1\r\nHost: t\r\n\r\n").expect("an answer");
        assert_eq!((answer.status, answer.text().as_str()), (503, "static"));
        let answer = gateway.client().ask("GET /dead HTTP/1.1\r\nHost: t\r\n\r\n").expect("an answer");
        assert_eq!((answer.status, answer.text().contains("502 Bad Gateway")), (502, true));
    }
}

#[test]
fn a_page_leaves_the_fields_of_plugins_and_none_of_the_content_that_it_replaces() {
    let origin = origin();
    let pages = Origin::serving(|_| {
        Answer::with(
            200,
            "Vary: X-Page\r\nAccess-Control-Allow-Origin: https://page\r\nX-Page: 1\r\nCache-Control: no-store\r\n",
            "page",
        )
    });
    let (origin, pages) = (origin.addr(), pages.addr());
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes:
  - uri: /*
    plugins:
      cors: {{ allow_origins: 'https://a' }}
      fault-injection:
        abort: {{ http_status: 503, body: x, headers: {{ Content-Encoding: br, ETag: '1', Content-Language: de, Cache-Control: private }} }}
      error-page: {{ fetch: {{ statuses: [503], upstream: {{ nodes: {{ '{pages}': 1 }} }} }} }}
    upstream: {{ nodes: {{ '{origin}': 1 }} }}
"
    ));
    let answer = gateway.client().ask("GET / HTTP/1.1\r\nHost: t\r\nOrigin: https://a\r\n\r\n").expect("an answer");
    assert_eq!((answer.status, answer.text().as_str()), (503, "page"));
    let field = |name: &str| answer.headers.all(name).collect::<Vec<_>>().join("+");
    for (name, value) in [
        ("access-control-allow-origin", "https://a"),
        ("cache-control", "no-store"),
        ("x-page", "1"),
        ("content-encoding", ""),
        ("etag", ""),
        ("content-language", ""),
        ("content-type", ""),
    ] {
        assert_eq!(field(name), value, "{name}");
    }
    assert!(field("vary").contains("Origin") && field("vary").contains("X-Page"), "{}", field("vary"));
}

#[test]
fn a_request_for_a_page_gets_no_page() {
    let (origin, port) = (origin(), free_port());
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "listen: ['127.0.0.1:{port}']
upstreams: [{{ id: self, nodes: {{ '127.0.0.1:{port}': 1 }} }}]
routes:
  - uri: /*
    plugins: {{ error-page: {{ upstream_errors: true, fetch: {{ statuses: [404], upstream_id: self, path: /404 }} }} }}
    upstream: {{ nodes: {{ '{}': 1 }} }}
",
        origin.addr()
    ));
    let answer = gateway.client().ask("GET /404 HTTP/1.1\r\nHost: t\r\n\r\n").expect("an answer");
    assert_eq!((answer.status, answer.text().as_str()), (404, "of the origin"));
    assert_eq!(origin.requests().len(), 2);
}

#[test]
fn a_response_without_content_is_no_page() {
    let origin = origin();
    for status in [206, 304] {
        let pages = Origin::serving(move |_| Answer::with(status, "ETag: \"1\"\r\n", ""));
        let gateway = gateway(&origin, &pages.addr().to_string(), ", keep_status: false");
        let answer = gateway.get("/all/503");
        assert_eq!((answer.status, answer.text().contains("503 Service")), (503, true), "{status}");
    }
}

#[test]
fn a_page_is_not_waited_for_when_its_client_has_left() {
    let origin = origin();
    let (asked, gone) = (Arc::new(Barrier::new(2)), Arc::new(AtomicBool::new(false)));
    let (begun, ended) = (Arc::clone(&asked), Arc::clone(&gone));
    let silent = Origin::scripted(Reading::Strict, move |connection| {
        if connection.request().is_ok() {
            begun.wait();
            // The gateway closes the connection when no client waits for the page any more.
            ended.store(connection.request().is_err(), Relaxed);
            begun.wait();
        }
    });
    let gateway = gateway(&origin, &silent.addr().to_string(), "");
    let mut client = gateway.client();
    client.send("GET /all/503 HTTP/1.1\r\nHost: t\r\n\r\n");
    asked.wait();
    drop(client);
    asked.wait();
    assert!(gone.load(Relaxed));
}

#[test]
fn faults_of_fetched_pages_are_told_with_their_place() {
    for (fetch, told) in [
        ("{ statuses: [404] }", "fetch: has no upstream"),
        ("{ statuses: [200], upstream_id: p }", "fetch.statuses[0]"),
        ("{ statuses: [404], upstream_id: q }", "`q`"),
        ("{ statuses: [404], upstream_id: p, path: x }", "fetch.path"),
        ("{ statuses: [404], upstream_id: p, upstream: { nodes: { '127.0.0.1:1': 1 } } }", "upstream_id"),
        ("{ statuses: [404], upstream_id: p, headers: { 'a b': c } }", "fetch.headers"),
    ] {
        let file = format!(
            "upstreams: [{{ id: p, nodes: {{ '127.0.0.1:1': 1 }} }}]\nroutes: [{{ uri: /, upstream_id: p, plugins: {{ error-page: {{ fetch: {fetch} }} }} }}]\n"
        );
        let directory = TempDir::new();
        let path = directory.write("weir.yaml", &file);
        let check = Command::new(env!("CARGO_BIN_EXE_weir")).arg("check").arg(path).output().expect("it runs");
        let said = String::from_utf8_lossy(&check.stderr);
        assert!(!check.status.success(), "{fetch}");
        assert!(said.contains(told), "{fetch}: {said}");
    }
}
