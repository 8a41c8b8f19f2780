//! `ai-prompt-template`, `ai-prompt-decorator` and `ai-prompt-guard`: prompts that are made, completed and checked.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use weir_testkit::{Client, Gateway};

use crate::{Rig, refused};

/// A client by HTTP/1.1, and one by HTTP/2.
fn clients(gateway: &Gateway) -> [Client; 2] {
    [gateway.client(), gateway.client().by_http2()]
}

fn post(fields: &str, body: &[u8]) -> Vec<u8> {
    let head =
        format!("POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\n{fields}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// The status of the answer to a JSON body, and its message.
fn asked(client: &mut Client, body: &Value) -> (u16, String) {
    let answer =
        client.ask(post("Content-Type: application/json\r\n", body.to_string().as_bytes())).expect("an answer");
    let told: Option<Value> = serde_json::from_slice(&answer.body).ok();
    (answer.status, told.and_then(|told| Some(told["message"].as_str()?.to_owned())).unwrap_or_default())
}

fn user(content: &Value) -> Value {
    json!({"messages": [{"role": "user", "content": content}]})
}

fn rig(plugins: &Value) -> Rig {
    Rig::with(&plugins.to_string())
}

#[test]
fn prompts_are_made_completed_and_checked_in_this_order() {
    let rig = rig(&json!({
        "ai-prompt-guard": {"match_all_roles": true, "match_all_conversation_history": true, "deny_patterns": ["(?i)bad"]},
        "ai-prompt-decorator": {"prepend": [{"role": "system", "content": "Be \"kind\"."}]},
        "ai-prompt-template": {"templates": [
            {"name": "code", "template": {"model": "m", "messages": [{"role": "user", "content": "Write {{what}} & more."}]}},
        ]},
    }));
    for mut client in clients(&rig.gateway) {
        rig.origin.forget();
        let what = "a \"loop\" <b>\\";
        assert_eq!(asked(&mut client, &json!({"template_name": "code", "what": what})).0, 200);
        let sent: Value = serde_json::from_slice(&rig.origin.wait_requests(1)[0].body).expect("JSON");
        let want = json!({"model": "m", "messages": [
            {"role": "system", "content": "Be \"kind\"."},
            {"role": "user", "content": "Write a \"loop\" <b>\\ & more."},
        ]});
        assert_eq!(sent, want);
        let denied = asked(&mut client, &json!({"template_name": "code", "what": "BAD things"}));
        assert_eq!(denied, (400, "Request contains prohibited content".to_owned()));
        let unknown = asked(&mut client, &json!({"template_name": "other"}));
        assert_eq!(unknown, (400, "ai-prompt-template: There is no template `other`".to_owned()));
        assert_eq!(client.get("/").expect("an answer").status, 400);
        assert_eq!(rig.origin.requests().len(), 1);
    }
    assert!(rig.origin.violations().is_empty(), "{:?}", rig.origin.violations());
}

#[test]
fn added_messages_leave_the_rest_of_a_body_as_it_is() {
    let rig = rig(&json!({"ai-prompt-decorator": {
        "prepend": [{"role": "system", "content": "first"}], "append": [{"role": "user", "content": "last"}],
    }}));
    let body =
        br#"{"seed": 123456789012345678901, "messages": [{"role":"user", "content": "a\u0062"}] , "top_p": 0.10}"#;
    let want = r#"{"seed": 123456789012345678901, "messages": [{"role":"system","content":"first"}, {"role":"user", "content": "a\u0062"}, {"role":"user","content":"last"}] , "top_p": 0.10}"#;
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(body).expect("memory takes everything");
    let zipped = encoder.finish().expect("in memory");
    for mut client in clients(&rig.gateway) {
        rig.origin.forget();
        assert_eq!(client.ask(post("", body)).expect("an answer").status, 200);
        assert_eq!(client.ask(post("Content-Encoding: gzip\r\n", &zipped)).expect("an answer").status, 200);
        for request in rig.origin.wait_requests(2) {
            assert_eq!(String::from_utf8_lossy(&request.body), want);
            assert!(!request.headers.has("content-encoding"));
        }
        assert_eq!(client.ask(post("Content-Encoding: zstd\r\n", b"x")).expect("an answer").status, 415);
        assert_eq!(client.ask(post("", b"{\"prompt\": \"a\"}")).expect("an answer").status, 400);
        assert_eq!(rig.origin.requests().len(), 2);
    }
}

#[test]
fn last_message_of_a_client_is_checked_though_others_are_added() {
    let messages = |text: &str| json!([{"role": "user", "content": text}, {"role": "user", "content": text}]);
    let rig = rig(&json!({
        "ai-prompt-guard": {"allow_patterns": ["please"], "deny_patterns": ["secret"]},
        "ai-prompt-decorator": {"prepend": messages("please"), "append": messages("please")},
    }));
    for mut client in clients(&rig.gateway) {
        rig.origin.forget();
        assert_eq!(asked(&mut client, &user(&json!("please"))).0, 200);
        let denied = asked(&mut client, &user(&json!("please, my secret")));
        assert_eq!(denied, (400, "Request contains prohibited content".to_owned()));
        for messages in [user(&json!("now")), json!({"messages": []})] {
            let not_allowed = asked(&mut client, &messages);
            assert_eq!(not_allowed, (400, "Request doesn't match allow patterns".to_owned()));
        }
        assert_eq!(rig.origin.requests().len(), 1);
    }
}

#[test]
fn prompts_in_parts_are_checked_and_unclear_ones_never_pass() {
    let rig = rig(&json!({"ai-prompt-guard": {"deny_patterns": ["secret"], "max_req_body_size": 2000}}));
    for mut client in clients(&rig.gateway) {
        rig.origin.forget();
        let prohibited = (400, "Request contains prohibited content".to_owned());
        assert_eq!(asked(&mut client, &user(&json!("my secret"))), prohibited);
        let parts = json!([{"type": "image_url", "image_url": {"url": "u"}}, {"type": "text", "text": "my secret"}]);
        assert_eq!(asked(&mut client, &user(&parts)), prohibited);
        assert_eq!(asked(&mut client, &user(&json!([{"type": "words", "words": "secret"}]))).0, 400);
        let twice = br#"{"messages": [{"role": "user", "content": "secret", "content": "fine"}]}"#;
        assert_eq!(client.ask(post("", twice)).expect("an answer").status, 400);
        let hidden =
            br#"{"messages": [{"role": "user", "content": "secret"}, {"role": "assistant", "content": "fine"}]}"#;
        assert_eq!(client.ask(post("Content-Type: text/plain\r\n", hidden)).expect("an answer").status, 400);
        assert!(rig.origin.requests().is_empty());
        assert_eq!(asked(&mut client, &user(&json!("fine"))).0, 200);
        let form = "Content-Type: application/x-www-form-urlencoded\r\n";
        assert_eq!(client.ask(post(form, b"a=secret")).expect("no prompt").status, 200);
        assert_eq!(client.get("/").expect("no prompt").status, 200);
        assert_eq!(client.ask(post("", &[b' '; 2001])).expect("an answer").status, 413);
        assert_eq!(rig.origin.wait_requests(3).len(), 3);
    }
}

#[test]
fn requests_that_cannot_be_checked_pass_with_a_warning_or_are_refused() {
    let options = |mode: &str| json!({"ai-prompt-guard": {"deny_patterns": ["secret"], "fail_mode": mode}});
    let rig = rig(&options("warn"));
    for mut client in clients(&rig.gateway) {
        assert_eq!(asked(&mut client, &json!({"prompt": "secret"})).0, 200);
    }
    rig.gateway.wait_stderr("it is said", |text| {
        text.contains("ai-prompt-guard lets a request of the route `all` pass: its body has no `messages`")
    });
    rig.change(&options("error").to_string());
    for mut client in clients(&rig.gateway) {
        let told = asked(&mut client, &json!({"prompt": "secret"}));
        assert_eq!(told, (400, "The request cannot be checked: its body has no `messages`".to_owned()));
        assert_eq!(client.get("/").expect("an answer").status, 400);
    }
}

#[test]
fn wrong_prompts_of_the_configuration_are_refused_with_their_place() {
    let said = refused(
        "{ ai-prompt-guard: { deny_patterns: [a, '('] }, ai-prompt-decorator: { append: [{ role: robot, content: a }] } }",
    );
    assert!(said.contains("plugins.ai-prompt-guard.deny_patterns[1]"), "{said}");
    assert!(said.contains("plugins.ai-prompt-decorator.append[0].role"), "{said}");
}
