//! Server-sent events (HTML Living Standard §9.2.6): finds the boundaries of events in a stream received in pieces.
//!
//! A stream consists of lines; an empty line ends a block. A block with a `data` line is an event; other blocks set an id or a
//! retry time, or only contain comments. Lines end in CRLF, LF or CR.

/// What the first bytes of the input are. Variants with a number carry their length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventPart {
    /// A comment outside of an event.
    Comment(usize),
    /// Lines that may turn out to be the beginning of an event.
    Lines(usize),
    /// The current block is an event: its first `data` line follows.
    Begins,
    /// Part of an event.
    Event(usize),
    /// The block has ended. Without a `data` line it was no event.
    Ends { is_event: bool },
    /// One byte: the LF after the CR that ended the previous block.
    LineFeed,
}

impl EventPart {
    /// The length of this part in bytes.
    pub fn bytes(self) -> usize {
        match self {
            EventPart::Comment(count) | EventPart::Lines(count) | EventPart::Event(count) => count,
            EventPart::LineFeed => 1,
            EventPart::Begins | EventPart::Ends { .. } => 0,
        }
    }
}

const DATA: &[u8] = b"data";
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Position within a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineState {
    /// In a byte order mark, of which this many bytes have been read.
    Mark(usize),
    /// This many bytes match the field name `data`; 0 at the start of a line.
    Name(usize),
    Comment,
    Other,
}

/// The kind of block a byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartKind {
    Comment,
    Lines,
    Event,
}

/// Finds the events of a stream. It buffers nothing.
#[derive(Clone, Copy, Debug)]
pub struct EventReader {
    line: LineState,
    is_event: bool,
    /// The last byte was CR; an LF after it belongs to the same line end.
    after_cr: bool,
    /// The kind of the last byte.
    last: PartKind,
    /// A block has ended, and [`EventPart::Ends`] is still to be returned.
    ended: bool,
    /// [`EventPart::Ends`] was returned, and no byte has been read since.
    after_block: bool,
}

impl Default for EventReader {
    fn default() -> EventReader {
        EventReader {
            line: LineState::Mark(0),
            is_event: false,
            after_cr: false,
            last: PartKind::Lines,
            ended: false,
            after_block: false,
        }
    }
}

impl EventReader {
    /// Reads the first part of the input and returns what it is; the caller removes it from the input. `None` if the input is
    /// empty and no block has ended.
    pub fn next(&mut self, input: &[u8]) -> Option<EventPart> {
        if std::mem::take(&mut self.ended) {
            self.after_block = true;
            return Some(EventPart::Ends { is_event: std::mem::take(&mut self.is_event) });
        }
        let mut count = 0;
        for &byte in input {
            if std::mem::take(&mut self.after_block) && self.after_cr && byte == b'\n' {
                self.after_cr = false;
                return Some(EventPart::LineFeed);
            }
            if !self.is_event && self.line == LineState::Name(DATA.len()) && matches!(byte, b':' | b'\r' | b'\n') {
                if count > 0 {
                    break;
                }
                self.is_event = true;
                return Some(EventPart::Begins);
            }
            let kind = self.kind(byte);
            if count > 0 && kind != self.last {
                break;
            }
            self.last = kind;
            self.take(byte);
            count += 1;
            if self.ended {
                break;
            }
        }
        match self.last {
            _ if count == 0 => None,
            PartKind::Comment => Some(EventPart::Comment(count)),
            PartKind::Lines => Some(EventPart::Lines(count)),
            PartKind::Event => Some(EventPart::Event(count)),
        }
    }

    /// An event has begun and not ended. At the end of the stream such an event is discarded by clients.
    pub fn is_within_event(&self) -> bool {
        self.is_event
    }

    /// The reader is at the start of a line, and no event has begun.
    pub fn is_between_lines(&self) -> bool {
        !self.is_event && matches!(self.line, LineState::Name(0) | LineState::Mark(0))
    }

    /// A comment can be inserted here without changing an event: between lines, outside of events, and not within a CRLF.
    pub fn can_insert_comment(&self) -> bool {
        self.is_between_lines() && !self.after_cr
    }

    fn kind(&self, byte: u8) -> PartKind {
        let is_at_start = matches!(self.line, LineState::Name(0) | LineState::Mark(0));
        match byte {
            _ if self.is_event => PartKind::Event,
            b'\n' if self.after_cr => self.last,
            b':' if is_at_start => PartKind::Comment,
            _ if self.line == LineState::Comment => PartKind::Comment,
            _ => PartKind::Lines,
        }
    }

