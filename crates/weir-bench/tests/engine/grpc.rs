//! Calls of gRPC, with one message and with streams.

use std::path::PathBuf;
use std::thread;

use bytes::Bytes;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Response};
use tokio::net::TcpListener;
use tokio::runtime;
use weir_bench::backend::{BackendServer, Config};
use weir_bench::engine::{
    AnswerCheck, GrpcCall, LoadPlan, LoadResult, PlanVariable, Protocol, RequestBody, RequestTemplate, StopCondition,
    run,
};

const PROTO: &str = "syntax = \"proto3\"; package shop; message Item { string name = 1; int64 count = 2; } \
    service Cart { rpc Add(Item) returns (Item); rpc Watch(Item) returns (stream Item); \
    rpc AddAll(stream Item) returns (Item); rpc Mirror(stream Item) returns (stream Item); }";

/// A definition that is removed at the end.
struct ProtoFile(PathBuf);

impl ProtoFile {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weir-grpc-{}-{name}.proto", std::process::id()));
        std::fs::write(&path, PROTO).expect("the directory of temporary files is writable");
        Self(path)
    }

    fn plan(&self, url: &str, method: &str, message: &str, metadata: &[(&str, &str)]) -> LoadPlan {
        let call = format!("shop.Cart/{method}");
        let mut plan = LoadPlan::closed(url, 4, StopCondition::after_count(40));
        plan.protocol = Protocol::Http2 { streams: 2 };
        plan.requests[0] = RequestTemplate {
            grpc: Some(GrpcCall { call, proto: self.0.clone(), import_paths: Vec::new(), deadline_ms: None }),
            body: RequestBody::Text(message.to_owned()),
            headers: metadata.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            ..RequestTemplate::get(url)
        };
        plan
    }
}

impl Drop for ProtoFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

struct Backend {
    _server: BackendServer,
    url: String,
}

impl Backend {
    fn start() -> Self {
        let server = BackendServer::start(&Config::default()).expect("a free port");
        let url = format!("http://{}/", server.addresses()[0]);
        Self { _server: server, url }
    }
}

fn load(plan: &LoadPlan) -> LoadResult {
    let result = run(plan, &mut |_| {}).expect("the plan is good");
    let total = &result.total;
    assert_eq!(total.due, total.completed + total.errors.sum() + total.missed, "every call has one outcome");
    result
}

fn json(pointer: &str, wanted: &str) -> AnswerCheck {
    AnswerCheck { json: Some(pointer.to_owned()), equals: Some(wanted.to_owned()), ..AnswerCheck::default() }
}

