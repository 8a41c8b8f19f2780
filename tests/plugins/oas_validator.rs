//! `oas-validator` over real sockets: requests that fit a definition, and those that do not.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::Value;
use weir_testkit::{Answer, Client, DEADLINE, Gate, Gateway, Origin, TempDir, eventually, skipped};

/// The definitions stand as blocks of text in the file.
fn gateway(origin: &Origin, options: &str, definition: &str) -> Gateway {
    let definition = definition.lines().map(|line| format!("          {line}\n")).collect::<String>();
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes:
  - uri: /*
    plugins:
      oas-validator:
        verbose_errors: true
{options}
        spec: |
{definition}
    upstream: {{ type: roundrobin, nodes: {{ \"{}\": 1 }} }}
",
        origin.addr()
    ))
}

fn origin() -> Origin {
    Origin::serving(|request| Answer::ok(format!("{} {}", request.target, request.body.len())))
}

/// The answer to a request: `None` if the upstream has answered.
fn refusal(client: &mut Client, line: &str, fields: &str, body: &str) -> Option<String> {
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let request = format!("{line} HTTP/1.1\r\nHost: t\r\n{fields}{length}\r\n{body}");
    let answer = client.ask(request).expect("an answer");
    if answer.status == 200 {
        return None;
    }
    let told = answer.text();
    let told =
        told.strip_prefix("{\"message\":\"failed to validate request.").and_then(|told| told.strip_suffix("\"}\n"));
    Some(format!("{}{}", answer.status, told.expect("a refusal of the plugin")))
}

/// Asks over HTTP/1.1 and HTTP/2: each line of a case is a request line and, after `|`, what is told; none if it passes.
fn compare(gateway: &Gateway, cases: &[(&str, &str, &str, Option<&str>)]) {
    for mut client in [gateway.client(), gateway.client().by_http2()] {
        for (line, fields, body, want) in cases {
            let told = refusal(&mut client, line, fields, body);
            assert_eq!(told.as_deref(), *want, "{line} {fields:?} {body}");
        }
    }
}

const STYLES: &str = r##"openapi: 3.0.3
info: { title: styles, version: "1" }
servers: [{ url: "https://api.example/v1" }]
components:
  schemas:
    Ids: { type: array, items: { type: integer }, maxItems: 3 }
    Point: { type: object, properties: { x: { type: integer }, y: { type: integer } }, required: [x], additionalProperties: false }
  parameters:
    Trace: { name: X-Trace, in: header, schema: { type: string, format: uuid } }
paths:
  /simple/{a}: { get: { parameters: [{ name: a, in: path, required: true, schema: { $ref: "#/components/schemas/Ids" } }] } }
  /point/{a}: { get: { parameters: [{ name: a, in: path, required: true, explode: true, schema: { $ref: "#/components/schemas/Point" } }] } }
  /label/{a}: { get: { parameters: [{ name: a, in: path, required: true, style: label, explode: true, schema: { $ref: "#/components/schemas/Ids" } }] } }
  /matrix/{a}: { get: { parameters: [{ name: a, in: path, required: true, style: matrix, schema: { $ref: "#/components/schemas/Point" } }] } }
  /query:
    get:
      parameters:
        - { name: limit, in: query, schema: { type: integer, minimum: 0, exclusiveMinimum: true, nullable: true } }
        - { name: form, in: query, schema: { $ref: "#/components/schemas/Ids" } }
        - { name: comma, in: query, explode: false, schema: { $ref: "#/components/schemas/Ids" } }
        - { name: space, in: query, style: spaceDelimited, explode: false, schema: { $ref: "#/components/schemas/Ids" } }
        - { name: pipe, in: query, style: pipeDelimited, explode: false, schema: { $ref: "#/components/schemas/Ids" } }
        - { name: deep, in: query, style: deepObject, schema: { $ref: "#/components/schemas/Point" } }
        - { name: json, in: query, content: { application/json: { schema: { $ref: "#/components/schemas/Point" } } } }
        - { name: on, in: query, schema: { type: boolean } }
        - { name: seen, in: cookie, schema: { type: integer } }
        - { $ref: "#/components/parameters/Trace" }
  /spread:
    get: { parameters: [{ name: point, in: query, required: true, schema: { $ref: "#/components/schemas/Point" } }] }
"##;

#[test]
fn oas_validator_reads_parameters_of_every_style() {
    let origin = origin();
    let gateway = gateway(&origin, "", STYLES);
    let types = |place: &str| format!("400 {place}: is not of the type integer");
    let (second, x) = (types("path.a[1]"), types("path.a.x"));
    let of = |name: &str| types(&format!("query.{name}"));
    let (form, comma, space) = (of("form[1]"), of("comma[0]"), of("space[1]"));
    let (pipe, deep, json) = (of("pipe[1]"), of("deep.x"), of("json.x"));
    let cookie = types("cookie.seen");
    compare(
        &gateway,
        &[
            ("GET /v1/simple/1,2", "", "", None),
            ("GET /v1/simple/1,b", "", "", Some(&second)),
            ("GET /v1/simple/1,2,3,4", "", "", Some("400 path.a: the value has more than 3 items")),
            ("GET /simple/1,2", "", "", Some("400 path: is none of the definition")),
            ("GET /v1/point/x=1,y=2", "", "", None),
            ("GET /v1/point/x=a", "", "", Some(&x)),
            ("GET /v1/label/.1.2", "", "", None),
            ("GET /v1/label/.1.b", "", "", Some(&second)),
            ("GET /v1/label/1", "", "", Some("400 path.a: does not begin with `.` (style label)")),
            ("GET /v1/matrix/;a=x,1,y,2", "", "", None),
            ("GET /v1/matrix/;a=y,2", "", "", Some(r#"400 path.a: \"x\" is required"#)),
            ("GET /v1/query?limit=5&on=true", "", "", None),
            ("GET /v1/query?limit=null", "", "", None),
            (
                "GET /v1/query?limit=0",
                "",
                "",
                Some("400 query.limit: the value is less than or equal to the minimum of 0"),
            ),
            (
                "GET /v1/query?limit=a",
                "",
                "",
                Some("400 query.limit: the value is not of types \\\"null\\\", \\\"integer\\\""),
            ),
            ("GET /v1/query?limit=5&limit=6", "", "", Some("400 query.limit: is there 2 times, and takes one value")),
            ("GET /v1/query?on=1", "", "", Some("400 query.on: is not of the type boolean")),
            ("GET /v1/query?form=1&form=2", "", "", None),
            ("GET /v1/query?form=1&form=b", "", "", Some(&form)),
            ("GET /v1/query?comma=1,2", "", "", None),
            ("GET /v1/query?comma=a", "", "", Some(&comma)),
            ("GET /v1/query?space=1%202", "", "", None),
            ("GET /v1/query?space=1%20b", "", "", Some(&space)),
            ("GET /v1/query?pipe=1|2", "", "", None),
            ("GET /v1/query?pipe=1%7Cb", "", "", Some(&pipe)),
            ("GET /v1/query?deep[x]=1&deep[y]=2", "", "", None),
            ("GET /v1/query?deep%5Bx%5D=a", "", "", Some(&deep)),
            (
                "GET /v1/query?deep[z]=1&deep[x]=1",
                "",
                "",
                Some("400 query.deep: has properties that are not defined: z"),
            ),
            ("GET /v1/query?json=%7B%22x%22:1%7D", "", "", None),
            ("GET /v1/query?json=%7B%22x%22:%22a%22%7D", "", "", Some(&json)),
            ("GET /v1/spread?x=1&y=2", "", "", None),
            ("GET /v1/spread?z=1", "", "", Some("400 query.point: is required")),
            ("GET /v1/query", "Cookie: a=b; seen=5\r\n", "", None),
            ("GET /v1/query", "Cookie: seen=b\r\n", "", Some(&cookie)),
            ("GET /v1/query", "X-Trace: 7d444840-9dc0-11d1-b245-5ffdce74fad2\r\n", "", None),
            ("GET /v1/query", "X-Trace: 7\r\n", "", Some("400 header.X-Trace: is no uuid")),
        ],
    );
}

const BODIES: &str = r##"openapi: 3.1.0
info: { title: bodies, version: "1" }
components:
  schemas:
    Node:
      type: object
      required: [id, name]
      properties:
        id: { type: integer, readOnly: true }
        name: { type: [string, "null"], minLength: 1 }
        secret: { type: string, writeOnly: true }
        children: { type: array, items: { $ref: "#/components/schemas/Node" } }
      unevaluatedProperties: false
  requestBodies:
    Node:
      required: true
      content:
        application/json: { schema: { $ref: "#/components/schemas/Node" } }
        application/x-www-form-urlencoded:
          schema: { type: object, properties: { age: { type: integer }, tags: { type: array, items: { type: string }, minItems: 2 } }, required: [age] }
        text/plain: { schema: { type: string, maxLength: 5 } }
        image/*: {}
paths:
  /nodes:
    post: { requestBody: { $ref: "#/components/requestBodies/Node" } }
    put: { requestBody: { content: { application/json: { schema: { type: array, prefixItems: [{ const: 1 }] } } } } }
    options: {}
"##;

#[test]
fn oas_validator_judges_bodies_by_their_media_types() {
    let origin = origin();
    let gateway = gateway(&origin, "", BODIES);
    let (json, form) = ("Content-Type: application/json\r\n", "Content-Type: application/x-www-form-urlencoded\r\n");
    let merge = "Content-Type: application/merge-patch+json\r\n";
    let possible = "possible are application/json, application/x-www-form-urlencoded, text/plain, image/*";
    let (none, xml) = (format!("400 body: has no Content-Type; {possible}"), format!("400 body: is a/xml; {possible}"));
    compare(
        &gateway,
        &[
            ("POST /nodes", json, r#"{"name":"a","children":[{"name":null,"secret":"s"}]}"#, None),
            ("POST /nodes", json, r#"{"name":""}"#, Some("400 body.name: the value is shorter than 1 character")),
            (
                "POST /nodes",
                json,
                r#"{"name":"a","id":1}"#,
                Some("400 body.id: is read-only, and not part of a request"),
            ),
            ("POST /nodes", json, r#"{"name":"a","b":1}"#, Some("400 body: has properties that are not defined: b")),
            (
                "POST /nodes",
                json,
                r#"{"name":"a","children":[{"name":"b"},{"name":5},{}]}"#,
                Some(
                    r#"400 body.children[1].name: the value is not of types \"null\", \"string\"; body.children[2]: \"name\" is required"#,
                ),
            ),
            (
                "POST /nodes",
                json,
                r#"{"name":"a","name":"b"}"#,
                Some(r#"400 body: the body has the name \"name\" twice in one object"#),
            ),
            ("POST /nodes", json, "{", Some("400 body: the body is not valid JSON at byte 2")),
            ("POST /nodes", json, "", Some("400 body: is required")),
            ("POST /nodes", "", "{}", Some(&none)),
            ("POST /nodes", "Content-Type: a/xml\r\n", "{}", Some(&xml)),
            ("POST /nodes", form, "age=5&tags=a&tags=b", None),
            ("POST /nodes", form, "age=a&tags=a&tags=b", Some("400 body.age: is not of the type integer")),
            ("POST /nodes", form, "age=5&tags=a", Some("400 body.tags: the value has less than 2 items")),
            ("POST /nodes", "Content-Type: text/plain; charset=utf-8\r\n", "12345", None),
            (
                "POST /nodes",
                "Content-Type: text/plain\r\n",
                "123456",
                Some("400 body: the value is longer than 5 characters"),
            ),
            ("POST /nodes", "Content-Type: image/png\r\n", "anything", None),
            ("PUT /nodes", json, "[1,2]", None),
            ("PUT /nodes", json, "[2]", Some("400 body[0]: 1 was expected")),
            ("PUT /nodes", "", "", None),
            (
                "PUT /nodes",
                merge,
                "[1]",
                Some("400 body: is application/merge-patch+json; possible are application/json"),
            ),
            ("OPTIONS /nodes", "", "", None),
            ("DELETE /nodes", "", "", Some("400 method: the path has no operation for it")),
        ],
    );
}

#[test]
fn oas_validator_says_nothing_or_lets_pass_as_its_options_say() {
    let origin = origin();
    let options = "        rejection_status_code: 422\n        max_req_body_size: 20";
    let strict = gateway(&origin, options, BODIES);
    let mut client = strict.client();
    let json = "Content-Type: application/json\r\n";
    let long = format!("{{\"name\":\"{}\"}}", "a".repeat(20));
    let told = refusal(&mut client, "POST /nodes", json, &long);
    assert_eq!(told.as_deref(), Some("422 body: the body has more than 20 bytes"));
    let chunked =
        "POST /nodes HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    let answer = client.ask(format!("{chunked}{:x}\r\n{long}\r\n0\r\n\r\n", long.len())).expect("an answer");
    assert_eq!(answer.status, 422);
    let mut client = strict.client();
    let answer = client.ask(format!("{chunked}0\r\n\r\n")).expect("an answer");
    assert!(answer.text().contains("body: is required"), "{}", answer.text());
    let before = origin.requests().len();
    let lenient = gateway(&origin, "        reject_if_not_match: false", BODIES);
    for (line, body) in [("DELETE /nodes", ""), ("POST /nodes", "{\"id\":1}"), ("GET /nowhere", "")] {
        assert_eq!(refusal(&mut lenient.client(), line, json, body), None, "{line}");
    }
    assert_eq!(origin.requests().len(), before + 3);
    let skipping = gateway(&origin, "        skip_request_body_validation: true", BODIES);
    assert_eq!(refusal(&mut skipping.client(), "POST /nodes", json, "{\"id\":1}"), None);
}

#[test]
fn oas_validator_refuses_definitions_with_the_places_of_their_faults() {
    let place = TempDir::new();
    let file = place.write(
        "weir.yaml",
        "routes:
  - uri: /*
    upstream: { nodes: { '127.0.0.1:1': 1 } }
    plugins:
      oas-validator:
        spec: '{openapi: 3.1.0, paths: {/a: {get: {parameters: [{$ref: \"other.yaml#/A\"}, {$ref: \"#/b\"}]}}}}'
",
    );
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).arg("check").arg(file).output().expect("built");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in
        ["#/paths/~1a/get/parameters/0", "leads out of the document, to `other.yaml#/A`", "`#/b`, which is not there"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// A server of a definition, which can be replaced: status and content.
fn spec_server(status: u16, content: &str) -> (Origin, Arc<Mutex<(u16, String)>>) {
    let served = Arc::new(Mutex::new((status, content.to_owned())));
    let shown = Arc::clone(&served);
    let server = Origin::serving(move |request| match request.headers.get("x-key") {
        Some("a-key") => {
            let (status, content) = shown.lock().expect("no test has panicked").clone();
            Answer::status(status, content)
        }
        _ => Answer::status(401, "no key"),
    });
    (server, served)
}

fn serve(served: &Mutex<(u16, String)>, status: u16, content: &str) {
    *served.lock().expect("no test has panicked") = (status, content.to_owned());
}

/// A gateway whose definition is at a URL, and is renewed after a second.
fn fetching(origin: &Origin, server: &Origin) -> Gateway {
    fetching_with(origin, server, "verbose_errors: true")
}

fn fetching_with(origin: &Origin, server: &Origin, option: &str) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "plugin_metadata: [{{ id: oas-validator, spec_url_ttl: 1 }}]
routes:
  - uri: /*
    plugins:
      oas-validator:
        spec_url: http://{}/pets.yaml?token=secret
        spec_url_request_headers: {{ X-Key: a-key }}
        {option}
    upstream: {{ nodes: {{ \"{}\": 1 }} }}
",
        server.addr(),
        origin.addr()
    ))
}

const ONLY_A: &str = "openapi: 3.1.0\npaths: { /a: { get: {}, post: { requestBody: { required: true, content: { application/json: { schema: { type: array } } } } } } }";
const ONLY_B: &str = "openapi: 3.1.0\npaths: { /b: { get: {} } }";

#[test]
fn oas_validator_reads_its_definition_from_a_url_and_renews_it() {
    let origin = origin();
    let (server, served) = spec_server(200, ONLY_A);
    let gateway = fetching(&origin, &server);
    let json = "Content-Type: application/json\r\n";
    compare(
        &gateway,
        &[
            ("GET /a", "", "", None),
            ("GET /b", "", "", Some("400 path: is none of the definition")),
            ("POST /a", json, "[1]", None),
            ("POST /a", json, "1", Some("400 body: is not of the type array")),
        ],
    );
    assert_eq!(server.requests()[0].target, "/pets.yaml?token=secret");
    serve(&served, 200, ONLY_B);
    let errors = || gateway.metrics().sum("weir_policy_errors_total", &["policy=\"oas-validator\""]);
    let answers = |target: &str| gateway.get(target).status == 200;
    eventually("requests are judged by the new definition", DEADLINE, || answers("/b") && !answers("/a"));
    assert_eq!(errors(), 0.0);
    serve(&served, 200, "openapi: \"4.0.0\\nforged\"");
    eventually("the failure is counted", DEADLINE, || answers("/b") && errors() >= 1.0);
    let log = gateway.wait_stderr("the failure is logged", |log| log.contains("cannot be read"));
    let line = log.lines().find(|line| line.contains("cannot be read")).expect("it is there");
    assert!(line.contains("it is of OpenAPI 4.0.0") && line.contains("the last one stays in use"), "{line}");
    assert!(!log.contains("secret") && !log.contains("pets.yaml"), "{log}");
    assert!(!log.lines().any(|line| line.starts_with("forged")), "{log}");
    let seen = server.requests().len();
    serve(&served, 200, ONLY_A);
    eventually("it is read again", DEADLINE, || answers("/a"));
    assert!(server.requests().len() > seen);
    assert!(!answers("/b"));
}

#[test]
fn oas_validator_judges_a_response_by_the_definition_of_its_request() {
    let definition = |version: u32, kind: &str| {
        format!(
            "openapi: 3.1.0\npaths: {{ /a: {{ post: {{ responses: {{ default: {{ content: {{ application/json: \
             {{ schema: {{ type: {kind} }} }} }} }} }} }} }}, /v{version}: {{ get: {{ responses: {{ default: {{}} }} }} }} }}"
        )
    };
    let gate = Gate::new();
    let opened = gate.clone();
    let origin = Origin::serving(move |request| match &*request.method {
        "POST" => {
            opened.wait();
            Answer::with(200, "Content-Type: application/json\r\n", "[1]")
        }
        _ => Answer::ok("a version"),
    });
    let (server, served) = spec_server(200, &definition(1, "array"));
    let gateway = fetching_with(&origin, &server, "validate_responses: refuse");
    let mut client = gateway.client();
    client.send("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n");
    origin.wait_requests(1);
    // Replaced more than once meanwhile.
    for (version, kind) in [(2, "object"), (3, "string"), (4, "integer")] {
        serve(&served, 200, &definition(version, kind));
        let target = format!("/v{version}");
        eventually("the definition is in use", DEADLINE, || gateway.get(&target).status == 200);
    }
    gate.open();
    let answer = client.response().expect("an answer");
    assert_eq!((answer.status, answer.text()), (200, "[1]".to_owned()));
    let answer = gateway.client().ask("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n").expect("an answer");
    assert_eq!(answer.status, 502, "the current one wants another type");
}

#[test]
fn oas_validator_answers_with_503_until_its_definition_could_be_read() {
    let origin = origin();
    let (server, served) = spec_server(200, &format!("openapi: 3.1.0\npaths: {{}}\n#{}", "x".repeat(4 << 20)));
    let begun = Instant::now();
    let gateway = fetching(&origin, &server);
    for mut client in [gateway.client(), gateway.client().by_http2()] {
        assert_eq!(client.get("/a").expect("an answer").status, 503);
    }
    // There is one every five seconds.
    let most = 1 + begun.elapsed().as_secs() as usize / 5;
    assert!(server.wait_requests(1).len() <= most, "the second request comes too early for another attempt");
    assert_eq!(origin.requests().len(), 0);
    let errors = || gateway.metrics().sum("weir_policy_errors_total", &["policy=\"oas-validator\""]);
    eventually("both are counted", DEADLINE, || errors() >= 2.0);
    let log = gateway.wait_stderr("the failure is logged", |log| log.contains("cannot be read"));
    assert!(log.contains("requests are answered with 503"), "{log}");
    serve(&served, 200, ONLY_A);
    eventually("the next attempt succeeds", DEADLINE, || gateway.get("/a").status == 200);
}

const RESPONSES: &str = r##"openapi: 3.1.0
components:
  schemas:
    Pet:
      type: object
      required: [id, name, secret]
      properties: { id: { type: integer, readOnly: true }, name: { type: string }, secret: { type: string, writeOnly: true } }
paths:
  /pets/{kind}:
    parameters: [{ name: kind, in: path, required: true }]
    get:
      responses:
        "200": { content: { application/json: { schema: { $ref: "#/components/schemas/Pet" } } } }
        4XX: { description: anything }
        default: { content: { text/plain: { schema: { type: string, maxLength: 5 } } } }
    post:
      requestBody: { content: { application/json: { schema: { $ref: "#/components/schemas/Pet" } } } }
      responses: { "201": { description: it is there } }
"##;

/// A request line, the response of the upstream, and what the log says about it.
const RESPONSES_THAT_DO_NOT_FIT: &[(&str, u16, &str, &str, &str)] = &[
    ("GET /pets/a", 200, "application/json", r#"{"id":"1","name":"a"}"#, "body.id: is not of the type integer"),
    ("GET /pets/b", 200, "application/json", r#"{"id":1,"name":"a","secret":"s"}"#, "body.secret: is write-only"),
    ("GET /pets/c", 200, "application/json", r#"{"id":1"#, "body: the body is not valid JSON"),
    ("GET /pets/d", 200, "text/html", "<p>", "body: is text/html; possible are application/json"),
    ("GET /pets/e", 503, "text/plain", "too long", "body: the value is longer than 5 characters"),
    ("POST /pets/f", 200, "text/plain", "f", "status: 200 is none of the operation"),
];

fn responding(more: &str) -> (Origin, Gateway) {
    let origin = Origin::serving(|request| {
        let of = |(line, status, kind, body, _): &(&str, u16, &str, &str, &str)| {
            let is_asked = *line == format!("{} {}", request.method, request.target);
            is_asked.then(|| Answer::with(*status, &format!("Content-Type: {kind}\r\n"), body))
        };
        let json = |body: &str| Answer::with(200, "Content-Type: application/json\r\n", body);
        match (&*request.method, &*request.target) {
            ("HEAD", _) => {
                Answer::raw("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n")
            }
            ("POST", "/pets/good") => Answer::with(201, "Content-Type: a/b\r\n", "anything"),
            (_, "/pets/good") => json(r#"{"id":1,"name":"a"}"#),
            (_, "/pets/missing") => Answer::with(404, "Content-Type: text/html\r\n", "<p>"),
            (_, "/pets/broken") => Answer::with(503, "Content-Type: text/plain\r\n", "short"),
            (_, "/pets/known") => Answer::raw("HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n\r\n"),
            (_, "/pets/unsized") => Answer::raw(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n{}\r\n0\r\n\r\n",
                "1".repeat(2_000)
            )),
            (_, "/pets/large") => json(&format!(r#"{{"id":1,"name":"{}"}}"#, "a".repeat(1_000))),
            _ => RESPONSES_THAT_DO_NOT_FIT.iter().find_map(of).expect("a response"),
        }
    });
    let options = format!("        max_resp_body_size: 1000\n{more}");
    let gateway = gateway(&origin, &options, RESPONSES);
    (origin, gateway)
}

#[test]
fn oas_validator_replaces_responses_that_do_not_fit() {
    let (_origin, strict) = responding("        validate_responses: refuse");
    for mut client in [strict.client(), strict.client().by_http2()] {
        for (target, status) in [("good", 200), ("missing", 404), ("broken", 503), ("known", 304)] {
            let answer = client.get(&format!("/pets/{target}")).expect("an answer");
            assert_eq!(answer.status, status, "{target}: {}", answer.text());
        }
        let post =
            "POST /pets/good HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: 23\r\n\r\n";
        let answer = client.ask(format!("{post}{{\"name\":\"\",\"secret\":\"\"}}")).expect("an answer");
        assert_eq!(answer.status, 201, "{}", answer.text());
        assert_eq!(client.ask("HEAD /pets/good HTTP/1.1\r\nHost: t\r\n\r\n").expect("an answer").status, 200);
        assert_eq!(client.get("/pets/large").expect("an answer").status, 502);
        assert_eq!(client.get("/pets/unsized").expect("an answer").status, 502);
        for (line, _, _, _, told) in RESPONSES_THAT_DO_NOT_FIT {
            let answer = client.ask(format!("{line} HTTP/1.1\r\nHost: t\r\n\r\n")).expect("an answer");
            let wanted = (502, "{\"message\":\"failed to validate response.\"}\n".to_owned());
            assert_eq!((answer.status, answer.text()), wanted, "{line}: {told}");
        }
    }
}

#[test]
fn oas_validator_tells_what_is_wrong_with_a_response() {
    for (line, status, _, body, told) in RESPONSES_THAT_DO_NOT_FIT {
        let (_origin, lenient) = responding("        validate_responses: log");
        let answer = lenient.client().ask(format!("{line} HTTP/1.1\r\nHost: t\r\n\r\n")).expect("an answer");
        assert_eq!((answer.status, &*answer.text()), (*status, *body), "{line}");
        let log = lenient.wait_stderr("it is logged", |log| log.contains("does not fit the definition"));
        assert!(log.contains(told), "{told}: {log}");
    }
    let (_origin, lenient) = responding("        validate_responses: log");
    assert_eq!(lenient.get("/pets/unsized").status, 200);
    assert_eq!(lenient.get("/pets/large").status, 200);
    lenient.wait_stderr("it is logged", |log| log.contains("the body has more than 1000 bytes"));
    let (_origin, off) = responding("");
    for (line, status, ..) in RESPONSES_THAT_DO_NOT_FIT {
        let answer = off.client().ask(format!("{line} HTTP/1.1\r\nHost: t\r\n\r\n")).expect("an answer");
        assert_eq!(answer.status, *status, "{line}");
    }
}

/// A request with what is told about it here, and by openapi-core.
struct Verdicts<'a> {
    version: &'a str,
    request: &'a Value,
    here: &'a str,
    there: &'a str,
}

impl Verdicts<'_> {
    fn is_of(&self, method: &str, path: &str) -> bool {
        let target = self.text("target");
        self.text("method") == method && target.split('?').next().is_some_and(|whole| whole.ends_with(path))
    }

    fn text(&self, key: &str) -> &str {
        self.request[key].as_str().expect("text")
    }

    /// How many arguments of the query begin so.
    fn arguments(&self, beginning: &str) -> usize {
        let query = self.text("target").split_once('?').map_or("", |(_, query)| query);
        query.split('&').filter(|argument| argument.starts_with(beginning)).count()
    }
}

/// Why only one of the two refuses a request.
struct Difference {
    /// The first cell of its row in the table of docs/guide/definitions.md, which has the reason.
    row: &'static str,
    /// The most requests of 10,000, of which there is one at least.
    most: usize,
    is_it: fn(&Verdicts<'_>) -> bool,
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        row: "a parameter that takes one value is there twice",
        most: 50,
        is_it: |one| {
            let name = one.here.strip_prefix("400 query.");
            let name = name.and_then(|told| told.strip_suffix(": is there 2 times, and takes one value"));
            one.there.is_empty() && name.is_some_and(|name| one.arguments(&format!("{name}=")) == 2)
        },
    },
    Difference {
        row: "a text with `format: uri` that is no URI",
        most: 5,
        is_it: |one| {
            let has_it = one.text("body").contains(r#""url": "b wav""#);
            one.there.is_empty() && one.here == "400 body.url: is no uri" && has_it
        },
    },
    Difference {
        row: "a property with `readOnly`, in a definition of OpenAPI 3.1",
        most: 5,
        is_it: |one| {
            let is_sent = one.version.starts_with("3.1") && one.text("target").contains("/tickets");
            let content: Value = serde_json::from_str(one.text("body")).unwrap_or_default();
            one.there.is_empty() && one.here == DOES_NOT_MATCH && is_sent && content["id"] == 1
        },
    },
    Difference {
        row: "a field of a form whose `encoding` is `deepObject`, without brackets",
        most: 5,
        is_it: |one| {
            let has_it = one.text("body").split('&').any(|field| field.starts_with("deep="));
            one.there.is_empty() && one.here == DOES_NOT_MATCH && one.is_of("PUT", "/forms") && has_it
        },
    },
    Difference {
        row: "`fields=`, for a list with `explode: false`",
        most: 50,
        is_it: |one| {
            let is_empty = |name: &str| {
                let told = format!("InvalidParameter: Invalid query parameter: {name} InvalidSchemaValue(value=['']");
                let is_there = one.text("target").split(['?', '&']).any(|argument| argument == format!("{name}="));
                is_there && one.there.starts_with(&told)
            };
            one.here.is_empty() && (is_empty("fields") || is_empty("piped"))
        },
    },
    Difference {
        row: "a `multipart` body whose parts do not fit",
        most: 60,
        is_it: |one| {
            let is_of_parts = one.text("content_type").starts_with("multipart/form-data;");
            let told = "InvalidRequestBody: Request body validation error: Value ";
            one.here.is_empty() && one.is_of("POST", "/files") && is_of_parts && one.there.starts_with(told)
        },
    },
];

const DOES_NOT_MATCH: &str = "400 body: does not match its schema";

#[test]
fn oas_validator_differs_from_openapi_core_where_the_guide_says_so() {
    let guide = include_str!("../../docs/guide/definitions.md");
    let (_, table) = guide.split_once("### Where validators differ").expect("the section");
    let rows =
        table.lines().skip_while(|line| !line.starts_with("|---")).skip(1).take_while(|line| line.starts_with('|'));
    let rows: Vec<&str> = rows.map(|row| row.split('|').nth(1).expect("a cell").trim()).collect();
    assert_eq!(rows, DIFFERENCES.iter().map(|one| one.row).collect::<Vec<_>>());
}

/// The definitions of `defined_services.py`, each with this many requests, and the verdicts of openapi-core.
fn judged_elsewhere(count: usize) -> Option<Vec<Value>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut program = Command::new(root.join(".cache/python/bin/python"));
    program.env("PYTHONPATH", root.join(".cache/openapi-core")).env("PYTHONDONTWRITEBYTECODE", "1");
    let output = program.arg(root.join("tests/plugins/defined_requests.py")).arg(count.to_string()).output();
    let imported =
        |output: &Output| !String::from_utf8_lossy(&output.stderr).contains("No module named 'openapi_core'");
    let Some(output) = output.ok().filter(imported) else {
        skipped("there is no Python with `openapi-core`");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).expect("text");
    Some(lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect())
}

fn ask_as_described(client: &mut Client, request: &Value) -> Option<String> {
    let text = |key: &str| request[key].as_str().expect("text").to_owned();
    let pairs = |key: &str| request[key].as_object().expect("pairs").clone();
    let mut fields = String::new();
    for (name, value) in pairs("headers") {
        fields += &format!("{name}: {}\r\n", value.as_str().expect("text"));
    }
    let cookies = pairs("cookies").into_iter();
    let cookies = cookies.map(|(name, value)| format!("{name}={}", value.as_str().expect("text").replace(' ', "%20")));
    let cookies = cookies.collect::<Vec<_>>().join("; ");
    if !cookies.is_empty() {
        fields += &format!("Cookie: {cookies}\r\n");
    }
    if !text("content_type").is_empty() {
        fields += &format!("Content-Type: {}\r\n", text("content_type"));
    }
    refusal(client, &format!("{} {}", text("method"), text("target")), &fields, &text("body"))
}

#[test]
fn oas_validator_judges_a_hundred_requests_to_each_of_five_services_as_openapi_core_does() {
    let each = if std::env::var_os("WEIR_TEST_FULL").is_none() { 100 } else { 2_000 };
    let Some(definitions) = judged_elsewhere(each) else { return };
    assert_eq!(definitions.len(), 5);
    let (origin, mut wrong, mut refusals) = (origin(), Vec::new(), 0);
    let mut known = DIFFERENCES.iter().map(|one| (one.row, 0)).collect::<BTreeMap<&str, usize>>();
    for definition in &definitions {
        assert!(definition["operations"].as_u64() >= Some(250), "{}", definition["name"]);
        let version = definition["spec"]["openapi"].as_str().expect("text");
        let gateway = gateway(&origin, "", &definition["spec"].to_string());
        let mut client = gateway.client();
        for request in definition["requests"].as_array().expect("requests") {
            let here = ask_as_described(&mut client, request).unwrap_or_default();
            let there = request["fault"].as_str().unwrap_or_default();
            refusals += usize::from(!here.is_empty());
            if here.is_empty() == there.is_empty() {
                continue;
            }
            let verdicts = Verdicts { version, request, here: &here, there };
            match DIFFERENCES.iter().find(|one| (one.is_it)(&verdicts)) {
                Some(difference) => *known.entry(difference.row).or_default() += 1,
                None => wrong.push(format!("{}: {request}\n  here: {here:?}", definition["name"])),
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), 5 * each, wrong.join("\n"));
    assert!(refusals > each * 3 / 2 && refusals < each * 3, "{refusals} of {}", 5 * each);
    let is_all = each == 2_000;
    for Difference { row, most, .. } in DIFFERENCES {
        assert!(known[row] <= *most && (!is_all || known[row] > 0), "{row}: {} of {}", known[row], 5 * each);
    }
}
