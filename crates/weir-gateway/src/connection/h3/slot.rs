//! A stream of a request: what has been received of it, and what waits to be sent.

use std::task::{Poll, Waker};

use weir_net::quic::{Bytes, Connection, ReadError, StreamId, VarInt, WriteError};
use weir_proto::h3::{H3ErrorCode, H3Fault, H3MessageReader, MessageAhead, MessagePart};
use weir_proto::{Trailers, h2, h3};

use crate::context::buffers::Buffers;
use crate::message::sides::StreamLoss;
use crate::message::unsent::UnsentBytes;

/// A stream of a request.
pub(super) struct RequestSlot {
    pub reader: H3MessageReader,
    /// The section of a request that has no content in all likelihood, until that is known.
    pub head: Option<Vec<u8>>,
    /// A PRIORITY_UPDATE frame has been received for the stream.
    pub has_priority_update: bool,
    /// Received bytes that have not been read.
    pending: Bytes,
    tail: StreamTail,
    pub lost: Option<StreamLoss>,
    pub trailers: Trailers,
    /// Wakes the task that serves the request; `None` before its head has come.
    pub task: Option<Waker>,
    pub begun_ns: u64,
    unsent: UnsentBytes,
    /// Nothing follows the bytes that wait.
    ends: bool,
    /// The end of the response has been given to QUIC.
    pub finished: bool,
    /// The stream has become a tunnel: its bytes come when they come.
    pub is_tunnel: bool,
}

/// How far a stream has been received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamTail {
    Open,
    Ended,
    /// The client has given it up (RESET_STREAM).
    Reset,
}

/// What reading a stream came to.
pub(super) enum SlotPart {
    Head(Vec<u8>),
    HeadTooLong,
    /// So many bytes of content were copied.
    Content(usize),
    /// A frame without content.
    Empty,
    Trailers(Vec<u8>),
    End,
}

/// What follows the head of a request.
pub(super) enum SlotAhead {
    /// Nothing so far, and the stream goes on.
    Unknown,
    /// The end.
    End,
    /// Content or trailers.
    Part,
}

impl RequestSlot {
    pub(super) fn new(max_section: usize, now_ns: u64) -> RequestSlot {
        RequestSlot {
            reader: H3MessageReader::new(max_section),
            head: None,
            has_priority_update: false,
            pending: Bytes::new(),
            tail: StreamTail::Open,
            lost: None,
            trailers: Trailers::default(),
            task: None,
            begun_ns: now_ns,
            unsent: UnsentBytes::default(),
            ends: false,
            finished: false,
            is_tunnel: false,
        }
    }

    pub(super) fn wake(&self) {
        if let Some(task) = &self.task {
            task.wake_by_ref();
        }
    }

    pub(super) fn lose(&mut self, lost: StreamLoss) {
        self.lost.get_or_insert(lost);
        self.wake();
    }

    /// Reads up to the next part, with content into `buffer`, which is not empty. Reading opens the windows of flow control.
    pub(super) fn poll_part(
        &mut self,
        id: StreamId,
        quic: &mut Connection,
        buffer: &mut [u8],
    ) -> Poll<Result<SlotPart, H3Fault>> {
        loop {
            self.receive(id, quic);
            if self.pending.is_empty() {
                return match self.tail {
                    StreamTail::Open => Poll::Pending,
                    StreamTail::Ended => Poll::Ready(self.reader.end().map(|()| SlotPart::End)),
                    StreamTail::Reset => Poll::Ready(Err(H3Fault::Stream(H3ErrorCode::H3_REQUEST_CANCELLED))),
                };
            }
            // Content is never longer than the buffer.
            let window = &self.pending[..self.pending.len().min(buffer.len())];
            let mut rest = window;
            let part = match self.reader.next(&mut rest) {
                Err(fault) => return Poll::Ready(Err(fault)),
                Ok(None) => None,
                Ok(Some(MessagePart::Head(section))) => Some(SlotPart::Head(section)),
                Ok(Some(MessagePart::HeadTooLong)) => Some(SlotPart::HeadTooLong),
                Ok(Some(MessagePart::Empty)) => Some(SlotPart::Empty),
                Ok(Some(MessagePart::Trailers(section))) => Some(SlotPart::Trailers(section)),
                Ok(Some(MessagePart::Content(content))) => {
                    buffer[..content.len()].copy_from_slice(content);
                    Some(SlotPart::Content(content.len()))
                }
            };
            let read = window.len() - rest.len();
            self.pending = self.pending.split_off(read);
            if let Some(part) = part {
                return Poll::Ready(Ok(part));
            }
        }
    }

    /// Whether the message is whole, with nothing that has not been read.
    pub(super) fn poll_end(&mut self, id: StreamId, quic: &mut Connection) -> bool {
        self.receive(id, quic);
        self.has_ended()
    }

    /// Whether the message is whole as far as is known, with nothing that has not been read.
    pub(super) fn has_ended(&self) -> bool {
        self.tail == StreamTail::Ended && self.pending.is_empty() && self.reader.end().is_ok()
    }

