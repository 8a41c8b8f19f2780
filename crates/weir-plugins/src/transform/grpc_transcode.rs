mod arguments;
mod call;
mod encoding;
mod frames;
#[doc(hidden)]
pub(crate) mod fuzzing;
mod http_rules;
mod json;
mod path_template;
mod status;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use prost_reflect::{DescriptorPool, MethodDescriptor, SerializeOptions, ServiceDescriptor};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_plugin::proto::Method;
use weir_plugin::suggest::closest;
use weir_plugin::{
    Build, ConfigError, Definition, Exchange, Filter, Flow, NoteKey, Phases, Plugin, ProtoDefinitions, Stage, Stop,
};

use self::call::{
    BodyKind, Call, EVENTS, JSON, NDJSON, NamedValue, TranscodingSettings, body_kind, forget_grpc, refused,
};
use self::http_rules::{HttpRules, RuleMatch};
use self::json::JsonForm;
use self::status::CallStatus;
use self::stream::StreamWriter;
use weir_services::grpc_call::PREFIX;

use crate::content::coding;

/// Turns requests of a REST API into calls of a gRPC service, for an upstream whose `scheme` is `grpc` or `grpcs`.
///
/// The message of the call is made of the body, which is JSON or a form, or of the query string if there is no body. The parameters in
/// the `uri` of the route (`/users/:id`) set the fields of the same names in either case. JSON is read by the JSON mapping of protobuf: a
/// field that the message does not have is refused with 400, and the answer names the place of each fault. In a query string and in a form
/// `user.name=a` names the field of a message, `texts.en=a` the value in a map, and an argument that is repeated a list. Arguments of
/// the query and parameters of the `uri` that name no field are ignored, since others may be for another plugin; those of a form are not.
///
/// Without `method`, the rules of the option `google.api.http` in the proto choose the method by the path and the method of the request, as
/// other plugins have left them: `get: "/v1/{name=shelves/*}"`, with `body`, `response_body` and `additional_bindings`. Of several that
/// fit, the one with the longest fixed beginning is taken. A request that no rule fits is refused with 404, or with 405 if one
/// fits for another method. `google.api.HttpBody` is a message like others. At most 1,024 rules are allowed.
///
/// The answer is the JSON of the message, with the names of fields as in the `.proto`. Integers of 64 bits are numbers, as in APISIX;
/// many clients, JavaScript among them, cannot read those beyond 2^53 exactly: `int64_as_string` is for these. The stream of a server is a
/// line of JSON for each message (`application/x-ndjson`) or, for a client that accepts `text/event-stream`, an event for each. A method
/// that takes a stream of messages cannot be called. Other plugins that look at responses are given the JSON, whatever their priority.
///
/// A call that fails has the HTTP status for its status: 1 is 499, 3, 9 and 11 are 400, 4 is 504, 5 is 404, 6 and 10 are 409, 7 is 403, 8 is
/// 429, 12 is 501, 14 is 503, 16 is 401, any other 500. `grpc-status` and `grpc-message` are fields of the response. A service that cannot
/// be reached or does not answer in time (502 to 504) has the status 14 or 4. A stream that fails after the service has begun to answer
/// ends with the line `{"error":{"code":…,"message":…}}`, or with the event `error` that contains it; one that breaks off, or that the gateway
/// ends at its `deadline`, has no end. A stream of events that does not fail ends with the event `end`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GrpcTranscode {
    /// The id of the definitions of the service in `protos`.
    proto_id: Option<Value>,
    /// The definitions themselves, in place of `proto_id`: as `content` of a resource in `protos`.
    proto: Option<String>,
    /// The full name of the service: `shop.Orders`. Without it, the rules of all services are used.
    #[schemars(length(min = 1))]
    service: Option<String>,
    /// The name of the method: `Place`. Without it, the rules `google.api.http` choose the method.
    #[schemars(length(min = 1))]
    method: Option<String>,
    /// The time that the call may take from the arrival of the request, which the service is told in `grpc-timeout`; 0 is no limit.
    #[serde(default)]
    #[schemars(range(max = 99_999_999))]
    #[schemars(extend("x-weir-unit" = "ms"))]
    deadline: u32,
    /// How messages are written as JSON, at most one of each group: `enum_as_name` (default) or `enum_as_value`; `int64_as_number`
    /// (default), `int64_as_string` or `int64_as_hexstring`; `auto_default_values` (default) or `use_default_values`, which write fields
    /// with the default value of their type, or `no_default_values` or `use_default_metatable`, which do not. `disable_hooks` and
    /// `enable_hooks` have no effect.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pb_option: Option<Vec<PbOption>>,
    /// The response of a call that fails contains the status as JSON: `{"error":{"code":5,"message":"…","details":[…]}}`.
    #[serde(default)]
    show_status_in_body: bool,
    /// The full name of the message that the details of a status are decoded as. Those of other types have their bytes in base64.
    status_detail_type: Option<String>,
    /// The maximum size of a request body. A larger one is refused with 413.
    #[serde(default = "default_max_req_body_size")]
    #[schemars(range(min = 1, max = 268_435_456))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_req_body_size: u32,
    /// The maximum size of a message that the service sends. One that is larger is answered with 502, or ends a stream. 4 MiB is the limit
    /// of most clients of gRPC. While it is turned into JSON, a message of small numbers takes up to 60 times its size in memory, and
    /// one of many empty messages in each other up to 300 times.
    #[serde(default = "default_max_message_size")]
    #[schemars(range(min = 1, max = 268_435_456))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_message_size: u32,
    /// The maximum size of the JSON of such a message, which can be a multiple of its size.
    #[serde(default = "default_max_resp_body_size")]
    #[schemars(range(min = 1, max = 1_073_741_824))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_resp_body_size: u32,
}

