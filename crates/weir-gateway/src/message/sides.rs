//! The two sides of an exchange, as traits that each protocol implements. The code between them is generic over both and
//! compiled for each pair, so that one protocol costs the others nothing.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use weir_net::kernel_pipe::KernelPipe;
use weir_net::stream::Stream;
use weir_net::timer::NEVER;
use weir_plugin::{Exchange, Stop};
use weir_proto::h1::{BadResponse, Limits};
use weir_proto::h2::ErrorCode;
use weir_proto::{ResponseHead, Trailers};

use crate::context::WorkerContext;
use crate::context::lifecycle::{ServicePhase, WorkerPhase};
use crate::message::deadlines;
use crate::message::forward::HopFraming;
use crate::snapshot::{ClientSettings, Endpoint, PassHost};

/// How a message is sent on a side. HTTP/1 writes heads and ends into `out`, a buffer of the worker; a protocol with frames
/// of its own keeps them until the next [`Sending::send`].
pub(crate) trait Sending {
    /// Ends the message, with trailers if there are any.
    fn end(&mut self, out: &mut Vec<u8>, coding: HopFraming, trailers: Option<&Trailers>);

    /// Sends what the peer takes of `bytes`, and keeps the rest in order; returns how many were taken.
    fn send(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> io::Result<usize>;

    /// Whether bytes are kept. Until they are sent, no more should be added.
    fn is_blocked(&self) -> bool;

    /// Sends some of the kept bytes; ready with how many the peer took.
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>>;
}

/// What an exchange needs of its client.
pub(crate) trait ClientSide: Sending {
    /// See [`UpstreamSide::MARKS_END`].
    const MARKS_END: bool = false;

    /// Whether the request's content must come at the minimum rate of clients.
    const HAS_MINIMUM_RATE: bool = true;

    /// Whether the response must be taken within the write time-out of clients.
    const HAS_WRITE_TIMEOUT: bool = true;

    type Pipe: Pipe;

    /// The context of the worker that serves the client.
    fn context(&self) -> Rc<WorkerContext>;

    /// The phase of the listener that has accepted the client.
    fn service(&self) -> &ServicePhase;

    /// Sets the time at which the task is woken at the latest.
    fn set_deadline(&self, deadline_ns: u64);

    /// Bytes received and not used yet.
    fn unread_bytes(&mut self) -> &mut Vec<u8>;

    /// Reads the request's body, in the framing that its head names; 0 is the end.
    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>>;

    /// The trailers, if the protocol sends them outside the body's framing (HTTP/2).
    fn take_trailers(&mut self) -> Trailers;

    /// Whether the end of the request has been received, and all of its content taken. Asked only with [`Self::MARKS_END`].
    fn has_ended(&self) -> bool {
        false
    }

    /// The most bytes of a response that should be read from the upstream at once.
    fn room(&self) -> usize;

