use serde_json::{Map, Value, json};

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
        (json!({ "spec_url": "h.example" }), "spec_url: `h.example` is not a URL"),
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

/// Numbers that look random, and are the same each time (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % most
    }

    fn one_of<'a>(&mut self, texts: &[&'a str]) -> &'a str {
        texts[self.below(texts.len())]
    }

    /// A value that a definition might have somewhere, rightly or wrongly.
    fn part(&mut self, depth: usize) -> Value {
        const NAMES: [&str; 30] = [
            "$ref",
            "additionalProperties",
            "allOf",
            "anyOf",
            "const",
            "content",
            "enum",
            "exclusiveMinimum",
            "explode",
            "format",
            "get",
            "in",
            "items",
            "minimum",
            "name",
            "nullable",
            "oneOf",
            "parameters",
            "pattern",
            "properties",
            "readOnly",
            "requestBody",
            "required",
            "schema",
            "servers",
            "style",
            "type",
            "url",
            "variables",
            "application/json",
        ];
        const TEXTS: [&str; 24] = [
            "",
            "#",
            "#/components/schemas/A",
            "#/components/schemas/B/items",
            "#/paths/~1{a}",
            "/v{x}",
            "[a-z]+",
            "a",
            "array",
            "cookie",
            "deepObject",
            "form",
            "header",
            "int32",
            "integer",
            "label",
            "matrix",
            "object",
            "path",
            "query",
            "simple",
            "string",
            "{",
            "é",
        ];
        match self.below(if depth == 0 { 4 } else { 9 }) {
            0 => Value::Bool(self.below(2) == 0),
            1 => json!(self.below(5)),
            2 | 3 => json!(self.one_of(&TEXTS)),
            4 => (0..self.below(3)).map(|_| self.part(depth - 1)).collect(),
            _ => {
                let members = (0..self.below(5)).map(|_| (self.one_of(&NAMES).to_owned(), self.part(depth - 1)));
                Value::Object(members.collect())
            }
        }
    }

    /// A schema that is right more often than not.
    fn schema(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 4 } else { 10 }) {
            0 if self.below(6) == 0 => self.part(2),
            0 | 1 => json!({ "type": "integer", "nullable": true, "minimum": 1, "exclusiveMinimum": true }),
            2 => {
                json!({ "type": self.one_of(&["string", "number", "boolean", "null"]), "readOnly": self.below(2) == 0 })
            }
            3 => json!({ "$ref": self.one_of(&["#/components/schemas/A", "#/components/schemas/B"]) }),
            4 | 5 => json!({ "type": "array", "items": self.schema(depth - 1) }),
            6 => json!({ self.one_of(&["allOf", "anyOf", "oneOf"]): [self.schema(depth - 1), self.schema(depth - 1)] }),
            _ => json!({ "type": "object", "required": ["a"],
                "properties": { "a": self.schema(depth - 1), "b": self.schema(depth - 1) } }),
        }
    }

    fn definition(&mut self) -> Value {
        let style = self.one_of(&["simple", "label", "matrix", "form", "deepObject", "pipeDelimited", "x"]);
        let place = self.one_of(&["path", "query", "header", "cookie"]);
        let mut parameter =
            json!({ "name": "a", "in": place, "explode": self.below(2) == 0, "schema": self.schema(3) });
        if self.below(4) == 0 {
            parameter["style"] = json!(style);
        }
        let kind = self.one_of(&["application/json", "application/x-www-form-urlencoded", "text/plain", "*/*"]);
        let operation = json!({ "parameters": [parameter, self.part(2)],
            "requestBody": { "content": { kind: { "schema": self.schema(3), "encoding": self.part(3) } } } });
        let template = self.one_of(&["/{a}", "/{a}", "/b{a}c", "/{a}.{b}", "/{a", "/", "/b/{a}"]);
        let mut item = json!({ "post": operation });
        if self.below(4) > 0 {
            item["post"]["parameters"].as_array_mut().expect("a list").pop();
        }
        json!({ "openapi": self.one_of(&["3.0.1", "3.1.0"]), "servers": [{ "url": self.one_of(&["/", "/", "/b", "x"]) }],
            "paths": { template: item }, "components": { "schemas": { "A": self.schema(3), "B": self.schema(3) } } })
    }
}