fn default_max_req_body_size() -> u32 {
    1 << 20
}

fn default_max_message_size() -> u32 {
    4 << 20
}

fn default_max_resp_body_size() -> u32 {
    64 << 20
}

/// How messages are written as JSON, with the names of lua-protobuf, which APISIX uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum PbOption {
    EnumAsName,
    EnumAsValue,
    Int64AsNumber,
    Int64AsString,
    Int64AsHexstring,
    AutoDefaultValues,
    NoDefaultValues,
    UseDefaultValues,
    UseDefaultMetatable,
    EnableHooks,
    DisableHooks,
}

impl PbOption {
    /// Of each group only one can be in force.
    fn group(self) -> usize {
        match self {
            PbOption::EnumAsName | PbOption::EnumAsValue => 0,
            PbOption::Int64AsNumber | PbOption::Int64AsString | PbOption::Int64AsHexstring => 1,
            PbOption::AutoDefaultValues
            | PbOption::NoDefaultValues
            | PbOption::UseDefaultValues
            | PbOption::UseDefaultMetatable => 2,
            PbOption::EnableHooks | PbOption::DisableHooks => 3,
        }
    }
}

impl Definition for GrpcTranscode {
    const NAME: &'static str = "grpc-transcode";
    const PRIORITY: i32 = 506;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"grpc-transcode:
  proto: |
    syntax = "proto3";
    package greet;
    service Greeter { rpc Hello (Request) returns (Reply); }
    message Request { string name = 1; }
    message Reply { string text = 1; }
  service: greet.Greeter
  method: Hello
  deadline: 2000"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        self.check_pb_options(build);
        let definitions = self.definitions(build)?;
        let pool = definitions.pool();
        let detail = match &self.status_detail_type {
            Some(name) => match pool.get_message_by_name(name) {
                Some(message) => Some(message),
                None => {
                    let advice =
                        meant(name, pool.all_messages().map(|message| message.full_name().to_owned()).collect());
                    build.fault("status_detail_type", format!("the proto has no message `{name}`{advice}"));
                    None
                }
            },
            None => None,
        };
        let services = self.services(pool)?;
        let settings = Arc::new(TranscodingSettings {
            deadline: (self.deadline > 0).then(|| Duration::from_millis(self.deadline.into())),
            json: self.json_form(),
            shows_status: self.show_status_in_body,
            detail,
            most_received: self.max_req_body_size.into(),
            most_message: self.max_message_size as usize,
            note: NoteKey::unique(),
        });
        let Some(name) = &self.method else {
            let rules = HttpRules::of(pool, services.into_iter());
            let rules = rules.map_err(|problem| ConfigError::new(self.place_of_rules(), problem))?;
            let calls = rules.0.iter().enumerate();
            let calls = calls.map(|(number, rule)| Arc::new(Call::of_rule(number, rule, &settings))).collect();
            return Ok(Arc::new(Transcoder { settings, calls, rules: Some(rules) }));
        };
        let call = Call::of(&self.method(&services, name)?, &settings);
        Ok(Arc::new(Transcoder { settings, calls: vec![Arc::new(call)], rules: None }))
    }
}

