//! The content of one direction: on its way through the service, or past it.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use weir_plugin::proto::Trailers;
use weir_plugin::{Content, ContentWriter, Held, Reply, Stop, UpstreamAnswer};

use super::fields::Mutation;
use super::messages::{BodyChange, BodyMutation, HeaderMap, HttpBody, HttpTrailers, RequestPart};
use super::mode::SentParts;
use super::session::{AskEnd, ProcessedDirection, ProcessedPart, ProcessingEnd, ProcessorFailure, ProcessorSession};

/// Where content comes from.
pub(super) trait ContentSource {
    async fn piece(&mut self) -> Result<Option<Vec<u8>>, Stop>;
    fn trailers(&mut self) -> Trailers;
}

impl ContentSource for Content {
    async fn piece(&mut self) -> Result<Option<Vec<u8>>, Stop> {
        Ok(self.next().await)
    }

    fn trailers(&mut self) -> Trailers {
        self.take_trailers()
    }
}

impl ContentSource for UpstreamAnswer {
    async fn piece(&mut self) -> Result<Option<Vec<u8>>, Stop> {
        self.next().await
    }

    fn trailers(&mut self) -> Trailers {
        self.take_trailers()
    }
}

/// Where content goes.
pub(super) trait ContentSink {
    async fn put(&mut self, content: &[u8]);
}

impl ContentSink for ContentWriter {
    async fn put(&mut self, content: &[u8]) {
        self.write(content).await;
    }
}

impl ContentSink for Reply {
    async fn put(&mut self, content: &[u8]) {
        self.send(content).await;
    }
}

/// What has been read of content, up to a limit.
pub(super) struct ContentBeginning {
    pub bytes: Vec<u8>,
    pub is_whole: bool,
}

/// One direction of an exchange.
#[derive(Clone, Copy)]
pub(super) struct ProcessedSide<'a> {
    pub session: &'a ProcessorSession,
    pub direction: ProcessedDirection,
    pub parts: SentParts,
}