#[test]
fn u01_no_definition_and_no_request_ends_in_a_panic() {
    let (mut numbers, mut built, mut refusals, mut passes) = (Numbers(88_172_645_463_325_252), 0, 0, 0);
    for _ in 0..3_000 {
        let definition = numbers.definition().to_string();
        let mut build = weir_plugin::Build::default();
        let entry = crate::REGISTRY.find(OasValidator::NAME).expect("it is listed");
        let Ok(step) = (entry.build)(&json!({ "spec": definition, "verbose_errors": true }), &mut build) else {
            continue;
        };
        built += 1;
        for _ in 0..5 {
            let path =
                numbers.one_of(&["/1", "/1", "/b1c", "/x.y", "/;a=1", "/.1.2", "/b/1,2", "/b/b1c", "/%C3%A9", "/"]);
            let query = numbers.one_of(&[
                "",
                "",
                "?a=1",
                "?a=x&a=2",
                "?a[a]=1&a[b]=%FF",
                "?a[a][b]=1",
                "?a=a|b,c%20d",
                "?&=&a",
            ]);
            let fields = numbers.one_of(&["", "\na: 1,2", "\nCookie: a=1; b", "\na: a=1\na: b"]);
            let kind = numbers.one_of(&["application/json", "application/x-www-form-urlencoded", "text/plain"]);
            let content = numbers.one_of(&["{\"a\":1}", "[[1],{}]", "a=1&a=2&b=%7B%7D", "null", "1e999", "\u{e9}"]);
            let head = format!("POST {path}{query}\nContent-Type: {kind}{fields}");
            match faults(&step, &head, content) {
                Some(told) => refusals += usize::from(!told.is_empty()),
                None => passes += 1,
            }
        }
    }
    assert!(built > 500 && refusals > 500 && passes > 10, "{built} built, {refusals} refused, {passes} passed");
}

/// A step for one operation of `/`.
fn of_operation(method: &str, operation: &Value, schemas: &Value) -> Arc<dyn Plugin> {
    let definition =
        json!({ "openapi": "3.1.0", "paths": { "/": { method: operation } }, "components": { "schemas": schemas } });
    build::<OasValidator>(json!({ "spec": definition.to_string(), "verbose_errors": true }))
}

#[test]
fn a_parameter_that_takes_one_value_is_refused_twice() {
    let role = json!({ "type": "object", "properties": { "role": { "enum": ["user"] } } });
    let json_content = json!({ "application/json": { "schema": role } });
    let parameters = json!([
        { "name": "filter", "in": "query", "content": json_content },
        { "name": "spread", "in": "query", "schema": role },
        { "name": "flat", "in": "query", "explode": false, "schema": role },
        { "name": "level", "in": "cookie", "schema": { "type": "integer" } },
    ]);
    let step = of_operation("get", &json!({ "parameters": parameters }), &json!({}));
    for (head, told) in [
        ("GET /?filter=%7B%22role%22%3A%22user%22%7D", None),
        (
            "GET /?filter=%7B%22role%22%3A%22user%22%7D&filter=%7B%22role%22%3A%22x%22%7D",
            Some("query.filter: is there 2 times"),
        ),
        ("GET /?filter=%7B%22role%22%3A%22x%22%2C%22role%22%3A%22user%22%7D", Some("twice in one object")),
        ("GET /?role=user", None),
        ("GET /?role=x&role=user", Some("query.spread: has `role` twice")),
        ("GET /?flat=role,x,role,user", Some("query.flat: has `role` twice")),
        ("GET /\nCookie: level=1", None),
        ("GET /\nCookie: level=1; level=x", Some("cookie.level: is there 2 times")),
    ] {
        let found = faults(&step, head, "");
        assert_eq!(found.is_some(), told.is_some(), "{head}: {found:?}");
        assert!(found.unwrap_or_default().contains(told.unwrap_or_default()), "{head}");
    }
    let form = json!({ "application/x-www-form-urlencoded": { "schema": { "type": "object", "properties": { "meta": role } } } });
    let step = of_operation("post", &json!({ "requestBody": { "content": form } }), &json!({}));
    let head = "POST /\nContent-Type: application/x-www-form-urlencoded";
    assert_eq!(faults(&step, head, "meta=%7B%22role%22%3A%22user%22%7D"), None);
    assert!(faults(&step, head, "meta=%7B%22role%22%3A%22x%22%2C%22role%22%3A%22user%22%7D").is_some());
}