/// The known name that is most like one.
fn meant(name: &str, known: Vec<String>) -> String {
    closest(name, known.iter().map(|known| &**known))
        .map(|known| format!("; did you mean `{known}`?"))
        .unwrap_or_default()
}

impl GrpcTranscode {
    fn has(&self, option: PbOption) -> bool {
        self.pb_option.iter().flatten().any(|written| *written == option)
    }

    fn check_pb_options(&self, build: &mut Build) {
        let written = self.pb_option.as_deref().unwrap_or_default();
        for (index, option) in written.iter().enumerate() {
            if written[..index].iter().any(|before| before.group() == option.group()) {
                build.fault(
                    format!("pb_option[{index}]"),
                    "contradicts or repeats an option before it; keep one of them",
                );
            }
        }
        if let Some(index) = written.iter().position(|option| *option == PbOption::EnableHooks) {
            let problem = "has no effect: hooks are Lua code, which Weir does not run";
            build.warnings.push(ConfigError::new(format!("pb_option[{index}]"), problem));
        }
    }

    fn definitions(&self, build: &Build) -> Result<Arc<ProtoDefinitions>, ConfigError> {
        match (&self.proto_id, &self.proto) {
            (Some(_), None) => build.proto().cloned().ok_or_else(|| {
                ConfigError::new(
                    "proto_id",
                    "names a resource that is not known here; write the definitions as `proto`",
                )
            }),
            (None, Some(content)) => {
                ProtoDefinitions::parse(content).map_err(|fault| ConfigError::new("proto", fault.to_string()))
            }
            (by_id, itself) => Err(ConfigError::one_of(&[("proto_id", by_id.is_some()), ("proto", itself.is_some())])),
        }
    }

    /// The services whose methods are called.
    fn services(&self, pool: &DescriptorPool) -> Result<Vec<ServiceDescriptor>, ConfigError> {
        let Some(name) = &self.service else {
            return match self.method {
                Some(_) => Err(ConfigError::new("service", "is needed beside `method`")),
                None => Ok(pool.services().collect()),
            };
        };
        let service = pool.get_service_by_name(name).ok_or_else(|| {
            let advice = meant(name, pool.services().map(|service| service.full_name().to_owned()).collect());
            ConfigError::new("service", format!("the proto has no service `{name}`{advice}"))
        })?;
        Ok(vec![service])
    }

    fn method(&self, services: &[ServiceDescriptor], name: &str) -> Result<MethodDescriptor, ConfigError> {
        let mut methods = services.iter().flat_map(|service| service.methods().collect::<Vec<_>>());
        let method = methods.find(|method| method.name() == name).ok_or_else(|| {
            let known = services.iter().flat_map(|service| service.methods().collect::<Vec<_>>());
            let advice = meant(name, known.map(|method| method.name().to_owned()).collect());
            let service = self.service.as_deref().unwrap_or_default();
            ConfigError::new("method", format!("`{service}` has no method `{name}`{advice}"))
        })?;
        if method.is_client_streaming() {
            let problem =
                format!("`{}` takes a stream of messages, which a request cannot contain", method.full_name());
            return Err(ConfigError::new("method", problem));
        }
        Ok(method)
    }

    /// The option that the rules come from.
    fn place_of_rules(&self) -> &'static str {
        if self.service.is_some() {
            "service"
        } else if self.proto_id.is_some() {
            "proto_id"
        } else {
            "proto"
        }
    }

    fn json_form(&self) -> JsonForm {
        JsonForm {
            options: SerializeOptions::new()
                .use_proto_field_name(true)
                .use_enum_numbers(self.has(PbOption::EnumAsValue))
                .stringify_64_bit_integers(self.has(PbOption::Int64AsString))
                .skip_default_fields(self.has(PbOption::NoDefaultValues) || self.has(PbOption::UseDefaultMetatable)),
            hexadecimal: self.has(PbOption::Int64AsHexstring),
            most: self.max_resp_body_size as usize,
        }
    }
}

