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
