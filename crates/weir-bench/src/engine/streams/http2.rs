//! HTTP/2: connections with several streams each.

use std::rc::Rc;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::HeaderMap;
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::dial::dial;
use super::multiplexed::{Multiplexed, MultiplexedRequest, WINDOW, captured_head};
use super::{Answered, PreparedStreams};
use crate::engine::clock::now_ns;
use crate::engine::flow::CapturedAnswer;
use crate::engine::grpc::{
    DEADLINE_EXCEEDED, MessageReader, NoAnswerJson, NotMessages, OK, PreparedCall, ReceivedMessage, status_sent,
};
use crate::engine::recorder::Cause;

pub(super) struct DialedHttp2(SendRequest<Bytes>);

impl Multiplexed for DialedHttp2 {
    type Sent = (ResponseFuture, SendStream<Bytes>);

    async fn open(lobby: &Rc<PreparedStreams>, client: usize, request: usize) -> Result<Self, Cause> {
        let stream = dial(lobby, client, request).await?;
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(WINDOW).initial_connection_window_size(WINDOW);
        let (sender, connection) = builder.handshake(stream).await.map_err(|_| Cause::Protocol)?;
        let lobby = lobby.clone();
        spawn_local(async move {
            // The error is ignored here, because the streams report it.
            let _ = connection.await;
            lobby.closed();
        });
        Ok(DialedHttp2(sender))
    }

    async fn send(&mut self, request: &MultiplexedRequest) -> Result<Self::Sent, Cause> {
        // An error means that the connection has ended.
        let mut sender = self.0.clone().ready().await.map_err(|error| cause(&error))?;
        sender.send_request(request.head.clone(), request.body.is_empty()).map_err(|error| cause(&error))
    }

    async fn answer(
        (response, mut send): Self::Sent,
        request: &MultiplexedRequest,
        capture: &mut CapturedAnswer,
    ) -> Result<Option<Answered>, Cause> {
        let body = &request.body;
        if !body.is_empty() {
            send.send_data(body.clone(), true).map_err(|error| cause(&error))?;
        }
        if let Some(call) = &request.call {
            let answered = GrpcAnswer::new(call, capture).receive_in_time(response).await?;
            return Ok(answered.map(|answered| Answered { sent: body.len() as u64, ..answered }));
        }
        let Some(response) = received_head(response.await)? else { return Ok(None) };
        let status = response.status().as_u16();
        let first_byte = captured_head(capture, response.status(), response.headers());
        let mut content = response.into_body();
        let mut received = 0;
        while let Some(data) = content.data().await {
            let data = data.map_err(|error| cause(&error))?;
            received += data.len() as u64;
            capture.content(&data);
            content.flow_control().release_capacity(data.len()).map_err(|error| cause(&error))?;
        }
        content.trailers().await.map_err(|error| cause(&error))?;
        let sent = body.len() as u64;
        Ok(Some(Answered { status: Some(status), sent, received, first_byte, ..Answered::default() }))
    }
}

/// The head of an answer; `None` if the server has not processed the request (RFC 9113 §8.7).
fn received_head(
    response: Result<http::Response<RecvStream>, h2::Error>,
) -> Result<Option<http::Response<RecvStream>>, Cause> {
    match response {
        Err(error) if error.is_remote() && error.reason() == Some(Reason::REFUSED_STREAM) => Ok(None),
        response => response.map(Some).map_err(|error| cause(&error)),
    }
}

/// The answer to a call, as far as it has come.
struct GrpcAnswer<'a> {
    call: &'a PreparedCall,
    capture: &'a mut CapturedAnswer,
    answered: Answered,
    reader: MessageReader,
    json: AnswerJson,
}

impl<'a> GrpcAnswer<'a> {
    fn new(call: &'a PreparedCall, capture: &'a mut CapturedAnswer) -> Self {
        let (reader, json) = (MessageReader::new(capture.keeps_body()), AnswerJson::default());
        Self { call, capture, answered: Answered::default(), reader, json }
    }

