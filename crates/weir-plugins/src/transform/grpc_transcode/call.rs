//! One method of a service: its call is made of a request, and the response of its answer.

use std::sync::Arc;
use std::time::Duration;

use prost_reflect::{DynamicMessage, FieldDescriptor, MessageDescriptor, MethodDescriptor};
use serde_json::Map;
use weir_plugin::proto::h2::ErrorCode;
use weir_plugin::{Exchange, NoteKey, Stop, form};
use weir_services::grpc_call::framed;

use super::arguments::{self, ArgumentFault, ArgumentPlace};
use super::encoding;
use super::frames::{MessageFault, MessageFrames};
use super::http_rules::{self, BodyOf, TranscodingRule};
use super::json::{self, JsonForm, JsonFormFault};
use super::status::{self, CallStatus, DetailForm};
use crate::answer::RefusalResponse;
use crate::content::{DIGESTS, content_type, replace_response_content};

/// What is called.
pub(super) struct Call {
    /// `/package.Service/Method`.
    path: Vec<u8>,
    takes: MessageDescriptor,
    gives: MessageDescriptor,
    pub is_stream: bool,
    pub body: BodyOf,
    /// The field that is the content of the response.
    response: Option<FieldDescriptor>,
    /// Its number among the calls of the plugin.
    number: u64,
    pub settings: Arc<TranscodingSettings>,
}

/// How the calls of a plugin are made.
pub(super) struct TranscodingSettings {
    pub deadline: Option<Duration>,
    pub json: JsonForm,
    pub shows_status: bool,
    pub detail: Option<MessageDescriptor>,
    pub most_received: u64,
    pub most_message: usize,
    /// Of a request that is sent as a call: the state of its answer, whether the client takes events, and the number of the call.
    pub note: NoteKey,
}

impl TranscodingSettings {
    /// Of an exchange that is a call of which the answer has not been made: whether its client takes events, and the call's number.
    pub(super) fn asked(&self, exchange: &Exchange) -> Option<(bool, usize)> {
        let [state, takes_events, number] = exchange.notes.read(self.note)?;
        (state == ASKED).then_some((takes_events != 0, usize::try_from(number).ok()?))
    }

    pub(super) fn detail_form(&self) -> DetailForm<'_> {
        DetailForm { message: self.detail.as_ref(), json: &self.json }
    }

    pub(super) fn failure_body(&self, status: &CallStatus) -> Vec<u8> {
        if self.shows_status { status.to_json(&self.detail_form()) } else { Vec::new() }
    }
}

/// A value for a part of the message, by the name of the part.
pub(super) type NamedValue<'a> = (&'a str, Vec<u8>);

/// The first number of a note: the answer is that of the call, or was made of it.
const ASKED: u64 = 1;
const ANSWERED: u64 = 2;

/// A server that has kept the deadline may be heard a little before it.
const TOLERANCE: Duration = Duration::from_millis(5);

/// Ends a stream of events that has not failed.
pub(super) const END_EVENT: &[u8] = b"event: end\ndata: {}\n\n";

pub(super) const NDJSON: &[u8] = b"application/x-ndjson";
pub(super) const EVENTS: &[u8] = b"text/event-stream";
pub(super) const JSON: &[u8] = b"application/json";

pub(super) fn refused(exchange: &mut Exchange, status: u16, problem: &str) -> Stop {
    RefusalResponse::error(status, Some(problem)).send(exchange)
}

/// How a request brings the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyKind {
    Json,
    Form,
}

/// The kind of a request's body. Content without a type is JSON.
pub(super) fn body_kind(exchange: &mut Exchange) -> Result<BodyKind, Stop> {
    let value = content_type::of_request(exchange)?.unwrap_or(JSON);
    if content_type::is_json(value) {
        Ok(BodyKind::Json)
    } else if content_type::is_form(value) {
        Ok(BodyKind::Form)
    } else {
        let problem = "the content type must be application/json or application/x-www-form-urlencoded";
        Err(refused(exchange, 415, problem))
    }
}

impl Call {
    /// The call of a method, as no rule tells.
    pub(super) fn of(method: &MethodDescriptor, settings: &Arc<TranscodingSettings>) -> Call {
        Call {
            path: format!("/{}/{}", method.parent_service().full_name(), method.name()).into_bytes(),
            takes: method.input(),
            gives: method.output(),
            is_stream: method.is_server_streaming(),
            body: BodyOf::MessageOrQuery,
            response: None,
            number: 0,
            settings: Arc::clone(settings),
        }
    }

    /// The call of a rule, with its number among all of them.
    pub(super) fn of_rule(number: usize, rule: &TranscodingRule, settings: &Arc<TranscodingSettings>) -> Call {
        let (body, response) = (rule.body.clone(), rule.response.clone());
        Call { body, response, number: number as u64, ..Call::of(&rule.calls, settings) }
    }

