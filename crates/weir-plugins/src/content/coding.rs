//! Decodes content codings for plugins that inspect content, up to a limit.

use std::borrow::Cow;
use std::io::{ErrorKind, Read};

use brotli::Decompressor;
use flate2::read::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use weir_plugin::proto::{Head, field};
use weir_plugin::{Exchange, Stop};

/// Why content could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opaque {
    /// The coding is not supported, or there are several.
    UnknownCoding,
    /// The decoded content is larger than the limit, or suspiciously large in relation to the encoded content.
    TooLarge,
    /// The content is not valid in its coding.
    Broken,
}

impl Opaque {
    /// The status for a request: RFC 9110 §15.5.16, §15.5.14.
    pub(crate) fn status(self) -> u16 {
        match self {
            Opaque::UnknownCoding => 415,
            Opaque::TooLarge => 413,
            Opaque::Broken => 400,
        }
    }

    /// The end of an exchange whose response cannot be decoded.
    pub(crate) fn stop_of_response(self) -> Stop {
        match self {
            Opaque::TooLarge => Stop::ResponseTooLarge,
            Opaque::UnknownCoding | Opaque::Broken => Stop::Respond(502),
        }
    }
}

/// The largest ratio of decoded to encoded content; beyond it, the content is taken for a decompression bomb.
const MOST_GROWTH: u64 = 100;
/// Content up to this size may exceed the ratio: codings have fixed costs, and this much does no harm.
const HARMLESS: u64 = 64 << 10;
/// The size of the decoder's buffer in bytes.
const BUFFER: usize = 4096;

/// A content coding that can be decoded (RFC 9110 §8.4.1, RFC 7932).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentCoding {
    Gzip,
    Deflate,
    Brotli,
}

impl ContentCoding {
    /// The name in `Content-Encoding`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            ContentCoding::Gzip => "gzip",
            ContentCoding::Deflate => "deflate",
            ContentCoding::Brotli => "br",
        }
    }

    /// The coding of a message; `None` if it has none.
    ///
    /// # Errors
    /// The coding is not supported, or there are several.
    pub(crate) fn of(head: &Head) -> Result<Option<ContentCoding>, Opaque> {
        let mut codings =
            head.values(b"content-encoding").flat_map(field::list).filter(|coding| !eq_ignore_case(coding, "identity"));
        let (coding, another) = (codings.next(), codings.next());
        let Some(coding) = coding else { return Ok(None) };
        if another.is_some() {
            return Err(Opaque::UnknownCoding);
        }
        match coding {
            _ if eq_ignore_case(coding, "gzip") || eq_ignore_case(coding, "x-gzip") => Ok(Some(ContentCoding::Gzip)),
            _ if eq_ignore_case(coding, "deflate") => Ok(Some(ContentCoding::Deflate)),
            _ if eq_ignore_case(coding, "br") => Ok(Some(ContentCoding::Brotli)),
            _ => Err(Opaque::UnknownCoding),
        }
    }
}

/// How decoding has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecodedEnd {
    Complete,
    /// The encoded content ends before its coding does.
    Truncated,
    /// The rest is not valid in its coding, or, in brotli, missing: its reader does not tell one from the other.
    Corrupt,
    /// The rest exceeds the limit, or is suspiciously large in relation to the encoded content.
    Limit,
}

/// The decoded content of a message, up to `limit` bytes. Empty content is taken as it is, although no coding makes it: servers
/// send it with `Content-Encoding`, and there is nothing to decode.
pub(crate) fn plain<'a>(head: &Head, body: &'a [u8], limit: u64) -> Result<Cow<'a, [u8]>, Opaque> {
    let Some(coding) = ContentCoding::of(head)?.filter(|_| !body.is_empty()) else { return Ok(Cow::Borrowed(body)) };
    match decoded(coding, body, limit) {
        (plain, DecodedEnd::Complete) => Ok(Cow::Owned(plain)),
        (_, DecodedEnd::Limit) => Err(Opaque::TooLarge),
        (_, DecodedEnd::Truncated | DecodedEnd::Corrupt) => Err(Opaque::Broken),
    }
}

