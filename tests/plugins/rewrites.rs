//! Plugins that change what passes through.

use std::process::Command;

use weir_testkit::TempDir;

use crate::Rig;

#[test]
fn the_upstream_gets_the_rewritten_request() {
    let rig = Rig::with(
        r#"{ proxy-rewrite: { regex_uri: ["^/v(\\d)/(.*)", "/$2"], method: PUT, host: "up.example:81", headers: { set: { X-Version: "$1", X-From: $remote_addr }, remove: [X-Secret] } } }"#,
    );
    let request =
        "POST /v2/a/../b?q=1 HTTP/1.1\r\nHost: t\r\nX-Secret: s\r\nX-Version: 9\r\nContent-Length: 2\r\n\r\nhi";
    let answer = rig.gateway.client().ask(request).expect("an answer");
    assert_eq!(answer.text(), "PUT /b?q=1");
    let requests = rig.origin.requests();
    let headers = &requests[0].headers;
    assert_eq!((headers.get("host"), requests[0].body.as_slice()), (Some("up.example:81"), b"hi".as_slice()));
    assert_eq!(headers.all("x-version").collect::<Vec<_>>(), ["2"]);
    assert_eq!((headers.get("x-from"), headers.get("x-secret")), (Some("127.0.0.1"), None));
}

#[test]
fn the_query_is_kept_where_a_path_says_so_as_nginx_does() {
    let rig = Rig::with("{ proxy-rewrite: { uri: '/new$is_args$args' } }");
    assert_eq!(rig.gateway.get("/old?q=1").text(), "GET /new?q=1");
    assert_eq!(rig.gateway.get("/old").text(), "GET /new");
}

#[test]
fn values_cannot_lead_out_of_the_rewritten_path() {
    let rig = Rig::with("{ proxy-rewrite: { uri: '/files/$arg_name' } }");
    for name in ["../admin", "%2e%2e/admin", "..%5cadmin"] {
        assert_eq!(rig.gateway.get(&format!("/?name={name}")).status, 400, "{name}");
    }
    assert_eq!(rig.gateway.get("/?name=a%20b%3fc").text(), "GET /files/a%20b%3Fc?name=a%20b%3fc");
    assert_eq!(rig.origin.requests().len(), 1);
}

#[test]
fn the_client_gets_the_rewritten_response() {
    let rig = Rig::with(
        r#"{ response-rewrite: { status_code: 209, body: "other\n", headers: { set: { X-Was: $upstream_status }, add: ["X-B: 1"], remove: [Content-Type] }, vars: [[status, ">=", 500]] } }"#,
    );
    let mut client = rig.gateway.client();
    let answer = client.get("/status/503").expect("an answer");
    assert_eq!((answer.status, answer.text()), (209, "other\n".to_owned()));
    let headers = &answer.headers;
    assert_eq!((headers.get("x-was"), headers.get("x-b")), (Some("503"), Some("1")));
    assert!(!headers.has("content-type") && !headers.has("etag"));
    assert_eq!(headers.all("content-length").collect::<Vec<_>>(), ["6"]);
    // The expression does not hold, so the upstream's response passes as it is.
    let answer = client.get("/a").expect("on the same connection");
    assert_eq!((answer.status, answer.text(), answer.headers.get("etag")), (200, "GET /a".to_owned(), Some("\"1\"")));
}

#[test]
fn an_id_goes_both_ways() {
    let rig = Rig::with("{ request-id: {} }");
    let answer = rig.gateway.get("/");
    let id = answer.headers.get("x-request-id").expect("an id");
    assert_eq!(rig.origin.requests()[0].headers.get("x-request-id"), Some(id));
    let own = rig.gateway.client().ask("GET / HTTP/1.1\r\nHost: t\r\nX-Request-Id: mine\r\n\r\n").expect("an answer");
    assert_eq!(own.headers.all("x-request-id").collect::<Vec<_>>(), ["mine"]);
}

#[test]
fn p01_an_address_is_believed_from_proxies_only() {
    let ask = |rig: &Rig| {
        let request = "GET / HTTP/1.1\r\nHost: t\r\nX-Forwarded-For: 6.6.6.6, 203.0.113.9, 127.0.0.2\r\n\r\n";
        rig.gateway.client().ask(request).expect("an answer");
        rig.origin.requests().last().expect("it was asked").headers.get("x-real-ip").map(str::to_owned)
    };
    let rig =
        Rig::with("{ real-ip: { source: http_x_forwarded_for, trusted_addresses: [127.0.0.0/8], recursive: true } }");
    assert_eq!(ask(&rig).as_deref(), Some("203.0.113.9"));
    rig.change("{ real-ip: { source: http_x_forwarded_for, trusted_addresses: [10.0.0.0/8], recursive: true } }");
    assert_eq!(ask(&rig).as_deref(), Some("127.0.0.1"));
}

#[test]
fn a_plugin_says_who_was_before() {
    let rig =
        Rig::with("{ proxy-rewrite: { headers: { set: { X-Forwarded-Proto: https, X-Forwarded-Prefix: /api } } } }");
    let request = "GET / HTTP/1.1\r\nHost: t\r\nX-Forwarded-Proto: wss\r\nX-Forwarded-Host: evil\r\n\r\n";
    assert_eq!(rig.gateway.client().ask(request).expect("an answer").status, 200);
    let headers = &rig.origin.requests()[0].headers;
    assert_eq!(headers.all("x-forwarded-proto").collect::<Vec<_>>(), ["https"]);
    assert_eq!((headers.get("x-forwarded-prefix"), headers.get("x-forwarded-host")), (Some("/api"), Some("t")));
}

#[test]
fn check_names_a_plugin_that_would_hold_a_stream() {
    let place = TempDir::new();
    let route = |uri: &str, plugins: &str| {
        format!("  - {{ uri: {uri}, upstream: {{ nodes: {{ '127.0.0.1:1': 1 }} }}, plugins: {{ {plugins} }} }}\n")
    };
    let filter = "response-rewrite: { filters: [{ regex: a, replace: b }]";
    let rule = "content-filter: { rules: [{ on: response, in: body, pattern: a, action: mask }]";
    let routes = [
        route("/held", &format!("sse-policy: {{ max_event_size: 100 }}, {filter} }}")),
        route("/checked", &format!("sse-policy: {{ max_event_size: 100 }}, {rule} }}")),
        route("/passed", &format!("sse-policy: {{ max_event_size: 100 }}, {filter}, streams: pass }}")),
        route("/plain", &format!("{filter} }}")),
    ];
    let file = place.write("weir.yaml", format!("routes:\n{}", routes.concat()));
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).arg("check").arg(file).output().expect("it was built");
    let said = String::from_utf8_lossy(&output.stderr);
    let held: Vec<_> = said.lines().filter(|line| line.contains("holds the whole content")).collect();
    assert_eq!(held.len(), 2, "{said}");
    assert!(held[0].contains("routes[0].plugins.response-rewrite: "), "{said}");
    assert!(held[1].contains("routes[1].plugins.content-filter: "), "{said}");
}
