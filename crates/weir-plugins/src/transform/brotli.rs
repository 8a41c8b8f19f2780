use std::io::Write;
use std::sync::Arc;

use brotli::CompressorWriter;
use brotli::enc::BrotliEncoderParams;
use brotli::enc::backward_references::BrotliEncoderMode;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Build, ConfigError, Definition, Exchange, Filter, Phases, Plugin, Stage, Stop};

use crate::transform::compression::{CompressionConditions, MinHttpVersion, Types};

/// Compresses responses with brotli for clients that accept it. Brotli compresses better than gzip and takes more time.
///
/// If a route has both `brotli` and `gzip`, clients that accept brotli get brotli, and other clients get gzip.
/// Responses that have a `Content-Encoding` already, partial content (206), and messages with `Cache-Control:
/// no-transform` are not compressed. Compressed content is flushed as it arrives, so the events of a stream are not
/// delayed.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Brotli {
    /// Media types of the responses that are compressed, or `"*"` for all.
    #[serde(default = "Types::html")]
    #[schemars(extend("default" = ["text/html"]))]
    types: Types,
    /// Responses whose `Content-Length` is smaller, in bytes, are not compressed.
    #[serde(default = "default_min_length")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    min_length: u64,
    /// The kind of content for which the encoder is tuned: 0 for any content, 1 for text, 2 for fonts.
    #[serde(default)]
    #[schemars(range(min = 0, max = 2))]
    mode: u8,
    /// The compression level: 0 is the fastest, 11 compresses best.
    #[serde(default = "default_comp_level")]
    #[schemars(range(min = 0, max = 11))]
    comp_level: u8,
    /// The window size, as a power of two: 0 (the same as 22), or 10 to 24.
    #[serde(default = "default_lgwin")]
    lgwin: u8,
    /// The block size, as a power of two: 0 (chosen by the compression level), or 16 to 24.
    #[serde(default)]
    lgblock: u8,
    /// The lowest HTTP version of requests whose responses are compressed.
    #[serde(default)]
    #[schemars(extend("default" = 1.1))]
    http_version: MinHttpVersion,
    /// Adds `Vary: Accept-Encoding`, so that caches store the compressed and the uncompressed response separately.
    /// APISIX's default is `false`.
    #[serde(default = "default_true")]
    vary: bool,
}

fn default_min_length() -> u64 {
    20
}

fn default_comp_level() -> u8 {
    6
}

fn default_lgwin() -> u8 {
    19
}

fn default_true() -> bool {
    true
}

/// The default window (log2): larger ones need much memory in the encoder and in the decoder.
const USUAL_WINDOW: u8 = 22;

impl Definition for Brotli {
    const NAME: &'static str = "brotli";
    const PRIORITY: i32 = 996;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "brotli: { types: [text/html, application/json], comp_level: 4 }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let mode = match self.mode {
            0 => BrotliEncoderMode::BROTLI_MODE_GENERIC,
            1 => BrotliEncoderMode::BROTLI_MODE_TEXT,
            _ => BrotliEncoderMode::BROTLI_MODE_FONT,
        };
        if self.lgwin != 0 && !(10..=24).contains(&self.lgwin) {
            build.fault("lgwin", "must be 0, or from 10 to 24");
        }
        if self.lgblock != 0 && !(16..=24).contains(&self.lgblock) {
            build.fault("lgblock", "must be 0, or from 16 to 24");
        }
        let terms = CompressionConditions {
            types: self.types,
            min_length: self.min_length,
            oldest: self.http_version,
            vary: self.vary,
        };
        let params = BrotliEncoderParams {
            mode,
            quality: self.comp_level.into(),
            lgwin: if self.lgwin == 0 { USUAL_WINDOW } else { self.lgwin }.into(),
            lgblock: self.lgblock.into(),
            ..BrotliEncoderParams::default()
        };
        Ok(Arc::new(BrotliCompressor { terms, params }))
    }
}

struct BrotliCompressor {
    terms: CompressionConditions,
    params: BrotliEncoderParams,
}

impl Plugin for BrotliCompressor {
    fn phases(&self) -> Phases {
        Phases { response: true, ..Phases::RESPONSE_BODY }
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        self.terms.offer("br", exchange);
        self.terms.complete_head("br", exchange)
    }

    fn response_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        Ok(match self.terms.apply("br", exchange)? {
            true => {
                let writer = CompressorWriter::with_params(Vec::new(), BUFFER, &self.params);
                Some(Box::new(BrotliStream(Some(writer))))
            }
            false => None,
        })
    }
}

/// The size of the encoder's output buffer in bytes.
const BUFFER: usize = 4096;

/// `None` once the stream has ended.
struct BrotliStream(Option<CompressorWriter<Vec<u8>>>);

impl BrotliStream {
    fn writer(&mut self) -> Result<&mut CompressorWriter<Vec<u8>>, Stop> {
        self.0.as_mut().ok_or(Stop::Internal)
    }
}

impl Filter for BrotliStream {
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), Stop> {
        let writer = self.writer()?;
        writer.write_all(piece).map_err(|_| Stop::Internal)?;
        out.append(writer.get_mut());
        Ok(())
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        let writer = self.writer()?;
        writer.flush().map_err(|_| Stop::Internal)?;
        out.append(writer.get_mut());
        Ok(())
    }

    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        let writer = self.0.take().ok_or(Stop::Internal)?;
        out.append(&mut writer.into_inner());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use brotli::Decompressor;
    use serde_json::json;
    use weir_plugin::proto::Framing;

    use super::*;
    use crate::testing::{build, exchange, refused};

    #[test]
    fn content_comes_back_and_what_was_flushed_comes_at_once() {
        let mut exchange = exchange("GET / HTTP/1.1\nHost: h\nAccept-Encoding: br, gzip");
        exchange.response.framing = Framing::Chunked;
        exchange.response.head.add(b"Content-Type", b"text/html").expect("valid");
        let plugin = build::<Brotli>(json!({}));
        let Ok(Some(mut filter)) = plugin.response_filter(&mut exchange) else { panic!("it compresses") };
        let mut out = Vec::new();
        let mut said = String::new();
        for piece in ["data: 1\n\n", "data: 2\n\n"] {
            filter.piece(piece.as_bytes(), &mut out).expect("taken");
            filter.flush(&mut out).expect("flushed");
            said.push_str(piece);
            let mut so_far = vec![0; said.len()];
            Decompressor::new(&*out, BUFFER).read_exact(&mut so_far).expect("all of it is there");
            assert_eq!(so_far, said.as_bytes());
        }
        filter.end(&mut out).expect("ended");
        let mut all = String::new();
        Decompressor::new(&*out, BUFFER).read_to_string(&mut all).expect("complete");
        assert_eq!(all, said);
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"lgwin": 9}), "lgwin: must be 0, or from 10 to 24"),
            (json!({"lgblock": 1}), "lgblock: must be 0, or from 16 to 24"),
        ] {
            let error = refused::<Brotli>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