struct Transcoder {
    settings: Arc<TranscodingSettings>,
    /// One for each rule, or the only one.
    calls: Vec<Arc<Call>>,
    rules: Option<HttpRules>,
}

/// The call that a request makes, and the parts of its message that the path names.
struct ChosenCall<'t> {
    call: &'t Call,
    named: Vec<NamedValue<'t>>,
}

impl Transcoder {
    /// The call of an exchange whose answer has not been made, and whether its client takes events.
    fn asked(&self, exchange: &Exchange) -> Option<(&Arc<Call>, bool)> {
        let (takes_events, number) = self.settings.asked(exchange)?;
        Some((self.calls.get(number)?, takes_events))
    }

    /// The call that a request makes.
    fn chosen(&self, exchange: &mut Exchange) -> Result<ChosenCall<'_>, Stop> {
        let Some(rules) = &self.rules else { return self.only_call(exchange) };
        match rules.find(exchange.request.method_name(), exchange.request.path()) {
            RuleMatch::Rule(number, named) => Ok(ChosenCall { call: &self.calls[number], named }),
            RuleMatch::None => Err(refused(exchange, 404, "no method of the service has this path")),
            RuleMatch::OtherMethods(methods) => {
                let allowed = methods.join(", ");
                let stop = refused(exchange, 405, &format!("only {allowed} are allowed"));
                exchange.response.head.add(b"Allow", allowed.as_bytes()).map_err(|_| Stop::Internal)?;
                Err(stop)
            }
        }
    }

    /// The call of a plugin without rules. The parameters in the `uri` of the route name parts of its message.
    fn only_call(&self, exchange: &mut Exchange) -> Result<ChosenCall<'_>, Stop> {
        let method = exchange.request.client_method();
        if !matches!(method, Method::Get | Method::Post | Method::Put | Method::Patch | Method::Delete) {
            let stop = refused(exchange, 405, "only GET, POST, PUT, PATCH and DELETE are allowed");
            exchange.response.head.add(b"Allow", b"GET, POST, PUT, PATCH, DELETE").expect("constant and valid");
            return Err(stop);
        }
        Ok(ChosenCall { call: &self.calls[0], named: Vec::new() })
    }

    /// Makes the call of a request with its content, and the content of the call.
    fn call(&self, exchange: &mut Exchange, kind: BodyKind, body: &[u8]) -> Result<Vec<u8>, Stop> {
        let ChosenCall { call, mut named } = self.chosen(exchange)?;
        let parameters = exchange.uri_parameters.take().filter(|_| self.rules.is_none());
        if let Some(parameters) = &parameters {
            let decoded = |value| percent_encoding::percent_decode(value).collect();
            named = parameters.all().map(|(name, value)| (name, decoded(value))).collect();
        }
        let message = call.of_body(kind, body, exchange.request.query().unwrap_or_default());
        let content = call.content(exchange, message, &named);
        drop(named);
        if parameters.is_some() {
            exchange.uri_parameters = parameters;
        }
        let content = content?;
        call.rewrite(exchange)?;
        Ok(content)
    }
}

impl Plugin for Transcoder {
    fn phases(&self) -> Phases {
        Phases::REQUEST.and(Phases::REQUEST_BODY).and(Phases::RESPONSE_FIRST)
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        self.chosen(exchange)?;
        if exchange.request.framing.has_body() {
            body_kind(exchange)?;
            return Ok(Flow::Continue);
        }
        let content = self.call(exchange, BodyKind::Json, b"")?;
        exchange.set_request_body(content);
        Ok(Flow::Continue)
    }

    fn whole_request(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        Ok(exchange.notes.read(self.settings.note).is_none().then_some(self.settings.most_received))
    }

