//! The exchange around the upstream: what is sent to it passes the service, and so does what it answers.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use tokio::sync::oneshot;
use weir_plugin::proto::{Framing, Method, RequestHead, Trailers};
use weir_plugin::{
    Content, ContentWriter, Definition, ForwardedContent, Held, Reply, ReplyHead, ReplyNotes, Responder,
    ResponderRequest, Responding, RouteUpstream, Stop, UpstreamAnswer,
};

use super::ExtProc;
use super::fields::Mutation;
use super::immediate;
use super::messages::{HttpHeaders, RequestPart};
use super::mode::{BodyMode, SentModes};
use super::replacement;
use super::session::{
    AskEnd, ProcessedDirection, ProcessedPart, ProcessingEnd, ProcessorAnswer, ProcessorFailure, ProcessorSession,
};
use super::side::{ContentBeginning, ContentSource, ProcessedSide, beside};

/// What has been done in `on_request`, and what is left.
pub(super) struct BegunExchange {
    pub session: ProcessorSession,
    pub modes: SentModes,
    /// The head, if the service has not got it yet.
    pub head: Option<HttpHeaders>,
    /// What takes the place of the request's content.
    pub replaced: Option<Vec<u8>>,
}

/// Answers one request.
pub(super) struct ProcessorResponder(Mutex<Option<BegunExchange>>);

impl ProcessorResponder {
    pub(super) fn new(begun: BegunExchange) -> ProcessorResponder {
        ProcessorResponder(Mutex::new(Some(begun)))
    }
}

impl Responder for ProcessorResponder {
    fn respond(self: Arc<Self>, request: ResponderRequest, content: Content, mut reply: Reply) -> Responding {
        Box::pin(async move {
            let begun = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
            // Asked once for each exchange.
            let Some(begun) = begun else { return Err(Stop::Internal) };
            let Some(upstream) = request.upstream.clone() else {
                let terms = begun.session.terms();
                terms.outages.fault("ext-proc: the route has no upstream, so that its responses cannot be processed");
                return Err(terms.refusal());
            };
            let BegunExchange { session, modes, head, replaced } = begun;
            let exchange = ProcessedExchange {
                session: &session,
                modes: Cell::new(modes),
                method: Cell::new(request.head.method),
                client: request.client,
                held: RefCell::default(),
                has_begun: Cell::new(false),
            };
            let _told = ToldAtEnd { session: &session, notes: reply.notes() };
            let end = exchange.run(request.head, (head, replaced), (content, upstream), &mut reply).await;
            match end {
                Ok(()) => {
                    session.finish();
                    Ok(())
                }
                Err(ProcessingEnd::Stop(stop)) => {
                    if matches!(stop, Stop::Respond(_)) && !exchange.has_begun.get() {
                        reply.notes().note_refusal(ExtProc::NAME);
                    }
                    Err(stop)
                }
                Err(ProcessingEnd::Immediate(_)) if exchange.has_begun.get() => Err(Stop::UpstreamAborted),
                Err(ProcessingEnd::Immediate(answer)) => {
                    let terms = session.terms();
                    tell_metadata(&session, &reply.notes());
                    reply.notes().note_refusal(ExtProc::NAME);
                    let sent = immediate::send(*answer, &terms.mutations, &mut reply).await;
                    session.finish();
                    sent.or_else(|failure| {
                        reply.notes().note_service_failure(ExtProc::NAME);
                        terms.fail(&failure).and(Err(terms.refusal()))
                    })
                }
            }
        })
    }
}

/// Says at the end what has come of the service, also if the exchange is cut.
struct ToldAtEnd<'a> {
    session: &'a ProcessorSession,
    notes: ReplyNotes,
}

impl Drop for ToldAtEnd<'_> {
    fn drop(&mut self) {
        if self.session.take_failure() {
            self.notes.note_service_failure(ExtProc::NAME);
        }
        tell_metadata(self.session, &self.notes);
    }
}

/// Says what metadata the service has sent since this was last said.
fn tell_metadata(session: &ProcessorSession, notes: &ReplyNotes) {
    notes.add_processor_metadata(session.take_variables());
}

struct ProcessedExchange<'a> {
    session: &'a ProcessorSession,
    /// The service may change them with its answers.
    modes: Cell<SentModes>,
    /// The method that is sent to the upstream.
    method: Cell<Method>,
    client: IpAddr,
    /// The shares of the content that is held, until the end.
    held: RefCell<Vec<Held>>,
    /// The response to the client has begun.
    has_begun: Cell<bool>,
}

