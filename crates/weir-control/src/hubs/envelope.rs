//! An event as a JSON object with its id, type and content, in pieces: one listener that does not read holds a piece, not a copy of the
//! content.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use weir_hub::Event;

/// The most bytes of content in one piece: a multiple of three, so that pieces of base64 can follow each other.
const CONTENT_PER_PIECE: usize = 6 * 1024;

/// The pieces of an envelope, one after the other.
pub(super) struct Envelope<'a> {
    /// The beginning of the object, until it is taken.
    start: Option<String>,
    content: EnvelopeContent<'a>,
    is_over: bool,
}

/// The rest of the content.
enum EnvelopeContent<'a> {
    Text(&'a str),
    Binary(&'a [u8]),
}

impl<'a> Envelope<'a> {
    pub(super) fn new(event: &'a Event) -> Envelope<'a> {
        let (key, content) = match std::str::from_utf8(&event.content) {
            Ok(text) => ("data", EnvelopeContent::Text(text)),
            Err(_) => ("data_base64", EnvelopeContent::Binary(&event.content)),
        };
        let start = format!("{{\"id\":{},\"type\":{},\"{key}\":\"", event.seq, json!(event.content_type));
        Envelope { start: Some(start), content, is_over: false }
    }
}

impl Iterator for Envelope<'_> {
    /// The bytes of a piece, and whether it is the last one.
    type Item = (Vec<u8>, bool);

    fn next(&mut self) -> Option<(Vec<u8>, bool)> {
        if self.is_over {
            return None;
        }
        let mut piece = self.start.take().unwrap_or_default().into_bytes();
        self.is_over = match &mut self.content {
            EnvelopeContent::Text(text) => {
                let (part, rest) = text.split_at(text.floor_char_boundary(CONTENT_PER_PIECE));
                // Characters are escaped one by one, so that escaped parts can follow each other.
                let escaped = json!(part).to_string();
                piece.extend_from_slice(&escaped.as_bytes()[1..escaped.len() - 1]);
                *text = rest;
                rest.is_empty()
            }
            EnvelopeContent::Binary(bytes) => {
                let (part, rest) = bytes.split_at(bytes.len().min(CONTENT_PER_PIECE));
                piece.extend_from_slice(STANDARD.encode(part).as_bytes());
                *bytes = rest;
                rest.is_empty()
            }
        };
        if self.is_over {
            piece.extend_from_slice(b"\"}");
        }
        Some((piece, self.is_over))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn event(content: Vec<u8>) -> Event {
        let topic = "http://t.example/".into();
        Event { seq: 7, time_ms: 0, topic, content_type: "text/plain; q=\"x\"".into(), content: content.into() }
    }

    fn enveloped(content: &[u8]) -> (usize, Value) {
        let event = event(content.to_vec());
        let pieces: Vec<(Vec<u8>, bool)> = Envelope::new(&event).collect();
        let ends: Vec<bool> = pieces.iter().map(|(_, is_last)| *is_last).collect();
        assert!(ends.iter().rposition(|is_last| !is_last).is_none_or(|at| at + 2 == ends.len()), "{ends:?}");
        let bytes: Vec<u8> = pieces.iter().flat_map(|(piece, _)| piece.iter().copied()).collect();
        (pieces.len(), serde_json::from_slice(&bytes).expect("JSON"))
    }

    #[test]
    fn an_event_is_one_object_whatever_its_size() {
        for (content, pieces) in
            [("", 1), ("a\n\"b\"\u{1}", 1), (&*"x".repeat(CONTENT_PER_PIECE), 1), (&*"é\u{1f980}\"\\".repeat(3_000), 4)]
        {
            let expected = json!({"id": 7, "type": "text/plain; q=\"x\"", "data": content});
            assert_eq!(enveloped(content.as_bytes()), (pieces, expected));
        }
        for (length, pieces) in [(2, 1), (CONTENT_PER_PIECE + 1, 2), (20_000, 4)] {
            let content: Vec<u8> = (0..length).map(|number| 0xff ^ (number % 7) as u8).collect();
            let expected = json!({"id": 7, "type": "text/plain; q=\"x\"", "data_base64": STANDARD.encode(&content)});
            assert_eq!(enveloped(&content), (pieces, expected));
        }
    }
}
