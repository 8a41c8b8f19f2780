//! Requests a responder sends to the upstream of its route, on behalf of this process or of its client.

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use weir_proto::{RequestHead, Trailers};

use crate::reply_head::ReplyHead;
use crate::stop::Stop;

/// Limit of an answer's unread bytes. At the limit, nothing more is read from the upstream.
const MOST_WAITING: usize = 64 * 1024;
/// Limit of the bytes of a request's content that the upstream has not taken. At the limit, the responder waits.
const MOST_UNSENT: usize = 64 * 1024;

/// The upstream of a route, with its balancing, health, TLS, time-outs and retries. It belongs to one worker and to the
/// configuration of the request the responder serves.
pub trait RouteUpstream {
    /// Its name in the configuration, as in logs.
    fn name(&self) -> &str;

    /// Sends a request without content. Plugins of the route are not applied; the request is sent as it is, with the gateway as
    /// the client.
    fn send(&self, request: RequestHead) -> UpstreamAnswer;

    /// Like [`RouteUpstream::send`], but in the name of the client whose request the responder answers: forwarding fields are as if it
    /// had been forwarded, and so is the choice of the endpoint by what is known of client, consumer and request.
    fn forward(&self, request: RequestHead, content: ForwardedContent) -> UpstreamAnswer;
}

/// The content of a request that a responder forwards.
pub enum ForwardedContent {
    Nothing,
    /// It may be sent again, if the upstream allows another attempt.
    Whole(Vec<u8>),
    /// As it comes. With a length, it must be as long.
    Pieces(ContentReader, Option<u64>),
}

impl fmt::Debug for dyn RouteUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RouteUpstream")
    }
}

#[derive(Default)]
struct AnswerState {
    head: Option<ReplyHead>,
    content: Vec<u8>,
    trailers: Trailers,
    end: Option<Result<(), Stop>>,
    /// Woken when the head, content or the end has arrived.
    reader: Option<Waker>,
    /// Woken when content was read, or the reader was dropped.
    writer: Option<Waker>,
    is_abandoned: bool,
}

/// The answer of an upstream, as a stream. Dropping it cancels the request.
pub struct UpstreamAnswer(Rc<RefCell<AnswerState>>);

impl UpstreamAnswer {
    /// The head of the answer.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn head(&mut self) -> Result<ReplyHead, Stop> {
        poll_fn(|context| {
            let mut state = self.0.borrow_mut();
            match (state.head.take(), state.end) {
                (Some(head), _) => Poll::Ready(Ok(head)),
                (None, Some(end)) => Poll::Ready(Err(end.err().unwrap_or(Stop::Internal))),
                (None, None) => wait(&mut state.reader, context),
            }
        })
        .await
    }

    /// The next piece of content; `None` at the end.
    ///
    /// # Errors
    /// Why the answer is incomplete.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Stop> {
        poll_fn(|context| {
            let mut state = self.0.borrow_mut();
            if !state.content.is_empty() {
                let content = std::mem::take(&mut state.content);
                wake(&mut state.writer);
                return Poll::Ready(Ok(Some(content)));
            }
            match state.end {
                Some(end) => Poll::Ready(end.map(|()| None)),
                None => wait(&mut state.reader, context),
            }
        })
        .await
    }

    /// The whole answer has come, and there is no content to be read of it.
    pub fn is_over(&self) -> bool {
        let state = self.0.borrow();
        state.end.is_some() && state.content.is_empty()
    }

    /// The trailers. They are known once [`UpstreamAnswer::next`] has returned `None`.
    pub fn take_trailers(&mut self) -> Trailers {
        std::mem::take(&mut self.0.borrow_mut().trailers)
    }
}

impl Drop for UpstreamAnswer {
    fn drop(&mut self) {
        let mut state = self.0.borrow_mut();
        state.is_abandoned = true;
        wake(&mut state.writer);
    }
}

/// The gateway's side of an answer.
pub struct AnswerWriter(Rc<RefCell<AnswerState>>);

