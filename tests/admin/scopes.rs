//! What an editor of team a can neither change nor read of team b. Each test is an attack with a key that has scopes.

use serde_json::{Value, json};
use weir_testkit::{Authority, DEADLINE, Gateway, eventually};

use crate::api::{Api, VIEWER, admin_addr, file};
use crate::weir;

const TEAM_A: &str = "the-key-of-an-editor-of-team-a";

fn start() -> (Gateway, Api, Api) {
    let gateway = weir().start(&format!(
        "{}  - {{ name: team-a, key: {TEAM_A}, role: editor, scopes: [{{ kinds: [routes, ssls, consumers], \
         labels: {{ team: a }} }}] }}\n",
        file()
    ));
    let (admin, editor) = (Api::of(&gateway), Api::with_key(admin_addr(&gateway), TEAM_A));
    (gateway, admin, editor)
}

fn jack(team: &str) -> String {
    json!({"username": "jack", "labels": {"team": team}}).to_string()
}

fn credential(key: &str) -> String {
    json!({"desc": key, "plugins": {"key-auth": {"key": key}}}).to_string()
}

#[test]
fn client_certificates_of_another_team_are_not_switched_off_by_a_nearer_server_name() {
    let (_gateway, mut admin, mut editor) = start();
    let authority = Authority::of_tests();
    let identity = authority.identity(&["*.b.example"]);
    let ssl = |team: &str, names: &[&str]| json!({"snis": names, "labels": {"team": team}, "cert": identity.certificate, "key": identity.key});
    let mut of_b = ssl("b", &["*.b.example", "b.example"]);
    of_b["client"] = json!({"ca": authority.certificate});
    admin.put("ssls/b", &of_b.to_string());
    for name in
        ["api.b.example", "API.b.example", "x.api.b.example", "*.api.b.example", "*.b.example", "*.example", "*"]
    {
        let answer = editor.ask("PUT", "ssls/a", "", &ssl("a", &["a.example", name]).to_string());
        let told = answer.text();
        assert!(answer.status == 403 && told.contains("outside of the scopes"), "{name}: {} {told}", answer.status);
    }
    editor.put("ssls/a", &ssl("a", &["a.example", "*.a.example"]).to_string());
    editor.put("ssls/a-2", &ssl("a", &["api.a.example"]).to_string());
    assert_eq!(editor.ask("PATCH", "ssls/a", "", r#"{"snis": ["api.b.example"]}"#).status, 403);
    let transaction = json!({"operations": [{"put": "ssls/a-3", "value": ssl("a", &["api.b.example"])}]});
    assert_eq!(editor.ask("PATCH", "configs", "", &transaction.to_string()).status, 403);
    assert_eq!(editor.ask("DELETE", "ssls/a-2", "", "").status, 200);
    admin.put("ssls/a-3", &ssl("a", &["api.b.example"]).to_string());
}

#[test]
fn credentials_of_another_team_are_not_read_in_the_history_after_a_consumer_of_their_name_is_created() {
    let (_gateway, mut admin, mut editor) = start();
    let history = |api: &mut Api| -> String {
        let page = api.get("history?key=consumers/jack/credentials/c1");
        let list = page["list"].as_array().expect("a list").clone();
        let each = list.iter().map(|record| api.ask("GET", &format!("history/{}", record["revision"]), "", "").text());
        [Value::from(list.clone()).to_string()].into_iter().chain(each).collect()
    };
    admin.put("consumers", &jack("b"));
    admin.put("consumers/jack/credentials/c1", &credential("secret-of-b"));
    admin.put("consumers/jack/credentials/c1", &credential("secret-of-b-2"));
    assert!(!history(&mut editor).contains("secret-of-b"));
    assert_eq!(admin.ask("DELETE", "consumers/jack", "", "").status, 200);
    editor.put("consumers/jack", &jack("a"));
    assert!(!history(&mut editor).contains("secret-of-b"), "the consumer was of team b");
    for revision in 1..=5 {
        let told = editor.ask("GET", &format!("history/{revision}"), "", "").text();
        assert!(!told.contains("secret-of-b"), "{told}");
    }
    editor.put("consumers/jack/credentials/c1", &credential("secret-of-a"));
    // A change of the consumer that leaves its labels hides nothing.
    editor.put("consumers/jack", &json!({"username": "jack", "desc": "d", "labels": {"team": "a"}}).to_string());
    let told = history(&mut editor);
    assert!(told.contains("secret-of-a") && !told.contains("secret-of-b"), "{told}");
    let page = editor.get("history?key=consumers/jack/credentials/c1&before=7");
    assert_eq!(page["list"].as_array().map(Vec::len), Some(1), "{page}");
    // What team a has written stays visible, and what is written afterwards does not become so.
    admin.put("consumers/jack", &jack("b"));
    admin.put("consumers/jack/credentials/c1", &credential("secret-of-b-3"));
    let told = history(&mut editor);
    assert!(told.contains("secret-of-a") && !told.contains("secret-of-b"), "{told}");
    assert!(history(&mut admin).contains("secret-of-b-3"));
}

#[test]
fn credentials_of_an_expired_consumer_are_not_taken_over_with_its_name() {
    let (_gateway, mut admin, mut editor) = start();
    admin.put("consumers/jack", &jack("b"));
    admin.put("consumers/jack/credentials/c1", &credential("secret-of-b"));
    admin.put("consumers/jack?ttl=1", &jack("b"));
    eventually("the consumer expires", DEADLINE, || admin.ask("GET", "consumers/jack", "", "").status == 404);
    editor.put("consumers/jack", &jack("a"));
    for api in [&mut editor, &mut admin] {
        assert_eq!(api.ask("GET", "consumers/jack/credentials/c1", "", "").status, 404);
    }
}

#[test]
fn refusals_of_changes_out_of_scope_tell_nothing_about_the_resource() {
    let (_gateway, mut admin, mut editor) = start();
    admin.put("routes/b1", &json!({"uri": "/b", "labels": {"team": "b"}, "plugins": {}}).to_string());
    let route = json!({"uri": "/a", "labels": {"team": "a"}, "plugins": {}}).to_string();
    let absent =
        json!({"operations": [{"patch": "routes/b1", "value": {"plugins": {"csrf": {"key": "***"}}}}]}).to_string();
    let masked = json!({"uri": "/a", "labels": {"team": "a"}, "plugins": {"csrf": {"key": "***"}}}).to_string();
    let table = [
        ("PUT", "routes/b1", "If-Match: \"9\"\r\n", &*route),
        ("PUT", "routes/b1", "If-None-Match: *\r\n", &*route),
        ("PUT", "routes/b1", "", &*masked),
        ("PATCH", "routes/b1", "If-Match: \"9\"\r\n", "{}"),
        ("PATCH", "routes/b1/uri/x", "", "1"),
        ("PATCH", "routes/b1", "", r#"{"id": "other"}"#),
        ("DELETE", "routes/b1", "If-Match: \"9\"\r\n", ""),
        ("PATCH", "configs", "", &*absent),
    ];
    for (method, path, fields, body) in table {
        let answer = editor.ask(method, path, fields, body);
        let told = answer.text();
        assert!(answer.status == 403 && told.contains("do not cover `routes/b1`"), "{method} {path}: {told}");
        assert!(!told.contains("modifiedIndex"), "{told}");
    }
}

#[test]
fn a_key_that_equals_one_of_another_team_names_no_resource_of_that_team() {
    let (gateway, mut admin, mut editor) = start();
    let mut viewer = Api::with_key(admin_addr(&gateway), VIEWER);
    let of = |name: &str, team: &str, key: &str| {
        json!({"username": name, "labels": {"team": team}, "plugins": {"key-auth": {"key": key}}}).to_string()
    };
    // Whichever of the two the finding is about.
    for victim in ["adam", "zoe"] {
        admin.put("consumers", &of(victim, "b", &format!("secret-of-{victim}")));
    }
    admin.put("consumers", &of("own", "a", "own-secret"));
    for victim in ["adam", "zoe"] {
        let guess = of("mine", "a", &format!("secret-of-{victim}"));
        let check = format!(r#"{{"consumers":[{guess}]}}"#);
        for told in [
            editor.ask("PUT", "consumers", "", &guess),
            editor.ask("PUT", "consumers?dry_run=true", "", &guess),
            editor.ask("POST", "configs/validate", "", &check),
            viewer.ask("POST", "configs/validate", "", &check),
        ] {
            assert_eq!(told.status, 400, "{}", told.text());
            let told = told.text();
            assert!(told.contains("a key in this request is that of another consumer"), "{told}");
            assert!(!told.contains(victim), "{told}");
        }
        let named = admin.ask("PUT", "consumers", "", &guess);
        assert!(named.status == 400 && named.text().contains(victim), "who reads the keys is told: {}", named.text());
    }
    let both_own = editor.ask("PUT", "consumers", "", &of("mine", "a", "own-secret"));
    assert!(both_own.status == 400 && both_own.text().contains("consumers/own"), "{}", both_own.text());
}

#[test]
fn a_reference_that_leads_nowhere_suggests_no_resource_of_another_team() {
    let (_gateway, mut admin, mut editor) = start();
    admin.put("services/payment-of-b", r#"{"labels":{"team":"b"}}"#);
    let route = json!({"uri": "/", "labels": {"team": "a"}, "service_id": "payment-of-c", "plugins": {}}).to_string();
    for (method, path) in [("PUT", "routes/a"), ("PUT", "routes/a?dry_run=true")] {
        let told = editor.ask(method, path, "", &route);
        assert_eq!(told.status, 400, "{}", told.text());
        assert!(!told.text().contains("payment-of-b"), "{}", told.text());
    }
    let check = format!(r#"{{"routes":[{}]}}"#, route.replacen('{', r#"{"id":"a","#, 1));
    let told = editor.ask("POST", "configs/validate", "", &check);
    assert!(told.status == 400 && !told.text().contains("payment-of-b"), "{} {}", told.status, told.text());
    let told = admin.ask("POST", "configs/validate", "", &check);
    assert!(told.text().contains("did you mean `payment-of-b`?"), "{}", told.text());
}
