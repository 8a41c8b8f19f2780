//! The stream of messages with the service, for one exchange.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, StatusCode};
use hyper::body::Bytes;
use prost::Message;
use tokio::time::{Instant, timeout_at};
use weir_client::{CallError, CallReceiver, CallSender};
use weir_plugin::Stop;
use weir_services::grpc_call::{GrpcStatus, PREFIX, write_prefix};

use super::ProcessorTerms;
use super::fields::BadMutation;
use super::messages::{
    CommonResponse, HeaderMutation, ImmediateResponse, ModeOverride, ProcessingRequest, ProcessingResponse,
    ProtoDuration, ProtocolConfiguration, RequestPart, ResponsePart,
};
use crate::envoy::messages::{Struct, StructKind};
use crate::envoy::metadata::{MetadataVariables, members};

/// The largest message of the service, as in most libraries of gRPC.
const MOST_MESSAGE_BYTES: usize = 4 << 20;
/// Answers for one direction that wait while the other one reads, in addition to one message. More are a failure: to wait until they are
/// taken could mean to wait for what only the other direction brings about.
const MOST_WAITING_BYTES: usize = 1 << 20;
/// The most bytes of the metadata that is kept of an exchange, names included; each member counts as 32 more.
const MOST_METADATA_BYTES: usize = 64 << 10;
/// How long the end of a call is waited for after an exchange.
const PATIENCE_AT_END: Duration = Duration::from_secs(1);

/// A direction of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessedDirection {
    Request,
    Response,
}

/// Which part of a message an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessedPart {
    Head,
    Content,
    Trailers,
}

/// An answer of the service for a part of a message.
#[derive(Debug, Default)]
pub(super) struct ProcessorAnswer {
    /// Empty for trailers.
    pub response: CommonResponse,
    /// Of trailers.
    pub trailers: Option<HeaderMutation>,
    pub mode_override: Option<ModeOverride>,
}

/// Why the service has not processed an exchange.
#[derive(Debug)]
pub(super) enum ProcessorFailure {
    Call(CallError),
    Late(Duration),
    NotGrpc,
    Status(String),
    TooLarge,
    Invalid,
    Unexpected { got: &'static str, wanted: &'static str },
    Mutation(BadMutation),
    Mode(i32),
    BadStatus(i64),
    NoImmediate,
    NoContentChange(&'static str),
    Unfinished,
    Untaken,
    TooMuchMetadata,
    TooLong(usize),
    Field,
}

impl fmt::Display for ProcessorFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProcessorFailure::Call(error) => error.fmt(f),
            ProcessorFailure::Late(after) => {
                write!(f, "there was no answer to a message within {} ms (`message_timeout`)", after.as_millis())
            }
            ProcessorFailure::NotGrpc => {
                write!(f, "the answer is not one of gRPC; is it the address of a gRPC service?")
            }
            ProcessorFailure::Status(status) => status.fmt(f),
            ProcessorFailure::TooLarge => {
                write!(f, "a message of the service is larger than {MOST_MESSAGE_BYTES} bytes")
            }
            ProcessorFailure::Invalid => write!(f, "a message of the service is not a valid ProcessingResponse"),
            ProcessorFailure::Unexpected { got, wanted } => {
                write!(f, "the service has answered with `{got}` where `{wanted}` is expected")
            }
            ProcessorFailure::Mutation(bad) => bad.fmt(f),
            ProcessorFailure::Mode(number) => write!(f, "`mode_override` has the mode {number}, which is unknown"),
            ProcessorFailure::BadStatus(status) => {
                write!(f, "the status of the response is {status}, and must be 200 to 599")
            }
            ProcessorFailure::NoImmediate => {
                write!(f, "the service answers by itself, which `disable_immediate_response` does not allow")
            }
            ProcessorFailure::NoContentChange(mode) => {
                write!(f, "the service replaces content in a way that the mode {mode} does not have")
            }
            ProcessorFailure::Unfinished => {
                write!(f, "the service has ended the call before it has sent all content of FULL_DUPLEX_STREAMED")
            }
            ProcessorFailure::Untaken => {
                write!(f, "the service has sent {MOST_WAITING_BYTES} bytes in one direction that are not taken there")
            }
            ProcessorFailure::TooMuchMetadata => {
                write!(f, "the metadata of the service for one exchange is larger than {MOST_METADATA_BYTES} bytes")
            }
            ProcessorFailure::TooLong(most) => {
                write!(f, "the content of a response is larger than {most} bytes (`max_buffered_bytes`)")
            }
            ProcessorFailure::Field => {
                write!(f, "the value of a variable in `initial_metadata` is not valid in a field")
            }
        }
    }
}