    /// Reads what follows the head as far as it has no meaning. `each`: called for each such frame.
    pub(super) fn look_ahead(
        &mut self,
        id: StreamId,
        quic: &mut Connection,
        mut each: impl FnMut(),
    ) -> Result<SlotAhead, H3Fault> {
        loop {
            self.receive(id, quic);
            if self.pending.is_empty() {
                return match self.tail {
                    StreamTail::Open => Ok(SlotAhead::Unknown),
                    StreamTail::Ended => self.reader.end().map(|()| SlotAhead::End),
                    StreamTail::Reset => Err(H3Fault::Stream(H3ErrorCode::H3_REQUEST_CANCELLED)),
                };
            }
            let mut rest = &self.pending[..];
            let ahead = self.reader.look_ahead(&mut rest)?;
            let read = self.pending.len() - rest.len();
            self.pending = self.pending.split_off(read);
            match ahead {
                MessageAhead::Part => return Ok(SlotAhead::Part),
                MessageAhead::Empty => each(),
                MessageAhead::Nothing => {}
            }
        }
    }

    /// Bytes of sections that have come in part, or wait.
    pub(super) fn held_sections(&self) -> usize {
        self.reader.held() + self.head.as_ref().map_or(0, Vec::len)
    }

    /// Whether the client has reset the stream, so that the message will never be whole. What was received before is dropped.
    pub(super) fn is_reset(&mut self, id: StreamId, quic: &mut Connection) -> bool {
        if matches!(quic.recv_stream(id).received_reset(), Ok(Some(_))) {
            self.tail = StreamTail::Reset;
            self.pending = Bytes::new();
        }
        self.tail == StreamTail::Reset
    }

    /// Takes the next bytes from QUIC once those before have been read.
    fn receive(&mut self, id: StreamId, quic: &mut Connection) {
        if self.tail == StreamTail::Open && self.pending.is_empty() {
            match next_chunk(id, quic) {
                Ok(Some(bytes)) => self.pending = bytes,
                Ok(None) => self.tail = StreamTail::Ended,
                Err(ReadError::Blocked) => {}
                Err(ReadError::Reset(_)) => self.tail = StreamTail::Reset,
            }
        }
    }

    // ----- Sending -----

    pub(super) fn is_blocked(&self) -> bool {
        !self.unsent.is_empty()
    }

    pub(super) fn held(&self) -> usize {
        self.unsent.len()
    }

    /// Appends a frame that is written already.
    pub(super) fn append(&mut self, buffers: &Buffers, frame: &[u8]) {
        self.unsent.append(buffers, frame);
    }

    /// Appends content.
    pub(super) fn append_content(&mut self, buffers: &Buffers, content: &[u8]) {
        let mut head = Vec::with_capacity(9);
        h3::frame::write_head(&mut head, h3::frame::kind::DATA, content.len());
        self.unsent.append(buffers, &head);
        self.unsent.append(buffers, content);
    }

    /// Appends the trailers, if there are any: with them the message ends.
    pub(super) fn end(&mut self, buffers: &Buffers, trailers: Option<&Trailers>) {
        if let Some(trailers) = trailers.filter(|trailers| trailers.fields().next().is_some()) {
            let mut frame = Vec::new();
            h3::head::write_trailers(&mut frame, trailers);
            self.unsent.append(buffers, &frame);
        }
        self.ends = true;
    }

    /// Gives QUIC what it takes of the bytes that wait; returns their number.
    pub(super) fn flush(&mut self, id: StreamId, quic: &mut Connection, buffers: &Buffers) -> usize {
        let mut flushed = 0;
        while !self.unsent.is_empty() {
            match quic.send_stream(id).write(self.unsent.waiting()) {
                Ok(count) => {
                    flushed += count;
                    self.unsent.consume(buffers, count);
                }
                Err(WriteError::Blocked) => return flushed,
                Err(WriteError::Stopped(_) | WriteError::ClosedStream) => {
                    self.unsent.release(buffers);
                    self.lost.get_or_insert(StreamLoss::Reset(h2::ErrorCode::CANCEL));
                    return flushed;
                }
            }
        }
        if self.ends && !self.finished && self.lost.is_none() {
            // It fails only if the client has stopped the stream, which is reported otherwise.
            self.finished = quic.send_stream(id).finish().is_ok();
        }
        flushed
    }

    pub(super) fn release(&mut self, buffers: &Buffers) {
        self.unsent.release(buffers);
    }
}

/// The next bytes of a stream; `None` at its end.
pub(super) fn next_chunk(id: StreamId, quic: &mut Connection) -> Result<Option<Bytes>, ReadError> {
    let mut stream = quic.recv_stream(id);
    // It fails for a stream that this end has stopped, whose rest counts as given up.
    let Ok(mut chunks) = stream.read(true) else { return Err(ReadError::Reset(VarInt::from_u32(0))) };
    let chunk = chunks.next(usize::MAX);
    // What has to be sent for it is sent when the connection is driven next.
    let _ = chunks.finalize();
    chunk.map(|chunk| chunk.map(|chunk| chunk.bytes))
}
