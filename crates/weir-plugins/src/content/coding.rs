//! Decodes content codings for plugins that inspect content, up to a limit.

use std::borrow::Cow;
use std::io::Read;

use brotli::Decompressor;
use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use weir_plugin::Exchange;
use weir_plugin::proto::{Head, field};

/// Why content could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opaque {
    /// The coding is not supported, or there are several.
    UnknownCoding,
    /// The decoded content is larger than the limit, or suspiciously large in relation to the encoded content.
    TooLarge,
    /// The content is not valid in its coding.
    Broken,
}

impl Opaque {
    /// The status for a request: RFC 9110 §15.5.16, §15.5.14.
    pub fn status(self) -> u16 {
        match self {
            Opaque::UnknownCoding => 415,
            Opaque::TooLarge => 413,
            Opaque::Broken => 400,
        }
    }
}

/// The largest ratio of decoded to encoded content; beyond it, the content is taken for a decompression bomb.
const MOST_GROWTH: u64 = 100;
/// Content up to this size may exceed the ratio: codings have fixed costs, and this much does no harm.
const HARMLESS: u64 = 64 << 10;
/// The size of the decoder's buffer in bytes.
const BUFFER: usize = 4096;

/// The decoded content of a message, up to `limit` bytes.
pub fn plain<'a>(head: &Head, body: &'a [u8], limit: u64) -> Result<Cow<'a, [u8]>, Opaque> {
    let mut codings =
        head.values(b"content-encoding").flat_map(field::list).filter(|coding| !eq_ignore_case(coding, "identity"));
    let (coding, another) = (codings.next(), codings.next());
    match coding {
        None => Ok(Cow::Borrowed(body)),
        Some(_) if another.is_some() => Err(Opaque::UnknownCoding),
        Some(coding) if eq_ignore_case(coding, "gzip") || eq_ignore_case(coding, "x-gzip") => {
            decoded(MultiGzDecoder::new(body), body, limit).map(Cow::Owned)
        }
        Some(coding) if eq_ignore_case(coding, "deflate") && is_zlib(body) => {
            decoded(ZlibDecoder::new(body), body, limit).map(Cow::Owned)
        }
        // Some servers omit the zlib wrapper that RFC 9110 §8.4.1.2 requires.
        Some(coding) if eq_ignore_case(coding, "deflate") => {
            decoded(DeflateDecoder::new(body), body, limit).map(Cow::Owned)
        }
        Some(coding) if eq_ignore_case(coding, "br") => {
            decoded(Decompressor::new(body, BUFFER), body, limit).map(Cow::Owned)
        }
        Some(_) => Err(Opaque::UnknownCoding),
    }
}

/// Makes the upstream send complete and uncoded content: several ranges could be put together after they have passed
/// inspection separately.
pub fn ask_for_plain(exchange: &mut Exchange) {
    for name in [&b"Accept-Encoding"[..], b"Range", b"If-Range"] {
        exchange.request.head.remove(name);
    }
}

fn decoded(decoder: impl Read, body: &[u8], limit: u64) -> Result<Vec<u8>, Opaque> {
    let limit = limit.min((body.len() as u64).saturating_mul(MOST_GROWTH).max(HARMLESS));
    let mut plain = Vec::new();
    decoder.take(limit.saturating_add(1)).read_to_end(&mut plain).map_err(|_| Opaque::Broken)?;
    if plain.len() as u64 > limit { Err(Opaque::TooLarge) } else { Ok(plain) }
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