impl From<BadMutation> for ProcessorFailure {
    fn from(bad: BadMutation) -> ProcessorFailure {
        ProcessorFailure::Mutation(bad)
    }
}

/// Why processing ends the exchange.
pub(super) enum ProcessingEnd {
    Stop(Stop),
    /// The service answers the client by itself.
    Immediate(Box<ImmediateResponse>),
}

impl From<Stop> for ProcessingEnd {
    fn from(stop: Stop) -> ProcessingEnd {
        ProcessingEnd::Stop(stop)
    }
}

/// The session with the service.
pub(super) struct ProcessorSession {
    terms: Arc<ProcessorTerms>,
    state: RefCell<ProcessorState>,
    /// The service has failed.
    has_failed: Cell<bool>,
}

#[derive(Default)]
struct ProcessorState {
    sender: Option<Arc<CallSender>>,
    receiver: Option<CallReceiver>,
    /// Bytes of a message that is not complete.
    partial: Vec<u8>,
    /// Answers that have come, by direction.
    inbox: [AnswerQueue; 2],
    immediate: Option<Box<ImmediateResponse>>,
    /// What an answer is waited for, by direction.
    awaited: [Awaited; 2],
    /// The service has asked for more time for what is waited for, by direction.
    more_time: [Option<Duration>; 2],
    /// What the first message tells beside its part.
    first: Option<FirstMessage>,
    /// What has come of metadata, and its size in the whole exchange.
    metadata: Vec<(String, Vec<u8>)>,
    metadata_bytes: usize,
    variables: MetadataVariables,
}

/// What the first message of a session tells beside its part.
#[derive(Clone)]
pub(super) struct FirstMessage {
    pub attributes: BTreeMap<String, Struct>,
    pub protocol: ProtocolConfiguration,
}

/// Which answers may come in a direction.
#[derive(Clone, Copy, Default)]
enum Awaited {
    #[default]
    Nothing,
    Part(ProcessedPart),
    /// Those of FULL_DUPLEX_STREAMED, whenever the service sends them.
    Any,
}

#[derive(Default)]
struct AnswerQueue {
    answers: VecDeque<(ProcessedPart, ProcessorAnswer, usize)>,
    bytes: usize,
}

impl ProcessorSession {
    /// # Errors
    /// There is no connection to the service.
    pub(super) async fn open(
        terms: &Arc<ProcessorTerms>,
        call: &Request<()>,
        first: FirstMessage,
    ) -> Result<ProcessorSession, ProcessorFailure> {
        let (sender, receiver) = terms.service.service.duplex(call).await.map_err(ProcessorFailure::Call)?;
        let (sender, receiver, first) = (Some(Arc::new(sender)), Some(receiver), Some(first));
        let state = ProcessorState { sender, receiver, first, ..ProcessorState::default() };
        Ok(ProcessorSession { terms: Arc::clone(terms), state: RefCell::new(state), has_failed: Cell::new(false) })
    }

    /// A session in which nothing is processed.
    pub(super) fn closed(terms: &Arc<ProcessorTerms>) -> ProcessorSession {
        ProcessorSession { terms: Arc::clone(terms), state: RefCell::default(), has_failed: Cell::new(false) }
    }

