use serde_json::{Value, json};
use weir_plugin::proto::Framing;

use super::*;
use crate::testing::{body, build, exchange, on_request, on_request_body, refused, sent};

fn one(rule: Value) -> Arc<dyn Plugin> {
    build::<ContentFilter>(json!({"rules": [rule]}))
}

/// The query that is forwarded; `None` if the request is refused.
fn query(rule: Value, query: &str) -> Option<String> {
    let mut exchange = exchange(&format!("GET /?{query} HTTP/1.1\nHost: h"));
    on_request(&one(rule), &mut exchange).ok()?;
    Some(String::from_utf8(exchange.request.query().unwrap_or_default().to_vec()).expect("text"))
}

/// The body that is forwarded, or the status of the refusal.
fn content(rule: Value, content: &str) -> Result<String, u16> {
    let mut exchange = exchange("POST / HTTP/1.1\nHost: h\nContent-Type: text/plain");
    let mut content = content.as_bytes().to_vec();
    let plugin = one(rule);
    match plugin.on_request_body(&mut exchange, &mut content).map(|_| ()) {
        Ok(()) => Ok(String::from_utf8(content).expect("text")),
        Err(Stop::Respond(status)) => Err(status),
        Err(_) => Err(exchange.response.status),
    }
}

#[test]
fn arguments_are_looked_at_decoded() {
    let block = json!({"in": "query", "pattern": "union\\s+select", "ignore_case": true, "action": "block"});
    for (text, passes) in [
        ("a=1&b=union", true),
        ("a=1%20UNION%0aselect+2", false),
        ("union+select=1", false),
        ("a=%2575nion select", true),
    ] {
        let text = text.replace(' ', "%20");
        assert_eq!(query(block.clone(), &text).is_some(), passes, "{text}");
    }
    let allow = json!({"in": "query", "name": "id", "pattern": "^[0-9]+$", "action": "allow"});
    assert!(query(allow.clone(), "id=12&x=y").is_some() && query(allow, "x=y&%69d=1;").is_none());
    let mask =
        json!({"in": "query", "name": "card", "pattern": "\\d+(\\d{2})", "action": "mask", "replacement": "**$1"});
    assert_eq!(query(mask, "a=%41&card=12%334&b").as_deref(), Some("a=%41&card=**34&b"));
}

#[test]
fn fields_are_looked_at() {
    let with = |rule: Value| {
        let mut exchange = exchange("GET / HTTP/1.1\nHost: h\nX-A: one\nX-A: two\nX-B: secret 12");
        let end = on_request(&one(rule), &mut exchange);
        (end.is_ok(), exchange)
    };
    assert!(!with(json!({"in": "header", "pattern": "secret", "action": "block"})).0);
    assert!(with(json!({"in": "header", "name": "x-a", "pattern": "secret", "action": "block"})).0);
    assert!(!with(json!({"in": "header", "name": "x-a", "pattern": "one", "action": "allow"})).0);
    let (passes, exchange) = with(json!({"in": "header", "name": "X-A", "pattern": "w", "action": "mask"}));
    assert!(passes);
    assert_eq!(exchange.request.head.values(b"x-a").collect::<Vec<_>>(), [&b"one"[..], b"t***o"]);
}

