//! `error-page`: bodies for error responses of the gateway itself.

use weir_testkit::{Answer, Gateway, Origin, free_port};

/// A gateway whose global rule has the pages of the metadata, before an origin that answers with a status.
fn gateway(origin: &Origin, metadata: &str) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file(origin, metadata))
}

fn file(origin: &Origin, metadata: &str) -> String {
    let (origin, closed) = (origin.addr(), free_port());
    format!(
        "plugin_metadata: [{{ id: error-page, {metadata} }}]
global_rules: [{{ id: pages, plugins: {{ error-page: {{}} }} }}]
routes:
  - {{ id: dead, uri: /dead, upstream: {{ nodes: {{ '127.0.0.1:{closed}': 1 }} }} }}
  - {{ id: passed, uri: /passed/*, upstream: {{ nodes: {{ '{origin}': 1 }} }} }}
  - id: own
    uri: /own/*
    upstream: {{ nodes: {{ '{origin}': 1 }} }}
    plugins:
      basic-auth: {{ _meta: {{ filter: [[http_x_guard, '==', '1']] }} }}
      error-page: {{ upstream_errors: true, error_4xx: {{ body: own }} }}
"
    )
}

pub(crate) fn origin() -> Origin {
    Origin::serving(|request| {
        let status = request.target.rsplit('/').next().and_then(|status| status.parse().ok()).unwrap_or(200);
        Answer::with(status, "Content-Type: text/plain\r\nETag: \"1\"\r\n", "of the origin")
    })
}

const PAGES: &str =
    "enable: true, error_404: { body: no such page }, error_5xx: { body: '{}', content_type: application/json }";

#[test]
fn error_pages_are_for_the_gateways_own_responses() {
    let origin = origin();
    let gateway = gateway(&origin, PAGES);
    let answer = gateway.get("/nowhere");
    assert_eq!((answer.status, answer.text().as_str()), (404, "no such page"));
    assert_eq!(
        (answer.headers.get("content-type"), answer.headers.get("content-length")),
        (Some("text/html"), Some("12"))
    );
    let answer = gateway.get("/dead");
    assert_eq!((answer.status, answer.text().as_str()), (502, "{}"));
    assert_eq!(answer.headers.get("content-type"), Some("application/json"));
    for status in [404, 503] {
        let answer = gateway.get(&format!("/passed/{status}"));
        assert_eq!((answer.status, answer.text().as_str()), (status, "of the origin"));
        assert_eq!(answer.headers.get("etag"), Some("\"1\""));
    }
    let head = gateway.client().ask("HEAD /nowhere HTTP/1.1\r\nHost: t\r\n\r\n").expect("an answer");
    assert_eq!((head.status, head.text().as_str(), head.headers.get("content-length")), (404, "", Some("12")));
}

#[test]
fn error_pages_of_a_route_come_before_those_of_the_metadata() {
    let origin = origin();
    let gateway = gateway(&origin, PAGES);
    let answer = gateway.get("/own/404");
    assert_eq!((answer.status, answer.text().as_str(), answer.headers.has("etag")), (404, "own", false));
    let answer = gateway.get("/own/500");
    assert_eq!((answer.status, answer.text().as_str()), (500, "{}"), "of the metadata");
    assert_eq!(gateway.get("/own/200").text(), "of the origin");
    let refused = gateway.client().ask("GET /own/200 HTTP/1.1\r\nHost: t\r\nX-Guard: 1\r\n\r\n").expect("an answer");
    assert_eq!((refused.status, refused.text().as_str()), (401, "own"));
    assert!(refused.headers.has("www-authenticate"), "the other fields stay");
}

#[test]
fn error_pages_follow_a_change_of_the_metadata() {
    let origin = origin();
    let gateway = gateway(&origin, "enable: true, error_404: { body: one }");
    assert_eq!(gateway.get("/nowhere").text(), "one");
    gateway.rewrite(&file(&origin, "enable: true, error_404: { body: two }"));
    assert_eq!(gateway.get("/nowhere").text(), "two");
    gateway.rewrite(&file(&origin, "error_404: { body: two }"));
    assert_eq!(gateway.get("/nowhere").text(), "{\"error_msg\":\"404 Route Not Found\"}\n");
}