impl ProcessedExchange<'_> {
    /// Runs both directions, until the response is complete.
    async fn run(
        &self,
        head: RequestHead,
        (told, replaced): (Option<HttpHeaders>, Option<Vec<u8>>),
        (mut content, upstream): (Content, Rc<dyn RouteUpstream>),
        reply: &mut Reply,
    ) -> Result<(), ProcessingEnd> {
        let (forwarded, answer) = oneshot::channel();
        let forward = UpstreamStart { upstream, forwarded, method: &self.method };
        let request = async {
            match replaced {
                Some(whole) => {
                    self.hold(whole.len())?;
                    forward.begin(head, ForwardedContent::Whole(whole));
                    while content.next().await.is_some() {}
                    Ok(())
                }
                None => self.request(head, told, &mut content, forward).await,
            }
        };
        let (mut request, mut response) = (pin!(request), pin!(self.response(answer, reply)));
        let mut is_sent = false;
        poll_fn(|context| {
            if !is_sent {
                match request.as_mut().poll(context) {
                    Poll::Ready(Ok(())) => is_sent = true,
                    Poll::Ready(Err(end)) => return Poll::Ready(Err(end)),
                    Poll::Pending => {}
                }
            }
            response.as_mut().poll(context)
        })
        .await
    }

    fn side(&self, direction: ProcessedDirection) -> ProcessedSide<'_> {
        let modes = self.modes.get();
        let parts = if direction == ProcessedDirection::Request { modes.request } else { modes.response };
        ProcessedSide { session: self.session, direction, parts }
    }

    /// Counts content that is held until the end of the exchange.
    fn hold(&self, bytes: usize) -> Result<(), Stop> {
        let mut held = Held::of(self.client);
        held.set(bytes as u64)?;
        self.held.borrow_mut().push(held);
        Ok(())
    }

    async fn beginning(
        &self,
        side: ProcessedSide<'_>,
        source: &mut impl ContentSource,
    ) -> Result<ContentBeginning, ProcessingEnd> {
        let mut held = Held::of(self.client);
        let beginning = side.beginning(source, &mut held).await?;
        self.held.borrow_mut().push(held);
        Ok(beginning)
    }

    async fn request(
        &self,
        mut head: RequestHead,
        told: Option<HttpHeaders>,
        content: &mut Content,
        forward: UpstreamStart<'_>,
    ) -> Result<(), ProcessingEnd> {
        let side = self.side(ProcessedDirection::Request);
        if !head.framing.has_body() {
            forward.begin(head, ForwardedContent::Nothing);
            return Ok(());
        }
        match side.parts.content {
            BodyMode::FullDuplexStreamed if side.session.is_open() => {
                self.duplex_request(head, told, content, forward).await?;
            }
            BodyMode::Buffered | BodyMode::BufferedPartial => {
                let beginning = self.beginning(side, content).await?;
                if !beginning.is_whole && side.parts.content == BodyMode::Buffered {
                    return Err(Stop::BodyTooLarge.into());
                }
                let ContentBeginning { bytes, is_whole } = beginning;
                let (changed, mutation) = side.content(bytes, is_whole).await?;
                self.hold(changed.len())?;
                self.apply_to_request(&mutation, &mut head)?;
                let trailers = content.take_trailers();
                if is_whole && trailers.is_empty() {
                    forward.begin(head, ForwardedContent::Whole(changed));
                    return Ok(());
                }
                let mut writer = forward.begin_pieces(head, None);
                writer.write(&changed).await;
                let trailers =
                    if is_whole { side.trailers(trailers).await? } else { side.copied(content, &mut writer).await? };
                writer.end(trailers);
            }
            BodyMode::Streamed => {
                let mut writer = forward.begin_pieces(head, None);
                let trailers = side.streamed(content, &mut writer).await?;
                writer.end(trailers);
            }
            BodyMode::None | BodyMode::FullDuplexStreamed => {
                let length = if let Framing::Sized(length) = head.framing { Some(length) } else { None };
                let mut writer = forward.begin_pieces(head, length);
                let trailers = side.copied(content, &mut writer).await?;
                writer.end(trailers);
            }
        }
        Ok(())
    }

    /// The service gets the content as it comes, perhaps before it answers to the head, and sends what takes its place.
    async fn duplex_request(
        &self,
        mut head: RequestHead,
        told: Option<HttpHeaders>,
        content: &mut Content,
        forward: UpstreamStart<'_>,
    ) -> Result<(), ProcessingEnd> {
        let side = self.side(ProcessedDirection::Request);
        let awaits_head = told.is_some();
        side.session.let_stream(ProcessedDirection::Request);
        if let Some(told) = told {
            side.session.send(RequestPart::RequestHeaders(told)).await;
        }
        let sent = RefCell::new(Trailers::default());
        let mut feed = pin!(side.feed(content, &sent));
        if awaits_head {
            let answer = beside(feed.as_mut(), self.head_answer(ProcessedDirection::Request)).await?;
            let mutation = self.session.terms().mutations.check(answer.response.header_mutation);
            self.apply_to_request(&self.checked(mutation)?, &mut head)?;
            if let Some(changed) = answer.mode_override.filter(|_| self.session.terms().allows_override) {
                let mut modes = self.modes.get();
                let overridden = modes.override_after_request(&changed).map_err(ProcessorFailure::Mode);
                self.checked(overridden)?;
                self.modes.set(SentModes { request: self.modes.get().request, ..modes });
            }
        }
        let mut writer = forward.begin_pieces(head, None);
        let trailers = beside(feed.as_mut(), side.drain(&mut writer, &sent)).await?;
        writer.end(trailers);
        Ok(())
    }

    /// The answer to a head whose content the service may have got already, so that the exchange cannot go on without it.
    async fn head_answer(&self, direction: ProcessedDirection) -> Result<ProcessorAnswer, ProcessingEnd> {
        let failure = match self.session.next(direction, ProcessedPart::Head).await {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => ProcessorFailure::Unfinished,
            Err(AskEnd::End(end)) => return Err(end),
            Err(AskEnd::Failure(failure)) => failure,
        };
        self.session.fail(&failure)?;
        Err(self.session.terms().refusal().into())
    }

    /// What is done if something in an answer is not valid: nothing, if failures are allowed.
    fn checked<T: Default, F: Into<ProcessorFailure>>(&self, value: Result<T, F>) -> Result<T, ProcessingEnd> {
        match value {
            Ok(value) => Ok(value),
            Err(failure) => {
                self.session.fail(&failure.into())?;
                Ok(T::default())
            }
        }
    }

    fn apply_to_request(&self, mutation: &Mutation, head: &mut RequestHead) -> Result<(), ProcessingEnd> {
        self.checked(mutation.apply_to_request(head))
    }

    async fn response(
        &self,
        answer: oneshot::Receiver<UpstreamAnswer>,
        reply: &mut Reply,
    ) -> Result<(), ProcessingEnd> {
        // Dropped without one only if the request ends the exchange.
        let mut answer = answer.await.map_err(|_| Stop::Internal)?;
        let mut head = answer.head().await?.end_to_end();
        let has_content = self.has_content(&head) && !answer.is_over();
        let came_as = head.status;
        let side = self.side(ProcessedDirection::Response);
        let is_duplex = side.parts.content == BodyMode::FullDuplexStreamed && has_content;
        if is_duplex {
            side.session.let_stream(ProcessedDirection::Response);
        }
        if side.parts.head && self.session.is_open() {
            let headers = Some(self.session.terms().forwarded.response(&head));
            let part = RequestPart::ResponseHeaders(HttpHeaders { headers, end_of_stream: !has_content });
            if is_duplex {
                side.session.send(part).await;
                return self.duplex_response(head, true, answer, reply).await;
            }
            if let Some(told) = side.session.ask(ProcessedDirection::Response, part).await?
                && let Some(whole) = self.decide_response(told, &mut head)?
            {
                self.hold(whole.len())?;
                self.begin(with_length(head, whole.len()), reply);
                reply.send(&whole).await;
                return Ok(());
            }
        }
        if !has_content {
            // With another status, the length would announce content that does not come.
            let head = if head.status == came_as { head } else { without_length(head) };
            self.begin(head, reply);
            let trailers = side.copied(&mut answer, reply).await?;
            reply.set_trailers(trailers);
            return Ok(());
        }
        if is_duplex && self.session.is_open() {
            return self.duplex_response(head, false, answer, reply).await;
        }
        self.response_content(head, answer, reply).await
    }

    /// Does what the service has said about the head; returns what takes the place of the content.
    fn decide_response(&self, told: ProcessorAnswer, head: &mut ReplyHead) -> Result<Option<Vec<u8>>, ProcessingEnd> {
        let ProcessorAnswer { mut response, mode_override, .. } = told;
        let mutation = self.session.terms().mutations.check(response.header_mutation.take());
        self.checked(self.checked(mutation)?.apply_to_response(head))?;
        if let Some(changed) = mode_override.filter(|_| self.session.terms().allows_override) {
            let mut modes = self.modes.get();
            self.checked(modes.override_after_response(&changed).map_err(ProcessorFailure::Mode))?;
            self.modes.set(modes);
        }
        Ok(replacement(response))
    }

    async fn response_content(
        &self,
        mut head: ReplyHead,
        mut answer: UpstreamAnswer,
        reply: &mut Reply,
    ) -> Result<(), ProcessingEnd> {
        let side = self.side(ProcessedDirection::Response);
        let mode = if self.session.is_open() { side.parts.content } else { BodyMode::None };
        let trailers = match mode {
            BodyMode::None => {
                self.begin(head, reply);
                side.copied(&mut answer, reply).await?
            }
            BodyMode::Streamed | BodyMode::FullDuplexStreamed => {
                self.begin(without_length(head), reply);
                side.streamed(&mut answer, reply).await?
            }
            BodyMode::Buffered | BodyMode::BufferedPartial => {
                let beginning = self.beginning(side, &mut answer).await?;
                let ContentBeginning { mut bytes, is_whole } = beginning;
                if !is_whole && mode == BodyMode::Buffered {
                    let most = self.session.terms().max_buffered_bytes;
                    self.session.fail(&ProcessorFailure::TooLong(most))?;
                } else {
                    let (changed, mutation) = side.content(bytes, is_whole).await?;
                    self.hold(changed.len())?;
                    self.checked(mutation.apply_to_response(&mut head))?;
                    bytes = changed;
                }
                let trailers = answer.take_trailers();
                let has_end = is_whole && trailers.is_empty();
                self.begin(if has_end { with_length(head, bytes.len()) } else { without_length(head) }, reply);
                reply.send(&bytes).await;
                if is_whole { side.trailers(trailers).await? } else { side.copied(&mut answer, reply).await? }
            }
        };
        reply.set_trailers(trailers);
        Ok(())
    }

    async fn duplex_response(
        &self,
        mut head: ReplyHead,
        awaits_head: bool,
        mut answer: UpstreamAnswer,
        reply: &mut Reply,
    ) -> Result<(), ProcessingEnd> {
        let side = self.side(ProcessedDirection::Response);
        let sent = RefCell::new(Trailers::default());
        let mut feed = pin!(side.feed(&mut answer, &sent));
        if awaits_head {
            let told = beside(feed.as_mut(), self.head_answer(ProcessedDirection::Response)).await?;
            self.decide_response(told, &mut head)?;
        }
        self.begin(without_length(head), reply);
        let trailers = beside(feed.as_mut(), side.drain(reply, &sent)).await?;
        reply.set_trailers(trailers);
        Ok(())
    }

    fn begin(&self, head: ReplyHead, reply: &mut Reply) {
        self.has_begun.set(true);
        tell_metadata(self.session, &reply.notes());
        reply.begin_with(head);
    }

    fn has_content(&self, head: &ReplyHead) -> bool {
        let is_empty = head.values(b"content-length").any(|length| length == b"0");
        self.method.get() != Method::Head && !matches!(head.status, 204 | 304) && !is_empty
    }
}

fn without_length(mut head: ReplyHead) -> ReplyHead {
    head.fields.retain(|(name, _)| **name != *b"content-length");
    head
}

fn with_length(head: ReplyHead, length: usize) -> ReplyHead {
    let mut head = without_length(head);
    head.fields.push((b"content-length"[..].into(), length.to_string().into_bytes().into()));
    head
}

/// Begins the request to the upstream.
struct UpstreamStart<'a> {
    upstream: Rc<dyn RouteUpstream>,
    method: &'a Cell<Method>,
    forwarded: oneshot::Sender<UpstreamAnswer>,
}

impl UpstreamStart<'_> {
    fn begin(self, head: RequestHead, content: ForwardedContent) {
        self.method.set(head.method);
        let answer = self.upstream.forward(head, content);
        // What waits for it has ended only with the exchange.
        let _ = self.forwarded.send(answer);
    }

    fn begin_pieces(self, head: RequestHead, length: Option<u64>) -> ContentWriter {
        let (writer, reader) = ContentWriter::new();
        self.begin(head, ForwardedContent::Pieces(reader, length));
        writer
    }
}
