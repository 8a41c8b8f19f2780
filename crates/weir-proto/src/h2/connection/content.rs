//! Content from the peer: DATA frames (RFC 9113 §6.1).

use super::{Connection, ConnectionEvent, DataFrame, Role};
use crate::h2::frame::{self, END_STREAM, ErrorCode, FrameHead, PADDED};
use crate::h2::streams::Progress;

impl Connection {
    pub(super) fn begin_content(
        &mut self,
        head: FrameHead,
        padding: Option<u8>,
    ) -> Result<Option<ConnectionEvent<'static>>, ErrorCode> {
        let FrameHead { stream: id, length, .. } = head;
        if self.is_idle(id) {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        if head.has(PADDED) && padding.is_none() {
            return Err(ErrorCode::FRAME_SIZE_ERROR);
        }
        let padding = padding.map(u32::from);
        let overhead = padding.map_or(0, |padding| padding + 1);
        if padding.is_some() && overhead > length {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        self.receive.receive(length).map_err(|_| ErrorCode::FLOW_CONTROL_ERROR)?;
        if let Some(increment) = self.receive.due() {
            frame::write_window_update(&mut self.out, 0, increment);
        }
        let left = length - u32::from(padding.is_some());
        let ended = head.has(END_STREAM);
        let content = length - overhead;
        let wrong = self.discard_reason(id, length, u64::from(content), ended)?;
        let stream = if wrong.is_none() { id } else { 0 };
        self.content = Some(DataFrame { stream, left, padding: padding.unwrap_or(0), ended });
        if content == 0 && overhead > 0 && !ended {
            self.credit.only_padding();
        }
        match wrong {
            None => {
                self.release(id, overhead as usize);
                Ok(None)
            }
            Some(code) => {
                self.release(0, length as usize);
                code.map_or(Ok(None), |code| self.stream_error(id, code))
            }
        }
    }

    /// Why the content of a DATA frame is discarded: `None`, it is not; `Some(None)`, without an error, as the stream is closed;
    /// `Some(Some(code))`, with a stream error. `Err` is a connection error.
    fn discard_reason(
        &mut self,
        id: u32,
        length: u32,
        content: u64,
        ended: bool,
    ) -> Result<Option<Option<ErrorCode>>, ErrorCode> {
        let is_ignored = self.streams.is_ignored(id) || self.role == Role::Client;
        let Some(stream) = self.streams.get_mut(id) else {
            // §5.1: a frame on a completed stream is a connection error; after a reset by the peer the answer is RST_STREAM.
            if is_ignored {
                return Ok(Some(None));
            }
            if self.streams.is_complete(id) {
                return Err(ErrorCode::STREAM_CLOSED);
            }
            self.credit.answered();
            frame::write_reset(&mut self.out, id, ErrorCode::STREAM_CLOSED);
            return Ok(Some(None));
        };
        match stream.receiving {
            Progress::Head => return Ok(Some(Some(ErrorCode::PROTOCOL_ERROR))),
            Progress::Ended => return Ok(Some(Some(ErrorCode::STREAM_CLOSED))),
            Progress::Content => {}
        }
        if stream.receive.receive(length).is_err() {
            return Ok(Some(Some(ErrorCode::FLOW_CONTROL_ERROR)));
        }
        // §8.1.1: exactly as many bytes as `Content-Length` declared.
        if let Some(content_left) = &mut stream.content_left {
            match content_left.checked_sub(content) {
                Some(rest) if !ended || rest == 0 => *content_left = rest,
                _ => return Ok(Some(Some(ErrorCode::PROTOCOL_ERROR))),
            }
        }
        Ok(None)
    }

    /// Reads the payload of the current DATA frame as far as it has arrived. `None` if the frame is complete or needs more
    /// bytes, without an event.
    pub(super) fn content<'b>(&mut self, bytes: &mut &'b [u8]) -> Option<ConnectionEvent<'b>> {
        let mut frame = self.content.take().expect("a frame has begun");
        let content = (frame.left - frame.padding) as usize;
        let (piece, rest) = bytes.split_at(content.min(bytes.len()));
        let padding = (frame.padding as usize).min(if piece.len() == content { rest.len() } else { 0 });
        *bytes = &rest[padding..];
        frame.left -= (piece.len() + padding) as u32;
        frame.padding -= padding as u32;
        let is_last = piece.len() == content;
        let key = self.streams.get(frame.stream).map(|stream| stream.key);
        // END_STREAM is reported with the last content, even if padding is still to come.
        let ended = is_last && std::mem::take(&mut frame.ended);
        if frame.left > 0 {
            self.content = Some(frame);
        }
        let Some(key) = key else {
            if frame.stream != 0 {
                self.release(0, piece.len()); // the stream was closed in the meantime
            }
            return None;
        };
        if ended {
            self.received_all(frame.stream);
        }
        (ended || !piece.is_empty()).then_some(ConnectionEvent::Data { key, bytes: piece, ended })
    }
}
