//! Plugins that answer themselves, or refuse.

use crate::Rig;

#[test]
fn mocking_asks_no_upstream() {
    let rig = Rig::with(
        r#"{ mocking: { response_example: '{"a":"$arg_a"}', response_status: 201, response_headers: { X-A: b } } }"#,
    );
    let mut client = rig.gateway.client();
    let answer = client.get("/hello?a=%22").expect("an answer");
    assert_eq!((answer.status, answer.text()), (201, r#"{"a":"\""}"#.to_owned()));
    assert_eq!(answer.headers.get("content-type"), Some("application/json;charset=utf8"));
    assert_eq!(answer.headers.get("x-a"), Some("b"));
    assert!(answer.headers.get("x-mock-by").is_some_and(|by| by.starts_with("Weir/")));
    let head = client.ask("HEAD /hello HTTP/1.1\r\nHost: t\r\n\r\n").expect("an answer");
    assert_eq!((head.status, head.text()), (201, String::new()));
    let post = client.ask("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc").expect("an answer");
    assert_eq!(post.status, 201);
    assert_eq!(client.get("/").expect("on the same connection").status, 201);
    assert_eq!(rig.origin.requests(), []);
}

#[test]
fn a_refusal_reaches_nobody_and_keeps_the_connection() {
    let rig = Rig::with("{ ip-restriction: { whitelist: [10.0.0.0/8] } }");
    let mut client = rig.gateway.client();
    for _ in 0..2 {
        let answer = client.get("/").expect("an answer");
        assert_eq!(
            (answer.status, answer.text()),
            (403, "{\"message\":\"Your IP address is not allowed\"}\n".to_owned())
        );
    }
    rig.change("{ ip-restriction: { whitelist: [127.0.0.0/8] } }");
    assert_eq!(client.get("/a").expect("an answer").text(), "GET /a");
    assert_eq!(rig.origin.targets(), ["/a"]);
}

#[test]
fn refusals_by_agent_referer_and_target() {
    let rig = Rig::with(
        "{ ua-restriction: { denylist: [curl], bypass_missing: true }, uri-blocker: { block_rules: ['^/admin'] }, \
         referer-restriction: { blacklist: ['*.evil.example'], bypass_missing: true } }",
    );
    let status = |target: &str, fields: &str| {
        let request = format!("GET {target} HTTP/1.1\r\nHost: t\r\n{fields}\r\n");
        rig.gateway.client().ask(request).expect("an answer").status
    };
    assert_eq!(status("/", "User-Agent: curl/8\r\n"), 403);
    assert_eq!(status("/", "Referer: https://a.evil.example/\r\n"), 403);
    assert_eq!(status("/%61dmin", ""), 403);
    assert_eq!(status("/a", "User-Agent: x\r\nReferer: https://evil.example.org/\r\n"), 200);
    assert_eq!(rig.origin.targets(), ["/a"]);
}

#[test]
fn browsers_are_answered_and_told_on_every_response() {
    let rig = Rig::with("{ cors: { allow_origins: 'https://a.example', allow_methods: 'GET,PUT' } }");
    let ask = |method: &str, target: &str, origin: &str| {
        let request = format!("{method} {target} HTTP/1.1\r\nHost: t\r\nOrigin: {origin}\r\n\r\n");
        rig.gateway.client().ask(request).expect("an answer")
    };
    let preflight = ask("OPTIONS", "/x", "https://a.example");
    assert_eq!((preflight.status, preflight.text()), (200, String::new()));
    assert_eq!(preflight.headers.get("access-control-allow-methods"), Some("GET,PUT"));
    assert_eq!(rig.origin.targets(), [""; 0]);
    for status in [200, 404, 500] {
        let answer = ask("GET", &format!("/status/{status}"), "https://a.example");
        assert_eq!(answer.status, status);
        assert_eq!(answer.headers.get("access-control-allow-origin"), Some("https://a.example"));
        assert!(answer.headers.lists("vary", "origin"));
    }
    assert!(!ask("GET", "/", "https://b.example").headers.has("access-control-allow-origin"));
}

#[test]
fn p15_redirects_lead_where_they_say() {
    let rig = Rig::with("{ redirect: { uri: '/to/$arg_a', ret_code: 307 } }");
    let answer = rig.gateway.get("/?a=x%0d%0aSet-Cookie:%20a=b");
    assert_eq!(answer.status, 307);
    assert_eq!(answer.headers.get("location"), Some("/to/x%0D%0ASet-Cookie:%20a=b"));
    assert!(!answer.headers.has("set-cookie"));
    rig.change("{ redirect: { http_to_https: true } }");
    let answer = rig.gateway.get("/a/../b?c=1");
    assert_eq!((answer.status, answer.headers.get("location")), (301, Some("https://t/b?c=1")));
}

#[test]
fn a_fault_is_injected_where_its_expression_holds() {
    let rig = Rig::with(
        r#"{ fault-injection: { abort: { http_status: 418, body: "tea $uri", vars: [[[arg_fail, "==", "1"]]] }, delay: { duration: 0.05 } } }"#,
    );
    let answer = rig.gateway.get("/hello?fail=1");
    assert_eq!((answer.status, answer.text()), (418, "tea /hello".to_owned()));
    assert_eq!(rig.gateway.get("/hello").text(), "GET /hello");
}

#[test]
fn a_form_needs_its_token() {
    let rig = Rig::with("{ csrf: { key: k, name: token } }");
    let answer = rig.gateway.get("/form");
    let cookie = answer.headers.get("set-cookie").expect("a cookie");
    let token = cookie.strip_prefix("token=").and_then(|rest| rest.split(';').next()).expect("a token");
    let post = |fields: &str| {
        let request = format!("POST /form HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n{fields}\r\n");
        rig.gateway.client().ask(request).expect("an answer")
    };
    assert_eq!(post(&format!("token: {token}\r\nCookie: token={token}\r\n")).text(), "POST /form");
    let refused = post(&format!("Cookie: token={token}\r\n"));
    assert_eq!((refused.status, refused.text()), (401, "{\"error_msg\":\"no csrf token in headers\"}\n".to_owned()));
    assert!(refused.headers.has("set-cookie"), "a refusal brings a token, too");
}

#[test]
fn bodies_have_the_routes_limit() {
    let rig = Rig::with("{ client-control: { max_body_size: 4 } }");
    let post = |request: &str| rig.gateway.client().ask(request).expect("an answer").status;
    assert_eq!(post("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n\r\nabcd"), 200);
    assert_eq!(post("POST /b HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nabcde"), 413);
    assert_eq!(post("POST /c HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n"), 413);
    assert_eq!(rig.origin.targets(), ["/a"]);
}