#[test]
fn bodies_are_looked_at_by_path_or_as_they_are() {
    let rule = |path: &str, action: &str| json!({"in": "body", "path": path, "pattern": "s3cret|12", "action": action});
    let text = r#"{ "a": {"p": "\u00733cret 1", "n": 12.50}, "b": ["s3cret"] }"#;
    assert_eq!(content(rule("$.b[1]", "block"), text).as_deref(), Ok(text));
    assert_eq!(content(rule("$.a.p", "block"), text), Err(403));
    assert_eq!(
        content(rule("$.a", "mask"), text).as_deref(),
        Ok(r#"{ "a": {"p": "*** 1", "n": "***.50"}, "b": ["s3cret"] }"#)
    );
    assert_eq!(content(rule("$.a", "block"), "{"), Err(400), "who cannot be read is not believed");
    assert_eq!(content(rule("$.a", "allow"), r#"{"a": "x"}"#), Err(403));
    let xml = "<o><p a='s3cret'>s<!-- -->3c&#114;et &lt;</p><q>s3cret</q></o>";
    assert_eq!(content(rule("/o/p", "block"), xml), Err(403));
    assert_eq!(
        content(rule("/o/p", "mask"), xml).as_deref(),
        Ok("<o><p a='s3cret'>*** &lt;<!-- --></p><q>s3cret</q></o>")
    );
    assert_eq!(
        content(rule("//@a", "mask"), xml).as_deref(),
        Ok("<o><p a='***'>s<!-- -->3c&#114;et &lt;</p><q>s3cret</q></o>")
    );
    let raw = json!({"in": "body", "pattern": "s3cret", "action": "mask", "replacement": ""});
    assert_eq!(content(raw, "a s3cret b").as_deref(), Ok("a  b"));
}

#[test]
fn r04_coded_content_is_decoded_and_bounded() {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(br#"{"a": "s3cret"}"#).expect("memory takes everything");
    let coded = encoder.finish().expect("memory takes everything");
    let step = one(json!({"in": "body", "path": "$.a", "pattern": "s3cret", "action": "mask"}));
    let plugin = &step;
    let mut exchange = exchange("POST / HTTP/1.1\nHost: h\nContent-Encoding: gzip\nDigest: SHA-256=x");
    let mut content = coded.clone();
    plugin.on_request_body(&mut exchange, &mut content).expect("masked");
    assert_eq!(content, br#"{"a": "***"}"#);
    assert_eq!(
        (exchange.request.head.value(b"content-encoding"), exchange.request.head.value(b"digest")),
        (None, None)
    );
}

#[test]
fn responses_are_looked_at_where_they_say_what_they_are() {
    let step = one(json!({"on": "response", "in": "body", "path": "$..card", "pattern": "\\d+", "action": "mask"}));
    let mut exchange = exchange("GET / HTTP/1.1\nHost: h\nAccept-Encoding: gzip\nRange: bytes=0-1");
    on_request(&step, &mut exchange).expect("passes");
    assert!(
        exchange.request.head.value(b"range").is_none() && exchange.request.head.value(b"accept-encoding").is_none()
    );
    let plugin = &step;
    exchange.response.framing = Framing::Chunked;
    exchange.response.head.add(b"ETag", b"\"1\"").expect("valid");
    assert!(matches!(plugin.whole_response(&mut exchange), Ok(None)));
    exchange.response.head.add(b"Content-Type", b"application/json").expect("valid");
    assert!(matches!(plugin.whole_response(&mut exchange), Ok(Some(_))));
    let mut content = br#"[{"card": 1234}]"#.to_vec();
    plugin.on_response_body(&mut exchange, &mut content).expect("masked");
    assert_eq!((&content[..], sent(&exchange, "etag")), (&br#"[{"card": "***"}]"#[..], None));
    assert_eq!(plugin.on_response_body(&mut exchange, &mut b"no".to_vec()), Err(Stop::Answered));
    assert_eq!((exchange.response.status, body(&exchange)), (502, "{\"message\":\"Not allowed\"}\n"));
}

#[test]
fn a_body_without_content_has_nothing_in_it() {
    let step = one(json!({"in": "body", "path": "$.a", "pattern": "x", "action": "block"}));
    assert_eq!(on_request_body(&step, &mut exchange("POST / HTTP/1.1\nHost: h"), ""), Ok(()));
}

#[test]
fn wrong_options_are_refused_with_their_place() {
    let with = |more: Value| {
        let mut rule = json!({"in": "body", "pattern": "x", "action": "block"});
        rule.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
        json!({"rules": [rule]})
    };
    for (options, want) in [
        (json!({"rules": []}), "rules: is empty"),
        (with(json!({"path": "a.b"})), "rules[0].path: is neither a JSON path"),
        (with(json!({"path": "$.a[?1]"})), "rules[0].path: is neither"),
        (with(json!({"name": "a"})), "rules[0].name: cannot be used with `in: body`"),
        (with(json!({"in": "query", "path": "$.a"})), "rules[0].path: can be used with `in: body` only"),
        (with(json!({"in": "query", "on": "response"})), "rules[0].in: a response has no query"),
        (with(json!({"in": "header", "action": "mask"})), "rules[0].name: is needed to mask a field"),
        (with(json!({"in": "header", "name": "a b"})), "rules[0].name: is not the name of a header field"),
        (with(json!({"pattern": "(?=x)"})), "rules[0].pattern: is not a regular expression"),
        (with(json!({"pattern": "(x{1000}){1000}"})), "rules[0].pattern: is too large"),
    ] {
        let error = refused::<ContentFilter>(options);
        assert!(error.starts_with(want), "{error}");
    }
}