#[test]
fn calls_with_one_message_are_counted_by_their_status() {
    let (backend, file) = (Backend::start(), ProtoFile::new("unary"));
    let total = load(&file.plan(&backend.url, "Add", r#"{"name": "pen", "count": 3}"#, &[])).total;
    assert_eq!((total.completed, total.messages, total.failed()), (40, 40, 0));
    assert_eq!(total.statuses, [(0, 40)].into());
    assert_eq!(total.first_message, None);
    // The prefix of five bytes, and the message.
    assert_eq!((total.bytes_sent, total.bytes_received), (40 * 12, 40 * 12));

    let refused = load(&file.plan(&backend.url, "Add", "{}", &[("x-status", "14")])).total;
    assert_eq!((refused.completed, refused.unexpected, refused.statuses), (40, 40, [(14, 40)].into()));
    let mut expected = file.plan(&backend.url, "Add", "{}", &[("x-status", "5")]);
    expected.requests[0].expect_status = vec![5];
    assert_eq!(load(&expected).total.failed(), 0);
}

#[test]
fn streams_of_messages_are_counted_with_the_time_to_the_first() {
    let (backend, file) = (Backend::start(), ProtoFile::new("streams"));
    let watched = load(&file.plan(&backend.url, "Watch", r#"{"name": "pen"}"#, &[("x-repeat", "25")])).total;
    assert_eq!((watched.completed, watched.messages, watched.failed()), (40, 40 * 25, 0));
    let first = watched.first_message.expect("it is measured");
    assert_eq!(first.count(), 40);
    assert!(first.max() <= watched.service_time.max(), "the first message comes before the last one");

    let empty = load(&file.plan(&backend.url, "Watch", "{}", &[("x-repeat", "0")])).total;
    assert_eq!((empty.completed, empty.messages, empty.failed(), empty.first_message), (40, 0, 0, None));

    let three = r#"[{"name": "a"}, {"name": "b"}, {"name": "c"}]"#;
    let mirrored = load(&file.plan(&backend.url, "Mirror", three, &[])).total;
    assert_eq!((mirrored.messages, mirrored.failed()), (40 * 3, 0));
    // The backend returns three messages where the definition says one.
    let added = load(&file.plan(&backend.url, "AddAll", three, &[])).total;
    assert_eq!((added.completed, added.errors.protocol), (0, 40));
}

#[test]
fn messages_are_made_of_data_and_answers_are_checked_as_json() {
    let (backend, file) = (Backend::start(), ProtoFile::new("data"));
    let mut plan = file.plan(&backend.url, "Add", r#"{"name": "${who}", "count": "${n}"}"#, &[]);
    plan.data.variables = [
        ("who".to_owned(), PlanVariable::Value("Ann \"A\"".to_owned())),
        ("n".to_owned(), PlanVariable::Sequence { from: 7, step: 0 }),
    ]
    .into();
    plan.requests[0].check = vec![json("/name", "Ann \"A\""), json("/count", "7"), json("/count", "8")];
    let result = load(&plan);
    let flow = result.flow.expect("there are checks");
    let outcomes: Vec<(u64, u64)> = flow.checks.iter().map(|check| (check.passed, check.failed)).collect();
    assert_eq!(outcomes, [(40, 0), (40, 0), (0, 40)]);
    assert_eq!(flow.checks[2].example.as_deref(), Some("it was \"7\""));

    let mut stream = file.plan(&backend.url, "Watch", r#"{"name": "pen"}"#, &[("x-repeat", "3"), ("x-status", "9")]);
    let status =
        AnswerCheck { field: Some("grpc-status".to_owned()), equals: Some("9".to_owned()), ..AnswerCheck::default() };
    stream.requests[0].check = vec![json("/2/name", "pen"), json("/3/name", "pen"), status];
    let flow = load(&stream).flow.expect("there are checks");
    assert_eq!(flow.checks.iter().map(|check| check.passed).collect::<Vec<_>>(), [40, 0, 40]);

    let mut constant = plan.clone();
    constant.requests[0].body = RequestBody::Text("{\"nme\": 1}".to_owned());
    let refused = run(&constant, &mut |_| {}).expect_err("the message has no values").to_string();
    assert!(refused.starts_with("requests[0].body: is not a message shop.Item"), "{refused}");

    let mut unfit = plan.clone();
    unfit.data.variables.insert("n".to_owned(), PlanVariable::Value("many".to_owned()));
    assert_eq!(load(&unfit).total.errors.local, 40);
}

/// Answers every call as `script` does, over HTTP/2.
fn peer(script: impl Fn(SendResponse<Bytes>) -> Option<SendResponse<Bytes>> + Clone + Send + 'static) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("a bound listener has an address"));
    thread::spawn(move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        tokio::task::LocalSet::new().block_on(&runtime, async {
            listener.set_nonblocking(true).expect("a socket");
            let listener = TcpListener::from_std(listener).expect("a socket");
            while let Ok((stream, _)) = listener.accept().await {
                let script = script.clone();
                tokio::task::spawn_local(async move {
                    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
                    // A call that gets no answer stays open.
                    let mut open = Vec::new();
                    while let Some(Ok((_, respond))) = connection.accept().await {
                        open.extend(script(respond));
                    }
                });
            }
        });
    });
    url
}

fn of_grpc(status: u16) -> Response<()> {
    Response::builder().status(status).header("content-type", "application/grpc").body(()).expect("the parts are valid")
}

#[test]
fn answer_that_breaks_the_protocol_is_an_error() {
    let file = ProtoFile::new("faults");
    let outcome = |url: &str| load(&file.plan(url, "Add", "{}", &[])).total;
    let without_status = peer(|mut respond| {
        let mut send = respond.send_response(of_grpc(200), false).expect("the stream is open");
        send.send_data(Bytes::from_static(&[0; 5]), true).expect("the stream is open");
        None
    });
    assert_eq!(outcome(&without_status).errors.protocol, 40);
    let cut = peer(|mut respond| {
        let mut send = respond.send_response(of_grpc(200), false).expect("the stream is open");
        send.send_data(Bytes::from_static(&[0, 0, 0, 0, 9, 1]), false).expect("the stream is open");
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        send.send_trailers(trailers).expect("the stream is open");
        None
    });
    assert_eq!(outcome(&cut).errors.protocol, 40);
    // A gateway that answers in the place of the service.
    let of_http = peer(|mut respond| {
        let answer = Response::builder().status(503).body(()).expect("the parts are valid");
        respond.send_response(answer, true).expect("the stream is open");
        None
    });
    let total = outcome(&of_http);
    assert_eq!((total.unexpected, total.statuses), (40, [(503, 40)].into()));
    // An answer of trailers alone.
    let refused = peer(|mut respond| {
        let mut answer = of_grpc(200);
        answer.headers_mut().insert("grpc-status", HeaderValue::from_static("16"));
        respond.send_response(answer, true).expect("the stream is open");
        None
    });
    assert_eq!(outcome(&refused).statuses, [(16, 40)].into());
}

#[test]
fn call_that_takes_longer_than_its_deadline_ends_with_this_status() {
    let file = ProtoFile::new("deadline");
    let silent = peer(Some);
    let mut plan = file.plan(&silent, "Add", "{}", &[]);
    plan.requests[0].grpc.as_mut().expect("it is a call").deadline_ms = Some(30);
    let total = load(&plan).total;
    assert_eq!((total.completed, total.unexpected, total.statuses), (40, 40, [(4, 40)].into()));
    assert!(total.latency.quantile(0.0) >= 29_000_000, "no call ends before its deadline");

    // The deadline may be later than the time-out of requests.
    plan.requests[0].grpc.as_mut().expect("it is a call").deadline_ms = Some(1_500);
    (plan.timeouts.response_ms, plan.stop) = (1_000, StopCondition::after_count(8));
    let total = load(&plan).total;
    assert_eq!((total.statuses, total.errors.sum()), ([(4, 8)].into(), 0));
}

#[test]
fn messages_before_a_deadline_are_counted_and_checked() {
    let file = ProtoFile::new("partial");
    // Three messages, and then nothing more.
    let stopping = peer(|mut respond| {
        let mut send = respond.send_response(of_grpc(200), false).expect("the stream is open");
        let message = [&[0, 0, 0, 0, 5, 0x0a, 3][..], b"pen"].concat();
        send.send_data(Bytes::from(message.repeat(3)), false).expect("the stream is open");
        Some(respond)
    });
    let mut plan = file.plan(&stopping, "Watch", "{}", &[]);
    plan.requests[0].grpc.as_mut().expect("it is a call").deadline_ms = Some(3_000);
    plan.requests[0].check = vec![json("/2/name", "pen"), json("/3/name", "pen")];
    plan.stop = StopCondition::after_count(8);
    let result = load(&plan);
    let total = &result.total;
    assert_eq!((total.statuses.clone(), total.messages, total.bytes_received), ([(4, 8)].into(), 24, 240));
    assert_eq!(total.first_message.as_ref().map(|times| times.count()), Some(8));
    let checks = result.flow.expect("there are checks").checks;
    assert_eq!([checks[0].passed, checks[1].passed], [8, 0]);
    assert_eq!(checks[1].example.as_deref(), Some("there was no such place"));
}
