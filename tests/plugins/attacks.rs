//! P04, P09, P16, R05, R06: what must not let anybody in, nor cost more than it is worth.

use std::fs;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use weir_testkit::timing::assert_same_time;
use weir_testkit::{Answer, Client, DEADLINE, Gateway, Origin, eventually};

use crate::{Rig, refused};

/// Is refused, whatever is wrong about it.
fn refused_with(client: &mut Client, target: &str, field: &str) {
    let answer = client.ask(format!("GET {target} HTTP/1.1\r\nHost: t\r\n{field}\r\n\r\n")).expect("an answer");
    assert_eq!(answer.status, 401, "{field}");
}

#[test]
fn p04_how_long_a_refusal_takes_says_nothing() {
    let (name, right) = (*b"name0000", *b"0123456789abcdefghijklmnopqrstuv");
    let text = str::from_utf8(&right).expect("ASCII");
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "worker_processes: 1
routes:
  - {{ uri: /key, plugins: {{ key-auth: {{}}, mocking: {{ response_example: in }} }} }}
  - {{ uri: /name, plugins: {{ basic-auth: {{}}, mocking: {{ response_example: in }} }} }}
consumers:
  - {{ username: jack, plugins: {{ key-auth: {{ key: {text} }}, basic-auth: {{ username: name0000, password: {text} }} }} }}
"
    ));
    let mut client = gateway.client();
    let admitted = client.ask(format!("GET /key HTTP/1.1\r\nHost: t\r\napikey: {text}\r\n\r\n")).expect("an answer");
    assert_eq!(admitted.status, 200);
    assert_same_time(
        "key-auth over a socket: keys that begin as a valid one does, and others",
        |begins_right, random| if begins_right { random.beginning_as(&right) } else { random.text() },
        |key: &[u8; 32]| refused_with(&mut client, "/key", &format!("apikey: {}", str::from_utf8(key).expect("ASCII"))),
    );
    let mut refuse = |(name, password): &([u8; 8], [u8; 32])| {
        let shown = STANDARD.encode([name, &b":"[..], password].concat());
        refused_with(&mut client, "/name", &format!("Authorization: Basic {shown}"));
    };
    assert_same_time(
        "basic-auth over a socket: passwords that begin as the right one does, and others",
        |begins_right, random| (name, if begins_right { random.beginning_as(&right) } else { random.text() }),
        &mut refuse,
    );
    assert_same_time(
        "basic-auth over a socket: a name that exists, and one that does not",
        |exists, random| (if exists { name } else { *b"nobody00" }, random.text()),
        refuse,
    );
}

#[test]
fn p09_what_cannot_be_built_is_refused_and_what_guarded_goes_on() {
    assert!(refused("{ key-auth: { header: $env://WEIR_TEST_NOT_SET } }").contains("WEIR_TEST_NOT_SET"));
    assert!(refused("{ key-auth: { anonymous_consumer: nobody } }").contains("plugins.key-auth.anonymous_consumer"));
    let rig = Rig::with("{ key-auth: {} }");
    assert_eq!(rig.gateway.get("/").status, 401);
    let good = fs::read_to_string(rig.gateway.file()).expect("the file");
    let refused = "weir_config_reloads_total{outcome=\"refused\"}";
    for (round, bad) in ["key-auth: { heder: x }", "key-auht: {}", "key-auth: { header: $env://WEIR_TEST_NOT_SET }"]
        .into_iter()
        .enumerate()
    {
        rig.gateway.replace_file(&good.replace("key-auth: {}", bad));
        eventually("it is refused", DEADLINE, || rig.gateway.metrics().get(refused) > Some(round as f64));
        assert_eq!(rig.gateway.get("/").status, 401, "{bad}");
    }
    assert_eq!(rig.origin.requests().len(), 0);
}

#[test]
fn p09_who_proves_nothing_at_any_door_is_nobody() {
    let rig = Rig::with("{ multi-auth: { auth_plugins: [{ basic-auth: {} }, { key-auth: {} }] } }");
    for fields in ["", "apikey: x\r\n", "Authorization: Basic eDp4\r\n", "apikey:\r\nAuthorization: Basic\r\n"] {
        let request = format!("GET / HTTP/1.1\r\nHost: t\r\nX-Consumer-Username: admin\r\n{fields}\r\n");
        assert_eq!(rig.gateway.client().ask(request).expect("an answer").status, 401, "{fields:?}");
    }
    assert_eq!(rig.origin.requests().len(), 0);
}