    /// The message of a query string or a form. `strict`: an argument that names no field is a fault.
    pub(super) fn of_arguments(&self, text: &[u8], strict: bool) -> Result<DynamicMessage, String> {
        let mut form = Map::new();
        for (name, value) in form::pairs(text).filter(|(name, _)| strict || self.body.is_of_query(name)) {
            match arguments::add(&self.takes, &mut form, &name, &value) {
                Err(ArgumentFault::Unknown) if !strict => {}
                Err(fault) => return Err(format!("{}: {fault}", arguments::quoted(&name))),
                Ok(()) => {}
            }
        }
        json::read_form(&self.takes, form)
    }

    /// The message of a body and of the query.
    pub(super) fn of_body(&self, kind: BodyKind, body: &[u8], query: &[u8]) -> Result<DynamicMessage, String> {
        match &self.body {
            BodyOf::MessageOrQuery if body.is_empty() => self.of_arguments(query, false),
            BodyOf::Message if body.is_empty() => Ok(DynamicMessage::new(self.takes.clone())),
            BodyOf::Nothing if !body.is_empty() => Err("the method takes no body".to_owned()),
            BodyOf::Nothing => self.of_arguments(query, false),
            BodyOf::Field(_) if body.is_empty() => self.of_arguments(query, false),
            BodyOf::Field(_) if kind == BodyKind::Form => Err("the body must be JSON".to_owned()),
            BodyOf::Field(field) => {
                let mut message = self.of_arguments(query, false)?;
                let mut read = json::read_member(&self.takes, field.name(), body)?;
                message.set_field(field, read.get_field_mut(field).clone());
                Ok(message)
            }
            BodyOf::MessageOrQuery | BodyOf::Message => match kind {
                BodyKind::Json => json::read(&self.takes, body),
                BodyKind::Form => self.of_arguments(body, true),
            },
        }
    }

