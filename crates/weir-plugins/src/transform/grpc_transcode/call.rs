//! One method of a service: its call is made of a request, and the response of its answer.

use std::time::Duration;

use prost::Message;
use prost_reflect::{DynamicMessage, MessageDescriptor};
use serde_json::Map;
use weir_plugin::proto::h2::ErrorCode;
use weir_plugin::{Exchange, NoteKey, Stop, UriParameters, form};

use super::arguments::{self, ArgumentFault};
use super::frames::{MessageFault, MessageFrames};
use super::json::{self, JsonForm, JsonFormFault};
use super::status::{self, CallStatus, DetailForm};
use super::stream::END_EVENT;
use crate::answer::RefusalResponse;
use crate::content::{DIGESTS, content_type, forget_response_content};
use crate::grpc_call::framed;

/// What is called, and how.
pub struct Call {
    /// `/package.Service/Method`.
    pub path: Vec<u8>,
    pub takes: MessageDescriptor,
    pub gives: MessageDescriptor,
    pub is_stream: bool,
    pub deadline: Option<Duration>,
    pub json: JsonForm,
    pub shows_status: bool,
    pub detail: Option<MessageDescriptor>,
    pub most_received: u64,
    pub most_message: usize,
    /// Of a request that is sent as a call: the state of its answer, and whether the client takes events.
    pub note: NoteKey,
}

/// The first number of a note: the answer is that of the call, or was made of it.
const ASKED: u64 = 1;
const ANSWERED: u64 = 2;

/// A server that has kept the deadline may be heard a little before it.
const TOLERANCE: Duration = Duration::from_millis(250);

pub const NDJSON: &[u8] = b"application/x-ndjson";
pub const EVENTS: &[u8] = b"text/event-stream";
pub const JSON: &[u8] = b"application/json";

pub fn refused(exchange: &mut Exchange, status: u16, problem: &str) -> Stop {
    RefusalResponse::error(status, Some(problem)).send(exchange)
}

/// How a request brings the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    Json,
    Form,
}

