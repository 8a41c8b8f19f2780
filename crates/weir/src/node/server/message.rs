//! Requests and responses of the node's own addresses, with what they may take.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};
use tokio::time::timeout;
use weir_net::tls::CertificateDer;

use super::bounds::{BODY, PIECE};
use super::peer::ServerPeer;
use super::places::{AnswerRoom, BodyRoom, BodyRoomFault, RequestProgress, ServerStreamPermit};
use super::progress::RequestPhase;
use super::stream::{AnswerStream, SharedStream};

/// The certificate of a client, which the TLS handshake has verified.
pub(crate) type PeerCertificate = Arc<CertificateDer<'static>>;

/// A request, with its body not yet read.
pub(crate) struct ServerRequest {
    pub head: Parts,
    pub body: ReceivedBody,
    pub peer: ServerPeer,
    /// `None` if the server asks for none.
    pub certificate: Option<PeerCertificate>,
    /// Whoever goes on to work for a request whose client has gone keeps this, so that the work counts as the client's.
    pub progress: Arc<RequestProgress>,
}

/// A request body.
pub(crate) struct ReceivedBody {
    incoming: Incoming,
    progress: Arc<RequestProgress>,
}

/// Why a request body was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceivedBodyFault {
    TooLarge,
    Incomplete,
    /// It was not complete after [`BODY`].
    TimedOut,
    /// The bodies of others take all the memory that there is for bodies.
    NoRoom,
}

impl ReceivedBody {
    pub(crate) fn new(incoming: Incoming, progress: Arc<RequestProgress>) -> ReceivedBody {
        ReceivedBody { incoming, progress }
    }

    /// Reads the body, of at most `most` bytes.
    pub(crate) async fn read(self, most: usize) -> Result<Bytes, ReceivedBodyFault> {
        self.progress.enter(RequestPhase::Receiving);
        let body = timeout(BODY, collect(self.incoming, most, self.progress.body_room())).await;
        self.progress.enter(RequestPhase::Working);
        body.unwrap_or(Err(ReceivedBodyFault::TimedOut))
    }
}

async fn collect(mut body: Incoming, most: usize, mut room: BodyRoom) -> Result<Bytes, ReceivedBodyFault> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| ReceivedBodyFault::Incomplete)?;
        let Ok(piece) = frame.into_data() else { continue };
        if bytes.len() + piece.len() > most {
            return Err(ReceivedBodyFault::TooLarge);
        }
        room.grow(piece.len()).await.map_err(|BodyRoomFault| ReceivedBodyFault::NoRoom)?;
        bytes.extend_from_slice(&piece);
    }
    Ok(Bytes::from_owner(HeldBytes { bytes, _held: room }))
}

/// Bytes that hold something, such as room, until all that share them have dropped them.
struct HeldBytes<B, H> {
    bytes: B,
    _held: H,
}

impl<B: AsRef<[u8]>, H> AsRef<[u8]> for HeldBytes<B, H> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

/// The body of a response.
pub(crate) enum ServerAnswer {
    Whole(Bytes),
    /// The response to a change that was made. `short` is sent if there is no room for the whole.
    Change {
        whole: Bytes,
        short: Bytes,
    },
    /// A body that has taken its room already.
    WithRoom(Bytes),
    Stream {
        permit: ServerStreamPermit,
        source: Box<dyn AnswerStream>,
        /// Sent in the stream if the server ends it.
        last_words: Bytes,
    },
}

/// A response that is being sent.
pub(super) enum AnswerBody {
    Whole {
        /// What is left to send; not empty.
        left: Option<Bytes>,
        /// The request, which the bytes have as well; `None` if it counts nowhere.
        progress: Option<Arc<RequestProgress>>,
    },
    Stream {
        stream: Arc<SharedStream>,
        progress: Arc<RequestProgress>,
        _permit: ServerStreamPermit,
    },
}