#[test]
fn read_only_properties_of_a_composed_value_are_not_required() {
    let schemas = json!({
        "Base": { "type": "object", "properties": { "id": { "type": "integer", "readOnly": true } } },
        "Pet": { "allOf": [{ "$ref": "#/components/schemas/Base" }, { "type": "object", "required": ["id", "name"] }] },
    });
    let content = json!({ "application/json": { "schema": { "$ref": "#/components/schemas/Pet" } } });
    let step = of_operation("post", &json!({ "requestBody": { "content": content } }), &schemas);
    let head = "POST /\nContent-Type: application/json";
    assert_eq!(faults(&step, head, r#"{"name": "x"}"#), None);
    assert!(faults(&step, head, r#"{"id": 1, "name": "x"}"#).is_some_and(|told| told.contains("read-only")));
    assert!(faults(&step, head, "{}").is_some_and(|told| told.contains("name")));
}

#[test]
fn types_are_found_through_many_levels_of_composition() {
    let mut schemas = Map::new();
    schemas.insert("S0".to_owned(), json!({ "type": "object", "properties": { "age": { "type": "integer" } } }));
    for index in 1..10 {
        let reference = format!("#/components/schemas/S{}", index - 1);
        schemas.insert(format!("S{index}"), json!({ "allOf": [{ "$ref": reference }] }));
    }
    let content = json!({ "application/x-www-form-urlencoded": { "schema": { "$ref": "#/components/schemas/S9" } } });
    let step = of_operation("post", &json!({ "requestBody": { "content": content } }), &Value::Object(schemas));
    let head = "POST /\nContent-Type: application/x-www-form-urlencoded";
    assert_eq!(faults(&step, head, "age=5"), None);
    assert!(faults(&step, head, "age=x").is_some());
}

#[test]
fn servers_have_all_their_base_paths_or_are_refused() {
    let regions: Vec<String> = (0..25).map(|index| format!("r{index}")).collect();
    let of = |url: &str| {
        json!({ "spec": json!({ "openapi": "3.1.0", "paths": { "/a": { "get": {} } }, "servers": [{ "url": url, "variables": {
            "api": { "default": "v1", "enum": ["v1", "v2"] }, "region": { "default": "r1", "enum": regions } } }] })
        .to_string(), "verbose_errors": true })
    };
    let step = build::<OasValidator>(of("https://{region}.example.com/{api}"));
    for (head, fits) in [("GET /v1/a", true), ("GET /v2/a", true), ("GET /v3/a", false)] {
        assert_eq!(faults(&step, head, "").is_none(), fits, "{head}");
    }
    let told = refused::<OasValidator>(of("/{region}/{api}"));
    assert!(told.contains("more than 20 base paths"), "{told}");
}

#[test]
fn the_parameters_of_an_operation_are_bounded() {
    let many: Vec<Value> = (0..300).map(|index| json!({ "name": format!("p{index}"), "in": "query" })).collect();
    let definition = json!({ "openapi": "3.1.0", "paths": { "/": { "parameters": many, "get": {} } } });
    let told = refused::<OasValidator>(json!({ "spec": definition.to_string() }));
    assert!(told.contains("more than 256 parameters"), "{told}");
}

#[test]
fn contents_that_many_operations_refer_to_are_bounded_over_all() {
    let kinds = |count: usize| (0..count).map(|index| (format!("text/x{index}"), json!({}))).collect::<Map<_, _>>();
    let encodings =
        |count: usize| (0..count).map(|index| (format!("f{index}"), json!({ "style": "form" }))).collect::<Map<_, _>>();
    let form = json!({ "application/x-www-form-urlencoded": { "schema": {}, "encoding": encodings(600) } });
    let statuses = |count: usize| {
        (200..200 + count)
            .map(|status| (status.to_string(), json!({ "$ref": "#/components/responses/R" })))
            .collect::<Map<_, _>>()
    };
    let body = json!({ "requestBody": { "$ref": "#/components/requestBodies/B" } });
    let properties = (0..1_500).map(|index| (format!("p{index}"), json!({}))).collect::<Map<_, _>>();
    let wide = json!({ "text/plain": { "schema": { "properties": properties } } });
    for (operation, of_body, of_response, validates, told) in [
        (&body, json!(kinds(600)), json!({}), json!(null), "more than 50000 responses, media types"),
        (&body, form, json!({}), json!(null), "more than 50000 responses, media types"),
        (&body, wide, json!({}), json!(null), "more than 1000000 properties"),
        (
            &json!({ "responses": statuses(60) }),
            json!({}),
            json!(kinds(20)),
            json!("log"),
            "more than 50000 responses, media types",
        ),
        (&json!({ "responses": statuses(60) }), json!({}), json!(kinds(20)), json!(null), ""),
    ] {
        let paths = (0..700).map(|index| (format!("/{index}"), json!({ "post": operation }))).collect::<Map<_, _>>();
        let definition = json!({ "openapi": "3.1.0", "paths": paths, "components": {
            "requestBodies": { "B": { "content": of_body } }, "responses": { "R": { "content": of_response } } } });
        let mut options = json!({ "spec": definition.to_string() });
        if !validates.is_null() {
            options["validate_responses"] = validates;
        }
        match told {
            "" => _ = build::<OasValidator>(options),
            told => {
                let refusal = refused::<OasValidator>(options);
                assert!(refusal.contains(told), "{refusal}");
            }
        }
    }
}

#[test]
fn names_that_many_operations_refer_to_are_bounded_in_length() {
    let long = "x".repeat(300);
    let definition = |operation: Value| json!({ "spec": json!({ "openapi": "3.1.0", "paths": { "/": { "post": operation } } }).to_string() });
    let told = refused::<OasValidator>(definition(json!({ "parameters": [{ "name": long, "in": "query" }] })));
    assert!(told.contains("a name of more than 256 bytes"), "{told}");
    let told = refused::<OasValidator>(definition(json!({ "requestBody": { "content": { long: {} } } })));
    assert!(told.contains("a media type of more than 256 bytes"), "{told}");
}

#[test]
fn u01_alternatives_that_lead_back_to_themselves_cost_no_more_than_the_value() {
    let filter = |name: &str| {
        json!({ "type": "object", "required": ["op", "f"], "properties": {
            "op": { "enum": [name] }, "f": { "type": "array", "items": { "$ref": "#/components/schemas/Filter" } } } })
    };
    let filters = json!({ "oneOf": [{ "$ref": "#/components/schemas/And" }, { "$ref": "#/components/schemas/Or" }] });
    let content = json!({ "application/json": { "schema": { "$ref": "#/components/schemas/Filter" } } });
    let definition = json!({ "openapi": "3.1.0", "paths": { "/": { "post": { "requestBody": { "content": content } } } },
        "components": { "schemas": { "Filter": filters, "And": filter("and"), "Or": filter("or") } } });
    let step = build::<OasValidator>(json!({ "spec": definition.to_string(), "verbose_errors": true }));
    let body = |last: &str| format!("{}{last}{}", "{\"op\":\"and\",\"f\":[".repeat(30), "]}".repeat(30));
    let head = "POST /\nContent-Type: application/json";
    assert_eq!(faults(&step, head, &body("")), None);
    // Without the bound, two to the power of thirty faults are made.
    assert_eq!(faults(&step, head, &body("0")).as_deref(), Some("body: does not match its schema"));
}

#[test]
fn u01_a_value_that_leads_through_many_schemas_at_each_level_is_bounded() {
    let next = |index: usize| json!({ "allOf": [{ "$ref": format!("#/components/schemas/S{}", index + 1) }] });
    let mut schemas: Map<String, Value> = (0..60).map(|index| (format!("S{index}"), next(index))).collect();
    schemas.insert("S60".to_owned(), json!({ "properties": { "a": { "$ref": "#/components/schemas/S0" } } }));
    let content = json!({ "application/json": { "schema": { "$ref": "#/components/schemas/S0" } } });
    let definition = json!({ "openapi": "3.1.0", "paths": { "/": { "post": { "requestBody": { "content": content } } } },
        "components": { "schemas": schemas } });
    let step = build::<OasValidator>(json!({ "spec": definition.to_string(), "verbose_errors": true }));
    let body = |levels: usize| format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels));
    let head = "POST /\nContent-Type: application/json";
    assert_eq!(faults(&step, head, &body(2)), None);
    let told = faults(&step, head, &body(90)).expect("it is refused");
    assert!(told.contains("levels"), "{told}");
}

#[test]
fn u01_values_of_servers_that_name_each_other_do_not_grow() {
    let many = |name: &str| name.repeat(300);
    let variables =
        json!({ "a": { "default": many("{b}") }, "b": { "default": many("{c}") }, "c": { "default": many("x") } });
    let definition = json!({ "openapi": "3.1.0", "servers": [{ "url": format!("/{}", many("{a}")), "variables": variables }],
        "paths": { "/": { "get": {} } } });
    let told = refused::<OasValidator>(json!({ "spec": definition.to_string() }));
    assert!(told.contains("has more than 256 bytes"), "{told}");
}

#[test]
fn u01_schemas_that_lead_into_each_other_are_bounded_in_depth() {
    let chain = |count: usize, last: Value| {
        let next = |index: usize| json!({ "allOf": [{ "$ref": format!("#/components/schemas/S{}", index + 1) }] });
        let mut schemas: Map<String, Value> = (0..count).map(|index| (format!("S{index}"), next(index))).collect();
        schemas.insert(format!("S{count}"), last);
        let parameter = json!({ "name": "a", "in": "query", "schema": { "$ref": "#/components/schemas/S0" } });
        json!({ "spec": json!({ "openapi": "3.1.0", "paths": { "/": { "get": { "parameters": [parameter] } } },
            "components": { "schemas": schemas } }).to_string(), "verbose_errors": true })
    };
    let integer = json!({ "type": "integer" });
    let step = build::<OasValidator>(chain(330, integer.clone()));
    assert_eq!(faults(&step, "GET /?a=x", "").as_deref(), Some("query.a: is not of the type integer"));
    let back = json!({ "properties": { "a": { "$ref": "#/components/schemas/S0" } } });
    for last in [integer, back] {
        let told = refused::<OasValidator>(chain(20_000, last));
        assert!(told.contains("lead into each other by more than 1000 levels"), "{told}");
    }
}