impl AnswerWriter {
    pub fn new() -> (AnswerWriter, UpstreamAnswer) {
        let state = Rc::<RefCell<AnswerState>>::default();
        (AnswerWriter(Rc::clone(&state)), UpstreamAnswer(state))
    }

    pub fn begin(&self, head: ReplyHead) {
        let mut state = self.0.borrow_mut();
        state.head = Some(head);
        wake(&mut state.reader);
    }

    pub fn write(&self, content: &[u8]) {
        let mut state = self.0.borrow_mut();
        state.content.extend_from_slice(content);
        wake(&mut state.reader);
    }

    /// Sets the trailers, before the end.
    pub fn set_trailers(&self, trailers: &Trailers) {
        self.0.borrow_mut().trailers.clone_from(trailers);
    }

    /// The reader is behind: no more should be written before it has read.
    pub fn is_full(&self) -> bool {
        self.0.borrow().content.len() >= MOST_WAITING
    }

    /// The reader was dropped.
    pub fn is_abandoned(&self) -> bool {
        self.0.borrow().is_abandoned
    }

    /// Sets the task to wake when content was read, or the reader was dropped.
    pub fn watch(&self, context: &Context<'_>) {
        let mut state = self.0.borrow_mut();
        if state.writer.as_ref().is_none_or(|writer| !writer.will_wake(context.waker())) {
            state.writer = Some(context.waker().clone());
        }
    }

    /// Ends the answer, complete or not.
    pub fn end(self, end: Result<(), Stop>) {
        self.0.borrow_mut().end = Some(end);
    }
}

impl Drop for AnswerWriter {
    fn drop(&mut self) {
        let mut state = self.0.borrow_mut();
        // Dropped without a call of `end`: the worker shuts down.
        state.end.get_or_insert(Err(Stop::Shutdown));
        wake(&mut state.reader);
    }
}

#[derive(Default)]
struct ForwardedState {
    content: Vec<u8>,
    trailers: Trailers,
    /// The content is complete.
    is_ended: bool,
    /// The writer was dropped.
    is_abandoned: bool,
    /// Nothing reads any more.
    is_refused: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// Writes the content of a forwarded request. If it is dropped before the end, the request is given up.
pub struct ContentWriter(Rc<RefCell<ForwardedState>>);

impl ContentWriter {
    pub fn new() -> (ContentWriter, ContentReader) {
        let state = Rc::<RefCell<ForwardedState>>::default();
        (ContentWriter(Rc::clone(&state)), ContentReader(state))
    }

    /// Appends content once there is room for it. Content that the upstream does not want any more is discarded.
    pub async fn write(&self, content: &[u8]) {
        poll_fn(|context| {
            let mut state = self.0.borrow_mut();
            if state.is_refused {
                return Poll::Ready(());
            }
            if state.content.len() >= MOST_UNSENT {
                return wait(&mut state.writer, context);
            }
            state.content.extend_from_slice(content);
            wake(&mut state.reader);
            Poll::Ready(())
        })
        .await;
    }

    /// Ends the content.
    pub fn end(self, trailers: Trailers) {
        let mut state = self.0.borrow_mut();
        (state.is_ended, state.trailers) = (true, trailers);
        wake(&mut state.reader);
    }
}

impl Drop for ContentWriter {
    fn drop(&mut self) {
        let mut state = self.0.borrow_mut();
        state.is_abandoned = true;
        wake(&mut state.reader);
    }
}

/// The gateway's side of the content of a forwarded request.
pub struct ContentReader(Rc<RefCell<ForwardedState>>);

impl ContentReader {
    /// Reads into `buffer`; 0 is the end.
    ///
    /// # Errors
    /// The content breaks off.
    pub fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<std::io::Result<usize>> {
        let mut state = self.0.borrow_mut();
        if state.content.is_empty() {
            return match (state.is_ended, state.is_abandoned) {
                (true, _) => Poll::Ready(Ok(0)),
                (false, true) => Poll::Ready(Err(std::io::ErrorKind::BrokenPipe.into())),
                (false, false) => wait(&mut state.reader, context),
            };
        }
        let count = state.content.len().min(buffer.len());
        buffer[..count].copy_from_slice(&state.content[..count]);
        state.content.drain(..count);
        wake(&mut state.writer);
        Poll::Ready(Ok(count))
    }

