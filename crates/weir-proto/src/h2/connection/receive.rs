//! Bytes of the peer.

use super::{Connection, Content, Event, LEAVING, Leaving, Lent, PREFACE, Purpose, Role, Section};
use crate::field::Known;
use crate::h1::Reject;
use crate::h2::class::Class;
use crate::h2::frame::{
    self, ACK, END_HEADERS, END_STREAM, ErrorCode, FrameHead, HEAD, MOST, MOST_STREAM, PADDED, WITH_PRIORITY, kind,
};
use crate::h2::priority::Priority;
use crate::h2::request::RequestReader;
use crate::h2::response::ResponseReader;
use crate::h2::streams::{Progress, Removal, Stream};
use crate::h2::window::{ReceiveWindow, SendWindow};
use crate::head::{Framing, write_field};
use crate::method::Method;
use crate::trailers::Trailers;

/// The most CONTINUATION frames that a field section may have, and the least that one may take on the wire however small
/// its limit is (CVE-2024-27316).
const MOST_CONTINUATIONS: u8 = 15;
const SECTION: usize = 64 * 1024;
/// A section that is decoded to so many times what a head may have is there to do harm (CVE-2016-6581).
const BOMB_FIELDS: usize = 10;
const BOMB_BYTES: usize = 16;

impl Connection {
    /// Takes what it can of `bytes`, and says what has come. `Ok(None)`: the rest of them, if there is one, is the
    /// beginning of a frame. After an error nothing more can be read, and the peer is to be told with
    /// [`Connection::fail`].
    pub fn next<'b>(&mut self, bytes: &mut &'b [u8], lent: &mut Lent<'_>) -> Result<Option<Event<'b>>, ErrorCode> {
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
                    // What follows an empty frame belongs to the next one.
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
            if self.credit.is_exhausted() && self.role == Role::Server {
                return Err(ErrorCode::ENHANCE_YOUR_CALM);
            }
            if event.is_some() {
                return Ok(event);
            }
        }
    }

    /// RFC 9113 §3.4. `false` where more of it has to come.
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

    /// What a frame's head alone says to be wrong.
    fn check(&self, head: FrameHead) -> Result<(), ErrorCode> {
        // §4.2: no frame may be larger than we have said, or never said otherwise.
        if head.length as usize > MOST {
            return Err(ErrorCode::FRAME_SIZE_ERROR);
        }
        // §3.4: settings come first.
        if !self.settings_seen && (head.kind != kind::SETTINGS || head.has(ACK)) {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        let Some(section) = self.section else {
            return if head.kind == kind::CONTINUATION { Err(ErrorCode::PROTOCOL_ERROR) } else { Ok(()) };
        };
        // §6.10: nothing comes between the frames of a section.
        if head.kind != kind::CONTINUATION || head.stream != section.stream {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        let most = (2 * self.bounds.limits.head_bytes).max(SECTION);
        if section.frames >= MOST_CONTINUATIONS || self.section_bytes.len() + head.length as usize > most {
            return Err(ErrorCode::ENHANCE_YOUR_CALM);
        }
        Ok(())
    }

    fn frame(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        lent: &mut Lent<'_>,
    ) -> Result<Option<Event<'static>>, ErrorCode> {
        match head.kind {
            kind::HEADERS => self.headers(head, payload, lent),
            kind::CONTINUATION => self.continuation(head, payload, lent),
            kind::PRIORITY => self.deprecated_priority(head, payload),
            kind::RST_STREAM => self.reset_by_peer(head, payload),
            kind::SETTINGS => self.settings(head, payload),
            kind::PUSH_PROMISE => Err(ErrorCode::PROTOCOL_ERROR), // §8.4: we have said that we take none
            kind::PING => self.ping(head, payload),
            kind::GOAWAY => self.goaway(head, payload),
            kind::WINDOW_UPDATE => self.window_update(head, payload),
            kind::PRIORITY_UPDATE => self.priority_update(head, payload),
            _ => Ok(None), // §4.1: what nobody knows is ignored
        }
    }

    /// §5.1: nobody has used a stream of this number.
    fn is_idle(&self, stream: u32) -> bool {
        match stream % 2 == 1 {
            true if self.role == Role::Server => stream > self.last_peer,
            true => stream >= self.next_own,
            false => true, // nobody pushes
        }
    }

    /// Ends a stream for what came on it.
    fn stream_error(&mut self, stream: u32, code: ErrorCode) -> Result<Option<Event<'static>>, ErrorCode> {
        if self.is_idle(stream) {
            return Err(code);
        }
        self.credit.stream_left();
        frame::write_reset(&mut self.out, stream, code);
        let failed = self.streams.remove(stream, Removal::ByUs);
        Ok(failed.map(|stream| Event::Failed { key: stream.key, code }))
    }

    // ----- Field sections (§4.3, §6.2, §6.10) -----

    fn headers(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        lent: &mut Lent<'_>,
    ) -> Result<Option<Event<'static>>, ErrorCode> {
        let mut block = payload;
        let mut padding = 0;
        if head.has(PADDED) {
            let (&length, rest) = block.split_first().ok_or(ErrorCode::FRAME_SIZE_ERROR)?;
            (padding, block) = (usize::from(length), rest);
        }
        let mut depends_on_itself = false;
        if head.has(WITH_PRIORITY) {
            let (depends_on, rest) = block.split_first_chunk::<4>().ok_or(ErrorCode::FRAME_SIZE_ERROR)?;
            depends_on_itself = u32::from_be_bytes(*depends_on) & MOST_STREAM == head.stream;
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
        self.section_bytes.extend_from_slice(&block[..length]);
        Ok(None)
    }

    fn continuation(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        lent: &mut Lent<'_>,
    ) -> Result<Option<Event<'static>>, ErrorCode> {
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
            // §5.1.1: it ends all lower ones that were not used.
            self.last_peer = id;
            // §6.8: what comes after the last stream is not looked at.
            let is_late = matches!(self.leaving, Leaving::Final(last) if id > last);
            return Ok(if is_late { Purpose::Nothing } else { Purpose::Message });
        }
        if self.is_idle(id) {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        if self.streams.is_ignored(id) || self.role == Role::Client {
            return Ok(Purpose::Nothing);
        }
        // §5.1.1: numbers grow.
        Err(if self.streams.has_ended(id) { ErrorCode::STREAM_CLOSED } else { ErrorCode::PROTOCOL_ERROR })
    }

    /// All of a section is there.
    fn read_section(
        &mut self,
        section: Section,
        block: &[u8],
        lent: &mut Lent<'_>,
    ) -> Result<Option<Event<'static>>, ErrorCode> {
        match (section.purpose, lent) {
            (Purpose::Message, Lent::Request(request)) => self.read_request(section, block, request),
            (Purpose::Message, Lent::Response(response)) => self.read_response(section, block, response),
            (Purpose::Trailers, _) => self.read_trailers(section, block),
            (Purpose::Nothing, _) => {
                self.decode(block, |_, _, _| {})?;
                Ok(None)
            }
        }
    }

    /// Decodes a section, whatever becomes of it: both ends have to remember the same.
    fn decode(&mut self, block: &[u8], mut field: impl FnMut(Class, &[u8], &[u8])) -> Result<(), ErrorCode> {
        let (mut fields, mut bytes) = (0, 0);
        let decoded = self.decoder.decode(block, |class, name, value| {
            fields += 1;
            bytes += name.len() + value.len();
            field(class, name, value);
        });
        decoded.map_err(|_| ErrorCode::COMPRESSION_ERROR)?;
        let limits = &self.bounds.limits;
        let is_bomb = fields > BOMB_FIELDS * limits.fields || bytes > BOMB_BYTES * limits.head_bytes.max(SECTION / 2);
        if is_bomb { Err(ErrorCode::ENHANCE_YOUR_CALM) } else { Ok(()) }
    }

    fn read_request(
        &mut self,
        section: Section,
        block: &[u8],
        request: &mut crate::RequestHead,
    ) -> Result<Option<Event<'static>>, ErrorCode> {
        let Section { stream, ended, .. } = section;
        if self.streams.len() >= self.bounds.streams as usize {
            self.decode(block, |_, _, _| {})?;
            // §5.1.2.
            return self.stream_error(stream, ErrorCode::REFUSED_STREAM);
        }
        let limits = self.bounds.limits;
        let mut reader = RequestReader::new(request, &limits);
        self.decode(block, |class, name, value| reader.field(class, name, value))?;
        let priority = reader.priority();
        let parsed = reader.finish(ended);
        if parsed == Err(Reject::Malformed) || section.depends_on_itself {
            self.stream_error(stream, ErrorCode::PROTOCOL_ERROR)?;
            return Ok(Some(Event::Malformed { stream }));
        }
        self.has_priorities |= priority.is_some();
        let to_come = match request.framing {
            Framing::Sized(length) if parsed.is_ok() => Some(length),
            _ => None,
        };
        let receiving = if ended { Progress::Ended } else { Progress::Content };
        self.streams.add(Stream {
            id: stream,
            key: usize::MAX,
            receiving,
            sending: Progress::Head,
            receive: ReceiveWindow::new(self.bounds.stream_window),
            send: SendWindow::new(self.peer.initial_window),
            to_come,
            priority: priority.unwrap_or_default(),
            method: Method::Get,
        });
        Ok(Some(Event::Request { stream, ended, parsed }))
    }

    fn read_response(
        &mut self,
        section: Section,
        block: &[u8],
        response: &mut crate::ResponseHead,
    ) -> Result<Option<Event<'static>>, ErrorCode> {
        let limits = self.bounds.limits;
        let mut reader = ResponseReader::new(response, &limits);
        self.decode(block, |class, name, value| reader.field(class, name, value))?;
        let Some(stream) = self.streams.get_mut(section.stream) else { return Ok(None) };
        let (key, ended) = (stream.key, section.ended);
        let mut parsed = reader.finish(ended, stream.method);
        let is_interim = (100..200).contains(&response.status);
        if is_interim && ended && parsed.is_ok() {
            parsed = Err(crate::h1::BadResponse::Syntax); // §8.1: a final response is to follow
        }
        match parsed {
            Err(_) => drop(self.stream_error(section.stream, ErrorCode::PROTOCOL_ERROR)?),
            Ok(()) if is_interim => {}
            Ok(()) => {
                stream.receiving = Progress::Content;
                stream.to_come = match response.framing {
                    Framing::None => Some(0),
                    Framing::Sized(length) => Some(length),
                    _ => None,
                };
                if ended {
                    self.received_all(section.stream);
                }
            }
        }
        Ok(Some(Event::Response { key, ended, parsed }))
    }

    fn read_trailers(&mut self, section: Section, block: &[u8]) -> Result<Option<Event<'static>>, ErrorCode> {
        let (mut lines, mut count, mut is_good) = (Vec::new(), 0, true);
        let most = self.bounds.limits;
        self.decode(block, |class, name, value| {
            count += 1;
            // §8.1: pseudo-fields have no place here.
            is_good &= matches!(class, Class::Field(_) | Class::Cookie) && count <= most.fields;
            is_good &= lines.len() + name.len() + value.len() + 4 <= most.head_bytes;
            if is_good && !matches!(class, Class::Field(Known::Te)) {
                write_field(&mut lines, name, value);
            }
        })?;
        let Some(stream) = self.streams.get(section.stream) else { return Ok(None) };
        if stream.receiving == Progress::Ended {
            return self.stream_error(section.stream, ErrorCode::STREAM_CLOSED);
        }
        // §8.1: trailers end the message; §8.1.1: the content is as long as was said.
        let is_end = section.ended && stream.to_come.is_none_or(|to_come| to_come == 0);
        if !is_good || !is_end || section.depends_on_itself {
            return self.stream_error(section.stream, ErrorCode::PROTOCOL_ERROR);
        }
        let key = stream.key;
        self.received_all(section.stream);
        Ok(Some(Event::Trailers { key, trailers: Trailers::from_lines(lines) }))
    }

    /// The peer's message is complete.
    fn received_all(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        stream.receiving = Progress::Ended;
        if stream.is_over() {
            self.streams.remove(id, Removal::Complete);
        }
    }

    // ----- Content (§6.1) -----

    fn begin_content(&mut self, head: FrameHead, padding: Option<u8>) -> Result<Option<Event<'static>>, ErrorCode> {
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
        let left = length - u32::from(padding.is_some());
        let ended = head.has(END_STREAM);
        let content = length - overhead;
        let wrong = self.wrong_with(id, length, u64::from(content), ended)?;
        let stream = if wrong.is_none() { id } else { 0 };
        self.content = Some(Content { stream, left, padding: padding.unwrap_or(0), ended });
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

    /// Why content of a stream is thrown away: for an error, or as nobody wants it any more.
    fn wrong_with(
        &mut self,
        id: u32,
        length: u32,
        content: u64,
        ended: bool,
    ) -> Result<Option<Option<ErrorCode>>, ErrorCode> {
        let is_ignored = self.streams.is_ignored(id) || self.role == Role::Client;
        let Some(stream) = self.streams.get_mut(id) else {
            // §5.1: who has ended a stream sends nothing more on it; after a reset it is told so, and may go on.
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
        // §8.1.1: as much as was said, and neither less nor more.
        if let Some(to_come) = &mut stream.to_come {
            match to_come.checked_sub(content) {
                Some(rest) if !ended || rest == 0 => *to_come = rest,
                _ => return Ok(Some(Some(ErrorCode::PROTOCOL_ERROR))),
            }
        }
        Ok(None)
    }

    /// What has come of a DATA frame's payload. `None`, and the frame is over or waits for more.
    fn content<'b>(&mut self, bytes: &mut &'b [u8]) -> Option<Event<'b>> {
        let mut frame = self.content.take().expect("a frame has begun");
        let content = (frame.left - frame.padding) as usize;
        let (piece, rest) = bytes.split_at(content.min(bytes.len()));
        let padding = (frame.padding as usize).min(if piece.len() == content { rest.len() } else { 0 });
        *bytes = &rest[padding..];
        frame.left -= (piece.len() + padding) as u32;
        frame.padding -= padding as u32;
        let is_last = piece.len() == content;
        let key = self.streams.get(frame.stream).map(|stream| stream.key);
        // The end goes with the last of the content, though padding may follow.
        let ended = is_last && std::mem::take(&mut frame.ended);
        if !is_last {
            frame.ended |= ended;
        }
        if frame.left > 0 {
            self.content = Some(frame);
        }
        let Some(key) = key else {
            if frame.stream != 0 {
                self.release(0, piece.len()); // its stream has ended meanwhile
            }
            return None;
        };
        if ended {
            self.received_all(frame.stream);
        }
        (ended || !piece.is_empty()).then_some(Event::Data { key, bytes: piece, ended })
    }

    // ----- Everything else -----

    /// RFC 7540 §5.3, which RFC 9113 takes back: only what is wrong with it counts.
    fn deprecated_priority(&mut self, head: FrameHead, payload: &[u8]) -> Result<Option<Event<'static>>, ErrorCode> {
        if head.stream == 0 {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        let Some((depends_on, [_])) = payload.split_first_chunk::<4>() else {
            return self.stream_error(head.stream, ErrorCode::FRAME_SIZE_ERROR);
        };
        match u32::from_be_bytes(*depends_on) & MOST_STREAM == head.stream {
            true => self.stream_error(head.stream, ErrorCode::PROTOCOL_ERROR),
            false => Ok(None),
        }
    }

    /// RFC 9218 §7.1.
    fn priority_update(&mut self, head: FrameHead, payload: &[u8]) -> Result<Option<Event<'static>>, ErrorCode> {
        if head.stream != 0 || self.role == Role::Client {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        let (stream, value) = payload.split_first_chunk::<4>().ok_or(ErrorCode::FRAME_SIZE_ERROR)?;
        let stream = u32::from_be_bytes(*stream) & MOST_STREAM;
        if stream == 0 {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        self.has_priorities = true;
        if let Some(stream) = self.streams.get_mut(stream) {
            stream.priority = Priority::parse(value);
        }
        Ok(None)
    }

    fn reset_by_peer(&mut self, head: FrameHead, payload: &[u8]) -> Result<Option<Event<'static>>, ErrorCode> {
        let code = payload.try_into().map_err(|_| ErrorCode::FRAME_SIZE_ERROR)?;
        if head.stream == 0 || self.is_idle(head.stream) {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        let code = ErrorCode(u32::from_be_bytes(code));
        Ok(self.streams.remove(head.stream, Removal::ByPeer).map(|stream| Event::Reset { key: stream.key, code }))
    }

    fn settings(&mut self, head: FrameHead, payload: &[u8]) -> Result<Option<Event<'static>>, ErrorCode> {
        if head.stream != 0 {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        if head.has(ACK) {
            return if payload.is_empty() { Ok(None) } else { Err(ErrorCode::FRAME_SIZE_ERROR) };
        }
        let before = self.peer;
        self.peer.update(payload, self.role == Role::Client)?;
        self.settings_seen = true;
        if self.peer.header_table_size != before.header_table_size {
            self.encoder.resize(self.peer.header_table_size as usize);
        }
        frame::write_head(&mut self.out, kind::SETTINGS, ACK, 0, 0);
        // §6.9.2: of streams that are open, too.
        let more = i64::from(self.peer.initial_window) - i64::from(before.initial_window);
        if more == 0 {
            return Ok(None);
        }
        for stream in self.streams.iter_mut() {
            stream.send.open(more).map_err(|_| ErrorCode::FLOW_CONTROL_ERROR)?;
        }
        Ok(Some(Event::Opened { key: None }))
    }

    fn ping(&mut self, head: FrameHead, payload: &[u8]) -> Result<Option<Event<'static>>, ErrorCode> {
        let payload: [u8; 8] = payload.try_into().map_err(|_| ErrorCode::FRAME_SIZE_ERROR)?;
        if head.stream != 0 {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        if !head.has(ACK) {
            frame::write_ping(&mut self.out, ACK, payload);
        } else if payload == LEAVING && self.leaving == Leaving::Announced {
            self.leaving = Leaving::Final(self.last_peer);
            frame::write_goaway(&mut self.out, self.last_peer, ErrorCode::NO_ERROR);
        }
        Ok(None)
    }

    fn goaway(&mut self, head: FrameHead, payload: &[u8]) -> Result<Option<Event<'static>>, ErrorCode> {
        if head.stream != 0 {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        let Some(([a, b, c, d, code @ ..], _)) = payload.split_first_chunk::<8>() else {
            return Err(ErrorCode::FRAME_SIZE_ERROR);
        };
        let last = u32::from_be_bytes([*a, *b, *c, *d]) & MOST_STREAM;
        Ok(Some(Event::Leaves { last, code: ErrorCode(u32::from_be_bytes(*code)) }))
    }

    fn window_update(&mut self, head: FrameHead, payload: &[u8]) -> Result<Option<Event<'static>>, ErrorCode> {
        let increment: [u8; 4] = payload.try_into().map_err(|_| ErrorCode::FRAME_SIZE_ERROR)?;
        let increment = i64::from(u32::from_be_bytes(increment) & MOST_STREAM);
        if head.stream == 0 {
            if increment == 0 {
                return Err(ErrorCode::PROTOCOL_ERROR);
            }
            self.send.open(increment).map_err(|_| ErrorCode::FLOW_CONTROL_ERROR)?;
            return Ok(Some(Event::Opened { key: None }));
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
            Ok(()) => Ok(Some(Event::Opened { key: Some(key) })),
            Err(_) => self.stream_error(head.stream, ErrorCode::FLOW_CONTROL_ERROR),
        }
    }
}
