//! Consumers: who comes in, what upstreams are told of them, and which plugins count for them.

use std::fs;

use weir_testkit::{Answer, DEADLINE, Gateway, Origin, eventually};

/// A gateway before an origin that answers with what it was told of the client.
struct Rig {
    gateway: Gateway,
    origin: Origin,
}

/// One route for everything with these plugins, and these further resources.
fn rig(plugins: &str, resources: &str) -> Rig {
    let origin = Origin::serving(|request| {
        let told = ["x-consumer-username", "x-consumer-custom-id", "x-credential-identifier"]
            .map(|name| request.headers.all(name).collect::<Vec<_>>().join("+"));
        Answer::ok(format!("{} {}", request.target, told.join(" ")))
    });
    let file = format!(
        "enable_access_log: access.log
routes:
  - {{ id: all, uri: /*, plugins: {plugins}, upstream: {{ type: roundrobin, nodes: {{ \"{}\": 1 }} }} }}
{resources}",
        origin.addr()
    );
    Rig { gateway: Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file), origin }
}

impl Rig {
    /// The status and body of a GET with these fields.
    fn ask(&self, target: &str, fields: &str) -> (u16, String) {
        let request = format!("GET {target} HTTP/1.1\r\nHost: t\r\n{fields}\r\n");
        let answer = self.gateway.client().ask(request).expect("an answer");
        (answer.status, answer.text())
    }
}

const CONSUMERS: &str = "
consumers:
  - { username: jack, labels: { custom_id: c-1 }, plugins: { key-auth: { key: k1 }, basic-auth: { username: foo, password: bar } } }
  - { id: jack/credentials/second, plugins: { key-auth: { key: k2 } } }
  - { username: rose, plugins: { key-auth: { key: k3 } } }
";

#[test]
fn a_key_tells_the_upstream_who_asks() {
    let rig = rig("{ key-auth: {} }", CONSUMERS);
    assert_eq!(rig.ask("/a", "apikey: k1\r\n"), (200, "/a jack c-1 ".to_owned()));
    assert_eq!(rig.ask("/a?apikey=k2&b=1", ""), (200, "/a?b=1 jack c-1 second".to_owned()));
    assert_eq!(rig.ask("/a", "apikey: k3\r\n"), (200, "/a rose  ".to_owned()));
    let missing = "{\"message\":\"Missing API key in request\"}\n".to_owned();
    let invalid = "{\"message\":\"Invalid API key in request\"}\n".to_owned();
    assert_eq!(rig.ask("/a", ""), (401, missing));
    assert_eq!(rig.ask("/a", "apikey: foo\r\n"), (401, invalid));
    assert_eq!(rig.origin.requests().len(), 3);
    assert!(!rig.origin.raw_text().contains("apikey"), "the key is the gateway's alone");
}

#[test]
fn p02_nobody_says_who_they_are_themselves() {
    let rig = rig(
        "{ key-auth: { anonymous_consumer: guest } }",
        "underscores_in_headers: true
consumers:
  - { username: guest }
  - { username: jack, plugins: { key-auth: { key: k1 } } }
",
    );
    let forged = "X-Consumer-Username: admin\r\nx-consumer-custom-id: 1\r\nX-CREDENTIAL-IDENTIFIER: 2\r\n\
        X_Consumer_Username: admin\r\nX-Consumer_Username: admin\r\nX_Credential_Identifier: 2\r\n";
    assert_eq!(rig.ask("/a", forged), (200, "/a guest  ".to_owned()));
    assert_eq!(rig.ask("/a", &format!("{forged}apikey: k1\r\n")), (200, "/a jack  ".to_owned()));
    let sent = rig.origin.raw_text().to_ascii_lowercase();
    assert!(!sent.contains("admin") && !sent.contains("x_consumer") && !sent.contains("x-credential"), "{sent}");
}

#[test]
fn p06_names_and_passwords() {
    let rig = rig("{ basic-auth: {} }", CONSUMERS);
    assert_eq!(rig.ask("/a", "Authorization: Basic Zm9vOmJhcg==\r\n"), (200, "/a jack c-1 ".to_owned()));
    for wrong in ["Basic Zm9vOmJhego=", "Basic Zm9v", "Basic", "Basic %%", "Bearer Zm9vOmJhcg==", "Basic Zm8AOmI="] {
        assert_eq!(rig.ask("/a", &format!("Authorization: {wrong}\r\n")).0, 401, "{wrong}");
    }
    let long = format!("Authorization: Basic {}\r\n", "Zm9v".repeat(6_000));
    assert!(matches!(rig.ask("/a", &long).0, 401 | 431));
    assert!(!rig.origin.raw_text().to_ascii_lowercase().contains("authorization"));
}

#[test]
fn passwords_may_be_kept_as_hashes() {
    let rig = rig(
        "{ basic-auth: {} }",
        "
consumers:
  - { username: jack, plugins: { basic-auth: { username: foo, password: \"$2y$04$abcdefghijklmnopqrstuuEnktNu4dNa/sMz6nY.lAbxawdTTajT2\" } } }
  - { username: rose, plugins: { basic-auth: { username: rose, password: \"$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4\" } } }
",
    );
    // The second time the right password is remembered, and what was wrong is wrong again.
    for _ in 0..2 {
        assert_eq!(rig.ask("/a", "Authorization: Basic Zm9vOmJhcg==\r\n"), (200, "/a jack  ".to_owned()));
        assert_eq!(rig.ask("/a", "Authorization: Basic cm9zZTpwYXNzd29yZA==\r\n"), (200, "/a rose  ".to_owned()));
        // foo:baz, rose:bar, nobody:bar
        for wrong in ["Zm9vOmJheg==", "cm9zZTpiYXI=", "bm9ib2R5OmJhcg=="] {
            assert_eq!(rig.ask("/a", &format!("Authorization: Basic {wrong}\r\n")).0, 401, "{wrong}");
        }
    }
}

#[test]
fn p05_keys_are_in_no_log() {
    let mut rig = rig("{ key-auth: { hide_credentials: false } }", CONSUMERS);
    assert_eq!(rig.ask("/a?apikey=k3&b=1", "").1, "/a?apikey=k3&b=1 rose  ");
    assert_eq!(rig.ask("/a?%61pikey=s3cret", "").0, 401);
    rig.gateway.signal(weir_testkit::Signal::TERM);
    assert!(rig.gateway.wait_exit(DEADLINE).success());
    let log = fs::read_to_string(rig.gateway.directory().join("access.log")).expect("a log");
    assert!(log.contains("/a?apikey=***&b=1") && log.contains("/a?%61pikey=***"), "{log}");
    assert!(!log.contains("k3") && !log.contains("s3cret"), "{log}");
}

#[test]
fn p05_keys_are_in_no_log_where_no_route_matches() {
    let file = "enable_access_log: access.log
routes: [{ uri: /api/*, plugins: { key-auth: { query: token } } }]
";
    let mut gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(file);
    assert_eq!(gateway.get("/apj/a?token=s3cret&apikey=shown").status, 404);
    gateway.signal(weir_testkit::Signal::TERM);
    assert!(gateway.wait_exit(DEADLINE).success());
    let log = fs::read_to_string(gateway.directory().join("access.log")).expect("a log");
    assert!(log.contains("/apj/a?token=***&apikey=shown"), "{log}");
}

#[test]
fn consumer_before_group_before_route() {
    let rig = rig(
        "{ key-auth: {}, limit-count: { count: 1, time_window: 86400 }, proxy-rewrite: { uri: /route } }",
        "consumer_groups:
  - { id: gold, plugins: { limit-count: { count: 2, time_window: 86400 }, response-rewrite: { status_code: 299 } } }
consumers:
  - { username: jack, plugins: { key-auth: { key: k1 } } }
  - { username: rose, group_id: gold, plugins: { key-auth: { key: k2 } } }
  - { username: joe, group_id: gold, plugins: { key-auth: { key: k3 }, limit-count: { count: 3, time_window: 86400 }, proxy-rewrite: { uri: /joe } } }
  - { username: max, plugins: { key-auth: { key: k4 }, limit-count: { count: 1, time_window: 1, _meta: { disable: true } } } }
",
    );
    let ask = |key: &str| {
        let answers: Vec<_> = (0..5).map(|_| rig.ask("/", &format!("apikey: {key}\r\n"))).collect();
        let accepted = answers.iter().filter(|(_, text)| text.starts_with('/')).count();
        (accepted, answers[0].0, answers[0].1.split(' ').next().unwrap_or_default().to_owned(), answers[4].0)
    };
    assert_eq!(ask("k1"), (1, 200, "/route".to_owned(), 503));
    assert_eq!(ask("k2"), (2, 299, "/route".to_owned(), 299), "what answers a refusal is rewritten, too");
    assert_eq!(ask("k3"), (3, 299, "/joe".to_owned(), 299));
    assert_eq!(ask("k4"), (5, 200, "/route".to_owned(), 200), "switched off for this consumer");
}

#[test]
fn a_limit_by_consumer_counts_each_on_its_own() {
    let rig = rig("{ key-auth: {}, limit-count: { count: 2, time_window: 86400, key: consumer_name } }", CONSUMERS);
    let statuses = |key: &str| [(); 3].map(|()| rig.ask("/", &format!("apikey: {key}\r\n")).0);
    assert_eq!(statuses("k1"), [200, 200, 503]);
    assert_eq!(statuses("k2"), [503; 3], "another key of the same consumer");
    assert_eq!(statuses("k3"), [200, 200, 503]);
}

#[test]
fn p09_a_door_without_consumers_lets_nobody_in() {
    let rig = rig("{ key-auth: {} }", "");
    assert_eq!(rig.ask("/", "apikey: \r\n").0, 401);
    assert_eq!(rig.ask("/?apikey=", "").0, 401);
    assert_eq!(rig.ask("/?apikey=k", "").0, 401);
    assert_eq!(rig.origin.requests().len(), 0);
}

#[test]
fn a_reload_changes_who_comes_in() {
    let rig = rig("{ key-auth: {} }", CONSUMERS);
    assert_eq!(rig.ask("/", "apikey: k1\r\n").0, 200);
    let file = fs::read_to_string(rig.gateway.file()).expect("the file").replace("key: k1", "key: k9");
    rig.gateway.replace_file(&file);
    eventually("the old key is refused", DEADLINE, || rig.ask("/", "apikey: k1\r\n").0 == 401);
    assert_eq!(rig.ask("/", "apikey: k9\r\n").0, 200);
}

/// `{"alg":"HS256","typ":"JWT"}`, `{"key":"k1"}`, signed with `secret`.
const TOKEN: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJrZXkiOiJrMSJ9.1Uz-ywlFzoSw0AcCbQeNUxorTxFEYxFbe0vu3FgBWrM";

#[test]
fn p03_a_signed_token_lets_in_and_no_other_does() {
    let rig = rig(
        "{ jwt-auth: {} }",
        "consumers: [{ username: jack, plugins: { jwt-auth: { key: k1, secret: secret } } }]\n",
    );
    for fields in [format!("Authorization: Bearer {TOKEN}\r\n"), format!("Cookie: jwt={TOKEN}\r\n")] {
        assert_eq!(rig.ask("/a", &fields), (200, "/a jack  ".to_owned()));
    }
    assert_eq!(rig.ask(&format!("/a?b=1&jwt={TOKEN}"), "").1, "/a?b=1 jack  ");
    let (signed, _) = TOKEN.rsplit_once('.').expect("three parts");
    let none = format!("eyJhbGciOiJub25lIn0.{}.", signed.split_once('.').expect("two parts").1);
    for token in [none, format!("{signed}."), format!("{signed}.AAAA"), "x".to_owned()] {
        assert_eq!(rig.ask("/a", &format!("Authorization: Bearer {token}\r\n")).0, 401, "{token}");
    }
    assert_eq!(rig.ask("/a", ""), (401, "{\"message\":\"Missing JWT token in request\"}\n".to_owned()));
    assert_eq!(rig.origin.requests().len(), 3);
    assert!(!rig.origin.raw_text().contains("eyJ"), "the token is the gateway's alone");
}

#[test]
fn one_of_several_doors_is_enough() {
    let rig = rig("{ multi-auth: { auth_plugins: [{ basic-auth: {} }, { key-auth: {} }] } }", CONSUMERS);
    assert_eq!(rig.ask("/a", "apikey: k3\r\n"), (200, "/a rose  ".to_owned()));
    assert_eq!(rig.ask("/a", "Authorization: Basic Zm9vOmJhcg==\r\n"), (200, "/a jack c-1 ".to_owned()));
    assert_eq!(rig.ask("/a", "apikey: k\r\n"), (401, "{\"message\":\"Authorization Failed\"}\n".to_owned()));
}

#[test]
fn an_unsigned_request_is_nobodys() {
    let rig = rig(
        "{ hmac-auth: { clock_skew: 1000000000, signed_headers: [date, '@request-target'] } }",
        "consumers: [{ username: jack, plugins: { hmac-auth: { key_id: id, secret_key: secret } } }]\n",
    );
    let date = "Date: Sat, 21 Nov 2026 08:00:00 GMT\r\n";
    let authorization = "Authorization: Signature keyId=\"id\",algorithm=\"hmac-sha256\",headers=\"@request-target \
        date\",signature=\"CGhnB0VMM16UNImNYjsBGARnRomeQhXf+tw3tANkoPY=\"\r\n";
    assert_eq!(rig.ask("/a?b=1", &format!("{date}{authorization}")), (200, "/a?b=1 jack  ".to_owned()));
    assert_eq!(rig.ask("/a?b=2", &format!("{date}{authorization}")).0, 401);
    assert_eq!(rig.ask("/a?b=1", &format!("{}{authorization}", date.replace("08", "09"))).0, 401);
    assert_eq!(rig.ask("/a?b=1", date).0, 401);
    assert!(!rig.origin.raw_text().to_ascii_lowercase().contains("authorization"));
}

#[test]
fn a_workflow_limits_only_whom_it_names() {
    let rig = rig(
        "{ key-auth: {}, workflow: { rules: [{ case: [[consumer_name, '==', jack]], actions: [[limit-count, { count: 1, \
         time_window: 86400, rejected_code: 429 }]] }, { case: [[uri, '==', /old]], actions: [[return, { code: 410 }]] }] } }",
        CONSUMERS,
    );
    let ask = |target: &str, key: &str| rig.ask(target, &format!("apikey: {key}\r\n")).0;
    assert_eq!([ask("/", "k1"), ask("/", "k1"), ask("/old", "k2")], [200, 429, 429]);
    assert_eq!([ask("/", "k3"), ask("/", "k3"), ask("/old", "k3")], [200, 200, 410]);
}

#[test]
fn keys_come_from_the_environment() {
    let origin = Origin::serving(|_| Answer::ok("in"));
    let file = format!(
        "routes: [{{ uri: /*, plugins: {{ key-auth: {{}} }}, upstream: {{ type: roundrobin, nodes: {{ \"{}\": 1 }} }} }}]
consumers: [{{ username: jack, plugins: {{ key-auth: {{ key: $env://WEIR_TEST_KEYS/jack }} }} }}]",
        origin.addr()
    );
    let launcher = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).env("WEIR_TEST_KEYS", r#"{"jack": "a \"b\": c"}"#);
    let gateway = launcher.start(&file);
    let ask = |key: &str| gateway.client().ask(format!("GET / HTTP/1.1\r\nHost: t\r\napikey: {key}\r\n\r\n"));
    assert_eq!(ask("a \"b\": c").expect("an answer").status, 200);
    assert_eq!(ask("$env://WEIR_TEST_KEYS/jack").expect("an answer").status, 401);
}

#[test]
fn labels_decide_and_are_sent_to_the_upstream() {
    let consumers = "
consumers:
  - { username: jack, labels: { team: \"red,blue\", custom_id: c-1 }, plugins: { key-auth: { key: k1 } } }
  - { username: rose, labels: { team: green }, plugins: { key-auth: { key: k2 } } }
  - { username: joe, plugins: { key-auth: { key: k3 } } }
";
    let rig = rig(
        "{ key-auth: {}, acl: { allow_labels: { team: [blue] } }, attach-consumer-label: { headers: { X-Team: $team } } }",
        consumers,
    );
    assert_eq!(rig.ask("/a", "apikey: k1\r\nX-Team: forged\r\n").0, 200);
    let sent = rig.origin.raw_text();
    assert!(sent.contains("X-Team: red,blue\r\n") && !sent.contains("forged"), "{sent}");
    for key in ["k2", "k3"] {
        let forbidden = (403, "{\"message\":\"The consumer is forbidden.\"}\n".to_owned());
        assert_eq!(rig.ask("/a", &format!("apikey: {key}\r\n")), forbidden);
    }
    assert_eq!(rig.origin.requests().len(), 1);
}
