//! Recorded content with a content coding, decoded for the record (`decode_body`).
//!
//! A worker appends a trailer to the content. The sink's thread decodes it when it writes the record, so that decoding delays no
//! request; only content that must pass a mask is decoded by the worker, since nothing leaves it without its masks.

use std::cell::Cell;

use crate::content::coding::{ContentCoding, DecodedEnd, decoded};

/// The length of a trailer: the coding, and the most bytes of decoded content.
const TRAILER: usize = 5;

/// Says that the content was decoded by the worker. Added to the number of a coding.
const IS_DECODED: u8 = 0x80;

/// The most bytes that are decoded for one batch of records, which is in memory as a whole. Content that comes later is recorded as
/// it was sent.
const MOST_IN_BATCH: usize = 16 << 20;

fn number(coding: ContentCoding) -> u8 {
    match coding {
        ContentCoding::Gzip => 1,
        ContentCoding::Deflate => 2,
        ContentCoding::Brotli => 3,
    }
}

fn coding(number: u8) -> Option<ContentCoding> {
    [ContentCoding::Gzip, ContentCoding::Deflate, ContentCoding::Brotli]
        .into_iter()
        .find(|it| self::number(*it) == number)
}

/// Appends the trailer to content in this coding, of which at most `most` decoded bytes are to be recorded.
pub(crate) fn mark_coded(content: &mut Vec<u8>, coding: ContentCoding, most: usize) {
    content.push(number(coding));
    // `most` is at most 64 MiB.
    content.extend_from_slice(&(most as u32).to_le_bytes());
}

/// Appends the trailer to content that was in this coding, and is decoded.
pub(crate) fn mark_decoded(content: &mut Vec<u8>, coding: ContentCoding) {
    content.push(number(coding) | IS_DECODED);
    content.extend_from_slice(&[0; TRAILER - 1]);
}

/// Content for a record.
pub(crate) struct RecordedContent<'a> {
    pub bytes: std::borrow::Cow<'a, [u8]>,
    /// The coding that the content was in, if it is decoded.
    pub decoded: Option<&'static str>,
    /// Why the content is not decoded, or not to its end.
    pub fault: Option<&'static str>,
}

impl<'a> RecordedContent<'a> {
    /// Content as it was sent.
    pub(crate) fn plain(bytes: &'a [u8]) -> RecordedContent<'a> {
        RecordedContent { bytes: bytes.into(), decoded: None, fault: None }
    }
}

/// Decodes the content of one batch of records.
pub(crate) struct BatchDecoder {
    left: Cell<usize>,
}

impl Default for BatchDecoder {
    fn default() -> BatchDecoder {
        BatchDecoder { left: Cell::new(MOST_IN_BATCH) }
    }
}

impl BatchDecoder {
    /// Content that ends with a trailer.
    pub(crate) fn content<'a>(&self, marked: &'a [u8]) -> RecordedContent<'a> {
        let Some((content, &[number, ref most @ ..])) = marked.split_last_chunk::<TRAILER>() else {
            return RecordedContent::plain(marked);
        };
        let Some(coding) = coding(number & !IS_DECODED) else { return RecordedContent::plain(content) };
        if number & IS_DECODED != 0 {
            return RecordedContent { bytes: content.into(), decoded: Some(coding.name()), fault: None };
        }
        let undecoded = |fault| RecordedContent { fault: Some(fault), ..RecordedContent::plain(content) };
        let most = u32::from_le_bytes(*most) as usize;
        if self.left.get() < most.min(HARMLESS) {
            return undecoded("too much content to decode");
        }
        let (bytes, end) = decoded(coding, content, most.min(self.left.get()) as u64);
        self.left.set(self.left.get() - bytes.len());
        let fault = match end {
            DecodedEnd::Complete => None,
            DecodedEnd::Truncated => Some("truncated"),
            DecodedEnd::Corrupt => Some("corrupt"),
            DecodedEnd::Limit => Some("too long"),
        };
        match (bytes.is_empty(), fault) {
            (true, Some(fault)) => undecoded(fault),
            _ => RecordedContent { bytes: bytes.into(), decoded: Some(coding.name()), fault },
        }
    }
}

/// A batch with less room than this has none.
const HARMLESS: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn marked(content: &[u8], most: usize) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(content).expect("memory takes everything");
        let mut marked = encoder.finish().expect("memory takes everything");
        mark_coded(&mut marked, ContentCoding::Gzip, most);
        marked
    }

    #[test]
    fn content_is_decoded_up_to_its_limit() {
        let decoder = BatchDecoder::default();
        let shown = |marked: &[u8]| {
            let RecordedContent { bytes, decoded, fault } = decoder.content(marked);
            (bytes.into_owned(), decoded, fault)
        };
        assert_eq!(shown(&marked(b"hello", 9)), (b"hello".to_vec(), Some("gzip"), None));
        assert_eq!(shown(&marked(b"hello", 4)), (b"hell".to_vec(), Some("gzip"), Some("too long")));
        let mut cut = marked(b"", 9);
        cut.drain(4..cut.len() - TRAILER);
        assert_eq!(shown(&cut), (b"\x1f\x8b\x08\x00".to_vec(), None, Some("truncated")), "as it was sent");
        let mut done = b"hello".to_vec();
        mark_decoded(&mut done, ContentCoding::Brotli);
        assert_eq!(shown(&done), (b"hello".to_vec(), Some("br"), None));
        for odd in [&b""[..], b"abc", b"abc\x07\0\0\0\0"] {
            assert_eq!(shown(odd), (odd[..odd.len().min(3)].to_vec(), None, None), "a record of another version");
        }
    }

    #[test]
    fn a_batch_of_bombs_does_not_go_off() {
        let bomb = marked(&vec![0; 4 << 20], 64 << 20);
        assert!(bomb.len() < 8 << 10);
        let decoder = BatchDecoder::default();
        let sizes: Vec<usize> = (0..1000).map(|_| decoder.content(&bomb).bytes.len()).collect();
        let all: usize = sizes.iter().sum();
        assert!(all < MOST_IN_BATCH + 1000 * bomb.len(), "{all}");
        assert!(sizes[0] > 100 << 10 && sizes[999] == bomb.len() - TRAILER);
    }
}
