//! Calls of gRPC: their definitions, their messages, and their statuses. Nothing here opens a socket.

mod messages;
mod status;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor, SerializeOptions};
use serde_json::Value;

pub(super) use self::messages::{MessageReader, NotMessages, ReceivedMessage};
use self::status::is_status;
pub(crate) use self::status::status_words;
pub(super) use self::status::{DEADLINE_EXCEEDED, OK, status_named, status_sent};
use super::plan::{GrpcCall, LoadPlan, PlanError, Protocol, RequestBody, RequestTemplate};

/// The longest deadline of a call: a day.
const LONGEST_DEADLINE_MS: u64 = 86_400_000;

/// The most methods that an error names.
const MOST_NAMED: usize = 20;

/// A call whose method is known.
#[derive(Clone, Debug)]
pub(super) struct PreparedCall {
    method: MethodDescriptor,
    pub(super) deadline: Option<Duration>,
}

impl PreparedCall {
    /// Whether the server may send any number of messages.
    pub(super) fn answers_with_stream(&self) -> bool {
        self.method.is_server_streaming()
    }

    /// The body of a call, of its message as JSON or a list of them; the error says what is wrong with the JSON.
    pub(super) fn body(&self, json: &[u8]) -> Result<Vec<u8>, String> {
        let value: Value = match json.trim_ascii() {
            [] => Value::Object(serde_json::Map::new()),
            json => serde_json::from_slice(json).map_err(|error| format!("is not JSON: {error}"))?,
        };
        let messages = match value {
            Value::Array(messages) if self.method.is_client_streaming() => messages,
            Value::Array(_) => {
                return Err(format!(
                    "is a list, and {} takes one message; write a JSON object",
                    self.method.full_name()
                ));
            }
            value => vec![value],
        };
        let kind = self.method.input();
        let mut body = Vec::new();
        for message in messages {
            let message = DynamicMessage::deserialize(kind.clone(), message)
                .map_err(|error| format!("is not a message {}: {error}", kind.full_name()))?;
            messages::append(&message.encode_to_vec(), &mut body)?;
        }
        Ok(body)
    }

    /// A message of an answer as JSON of at most `room` bytes, with fields that have their default values.
    pub(super) fn answer_json(&self, message: &[u8], room: usize) -> Result<Vec<u8>, NoAnswerJson> {
        let kind: MessageDescriptor = self.method.output();
        let message = DynamicMessage::decode(kind, message).map_err(|_| NoAnswerJson::NotOfType)?;
        let mut json = serde_json::Serializer::new(BoundedJson { bytes: Vec::new(), room, is_full: false });
        let options = SerializeOptions::new().skip_default_fields(false);
        let written = message.serialize_with_options(&mut json, &options);
        let BoundedJson { bytes, is_full, .. } = json.into_inner();
        match written {
            Ok(()) => Ok(bytes),
            Err(_) if is_full => Err(NoAnswerJson::TooLong),
            Err(error) => Err(NoAnswerJson::NotWritable(format!("the message cannot be written as JSON: {error}"))),
        }
    }
}

/// Why a message of an answer is not there as JSON.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoAnswerJson {
    /// It is not of the type of the answers.
    NotOfType,
    TooLong,
    /// JSON has no form for it, such as for an `Any` of an unknown type.
    NotWritable(String),
}

/// JSON that ends at a bound: a short message of many fields with their default values becomes hundreds of times as long.
struct BoundedJson {
    bytes: Vec<u8>,
    room: usize,
    is_full: bool,
}