    /// Whether messages are still processed.
    pub(super) fn is_open(&self) -> bool {
        self.state.borrow().receiver.is_some()
    }

    pub(super) fn terms(&self) -> &ProcessorTerms {
        &self.terms
    }

    fn close(&self) {
        let mut state = self.state.borrow_mut();
        (state.sender, state.receiver) = (None, None);
    }

    /// Ends the call as one that has succeeded: a service that is cut off before it has ended its part takes the call for cancelled.
    pub(super) fn finish(&self) {
        let mut state = self.state.borrow_mut();
        state.sender = None;
        let Some(mut receiver) = state.receiver.take() else { return };
        tokio::spawn(async move {
            let rest = async { while let Ok(Some(_)) = receiver.next().await {} };
            // What it may still send is of no use to anything.
            let _ = timeout_at(Instant::now() + PATIENCE_AT_END, rest).await;
        });
    }

    /// Decides what a failure means for the exchange: nothing is processed any more, or it ends.
    ///
    /// # Errors
    /// Failures are not allowed.
    pub(super) fn fail(&self, failure: &ProcessorFailure) -> Result<(), Stop> {
        self.has_failed.set(true);
        self.close();
        self.terms.fail(failure)
    }

    /// Whether the service has failed since this was last asked.
    pub(super) fn take_failure(&self) -> bool {
        self.has_failed.take()
    }

    /// The variables of the metadata that the service has sent since this was last asked.
    pub(super) fn take_variables(&self) -> Vec<(String, Vec<u8>)> {
        let mut state = self.state.borrow_mut();
        let metadata = std::mem::take(&mut state.metadata);
        state.variables.of(&metadata)
    }

    /// From now on, the service may send answers for this direction whenever it likes.
    pub(super) fn let_stream(&self, direction: ProcessedDirection) {
        self.state.borrow_mut().awaited[direction as usize] = Awaited::Any;
    }

    /// Sends a part of a message. `false` if nothing is processed any more.
    pub(super) async fn send(&self, part: RequestPart) -> bool {
        let Some(sender) = self.state.borrow().sender.clone() else { return false };
        let message = match self.state.borrow_mut().first.take() {
            None => ProcessingRequest { part: Some(part), ..ProcessingRequest::default() },
            Some(FirstMessage { attributes, protocol }) => {
                ProcessingRequest { part: Some(part), attributes, protocol: Some(protocol) }
            }
        };
        let length = message.encoded_len();
        let mut framed = Vec::with_capacity(PREFIX + length);
        write_prefix(length, &mut framed);
        message.encode(&mut framed).expect("a vector takes all");
        // If the call has ended, its response says why.
        sender.send(Bytes::from(framed)).await;
        true
    }

    /// Sends a part of a message and waits for its answer. `None` if nothing is processed any more.
    ///
    /// # Errors
    /// The service fails and failures are not allowed, or it answers the client by itself.
    pub(super) async fn ask(
        &self,
        direction: ProcessedDirection,
        part: RequestPart,
    ) -> Result<Option<ProcessorAnswer>, ProcessingEnd> {
        match self.try_ask(direction, part).await {
            Ok(answer) => {
                if answer.is_some() {
                    self.terms
                        .outages
                        .answered(|| format!("ext-proc: {} answers again", self.terms.service.service.name()));
                }
                Ok(answer)
            }
            Err(AskEnd::End(end)) => Err(end),
            Err(AskEnd::Failure(failure)) => Ok(self.fail(&failure).map(|()| None)?),
        }
    }