    fn take(&mut self, byte: u8) {
        if std::mem::take(&mut self.after_cr) && byte == b'\n' {
            return;
        }
        if matches!(byte, b'\r' | b'\n') {
            self.ended = matches!(self.line, LineState::Name(0) | LineState::Mark(0));
            self.after_cr = byte == b'\r';
            self.line = LineState::Name(0);
            return;
        }
        self.line = match self.line {
            LineState::Mark(count) if byte == BYTE_ORDER_MARK[count] => match count {
                2 => LineState::Name(0),
                _ => LineState::Mark(count + 1),
            },
            LineState::Mark(0) | LineState::Name(0) if byte == b':' => LineState::Comment,
            LineState::Mark(0) if byte == DATA[0] => LineState::Name(1),
            LineState::Name(count) if DATA.get(count) == Some(&byte) => LineState::Name(count + 1),
            LineState::Comment => LineState::Comment,
            _ => LineState::Other,
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The parts of a stream as text; adjacent parts of one kind are joined.
    fn read(pieces: &[&[u8]]) -> Vec<String> {
        let (mut reader, mut parts) = (EventReader::default(), Vec::<(String, Vec<u8>)>::new());
        for piece in pieces {
            let mut input = *piece;
            while let Some(part) = reader.next(input) {
                let (bytes, rest) = input.split_at(part.bytes());
                input = rest;
                let kind = match part {
                    EventPart::Comment(_) => "comment",
                    EventPart::Lines(_) => "lines",
                    EventPart::Begins => "begins",
                    EventPart::Event(_) => "event",
                    EventPart::Ends { is_event: true } => "dispatch",
                    EventPart::Ends { is_event: false } => "end",
                    EventPart::LineFeed => "feed",
                };
                match parts.last_mut().filter(|(last, _)| last == kind) {
                    Some((_, said)) => said.extend_from_slice(bytes),
                    None => parts.push((kind.to_owned(), bytes.to_vec())),
                }
            }
            assert!(input.is_empty(), "all of it is read");
        }
        let said = |(kind, bytes): (String, Vec<u8>)| match bytes.is_empty() {
            true => kind,
            false => format!("{kind} {}", bytes.escape_ascii()),
        };
        parts.into_iter().map(said).collect()
    }

    fn events(stream: &str) -> usize {
        let dispatched = |pieces: &[&[u8]]| read(pieces).iter().filter(|part| *part == "dispatch").count();
        let single: Vec<&[u8]> = stream.as_bytes().chunks(1).collect();
        let count = dispatched(&[stream.as_bytes()]);
        assert_eq!(dispatched(&single), count, "{stream:?} byte by byte");
        count
    }

    #[test]
    fn a_block_with_data_is_an_event() {
        for (stream, want) in [
            ("data: a\n\n", 1),
            ("data:a\n\ndata:b\n\n", 2),
            ("data\n\n", 1),
            ("data:\n\n", 1),
            ("data: a\ndata: b\n\n", 1),
            ("event: x\nid: 1\ndata: a\nretry: 5\n\n", 1),
            ("id: 1\n\n", 0),
            ("event: x\n\n", 0),
            (": comment\n\n", 0),
            (": comment\ndata: a\n\n", 1),
            ("data : a\n\n", 0),
            ("datum: a\n\n", 0),
            ("dat: a\n\n", 0),
            ("Data: a\n\n", 0),
            (" data: a\n\n", 0),
            ("x\ndata: a\n\n", 1),
            ("\n\n\n", 0),
            ("data: not ended\n", 0),
            ("", 0),
        ] {
            for end in ["\n", "\r\n", "\r"] {
                assert_eq!(events(&stream.replace('\n', end)), want, "{stream:?} with {end:?}");
            }
        }
        assert_eq!(events("data: a\r\n\ndata: b\n\r\ndata: c\r\r\n"), 3, "ends of lines may be mixed");
        assert_eq!(events("\u{feff}data: a\n\n"), 1);
        assert_eq!(events("\u{feff}\u{feff}data: a\n\ndata: b\n\n"), 1, "one mark only");
        assert_eq!(events("data: a\n\n\u{feff}data: b\n\n"), 1, "and only at the start");
    }

    #[test]
    fn each_byte_is_told_as_what_it_is() {
        assert_eq!(
            read(&[b": hi\r\nid: 1\r\n: x\r\ndata: a\r\n: y\r\n\r\n\r\n"]),
            [
                "comment : hi\\r\\n",
                "lines id: 1\\r\\n",
                "comment : x\\r\\n",
                "lines data",
                "begins",
                "event : a\\r\\n: y\\r\\n\\r",
                "dispatch",
                "feed \\n",
                "lines \\r",
                "end",
                "feed \\n",
            ]
        );
    }

    #[test]
    fn an_event_at_the_end_of_a_stream_is_open() {
        let mut reader = EventReader::default();
        let mut input = &b"data: a\n"[..];
        while let Some(part) = reader.next(input) {
            input = &input[part.bytes()..];
        }
        assert!(reader.is_within_event());
        assert_eq!(
            (reader.next(b"\n"), reader.next(b"")),
            (Some(EventPart::Event(1)), Some(EventPart::Ends { is_event: true }))
        );
        assert!(!reader.is_within_event());
    }

    proptest! {
        #[test]
        fn however_the_stream_is_cut_its_parts_are_the_same(
            lines in prop::collection::vec(prop::sample::select(vec![
                "data", "data: a", "data:", "id: 1", ":", ": x", "event: y", "dat", "", "", "\u{feff}", "é",
            ]), 0..12),
            ends in prop::collection::vec(prop::sample::select(vec!["\n", "\r\n", "\r"]), 12),
            cuts in prop::collection::vec(0..100_usize, 0..8),
        ) {
            let stream: String = lines.iter().zip(ends).flat_map(|(line, end)| [*line, end]).collect();
            let bytes = stream.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.push(bytes.len());
            cuts.sort_unstable();
            let mut start = 0;
            let pieces: Vec<&[u8]> = cuts.iter().map(|&end| &bytes[std::mem::replace(&mut start, end)..end]).collect();
            prop_assert_eq!(read(&pieces), read(&[bytes]));
        }
    }
}
