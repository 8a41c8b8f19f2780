use serde_json::{Value, json};

use super::*;
use crate::testing::{body, build, exchange, on_request, on_request_body, refused};

fn validator(paths: Value, version: &str) -> Arc<dyn Plugin> {
    let spec = json!({ "openapi": version, "info": { "title": "t", "version": "1" }, "paths": paths }).to_string();
    build::<OasValidator>(json!({ "spec": spec, "verbose_errors": true }))
}

/// The faults of a request; `None` if it passes.
fn faults(step: &Arc<dyn Plugin>, head: &str, content: &str) -> Option<String> {
    let length = if content.is_empty() { String::new() } else { format!("\nContent-Length: {}", content.len()) };
    let (line, fields) = head.split_once('\n').unwrap_or((head, ""));
    let mut exchange = exchange(format!("{line} HTTP/1.1\nHost: h{length}\n{fields}").trim_end());
    let mut end = on_request(step, &mut exchange);
    if end.is_ok() && !content.is_empty() && step.whole_request(&mut exchange).expect("it passes").is_some() {
        end = on_request_body(step, &mut exchange, content);
    }
    let answer: Option<Value> = end.err().map(|_| serde_json::from_str(body(&exchange)).expect("JSON"));
    answer.map(|answer| answer["message"].as_str().expect("text").replace("failed to validate request. ", ""))
}

#[test]
fn requests_fit_the_most_specific_path_that_has_their_method() {
    let integer = json!([{ "name": "id", "in": "path", "required": true, "schema": { "type": "integer" } }]);
    let paths = json!({
        "/pets/{id}": { "parameters": integer, "get": {}, "delete": {} },
        "/pets/mine": { "get": { "parameters": [{ "name": "n", "in": "query", "required": true }] } },
        "/files/{name}.{kind}": { "get": {} },
    });
    let step = validator(paths, "3.0.3");
    for (head, want) in [
        ("GET /pets/5", None),
        ("HEAD /pets/5", None),
        ("GET /pets/x", Some("path.id: is not of the type integer")),
        ("GET /pets/mine", Some("query.n: is required")),
        ("GET /pets/mine?n=1", None),
        ("DELETE /pets/mine", Some("path.id: is not of the type integer")),
        ("POST /pets/5", Some("method: the path has no operation for it")),
        ("OPTIONS /pets/5", Some("method: the path has no operation for it")),
        ("GET /files/a.b.txt", None),
        ("GET /files/a", Some("path: is none of the definition")),
        ("GET /pets", Some("path: is none of the definition")),
    ] {
        assert_eq!(faults(&step, head, "").as_deref(), want, "{head}");
    }
}

#[test]
fn a_definition_is_refused_with_the_places_of_its_faults() {
    let spec = |paths: Value| json!({ "spec": json!({ "openapi": "3.0.0", "paths": paths }).to_string() });
    for (options, want) in [
        (json!({}), "spec: is missing"),
        (json!({ "spec_url": "http://h.example/" }), "spec_url: is not possible"),
        (json!({ "spec": "a: [" }), "spec: is neither JSON nor YAML"),
        (json!({ "spec": "swagger: '2.0'" }), "spec: is a definition of Swagger 2.0"),
        (json!({ "spec": "openapi: 4.0.0" }), "spec: is of OpenAPI 4.0.0"),
        (
            spec(json!({ "/a": { "get": { "parameters": [{ "$ref": "b.yaml#/c" }] } } })),
            "spec: `#/paths/~1a/get/parameters/0`: `$ref` leads out of the document, to `b.yaml#/c`",
        ),
        (
            spec(json!({ "/a": { "get": { "parameters": [
                { "name": "a", "in": "query", "schema": { "items": { "$ref": "http://h.example/" } } }] } } })),
            "spec: `#/paths/~1a/get/parameters/0/schema/items`: `$ref` leads out",
        ),
        (
            spec(json!({ "/a": { "get": { "parameters": [
                { "name": "a", "in": "query", "schema": { "pattern": "(?=a)" } }] } } })),
            "spec: `#/paths/~1a/get/parameters/0/schema/pattern`",
        ),
        (spec(json!({ "/a{b": { "get": {} } })), "spec: `#/paths/~1a{b`: has a `{` without its `}`"),
    ] {
        let told = refused::<OasValidator>(options);
        assert!(told.starts_with(want), "{told}");
    }
}