    /// The same, which leaves failures to the caller.
    pub(super) async fn try_ask(
        &self,
        direction: ProcessedDirection,
        part: RequestPart,
    ) -> Result<Option<ProcessorAnswer>, AskEnd> {
        let kind = kind_of(&part);
        let began = Instant::now();
        let mut allowed = self.terms.message_timeout;
        self.state.borrow_mut().awaited[direction as usize] = Awaited::Part(kind);
        let mut asked = std::pin::pin!(async {
            if !self.send(part).await {
                return Ok(None);
            }
            self.next(direction, kind).await
        });
        loop {
            if let Ok(answer) = timeout_at(began + allowed, asked.as_mut()).await {
                return answer;
            }
            let more = self.state.borrow_mut().more_time[direction as usize].take();
            match more.filter(|more| *more > allowed) {
                Some(more) => allowed = more,
                None => {
                    if let Some(receiver) = &self.state.borrow().receiver {
                        receiver.forget_silent_connection();
                    }
                    return Err(AskEnd::Failure(ProcessorFailure::Late(allowed)));
                }
            }
        }
    }

    /// The next answer for a direction, however long it takes. `None` if nothing is processed any more.
    ///
    /// # Errors
    /// See [`AskEnd`].
    pub(super) async fn next(
        &self,
        direction: ProcessedDirection,
        kind: ProcessedPart,
    ) -> Result<Option<ProcessorAnswer>, AskEnd> {
        let Some((got, answer)) = poll_fn(|context| self.poll_answer(direction, context)).await? else {
            return Ok(None);
        };
        if got == kind {
            return Ok(Some(answer));
        }
        let (got, wanted) = (name_of(direction, got), name_of(direction, kind));
        Err(AskEnd::Failure(ProcessorFailure::Unexpected { got, wanted }))
    }

    /// The next answer for a direction after that for its head.
    ///
    /// # Errors
    /// See [`AskEnd`].
    pub(super) async fn next_after_head(
        &self,
        direction: ProcessedDirection,
    ) -> Result<Option<(ProcessedPart, ProcessorAnswer)>, AskEnd> {
        match poll_fn(|context| self.poll_answer(direction, context)).await? {
            Some((ProcessedPart::Head, _)) => {
                let (got, wanted) =
                    (name_of(direction, ProcessedPart::Head), name_of(direction, ProcessedPart::Content));
                Err(AskEnd::Failure(ProcessorFailure::Unexpected { got, wanted }))
            }
            answer => Ok(answer),
        }
    }

    fn poll_answer(
        &self,
        direction: ProcessedDirection,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<(ProcessedPart, ProcessorAnswer)>, AskEnd>> {
        loop {
            let state = &mut *self.state.borrow_mut();
            if let Some(immediate) = state.immediate.take() {
                let end = match self.terms.allows_immediate {
                    true => AskEnd::End(ProcessingEnd::Immediate(immediate)),
                    false => AskEnd::Failure(ProcessorFailure::NoImmediate),
                };
                return Poll::Ready(Err(end));
            }
            let [of_request, of_response] = &mut state.inbox;
            let (own, other) = match direction {
                ProcessedDirection::Request => (of_request, of_response),
                ProcessedDirection::Response => (of_response, of_request),
            };
            if let Some((kind, answer, bytes)) = own.answers.pop_front() {
                own.bytes -= bytes;
                return Poll::Ready(Ok(Some((kind, answer))));
            }
            if other.bytes >= MOST_WAITING_BYTES {
                return Poll::Ready(Err(AskEnd::Failure(ProcessorFailure::Untaken)));
            }
            match ready!(state.poll_message(&self.terms, context)) {
                Ok(true) => context.waker().wake_by_ref(),
                Ok(false) => {
                    (state.sender, state.receiver) = (None, None);
                    context.waker().wake_by_ref();
                    return Poll::Ready(Ok(None));
                }
                Err(failure) => return Poll::Ready(Err(AskEnd::Failure(failure))),
            }
        }
    }
}

/// Why there is no answer.
pub(super) enum AskEnd {
    End(ProcessingEnd),
    Failure(ProcessorFailure),
}

impl ProcessorState {
    /// Receives a message. `false` if the service has ended the call without an error: it does not want to process any more.
    fn poll_message(
        &mut self,
        terms: &ProcessorTerms,
        context: &mut Context<'_>,
    ) -> Poll<Result<bool, ProcessorFailure>> {
        loop {
            if let Some(message) = self.take_message()? {
                self.place(message, terms)?;
                return Poll::Ready(Ok(true));
            }
            let Some(receiver) = &mut self.receiver else { return Poll::Ready(Ok(false)) };
            let received = ready!(receiver.poll_next(context)).map_err(ProcessorFailure::Call)?;
            match received {
                Some(piece) => self.partial.extend_from_slice(&piece),
                None => return Poll::Ready(ended(receiver).map(|()| false)),
            }
            let is_grpc = receiver.head().is_some_and(|head| head.status() == StatusCode::OK);
            if !is_grpc {
                return Poll::Ready(Err(ProcessorFailure::NotGrpc));
            }
        }
    }