impl ProcessedSide<'_> {
    fn content_part(&self, body: Vec<u8>, end_of_stream: bool) -> RequestPart {
        let body = HttpBody { body, end_of_stream };
        match self.direction {
            ProcessedDirection::Request => RequestPart::RequestBody(body),
            ProcessedDirection::Response => RequestPart::ResponseBody(body),
        }
    }

    fn trailers_part(&self, trailers: HeaderMap) -> RequestPart {
        let trailers = HttpTrailers { trailers: Some(trailers) };
        match self.direction {
            ProcessedDirection::Request => RequestPart::RequestTrailers(trailers),
            ProcessedDirection::Response => RequestPart::ResponseTrailers(trailers),
        }
    }

    /// Whether the service gets these trailers.
    fn sends(&self, trailers: &Trailers) -> bool {
        self.parts.trailers && trailers.fields().next().is_some() && self.session.is_open()
    }

    /// Sends content to the service, and returns what takes its place, with changes of the head.
    pub(super) async fn content(&self, content: Vec<u8>, is_end: bool) -> Result<(Vec<u8>, Mutation), ProcessingEnd> {
        if !self.session.is_open() {
            return Ok((content, Mutation::default()));
        }
        let part = self.content_part(content.clone(), is_end);
        let Some(answer) = self.session.ask(self.direction, part).await? else {
            return Ok((content, Mutation::default()));
        };
        let changed = changed_content(answer.response.body_mutation);
        let mutation = self.session.terms().mutations.check(answer.response.header_mutation);
        match (changed, mutation.map_err(ProcessorFailure::Mutation)) {
            (Ok(changed), Ok(mutation)) => Ok((changed.unwrap_or(content), mutation)),
            (Err(failure), _) | (_, Err(failure)) => {
                self.session.fail(&failure)?;
                Ok((content, Mutation::default()))
            }
        }
    }

    /// Sends trailers to the service, if it gets them, and returns those that take their place.
    pub(super) async fn trailers(&self, mut trailers: Trailers) -> Result<Trailers, ProcessingEnd> {
        if !self.sends(&trailers) {
            return Ok(trailers);
        }
        let part = self.trailers_part(self.session.terms().forwarded.trailers(&trailers));
        if let Some(answer) = self.session.ask(self.direction, part).await? {
            match self.session.terms().mutations.check(answer.trailers) {
                Ok(mutation) => mutation.apply_to_trailers(&mut trailers),
                Err(bad) => self.session.fail(&ProcessorFailure::Mutation(bad))?,
            }
        }
        Ok(trailers)
    }

    /// Moves content past the service; its trailers may pass it.
    pub(super) async fn copied(
        &self,
        source: &mut impl ContentSource,
        sink: &mut impl ContentSink,
    ) -> Result<Trailers, ProcessingEnd> {
        while let Some(piece) = source.piece().await? {
            sink.put(&piece).await;
        }
        self.trailers(source.trailers()).await
    }

    /// Moves content through the service, each piece once the one before has been answered.
    pub(super) async fn streamed(
        &self,
        source: &mut impl ContentSource,
        sink: &mut impl ContentSink,
    ) -> Result<Trailers, ProcessingEnd> {
        while let Some(piece) = source.piece().await? {
            let (changed, _) = self.content(piece, false).await?;
            sink.put(&changed).await;
        }
        let trailers = source.trailers();
        if !self.sends(&trailers) {
            // The end is told apart from the last piece, after which more might have followed.
            let (rest, _) = self.content(Vec::new(), true).await?;
            sink.put(&rest).await;
        }
        self.trailers(trailers).await
    }

    /// Reads content up to the limit for what is held.
    pub(super) async fn beginning(
        &self,
        source: &mut impl ContentSource,
        held: &mut Held,
    ) -> Result<ContentBeginning, ProcessingEnd> {
        let most = self.session.terms().max_buffered_bytes;
        let mut bytes = Vec::new();
        while let Some(piece) = source.piece().await? {
            bytes.extend_from_slice(&piece);
            held.set(bytes.capacity() as u64).map_err(Stop::from)?;
            if bytes.len() > most {
                return Ok(ContentBeginning { bytes, is_whole: false });
            }
        }
        Ok(ContentBeginning { bytes, is_whole: true })
    }

    /// Sends all content to the service, which sends what takes its place whenever it likes. Trailers that it gets are kept in `sent`.
    pub(super) async fn feed(
        &self,
        source: &mut impl ContentSource,
        sent: &RefCell<Trailers>,
    ) -> Result<Infallible, ProcessingEnd> {
        while let Some(piece) = source.piece().await? {
            self.session.send(self.content_part(piece, false)).await;
        }
        let trailers = source.trailers();
        let end = match self.sends(&trailers) {
            true => self.trailers_part(self.session.terms().forwarded.trailers(&trailers)),
            false => self.content_part(Vec::new(), true),
        };
        sent.replace(trailers);
        self.session.send(end).await;
        // What is waited for beside it ends both.
        pending().await
    }

    /// Moves what the service sends in place of content, to its end. Returns the trailers.
    pub(super) async fn drain(
        &self,
        sink: &mut impl ContentSink,
        sent: &RefCell<Trailers>,
    ) -> Result<Trailers, ProcessingEnd> {
        loop {
            let failure = match self.session.next_after_head(self.direction).await {
                Ok(Some((ProcessedPart::Trailers, answer))) => {
                    let mut trailers = sent.take();
                    match self.session.terms().mutations.check(answer.trailers) {
                        Ok(mutation) => mutation.apply_to_trailers(&mut trailers),
                        Err(bad) => self.session.fail(&ProcessorFailure::Mutation(bad))?,
                    }
                    return Ok(trailers);
                }
                Ok(Some((_, answer))) => match answer.response.body_mutation.and_then(|mutation| mutation.change) {
                    Some(BodyChange::Streamed(HttpBody { body, end_of_stream })) => {
                        sink.put(&body).await;
                        if end_of_stream {
                            return Ok(sent.take());
                        }
                        continue;
                    }
                    _ => ProcessorFailure::NoContentChange("FULL_DUPLEX_STREAMED"),
                },
                Ok(None) => ProcessorFailure::Unfinished,
                Err(AskEnd::End(end)) => return Err(end),
                Err(AskEnd::Failure(failure)) => failure,
            };
            // Content that the service has got is not here any more, so the exchange cannot go on without it.
            self.session.fail(&failure)?;
            return Err(self.session.terms().refusal().into());
        }
    }
}

/// Waits for something while the service is fed.
pub(super) async fn beside<T>(
    mut feed: Pin<&mut impl Future<Output = Result<Infallible, ProcessingEnd>>>,
    waits: impl Future<Output = Result<T, ProcessingEnd>>,
) -> Result<T, ProcessingEnd> {
    let mut waits = pin!(waits);
    poll_fn(|context| match feed.as_mut().poll(context) {
        Poll::Ready(Ok(never)) => match never {},
        Poll::Ready(Err(end)) => Poll::Ready(Err(end)),
        Poll::Pending => waits.as_mut().poll(context),
    })
    .await
}

/// What an answer makes of a piece of content, or of all of it; `None` if it stays.
fn changed_content(mutation: Option<BodyMutation>) -> Result<Option<Vec<u8>>, ProcessorFailure> {
    match mutation.and_then(|mutation| mutation.change) {
        None | Some(BodyChange::Clear(false)) => Ok(None),
        Some(BodyChange::Body(body)) => Ok(Some(body)),
        Some(BodyChange::Clear(true)) => Ok(Some(Vec::new())),
        Some(BodyChange::Streamed(_)) => {
            Err(ProcessorFailure::NoContentChange("of this content; `streamed_response` is for FULL_DUPLEX_STREAMED"))
        }
    }
}