    pub fn take_trailers(&mut self) -> Trailers {
        std::mem::take(&mut self.0.borrow_mut().trailers)
    }
}

impl Drop for ContentReader {
    fn drop(&mut self) {
        let mut state = self.0.borrow_mut();
        state.is_refused = true;
        wake(&mut state.writer);
    }
}

fn wait<T>(waiting: &mut Option<Waker>, context: &Context<'_>) -> Poll<T> {
    *waiting = Some(context.waker().clone());
    Poll::Pending
}

fn wake(waiting: &mut Option<Waker>) {
    if let Some(waker) = waiting.take() {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn poll<T>(future: impl Future<Output = T>) -> Poll<T> {
        std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn answer_is_read_while_it_is_written() {
        let (writer, mut answer) = AnswerWriter::new();
        assert!(poll(answer.head()).is_pending());
        writer.begin(ReplyHead { status: 200, fields: Vec::new() });
        assert!(matches!(poll(answer.head()), Poll::Ready(Ok(ReplyHead { status: 200, .. }))));
        assert!(poll(answer.next()).is_pending());
        writer.write(b"a");
        writer.write(b"b");
        writer.end(Err(Stop::UpstreamAborted));
        assert_eq!(poll(answer.next()), Poll::Ready(Ok(Some(b"ab".to_vec()))));
        assert_eq!(poll(answer.next()), Poll::Ready(Err(Stop::UpstreamAborted)));
    }

    #[test]
    fn a_writer_that_is_dropped_ends_the_answer() {
        let (writer, mut answer) = AnswerWriter::new();
        drop(writer);
        assert!(matches!(poll(answer.head()), Poll::Ready(Err(Stop::Shutdown))));
    }

    #[test]
    fn a_writer_knows_when_it_is_full_and_when_its_reader_is_gone() {
        let (writer, mut answer) = AnswerWriter::new();
        writer.write(&[0; MOST_WAITING]);
        assert!(writer.is_full());
        assert!(poll(answer.next()).is_ready());
        assert!(!writer.is_full() && !writer.is_abandoned());
        drop(answer);
        assert!(writer.is_abandoned());
    }

    #[test]
    fn content_is_read_while_it_is_written_and_its_writer_waits_for_room() {
        let (writer, mut reader) = ContentWriter::new();
        let mut buffer = [0; 8];
        let mut read =
            |reader: &mut ContentReader| reader.poll_read(&mut Context::from_waker(Waker::noop()), &mut buffer);
        assert!(read(&mut reader).is_pending());
        assert!(poll(writer.write(b"abc")).is_ready());
        assert!(matches!(read(&mut reader), Poll::Ready(Ok(3))));
        assert!(poll(writer.write(&[0; MOST_UNSENT])).is_ready());
        assert!(poll(writer.write(b"more")).is_pending());
        while matches!(read(&mut reader), Poll::Ready(Ok(8))) {}
        assert!(poll(writer.write(b"more")).is_ready());
        writer.end(Trailers::default());
        assert!(matches!(read(&mut reader), Poll::Ready(Ok(4))));
        assert!(matches!(read(&mut reader), Poll::Ready(Ok(0))));
    }

    #[test]
    fn content_whose_writer_is_dropped_breaks_off_and_content_that_nothing_reads_is_discarded() {
        let (writer, mut reader) = ContentWriter::new();
        drop(writer);
        assert!(matches!(reader.poll_read(&mut Context::from_waker(Waker::noop()), &mut [0; 8]), Poll::Ready(Err(_))));
        let (writer, reader) = ContentWriter::new();
        assert!(poll(writer.write(&[0; MOST_UNSENT])).is_ready());
        drop(reader);
        assert!(poll(writer.write(b"more")).is_ready());
    }
}
