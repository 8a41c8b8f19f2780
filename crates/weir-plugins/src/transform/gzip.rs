use std::io::Write;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Build, ConfigError, Definition, Exchange, Filter, Phases, Plugin, Stage, Stop};

use crate::transform::compression::{CompressionConditions, MinHttpVersion, Types};

/// Compresses responses with gzip for clients that accept it.
///
/// Responses that have a `Content-Encoding` already, partial content (206), and messages with `Cache-Control:
/// no-transform` are not compressed. Compressed content is flushed as it arrives, so the events of a stream are not
/// delayed.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Gzip {
    /// Media types of the responses that are compressed, or `"*"` for all.
    #[serde(default = "Types::html")]
    #[schemars(extend("default" = ["text/html"]))]
    types: Types,
    /// Responses whose `Content-Length` is smaller, in bytes, are not compressed.
    #[serde(default = "default_min_length")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    min_length: u64,
    /// The compression level: 1 is the fastest, 9 compresses best.
    #[serde(default = "default_comp_level")]
    #[schemars(range(min = 1, max = 9))]
    comp_level: u32,
    /// The lowest HTTP version of requests whose responses are compressed.
    #[serde(default)]
    #[schemars(extend("default" = 1.1))]
    http_version: MinHttpVersion,
    /// Adds `Vary: Accept-Encoding`, so that caches store the compressed and the uncompressed response separately.
    /// APISIX's default is `false`.
    #[serde(default = "default_true")]
    vary: bool,
    /// Accepted for compatibility with APISIX. Has no effect, because compressed content is not buffered.
    #[expect(dead_code, reason = "compressed content is not buffered")]
    #[schemars(extend("deprecated" = true))]
    buffers: Option<BufferOptions>,
}

/// Numbers of nginx's buffers.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "compressed content is not buffered")]
struct BufferOptions {
    /// The number of buffers.
    #[schemars(range(min = 1))]
    number: Option<u64>,
    /// The size of a buffer, in bytes.
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    size: Option<u64>,
}

fn default_min_length() -> u64 {
    20
}

fn default_comp_level() -> u32 {
    1
}

fn default_true() -> bool {
    true
}

impl Definition for Gzip {
    const NAME: &'static str = "gzip";
    const PRIORITY: i32 = 995;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "gzip: { types: [text/html, application/json], min_length: 256 }";

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let terms = CompressionConditions {
            types: self.types,
            min_length: self.min_length,
            oldest: self.http_version,
            vary: self.vary,
        };
        Ok(Arc::new(GzipCompressor { terms, level: Compression::new(self.comp_level) }))
    }
}

struct GzipCompressor {
    terms: CompressionConditions,
    level: Compression,
}

impl Plugin for GzipCompressor {
    fn phases(&self) -> Phases {
        Phases { response: true, ..Phases::RESPONSE_BODY }
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        self.terms.offer("gzip", exchange);
        self.terms.complete_head("gzip", exchange)
    }

    fn response_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        Ok(match self.terms.apply("gzip", exchange)? {
            true => Some(Box::new(GzipStream(GzEncoder::new(Vec::new(), self.level)))),
            false => None,
        })
    }
}

struct GzipStream(GzEncoder<Vec<u8>>);

impl Filter for GzipStream {
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), Stop> {
        self.0.write_all(piece).map_err(|_| Stop::Internal)?;
        out.append(self.0.get_mut());
        Ok(())
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        self.0.flush().map_err(|_| Stop::Internal)?;
        out.append(self.0.get_mut());
        Ok(())
    }

    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        self.0.try_finish().map_err(|_| Stop::Internal)?;
        out.append(self.0.get_mut());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;
    use serde_json::json;
    use weir_plugin::proto::Framing;

    use super::*;
    use crate::testing::{build, exchange, refused};

    fn filter(step: &Arc<dyn Plugin>) -> Box<dyn Filter> {
        let mut exchange = exchange("GET / HTTP/1.1\nHost: h\nAccept-Encoding: gzip");
        exchange.response.framing = Framing::Chunked;
        exchange.response.head.add(b"Content-Type", b"text/html").expect("valid");
        step.response_filter(&mut exchange).expect("no error").expect("it compresses")
    }

    #[test]
    fn content_comes_back_and_what_was_flushed_comes_at_once() {
        let mut filter = filter(&build::<Gzip>(json!({"comp_level": 9})));
        let mut out = Vec::new();
        let mut said = String::new();
        for piece in ["data: 1\n\n", "", "data: 2\n\n"] {
            filter.piece(piece.as_bytes(), &mut out).expect("taken");
            filter.flush(&mut out).expect("flushed");
            said.push_str(piece);
            let mut so_far = vec![0; said.len()];
            GzDecoder::new(&*out).read_exact(&mut so_far).expect("all of it is there");
            assert_eq!(so_far, said.as_bytes());
        }
        filter.end(&mut out).expect("ended");
        let mut all = String::new();
        GzDecoder::new(&*out).read_to_string(&mut all).expect("complete");
        assert_eq!(all, said);
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"types": "text/html"}), "types: expected `*` or a list, found the text"),
            (json!({"http_version": 2}), "http_version: expected one of `1.1`, `1`, found the number 2"),
        ] {
            let error = refused::<Gzip>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
