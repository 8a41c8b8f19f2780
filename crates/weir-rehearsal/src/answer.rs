//! An answer of a gateway, as far as it is compared.

use std::hash::{DefaultHasher, Hasher};
use std::io::Read;

/// Why there is no complete answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AnswerAbsence {
    /// The name cannot be resolved, or no connection can be opened.
    Connect(String),
    Tls(String),
    TimedOut(String),
    /// The connection ended before the answer was complete, or what came is no HTTP.
    Broken(String),
}

impl AnswerAbsence {
    pub(crate) fn reason(&self) -> &str {
        let (AnswerAbsence::Connect(reason)
        | AnswerAbsence::Tls(reason)
        | AnswerAbsence::TimedOut(reason)
        | AnswerAbsence::Broken(reason)) = self;
        reason
    }
}

/// A complete answer, or why there is none.
pub(crate) type AnswerOutcome = Result<RehearsedAnswer, AnswerAbsence>;

#[derive(Clone, Debug, Default)]
pub(crate) struct RehearsedAnswer {
    pub(crate) status: u16,
    /// Names in lower case; values of one name in their order.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: ComparedBody,
    /// Whether the request was one for the head alone.
    pub(crate) is_head: bool,
}

impl RehearsedAnswer {
    /// The values of a field, one for each line.
    pub(crate) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.fields.iter().filter(move |(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }
}

/// Of a body that is longer than what is kept, length and hash are compared.
#[derive(Clone, Debug, Default)]
pub(crate) struct ComparedBody {
    pub(crate) kept: Vec<u8>,
    pub(crate) length: u64,
    /// Of all bytes, also of those that are not kept.
    pub(crate) hash: u64,
    /// The rest was not read: it is too long, or has no end.
    pub(crate) is_cut: bool,
}

impl ComparedBody {
    pub(crate) fn is_whole(&self) -> bool {
        self.kept.len() as u64 == self.length
    }
}

/// Reads a body piece by piece.
#[derive(Default)]
pub(crate) struct ComparedBodyReader {
    body: ComparedBody,
    hasher: DefaultHasher,
}

impl ComparedBodyReader {
    /// Keeps at most `max_bytes` in all.
    pub(crate) fn add(&mut self, piece: &[u8], max_bytes: usize) {
        let room = max_bytes.saturating_sub(self.body.kept.len());
        self.body.kept.extend_from_slice(&piece[..piece.len().min(room)]);
        self.body.length += piece.len() as u64;
        self.hasher.write(piece);
    }

    pub(crate) fn length(&self) -> u64 {
        self.body.length
    }

    /// The rest is not read.
    pub(crate) fn cut(&mut self) {
        self.body.is_cut = true;
    }

    pub(crate) fn end(mut self) -> ComparedBody {
        self.body.hash = self.hasher.finish();
        self.body
    }
}

/// Why a body is not available without its coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UndecodedBody {
    /// The coding is not known, or not the whole body was kept.
    Unknown,
    Broken,
    /// The content is larger than what is compared.
    TooLarge,
}

/// A body without its `Content-Encoding`.
///
/// # Errors
/// The coding is not known, the body is not valid in it, or the content has more than `max_bytes`.
pub(crate) fn decoded(body: &[u8], coding: &str, max_bytes: usize) -> Result<Vec<u8>, UndecodedBody> {
    let mut reader: Box<dyn Read + '_> = match coding.trim().to_ascii_lowercase().as_str() {
        "" | "identity" => return Ok(body.to_vec()),
        "gzip" | "x-gzip" => Box::new(flate2::read::MultiGzDecoder::new(body)),
        "deflate" => Box::new(flate2::read::ZlibDecoder::new(body)),
        "br" => Box::new(brotli::Decompressor::new(body, 4096)),
        _ => return Err(UndecodedBody::Unknown),
    };
    let mut content = Vec::new();
    reader.by_ref().take(max_bytes as u64 + 1).read_to_end(&mut content).map_err(|_| UndecodedBody::Broken)?;
    if content.len() > max_bytes { Err(UndecodedBody::TooLarge) } else { Ok(content) }
}

#[cfg(test)]
pub(crate) fn answer_of(status: u16, fields: &[(&str, &str)], body: &[u8]) -> RehearsedAnswer {
    let mut reader = ComparedBodyReader::default();
    reader.add(body, 1 << 20);
    let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    RehearsedAnswer { status, fields, body: reader.end(), is_head: false }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn bodies_are_kept_up_to_their_limit() {
        let mut reader = ComparedBodyReader::default();
        reader.add(b"abc", 4);
        reader.add(b"def", 4);
        let body = reader.end();
        assert_eq!((&*body.kept, body.length, body.is_whole()), (&b"abcd"[..], 6, false));
    }

    #[test]
    fn bodies_are_decoded_up_to_their_limit() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&[b'a'; 1000]).expect("memory");
        let body = encoder.finish().expect("memory");
        assert_eq!(decoded(&body, "gzip", 1000), Ok(vec![b'a'; 1000]));
        assert_eq!(decoded(&body, "GZIP", 999), Err(UndecodedBody::TooLarge));
        assert_eq!(decoded(&body[..10], "gzip", 1000), Err(UndecodedBody::Broken));
        assert_eq!(decoded(b"x", "zstd", 1000), Err(UndecodedBody::Unknown));
    }
}
