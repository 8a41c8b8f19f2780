//! What Apache APISIX does and its users count on, seen from outside (`u18_`, `u20_`).

use std::process::Command;

use weir_testkit::{Answer, Gateway, Origin, TempDir};

use crate::{Rig, refused};

/// The head that the origin got of the only request.
fn asked(rig: &Rig, request: &str) -> weir_testkit::Request {
    assert_eq!(rig.gateway.client().ask(request).expect("an answer").status, 200, "{request}");
    rig.origin.requests().pop().expect("it was asked")
}

fn gateway(text: &str) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(text)
}

#[test]
fn u18_answers_of_the_gateways_own_look_as_apisixs() {
    let gateway = gateway("routes: [{ uri: /a, upstream: { nodes: { '127.0.0.1:1': 1 } } }]\n");
    let answer = gateway.get("/nowhere");
    assert_eq!((answer.status, answer.text().as_str()), (404, "{\"error_msg\":\"404 Route Not Found\"}\n"));
    let answer = gateway.get("/a");
    assert_eq!((answer.status, answer.headers.get("content-type")), (502, Some("text/html")));
    assert!(answer.text().contains("<h1>502 Bad Gateway</h1>"), "{}", answer.text());
    assert_eq!(answer.headers.get("x-apisix-upstream-status"), Some("502"));
    let json = gateway.client().ask("GET /a HTTP/1.1\r\nHost: t\r\nAccept: application/json\r\n\r\n");
    assert_eq!(json.expect("an answer").text(), "{\"error_msg\":\"502 Bad Gateway\"}\n");
}

#[test]
fn u18_a_failing_upstream_is_told_from_a_failing_gateway() {
    let rig = Rig::with("{ response-rewrite: { headers: { set: { X-A: '1' } } } }");
    assert_eq!(rig.gateway.get("/status/503").headers.get("x-apisix-upstream-status"), Some("503"));
    assert_eq!(rig.gateway.get("/status/404").headers.get("x-apisix-upstream-status"), None);
}

#[test]
fn u18_all_weights_of_zero_leave_nobody_to_ask() {
    let gateway = gateway(
        "routes:
  - { uri: /a, upstream: { nodes: { '127.0.0.1:1': 0, '127.0.0.1:2': 0 } } }
  - { uri: /b, upstream: { type: chash, key: uri, nodes: { '127.0.0.1:1': 0, '127.0.0.1:2': 0 } } }
  - { uri: /c, upstream: { type: chash, key: uri, nodes: { '127.0.0.1:1': 0 } } }
",
    );
    for target in ["/a", "/b", "/c"] {
        let answer = gateway.get(target);
        assert_eq!(answer.status, 503, "{target}");
        assert!(answer.text().contains("503 Service Temporarily Unavailable"), "{}", answer.text());
        assert_eq!(answer.headers.get("x-apisix-upstream-status"), None, "nobody was asked");
    }
}

#[test]
fn u18_amounts_of_limits_have_defaults() {
    let rig = Rig::with(
        "{ limit-count: { count: '${http_x_count ?? 2}', time_window: '${http_x_window ?? 60}' },
           limit-conn: { conn: '${arg_conn ?? 5}', burst: 0, default_conn_delay: 0.1, key: remote_addr } }",
    );
    let told = |fields: &str| {
        let answer =
            rig.gateway.client().ask(format!("GET /a HTTP/1.1\r\nHost: t\r\n{fields}\r\n")).expect("an answer");
        (answer.status, answer.headers.get("x-ratelimit-limit").map(str::to_owned))
    };
    assert_eq!(told(""), (200, Some("2".to_owned())));
    assert_eq!(told("X-Count: 9\r\n"), (200, Some("9".to_owned())));
    assert_eq!([told("").0, told("").0], [503, 503]);
    let said = refused("{ limit-count: { count: '${http_x_count ?? many}', time_window: 60 } }");
    assert!(said.contains("count: has the default `many`"), "{said}");
}

#[test]
fn u18_a_field_that_is_set_to_nothing_is_removed() {
    let rig = Rig::with(
        "{ proxy-rewrite: { headers: { set: { X-Gone: '', X-Also: $arg_none } } }, response-rewrite: { headers: { set: { ETag: '' } } } }",
    );
    let answer = rig.gateway.client().ask("GET /a HTTP/1.1\r\nHost: t\r\nX-Gone: 1\r\nX-Also: 2\r\n\r\n");
    assert!(!answer.expect("an answer").headers.has("etag"));
    let headers = &rig.origin.requests()[0].headers;
    assert!(!headers.has("x-gone") && !headers.has("x-also"));
}

