//! Reads the bytes of the peer.

use super::{Connection, ConnectionEvent, GoawayState, HeadTarget, LEAVING, MAX_OUTPUT_BYTES, PREFACE, Role};
use crate::h2::frame::{self, ACK, ErrorCode, FrameHead, HEAD, MAX_STREAM_ID, MOST, PADDED, kind};
use crate::h2::priority::Priority;
use crate::h2::streams::StreamEnd;

/// Limits of a field section (CVE-2024-27316): its CONTINUATION frames, and the bytes on the wire that are allowed at least,
/// however small the limit of heads is.
const MOST_CONTINUATIONS: u8 = 15;
pub(super) const MIN_SECTION_LIMIT: usize = 64 * 1024;

impl Connection {
    /// Reads from the front of `bytes` and returns the next event. `Ok(None)`: any remaining bytes are an incomplete frame.
    /// After an error nothing more can be read, and the caller closes the connection with [`Connection::fail`].
    pub fn next<'b>(
        &mut self,
        bytes: &mut &'b [u8],
        lent: &mut HeadTarget<'_>,
    ) -> Result<Option<ConnectionEvent<'b>>, ErrorCode> {
        loop {
            if self.content.is_some() {
                match self.content(bytes) {
                    Some(event) => return Ok(Some(event)),
                    None if self.content.is_some() => return Ok(None),
                    None => {}
                }
            }
            if usize::from(self.preface) < PREFACE.len() && !self.preface(bytes)? {
                return Ok(None);
            }
            let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else { return Ok(None) };
            let head = FrameHead::parse(head);
            self.check(head)?;
            let event = if head.kind == kind::DATA {
                let padding = match rest.first() {
                    // A padding length cannot be read from an empty payload; the next byte belongs to the next frame.
                    _ if !head.has(PADDED) || head.length == 0 => None,
                    None => return Ok(None),
                    padding => padding.copied(),
                };
                *bytes = &rest[usize::from(padding.is_some())..];
                self.credit.frame(head);
                self.begin_content(head, padding)?
            } else {
                let Some((payload, rest)) = rest.split_at_checked(head.length as usize) else { return Ok(None) };
                *bytes = rest;
                self.credit.frame(head);
                if matches!(head.kind, kind::HEADERS | kind::CONTINUATION) {
                    self.sections += u64::from(head.length);
                }
                self.frame(head, payload, lent)?
            };
            if self.credit.is_exhausted() && self.role == Role::Server || self.out.len() > MAX_OUTPUT_BYTES {
                return Err(ErrorCode::ENHANCE_YOUR_CALM);
            }
            if event.is_some() {
                return Ok(event);
            }
        }
    }

    /// Reads the client preface (RFC 9113 §3.4). `false` if it is incomplete.
    fn preface(&mut self, bytes: &mut &[u8]) -> Result<bool, ErrorCode> {
        let missing = &PREFACE[usize::from(self.preface)..];
        let count = missing.len().min(bytes.len());
        if bytes[..count] != missing[..count] {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        *bytes = &bytes[count..];
        self.preface += count as u8;
        Ok(count == missing.len())
    }

    /// Checks a frame by its header and the state of the connection.
    fn check(&self, head: FrameHead) -> Result<(), ErrorCode> {
        // §4.2: the limit is the initial one, since we never announce another.
        if head.length as usize > MOST {
            return Err(ErrorCode::FRAME_SIZE_ERROR);
        }
        // §3.4: the first frame is SETTINGS.
        if !self.settings_seen && (head.kind != kind::SETTINGS || head.has(ACK)) {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        let Some(section) = self.section else {
            return if head.kind == kind::CONTINUATION { Err(ErrorCode::PROTOCOL_ERROR) } else { Ok(()) };
        };
        // §6.10: only CONTINUATION may follow within a section.
        if head.kind != kind::CONTINUATION || head.stream != section.stream {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        let most = (2 * self.bounds.limits.head_bytes).max(MIN_SECTION_LIMIT);
        if section.frames >= MOST_CONTINUATIONS || self.section_bytes.len() + head.length as usize > most {
            return Err(ErrorCode::ENHANCE_YOUR_CALM);
        }
        Ok(())
    }

    fn frame(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        lent: &mut HeadTarget<'_>,
    ) -> Result<Option<ConnectionEvent<'static>>, ErrorCode> {
        match head.kind {
            kind::HEADERS => self.headers(head, payload, lent),
            kind::CONTINUATION => self.continuation(head, payload, lent),
            kind::PRIORITY => self.deprecated_priority(head, payload),
            kind::RST_STREAM => self.reset_by_peer(head, payload),
            kind::SETTINGS => self.settings(head, payload),
            kind::PUSH_PROMISE => Err(ErrorCode::PROTOCOL_ERROR), // §8.4: push is disabled
            kind::PING => self.ping(head, payload),
            kind::GOAWAY => self.goaway(head, payload),
            kind::WINDOW_UPDATE => self.window_update(head, payload),
            kind::PRIORITY_UPDATE => self.priority_update(head, payload),
            _ => Ok(None), // §4.1: unknown frame types are ignored
        }
    }

    /// §5.1: the stream number has not been used yet.
    pub(super) fn is_idle(&self, stream: u32) -> bool {
        match stream % 2 == 1 {
            true if self.role == Role::Server => stream > self.last_peer,
            true => stream >= self.next_own,
            false => true, // there are no pushed streams
        }
    }

    /// Ends a stream with an error in what was received on it. On an idle stream this is a connection error.
    pub(super) fn stream_error(
        &mut self,
        stream: u32,
        code: ErrorCode,
    ) -> Result<Option<ConnectionEvent<'static>>, ErrorCode> {
        if self.is_idle(stream) {
            return Err(code);
        }
        self.credit.stream_left();
        frame::write_reset(&mut self.out, stream, code);
        let failed = self.streams.remove(stream, StreamEnd::ByUs);
        Ok(failed.map(|stream| ConnectionEvent::Failed { key: stream.key, code }))
    }

    /// PRIORITY frames (RFC 7540 §5.3), deprecated by RFC 9113: validated and ignored.
    fn deprecated_priority(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<Option<ConnectionEvent<'static>>, ErrorCode> {
        if head.stream == 0 {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        let Some((depends_on, [_])) = payload.split_first_chunk::<4>() else {
            return self.stream_error(head.stream, ErrorCode::FRAME_SIZE_ERROR);
        };
        match u32::from_be_bytes(*depends_on) & MAX_STREAM_ID == head.stream {
            true => self.stream_error(head.stream, ErrorCode::PROTOCOL_ERROR),
            false => Ok(None),
        }
    }

    /// RFC 9218 §7.1.
    fn priority_update(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<Option<ConnectionEvent<'static>>, ErrorCode> {
        if head.stream != 0 || self.role == Role::Client {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        let (stream, value) = payload.split_first_chunk::<4>().ok_or(ErrorCode::FRAME_SIZE_ERROR)?;
        let stream = u32::from_be_bytes(*stream) & MAX_STREAM_ID;
        // There are no pushed streams.
        if stream.is_multiple_of(2) {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        self.has_priorities = true;
        let priority = Priority::parse(value);
        if let Some(stream) = self.streams.get_mut(stream) {
            stream.priority = priority;
        } else if self.is_idle(stream) {
            self.early.retain(|(other, _)| *other != stream);
            if self.early.len() < self.bounds.streams as usize {
                self.early.push((stream, priority));
            }
        }
        Ok(None)
    }

    /// Takes the priority received for a stream before it began. Entries of lower streams, now closed, are dropped.
    pub(super) fn take_early_priority(&mut self, stream: u32) -> Option<Priority> {
        if self.early.is_empty() {
            return None;
        }
        let priority = self.early.iter().find(|(other, _)| *other == stream).map(|(_, priority)| *priority);
        self.early.retain(|(other, _)| *other > stream);
        priority
    }

    fn reset_by_peer(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<Option<ConnectionEvent<'static>>, ErrorCode> {
        let code = payload.try_into().map_err(|_| ErrorCode::FRAME_SIZE_ERROR)?;
        if head.stream == 0 || self.is_idle(head.stream) {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        let code = ErrorCode(u32::from_be_bytes(code));
        Ok(self
            .streams
            .remove(head.stream, StreamEnd::ByPeer)
            .map(|stream| ConnectionEvent::Reset { key: stream.key, code }))
    }

    fn settings(&mut self, head: FrameHead, payload: &[u8]) -> Result<Option<ConnectionEvent<'static>>, ErrorCode> {
        if head.stream != 0 {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        if head.has(ACK) {
            return if payload.is_empty() { Ok(None) } else { Err(ErrorCode::FRAME_SIZE_ERROR) };
        }
        let before = self.peer;
        let encoder = &mut self.encoder;
        self.peer.update(payload, self.role == Role::Client, |size| encoder.resize(size as usize))?;
        self.settings_seen = true;
        frame::write_head(&mut self.out, kind::SETTINGS, ACK, 0, 0);
        // §6.9.2: a new initial window changes those of open streams, too.
        let more = i64::from(self.peer.initial_window) - i64::from(before.initial_window);
        if more == 0 {
            return Ok(None);
        }
        for stream in self.streams.iter_mut() {
            stream.send.open(more).map_err(|_| ErrorCode::FLOW_CONTROL_ERROR)?;
        }
        Ok(Some(ConnectionEvent::WindowOpened { key: None }))
    }

    fn ping(&mut self, head: FrameHead, payload: &[u8]) -> Result<Option<ConnectionEvent<'static>>, ErrorCode> {
        let payload: [u8; 8] = payload.try_into().map_err(|_| ErrorCode::FRAME_SIZE_ERROR)?;
        if head.stream != 0 {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        if !head.has(ACK) {
            frame::write_ping(&mut self.out, ACK, payload);
        } else if payload == LEAVING && self.leaving == GoawayState::Announced {
            self.leaving = GoawayState::Final(self.last_peer);
            frame::write_goaway(&mut self.out, self.last_peer, ErrorCode::NO_ERROR);
        }
        Ok(None)
    }

    fn goaway(&mut self, head: FrameHead, payload: &[u8]) -> Result<Option<ConnectionEvent<'static>>, ErrorCode> {
        if head.stream != 0 {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        let Some(([a, b, c, d, code @ ..], _)) = payload.split_first_chunk::<8>() else {
            return Err(ErrorCode::FRAME_SIZE_ERROR);
        };
        let last = u32::from_be_bytes([*a, *b, *c, *d]) & MAX_STREAM_ID;
        self.goaway_received = true;
        Ok(Some(ConnectionEvent::GoAway { last, code: ErrorCode(u32::from_be_bytes(*code)) }))
    }

    fn window_update(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<Option<ConnectionEvent<'static>>, ErrorCode> {
        let increment: [u8; 4] = payload.try_into().map_err(|_| ErrorCode::FRAME_SIZE_ERROR)?;
        let increment = i64::from(u32::from_be_bytes(increment) & MAX_STREAM_ID);
        if head.stream == 0 {
            if increment == 0 {
                return Err(ErrorCode::PROTOCOL_ERROR);
            }
            self.send.open(increment).map_err(|_| ErrorCode::FLOW_CONTROL_ERROR)?;
            return Ok(Some(ConnectionEvent::WindowOpened { key: None }));
        }
        if self.is_idle(head.stream) {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        if increment == 0 {
            return self.stream_error(head.stream, ErrorCode::PROTOCOL_ERROR);
        }
        let Some(stream) = self.streams.get_mut(head.stream) else { return Ok(None) };
        let (key, opened) = (stream.key, stream.send.open(increment));
        match opened {
            Ok(()) => Ok(Some(ConnectionEvent::WindowOpened { key: Some(key) })),
            Err(_) => self.stream_error(head.stream, ErrorCode::FLOW_CONTROL_ERROR),
        }
    }
}