    fn on_request_body(&self, exchange: &mut Exchange, body: &mut Vec<u8>) -> Result<Flow<'static>, Stop> {
        let kind = body_kind(exchange)?;
        let plain = coding::plain(&exchange.request.head, body, self.settings.most_received);
        let plain = plain.map_err(|opaque| Stop::Respond(opaque.status()))?;
        let content = self.call(exchange, kind, &plain)?;
        *body = content;
        Ok(Flow::Continue)
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let Some((call, takes_events)) = self.asked(exchange) else { return Ok(()) };
        let in_head = CallStatus::of(exchange.response.head.fields());
        if !exchange.response.is_grpc() {
            return no_call_answered(call, exchange);
        }
        match in_head {
            // The gateway itself answers a call that was reset with a status of gRPC.
            Some(status) if exchange.is_answered_here() => {
                let status = call.at_deadline(exchange, status);
                Err(call.ended(exchange, &status))
            }
            // Plugins that look at the response after this one find the type of what they are given.
            _ if exchange.response.framing.has_body() => {
                let kind = match (call.is_stream, takes_events) {
                    (false, _) => JSON,
                    (true, false) => NDJSON,
                    (true, true) => EVENTS,
                };
                exchange.response.head.set(b"Content-Type", kind).map_err(|_| Stop::Internal)
            }
            in_head => Err(call.ended(exchange, &in_head.unwrap_or_else(CallStatus::missing))),
        }
    }

    fn whole_response(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        let is_wanted = self.asked(exchange).is_some_and(|(call, _)| !call.is_stream) && !exchange.is_answered_here();
        Ok(is_wanted.then_some((self.settings.most_message + PREFIX) as u64))
    }

    fn on_response_body(&self, exchange: &mut Exchange, body: &mut Vec<u8>) -> Result<(), Stop> {
        let Some((call, _)) = self.asked(exchange) else { return Ok(()) };
        let trailers = std::mem::take(exchange.response_trailers());
        let status = CallStatus::of(trailers.fields()).or_else(|| CallStatus::of(exchange.response.head.fields()));
        let made = match status.unwrap_or_else(CallStatus::missing) {
            status if status.code == CallStatus::OK => call.only_message(body),
            status => Err(status),
        };
        call.has_answered(exchange);
        forget_grpc(exchange);
        exchange.response.head.set(b"Content-Type", JSON).map_err(|_| Stop::Internal)?;
        match made {
            Ok(json) => *body = json,
            Err(status) => {
                *body = self.settings.failure_body(&status);
                exchange.response.set_status(status.http_status());
                call.fail_head(exchange, &status)?;
            }
        }
        Ok(())
    }

    fn response_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        let asked = self.asked(exchange).filter(|(call, _)| call.is_stream);
        let Some((call, takes_events)) = asked.filter(|_| !exchange.is_answered_here()) else { return Ok(None) };
        let call = Arc::clone(call);
        forget_grpc(exchange);
        let kind = if takes_events { EVENTS } else { NDJSON };
        exchange.response.head.set(b"Content-Type", kind).map_err(|_| Stop::Internal)?;
        Ok(Some(Box::new(StreamWriter::new(call, takes_events))))
    }
}