    /// Sets the parts of a message that the path names, whatever the body and the query say of them. A name that is no field is
    /// ignored.
    fn set_named(&self, message: &mut DynamicMessage, values: &[NamedValue<'_>]) -> Result<(), String> {
        let (mut form, mut places) = (Map::new(), Vec::new());
        for (name, value) in values {
            let told = |fault| format!("{name}: {fault}");
            match ArgumentPlace::find(&self.takes, name.as_bytes()) {
                Err(ArgumentFault::Unknown) => {}
                Err(fault) => return Err(told(fault)),
                Ok(place) => {
                    place.add(&mut form, value).map_err(told)?;
                    places.push(place);
                }
            }
        }
        let read = json::read_form(&self.takes, form)?;
        places.iter().for_each(|place| place.copy(&read, message));
        Ok(())
    }

    /// The content of the call: the message in its frame.
    pub(super) fn content(
        &self,
        exchange: &mut Exchange,
        message: Result<DynamicMessage, String>,
        named: &[NamedValue<'_>],
    ) -> Result<Vec<u8>, Stop> {
        let message = message.and_then(|mut message| {
            if !named.is_empty() {
                self.set_named(&mut message, named)?;
            }
            Ok(message)
        });
        match message {
            Ok(mut message) => {
                let mut encoded = Vec::new();
                encoding::encode(&mut message, &mut encoded);
                Ok(framed(&encoded))
            }
            Err(problem) => Err(refused(exchange, 400, &problem)),
        }
    }

    /// Makes the head of the call of that of the request.
    pub(super) fn rewrite(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let takes_events = self.is_stream && content_type::is_accepted(&exchange.request.head, EVENTS);
        let request = &mut exchange.request;
        request.set_method(b"POST");
        request.upgrade = false;
        // Whether or not the client supports trailers: they become a part of its response.
        request.takes_trailers = true;
        request.sends_te = true;
        request.set_path(&self.path, Some(b"")).map_err(|_| Stop::Internal)?;
        let coding = [&b"Content-Encoding"[..], b"grpc-encoding", b"grpc-accept-encoding", b"grpc-timeout"];
        for name in coding.into_iter().chain(DIGESTS) {
            request.head.remove(name);
        }
        request.head.set(b"Content-Type", b"application/grpc").map_err(|_| Stop::Internal)?;
        if let Some(deadline) = self.settings.deadline {
            let value = format!("{}m", deadline.as_millis());
            request.head.set(b"grpc-timeout", value.as_bytes()).map_err(|_| Stop::Internal)?;
            exchange.limit_time(deadline);
        }
        exchange.notes.write(self.settings.note, [ASKED, takes_events.into(), self.number]);
        Ok(())
    }

    pub(super) fn has_answered(&self, exchange: &mut Exchange) {
        exchange.notes.write(self.settings.note, [ANSWERED, 0, 0]);
    }

    /// The response to a call that failed, or that has ended without a message, which is a failure unless it is a stream.
    pub(super) fn ended(&self, exchange: &mut Exchange, status: &CallStatus) -> Stop {
        let takes_events = self.settings.asked(exchange).is_some_and(|(takes_events, _)| takes_events);
        self.has_answered(exchange);
        let no_message = CallStatus::not_transcoded("the answer has no message");
        let status = if status.code == CallStatus::OK && !self.is_stream { &no_message } else { status };
        if status.code == CallStatus::OK {
            let (kind, content): (_, &[u8]) = if takes_events { (EVENTS, END_EVENT) } else { (NDJSON, b"") };
            return replaced(exchange, 200, kind, content);
        }
        let stop = replaced(exchange, status.http_status(), JSON, &self.settings.failure_body(status));
        if self.fail_head(exchange, status).is_err() { Stop::Internal } else { stop }
    }

    /// The response to a call that the gateway has ended, with the status of the gateway's own answer.
    pub(super) fn ended_here(&self, exchange: &mut Exchange, status: &CallStatus) -> Stop {
        let http_status = exchange.response.status;
        let stop = self.ended(exchange, status);
        exchange.response.set_status(http_status);
        stop
    }

    /// The fields of the response to a call that failed.
    pub(super) fn fail_head(&self, exchange: &mut Exchange, status: &CallStatus) -> Result<(), Stop> {
        let head = &mut exchange.response.head;
        head.set(status::CODE, status.code.to_string().as_bytes()).map_err(|_| Stop::Internal)?;
        if !status.message.is_empty() {
            head.set(status::MESSAGE, &status.message).map_err(|_| Stop::Internal)?;
        }
        if !self.settings.shows_status {
            head.remove(b"Content-Type");
        }
        Ok(())
    }

    /// The status of a call that the server has reset at its deadline is that of the deadline.
    pub(super) fn at_deadline(&self, exchange: &Exchange, mut status: CallStatus) -> CallStatus {
        let taken = Duration::from_nanos(exchange.upstream.ended_ns.saturating_sub(exchange.started_ns));
        let is_over = self.settings.deadline.is_some_and(|deadline| taken + TOLERANCE >= deadline);
        let is_reset = exchange.stop() == Some(Stop::UpstreamReset(ErrorCode::CANCEL));
        if is_over && is_reset {
            status.code = CallStatus::DEADLINE_EXCEEDED;
        }
        status
    }

    /// Appends the JSON of a message of the answer, or of the field that the rule names.
    pub(super) fn write_json(&self, message: &[u8], out: &mut Vec<u8>) -> Result<(), CallStatus> {
        let start = out.len();
        self.settings.json.write(&self.gives, message, out).map_err(told_json)?;
        if let Some(field) = &self.response {
            let content = http_rules::member(&out[start..], field.name()).unwrap_or(b"null").to_vec();
            out.truncate(start);
            out.extend_from_slice(&content);
        }
        Ok(())
    }

    /// The JSON of the answer's only message.
    pub(super) fn only_message(&self, body: &[u8]) -> Result<Vec<u8>, CallStatus> {
        let mut frames = MessageFrames::new(self.settings.most_message);
        frames.push(body);
        let mut out = Vec::new();
        let message = frames.next().map_err(told_fault)?;
        let message = message.ok_or_else(|| CallStatus::not_transcoded("the answer has no message"))?;
        self.write_json(message, &mut out)?;
        match frames.is_empty() {
            true => Ok(out),
            false => Err(CallStatus::not_transcoded("the answer has more than one message")),
        }
    }
}

/// Replaces the answer by one with other content. Its fields that do not tell of the content are kept, such as `WWW-Authenticate`.
fn replaced(exchange: &mut Exchange, status: u16, content_type: &[u8], content: &[u8]) -> Stop {
    if exchange.is_answered_here() {
        exchange.response.clear();
    }
    forget_grpc(exchange);
    let stop = replace_response_content(exchange, content);
    exchange.replace_response();
    exchange.response.set_status(status);
    let set = exchange.response.head.set(b"Content-Type", content_type);
    if set.is_err() { Stop::Internal } else { stop }
}

/// Why a message of an answer is not given to the client.
pub(super) fn told_fault(fault: MessageFault) -> CallStatus {
    CallStatus::not_transcoded(match fault {
        MessageFault::Compressed => "the message is compressed, which was not asked for",
        MessageFault::TooLarge => "the message is too large",
    })
}

pub(super) fn told_json(fault: JsonFormFault) -> CallStatus {
    match fault {
        JsonFormFault::NotAMessage => CallStatus::not_transcoded("the message is not of the type in the proto"),
        JsonFormFault::TooLarge => CallStatus::not_transcoded("the message is too large or too deep as JSON"),
        JsonFormFault::NoForm(problem) => CallStatus::not_transcoded(&problem),
    }
}

/// Removes the fields that describe the content of a call.
pub(super) fn forget_grpc(exchange: &mut Exchange) {
    exchange.forget_response_content();
    for name in [&b"grpc-encoding"[..], b"grpc-accept-encoding", b"Trailer", status::CODE, status::MESSAGE] {
        exchange.response.head.remove(name);
    }
}