    /// Reads ahead to see whether the client goes away while the exchange waits for something else. Ready if it read
    /// something.
    fn poll_read_ahead(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>>;

    /// Whether the client has closed its sending side. The end of a stream among others does not mean that.
    fn ended(&self) -> bool {
        false
    }

    /// Whether another request may follow on the connection: the client has not closed its sending side, or has sent more before
    /// than the rest of this request's body, which is this long.
    fn may_ask_again(&mut self, rest: u64) -> bool {
        !self.ended() || self.unread_bytes().len() as u64 > rest
    }

    /// A client that has closed its sending side may still wait for the response, or be gone. After this time it counts as
    /// gone.
    fn half_close_deadline_ns(&self, _: &ClientSettings) -> u64 {
        NEVER
    }

    /// The deadline that the client set for its call (gRPC), at which it wants a status in any case.
    fn call_deadline_ns(&self) -> u64 {
        NEVER
    }

    /// The half-close deadline by the current configuration, while the exchange waits for a permit or a plugin.
    fn waiting_half_close_deadline_ns(&self) -> u64 {
        NEVER
    }

    /// Polled beside everything that is awaited for the client: ready with the reason once that is no longer needed.
    /// Deadlines are compared with the worker's last reading of the clock, which is at most one timer tick old.
    fn poll_leave(&mut self, context: &mut Context<'_>) -> Poll<Stop> {
        let worker = self.context();
        if self.service().phase() == WorkerPhase::Stopping {
            return Poll::Ready(Stop::Shutdown);
        }
        while let Poll::Ready(done) = self.poll_read_ahead(context) {
            if let Err(stop) = done {
                return Poll::Ready(stop);
            }
        }
        let leave = (self.waiting_half_close_deadline_ns(), Stop::ClientGone);
        let call = (self.call_deadline_ns(), Stop::CallTimeout);
        match deadlines::earliest_ns(worker.now_ns(), [leave, call]) {
            Ok(until_ns) => self.set_deadline(until_ns),
            Err(stop) => return Poll::Ready(stop),
        }
        Poll::Pending
    }

    /// Begins the final response. `close` ends the connection after it.
    fn response_head(&mut self, out: &mut Vec<u8>, exchange: &mut Exchange, coding: HopFraming, close: bool);

    /// Sends an interim (1xx) head before the final response.
    fn interim_head(&mut self, out: &mut Vec<u8>, exchange: &mut Exchange);

    /// Accepts the protocol upgrade that the client asked for.
    fn upgrade_head(&mut self, out: &mut Vec<u8>, exchange: &mut Exchange);

    /// The byte stream that a tunnel uses after an upgrade.
    fn pipe(&mut self) -> &mut Self::Pipe;
}

pin_project! {
    /// Awaits a future for an exchange, and gives up when the client leaves: see [`ClientSide::poll_leave`].
    ///
    /// Not an `async fn`, whose future would hold the awaited one twice: as its argument, and pinned.
    pub struct UntilClientDisconnects<F, L> {
        #[pin]
        waiting: F,
        poll_leave: L,
    }
}

/// Builds an [`UntilClientDisconnects`].
pub(crate) fn until_client_disconnects<T, F, L>(waiting: F, poll_leave: L) -> UntilClientDisconnects<F, L>
where
    F: Future<Output = Result<T, Stop>>,
    L: FnMut(&mut Context<'_>) -> Poll<Stop>,
{
    UntilClientDisconnects { waiting, poll_leave }
}

impl<T, F, L> Future for UntilClientDisconnects<F, L>
where
    F: Future<Output = Result<T, Stop>>,
    L: FnMut(&mut Context<'_>) -> Poll<Stop>,
{
    type Output = Result<T, Stop>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, Stop>> {
        let this = self.project();
        match this.waiting.poll(context) {
            Poll::Pending => (this.poll_leave)(context).map(Err),
            done => done,
        }
    }
}

/// What the request's head depends on beside the exchange.
#[derive(Clone, Copy)]
pub(crate) struct RequestTerms<'a> {
    pub pass_host: &'a PassHost,
    pub endpoint: &'a Endpoint,
    /// The limits for the heads of responses.
    pub limits: &'a Limits,
}

/// What an exchange needs of its upstream.
pub(crate) trait UpstreamSide: Sending {
    /// Whether the protocol marks the end of a message apart from its content, also where that has a length (HTTP/2).
    const MARKS_END: bool = false;

    fn addr(&self) -> SocketAddr;

    /// Begins the request; returns how its body is framed.
    fn write_request_head(&mut self, out: &mut Vec<u8>, exchange: &Exchange, terms: &RequestTerms<'_>) -> HopFraming;

    /// Receives the next part of the response.
    fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
        response: &mut ResponseHead,
    ) -> Poll<io::Result<Received>>;

    /// Called with a head that came parsed, before plugins see it: a responder says what its service has told.
    fn note_told(&mut self, _: &mut Exchange) {}

    /// The trailers, if the protocol sends them outside the body's framing (HTTP/2).
    fn take_trailers(&mut self) -> Trailers;

    /// Whether the end of the response has been received, and all of its content taken. Asked only with [`Self::MARKS_END`].
    fn has_ended(&self) -> bool {
        false
    }

    /// Called while the client does not take what it is sent.
    ///
    /// # Errors
    /// The response is given up.
    fn poll_unread(&mut self, _: &mut Context<'_>) -> Result<(), Stop> {
        Ok(())
    }

    /// The content of the response is complete, and its end is no longer waited for.
    fn give_up_end(&mut self) {}

    /// The response is read slowly, whatever its length: its endpoint should not send much ahead (HTTP/2).
    fn keep_window(&mut self) {}

    /// Why the exchange ended, if this side knows it better than the `io::Error` tells: a responder does.
    fn stop(&self) -> Option<Stop> {
        None
    }

    /// Called when the endpoint has answered: its permit can be given to another exchange.
    fn answered(&mut self);
}

/// The kind of error that means that the upstream has not processed the request, so that it can be sent again.
pub(crate) const NOT_PROCESSED: io::ErrorKind = io::ErrorKind::ConnectionRefused;

/// Why an HTTP/2 stream has ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamLoss {
    /// The peer has reset the stream.
    Reset(ErrorCode),
    /// The gateway has reset the stream because of an error on it.
    Failed(ErrorCode),
    /// The peer has not processed the stream, and will not.
    NotProcessed,
    /// The connection has ended, or is about to.
    Connection,
}

impl std::fmt::Display for StreamLoss {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StreamLoss::Reset(code) => write!(out, "the peer has reset the stream: {}", code.name()),
            StreamLoss::Failed(code) => write!(out, "the stream was reset because of an error on it: {}", code.name()),
            StreamLoss::NotProcessed => out.write_str("the peer closed the connection without processing the stream"),
            StreamLoss::Connection => out.write_str("the connection has ended"),
        }
    }
}

