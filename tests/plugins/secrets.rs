//! `$secret://`: options whose values a Vault keeps. What a Vault answers is its documented HTTP API; no package of the
//! registries holds one.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use weir_testkit::{Answer, DEADLINE, Gateway, Origin, Signal, TempDir, eventually};

/// Both versions of the key/value engine, for whoever shows the token.
fn vault(key: &Arc<Mutex<&'static str>>) -> Origin {
    let key = Arc::clone(key);
    Origin::serving(move |request| {
        let (token, space) = (request.headers.get("x-vault-token"), request.headers.get("x-vault-namespace"));
        let key = *key.lock().expect("nobody panics");
        match (token, &*request.target, space) {
            (Some("hvs.token"), "/v1/kv/apisix/jack", None) => {
                Answer::ok(format!(r#"{{"lease_duration": 1, "data": {{"auth-key": "{key}", "n": 7}}}}"#))
            }
            (Some("hvs.token"), "/v1/kv/data/team/rose/auth", Some("sales")) => {
                Answer::ok(r#"{"data": {"data": {"key": "of-rose"}, "metadata": {"version": 3}}}"#)
            }
            (Some("hvs.token"), ..) => Answer::status(404, r#"{"errors": []}"#),
            _ => Answer::status(403, r#"{"errors": ["permission denied"]}"#),
        }
    })
}

fn configuration(origin: &Origin, vault: &Origin, ttl: &str) -> String {
    format!(
        r#"routes:
  - {{ uri: /*, plugins: {{ key-auth: {{}} }}, upstream: {{ nodes: {{ "{}": 1 }}, type: roundrobin }} }}
secrets:
  - {{ id: vault/1, uri: "http://{vault}", prefix: kv/apisix, token: $env://VAULT_TOKEN, ttl: {ttl} }}
  - {{ id: vault/2, uri: "http://{vault}/", prefix: /kv/data/team/, token: hvs.token, namespace: sales }}
consumers:
  - {{ username: jack, plugins: {{ key-auth: {{ key: $secret://vault/1/jack/auth-key }} }} }}
  - {{ username: rose, plugins: {{ key-auth: {{ key: $secret://vault/2/rose/auth/key }} }} }}
"#,
        origin.addr(),
        vault = vault.addr()
    )
}

fn status(gateway: &Gateway, key: &str) -> u16 {
    let request = format!("GET / HTTP/1.1\r\nHost: h\r\napikey: {key}\r\n\r\n");
    gateway.client().ask(request).expect("an answer").status
}

/// What a command says of a file, and how it ends.
fn say(command: &str, text: &str, token: &str) -> (String, Option<i32>) {
    let place = TempDir::new();
    let file = place.write("weir.yaml", format!("listen: [\"127.0.0.1:0\"]\nstatus: false\n{text}"));
    let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = weir.arg(command).arg(file).env("VAULT_TOKEN", token).output().expect("it was built");
    (String::from_utf8_lossy(&output.stderr).into_owned(), output.status.code())
}

#[test]
fn secrets_are_fetched_and_fetched_again_when_they_are_old() {
    let key = Arc::new(Mutex::new("first"));
    let (origin, vault) = (Origin::serving(|_| Answer::ok("hello")), vault(&key));
    let launcher = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).env("VAULT_TOKEN", "hvs.token");
    let gateway = launcher.start(&configuration(&origin, &vault, "100ms"));
    assert_eq!([status(&gateway, "first"), status(&gateway, "of-rose")], [200, 200]);
    assert_eq!([status(&gateway, "$secret://vault/1/jack/auth-key"), status(&gateway, "7")], [401, 401]);
    *key.lock().expect("nobody panics") = "second";
    eventually("the new key counts", DEADLINE, || status(&gateway, "second") == 200);
    assert_eq!(status(&gateway, "first"), 401);
    // What was fetched stays good when nobody answers any more, also for a changed file.
    drop(vault);
    gateway.wait_stderr("a complaint", |text| text.contains("`jack` could not be refreshed and may be out of date: "));
    gateway.signal(Signal::HUP);
    let stale = |gateway: &Gateway| gateway.status()["configuration"]["warnings"].to_string();
    eventually("loaded all the same", DEADLINE, || stale(&gateway).contains("may be out of date"));
    assert_eq!([status(&gateway, "second"), status(&gateway, "of-rose")], [200, 200]);
}

#[test]
fn a_secret_is_fetched_at_once_when_somebody_says_so() {
    let key = Arc::new(Mutex::new("first"));
    let (origin, vault) = (Origin::serving(|_| Answer::ok("hello")), vault(&key));
    let launcher = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).env("VAULT_TOKEN", "hvs.token");
    let gateway = launcher.start(&configuration(&origin, &vault, "1h"));
    let (revision, asked) = (gateway.revision(), vault.requests().len());
    gateway.replace_file(&configuration(&origin, &vault, "1h").replace("/*", "/a*"));
    eventually("the file is loaded", DEADLINE, || gateway.revision() > revision);
    assert_eq!(vault.requests().len(), asked, "what is not old is not fetched for each version of the file");
    *key.lock().expect("nobody panics") = "second";
    gateway.signal(Signal::HUP);
    let with = |key: &str| {
        let request = format!("GET /a HTTP/1.1\r\nHost: h\r\napikey: {key}\r\n\r\n");
        gateway.client().ask(request).expect("an answer").status
    };
    eventually("the new key counts", DEADLINE, || with("second") == 200);
}

#[test]
fn secret_that_cannot_be_read_is_an_error_with_its_place() {
    let key = Arc::new(Mutex::new("first"));
    let (origin, vault) = (Origin::serving(|_| Answer::ok("hello")), vault(&key));
    let good = configuration(&origin, &vault, "1h");
    for (text, token, problem) in [
        (
            good.replace("jack/auth-key", "jack/other"),
            "hvs.token",
            "`jack/other` cannot be read: there is no key `other`",
        ),
        (good.replace("jack/auth-key", "jill/key"), "hvs.token", "there is no secret under this path"),
        (good.clone(), "wrong", "the token is not allowed to read this path"),
    ] {
        let (stderr, code) = say("run", &text, token);
        assert!(stderr.contains(problem) && stderr.contains("consumers[0].plugins.key-auth.key"), "{stderr}");
        assert_eq!(code, Some(1), "{stderr}");
    }
    // A check needs no Vault, so that it can be made where there is none.
    let away = good.replace(&vault.addr().to_string(), &format!("127.0.0.1:{}", weir_testkit::free_port()));
    let (stderr, code) = say("check", &away, "any");
    assert_eq!(code, Some(0), "{stderr}");
    // A node that starts while there is none has no value to serve with, and says so. A service manager starts it again.
    let (stderr, code) = say("run", &away, "hvs.token");
    assert!(stderr.contains("consumers[0].plugins.key-auth.key") && stderr.contains("Connection refused"), "{stderr}");
    assert!(stderr.contains("secrets cannot be read yet, trying for 20 seconds: "), "{stderr}");
    assert_eq!(code, Some(5), "{stderr}");
}

#[test]
fn a_node_that_is_started_before_the_manager_of_its_secrets_waits_for_it() {
    let (origin, is_sealed) = (Origin::serving(|_| Answer::ok("hello")), Arc::new(AtomicBool::new(true)));
    let sealed = Arc::clone(&is_sealed);
    let vault = Origin::serving(move |_| match sealed.load(Relaxed) {
        true => Answer::status(503, r#"{"errors": ["Vault is sealed"]}"#),
        false => Answer::ok(r#"{"data": {"auth-key": "late", "key": "of-rose"}}"#),
    });
    let launcher = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).env("VAULT_TOKEN", "hvs.token");
    let gateway = launcher.spawn(&configuration(&origin, &vault, "1h"));
    gateway.wait_stderr("that it waits", |line| line.contains("secrets cannot be read yet, trying for 20 seconds: "));
    is_sealed.store(false, Relaxed);
    gateway.wait_stderr("that it is ready", |line| line.starts_with("weir: ready"));
    assert_eq!(status(&gateway, "late"), 200);
}
