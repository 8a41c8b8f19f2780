//! Writes frames to the peer.

use super::{Connection, Role};
use crate::field_sink::{FieldSink, in_lower_case};
use crate::h2::frame::{self, END_STREAM, ErrorCode, HEAD, MAX_STREAM_ID, MOST, kind};
use crate::h2::hpack::Encoder;
use crate::h2::priority::Priority;
use crate::h2::streams::{Progress, StreamEnd, StreamState};
use crate::h2::window::{ReceiveWindow, SendWindow};
use crate::method::Method;
use crate::trailers::Trailers;

/// Encodes the fields of one section.
pub struct FieldWriter<'w> {
    encoder: &'w mut Encoder,
    out: &'w mut Vec<u8>,
    bytes: usize,
}

impl FieldWriter<'_> {
    /// Appends a field; the name is converted to lower case.
    pub fn add(&mut self, name: &[u8], value: &[u8]) {
        self.add_as(name, value, false);
    }

    /// The same; with `never_indexed` no table holds the field, here or further on (RFC 7541 §6.2.3).
    pub fn add_as(&mut self, name: &[u8], value: &[u8], never_indexed: bool) {
        self.bytes += name.len() + value.len() + 4;
        // §8.2.1
        in_lower_case(name, |name| match never_indexed {
            false => self.encoder.field(name, value, self.out),
            true => self.encoder.never_indexed(name, value, self.out),
        });
    }
}

impl FieldSink for FieldWriter<'_> {
    fn add_as(&mut self, name: &[u8], value: &[u8], never_indexed: bool) {
        FieldWriter::add_as(self, name, value, never_indexed);
    }
}

/// A head that was written to the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Offset of its frame in the output.
    at: usize,
    /// The size of its fields as HTTP/1 lines, in bytes.
    pub bytes: usize,
}

