//! Field sections from the peer: heads and trailers (RFC 9113 §4.3, §6.2, §6.10).

use super::receive::MIN_SECTION_LIMIT;
use super::{Connection, ConnectionEvent, GoawayState, HeadTarget, Purpose, Role, Section};
use crate::h1::Reject;
use crate::h2::frame::{END_HEADERS, END_STREAM, ErrorCode, FrameHead, MAX_STREAM_ID, PADDED, WITH_PRIORITY};
use crate::h2::hpack::DecodedField;
use crate::h2::request::RequestReader;
use crate::h2::response::ResponseReader;
use crate::h2::streams::{Progress, StreamEnd, StreamState};
use crate::h2::trailers::TrailersReader;
use crate::h2::window::{ReceiveWindow, SendWindow};
use crate::head::Framing;
use crate::method::Method;

/// A section that decodes to this multiple of the limits of a head is a decompression attack (CVE-2016-6581).
const BOMB_FIELDS: usize = 10;
const BOMB_BYTES: usize = 16;

impl Connection {
    pub(super) fn headers(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        lent: &mut HeadTarget<'_>,
    ) -> Result<Option<ConnectionEvent<'static>>, ErrorCode> {
        let mut block = payload;
        let mut padding = 0;
        if head.has(PADDED) {
            let (&length, rest) = block.split_first().ok_or(ErrorCode::FRAME_SIZE_ERROR)?;
            (padding, block) = (usize::from(length), rest);
        }
        let mut depends_on_itself = false;
        if head.has(WITH_PRIORITY) {
            let (depends_on, rest) = block.split_first_chunk::<4>().ok_or(ErrorCode::FRAME_SIZE_ERROR)?;
            depends_on_itself = u32::from_be_bytes(*depends_on) & MAX_STREAM_ID == head.stream;
            block = rest.get(1..).ok_or(ErrorCode::FRAME_SIZE_ERROR)?;
        }
        let length = block.len().checked_sub(padding).ok_or(ErrorCode::PROTOCOL_ERROR)?;
        let purpose = self.purpose(head.stream)?;
        let section =
            Section { stream: head.stream, ended: head.has(END_STREAM), purpose, depends_on_itself, frames: 0 };
        if head.has(END_HEADERS) {
            return self.read_section(section, &block[..length], lent);
        }
        self.section = Some(section);
        self.unfinished_sections += 1;
        self.section_bytes.extend_from_slice(&block[..length]);
        Ok(None)
    }

    pub(super) fn continuation(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        lent: &mut HeadTarget<'_>,
    ) -> Result<Option<ConnectionEvent<'static>>, ErrorCode> {
        let section = self.section.as_mut().expect("checked with the frame's head");
        section.frames += 1;
        self.section_bytes.extend_from_slice(payload);
        if !head.has(END_HEADERS) {
            return Ok(None);
        }
        let section = self.section.take().expect("it was there");
        let block = std::mem::take(&mut self.section_bytes);
        self.read_section(section, &block, lent)
    }

    /// What a section that begins on this stream is for.
    fn purpose(&mut self, id: u32) -> Result<Purpose, ErrorCode> {
        if let Some(stream) = self.streams.get(id) {
            return Ok(if stream.receiving == Progress::Head { Purpose::Message } else { Purpose::Trailers });
        }
        if self.role == Role::Server && id % 2 == 1 && id > self.last_peer {
            // §5.1.1: this closes all lower streams that are idle.
            self.last_peer = id;
            // §6.8: streams after the last one announced are ignored.
            if matches!(self.leaving, GoawayState::Final(last) if id > last) {
                self.streams.ignore(id);
                return Ok(Purpose::Nothing);
            }
            return Ok(Purpose::Message);
        }
        if self.is_idle(id) {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        if self.streams.is_ignored(id) || self.role == Role::Client {
            return Ok(Purpose::Nothing);
        }
        // §5.1.1: stream numbers must increase.
        Err(if self.streams.has_ended(id) { ErrorCode::STREAM_CLOSED } else { ErrorCode::PROTOCOL_ERROR })
    }

    /// Reads a complete section.
    fn read_section(
        &mut self,
        section: Section,
        block: &[u8],
        lent: &mut HeadTarget<'_>,
    ) -> Result<Option<ConnectionEvent<'static>>, ErrorCode> {
        match (section.purpose, lent) {
            (Purpose::Message, HeadTarget::Request(request)) => self.read_request(section, block, request),
            (Purpose::Message, HeadTarget::Response(response)) => self.read_response(section, block, response),
            (Purpose::Trailers, _) => self.read_trailers(section, block),
            (Purpose::Nothing, _) => {
                self.decode(block, |_| {})?;
                Ok(None)
            }
        }
    }

    /// Decodes a section. This is done even if the fields are discarded, to keep the HPACK tables of both ends equal.
    fn decode(&mut self, block: &[u8], mut field: impl FnMut(DecodedField<'_>)) -> Result<(), ErrorCode> {
        let (mut fields, mut bytes) = (0, 0);
        let decoded = self.decoder.decode(block, |decoded| {
            fields += 1;
            bytes += decoded.name.len() + decoded.value.len();
            field(decoded);
        });
        decoded.map_err(|_| ErrorCode::COMPRESSION_ERROR)?;
        let limits = &self.bounds.limits;
        let is_bomb =
            fields > BOMB_FIELDS * limits.fields || bytes > BOMB_BYTES * limits.head_bytes.max(MIN_SECTION_LIMIT / 2);
        if is_bomb { Err(ErrorCode::ENHANCE_YOUR_CALM) } else { Ok(()) }
    }

    fn read_request(
        &mut self,
        section: Section,
        block: &[u8],
        request: &mut crate::RequestHead,
    ) -> Result<Option<ConnectionEvent<'static>>, ErrorCode> {
        let Section { stream, ended, .. } = section;
        if self.streams.len() >= self.bounds.streams as usize {
            self.decode(block, |_| {})?;
            self.streams.ignore(stream);
            // §5.1.2.
            return self.stream_error(stream, ErrorCode::REFUSED_STREAM);
        }
        let limits = self.bounds.limits;
        let mut reader = RequestReader::new(request, &limits);
        self.decode(block, |field| reader.field(field))?;
        let priority = reader.priority();
        let parsed = reader.finish(ended);
        if parsed == Err(Reject::Malformed) || section.depends_on_itself {
            self.streams.ignore(stream);
            self.stream_error(stream, ErrorCode::PROTOCOL_ERROR)?;
            return Ok(Some(ConnectionEvent::Malformed { stream }));
        }
        self.has_priorities |= priority.is_some();
        let early = self.take_early_priority(stream);
        let content_left = match request.framing {
            Framing::Sized(length) if parsed.is_ok() => Some(length),
            _ => None,
        };
        let receiving = if ended { Progress::Ended } else { Progress::Content };
        self.streams.add(StreamState {
            id: stream,
            key: usize::MAX,
            receiving,
            sending: Progress::Head,
            receive: ReceiveWindow::new(self.bounds.stream_window),
            send: SendWindow::new(self.peer.initial_window),
            content_left,
            priority: early.or(priority).unwrap_or_default(),
            method: Method::Get,
        });
        Ok(Some(ConnectionEvent::Request { stream, ended, parsed }))
    }

    fn read_response(
        &mut self,
        section: Section,
        block: &[u8],
        response: &mut crate::ResponseHead,
    ) -> Result<Option<ConnectionEvent<'static>>, ErrorCode> {
        if self.streams.get(section.stream).is_none() {
            // It was reset after its section had begun. The lent head stays clear, for the next response.
            self.decode(block, |_| {})?;
            return Ok(None);
        }
        let limits = self.bounds.limits;
        let mut reader = ResponseReader::new(response, &limits);
        self.decode(block, |field| reader.field(field))?;
        let stream = self.streams.get_mut(section.stream).expect("it was there");
        let (key, ended) = (stream.key, section.ended);
        let mut parsed = reader.finish(ended, stream.method);
        let is_interim = (100..200).contains(&response.status);
        if is_interim && ended && parsed.is_ok() {
            parsed = Err(crate::h1::BadResponse::Syntax); // §8.1: a final response must follow
        }
        match parsed {
            Err(_) => drop(self.stream_error(section.stream, ErrorCode::PROTOCOL_ERROR)?),
            Ok(()) if is_interim => {}
            Ok(()) => {
                stream.receiving = Progress::Content;
                stream.content_left = match response.framing {
                    Framing::None => Some(0),
                    Framing::Sized(length) => Some(length),
                    _ => None,
                };
                if ended {
                    self.received_all(section.stream);
                }
            }
        }
        Ok(Some(ConnectionEvent::Response { key, ended, parsed }))
    }

    fn read_trailers(&mut self, section: Section, block: &[u8]) -> Result<Option<ConnectionEvent<'static>>, ErrorCode> {
        let mut reader = TrailersReader::new(self.bounds.limits);
        self.decode(block, |field| reader.field(field))?;
        let trailers = reader.finish();
        let Some(stream) = self.streams.get(section.stream) else { return Ok(None) };
        if stream.receiving == Progress::Ended {
            return self.stream_error(section.stream, ErrorCode::STREAM_CLOSED);
        }
        // §8.1: trailers end the message; §8.1.1: content has the declared length.
        let is_end = section.ended && stream.content_left.is_none_or(|content_left| content_left == 0);
        let Some(trailers) = trailers.filter(|_| is_end && !section.depends_on_itself) else {
            return self.stream_error(section.stream, ErrorCode::PROTOCOL_ERROR);
        };
        let key = stream.key;
        self.received_all(section.stream);
        Ok(Some(ConnectionEvent::Trailers { key, trailers }))
    }

    /// Marks the peer's message as complete, and removes the stream if ours is complete, too.
    pub(super) fn received_all(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        stream.receiving = Progress::Ended;
        if stream.is_over() {
            self.streams.remove(id, StreamEnd::Complete);
        }
    }
}