#[test]
fn p16_a_host_is_the_same_in_every_spelling() {
    let yaml = "routes:
  - { uri: /*, host: a.example, plugins: { mocking: { response_example: one } } }
  - { uri: /*, plugins: { mocking: { response_example: other } } }
";
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(yaml);
    let ask = |host: &str| gateway.client().ask(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).expect("an answer");
    for host in ["a.example", "A.EXAMPLE", "a.example.", "a.example:80", "a.example:8443", "A.Example.:80"] {
        assert_eq!(ask(host).text(), "one", "{host}");
    }
    for host in ["b.a.example", "a.example.evil", "xn--a.example", "a.examplf"] {
        assert_eq!(ask(host).text(), "other", "{host}");
    }
    for host in ["a.example@evil", "a.example/x", "a%2eexample", "a.example, b", "ä.example"] {
        assert_eq!(ask(host).status, 400, "{host}");
    }
}

#[test]
fn p16_nobodys_origin_is_nobodys_friend() {
    let rig = Rig::with("{ cors: { allow_origins: \"https://a.example\", allow_methods: GET } }");
    for (origin, allowed) in [
        ("https://a.example", Some("https://a.example")),
        ("null", None),
        ("https://a.example.evil", None),
        ("https://evila.example", None),
        ("http://a.example", None),
        ("https://a.example:8443", None),
    ] {
        let request = format!("GET / HTTP/1.1\r\nHost: t\r\nOrigin: {origin}\r\n\r\n");
        let answer = rig.gateway.client().ask(request).expect("an answer");
        assert_eq!(answer.headers.get("access-control-allow-origin"), allowed, "{origin}");
        assert!(
            answer.headers.get("vary").is_some_and(|vary| vary.to_ascii_lowercase().contains("origin")),
            "{origin}"
        );
    }
}

#[test]
fn r05_an_expression_takes_time_in_proportion_and_a_bounded_size() {
    let rig =
        Rig::with("{ uri-blocker: { block_rules: [\"(a+)+$\", \"^(a|a)*b$\", \"(.*)*x\"], rejected_code: 403 } }");
    let vars = "routes:
  - { uri: /*, vars: [[uri, '~~', '^/(a+)+$']], plugins: { mocking: { response_example: matched } } }
  - { uri: /*, plugins: { mocking: { response_example: not } } }
";
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(vars);
    // Whatever tries one way after the other would not come to an end.
    let long = format!("/{}!", "a".repeat(12_000));
    assert_eq!(gateway.get(&long).text(), "not");
    assert_eq!(gateway.get(&long[..12_000]).text(), "matched");
    assert_eq!(rig.gateway.get(&long).status, 200);
    assert_eq!(rig.gateway.get("/aaa").status, 403);
    let fastest = |gateway: &Gateway, target: &str| {
        let mut client = gateway.client();
        let ask = |_| {
            let began = Instant::now();
            client.get(target).expect("an answer");
            began.elapsed()
        };
        (0..50).map(ask).min().expect("it was asked")
    };
    for (what, gateway) in [("route", &gateway), ("plugin", &rig.gateway)] {
        let (short, took) = (fastest(gateway, "/b"), fastest(gateway, &long));
        println!("{what}: {short:?} for a short path, {took:?} for 12 kB");
        assert!(took < short + Duration::from_millis(5), "{what}: {took:?}, and {short:?} for a short path");
    }
    let said = refused("{ uri-blocker: { block_rules: [\"((a{100}){100}){100}\"] } }");
    assert!(
        said.contains(
            "plugins.uri-blocker.block_rules[0]: is too large: the compiled expression must not exceed 1024 KiB"
        ),
        "{said}"
    );
}

/// A request of about so many bytes.
type RequestOfSize<'a> = &'a dyn Fn(usize) -> String;

#[test]
fn r06_many_fields_of_one_name_cost_what_their_bytes_cost() {
    let rig = Rig::with(
        "{ limit-count: { count: 100000000, time_window: 86400, key: $cookie_a $arg_a, key_type: var_combination } }",
    );
    let file = fs::read_to_string(rig.gateway.file()).expect("the file");
    rig.gateway.rewrite(&format!("client_max_header_size: 131072\n{file}"));
    let shapes: [(&str, RequestOfSize); 3] = [
        ("cookies", &|bytes| format!("GET / HTTP/1.1\r\nHost: t\r\nCookie: {}\r\n\r\n", ";".repeat(bytes))),
        ("arguments", &|bytes| format!("GET /?{} HTTP/1.1\r\nHost: t\r\n\r\n", vec!["a=1"; bytes / 8].join("&"))),
        ("fields", &|bytes| {
            let field = format!("Cookie: a=1; b={}\r\n", "x".repeat(700));
            format!("GET / HTTP/1.1\r\nHost: t\r\n{}\r\n", field.repeat(1 + bytes / 720))
        }),
    ];
    for (what, shape) in shapes {
        let mut client = rig.gateway.client();
        let mut fastest = |bytes: usize| -> Duration {
            let request = shape(bytes);
            let ask = |_| {
                let began = Instant::now();
                assert_eq!(client.ask(&request).expect("an answer").status, 200, "{what} of {bytes} bytes");
                began.elapsed()
            };
            (0..50).map(ask).min().expect("it was asked")
        };
        // A target has a limit of its own.
        let most = if what == "arguments" { 28 } else { 64 };
        let (small, large) = (fastest(1_000), fastest(most as usize * 1_000));
        println!("{what}: {small:?} for 1 kB, {large:?} for {most} kB");
        // What grows with the square takes the square of it.
        assert!(large < 2 * most * small, "{what}: {small:?} for 1 kB, {large:?} for {most} kB");
    }
}

/// A gateway in which clients may have 2 MiB held, and a body may have 50.
fn holding() -> (Gateway, Origin) {
    let origin = Origin::serving(|request| Answer::ok(format!("{} {}", request.target, request.body.len())));
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "worker_processes: 2
held_content_max: 4MiB
held_content_max_per_client: 2MiB
trusted_addresses: [127.0.0.1]
routes:
  - uri: /*
    plugins: {{ real-ip: {{ source: http_x_client }}, request-validation: {{ body_schema: {{}}, max_req_body_size: 52428800 }} }}
    upstream: {{ type: roundrobin, nodes: {{ \"{}\": 1 }} }}
",
        origin.addr()
    ));
    (gateway, origin)
}

/// Sends so much of a body of 50 MB, and keeps the rest for later.
fn half_sent(gateway: &Gateway, address: &str, bytes: usize) -> Client {
    let mut client = gateway.client();
    client.send(format!("POST /a HTTP/1.1\r\nHost: t\r\nX-Client: {address}\r\nContent-Length: 50000000\r\n\r\n["));
    let block = "1,".repeat(8 << 10);
    for _ in 0..bytes / block.len() {
        if client.try_send(&block).is_err() {
            break; // refused already
        }
    }
    client
}

/// The bytes of content that the node holds.
fn used(gateway: &Gateway) -> f64 {
    gateway.metrics().sum("weir_held_content_bytes", &[])
}

#[test]
fn u01_half_sent_bodies_are_bounded_for_a_client_and_for_the_node() {
    let (gateway, _origin) = holding();
    let mut greedy = half_sent(&gateway, "10.0.0.1", 8 << 20);
    assert_eq!(greedy.response().expect("an answer").status, 413, "beyond its share");
    eventually("nothing is held for it", DEADLINE, || used(&gateway) == 0.0);
    // Holders of half a MiB, one after the other, until one is refused: together they might all be. A holder counts for up to
    // twice of what it has sent, as its buffer grows.
    let refused = || gateway.metrics().sum("weir_held_content_refused_total", &[r#"limit="node""#]);
    let (mut holders, before) = (Vec::new(), refused());
    while refused() == before {
        assert!(holders.len() < 9, "the node holds more than it may");
        let wanted = used(&gateway) + 524_288.0;
        holders.push(half_sent(&gateway, &format!("10.0.1.{}", holders.len()), 512 << 10));
        eventually("it is held or refused", DEADLINE, || used(&gateway) >= wanted || refused() > before);
    }
    let mut last = holders.pop().expect("one was refused");
    assert_eq!(last.response().expect("an answer").status, 503, "the node is full");
    assert!(used(&gateway) <= 4.0 * 1_048_576.0);
    assert_eq!(gateway.client().get("/b").map(|answer| answer.status), Ok(400), "what holds nothing goes on");
}

#[test]
fn u01_a_body_of_small_numbers_is_refused_before_it_is_a_tree() {
    let rig = Rig::with("{ request-validation: { body_schema: {}, max_req_body_size: 67108864 } }");
    let before = rig.gateway.rss();
    let body = format!("[{}1]", "1,".repeat(10 << 20));
    let mut client = rig.gateway.client();
    let request = format!("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let answer = client.ask(request).expect("an answer");
    assert_eq!((answer.status, answer.text().as_str()), (400, "the body has more than 100000 values"));
    let grown = rig.gateway.rss().saturating_sub(before);
    assert!(grown <= 64 << 20, "20 MiB took {grown} bytes");
}

#[test]
fn u06_no_schema_is_passed_by_with_two_types() {
    let rig = Rig::with("{ request-validation: { body_schema: { required: [a] } } }");
    for types in [
        "Content-Type: application/x-www-form-urlencoded\r\nContent-Type: application/json\r\n",
        "Content-Type: application/json\r\nContent-Type: application/x-www-form-urlencoded\r\n",
        "Content-Type: application/x-www-form-urlencoded, application/json\r\n",
    ] {
        let request = format!("POST /a HTTP/1.1\r\nHost: t\r\n{types}Content-Length: 10\r\n\r\n{{\"b\":\"a=\"}}");
        assert_eq!(rig.gateway.client().ask(request).expect("an answer").status, 400, "{types:?}");
    }
    assert!(rig.origin.requests().is_empty());
}