    /// Takes a whole message out of what has been received.
    fn take_message(&mut self) -> Result<Option<(ProcessingResponse, usize)>, ProcessorFailure> {
        let Some((prefix, rest)) = self.partial.split_first_chunk::<PREFIX>() else { return Ok(None) };
        let [0, length @ ..] = *prefix else { return Err(ProcessorFailure::Invalid) };
        let length = u32::from_be_bytes(length) as usize;
        if length > MOST_MESSAGE_BYTES {
            return Err(ProcessorFailure::TooLarge);
        }
        let Some(message) = rest.get(..length) else { return Ok(None) };
        let message = ProcessingResponse::decode(message).map_err(|_| ProcessorFailure::Invalid)?;
        self.partial.drain(..PREFIX + length);
        Ok(Some((message, length)))
    }

    fn place(
        &mut self,
        (message, bytes): (ProcessingResponse, usize),
        terms: &ProcessorTerms,
    ) -> Result<(), ProcessorFailure> {
        let ProcessingResponse { part, dynamic_metadata, mode_override, override_message_timeout } = message;
        self.add_metadata(dynamic_metadata.unwrap_or_default(), &terms.namespaces)?;
        let Some(part) = part else {
            return self.allow_more_time(override_message_timeout, terms.max_message_timeout);
        };
        let common = |response: Option<CommonResponse>| ProcessorAnswer {
            response: response.unwrap_or_default(),
            mode_override,
            trailers: None,
        };
        let of_trailers = |mutation| ProcessorAnswer { trailers: mutation, ..ProcessorAnswer::default() };
        let (direction, kind, answer) = match part {
            ResponsePart::Immediate(immediate) => {
                self.immediate = Some(Box::new(immediate));
                return Ok(());
            }
            ResponsePart::RequestHeaders(told) => {
                (ProcessedDirection::Request, ProcessedPart::Head, common(told.response))
            }
            ResponsePart::ResponseHeaders(told) => {
                (ProcessedDirection::Response, ProcessedPart::Head, common(told.response))
            }
            ResponsePart::RequestBody(told) => {
                (ProcessedDirection::Request, ProcessedPart::Content, common(told.response))
            }
            ResponsePart::ResponseBody(told) => {
                (ProcessedDirection::Response, ProcessedPart::Content, common(told.response))
            }
            ResponsePart::RequestTrailers(told) => {
                (ProcessedDirection::Request, ProcessedPart::Trailers, of_trailers(told.mutation))
            }
            ResponsePart::ResponseTrailers(told) => {
                (ProcessedDirection::Response, ProcessedPart::Trailers, of_trailers(told.mutation))
            }
        };
        match &mut self.awaited[direction as usize] {
            Awaited::Any => {}
            awaited @ Awaited::Part(_) => {
                (*awaited, self.more_time[direction as usize]) = (Awaited::Nothing, None);
            }
            Awaited::Nothing => return Err(self.unexpected(direction, kind)),
        }
        let queue = &mut self.inbox[direction as usize];
        queue.answers.push_back((kind, answer, bytes));
        queue.bytes += bytes;
        Ok(())
    }
}

impl ProcessorState {
    fn add_metadata(&mut self, mut told: Struct, namespaces: &[String]) -> Result<(), ProcessorFailure> {
        for namespace in namespaces {
            let Some(StructKind::Struct(own)) = told.fields.remove(namespace).and_then(|value| value.kind) else {
                continue;
            };
            let own = members(own);
            self.metadata_bytes += own.iter().map(|(name, value)| 32 + name.len() + value.len()).sum::<usize>();
            if self.metadata_bytes > MOST_METADATA_BYTES {
                return Err(ProcessorFailure::TooMuchMetadata);
            }
            self.metadata.extend(own);
        }
        Ok(())
    }