/// Decodes as much of the content as is valid, and at most `limit` bytes of it.
pub(crate) fn decoded(coding: ContentCoding, body: &[u8], limit: u64) -> (Vec<u8>, DecodedEnd) {
    let limit = limit.min((body.len() as u64).saturating_mul(MOST_GROWTH).max(HARMLESS)) as usize;
    match coding {
        ContentCoding::Gzip => read(MultiGzDecoder::new(body), limit),
        ContentCoding::Brotli => read(Decompressor::new(body, BUFFER), limit),
        // Some servers omit the zlib wrapper that RFC 9110 §8.4.1.2 requires.
        ContentCoding::Deflate => inflated(Decompress::new(is_zlib(body)), body, limit),
    }
}

fn read(mut decoder: impl Read, limit: usize) -> (Vec<u8>, DecodedEnd) {
    let (mut plain, mut piece) = (Vec::new(), [0; BUFFER]);
    loop {
        match decoder.read(&mut piece) {
            Ok(0) => return (plain, DecodedEnd::Complete),
            Ok(count) => plain.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return (plain, DecodedEnd::Truncated),
            Err(_) => return (plain, DecodedEnd::Corrupt),
        }
        if plain.len() > limit {
            plain.truncate(limit);
            return (plain, DecodedEnd::Limit);
        }
    }
}

/// Like [`read`], for `deflate`: the reader of this coding takes truncated content for complete.
fn inflated(mut decoder: Decompress, body: &[u8], limit: usize) -> (Vec<u8>, DecodedEnd) {
    let mut plain = Vec::new();
    loop {
        plain.reserve(BUFFER);
        let (before_in, before_out) = (decoder.total_in(), decoder.total_out());
        let rest = &body[before_in as usize..];
        let status = decoder.decompress_vec(rest, &mut plain, FlushDecompress::None);
        if plain.len() > limit {
            plain.truncate(limit);
            return (plain, DecodedEnd::Limit);
        }
        match status {
            Ok(Status::StreamEnd) => return (plain, DecodedEnd::Complete),
            Ok(_) if (decoder.total_in(), decoder.total_out()) == (before_in, before_out) => {
                return (plain, DecodedEnd::Truncated);
            }
            Ok(_) => {}
            Err(_) => return (plain, DecodedEnd::Corrupt),
        }
    }
}

/// Makes the upstream send complete and uncoded content: several ranges could be put together after they have passed
/// inspection separately.
pub(crate) fn ask_for_plain(exchange: &mut Exchange) {
    for name in [&b"Accept-Encoding"[..], b"Range", b"If-Range"] {
        exchange.request.head.remove(name);
    }
}

/// Whether a zlib header is present: the method, and the checksum of the first two bytes (RFC 1950 §2.2).
fn is_zlib(body: &[u8]) -> bool {
    matches!(body, [method, flags, ..] if method & 15 == 8 && u16::from_be_bytes([*method, *flags]).is_multiple_of(31))
}

