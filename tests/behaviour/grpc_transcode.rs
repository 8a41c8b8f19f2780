//! REST clients of all protocols, and a gRPC service that answers in every order, or breaks off.

use weir_testkit::{Gate, Gateway};

use crate::sides::{ClientSide, Http1, Http2, Http3, Length, Plain, UpstreamSide};

const GRPC: (&str, &str) = ("Content-Type", "application/grpc");
/// `{"text":"hi"}`, in its frame.
const MESSAGE: &[u8] = b"\0\0\0\0\x04\x0a\x02hi";

fn gateway<C: ClientSide>(port: &str) -> Gateway {
    let route = |uri: &str, method: &str, options: &str| {
        format!(
            "  - uri: {uri}
    plugins: {{ grpc-transcode: {{ proto: 'service S {{ rpc One (A) returns (A); rpc Many (A) returns (stream A); }} message A {{ optional string text = 1; }}',
      service: S, method: {method}, {options} }} }}
    upstream: {{ scheme: grpc, retries: 0, nodes: {{ \"127.0.0.1:{port}\": 1 }} }}\n"
        )
    };
    let routes = [
        route("/one", "One", "show_status_in_body: true"),
        route("/many", "Many", ""),
        route("/late", "One", "deadline: 100"),
    ];
    let listen = crate::sides::listen::<C>();
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!("{listen}routes:\n{}", routes.concat()))
}

fn answers_are_translated<C: ClientSide>() {
    // Long, since it is a table of what a service does and of what comes of it.
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Http2::<Plain>::origin(move |exchange| {
        let fields = exchange.fields();
        assert_eq!(
            (exchange.method(), fields.get("te"), fields.get("content-type")),
            ("POST", Some("trailers"), Some("application/grpc"))
        );
        assert_eq!(fields.get("grpc-accept-encoding"), None);
        let (target, fields) =
            (exchange.target().to_owned(), exchange.fields().get("x-way").unwrap_or_default().to_owned());
        let content = exchange.body().unwrap_or_default();
        assert!(["/S/One", "/S/Many"].contains(&&*target), "{target}");
        match &*fields {
            "echo" => {
                exchange.respond(200, &[GRPC], Length::Unknown);
                let _ = exchange.send(&content);
                exchange.finish(&[("grpc-status", "0")]);
            }
            "head" => {
                let status = [("grpc-status", "7"), ("grpc-message", "no%20way"), ("www-authenticate", "Bearer")];
                exchange.respond(200, &[&[GRPC][..], &status].concat(), Length::None);
            }
            "empty" => exchange.respond(200, &[GRPC, ("grpc-status", "0")], Length::None),
            "trailers" => {
                exchange.respond(200, &[GRPC], Length::Unknown);
                exchange.finish(&[("grpc-status", "8")]);
            }
            "after" => {
                exchange.respond(200, &[GRPC], Length::Unknown);
                let _ = exchange.send(MESSAGE);
                exchange.finish(&[("grpc-status", "9"), ("grpc-message", "too late")]);
            }
            "silent" => {
                exchange.respond(200, &[GRPC], Length::Unknown);
                let _ = exchange.send(MESSAGE);
                exchange.finish(&[]);
            }
            "cut" => {
                exchange.respond(200, &[GRPC], Length::Unknown);
                let _ = exchange.send(&MESSAGE[..MESSAGE.len() - 1]);
                exchange.finish(&[("grpc-status", "0")]);
            }
            "two" => {
                exchange.respond(200, &[GRPC], Length::Unknown);
                let _ = exchange.send(&[MESSAGE, MESSAGE].concat());
                exchange.finish(&[("grpc-status", "0")]);
            }
            "compressed" => {
                exchange.respond(200, &[GRPC, ("grpc-encoding", "gzip")], Length::Unknown);
                let _ = exchange.send(&[&[1], &MESSAGE[1..]].concat());
                exchange.finish(&[("grpc-status", "0")]);
            }
            "other" => {
                exchange.respond(200, &[GRPC], Length::Unknown);
                let _ = exchange.send(b"\0\0\0\0\x01\xff");
                exchange.finish(&[("grpc-status", "0")]);
            }
            "html" => exchange.answer(404, &[("Content-Type", "text/html")], "<p>secret</p>"),
            "wrong" => exchange.answer(200, &[("Content-Type", "text/plain")], "hello"),
            _ => {
                exchange.respond(200, &[GRPC], Length::Unknown);
                let _ = exchange.send(MESSAGE);
                held.wait(); // a reset would overtake what has not left
                exchange.abort();
            }
        }
    });
    let gateway = gateway::<C>(&origin.addr().port().to_string());
    let ask = |target: &str, way: &str| {
        C::connect(&gateway).ask(
            "POST",
            target,
            &[("x-way", way), ("content-type", "application/json")],
            br#"{"text":"hi"}"#,
        )
    };
    for (target, way, status, body) in [
        ("/one", "echo", 200, r#"{"text":"hi"}"#),
        ("/many", "echo", 200, "{\"text\":\"hi\"}\n"),
        ("/one", "head", 403, r#"{"error":{"code":7,"message":"no way"}}"#),
        ("/many", "head", 403, ""),
        ("/one", "empty", 500, r#"{"error":{"code":13,"message":"the answer has no message"}}"#),
        ("/many", "empty", 200, ""),
        ("/one", "trailers", 429, r#"{"error":{"code":8,"message":""}}"#),
        ("/many", "trailers", 200, "{\"error\":{\"code\":8,\"message\":\"\"}}\n"),
        ("/one", "after", 400, r#"{"error":{"code":9,"message":"too late"}}"#),
        ("/many", "after", 200, "{\"text\":\"hi\"}\n{\"error\":{\"code\":9,\"message\":\"too late\"}}\n"),
        ("/one", "silent", 500, r#"{"error":{"code":2,"message":"the call ended without a status"}}"#),
        (
            "/many",
            "silent",
            200,
            "{\"text\":\"hi\"}\n{\"error\":{\"code\":2,\"message\":\"the call ended without a status\"}}\n",
        ),
        ("/one", "cut", 500, r#"{"error":{"code":13,"message":"the answer has no message"}}"#),
        ("/many", "cut", 200, "{\"error\":{\"code\":14,\"message\":\"the answer ended within a message\"}}\n"),
        ("/one", "two", 500, r#"{"error":{"code":13,"message":"the answer has more than one message"}}"#),
        ("/many", "two", 200, "{\"text\":\"hi\"}\n{\"text\":\"hi\"}\n"),
        (
            "/one",
            "compressed",
            500,
            r#"{"error":{"code":13,"message":"the message is compressed, which was not asked for"}}"#,
        ),
        (
            "/many",
            "other",
            200,
            "{\"error\":{\"code\":13,\"message\":\"the message is not of the type in the proto\"}}\n",
        ),
        ("/one", "html", 404, "{\"error_msg\":\"the upstream has not answered with gRPC\"}\n"),
        ("/many", "wrong", 502, "{\"error_msg\":\"the upstream has not answered with gRPC\"}\n"),
    ] {
        let answer = ask(target, way).unwrap_or_else(|error| panic!("{target} {way}: {error}"));
        assert_eq!((answer.status, &*answer.body), (status, body), "{target} {way}");
        let failed = status >= 400 && !answer.body.contains("error_msg");
        assert_eq!(answer.fields.get("grpc-status").is_some(), failed, "{target} {way}: {:?}", answer.fields);
        // Fields of the service that do not tell of the content.
        assert_eq!(answer.fields.get("www-authenticate").is_some(), way == "head", "{target} {way}");
    }
    // One that breaks off: nothing was sent of a message that is held, and a stream has no end.
    gate.open_once();
    assert_eq!(ask("/one", "abort").expect("an answer").status, 500);
    let mut client = C::connect(&gateway);
    client.begin("GET", "/many?text=a", &[("x-way", "abort")], Length::None);
    assert_eq!(client.response().expect("a head").0, 200);
    assert_eq!(client.part().expect("a part"), b"{\"text\":\"hi\"}\n");
    gate.open_once();
    assert!(client.part().is_err(), "the stream is cut");
    // The deadline is kept by the gateway, too.
    let late = ask("/late", "abort").expect("an answer");
    assert_eq!((late.status, late.fields.get("grpc-status")), (504, Some("4")));
    gate.open();
    drop(origin);
    let away = ask("/one", "echo").expect("an answer");
    let told = r#"{"error":{"code":14,"message":"the service could not be reached"}}"#;
    assert_eq!((away.status, &*away.body, away.fields.get("grpc-status")), (502, told, Some("14")));
}

#[test]
fn answers_of_grpc_are_translated_over_http1() {
    answers_are_translated::<Http1<Plain>>();
}

#[test]
fn answers_of_grpc_are_translated_over_http2() {
    answers_are_translated::<Http2<Plain>>();
}

#[test]
fn answers_of_grpc_are_translated_over_http3() {
    answers_are_translated::<Http3>();
}

/// A client that waits to be invited, one without a length, and one that walks away.
fn requests_are_translated<C: ClientSide>() {
    let origin = Http2::<Plain>::origin(|exchange| {
        let content = exchange.body().unwrap_or_default();
        exchange.respond(200, &[GRPC], Length::Unknown);
        let _ = exchange.send(&content);
        exchange.finish(&[("grpc-status", "0")]);
    });
    let gateway = gateway::<C>(&origin.addr().port().to_string());
    let mut client = C::connect(&gateway);
    client.begin("PUT", "/one", &[("expect", "100-continue")], Length::Unknown);
    assert_eq!(client.interim().expect("an invitation").0, 100);
    client.send(br#"{"text":"#).expect("it is taken");
    client.send(br#" "hi"}"#).expect("it is taken");
    client.finish(&[]);
    let answer = client.answer().expect("an answer");
    assert_eq!((answer.status, &*answer.body), (200, r#"{"text":"hi"}"#));
    let mut gone = C::connect(&gateway);
    gone.begin("POST", "/one", &[], Length::Unknown);
    gone.send(br#"{"text":"#).expect("it is taken");
    gone.abort();
    let deep = format!(r#"{{"text":{}"#, "[".repeat(100_000));
    let answer = C::connect(&gateway).ask("POST", "/one", &[], deep.as_bytes()).expect("an answer");
    assert_eq!(answer.status, 400);
    let answer = client.ask("DELETE", "/one?text=a", &[], b"").expect("an answer");
    assert_eq!((answer.status, &*answer.body), (200, r#"{"text":"a"}"#));
}

#[test]
fn requests_become_grpc_calls_over_http1() {
    requests_are_translated::<Http1<Plain>>();
}

#[test]
fn requests_become_grpc_calls_over_http2() {
    requests_are_translated::<Http2<Plain>>();
}

#[test]
fn requests_become_grpc_calls_over_http3() {
    requests_are_translated::<Http3>();
}
