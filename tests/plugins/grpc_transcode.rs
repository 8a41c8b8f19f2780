//! REST clients call a gRPC service with messages of every kind: one in Python, and one in Go.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use weir_testkit::{Client, Gateway, Program, Response, TempDir, skipped};

use crate::refused;

struct Service {
    child: Child,
    orders: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
    port: String,
    /// Its messages: descriptors, or the text of a proto.
    messages: String,
}

impl Service {
    /// `None` where there is no Python with `grpcio`.
    fn start() -> Option<Service> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let python = root.join(".cache/python/bin/python");
        let imports = Command::new(&python).args(["-c", "import grpc, google.protobuf"]).stderr(Stdio::null()).status();
        if !imports.is_ok_and(|status| status.success()) {
            skipped("there is no Python with `grpcio`");
            return None;
        }
        let mut command = Command::new(python);
        command.arg(root.join("tests/plugins/grpc_server.py"));
        let mut service = Service::run(command);
        service.messages = service.said.next().expect("it goes on").expect("it says text");
        Some(service)
    }

    /// The same in Go. `None` where it could not be built.
    fn start_go() -> Option<Service> {
        let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/plugins/kinds.proto");
        let mut command = Program::find("kinds_service")?;
        command.arg(&proto);
        let mut service = Service::run(command);
        service.messages = std::fs::read_to_string(proto).expect("it is there");
        Some(service)
    }

    fn run(mut command: Command) -> Service {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let orders = child.stdin.take().expect("it is a pipe");
        let mut said = BufReader::new(child.stdout.take().expect("it is a pipe")).lines();
        let line = said.next().expect("it goes on").expect("it says text");
        let port = line.strip_prefix("port ").expect("it says its port").to_owned();
        Service { child, orders, said, port, messages: String::new() }
    }

    /// A gateway with a route for each method, and one with further options below `/other`.
    fn gateway(&self, options: &str) -> Gateway {
        let mut file = format!("protos:\n  - {{ id: kinds, content: {:?} }}\nroutes:\n", self.messages);
        for (uri, method, options) in [
            ("/say", "Say", ""),
            ("/say/:text", "Say", ""),
            ("/users/:user_name/:unknown", "Say", ""),
            ("/numbers/:number", "Say", ""),
            ("/flags/:a_bool", "Say", ""),
            ("/list", "List", ""),
            ("/other/say", "Say", options),
            ("/other/list", "List", options),
        ] {
            writeln!(
                file,
                "  - uri: {uri}
    plugins: {{ grpc-transcode: {{ proto_id: kinds, service: kinds.Kinds, method: {method}, {options} }} }}
    upstream: {{ scheme: grpc, retries: 0, nodes: {{ \"127.0.0.1:{}\": 1 }} }}",
                self.port
            )
            .expect("a text grows");
        }
        Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file)
    }

    fn go_on(&mut self) {
        writeln!(self.orders).expect("it listens");
        self.said.next().expect("it answers").expect("it says text");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Both, as far as they are there.
fn services() -> impl Iterator<Item = Service> {
    [Service::start(), Service::start_go()].into_iter().flatten()
}

fn post(path: &str, content_type: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: t\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n{body}")
}

fn json_of(answer: &Response) -> Value {
    serde_json::from_slice(&answer.body).unwrap_or_else(|_| panic!("{} {}", answer.status, answer.text()))
}

fn said(client: &mut Client, path: &str, body: &Value) -> Value {
    let answer = client.ask(post(path, "application/json", &body.to_string())).expect("an answer");
    assert_eq!(
        (answer.status, answer.headers.get("content-type")),
        (200, Some("application/json")),
        "{} {:?}",
        answer.text(),
        answer.headers.get("grpc-message")
    );
    json_of(&answer)
}

/// The members of a message that are not added by the service.
fn without_seen(mut message: Value) -> (Value, Value) {
    let members = message.as_object_mut().expect("a map");
    let seen = members.remove("seen").expect("it says what it has seen");
    members.remove("metadata");
    let seen = serde_json::from_str(seen.as_str().expect("text")).expect("JSON");
    (message, seen)
}

#[test]
fn grpc_messages_of_every_kind_keep_their_values_in_both_directions() {
    services().for_each(keep_values);
}

fn keep_values(service: Service) {
    let gateway = service.gateway("pb_option: [no_default_values, int64_as_string]");
    let mut client = gateway.client();
    for message in [
        json!({"a_double": 1.5, "a_float": 0.25, "a_int64": "-9007199254740993", "a_uint64": "18446744073709551615", "a_int32": -7,
               "a_fixed64": "7", "a_fixed32": 8, "a_bool": true, "a_string": "ü\"\n", "a_bytes": "AP8=", "a_uint32": 4_294_967_295_u32,
               "a_sfixed32": -1, "a_sfixed64": "-2", "a_sint32": -3, "a_sint64": "-4"}),
        json!({"inner": {"inner": {"text": "deep"}}, "list": [{"number": 1}, {}], "numbers": ["1", "-2"], "colour": "BLUE",
               "colours": ["RED", "COLOUR_NONE"], "other": 0, "texts": {"a": "b", "": ""}}),
        json!({"at": "2026-01-02T03:04:05.006Z", "lasts": "1.500s", "tree": {"a": [1.5, null, {"b": true}]}, "maybe": "0",
               "any": {"@type": "type.googleapis.com/kinds.Detail", "reason": "r"}}),
        json!({}),
    ] {
        let (answer, seen) = without_seen(said(&mut client, "/other/say", &message));
        assert_eq!(answer, message);
        // What the service has seen, written by its own library.
        assert_eq!(seen, message);
    }
    // Other forms of the same values.
    let (answer, _) = without_seen(said(
        &mut client,
        "/other/say",
        &json!({"userName": "camel", "colour": 2, "a_int32": "12", "a_double": "NaN", "text": null}),
    ));
    assert_eq!(answer, json!({"user_name": "camel", "colour": "BLUE", "a_int32": 12, "a_double": "NaN"}));
}

#[test]
fn grpc_messages_have_their_defaults_and_integers_as_configured() {
    services().for_each(write_defaults_and_integers);
}

fn write_defaults_and_integers(service: Service) {
    let gateway = service.gateway("pb_option: [enum_as_value, int64_as_hexstring, use_default_values]");
    let mut client = gateway.client();
    let message = json!({"a_int64": "255", "colour": "BLUE"});
    let plain = said(&mut client, "/say", &message);
    assert_eq!((&plain["a_int64"], &plain["colour"], &plain["a_int32"]), (&json!(255), &json!("BLUE"), &json!(0)));
    assert_eq!(
        (&plain["list"], &plain["texts"], plain.get("inner"), plain.get("one")),
        (&json!([]), &json!({}), None, None)
    );
    let other = said(&mut client, "/other/say", &message);
    assert_eq!((&other["a_int64"], &other["colour"], &other["a_uint64"]), (&json!("0xff"), &json!(2), &json!("0x0")));
}

#[test]
fn grpc_messages_are_made_of_queries_forms_and_parameters() {
    services().for_each(make_messages);
}

fn make_messages(service: Service) {
    let gateway = service.gateway("");
    for mut client in [gateway.client(), gateway.client().by_http2()] {
        let mut asked = |request: &str| {
            let answer = client.ask(request).expect("an answer");
            if answer.status == 200 {
                Ok(without_seen(json_of(&answer)).1)
            } else {
                Err((answer.status, answer.text()))
            }
        };
        let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n");
        assert_eq!(
            asked(&get("/say?text=a%20b&inner.user_name=c&numbers=1&numbers=2&a_bool=true&utm=x&texts.k=v")),
            Ok(json!({
                "text": "a b", "inner": {"user_name": "c"}, "numbers": ["1", "2"], "a_bool": true, "texts": {"k": "v"}
            }))
        );
        assert_eq!(
            asked(&get("/users/an%20n/x?text=t&user_name=other")),
            Ok(json!({"user_name": "an n", "text": "t"}))
        );
        let form = "application/x-www-form-urlencoded";
        assert_eq!(
            asked(&post("/say?text=ignored", form, "number=7&colours=RED&colours=2")),
            Ok(json!({
                "number": 7, "colours": ["RED", "BLUE"]
            }))
        );
        assert_eq!(
            asked(&post("/say/path", "application/json", r#"{"text": "body", "number": 1}"#)),
            Ok(json!({"text": "path", "number": 1}))
        );
        assert_eq!(asked("POST /say HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n"), Ok(json!({})));
        let empty = "POST /say?text=a HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
        assert_eq!(asked(empty), Ok(json!({"text": "a"})), "an empty body is none");
        // What the path says counts, also if it is the default of its field.
        assert_eq!(asked(&post("/numbers/0", "application/json", r#"{"number": 7}"#)), Ok(json!({})));
        assert_eq!(asked(&get("/numbers/0?number=7")), Ok(json!({})));
        assert_eq!(
            asked(&post("/flags/false", "application/json", r#"{"a_bool": true, "number": 1}"#)),
            Ok(json!({"number": 1}))
        );
        assert_eq!(
            asked(&get("/say?inner.utm=1&text=a")),
            Ok(json!({"text": "a"})),
            "an ignored argument changes nothing"
        );
        for (request, status, part) in [
            (get("/say?number=x"), 400, "number: "),
            (get("/say?inner=x"), 400, "inner: is no field with a single value"),
            (get("/say?one=a&other=1"), 400, "choice"),
            (post("/say", form, "unknown=1"), 400, "unknown: the message has no such field"),
            (post("/say", form, r#"{"text": "sent as a form"}"#), 400, "the message has no such field"),
            (
                post("/say", "application/json", r#"{"inner": {"list": [{}, {"number": "x"}]}}"#),
                400,
                "inner.list[1].number: ",
            ),
            (post("/say", "application/json", r#"{"unknown": 1}"#), 400, "unknown"),
            (post("/say", "application/json", "{"), 400, "EOF"),
            (post("/say", "text/plain", "{}"), 415, "content type"),
            (post("/say", "application/grpc", "{}"), 415, "content type"),
            ("OPTIONS /say HTTP/1.1\r\nHost: t\r\n\r\n".to_owned(), 405, "only GET"),
            (post("/say", "application/json", &format!(r#"{{"text": "{}"}}"#, "x".repeat(1 << 20))), 413, ""),
        ] {
            let (answered, text) = asked(&request).expect_err("it is refused");
            assert_eq!(answered, status, "{text}");
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}

#[test]
fn grpc_calls_have_the_head_of_a_call() {
    services().for_each(have_the_head_of_a_call);
}

fn have_the_head_of_a_call(service: Service) {
    let gateway = service.gateway("deadline: 30000");
    let request = "GET /other/say?text=a HTTP/1.1\r\nHost: t\r\nX-Own: well\r\ngrpc-timeout: 1n\r\ngrpc-accept-encoding: gzip\r\n\r\n";
    for path in ["/other/say", "/say"] {
        let answer = gateway.client().ask(request.replace("/other/say", path)).expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.text());
        let metadata: Value = serde_json::from_str(json_of(&answer)["metadata"].as_str().expect("text")).expect("JSON");
        assert_eq!((&metadata["x-own"], metadata.get("content-type")), (&json!("well"), None), "{metadata}");
        let remaining = metadata["remaining"].as_f64().unwrap_or(f64::INFINITY);
        assert_eq!(remaining < 31.0, path == "/other/say", "{remaining}");
        for absent in ["grpc-status", "grpc-encoding", "grpc-accept-encoding", "trailer"] {
            assert_eq!(answer.headers.get(absent), None, "{absent}");
        }
    }
}

#[test]
fn failed_grpc_calls_have_the_status_for_theirs() {
    services().for_each(map_statuses);
}

fn map_statuses(service: Service) {
    let shows = "show_status_in_body: true, status_detail_type: kinds.Detail";
    let gateway = service.gateway(shows);
    for mut client in [gateway.client(), gateway.client().by_http2()] {
        let plain = client.get("/say?text=refuse").expect("an answer");
        assert_eq!((plain.status, &*plain.body, plain.headers.get("content-type")), (404, &b""[..], None));
        let fields = (plain.headers.get("grpc-status"), plain.headers.get("grpc-message"));
        assert_eq!(fields, (Some("5"), Some("no such \"thing\" %C3%BC")));
        let shown = client.get("/other/say?text=refuse").expect("an answer");
        assert_eq!(
            (shown.status, json_of(&shown)),
            (
                404,
                json!({"error": {"code": 5, "message": "no such \"thing\" ü", "details": [
                    {"reason": "gone"}, {"type_url": "type.googleapis.com/google.protobuf.Duration", "value": "CAE="}
                ]}})
            )
        );
    }
    let hasty = service.gateway(&format!("{shows}, deadline: 300"));
    for mut client in [hasty.client(), hasty.client().by_http2()] {
        let late = client.get("/other/say?text=wait").expect("an answer");
        assert_eq!((late.status, late.headers.get("grpc-status")), (504, Some("4")), "{}", late.text());
        assert_eq!(json_of(&late)["error"]["code"], 4);
        // The connection goes on.
        assert_eq!(client.get("/say").expect("an answer").status, 200);
    }
}

#[test]
fn grpc_streams_are_lines_or_events() {
    services().for_each(write_streams);
}

fn write_streams(mut service: Service) {
    let gateway = service.gateway("pb_option: [no_default_values]");
    for mut client in [gateway.client(), gateway.client().by_http2()] {
        let lines = client.get("/other/list?number=3").expect("an answer");
        assert_eq!((lines.status, lines.headers.get("content-type")), (200, Some("application/x-ndjson")));
        assert_eq!(lines.text(), "{}\n{\"number\":1}\n{\"number\":2}\n");
        assert_eq!(client.get("/other/list").expect("an answer").text(), "");
        let failed = client.get("/other/list?number=1&text=fail").expect("an answer");
        assert_eq!(failed.status, 200);
        let (first, last) =
            failed.text().split_once('\n').map(|(one, other)| (one.to_owned(), other.to_owned())).expect("lines");
        let last: Value = serde_json::from_str(&last).expect("JSON");
        assert_eq!((&*first, &last["error"]["code"], &last["error"]["message"]), ("{}", &json!(8), &json!("enough")));
        // Nothing was sent, so the status can still be told.
        assert_eq!(client.get("/other/list?text=fail").expect("an answer").status, 429);
        let events = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: t\r\nAccept: text/event-stream\r\n\r\n");
        let answer = client.ask(events("/other/list?number=2")).expect("an answer");
        assert_eq!((answer.status, answer.headers.get("content-type")), (200, Some("text/event-stream")));
        assert_eq!(answer.text(), "data: {}\n\ndata: {\"number\":1}\n\nevent: end\ndata: {}\n\n");
        let failed = client.ask(events("/other/list?number=1&text=fail")).expect("an answer").text();
        assert!(failed.starts_with("data: {}\n\nevent: error\ndata: {\"error\":{\"code\":8,"), "{failed}");
    }
    // A message is sent on at once.
    let mut client = gateway.client();
    client.send("GET /other/list?number=2&text=hold HTTP/1.1\r\nHost: t\r\n\r\n");
    service.go_on();
    assert_eq!(client.response_head("GET").expect("a head").status, 200);
    assert_eq!(client.chunk().expect("a chunk"), b"{}\n");
    service.go_on();
    assert_eq!(client.chunk().expect("a chunk"), b"{\"number\":1}\n");
    assert_eq!(client.chunk().expect("the last chunk"), b"");
}

#[test]
fn large_grpc_answers_are_bounded() {
    let Some(service) = Service::start() else { return };
    let gateway = service.gateway("pb_option: [no_default_values], max_message_size: 2000, max_resp_body_size: 1500");
    let mut client = gateway.client();
    let mut status = |path: &str| {
        let answer = client.get(path).expect("an answer");
        (answer.status, answer.body.len())
    };
    let frame = "{\"text\":\"\"}".len();
    assert_eq!(status("/other/say?text=large&number=1000"), (200, 1000 + frame));
    assert_eq!(status("/other/say?text=large&number=1489"), (200, 1489 + frame));
    assert_eq!(status("/other/say?text=large&number=1490").0, 500);
    assert_eq!(status("/other/say?text=large&number=3000").0, 502);
    assert_eq!(status("/say?text=large&number=4000000"), (200, status("/say?text=large&number=0").1 + 4_000_000));
    assert_eq!(status("/say?text=large&number=4194304").0, 502);
    assert_eq!(status("/say?text=compress").0, 500, "it was not asked for");
    // What is beyond the bound ends a stream.
    let name = "n".repeat(1600);
    let stream = client.get(&format!("/other/list?number=2&user_name={name}")).expect("an answer");
    assert_eq!(
        (stream.status, stream.text().starts_with("{\"error\":{\"code\":13,")),
        (200, true),
        "{}",
        stream.text()
    );
    assert_eq!(stream.text().lines().count(), 1);
}

#[test]
fn a_grpc_service_that_dies_is_no_answer_that_looks_complete() {
    for (path, is_whole) in [("/say?text=die", true), ("/list?number=3&text=die", false)] {
        for by_http2 in [false, true] {
            let Some(service) = Service::start() else { return };
            let gateway = service.gateway("");
            let client = gateway.client();
            let mut client = if by_http2 { client.by_http2() } else { client };
            let answer = client.get(path);
            match answer {
                Ok(answer) if is_whole => assert_eq!(answer.status, 502),
                Ok(answer) => assert!(answer.status == 502 || answer.text().contains("error"), "{}", answer.text()),
                Err(_) => assert!(!is_whole, "the head was not sent"),
            }
        }
    }
}

#[test]
fn options_of_grpc_transcode_are_checked() {
    const PROTO: &str = "service Shop { rpc One (A) returns (A); rpc Many (stream A) returns (A); } message A {}";
    for (options, want) in [
        ("proto_id: x, service: Shop, method: One".to_owned(), "`protos` has no `x`"),
        (
            format!("proto: '{PROTO}', service: Ship, method: One"),
            "service: the proto has no service `Ship`; did you mean `Shop`?",
        ),
        (
            format!("proto: '{PROTO}', service: Shop, method: Ones"),
            "method: `Shop` has no method `Ones`; did you mean `One`?",
        ),
        (format!("proto: '{PROTO}', service: Shop, method: Many"), "takes a stream of messages"),
        (format!("proto: '{PROTO}', service: Shop, method: One, pb_option: [int64_as_text]"), "pb_option[0]"),
        (
            "proto: 'message A { optional strin a = 1; }', service: Shop, method: One".to_owned(),
            "proto: line 1 column 22: name 'strin' is not defined",
        ),
        ("service: Shop, method: One".to_owned(), "needs one of `proto_id` and `proto`"),
    ] {
        let said = refused(&format!("{{ grpc-transcode: {{ {options} }} }}"));
        assert!(said.contains(want), "{want} in {said}");
    }
}

#[test]
fn a_proto_with_a_fault_is_told_once_and_not_for_each_route() {
    let route = |id: &str| {
        format!(
            "{{ id: {id}, uri: /{id}, plugins: {{ grpc-transcode: {{ proto_id: p, service: S, method: One }} }}, upstream: {{ scheme: grpc, nodes: {{ '127.0.0.1:1': 1 }} }} }}"
        )
    };
    let text = format!(
        "protos: [{{ id: p, content: 'message A {{ optional strin a = 1; }}' }}]\nroutes: [{}, {}]\n",
        route("a"),
        route("b")
    );
    let place = TempDir::new();
    let file = place.write("weir.yaml", &text);
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).arg("check").arg(file).output().expect("it was built");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("protos[0].content: invalid content: line 1 column 22"), "{told}");
    assert!(told.contains("1 fault") && !told.contains("`protos` has no"), "{told}");
}

#[test]
fn an_upstream_that_does_not_speak_grpc_is_told() {
    let place = TempDir::new();
    let checked = |upstream: &str| {
        let plugin = "{ proto: 'service S { rpc One (A) returns (A); } message A {}', service: S, method: One }";
        let nodes = "nodes: { '127.0.0.1:1': 1 }";
        let text = format!(
            "upstreams: [{{ id: u, {upstream} {nodes} }}]
routes: [{{ uri: /a, upstream_id: u, plugins: {{ grpc-transcode: {plugin} }} }}]
"
        );
        let file = place.write("weir.yaml", &text);
        let output = Command::new(env!("CARGO_BIN_EXE_weir")).arg("check").arg(file).output().expect("it was built");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let told = checked("");
    assert!(told.contains("routes[0].plugins.grpc-transcode: the upstream of routes[0] does not speak gRPC"), "{told}");
    for upstream in ["scheme: grpc,", "scheme: grpcs,", "scheme: https, http2: true,"] {
        let told = checked(upstream);
        assert!(!told.contains("speak gRPC"), "{upstream} {told}");
    }
}

/// Definitions with rules, for messages of the service.
const RULES: &str = r#"syntax = "proto3"; package kinds; import "google/api/annotations.proto";
  service Kinds {
    rpc Say (All) returns (All) { option (google.api.http) = {
      get: "/v1/{text=texts/*}/numbers/{number}"
      additional_bindings { put: "/v1/users/{user_name}" body: "inner" }
      additional_bindings { post: "/v1/users/{user_name}:say" body: "*" response_body: "inner" }
      additional_bindings { delete: "/v1/users/{user_name}" response_body: "number" } }; }
    rpc List (All) returns (stream All) { option (google.api.http) = { get: "/v1/list/{number}" }; }
    rpc Take (stream All) returns (All);
  }
  message All { string text = 1; int32 number = 2; All inner = 3; repeated All list = 4; string seen = 15; string metadata = 16;
    string user_name = 18; }"#;

#[test]
fn requests_choose_their_grpc_method_by_the_rules_of_the_proto() {
    services().for_each(choose_methods);
}

fn choose_methods(service: Service) {
    let proto = json!(RULES);
    let file = format!(
        "routes:
  - uri: /v1/*
    plugins: {{ grpc-transcode: {{ proto: {proto}, pb_option: [no_default_values] }} }}
    upstream: {{ scheme: grpc, retries: 0, nodes: {{ \"127.0.0.1:{}\": 1 }} }}\n",
        service.port
    );
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file);
    for mut client in [gateway.client(), gateway.client().by_http2()] {
        let mut asked = |method: &str, path: &str, body: &str| {
            let fields = format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
            let fields = if body.is_empty() { String::new() } else { fields };
            let answer =
                client.ask(format!("{method} {path} HTTP/1.1\r\nHost: t\r\n{fields}\r\n{body}")).expect("an answer");
            (answer.status, answer.text(), answer.headers.get("allow").map(str::to_owned))
        };
        let seen = |(status, text, _): (u16, String, Option<String>)| {
            assert_eq!(status, 200, "{text}");
            without_seen(serde_json::from_str(&text).expect("JSON")).1
        };
        assert_eq!(
            seen(asked("GET", "/v1/texts/a%20b/numbers/7?inner.text=c&number=8&utm=x", "")),
            json!({"text": "texts/a b", "number": 7, "inner": {"text": "c"}})
        );
        assert_eq!(
            seen(asked("PUT", "/v1/users/ann?inner.text=no&number=3", r#"{"text": "a"}"#)),
            json!({"user_name": "ann", "number": 3, "inner": {"text": "a"}})
        );
        let (status, text, _) =
            asked("POST", "/v1/users/ann:say?number=9", r#"{"inner": {"number": 1}, "user_name": "b"}"#);
        assert_eq!((status, &*text), (200, r#"{"number":1}"#), "the response is the field");
        assert_eq!(asked("POST", "/v1/users/ann:say", r#"{"number": 1}"#).1, "null", "and that is not there");
        assert_eq!(asked("DELETE", "/v1/users/ann?number=12", "").1, "12");
        assert_eq!(asked("GET", "/v1/list/2", "").1, "{}\n{\"number\":1}\n");
        for (method, path, body, status, told) in [
            ("GET", "/v1/none", "", 404, "no method of the service has this path"),
            ("PATCH", "/v1/users/ann", "", 405, "only PUT, DELETE are allowed"),
            ("HEAD", "/v1/list/2", "", 405, ""),
            ("GET", "/v1/list/two", "", 400, "number: "),
            ("PUT", "/v1/users/ann", r#"{"number": "x"}"#, 400, "inner.number: "),
            ("PUT", "/v1/users/ann", r#"{}, "number": {}"#, 400, "trailing characters"),
            ("DELETE", "/v1/users/ann", r#"{"number": 1}"#, 400, "the method takes no body"),
        ] {
            let (answered, text, allow) = asked(method, path, body);
            assert_eq!((answered, allow.is_some()), (status, status == 405), "{method} {path}: {text}");
            assert!(text.contains(told), "{method} {path}: {text}");
        }
    }
}

#[test]
fn plugins_that_look_at_responses_are_given_the_json_of_a_grpc_answer() {
    services().for_each(show_answers_to_plugins);
}

fn show_answers_to_plugins(service: Service) {
    let proto = json!(RULES);
    let mut file = "routes:\n".to_owned();
    for (uri, plugin) in [
        (
            "/masked",
            "content-filter: { rules: [{ on: response, in: body, path: $.text, pattern: secret, action: mask }] }",
        ),
        (
            "/filtered",
            "response-rewrite: { filters: [{ regex: secret, scope: global, replace: much longer than before }] }",
        ),
        ("/replaced", "response-rewrite: { body: replaced }"),
        ("/cached", "proxy-cache: { cache_ttl: 60 }"),
        ("/zipped", "gzip: { min_length: 1, types: [application/json] }"),
    ] {
        writeln!(
            file,
            "  - uri: {uri}
    plugins:
      grpc-transcode: {{ proto: {proto}, service: kinds.Kinds, method: Say, pb_option: [no_default_values] }}
      {plugin}
    upstream: {{ scheme: grpc, retries: 0, nodes: {{ \"127.0.0.1:{}\": 1 }} }}",
            service.port
        )
        .expect("a text grows");
    }
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file);
    for mut client in [gateway.client(), gateway.client().by_http2()] {
        let mut text = |path: &str| {
            let answer = client.get(&format!("{path}?text=secret")).expect("an answer");
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
            if path == "/replaced" { json!(answer.text()) } else { json_of(&answer)["text"].clone() }
        };
        assert_eq!(text("/masked"), "***");
        assert_eq!(text("/filtered"), "much longer than before");
        assert_eq!(text("/replaced"), "replaced");
        assert_eq!((text("/cached"), text("/cached")), (json!("secret"), json!("secret")));
    }
    let zipped = gateway
        .client()
        .ask("GET /zipped?text=a HTTP/1.1\r\nHost: t\r\nAccept-Encoding: gzip\r\n\r\n")
        .expect("an answer");
    assert_eq!((zipped.status, zipped.headers.get("content-encoding")), (200, Some("gzip")));
}

/// A call: its path and body, and the status and the answer that are wanted. A body means POST with JSON.
type Call = (&'static str, &'static str, u16, &'static str);

/// Messages, which the service sends back, with what it is asked and its answer alike.
const ECHOED: [&str; 18] = [
    "{}",
    r#"{"text":"ä \u0001 \" \\ 🦀"}"#,
    r#"{"a_int64":"9223372036854775807","a_uint64":"18446744073709551615"}"#,
    r#"{"a_int64":"-9223372036854775808","a_sint64":"-1","a_sfixed64":"9007199254740993","a_fixed64":"1"}"#,
    r#"{"a_int32":-2147483648,"a_sint32":2147483647,"a_uint32":4294967295,"a_fixed32":4294967295,"a_sfixed32":-1}"#,
    r#"{"a_double":-1.5e300,"a_float":0.5,"a_bool":true,"a_bytes":"AAEC/w=="}"#,
    r#"{"a_double":"Infinity","a_float":"-Infinity"}"#,
    r#"{"one":""}"#,
    r#"{"other":0}"#,
    r#"{"perhaps":0}"#,
    r#"{"texts":{"":"empty","a.b":"dot","ä":""}}"#,
    r#"{"numbered":{"-1":{"text":"minus"},"9007199254740993":{"numbered":{"0":{}}}}}"#,
    r#"{"switches":{"true":"BLUE","false":"COLOUR_NONE"}}"#,
    r#"{"colour":"RED","colours":["BLUE","COLOUR_NONE","RED"],"numbers":["0","-5"]}"#,
    r#"{"list":[{},{"inner":{"inner":{"inner":{"number":4}}}},{"one":"1"}]}"#,
    r#"{"at":"1969-12-31T23:59:59.999999999Z","lasts":"-3.000000001s","mask":"text,inner.userName"}"#,
    r#"{"tree":{"a":{"b":[false,null,"c",2.5]}},"maybe":"-1"}"#,
    r#"{"any":{"@type":"type.googleapis.com/google.protobuf.Duration","value":"1s"}}"#,
];

/// What becomes of the status of a call: the code of gRPC, and that of HTTP.
const STATUSES: [(u16, u16); 16] = [
    (1, 499),
    (2, 500),
    (3, 400),
    (4, 504),
    (5, 404),
    (6, 409),
    (7, 403),
    (8, 429),
    (9, 400),
    (10, 409),
    (11, 400),
    (12, 501),
    (13, 500),
    (14, 503),
    (15, 500),
    (16, 401),
];

const OTHERS: [Call; 9] = [
    ("/other/say?text=newer", "", 200, "{\"text\":\"newer\""),
    ("/other/say?text=empty", "", 200, "{}"),
    ("/other/say", r#"{"text":"a","nothing":1}"#, 400, "nothing"),
    ("/other/say", r#"{"one":"a","other":1}"#, 400, "choice"),
    ("/other/say", r#"{"a_int32":2147483648}"#, 400, "a_int32: "),
    ("/other/say", r#"{"numbered":{"x":{}}}"#, 400, "numbered"),
    (
        "/other/list?number=3&user_name=n",
        "",
        200,
        "{\"user_name\":\"n\"}\n{\"number\":1,\"user_name\":\"n\"}\n{\"number\":2,\"user_name\":\"n\"}\n",
    ),
    ("/other/list?number=0", "", 200, ""),
    ("/other/list?number=0&text=fail", "", 429, ""),
];

#[test]
fn grpc_services_in_python_and_in_go_answer_forty_three_calls_alike() {
    services().for_each(answer_all_calls);
}

fn answer_all_calls(service: Service) {
    let gateway = service.gateway("pb_option: [no_default_values, int64_as_string]");
    assert_eq!(ECHOED.len() + STATUSES.len() + OTHERS.len(), 43);
    for mut client in [gateway.client(), gateway.client().by_http2()] {
        for message in ECHOED {
            let message: Value = serde_json::from_str(message).expect("JSON");
            let (answer, seen) = without_seen(said(&mut client, "/other/say", &message));
            assert_eq!((&answer, &seen), (&message, &message));
        }
        for (code, status) in STATUSES {
            let answer = client.get(&format!("/other/say?text=code&number={code}")).expect("an answer");
            assert_eq!(answer.status, status, "{code}");
            let fields = ["grpc-status", "grpc-message"].map(|name| answer.headers.get(name).map(str::to_owned));
            assert_eq!(fields, [Some(code.to_string()), Some("as asked".to_owned())], "{code}");
        }
        for (path, body, status, part) in OTHERS {
            let request = match body {
                "" => format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n"),
                body => post(path, "application/json", body),
            };
            let answer = client.ask(request).expect("an answer");
            assert_eq!(answer.status, status, "{path} {body}: {}", answer.text());
            assert!(answer.text().contains(part), "{path} {body}: {}", answer.text());
            assert!(!answer.text().contains("later version"), "a field that the proto lacks is left out");
        }
    }
}