/// The response to a call that was not answered with gRPC.
fn no_call_answered(call: &Call, exchange: &mut Exchange) -> Result<(), Stop> {
    let status = exchange.response.status;
    if !exchange.is_answered_here() {
        call.has_answered(exchange);
        let status = if status >= 400 { status } else { 502 };
        return Err(refused(exchange, status, "the upstream has not answered with gRPC"));
    }
    // What a plugin has answered stays as it is.
    let is_of_plugin = matches!(exchange.stop(), None | Some(Stop::Answered | Stop::Respond(_)));
    match CallStatus::of_gateway(status).filter(|_| !is_of_plugin) {
        Some(of_call) => Err(call.ended_here(exchange, &of_call)),
        None => {
            call.has_answered(exchange);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_plugin::{UriParameters, UriTemplate};
    use weir_services::grpc_call::framed;

    use super::*;
    use crate::testing::{build, exchange, get, on_request, on_request_body, refused as refusal};

    const PROTO: &str =
        "syntax = \"proto3\"; package t; service S { rpc One (A) returns (A); rpc Send (stream A) returns (A); }
        message A { string name = 1; A inner = 2; repeated int32 numbers = 3; }";

    fn step(more: Value) -> Arc<dyn Plugin> {
        let mut options = json!({"proto": PROTO, "service": "t.S", "method": "One"});
        let members = options.as_object_mut().expect("a map");
        members.extend(more.as_object().expect("a map").clone());
        build::<GrpcTranscode>(options)
    }

    #[test]
    fn a_query_becomes_the_message_of_a_call() {
        let mut exchange = get("/a?name=b&inner.numbers=7&other=1");
        on_request(&step(json!({"deadline": 1500})), &mut exchange).expect("let through");
        assert_eq!(exchange.request_body(), Some(&framed(b"\x0a\x01b\x12\x03\x1a\x01\x07")[..]));
        let request = &exchange.request;
        assert_eq!((request.method_name(), request.path(), request.query()), (&b"POST"[..], &b"/t.S/One"[..], None));
        let field =
            |name: &[u8]| request.head.value(name).map(String::from_utf8_lossy).unwrap_or_default().into_owned();
        assert_eq!(
            (field(b"content-type"), field(b"grpc-timeout")),
            ("application/grpc".to_owned(), "1500m".to_owned())
        );
        assert!(request.sends_te && request.takes_trailers);
        assert_eq!(exchange.time_limit(), Some(Duration::from_millis(1500)));
    }

    #[test]
    fn a_body_and_parameters_of_the_uri_become_one_message() {
        let step = step(json!({}));
        let mut exchange =
            exchange("PUT /users/b%20c HTTP/1.1\nHost: h\nContent-Type: application/json\nContent-Length: 2");
        let templates = [UriTemplate::parse("/users/:name").expect("it has one")];
        exchange.uri_parameters = UriParameters::of(&templates, b"/users/b%20c").map(Box::new);
        on_request(&step, &mut exchange).expect("let through");
        assert_eq!(step.whole_request(&mut exchange), Ok(Some(1 << 20)));
        let mut body = br#"{"name": "a", "numbers": [1]}"#.to_vec();
        assert!(step.on_request_body(&mut exchange, &mut body).is_ok());
        assert_eq!(body, framed(b"\x0a\x03b c\x1a\x01\x01"));
    }

    #[test]
    fn requests_that_are_no_message_are_refused() {
        let step = step(json!({}));
        let post = |kind: &str| exchange(&format!("POST / HTTP/1.1\nHost: h\nContent-Type: {kind}\nContent-Length: 2"));
        for (kind, body, told) in [
            ("application/json", r#"{"inner": {"numbers": [1, "x"]}}"#, "inner.numbers[1]: "),
            ("application/json", "{", "EOF"),
            ("application/x-www-form-urlencoded", "other=1", "other: the message has no such field"),
        ] {
            let mut exchange = post(kind);
            assert_eq!(on_request_body(&step, &mut exchange, body), Err(Stop::Answered), "{body}");
            let answer: Value = serde_json::from_slice(&exchange.body).expect("JSON");
            let text = answer["error_msg"].as_str().expect("text");
            assert!(exchange.response.status == 400 && text.starts_with(told), "{body}: {text}");
        }
        let mut text = post("text/plain");
        assert_eq!((on_request(&step, &mut text), text.response.status), (Err(Stop::Answered), 415));
        let mut options = exchange("OPTIONS / HTTP/1.1\nHost: h");
        assert_eq!((on_request(&step, &mut options), options.response.status), (Err(Stop::Answered), 405));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (more, want) in [
            (json!({"service": "t.T"}), "service: the proto has no service `t.T`; did you mean `t.S`?"),
            (json!({"method": "one"}), "method: `t.S` has no method `one`; did you mean `One`?"),
            (json!({"method": "Send"}), "method: `t.S.Send` takes a stream of messages"),
            (json!({"proto": "message {"}), "proto: line 1 column 9: "),
            (json!({"proto_id": "a"}), "has `proto_id` and `proto`; keep one of them"),
            (json!({"pb_option": ["enum_as_name", "enum_as_value"]}), "pb_option[1]: contradicts"),
            (json!({"pb_option": []}), "pb_option: "),
            (
                json!({"status_detail_type": "t.B"}),
                "status_detail_type: the proto has no message `t.B`; did you mean `t.A`?",
            ),
        ] {
            let mut options = json!({"proto": PROTO, "service": "t.S", "method": "One"});
            options.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
            let error = refusal::<GrpcTranscode>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