    /// Receives the answer until the deadline. Then what has come counts, and the stream is reset, since its answer is dropped.
    async fn receive_in_time(mut self, response: ResponseFuture) -> Result<Option<Answered>, Cause> {
        let status = match self.call.deadline {
            None => self.receive(response).await?,
            Some(deadline) => match timeout(deadline, self.receive(response)).await {
                Ok(status) => status?,
                Err(_) => {
                    self.json.end(self.call, self.capture);
                    Some(DEADLINE_EXCEEDED)
                }
            },
        };
        let messages = self.reader.count();
        Ok(status.map(|status| Answered { status: Some(status), messages, ..self.answered }))
    }

    /// Receives the answer. Its status is that of gRPC, or that of HTTP if it is not 200 and there is no other.
    async fn receive(&mut self, response: ResponseFuture) -> Result<Option<u16>, Cause> {
        let Some(response) = received_head(response.await)? else { return Ok(None) };
        self.answered.first_byte = captured_head(self.capture, response.status(), response.headers());
        let (head, mut content) = response.into_parts();
        let is_grpc = head
            .headers
            .get(http::header::CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        while let Some(data) = content.data().await {
            let data = data.map_err(|error| cause(&error))?;
            self.answered.received += data.len() as u64;
            content.flow_control().release_capacity(data.len()).map_err(|error| cause(&error))?;
            if is_grpc {
                self.messages(&data)?;
            }
        }
        self.json.end(self.call, self.capture);
        let trailers = content.trailers().await.map_err(|error| cause(&error))?.unwrap_or_default();
        trailers.iter().for_each(|(name, value)| self.capture.field(name.as_str(), value.as_bytes()));
        let sent = |fields: &HeaderMap| fields.get("grpc-status").map(|value| status_sent(value.as_bytes()));
        let status = match sent(&trailers).or_else(|| sent(&head.headers)) {
            Some(status) => status,
            None if head.status != http::StatusCode::OK => head.status.as_u16(),
            None => return Err(Cause::Protocol),
        };
        // A call that is answered with one message has one, if it succeeded.
        let has_all = status != OK || self.call.answers_with_stream() || self.reader.count() == 1;
        if self.reader.is_at_end() && has_all { Ok(Some(status)) } else { Err(Cause::Protocol) }
    }

    /// Takes a piece of the messages.
    fn messages(&mut self, data: &[u8]) -> Result<(), Cause> {
        let Self { call, capture, answered, reader, json } = self;
        // Taken before messages are converted for checks, which is the generator's own time.
        let came = (call.answers_with_stream() && answered.first_message.is_none()).then(now_ns);
        let read = reader.feed(data, |message| json.add(call, message, capture));
        read.map_err(|NotMessages| Cause::Protocol)?;
        if came.is_some() && reader.count() > 0 {
            answered.first_message = came;
        }
        Ok(())
    }
}

/// The messages of an answer as JSON: those of a stream are a list.
#[derive(Default)]
struct AnswerJson {
    has_begun: bool,
    has_ended: bool,
}

impl AnswerJson {
    fn add(
        &mut self,
        call: &PreparedCall,
        message: ReceivedMessage<'_>,
        capture: &mut CapturedAnswer,
    ) -> Result<(), NotMessages> {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        if call.answers_with_stream() {
            capture.content(if is_first { b"[" } else { b"," });
        }
        match message {
            // What would not be kept is not converted.
            _ if !capture.takes_more() => {}
            ReceivedMessage::Kept(bytes) => match call.answer_json(bytes, capture.room()) {
                Ok(json) => capture.content(&json),
                Err(NoAnswerJson::NotOfType) => return Err(NotMessages),
                Err(NoAnswerJson::TooLong) => capture.cut(),
                Err(NoAnswerJson::NotWritable(reason)) => capture.cannot_be_read(reason),
            },
            ReceivedMessage::TooLong => capture.cut(),
        }
        Ok(())
    }

    fn end(&mut self, call: &PreparedCall, capture: &mut CapturedAnswer) {
        if call.answers_with_stream() && !std::mem::replace(&mut self.has_ended, true) {
            capture.content(if self.has_begun { b"]" } else { b"[]" });
        }
    }
}

fn cause(error: &h2::Error) -> Cause {
    match error {
        error if error.is_reset() || error.is_io() => Cause::Reset,
        error if error.is_go_away() => Cause::Closed,
        _ => Cause::Protocol,
    }
}
