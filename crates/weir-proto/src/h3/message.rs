//! The stream of a request (RFC 9114 §4.1): a field section, content, and perhaps trailers.

use super::error::{H3ErrorCode, H3Fault};
use super::frame::{FrameHeadReader, H3FrameHead, kind};

/// The most bytes of frames without a meaning on one stream.
const MAX_SKIPPED: u64 = 64 * 1024;

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessagePart<'a> {
    /// The encoded field section of the head.
    Head(Vec<u8>),
    /// The section of the head is longer than allowed, and is skipped.
    HeadTooLong,
    /// Content; not empty.
    Content(&'a [u8]),
    /// A DATA frame without content, or a frame without a meaning.
    Empty,
    /// The encoded field section of the trailers.
    Trailers(Vec<u8>),
}

/// What follows in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageAhead {
    /// Nothing so far.
    Nothing,
    /// A frame without a meaning, which has been read.
    Empty,
    /// Content or trailers, which [`H3MessageReader::next`] reads.
    Part,
}

/// What may come next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expected {
    #[default]
    Head,
    Content,
    /// The trailers have come.
    Nothing,
}

/// What becomes of the payload of the current frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Payload {
    Content,
    Section,
    Skip,
}

/// Reads the stream of a request.
#[derive(Debug)]
pub struct H3MessageReader {
    expected: Expected,
    head: FrameHeadReader,
    /// The frame that has begun, and the bytes of its payload that are still to come.
    frame: Option<(Payload, u64)>,
    section: Vec<u8>,
    max_section: u64,
    skipped: u64,
    /// What is left of the announced `Content-Length`.
    content_left: Option<u64>,
}

impl H3MessageReader {
    /// `max_section`: the longest encoded field section, in bytes.
    pub fn new(max_section: usize) -> H3MessageReader {
        H3MessageReader {
            expected: Expected::Head,
            head: FrameHeadReader::default(),
            frame: None,
            section: Vec::new(),
            max_section: max_section as u64,
            skipped: 0,
            content_left: None,
        }
    }

    /// The length that the head announced for the content.
    pub fn announce(&mut self, length: u64) {
        self.content_left = Some(length);
    }

    /// The bytes of a section that has come in part.
    pub fn held(&self) -> usize {
        self.section.len()
    }

