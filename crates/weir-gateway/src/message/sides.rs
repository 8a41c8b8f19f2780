//! The two sides of an exchange, whatever protocols they speak. The stations between them are generic over both and
//! compiled for each pair, so that one protocol costs the others nothing.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use weir_net::stream::Stream;
use weir_net::timer::NEVER;
use weir_plugin::{Exchange, Stop};
use weir_proto::h1::{BadResponse, Limits};
use weir_proto::h2::ErrorCode;
use weir_proto::{ResponseHead, Trailers};

use crate::context::WorkerContext;
use crate::context::lifecycle::WorkerPhase;
use crate::message::forward::Coding;
use crate::snapshot::{ClientSettings, Endpoint, PassHost};

/// How a message leaves on a side. Heads and ends go through a buffer of the worker, in which a protocol that frames
/// its messages by bytes writes them; one that frames them otherwise keeps them until the next [`Sending::send`].
pub trait Sending {
    /// Ends the message, with trailers where they are wanted.
    fn end(&mut self, out: &mut Vec<u8>, coding: Coding, trailers: Option<&Trailers>);

    /// Sends what the peer takes of `bytes`, and keeps the rest in order; says how much was taken.
    fn send(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> io::Result<usize>;

    /// Something was kept. Until it has left, nothing more should come.
    fn is_blocked(&self) -> bool;

    /// Sends some of what was kept; ready with how much the peer took.
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>>;
}

/// What an exchange needs of its client.
pub trait ClientSide: Sending {
    type Pipe: Pipe;

    /// That of the worker that serves the client.
    fn context(&self) -> Rc<WorkerContext>;

    /// When the task is woken at the latest.
    fn set_deadline(&self, deadline_ns: u64);

    /// Received, and not used yet.
    fn stash(&mut self) -> &mut Vec<u8>;

    /// Reads of the request's content, framed as its head says; 0 is the end.
    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>>;

    /// The trailers that came with the end, where they do not stand in the content's framing.
    fn take_trailers(&mut self) -> Trailers;

    /// As many bytes of a response as are worth having for the client at once.
    fn room(&self) -> usize;

    /// Looks whether the client goes away while it is not its turn. Ready when it did something.
    fn poll_ahead(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>>;

    /// Nothing more will come from the client.
    fn ended(&self) -> bool;

    /// Some clients end their half and wait for the answer; others have gone. By this time they are taken to be gone.
    fn half_close_deadline_ns(&self, settings: &ClientSettings) -> u64;

    /// By this time the client wants to know how its call went, whatever may have become of it.
    fn call_deadline_ns(&self) -> u64 {
        NEVER
    }

    /// The half-close deadline by the configuration of now, while the exchange waits for its turn.
    fn leave_deadline_ns(&self) -> u64 {
        NEVER
    }

    /// Polled beside everything that is awaited on behalf of the client: ready when the client no longer needs it.
    /// Deadlines go by the worker's last reading of the clock, which is no older than a tick.
    fn poll_leave(&mut self, context: &mut Context<'_>) -> Poll<Stop> {
        let worker = self.context();
        if worker.phase() == WorkerPhase::Stopping {
            return Poll::Ready(Stop::Shutdown);
        }
        while let Poll::Ready(done) = self.poll_ahead(context) {
            if let Err(stop) = done {
                return Poll::Ready(stop);
            }
        }
        let (leave_ns, call_ns) = (self.leave_deadline_ns(), self.call_deadline_ns());
        if leave_ns <= worker.now_ns() {
            return Poll::Ready(Stop::ClientGone);
        }
        if call_ns <= worker.now_ns() {
            return Poll::Ready(Stop::CallTimeout);
        }
        self.set_deadline(leave_ns.min(call_ns));
        Poll::Pending
    }

    /// Begins the final response. `close` ends the connection after it.
    fn response_head(&mut self, out: &mut Vec<u8>, exchange: &mut Exchange, coding: Coding, close: bool);

    /// Puts a 1xx before it.
    fn interim_head(&mut self, out: &mut Vec<u8>, exchange: &mut Exchange);

    /// Agrees to the protocol the client has asked for.
    fn upgrade_head(&mut self, out: &mut Vec<u8>, exchange: &mut Exchange);

    /// What a tunnel moves bytes through.
    fn pipe(&mut self) -> &mut Self::Pipe;
}

pin_project! {
    /// Awaits something for an exchange, and gives up when the client leaves: see [`ClientSide::poll_leave`].
    ///
    /// Not an `async fn`, which would hold what it awaits twice: as its argument, and pinned.
    pub struct UntilClientLeaves<F, L> {
        #[pin]
        waiting: F,
        poll_leave: L,
    }
}

/// Makes one.
pub fn unless_left<T, F, L>(waiting: F, poll_leave: L) -> UntilClientLeaves<F, L>
where
    F: Future<Output = Result<T, Stop>>,
    L: FnMut(&mut Context<'_>) -> Poll<Stop>,
{
    UntilClientLeaves { waiting, poll_leave }
}

impl<T, F, L> Future for UntilClientLeaves<F, L>
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

/// What a request's head depends on beside the exchange.
#[derive(Clone, Copy)]
pub struct RequestTerms<'a> {
    pub pass_host: &'a PassHost,
    pub endpoint: &'a Endpoint,
    /// For the heads of responses.
    pub limits: &'a Limits,
}

/// What an exchange needs of its upstream.
pub trait UpstreamSide: Sending {
    fn addr(&self) -> SocketAddr;

    /// Begins the request; says how its content will travel.
    fn request_head(&mut self, out: &mut Vec<u8>, exchange: &Exchange, terms: &RequestTerms<'_>) -> Coding;

    /// Receives what there is of the response.
    fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
        response: &mut ResponseHead,
    ) -> Poll<io::Result<Received>>;

    /// The trailers that came with the end, where they do not stand in the content's framing.
    fn take_trailers(&mut self) -> Trailers;

    /// What has ended the exchange, where that is known better than by an error of a connection: a responder says it.
    fn stop(&self) -> Option<Stop> {
        None
    }

    /// The endpoint has answered, so another request may have the place.
    fn answered(&mut self);
}

/// The kind of error by which an upstream says that it has not looked at the request, so that it can be sent again.
pub const NOT_PROCESSED: io::ErrorKind = io::ErrorKind::ConnectionRefused;

/// Why nothing more comes of a stream of HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamLoss {
    /// The peer has reset it.
    Reset(ErrorCode),
    /// We had to, for what came on it.
    Failed(ErrorCode),
    /// The peer has not looked at it, and will not.
    NotProcessed,
    /// The connection has ended, or ends now.
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

/// What came from an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A whole head, where the protocol frames heads apart from content. It stands in the response, if it is good.
    Head(Result<(), BadResponse>),
    /// So many bytes of the response, as the protocol frames it.
    Bytes(usize),
    /// The end of it.
    End,
}

/// Bytes both ways, as a tunnel moves them.
pub trait Pipe {
    /// Reads into `buffer`; 0 is the end.
    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>>;
    /// Writes what the peer takes of `bytes`.
    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;
    /// Says that nothing more will be written.
    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
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
}