impl Write for BoundedJson {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if data.len() > self.room - self.bytes.len() {
            self.is_full = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads the definitions of calls, each file once.
#[derive(Debug, Default)]
pub(super) struct CallReader {
    read: Vec<(GrpcFiles, DescriptorPool)>,
}

/// A `.proto`, and where what it imports is looked for.
type GrpcFiles = (PathBuf, Vec<PathBuf>);

impl CallReader {
    /// The call of a request, if it is one; `field` is the place of a key of the request.
    pub(super) fn read(
        &mut self,
        template: &RequestTemplate,
        field: impl Fn(&str) -> String,
    ) -> Result<Option<Arc<PreparedCall>>, PlanError> {
        let Some(grpc) = &template.grpc else { return Ok(None) };
        let files = (grpc.proto.clone(), grpc.import_paths.clone());
        let pool = match self.read.iter().find(|(known, _)| *known == files) {
            Some((_, pool)) => pool.clone(),
            None => {
                let pool = definitions(grpc).map_err(|problem| PlanError::new(field("grpc.proto"), problem))?;
                self.read.push((files, pool.clone()));
                pool
            }
        };
        let method = method(&pool, &grpc.call).map_err(|problem| PlanError::new(field("grpc.call"), problem))?;
        Ok(Some(Arc::new(PreparedCall { method, deadline: grpc.deadline_ms.map(Duration::from_millis) })))
    }
}

fn definitions(grpc: &GrpcCall) -> Result<DescriptorPool, String> {
    let GrpcCall { proto, import_paths, .. } = grpc;
    let shown = proto.display();
    let bytes = std::fs::read(proto).map_err(|error| format!("cannot read {shown}: {error}"))?;
    if proto.extension().is_none_or(|kind| kind != "proto") {
        return DescriptorPool::decode(bytes.as_slice())
            .map_err(|error| format!("{shown} is neither a .proto nor a set of descriptors: {error}"));
    }
    let own_folder = proto.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let includes: Vec<&Path> = match import_paths.as_slice() {
        [] => vec![own_folder],
        paths => paths.iter().map(PathBuf::as_path).collect(),
    };
    let wrong = |error: protox::Error| format!("{shown}: {error}");
    let mut compiler = protox::Compiler::new(includes).map_err(wrong)?;
    compiler.open_file(proto).map_err(wrong)?;
    Ok(compiler.descriptor_pool())
}

/// The method of a call; the error names those that there are.
fn method(pool: &DescriptorPool, call: &str) -> Result<MethodDescriptor, String> {
    let mut known = Vec::new();
    for service in pool.services() {
        for method in service.methods() {
            let name = format!("{}/{}", service.full_name(), method.name());
            if name == call {
                return Ok(method);
            }
            known.push(name);
        }
    }
    known.truncate(MOST_NAMED);
    Err(match known.as_slice() {
        [] => "the file defines no service".to_owned(),
        known => format!("there is no method {call}, but {}", known.join(", ")),
    })
}

/// The plan with its calls as requests of HTTP/2: their targets, methods, fields and the status that is a success.
pub(super) fn with_calls(plan: &LoadPlan) -> Result<LoadPlan, PlanError> {
    let mut plan = plan.clone();
    let is_http2 = matches!(plan.protocol, Protocol::Http2 { .. });
    for (index, request) in plan.requests.iter_mut().enumerate() {
        let wrong = |key: &str, problem: &str| Err(PlanError::new(format!("requests[{index}].{key}"), problem));
        let of_grpc = |status: &u16| is_status(*status);
        let Some(grpc) = &request.grpc else {
            if request.expect_status.iter().any(of_grpc) {
                return wrong("expect_status", "has a status of gRPC, and this is a request of HTTP; try 200");
            }
            continue;
        };
        if !request.expect_status.iter().all(of_grpc) {
            return wrong("expect_status", "must be statuses of gRPC, between 0 (OK) and 16");
        }
        if !is_http2 {
            return wrong("grpc", "needs the protocol http2");
        }
        if request.url.contains('?') {
            return wrong("url", "has a query, and calls of gRPC have none");
        }
        if request.follow_redirects > 0 {
            return wrong("follow_redirects", "applies to requests of HTTP, and this is a call of gRPC; leave it out");
        }
        if matches!(request.body, RequestBody::Sized(_) | RequestBody::Multipart(_)) {
            return wrong("body", "must be the message of the call as JSON: `text` or `file`");
        }
        if let Some(ms) = grpc.deadline_ms {
            if !(1..=LONGEST_DEADLINE_MS).contains(&ms) {
                return wrong("grpc.deadline_ms", "must be between 1 and 86400000, a day");
            }
            request.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("grpc-timeout"));
            request.headers.push(("grpc-timeout".to_owned(), timeout_field(ms)));
        }
        request.name = Some(request.label().to_owned());
        request.url = format!("{}/{}", request.url.trim_end_matches('/'), grpc.call);
        request.method = "POST".to_owned();
        request.headers.retain(|(name, _)| !["content-type", "te"].iter().any(|own| name.eq_ignore_ascii_case(own)));
        for (name, value) in [("content-type", "application/grpc"), ("te", "trailers")] {
            request.headers.push((name.to_owned(), value.to_owned()));
        }
        if request.expect_status.is_empty() {
            request.expect_status = vec![OK];
        }
    }
    Ok(plan)
}

/// The value of `grpc-timeout`, which has eight digits at most.
fn timeout_field(ms: u64) -> String {
    format!("{ms}m")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::StopCondition;

    const PROTO: &str = "syntax = \"proto3\"; package shop.v1; \
        message Item { string name = 1; int32 count = 2; } message Items { repeated Item items = 1; } \
        service Cart { rpc Add(Item) returns (Items); rpc AddAll(stream Item) returns (Items); }";

    struct ProtoFile(PathBuf);

    impl ProtoFile {
        fn new(name: &str, text: &str) -> Self {
            let path = std::env::temp_dir().join(format!("weir-load-{}-{name}.proto", std::process::id()));
            std::fs::write(&path, text).expect("the directory of temporary files is writable");
            Self(path)
        }

        fn template(&self, call: &str) -> RequestTemplate {
            let grpc = GrpcCall {
                call: call.to_owned(),
                proto: self.0.clone(),
                import_paths: Vec::new(),
                deadline_ms: Some(1_500),
            };
            RequestTemplate { grpc: Some(grpc), ..RequestTemplate::get("http://a:1/") }
        }

        fn call(&self, call: &str) -> Result<PreparedCall, String> {
            let read = CallReader::default().read(&self.template(call), |key| format!("requests[0].{key}"));
            read.map(|call| (*call.expect("it is a call")).clone()).map_err(|error| error.to_string())
        }
    }

    impl Drop for ProtoFile {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn messages_are_written_of_json_and_read_as_json() {
        let file = ProtoFile::new("messages", PROTO);
        let add = file.call("shop.v1.Cart/Add").expect("it is defined");
        let item = b"\x0a\x01a\x10\x02";
        assert_eq!(add.body(br#"{"name": "a", "count": 2}"#), Ok([&[0, 0, 0, 0, 5][..], item].concat()));
        assert_eq!(add.body(b" "), Ok(vec![0; 5]));
        let answer = [&[0x0a, 5][..], item, &[0x0a, 0]].concat();
        let json = br#"{"items":[{"name":"a","count":2},{"name":"","count":0}]}"#;
        assert_eq!(add.answer_json(&answer, json.len()), Ok(json.to_vec()));
        assert_eq!(add.answer_json(&answer, json.len() - 1), Err(NoAnswerJson::TooLong));
        assert_eq!(add.answer_json(b"\x0a\x05x", 100), Err(NoAnswerJson::NotOfType));
        let all = file.call("shop.v1.Cart/AddAll").expect("it is defined");
        assert_eq!(
            all.body(br#"[{}, {"name": "a", "count": 2}]"#),
            Ok([&[0, 0, 0, 0, 0, 0, 0, 0, 0, 5][..], item].concat())
        );
    }

    #[test]
    fn message_without_a_form_in_json_is_of_its_type() {
        let proto = "syntax = \"proto3\"; import \"google/protobuf/any.proto\"; message A { google.protobuf.Any any = 1; } \
                     service S { rpc Get(A) returns (A); }";
        let get = ProtoFile::new("any", proto).call("S/Get").expect("it is defined");
        let of_unknown_type = b"\x0a\x07\x0a\x05x.y/Z";
        let NoAnswerJson::NotWritable(reason) = get.answer_json(of_unknown_type, 100).expect_err("it has no form")
        else {
            panic!("it is a message");
        };
        assert!(reason.starts_with("the message cannot be written as JSON: "), "{reason}");
    }

    #[test]
    fn fault_of_a_call_says_what_would_be_right() {
        let file = ProtoFile::new("faults", PROTO);
        let unknown = file.call("Cart/Add").expect_err("it is not defined");
        assert_eq!(
            unknown,
            "requests[0].grpc.call: there is no method Cart/Add, but shop.v1.Cart/Add, shop.v1.Cart/AddAll"
        );
        let add = file.call("shop.v1.Cart/Add").expect("it is defined");
        let fault = |json: &str| add.body(json.as_bytes()).expect_err("a fault");
        assert!(fault("{").starts_with("is not JSON: "), "{}", fault("{"));
        let field = fault(r#"{"nme": 1}"#);
        assert!(field.starts_with("is not a message shop.v1.Item: ") && field.contains("nme"), "{field}");
        assert_eq!(fault("[]"), "is a list, and shop.v1.Cart.Add takes one message; write a JSON object");
        let broken = ProtoFile::new("broken", "syntax = \"proto3\"; message A { B b = 1; }").call("A/b");
        assert!(broken.is_err_and(|error| error.contains("broken.proto") && error.contains("'B'")));
        let nowhere = ProtoFile(PathBuf::from("/nowhere/a.proto")).call("A/b");
        assert!(
            nowhere.is_err_and(|error| error.starts_with("requests[0].grpc.proto: cannot read /nowhere/a.proto: "))
        );
    }

    #[test]
    fn call_becomes_a_request_of_http2() {
        let file = ProtoFile::new("request", PROTO);
        let mut plan = LoadPlan::closed("http://a:1/", 1, StopCondition::after_count(1));
        plan.requests = vec![file.template("shop.v1.Cart/Add")];
        let refused = |plan: &LoadPlan| with_calls(plan).expect_err("a fault").to_string();
        assert_eq!(refused(&plan), "requests[0].grpc: needs the protocol http2");
        plan.protocol = Protocol::Http2 { streams: 1 };
        let request = &with_calls(&plan).expect("a good plan").requests[0];
        assert_eq!((request.url.as_str(), request.method.as_str()), ("http://a:1/shop.v1.Cart/Add", "POST"));
        let field =
            |wanted: &str| request.headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
        assert_eq!(
            [field("grpc-timeout"), field("te"), field("content-type")],
            [Some("1500m"), Some("trailers"), Some("application/grpc")]
        );
        assert_eq!((request.label(), request.expect_status.as_slice()), ("shop.v1.Cart/Add", &[OK][..]));
        plan.requests[0].headers =
            ["grpc-timeout", "TE", "Content-Type"].map(|name| (name.to_owned(), "x".to_owned())).into();
        assert_eq!(with_calls(&plan).expect("a good plan").requests[0].headers.len(), 3, "each field is sent once");
        plan.requests[0].expect_status = vec![200];
        assert!(refused(&plan).starts_with("requests[0].expect_status: must be statuses of gRPC"));
        let mut of_http = LoadPlan::closed("http://a:1/", 1, StopCondition::after_count(1));
        of_http.requests[0].expect_status = vec![5];
        assert!(refused(&of_http).starts_with("requests[0].expect_status: has a status of gRPC"));
        plan.requests[0].expect_status = Vec::new();
        plan.requests[0].body = RequestBody::Sized(5);
        assert!(refused(&plan).starts_with("requests[0].body: must be the message of the call as JSON"));
        plan.requests[0].url = "http://a:1/?b".to_owned();
        assert!(refused(&plan).starts_with("requests[0].url: has a query"));
    }
}