/// Prepares a response for sending. If there is no room for its body, the response is a 503, or the short one for a change.
pub(super) async fn sent(answer: Response<ServerAnswer>, progress: Arc<RequestProgress>) -> Response<AnswerBody> {
    let (head, body) = answer.into_parts();
    let body = match body {
        ServerAnswer::Whole(bytes) if bytes.is_empty() => AnswerBody::Whole { left: None, progress: Some(progress) },
        ServerAnswer::Whole(bytes) => match room_for(&bytes, &progress).await {
            Some(room) => sending(bytes, Some(room), progress),
            None => return refused(NO_ROOM),
        },
        // It does not wait: a client without an answer would believe that the change was not made.
        ServerAnswer::Change { whole, short } => match progress.try_answer_room(whole.len()) {
            Some(room) => sending(whole, Some(room), progress),
            None => sending(short, None, progress),
        },
        ServerAnswer::WithRoom(bytes) => sending(bytes, None, progress),
        ServerAnswer::Stream { permit, source, last_words } => {
            let stream = Arc::new(SharedStream::new(source, last_words));
            progress.enter(RequestPhase::Streaming { is_wanted: true, stream: Arc::clone(&stream) });
            AnswerBody::Stream { stream, progress, _permit: permit }
        }
    };
    Response::from_parts(head, body)
}

const NO_ROOM: &str =
    "responses that clients have not read yet take all the memory for responses; read yours, or try again later\n";

async fn room_for(bytes: &Bytes, progress: &RequestProgress) -> Option<AnswerRoom> {
    if let Some(room) = progress.try_answer_room(bytes.len()) {
        return Some(room);
    }
    progress.pause();
    progress.answer_room(bytes.len()).await
}

/// The body, with the room that it has taken. The request is in progress until it has been sent.
fn sending(bytes: Bytes, room: Option<AnswerRoom>, progress: Arc<RequestProgress>) -> AnswerBody {
    progress.enter(RequestPhase::Sending { is_large: bytes.len() > PIECE });
    let held = HeldBytes { bytes, _held: (room, Arc::clone(&progress)) };
    AnswerBody::Whole { left: Some(Bytes::from_owner(held)), progress: Some(progress) }
}

/// A response that the server gives itself, without asking the service: it has no room now.
pub(super) fn refused(problem: &'static str) -> Response<AnswerBody> {
    let mut answer = plain(StatusCode::SERVICE_UNAVAILABLE, problem);
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
    answer
}

/// The response to a request that the service does not see: a text.
pub(super) fn plain(status: StatusCode, problem: &'static str) -> Response<AnswerBody> {
    let left = Some(Bytes::from_static(problem.as_bytes()));
    let mut answer = Response::new(AnswerBody::Whole { left, progress: None });
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

fn next_piece(left: &mut Option<Bytes>) -> Option<Bytes> {
    let mut piece = left.take()?;
    if piece.len() > PIECE {
        *left = Some(piece.split_off(PIECE));
    }
    Some(piece)
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = match &mut *self {
            AnswerBody::Whole { left, progress } => {
                // The connection asks for the next piece when it has room: its client has taken a part of the former ones.
                progress.iter().for_each(|progress| progress.taken());
                Poll::Ready(next_piece(left))
            }
            AnswerBody::Stream { stream, progress, .. } => {
                let piece = stream.poll_piece(context);
                progress.set_wanted(piece.is_pending());
                piece
            }
        };
        piece.map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, AnswerBody::Whole { left: None, .. })
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AnswerBody::Whole { left, .. } => SizeHint::with_exact(left.as_ref().map_or(0, Bytes::len) as u64),
            AnswerBody::Stream { .. } => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_response_is_handed_over_piece_by_piece() {
        let mut left = Some(Bytes::from(vec![7; 2 * PIECE + 1]));
        let pieces: Vec<usize> = std::iter::from_fn(|| next_piece(&mut left)).map(|piece| piece.len()).collect();
        assert_eq!(pieces, [PIECE, PIECE, 1]);
        assert_eq!(left, None);
    }
}