    /// Reads `rest` up to the next part; `None` once all has been read.
    pub fn next<'a>(&mut self, rest: &mut &'a [u8]) -> Result<Option<MessagePart<'a>>, H3Fault> {
        loop {
            let (payload, left) = match self.frame {
                Some(frame) => frame,
                None => {
                    let Some(frame) = self.head.take(rest) else { return Ok(None) };
                    let payload = self.begin(frame)?;
                    self.frame = Some((payload, frame.length));
                    if payload == Payload::Skip {
                        self.frame = self.frame.filter(|_| frame.length > 0);
                        let is_head = frame.kind == kind::HEADERS;
                        return Ok(Some(if is_head { MessagePart::HeadTooLong } else { MessagePart::Empty }));
                    }
                    (payload, frame.length)
                }
            };
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
            let (part, others) = rest.split_at(count);
            if count == 0 && left > 0 {
                return Ok(None);
            }
            *rest = others;
            let left = left - count as u64;
            self.frame = (left > 0).then_some((payload, left));
            match payload {
                Payload::Skip => {}
                Payload::Content if part.is_empty() => return Ok(Some(MessagePart::Empty)),
                Payload::Content => return Ok(Some(MessagePart::Content(part))),
                Payload::Section => {
                    self.section.extend_from_slice(part);
                    if left == 0 {
                        return Ok(Some(self.end_section()));
                    }
                }
            }
        }
    }

    /// Reads `rest` as far as it has no meaning, at most up to the end of one frame.
    pub fn look_ahead(&mut self, rest: &mut &[u8]) -> Result<MessageAhead, H3Fault> {
        let left = match self.frame {
            Some((Payload::Skip, left)) => left,
            Some(_) => return Ok(MessageAhead::Part),
            None => {
                let (head, whole) = (self.head.clone(), *rest);
                let Some(frame) = self.head.take(rest) else { return Ok(MessageAhead::Nothing) };
                if matches!(frame.kind, kind::DATA | kind::HEADERS) {
                    (self.head, *rest) = (head, whole);
                    return Ok(MessageAhead::Part);
                }
                self.begin(frame)?;
                frame.length
            }
        };
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
        *rest = &rest[count..];
        let left = left - count as u64;
        self.frame = (left > 0).then_some((Payload::Skip, left));
        Ok(if left > 0 { MessageAhead::Nothing } else { MessageAhead::Empty })
    }

    /// The client has ended the stream.
    pub fn end(&self) -> Result<(), H3Fault> {
        if self.frame.is_some() || self.head.is_within() {
            return Err(H3Fault::Connection(H3ErrorCode::H3_FRAME_ERROR)); // §7.1
        }
        match (self.expected, self.content_left) {
            (Expected::Head, _) => Err(H3Fault::Stream(H3ErrorCode::H3_REQUEST_INCOMPLETE)),
            (_, Some(1..)) => Err(H3Fault::Stream(H3ErrorCode::H3_MESSAGE_ERROR)),
            _ => Ok(()),
        }
    }

    /// Checks that a frame may stand here.
    fn begin(&mut self, frame: H3FrameHead) -> Result<Payload, H3Fault> {
        match (frame.kind, self.expected) {
            (kind::HEADERS, Expected::Nothing) | (kind::DATA, Expected::Head | Expected::Nothing) => {
                Err(H3Fault::Connection(H3ErrorCode::H3_FRAME_UNEXPECTED))
            }
            (kind::HEADERS, _) if frame.length > self.max_section => {
                if self.expected == Expected::Content {
                    return Err(H3Fault::Stream(H3ErrorCode::H3_EXCESSIVE_LOAD));
                }
                self.expected = Expected::Nothing;
                Ok(Payload::Skip)
            }
            (kind::HEADERS, _) => {
                // §4.1.2: trailers do not stand for content that is missing.
                if self.expected == Expected::Content && self.content_left.is_some_and(|left| left > 0) {
                    return Err(H3Fault::Stream(H3ErrorCode::H3_MESSAGE_ERROR));
                }
                Ok(Payload::Section)
            }
            (kind::DATA, Expected::Content) => {
                if let Some(left) = &mut self.content_left {
                    *left = left.checked_sub(frame.length).ok_or(H3Fault::Stream(H3ErrorCode::H3_MESSAGE_ERROR))?;
                }
                Ok(Payload::Content)
            }
            (
                kind::CANCEL_PUSH
                | kind::SETTINGS
                | kind::PUSH_PROMISE
                | kind::GOAWAY
                | kind::MAX_PUSH_ID
                | kind::PRIORITY_UPDATE
                | kind::PRIORITY_UPDATE_PUSH,
                _,
            ) => Err(H3Fault::Connection(H3ErrorCode::H3_FRAME_UNEXPECTED)),
            _ if frame.is_of_http2() => Err(H3Fault::Connection(H3ErrorCode::H3_FRAME_UNEXPECTED)),
            _ => {
                // §9: extensions may add frames anywhere.
                self.skipped = self.skipped.saturating_add(frame.length);
                match self.skipped > MAX_SKIPPED {
                    true => Err(H3Fault::Connection(H3ErrorCode::H3_EXCESSIVE_LOAD)),
                    false => Ok(Payload::Skip),
                }
            }
        }
    }

    fn end_section(&mut self) -> MessagePart<'static> {
        let section = std::mem::take(&mut self.section);
        match self.expected {
            Expected::Head => {
                self.expected = Expected::Content;
                MessagePart::Head(section)
            }
            Expected::Content | Expected::Nothing => {
                self.expected = Expected::Nothing;
                MessagePart::Trailers(section)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: [u8; 4] = [1, 2, 0, 0];

    /// What a stream with these frames comes to, in pieces of this size, up to its end: content in one piece.
    fn read(frames: &[&[u8]], piece: usize, length: Option<u64>) -> Result<Vec<String>, H3Fault> {
        let (mut reader, mut parts) = (H3MessageReader::new(100), Vec::<String>::new());
        for mut rest in frames.concat().chunks(piece) {
            while let Some(part) = reader.next(&mut rest)? {
                match part {
                    MessagePart::Head(section) => {
                        parts.push(format!("head of {}", section.len()));
                        length.into_iter().for_each(|length| reader.announce(length));
                    }
                    MessagePart::HeadTooLong => parts.push("long head".into()),
                    MessagePart::Content(bytes) => match parts.last_mut().filter(|last| last.starts_with("content ")) {
                        Some(last) => last.push_str(&String::from_utf8_lossy(bytes)),
                        None => parts.push(format!("content {}", String::from_utf8_lossy(bytes))),
                    },
                    MessagePart::Empty => parts.push("empty".into()),
                    MessagePart::Trailers(section) => parts.push(format!("trailers of {}", section.len())),
                }
            }
        }
        reader.end().map(|()| parts)
    }

    fn unexpected() -> Result<Vec<String>, H3Fault> {
        Err(H3Fault::Connection(H3ErrorCode::H3_FRAME_UNEXPECTED))
    }

    #[test]
    fn a_message_is_read_however_it_is_cut() {
        let frames: &[&[u8]] =
            &[&[0x21, 1, 9], &HEAD, &[0, 3], b"abc", &[0, 2], b"de", &[1, 3, 0, 0, 7], &[0x40, 0x5f, 0]];
        let size = frames.concat().len();
        for piece in 1..=size {
            let parts = read(frames, piece, Some(5));
            let expected = ["empty", "head of 2", "content abcde", "trailers of 3", "empty"];
            assert_eq!(parts, Ok(expected.map(str::to_owned).to_vec()), "in pieces of {piece}");
        }
    }

    #[test]
    fn frames_stand_in_their_order() {
        assert_eq!(read(&[&[0, 0]], 9, None), unexpected(), "content before the head");
        assert_eq!(read(&[&HEAD, &HEAD, &HEAD], 9, None), unexpected(), "a third section");
        assert_eq!(read(&[&HEAD, &HEAD, &[0, 0]], 9, None), unexpected(), "content after trailers");
        for kind in [2, 3, 4, 5, 6, 7, 8, 9, 0xd] {
            assert_eq!(read(&[&[kind, 0]], 9, None), unexpected(), "{kind} before the head");
            assert_eq!(read(&[&HEAD, &[kind, 0]], 9, None), unexpected(), "{kind} behind it");
        }
        assert_eq!(read(&[&HEAD, &[0x80, 0x0f, 0x07, 0, 0]], 9, None), unexpected(), "PRIORITY_UPDATE");
    }

    #[test]
    fn a_stream_ends_behind_a_frame_and_not_without_a_head() {
        assert_eq!(read(&[], 1, None), Err(H3Fault::Stream(H3ErrorCode::H3_REQUEST_INCOMPLETE)));
        assert_eq!(read(&[&[0x21, 0]], 1, None), Err(H3Fault::Stream(H3ErrorCode::H3_REQUEST_INCOMPLETE)));
        let cut = Err(H3Fault::Connection(H3ErrorCode::H3_FRAME_ERROR));
        assert_eq!(read(&[&HEAD[..3]], 1, None), cut);
        assert_eq!(read(&[&HEAD, &[0]], 1, None), cut);
        assert_eq!(read(&[&HEAD, &[0, 2, 1]], 1, None), cut);
    }

    #[test]
    fn content_has_the_announced_length() {
        let malformed = Err(H3Fault::Stream(H3ErrorCode::H3_MESSAGE_ERROR));
        assert!(read(&[&HEAD, &[0, 2, 1, 1]], 9, Some(2)).is_ok());
        assert_eq!(read(&[&HEAD, &[0, 2, 1, 1]], 9, Some(1)), malformed);
        assert_eq!(read(&[&HEAD, &[0, 2, 1, 1]], 9, Some(3)), malformed);
        assert_eq!(read(&[&HEAD, &[0, 2, 1, 1], &HEAD], 9, Some(3)), malformed);
    }

    #[test]
    fn long_sections_and_frames_without_a_meaning_are_bounded() {
        let long = [&[1, 0x40, 101][..], &[0; 101]].concat();
        assert_eq!(read(&[&long], 9, None), Ok(vec!["long head".to_owned()]));
        assert_eq!(read(&[&long, &[0, 0]], 9, None), unexpected());
        assert_eq!(read(&[&HEAD, &long], 9, None), Err(H3Fault::Stream(H3ErrorCode::H3_EXCESSIVE_LOAD)));
        let frame = [&[0x21, 0x7f, 0xff][..], &[0; 0x3fff]].concat();
        let most = vec![&frame[..]; MAX_SKIPPED as usize / 0x3fff];
        assert!(read(&[&most[..], &[&HEAD]].concat(), 999, None).is_ok());
        let excessive = Err(H3Fault::Connection(H3ErrorCode::H3_EXCESSIVE_LOAD));
        assert_eq!(read(&[&most[..], &[&frame]].concat(), 999, None), excessive);
    }

    #[test]
    fn looking_ahead_reads_frames_without_a_meaning_alone() {
        let frames = [&HEAD[..], &[0x21, 2, 9, 9], &[0x21, 0], &[0, 3, b'a', b'b', b'c']].concat();
        for piece in 1..=frames.len() {
            let (mut reader, mut has_head, mut is_part, mut content) =
                (H3MessageReader::new(100), false, false, vec![]);
            for mut rest in frames.chunks(piece) {
                while !rest.is_empty() {
                    if has_head && !is_part {
                        is_part = reader.look_ahead(&mut rest).expect("it is valid") == MessageAhead::Part;
                        continue;
                    }
                    match reader.next(&mut rest).expect("it is valid") {
                        Some(MessagePart::Head(_)) => has_head = true,
                        Some(MessagePart::Content(bytes)) => content.extend_from_slice(bytes),
                        part => assert_eq!(part, None, "in pieces of {piece}"),
                    }
                }
            }
            assert_eq!((has_head, is_part, &content[..]), (true, true, &b"abc"[..]), "in pieces of {piece}");
        }
    }
}
