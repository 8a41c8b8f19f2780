//! Splits an event stream into blocks: lines up to an empty line (HTML Living Standard §9.2.6).

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_plugin::proto::event_stream::{EventPart, EventReader};

/// The most bytes of one block.
pub(super) const MOST_BLOCK_BYTES: usize = 1 << 20;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// An event, or lines that only set the last event id or the retry time.
#[derive(Debug)]
pub(super) struct EventBlock {
    /// When the last of it was received.
    pub received: Instant,
    /// The bytes with the empty line at the end, but without comments.
    pub bytes: Box<[u8]>,
    /// The new last event id, if the block sets it.
    pub id: Option<Box<[u8]>>,
}

/// Memory for an event besides its bytes: what the allocator, the reference counts, and the windows of the workers take.
const EVENT_OVERHEAD: usize = 160;

impl EventBlock {
    /// The bytes of memory that the event takes.
    pub(super) fn held_bytes(&self) -> usize {
        self.bytes.len() + self.id.as_ref().map_or(0, |id| id.len()) + EVENT_OVERHEAD
    }
}

/// Without the time.
impl PartialEq for EventBlock {
    fn eq(&self, other: &Self) -> bool {
        (&self.bytes, &self.id) == (&other.bytes, &other.id)
    }
}

/// A block is larger than `MOST_BLOCK_BYTES`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BlockTooLarge;

/// Splits a stream that is received in pieces.
#[derive(Default)]
pub(super) struct BlockReader {
    reader: EventReader,
    block: Vec<u8>,
    has_begun: bool,
    retry: Option<Duration>,
}

impl BlockReader {
    /// Adds the blocks that this piece completes to `blocks`.
    ///
    /// # Errors
    /// A block is too large; the stream cannot be read any further.
    pub(super) fn read(&mut self, mut piece: &[u8], blocks: &mut Vec<Arc<EventBlock>>) -> Result<(), BlockTooLarge> {
        while let Some(part) = self.reader.next(piece) {
            let (bytes, rest) = piece.split_at(part.bytes());
            piece = rest;
            match part {
                EventPart::Lines(_) | EventPart::Event(_) => self.block.extend_from_slice(bytes),
                EventPart::Ends { .. } => blocks.extend(self.complete()),
                EventPart::Comment(_) | EventPart::Begins | EventPart::LineFeed => {}
            }
            if self.block.len() > MOST_BLOCK_BYTES {
                return Err(BlockTooLarge);
            }
        }
        Ok(())
    }

    /// The bytes of memory that the block takes which has begun.
    pub(super) fn held_bytes(&self) -> usize {
        self.block.capacity()
    }

    /// The last retry time that the stream has set.
    pub(super) fn retry(&self) -> Option<Duration> {
        self.retry
    }

    fn complete(&mut self) -> Option<Arc<EventBlock>> {
        let mut block = std::mem::take(&mut self.block);
        if !std::mem::replace(&mut self.has_begun, true) && block.starts_with(BYTE_ORDER_MARK) {
            block.drain(..BYTE_ORDER_MARK.len());
        }
        let mut id = None;
        let mut is_empty = true;
        for line in block.split(|byte| matches!(byte, b'\r' | b'\n')).filter(|line| !line.is_empty()) {
            is_empty = false;
            let colon = memchr::memchr(b':', line);
            let (name, value) = line.split_at(colon.unwrap_or(line.len()));
            let value = value.strip_prefix(b":").unwrap_or(value);
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match name {
                b"id" if !value.contains(&0) => id = Some(value.into()),
                b"retry" => self.retry = milliseconds(value).or(self.retry),
                _ => {}
            }
        }
        (!is_empty).then(|| Arc::new(EventBlock { received: Instant::now(), bytes: block.into(), id }))
    }
}

/// A number of digits only; anything else is ignored.
fn milliseconds(value: &[u8]) -> Option<Duration> {
    let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&[u8]]) -> (Vec<(String, Option<String>)>, Option<Duration>) {
        let (mut reader, mut blocks) = (BlockReader::default(), Vec::new());
        for piece in pieces {
            reader.read(piece, &mut blocks).expect("small events");
        }
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        let said = blocks.iter().map(|block| (text(&block.bytes), block.id.as_deref().map(text))).collect();
        (said, reader.retry())
    }

    #[test]
    fn blocks_come_whole_and_without_the_comments_between_them() {
        let stream = b"\xef\xbb\xbf: hi\n\n: note\nid: 7\n: note\ndata: a\ndata: b\n\nretry: 250\n\n\n\ndata: open";
        let want =
            vec![("id: 7\\ndata: a\\ndata: b\\n\\n".into(), Some("7".into())), ("retry: 250\\n\\n".into(), None)];
        let single: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(read(&[stream]), (want.clone(), Some(Duration::from_millis(250))));
        assert_eq!(read(&single).0, want);
    }

    #[test]
    fn any_end_of_line_ends_a_line() {
        for end in ["\r", "\n", "\r\n"] {
            let stream = "id:1\ndata: a\n\nid\ndata: b\n\n".replace('\n', end);
            let ids: Vec<_> = read(&[stream.as_bytes()]).0.into_iter().map(|(_, id)| id).collect();
            assert_eq!(ids, [Some("1".to_owned()), Some(String::new())], "{end:?}");
        }
    }

    #[test]
    fn invalid_id_and_retry_are_ignored() {
        let (blocks, retry) = read(&[b"id: a\0b\nretry: 5s\ndata\n\n"]);
        assert_eq!((blocks[0].1.as_deref(), retry), (None, None));
    }

    #[test]
    fn an_endless_event_is_refused() {
        let (mut reader, mut blocks) = (BlockReader::default(), Vec::new());
        let piece = [b'x'; 64 * 1024];
        let ends = (0..100).any(|_| reader.read(&piece, &mut blocks).is_err());
        assert!(ends && blocks.is_empty());
    }
}