impl Connection {
    /// Sends the head of a response; below status 200 it is interim. Nothing is sent if the stream is closed, or a final head
    /// was sent.
    pub fn respond(&mut self, id: u32, status: u16, ended: bool, fields: impl FnOnce(&mut FieldWriter<'_>)) -> Sent {
        let Some(stream) = self.streams.get_mut(id).filter(|stream| stream.sending == Progress::Head) else {
            return Sent { at: usize::MAX, bytes: 0 };
        };
        if status >= 200 {
            stream.sending = Progress::Content;
        }
        let sent = self.section(id, ended, |writer| {
            writer.encoder.status(status, writer.out);
            fields(writer);
        });
        if ended {
            self.sent_all(id);
        }
        sent
    }

    /// Sets END_STREAM on a head that is still in the output, in place of an empty DATA frame.
    pub fn end_with_head(&mut self, id: u32, sent: Sent) {
        if let Some(flags) = self.out.get_mut(sent.at.saturating_add(4)) {
            *flags |= END_STREAM;
            self.sent_all(id);
        }
    }

    /// Whether another request may be sent now (§5.1.2).
    pub fn may_request(&self) -> bool {
        self.role == Role::Client
            && !self.goaway_received
            && self.streams.len() < self.peer.concurrent_streams as usize
            && self.next_own <= MAX_STREAM_ID
    }

    /// Sends the head of a request; returns the stream's number. `None` if [`Connection::may_request`] is false.
    pub fn request(
        &mut self,
        key: usize,
        method: Method,
        ended: bool,
        fields: impl FnOnce(&mut FieldWriter<'_>),
    ) -> Option<(u32, Sent)> {
        if !self.may_request() {
            return None;
        }
        let id = self.next_own;
        self.next_own += 2;
        self.streams.add(StreamState {
            id,
            key,
            receiving: Progress::Head,
            sending: Progress::Content,
            receive: ReceiveWindow::new(self.bounds.stream_window),
            send: SendWindow::new(self.peer.initial_window),
            content_left: None,
            priority: Priority::default(),
            method,
        });
        let sent = self.section(id, ended, fields);
        if ended {
            self.sent_all(id);
        }
        Some((id, sent))
    }

    /// Sends trailers, which end the message.
    pub fn send_trailers(&mut self, id: u32, trailers: &Trailers) {
        if !self.streams.get(id).is_some_and(|stream| stream.sending == Progress::Content) {
            return;
        }
        self.section(id, true, |writer| trailers.fields().for_each(|(name, value)| writer.add(name, value)));
        self.sent_all(id);
    }

    fn section(&mut self, id: u32, ended: bool, fields: impl FnOnce(&mut FieldWriter<'_>)) -> Sent {
        let start = self.out.len();
        self.out.extend_from_slice(&[0; HEAD]);
        self.encoder.begin(&mut self.out);
        let mut writer = FieldWriter { encoder: &mut self.encoder, out: &mut self.out, bytes: 0 };
        fields(&mut writer);
        let bytes = writer.bytes;
        frame::end_headers(&mut self.out, start, id, ended);
        Sent { at: start, bytes }
    }

    /// Bytes of content that the flow-control windows of stream and connection allow now.
    pub fn room(&self, id: u32) -> usize {
        let room = |stream: &StreamState| if stream.sending == Progress::Content { stream.send.room() } else { 0 };
        self.streams.get(id).map_or(0, room).min(self.send.room())
    }

    /// Sends as much of `bytes` as the windows allow; returns the count. With `ended`, END_STREAM is set once all of it was
    /// sent.
    pub fn send_data(&mut self, id: u32, bytes: &[u8], ended: bool) -> usize {
        let Some(stream) = self.streams.get_mut(id).filter(|stream| stream.sending == Progress::Content) else {
            return 0;
        };
        let taken = stream.send.room().min(self.send.room()).min(bytes.len());
        let ends = ended && taken == bytes.len();
        if taken == 0 && !(ends && bytes.is_empty()) {
            return 0;
        }
        stream.send.sent(taken);
        self.send.sent(taken);
        let mut rest = &bytes[..taken];
        loop {
            let (piece, others) = rest.split_at(rest.len().min(MOST));
            rest = others;
            let flags = if ends && rest.is_empty() { END_STREAM } else { 0 };
            frame::write_head(&mut self.out, kind::DATA, flags, id, piece.len());
            self.out.extend_from_slice(piece);
            if rest.is_empty() {
                break;
            }
        }
        if ends {
            self.sent_all(id);
        }
        taken
    }

    fn sent_all(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        stream.sending = Progress::Ended;
        if stream.is_over() {
            self.streams.remove(id, StreamEnd::Complete);
        }
    }

    /// Our message on this stream is complete, or the stream is closed.
    pub fn has_sent_all(&self, id: u32) -> bool {
        self.streams.get(id).is_none_or(|stream| stream.sending == Progress::Ended)
    }

    /// The peer's message on this stream is complete, or the stream is closed.
    pub fn has_received_all(&self, id: u32) -> bool {
        self.streams.get(id).is_none_or(|stream| stream.receiving == Progress::Ended)
    }

    /// Bytes of content the peer still has to send on this stream, if it declared a `Content-Length`.
    pub fn content_left(&self, id: u32) -> Option<u64> {
        self.streams.get(id).and_then(|stream| stream.content_left)
    }

    /// Resets a stream.
    pub fn reset(&mut self, id: u32, code: ErrorCode) {
        let Some(stream) = self.streams.get(id) else { return };
        let why = if stream.receiving == Progress::Ended { StreamEnd::Complete } else { StreamEnd::ByUs };
        self.streams.remove(id, why);
        frame::write_reset(&mut self.out, id, code);
    }

    /// Enlarges the window of a stream, if its content has not ended.
    pub fn widen(&mut self, id: u32, window: u32) {
        if let Some(stream) = self.streams.get_mut(id)
            && stream.receiving == Progress::Content
        {
            let more = stream.receive.grow(window);
            if more > 0 {
                frame::write_window_update(&mut self.out, id, more);
            }
        }
    }

    /// Returns `count` bytes of consumed content to the windows of the connection and, if its content has not ended, of the
    /// stream.
    pub fn release(&mut self, id: u32, count: usize) {
        let count = count as u32;
        if count == 0 {
            return;
        }
        if let Some(stream) = self.streams.get_mut(id)
            && stream.receiving == Progress::Content
            && let Some(increment) = stream.receive.take(count)
        {
            frame::write_window_update(&mut self.out, id, increment);
        }
        if let Some(increment) = self.receive.take(count) {
            frame::write_window_update(&mut self.out, 0, increment);
        }
    }
}