fn eq_ignore_case(text: &[u8], word: &str) -> bool {
    text.eq_ignore_ascii_case(word.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use brotli::CompressorWriter;
    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

    use super::*;

    fn gzipped(content: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(content).expect("memory takes everything");
        encoder.finish().expect("memory takes everything")
    }

    fn head(coding: &str) -> Head {
        let mut head = Head::default();
        head.add(b"Content-Encoding", coding.as_bytes()).expect("valid");
        head
    }

    #[test]
    fn content_comes_back_from_its_coding() {
        let mut brotli = Vec::new();
        CompressorWriter::new(&mut brotli, BUFFER, 5, 20).write_all(b"hello").expect("memory takes everything");
        assert_eq!(plain(&Head::default(), b"hello", 9).as_deref(), Ok(&b"hello"[..]));
        assert_eq!(plain(&head("identity"), b"hello", 9).as_deref(), Ok(&b"hello"[..]));
        for coding in ["gzip", "deflate", "br"] {
            assert_eq!(plain(&head(coding), b"", 9).as_deref(), Ok(&b""[..]), "{coding}");
        }
        assert_eq!(plain(&head("GZIP"), &gzipped(b"hello"), 9).as_deref(), Ok(&b"hello"[..]));
        assert_eq!(plain(&head("br"), &brotli, 9).as_deref(), Ok(&b"hello"[..]));
        assert_eq!(plain(&head("gzip"), &gzipped(b"hello"), 4), Err(Opaque::TooLarge));
        assert_eq!(plain(&head("gzip"), b"hello", 9), Err(Opaque::Broken));
        assert_eq!(plain(&head("gzip"), &gzipped(b"hello")[..20], 9), Err(Opaque::Broken));
        for coding in ["zstd", "gzip, gzip", "br, gzip"] {
            assert_eq!(plain(&head(coding), b"hello", 9), Err(Opaque::UnknownCoding), "{coding}");
        }
    }

    #[test]
    fn u18_deflate_comes_with_and_without_its_envelope() {
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::best());
        zlib.write_all(b"hello").expect("memory takes everything");
        let mut bare = DeflateEncoder::new(Vec::new(), Compression::best());
        bare.write_all(b"hello").expect("memory takes everything");
        for body in [zlib.finish().expect("in memory"), bare.finish().expect("in memory")] {
            assert_eq!(plain(&head("deflate"), &body, 9).as_deref(), Ok(&b"hello"[..]));
            assert_eq!(plain(&head("deflate"), &body, 4), Err(Opaque::TooLarge));
        }
    }

    fn brotli(content: &[u8]) -> Vec<u8> {
        let mut encoded = Vec::new();
        CompressorWriter::new(&mut encoded, BUFFER, 5, 20).write_all(content).expect("memory takes everything");
        encoded
    }

    fn deflated(content: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(content).expect("memory takes everything");
        encoder.finish().expect("memory takes everything")
    }

    #[test]
    fn decoder_returns_what_it_could_decode_and_how_the_content_ended() {
        let content: Vec<u8> =
            (0..20_000_u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_string().into_bytes()).collect();
        for (coding, encoded) in [
            (ContentCoding::Gzip, gzipped(&content)),
            (ContentCoding::Deflate, deflated(&content)),
            (ContentCoding::Brotli, brotli(&content)),
        ] {
            let whole = decoded(coding, &encoded, 1 << 20);
            assert_eq!((whole.0 == content, whole.1), (true, DecodedEnd::Complete), "{coding:?}");
            let (cut, end) = decoded(coding, &encoded[..encoded.len() / 2], 1 << 20);
            let is_brotli = coding == ContentCoding::Brotli;
            let want = if is_brotli { DecodedEnd::Corrupt } else { DecodedEnd::Truncated };
            assert_eq!(end, want, "{coding:?}");
            assert!(!cut.is_empty() && content.starts_with(&cut), "{coding:?}: {}", cut.len());
            let (start, end) = decoded(coding, &encoded, 100);
            assert_eq!((&*start, end), (&content[..100], DecodedEnd::Limit), "{coding:?}");
            assert_eq!(
                decoded(coding, b"\xff\xff\xff\xff no such coding", 100),
                (Vec::new(), DecodedEnd::Corrupt),
                "{coding:?}"
            );
            let mut broken = encoded.clone();
            let middle = encoded.len() / 2;
            broken[middle..middle + 64].fill(0xff);
            let (start, end) = decoded(coding, &broken, 1 << 20);
            assert!(end != DecodedEnd::Complete && start != content, "{coding:?}");
        }
    }

    #[test]
    fn truncated_content_is_broken_in_every_coding() {
        for (name, encoded) in [("gzip", gzipped(b"hello")), ("deflate", deflated(b"hello")), ("br", brotli(b"hello"))]
        {
            for cut in 1..encoded.len() {
                assert_eq!(plain(&head(name), &encoded[..cut], 9), Err(Opaque::Broken), "{name} {cut}");
            }
        }
    }

    #[test]
    fn r04_bombs_do_not_go_off() {
        let bomb = gzipped(&vec![0; 4 << 20]);
        assert!(bomb.len() < 8 << 10);
        assert_eq!(plain(&head("gzip"), &bomb, 1 << 30), Err(Opaque::TooLarge));
        let mut bomb = Vec::new();
        let zeros = vec![0; 4 << 20];
        CompressorWriter::new(&mut bomb, BUFFER, 5, 20).write_all(&zeros).expect("memory takes everything");
        assert!(bomb.len() < 1 << 10);
        assert_eq!(plain(&head("br"), &bomb, 1 << 30), Err(Opaque::TooLarge));
        assert_eq!(plain(&head("gzip"), &gzipped(&[0; 60_000]), 1 << 30).map(|plain| plain.len()), Ok(60_000));
    }
}