    /// The service asks for more time for what it has been sent. It does not say for which direction.
    fn allow_more_time(
        &mut self,
        told: Option<ProtoDuration>,
        max_message_timeout: Duration,
    ) -> Result<(), ProcessorFailure> {
        let more_time = told.and_then(|told| {
            let nanos = u32::try_from(told.nanos).ok().filter(|nanos| *nanos < 1_000_000_000)?;
            Some(Duration::new(u64::try_from(told.seconds).ok()?, nanos))
        });
        // Only this may stand alone.
        let more_time = more_time.ok_or(ProcessorFailure::Invalid)?.min(max_message_timeout);
        for (awaited, of_direction) in self.awaited.iter().zip(&mut self.more_time) {
            if matches!(awaited, Awaited::Part(_)) {
                *of_direction = Some(more_time);
            }
        }
        Ok(())
    }

    /// The failure of an answer that nothing waits for.
    fn unexpected(&self, direction: ProcessedDirection, kind: ProcessedPart) -> ProcessorFailure {
        let wanted = [ProcessedDirection::Request, ProcessedDirection::Response].into_iter().find_map(|other| {
            let Awaited::Part(part) = self.awaited[other as usize] else { return None };
            Some(name_of(other, part))
        });
        ProcessorFailure::Unexpected { got: name_of(direction, kind), wanted: wanted.unwrap_or("nothing") }
    }
}

/// The call has ended: with the status OK the service does not want to process any more.
fn ended(receiver: &CallReceiver) -> Result<(), ProcessorFailure> {
    let head = receiver.head().ok_or(ProcessorFailure::NotGrpc)?;
    let status = GrpcStatus::after(Some(receiver.trailers()), head.headers());
    let status = status.filter(|_| head.status() == StatusCode::OK).ok_or(ProcessorFailure::NotGrpc)?;
    if status.code == GrpcStatus::OK { Ok(()) } else { Err(ProcessorFailure::Status(status.to_string())) }
}

fn kind_of(part: &RequestPart) -> ProcessedPart {
    match part {
        RequestPart::RequestHeaders(_) | RequestPart::ResponseHeaders(_) => ProcessedPart::Head,
        RequestPart::RequestBody(_) | RequestPart::ResponseBody(_) => ProcessedPart::Content,
        RequestPart::RequestTrailers(_) | RequestPart::ResponseTrailers(_) => ProcessedPart::Trailers,
    }
}

fn name_of(direction: ProcessedDirection, kind: ProcessedPart) -> &'static str {
    match (direction, kind) {
        (ProcessedDirection::Request, ProcessedPart::Head) => "request_headers",
        (ProcessedDirection::Request, ProcessedPart::Content) => "request_body",
        (ProcessedDirection::Request, ProcessedPart::Trailers) => "request_trailers",
        (ProcessedDirection::Response, ProcessedPart::Head) => "response_headers",
        (ProcessedDirection::Response, ProcessedPart::Content) => "response_body",
        (ProcessedDirection::Response, ProcessedPart::Trailers) => "response_trailers",
    }
}