impl std::error::Error for StreamLoss {}

impl From<StreamLoss> for io::Error {
    fn from(lost: StreamLoss) -> io::Error {
        match lost {
            StreamLoss::NotProcessed | StreamLoss::Reset(ErrorCode::REFUSED_STREAM) => NOT_PROCESSED.into(),
            lost => io::Error::other(lost),
        }
    }
}

/// What was received from an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// A whole head, from a protocol that frames heads apart from content. The response holds it if it is valid.
    Head(Result<(), BadResponse>),
    /// Bytes of the response in the buffer, in the protocol's own framing.
    Bytes(usize),
    /// The end of the response.
    End,
}

/// A byte stream in both directions, for a tunnel.
pub(crate) trait Pipe {
    /// Reads into `buffer`; 0 is the end.
    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>>;
    /// Writes what the peer takes of `bytes`.
    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;
    /// Closes the writing side.
    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// See [`Stream::read_on`].
    fn read_on(&mut self, _: &mut [u8]) -> Option<io::Result<usize>> {
        None
    }
    /// Writes bytes after which the writing side is closed at once.
    fn poll_write_last(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write(context, bytes)
    }
    /// Whether the transport has all that was written: the rest is lost if the tunnel ends.
    fn is_flushed(&self) -> bool {
        true
    }
    /// Whether its bytes are those of a socket, so that the kernel can move them by itself: [`Self::poll_fill`] and
    /// [`Self::poll_drain`] may be called, and dropping it tells the peer the same as closing the writing side.
    fn is_plain(&self) -> bool {
        false
    }
    /// See [`Stream::poll_fill`].
    fn poll_fill(&mut self, _: &mut Context<'_>, _: &mut KernelPipe) -> Poll<usize> {
        unreachable!("it is not plain")
    }
    /// See [`Stream::poll_drain`].
    fn poll_drain(&mut self, _: &mut Context<'_>, _: &mut KernelPipe) -> Poll<io::Result<usize>> {
        unreachable!("it is not plain")
    }
    /// Called while the other side does not take what was read.
    ///
    /// # Errors
    /// The tunnel is given up.
    fn poll_unread(&mut self, _: &mut Context<'_>) -> io::Result<()> {
        Ok(())
    }
}

impl Pipe for Stream {
    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        Stream::poll_read(self, context, buffer)
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Stream::poll_write(self, context, bytes)
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Stream::poll_shutdown(self, context)
    }

    fn read_on(&mut self, buffer: &mut [u8]) -> Option<io::Result<usize>> {
        Stream::read_on(self, buffer)
    }

    fn poll_write_last(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Stream::poll_write_last(self, context, bytes)
    }

    fn is_plain(&self) -> bool {
        Stream::is_plain(self)
    }

    fn poll_fill(&mut self, context: &mut Context<'_>, pipe: &mut KernelPipe) -> Poll<usize> {
        Stream::poll_fill(self, context, pipe)
    }

    fn poll_drain(&mut self, context: &mut Context<'_>, pipe: &mut KernelPipe) -> Poll<io::Result<usize>> {
        Stream::poll_drain(self, context, pipe)
    }
}
