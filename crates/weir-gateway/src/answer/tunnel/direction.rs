//! One direction of a tunnel.

use std::task::{Context, Poll, ready};

use weir_proto::websocket::FrameBoundary;

use crate::context::WorkerContext;
use crate::context::buffers::Buffers;
use crate::message::sides::Pipe;

/// Bytes from one side on their way to the other. At most one read is held, until the other side takes it.
#[derive(Default)]
pub(crate) struct Direction {
    held: Vec<u8>,
    /// The sender has closed.
    pub has_ended: bool,
    is_shut: bool,
    received: u64,
    sent: u64,
    /// The frame boundaries, if it is a WebSocket. Boxed, since the bytes of a stream have none.
    frames: Option<Box<FrameBoundary>>,
}

/// The end of a direction at which it broke.
#[derive(Debug)]
pub(crate) enum BrokenEnd {
    /// Its bytes could not be read.
    Sender,
    /// It does not take any more.
    Receiver,
}

impl Direction {
    /// `held`: bytes that were received before the tunnel began.
    pub(crate) fn new(held: Vec<u8>, is_websocket: bool) -> Direction {
        let mut frames = is_websocket.then(Box::<FrameBoundary>::default);
        frames.iter_mut().for_each(|frames| frames.pass(&held));
        Direction { received: held.len() as u64, held, frames, ..Direction::default() }
    }

    /// Whether the receiver's half is closed, after the sender's.
    pub(crate) fn is_shut(&self) -> bool {
        self.is_shut
    }

    /// The bytes received from the sender, and those that the receiver has taken.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.received, self.sent)
    }

    pub(crate) fn release(&mut self, buffers: &Buffers) {
        buffers.release(&mut self.held);
    }

    /// Whether the sender has closed, and the receiver has not taken the rest.
    pub(crate) fn is_leaving(&self) -> bool {
        self.has_ended && !self.is_shut
    }

    /// Whether a frame of the gateway can be inserted here: all that was received has been sent, up to the end of a frame.
    pub(crate) fn is_between_frames(&self) -> bool {
        self.held.is_empty() && !self.has_ended && self.frames.as_ref().is_some_and(|frames| frames.is_between_frames())
    }

    /// Sends a close frame and closes the receiver's half. What the receiver does not take at once is lost.
    pub(crate) fn leave(&mut self, context: &mut Context<'_>, to: &mut impl Pipe, word: &[u8]) {
        let _ = to.poll_write(context, word);
        let _ = to.poll_shutdown(context);
    }

    /// Moves bytes on; ready with how many the receiver took. When the sender has closed, the receiver's half is closed.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        worker: &WorkerContext,
        from: &mut impl Pipe,
        to: &mut impl Pipe,
    ) -> Poll<Result<usize, BrokenEnd>> {
        if !self.held.is_empty() {
            let Poll::Ready(count) = to.poll_write(context, &self.held).map_err(|_| BrokenEnd::Receiver)? else {
                from.poll_unread(context).map_err(|_| BrokenEnd::Sender)?;
                return Poll::Pending;
            };
            worker.buffers.consume(&mut self.held, count);
            self.sent += count as u64;
            return Poll::Ready(Ok(count));
        }
        if self.is_shut {
            return Poll::Pending;
        }
        if self.has_ended {
            ready!(to.poll_shutdown(context)).map_err(|_| BrokenEnd::Receiver)?;
            self.is_shut = true;
            return Poll::Ready(Ok(0));
        }
        worker.buffers.with_read_buffer(|buffer| {
            let count = ready!(from.poll_read(context, buffer)).map_err(|_| BrokenEnd::Sender)?;
            let bytes = &buffer[..count];
            self.received += count as u64;
            self.has_ended = bytes.is_empty();
            self.frames.iter_mut().for_each(|frames| frames.pass(bytes));
            let mut sent = 0;
            while sent < bytes.len() {
                match to.poll_write(context, &bytes[sent..]).map_err(|_| BrokenEnd::Receiver)? {
                    Poll::Ready(count) => sent += count,
                    Poll::Pending => break,
                }
            }
            worker.buffers.append_unread(&mut self.held, &bytes[sent..]);
            self.sent += sent as u64;
            Poll::Ready(Ok(sent))
        })
    }
}
