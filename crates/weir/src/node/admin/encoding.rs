//! Content codings of responses (RFC 9110 §8.4).

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::header::{ACCEPT_ENCODING, HeaderMap};

const BROTLI_WINDOW: u32 = 22;
const BROTLI_BUFFER: usize = 4 << 10;

/// A coding that browsers know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerCoding {
    Brotli,
    Gzip,
}

impl AnswerCoding {
    /// The best coding that a client accepts.
    pub(super) fn accepted(headers: &HeaderMap) -> Option<AnswerCoding> {
        [AnswerCoding::Brotli, AnswerCoding::Gzip]
            .into_iter()
            .find(|coding| accepts(headers, ACCEPT_ENCODING.as_str(), coding.name()))
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            AnswerCoding::Brotli => "br",
            AnswerCoding::Gzip => "gzip",
        }
    }

    /// Encodes for a response that is sent many times (`is_kept`), or once.
    pub(super) fn encode(self, plain: &[u8], is_kept: bool) -> io::Result<Vec<u8>> {
        match self {
            AnswerCoding::Brotli => brotli(plain, if is_kept { 9 } else { 3 }),
            AnswerCoding::Gzip => gzip(plain, if is_kept { Compression::best() } else { Compression::fast() }),
        }
    }
}

/// Whether a list of a field names something, and does not refuse it by `q=0`.
pub(super) fn accepts(headers: &HeaderMap, field: &str, wanted: &str) -> bool {
    let lists = headers.get_all(field).iter().filter_map(|value| value.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|item| {
        let mut parts = item.split(';').map(str::trim);
        let is_named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(wanted));
        let is_refused = |part: &str| {
            let weight = part.strip_prefix("q=").or_else(|| part.strip_prefix("Q="));
            weight.and_then(|weight| weight.parse::<f32>().ok()) == Some(0.0)
        };
        is_named && !parts.any(is_refused)
    })
}

fn brotli(plain: &[u8], quality: u32) -> io::Result<Vec<u8>> {
    let mut encoded = Vec::with_capacity(plain.len() / 4);
    let mut writer = brotli::CompressorWriter::new(&mut encoded, BROTLI_BUFFER, quality, BROTLI_WINDOW);
    writer.write_all(plain)?;
    writer.flush()?;
    drop(writer);
    Ok(encoded)
}

fn gzip(plain: &[u8], level: Compression) -> io::Result<Vec<u8>> {
    let mut writer = GzEncoder::new(Vec::with_capacity(plain.len() / 4), level);
    writer.write_all(plain)?;
    writer.finish()
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn the_best_coding_is_one_that_the_client_has_not_refused() {
        let of = |text: &'static str| {
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(text))]);
            AnswerCoding::accepted(&headers)
        };
        assert_eq!(of("gzip, deflate, br, zstd"), Some(AnswerCoding::Brotli));
        assert_eq!(of("GZIP;q=0.5, br;q=0"), Some(AnswerCoding::Gzip));
        assert_eq!(of("gzip; q=0.0"), None);
        assert_eq!(of("deflate, brx"), None);
        assert_eq!(AnswerCoding::accepted(&HeaderMap::new()), None);
    }
}
