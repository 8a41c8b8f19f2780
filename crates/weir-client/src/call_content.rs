//! The content of a request.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

#[derive(Debug)]
pub(crate) enum CallContent {
    Whole(Full<Bytes>),
    Pieces(mpsc::Receiver<Bytes>),
}

impl Body for CallContent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            CallContent::Whole(whole) => Pin::new(whole).poll_frame(context),
            CallContent::Pieces(pieces) => pieces.poll_recv(context).map(|piece| piece.map(|it| Ok(Frame::data(it)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            CallContent::Whole(whole) => whole.is_end_stream(),
            CallContent::Pieces(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            CallContent::Whole(whole) => whole.size_hint(),
            CallContent::Pieces(_) => SizeHint::default(),
        }
    }
}