/// The kind of a request's body. Content without a type is JSON.
pub fn body_kind(exchange: &mut Exchange) -> Result<BodyKind, Stop> {
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
    /// The message of a query string or a form. `strict`: an argument that names no field is a fault.
    pub fn of_arguments(&self, text: &[u8], strict: bool) -> Result<DynamicMessage, String> {
        let mut form = Map::new();
        for (name, value) in form::pairs(text) {
            match arguments::add(&self.takes, &mut form, &name, &value) {
                Err(ArgumentFault::Unknown) if !strict => {}
                Err(fault) => return Err(format!("{}: {fault}", arguments::quoted(&name))),
                Ok(()) => {}
            }
        }
        json::read_form(&self.takes, form)
    }

    /// The fields that parameters of the `uri` set, encoded.
    fn of_parameters(&self, parameters: &UriParameters) -> Result<Vec<u8>, String> {
        let mut form = Map::new();
        for (name, value) in parameters.all() {
            let value = percent_encoding::percent_decode(value).collect::<Vec<u8>>();
            match arguments::add(&self.takes, &mut form, name.as_bytes(), &value) {
                Ok(()) | Err(ArgumentFault::Unknown) => {}
                Err(fault) => return Err(format!("{name}: {fault}")),
            }
        }
        Ok(json::read_form(&self.takes, form)?.encode_to_vec())
    }

    /// The content of the call: the message in its frame.
    pub fn content(&self, exchange: &mut Exchange, message: Result<DynamicMessage, String>) -> Result<Vec<u8>, Stop> {
        let parameters = exchange.uri_parameters.as_deref();
        let message = message.and_then(|mut message| {
            if let Some(parameters) = parameters {
                let set = self.of_parameters(parameters)?;
                message.merge(&*set).map_err(|error| error.to_string())?;
            }
            Ok(message)
        });
        match message {
            Ok(message) => Ok(framed(&message.encode_to_vec())),
            Err(problem) => Err(refused(exchange, 400, &problem)),
        }
    }

    /// Makes the head of the call of that of the request.
    pub fn rewrite(&self, exchange: &mut Exchange) -> Result<(), Stop> {
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
        if let Some(deadline) = self.deadline {
            let value = format!("{}m", deadline.as_millis());
            request.head.set(b"grpc-timeout", value.as_bytes()).map_err(|_| Stop::Internal)?;
            exchange.limit_time(deadline);
        }
        exchange.notes.write(self.note, [ASKED, takes_events.into(), 0]);
        Ok(())
    }

    /// Whether the exchange is a call of which the answer has not been made, and whether its client takes events.
    pub fn asked(&self, exchange: &Exchange) -> Option<bool> {
        let [state, takes_events, _] = exchange.notes.read(self.note)?;
        (state == ASKED).then_some(takes_events != 0)
    }

    pub fn has_answered(&self, exchange: &mut Exchange) {
        exchange.notes.write(self.note, [ANSWERED, 0, 0]);
    }

    pub fn detail_form(&self) -> DetailForm<'_> {
        DetailForm { message: self.detail.as_ref(), json: &self.json }
    }

    /// The response to a call that failed, or that has ended without a message, which is a failure unless it is a stream.
    pub fn ended(&self, exchange: &mut Exchange, status: &CallStatus) -> Stop {
        let takes_events = self.asked(exchange).unwrap_or(false);
        self.has_answered(exchange);
        let no_message = CallStatus::not_transcoded("the answer has no message");
        let status = if status.code == CallStatus::OK && !self.is_stream { &no_message } else { status };
        if status.code == CallStatus::OK {
            let (kind, content): (_, &[u8]) = if takes_events { (EVENTS, END_EVENT) } else { (NDJSON, b"") };
            return exchange.respond(200, str::from_utf8(kind).unwrap_or_default(), content);
        }
        let body = self.failure_body(status);
        let stop = exchange.respond(status.http_status(), "application/json", &body);
        if self.fail_head(exchange, status).is_err() { Stop::Internal } else { stop }
    }

    pub fn failure_body(&self, status: &CallStatus) -> Vec<u8> {
        if self.shows_status { status.to_json(&self.detail_form()) } else { Vec::new() }
    }

    /// The fields of the response to a call that failed.
    pub fn fail_head(&self, exchange: &mut Exchange, status: &CallStatus) -> Result<(), Stop> {
        let head = &mut exchange.response.head;
        head.set(status::CODE, status.code.to_string().as_bytes()).map_err(|_| Stop::Internal)?;
        if !status.message.is_empty() {
            head.set(status::MESSAGE, &status.message).map_err(|_| Stop::Internal)?;
        }
        if !self.shows_status {
            head.remove(b"Content-Type");
        }
        Ok(())
    }

    /// The status of a call that the server has reset at its deadline is that of the deadline.
    pub fn at_deadline(&self, exchange: &Exchange, mut status: CallStatus) -> CallStatus {
        let taken = Duration::from_nanos(exchange.upstream.ended_ns.saturating_sub(exchange.started_ns));
        let is_over = self.deadline.is_some_and(|deadline| taken + TOLERANCE >= deadline);
        let is_reset = exchange.stop() == Some(Stop::UpstreamReset(ErrorCode::CANCEL));
        if is_over && is_reset {
            status.code = CallStatus::DEADLINE_EXCEEDED;
        }
        status
    }

    /// The JSON of the answer's only message.
    pub fn only_message(&self, body: &[u8]) -> Result<Vec<u8>, CallStatus> {
        let mut frames = MessageFrames::new(self.most_message);
        frames.push(body);
        let mut out = Vec::new();
        let message = frames.next().map_err(told_fault)?;
        let message = message.ok_or_else(|| CallStatus::not_transcoded("the answer has no message"))?;
        self.json.write(&self.gives, message, &mut out).map_err(told_json)?;
        match frames.is_empty() {
            true => Ok(out),
            false => Err(CallStatus::not_transcoded("the answer has more than one message")),
        }
    }
}

/// Why a message of an answer is not given to the client.
pub fn told_fault(fault: MessageFault) -> CallStatus {
    CallStatus::not_transcoded(match fault {
        MessageFault::Compressed => "the message is compressed, which was not asked for",
        MessageFault::TooLarge => "the message is too large",
    })
}

pub fn told_json(fault: JsonFormFault) -> CallStatus {
    match fault {
        JsonFormFault::NotAMessage => CallStatus::not_transcoded("the message is not of the type in the proto"),
        JsonFormFault::TooLarge => CallStatus::not_transcoded("the message is too large or too deep as JSON"),
        JsonFormFault::NoForm(problem) => CallStatus::not_transcoded(&problem),
    }
}

/// Removes the fields that describe the content of a call.
pub fn forget_grpc(exchange: &mut Exchange) {
    forget_response_content(exchange);
    for name in [&b"grpc-encoding"[..], b"grpc-accept-encoding", b"Trailer", status::CODE, status::MESSAGE] {
        exchange.response.head.remove(name);
    }
}