#[test]
fn u18_forwarding_fields_can_be_removed() {
    let rig = Rig::with("{ proxy-rewrite: { headers: { remove: [X-Forwarded-For, X-Real-IP, X-Forwarded-Port] } } }");
    let request = asked(&rig, "GET /a HTTP/1.1\r\nHost: t\r\nX-Forwarded-For: 1.1.1.1\r\n\r\n");
    for name in ["x-forwarded-for", "x-real-ip", "x-forwarded-port"] {
        assert!(!request.headers.has(name), "{name}");
    }
    assert_eq!(request.headers.get("x-forwarded-host"), Some("t"));
}

#[test]
fn u18_the_forwarded_port_is_that_of_the_host() {
    let rig = Rig::with("{}");
    let port = |host: &str| {
        let request = asked(&rig, &format!("GET /a HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        request.headers.get("x-forwarded-port").map(str::to_owned)
    };
    assert_eq!(port("t:8080").as_deref(), Some("8080"), "a mapped port");
    assert_eq!(port("t").as_deref(), Some(rig.gateway.addr().port().to_string().as_str()));
}

#[test]
fn u18_a_plugin_without_options_has_its_defaults() {
    let text = "routes: [{ uri: /*, plugins: { key-auth: , mocking: { response_example: ok } } }]
consumers: [{ username: jack, plugins: { key-auth: { key: s3cret } } }]\n";
    let gateway = gateway(text);
    assert_eq!(gateway.get("/").status, 401);
    let known = gateway.client().ask("GET / HTTP/1.1\r\nHost: t\r\napikey: s3cret\r\n\r\n").expect("an answer");
    assert_eq!(known.status, 200);
}

#[test]
fn u18_parameters_of_a_uri_are_variables() {
    let origin = Origin::serving(|request| Answer::ok(request.target.clone()));
    let gateway = gateway(&format!(
        "routes:
  - uri: /users/:id/orders/:order
    plugins: {{ proxy-rewrite: {{ uri: /o/$uri_param_order, headers: {{ set: {{ X-User: $uri_param_id }} }} }} }}
    upstream: {{ type: roundrobin, nodes: {{ \"{0}\": 1 }} }}
  - {{ uri: /users/*, upstream: {{ type: roundrobin, nodes: {{ \"{0}\": 1 }} }} }}
",
        origin.addr()
    ));
    assert_eq!(gateway.get("/users/7/orders/9").text(), "/o/9");
    assert_eq!(origin.requests()[0].headers.get("x-user"), Some("7"));
    assert_eq!(gateway.get("/users/7/orders/9/items").text(), "/users/7/orders/9/items", "another route's");
}

#[test]
fn u18_vars_of_two_elements_ask_for_equality() {
    let rig = Rig::with("{ fault-injection: { abort: { http_status: 418, vars: [[[arg_tea, 'yes']]] } } }");
    let answer = rig.gateway.get("/a?tea=yes");
    assert_eq!((answer.status, answer.text().as_str()), (418, ""), "and an abort without a body has none");
    assert_eq!(rig.gateway.get("/a?tea=no").status, 200);
}

#[test]
fn u18_the_size_of_a_body_is_refused_with_the_code_of_the_plugin() {
    let rig = Rig::with(
        "{ request-validation: { body_schema: {}, max_req_body_size: 10, rejected_code: 422, rejected_msg: too much } }",
    );
    for (framing, body) in [
        ("Content-Length: 11", "[1,2,3,4,5]".to_owned()),
        ("Transfer-Encoding: chunked", "b\r\n[1,2,3,4,5]\r\n0\r\n\r\n".to_owned()),
    ] {
        let request = format!("POST /a HTTP/1.1\r\nHost: t\r\n{framing}\r\n\r\n{body}");
        let answer = rig.gateway.client().ask(request).expect("an answer");
        assert_eq!((answer.status, answer.text().as_str()), (422, "too much"), "{framing}");
    }
    assert!(rig.origin.requests().is_empty());
}

#[test]
fn u18_a_limit_chosen_by_workflow_replaces_the_routes() {
    let rig = Rig::with(
        "{ limit-count: { count: 1, time_window: 60 },
           workflow: { rules: [{ case: [[arg_tier, '==', paid]], actions: [[limit-count, { count: 3, time_window: 60 }]] }] } }",
    );
    let statuses = |target: &str| [(); 4].map(|()| rig.gateway.get(target).status);
    assert_eq!(statuses("/a?tier=paid"), [200, 200, 200, 503]);
    assert_eq!(statuses("/a"), [200, 503, 503, 503]);
}

#[test]
fn u18_check_does_not_judge_references_to_secrets() {
    let check = |consumer: &str| {
        let place = TempDir::new();
        let text = format!(
            "secrets: [{{ id: vault/1, uri: 'http://127.0.0.1:1', prefix: kv, token: t }}]
routes: [{{ uri: /*, upstream: {{ nodes: {{ '127.0.0.1:1': 1 }} }}, plugins: {{ jwt-auth: {{}} }} }}]
consumers: [{{ username: jack, plugins: {{ jwt-auth: {consumer} }} }}]\n"
        );
        let file = place.write("weir.yaml", &text);
        let output = Command::new(env!("CARGO_BIN_EXE_weir")).arg("check").arg(file).output().expect("it was built");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for consumer in [
        "{ key: k, secret: '$secret://vault/1/jack/secret', base64_secret: true }",
        "{ key: k, algorithm: RS256, public_key: '$secret://vault/1/jack/key' }",
    ] {
        let (code, said) = check(consumer);
        assert_eq!(code, Some(0), "{said}");
    }
    let (code, said) = check("{ key: k, algorithm: RS256, public_key: 'no key' }");
    assert!(code == Some(1) && said.contains("public_key: is not a public RSA key"), "{said}");
}

#[test]
fn u18_a_short_key_is_refused_before_it_refuses_everybody() {
    // 1,024 bits.
    let key = "-----BEGIN PUBLIC KEY-----\\nMIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDdlatRjRjogo3WojgGHFHYLugd\\nUWAY9iR3fy4arWNA1KoS8kVw33cJibXr8bvwUAUparCwlvdbH6dvEOfou0/gCFQs\\nHUfQrSDv+MuSUMAe8jzKE4qW+jK+xQU9a03GUnKHkkle+Q0pX/g6jXZ7r1/xAK5D\\no2kQ+X5xK9cipRgEKwIDAQAB\\n-----END PUBLIC KEY-----\\n";
    let place = TempDir::new();
    let text = format!(
        "consumers: [{{ username: jack, plugins: {{ jwt-auth: {{ key: k, algorithm: RS256, public_key: \"{key}\" }} }} }}]\n"
    );
    let file = place.write("weir.yaml", &text);
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).arg("check").arg(file).output().expect("it was built");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("public_key: is an RSA key of less than 2048 bits"), "{said}");
}

#[test]
fn u20_what_apisix_refuses_is_refused() {
    for (plugins, want) in [
        ("{ limit-count: { count: 1, time_window: 1, rejected_msg: '' } }", "rejected_msg"),
        (
            "{ limit-count: { rules: [{ count: 1, time_window: 1, key: $remote_addr }, { count: 9, time_window: 9, key: $remote_addr }] } }",
            "rules[1].key",
        ),
        ("{ proxy-rewrite: { regex_uri: ['^/a', '/b$'] } }", "regex_uri[1]"),
        ("{ gzip: { buffers: { number: 0 } } }", "buffers.number"),
    ] {
        let said = refused(plugins);
        assert!(said.contains(want), "{plugins}: {said}");
    }
}

#[test]
fn u20_a_count_may_be_as_large_as_benchmarks_have_it() {
    let rig = Rig::with("{ limit-count: { count: 2000000000, time_window: 60 } }");
    assert_eq!(rig.gateway.get("/a").headers.get("x-ratelimit-remaining"), Some("1999999999"));
}

#[test]
fn u19_origins_of_cors_can_stand_in_the_metadata() {
    let text = "plugin_metadata: [{ id: cors, allow_origins: { shop: 'https://shop.example,https://m.shop.example' } }]
routes: [{ uri: /*, plugins: { cors: { allow_origins: 'https://a.example', allow_origins_by_metadata: [shop] }, mocking: { response_example: ok } } }]\n";
    let gateway = gateway(text);
    let allowed = |origin: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: t\r\nOrigin: {origin}\r\n\r\n");
        let answer = gateway.client().ask(request).expect("an answer");
        answer.headers.get("access-control-allow-origin").map(str::to_owned)
    };
    for origin in ["https://a.example", "https://m.shop.example"] {
        assert_eq!(allowed(origin).as_deref(), Some(origin));
    }
    assert_eq!(allowed("https://evil.example"), None);
}
