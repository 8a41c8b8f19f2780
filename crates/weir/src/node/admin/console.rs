//! The files of the console, which are embedded in the binary: `/console/` on the admin address.
//!
//! They are public, like the binary that contains them, so that they are served to clients that have not logged in. A build without
//! optimisation reads them from the folder at each request, so that a change of the console needs no build.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use hyper::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderMap,
    HeaderValue, IF_NONE_MATCH, LOCATION, VARY,
};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use rust_embed::{EmbeddedFile, RustEmbed};
use tokio::task::spawn_blocking;

use super::encoding::{AnswerCoding, accepts};

#[derive(RustEmbed)]
#[folder = "../../console/"]
#[exclude = ".*"]
#[exclude = "*/.*"]
#[exclude = "*.md"]
#[exclude = "*.toml"]
#[exclude = "*.d.ts"]
#[exclude = "*package*.json"]
#[exclude = "*.entry.js"]
#[exclude = "*tsconfig.json"]
struct ConsoleFolder;

/// The path of the console, without its slash at the end.
const BASE: &str = "/console";
/// The page of the console.
const PAGE: &str = "index.html";
/// No script but the console's own, no other host, and no frame around it. Only `lit-html` may make HTML from text.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
    font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
    trusted-types lit-html";
/// Smaller files are sent as they are, in bytes.
const LEAST_COMPRESSED: usize = 512;

/// The files, each compressed once.
#[derive(Default)]
pub(super) struct ConsoleFiles {
    /// By name: at most as many as the folder has files, since other names are not found.
    encoded: Mutex<HashMap<String, Arc<EncodedFile>>>,
}

/// A file in all encodings.
struct EncodedFile {
    hash: [u8; 32],
    plain: Bytes,
    /// `None` if compression does not make it smaller.
    brotli: Option<Bytes>,
    gzip: Option<Bytes>,
}

impl ConsoleFiles {
    /// The response to a request for the console; `None` if the path is none of its.
    pub(super) async fn answer(&self, head: &Parts) -> Option<Response<Bytes>> {
        let path = head.uri.path();
        if path == "/" && accepts(&head.headers, ACCEPT.as_str(), "text/html") {
            return Some(redirect(StatusCode::SEE_OTHER));
        }
        let name = path.strip_prefix(BASE)?;
        if name.is_empty() {
            return Some(redirect(StatusCode::PERMANENT_REDIRECT));
        }
        let name = name.strip_prefix('/')?;
        if head.method != Method::GET && head.method != Method::HEAD {
            let mut answer = empty(StatusCode::METHOD_NOT_ALLOWED);
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return Some(answer);
        }
        let Some((name, file)) = find(name) else { return Some(empty(StatusCode::NOT_FOUND)) };
        let hash = file.metadata.sha256_hash();
        let encoded = match self.known(name, hash) {
            Some(encoded) => encoded,
            // Compression takes longer than a request may delay others.
            None => match spawn_blocking(move || EncodedFile::of(hash, &file)).await {
                Ok(encoded) => self.keep(name, encoded),
                Err(_) => return Some(empty(StatusCode::SERVICE_UNAVAILABLE)),
            },
        };
        let mut answer = encoded.answer(&head.headers, content_type(name));
        if head.method == Method::HEAD {
            answer.body_mut().clear();
        }
        Some(answer)
    }

    fn known(&self, name: &str, hash: [u8; 32]) -> Option<Arc<EncodedFile>> {
        let files = self.encoded.lock().unwrap_or_else(PoisonError::into_inner);
        files.get(name).filter(|encoded| encoded.hash == hash).cloned()
    }

    fn keep(&self, name: &str, encoded: EncodedFile) -> Arc<EncodedFile> {
        let encoded = Arc::new(encoded);
        let mut files = self.encoded.lock().unwrap_or_else(PoisonError::into_inner);
        files.insert(name.to_owned(), Arc::clone(&encoded));
        encoded
    }
}

/// The file with a name. A name without a dot in its last part is one of the console's screens, all of which are one page.
fn find(name: &str) -> Option<(&str, EmbeddedFile)> {
    let is_screen = !name.rsplit('/').next().unwrap_or_default().contains('.');
    let name = if is_screen { PAGE } else { name };
    ConsoleFolder::get(name).map(|file| (name, file))
}

impl EncodedFile {
    fn of(hash: [u8; 32], file: &EmbeddedFile) -> EncodedFile {
        let plain = Bytes::copy_from_slice(&file.data);
        let encoded = |coding: AnswerCoding| {
            let encoded = coding.encode(&plain, true).ok()?;
            (plain.len() >= LEAST_COMPRESSED && encoded.len() < plain.len()).then(|| Bytes::from(encoded))
        };
        let (brotli, gzip) = (encoded(AnswerCoding::Brotli), encoded(AnswerCoding::Gzip));
        EncodedFile { hash, plain, brotli, gzip }
    }

    fn answer(&self, headers: &HeaderMap, content_type: &'static str) -> Response<Bytes> {
        let coding = AnswerCoding::accepted(headers);
        let encoded = coding.and_then(|coding| match coding {
            AnswerCoding::Brotli => Some((coding.name(), self.brotli.clone()?)),
            AnswerCoding::Gzip => Some((coding.name(), self.gzip.clone()?)),
        });
        let (coding, body) = encoded.unwrap_or_else(|| ("", self.plain.clone()));
        // A strong tag is one of the bytes as they are sent (RFC 9110 §8.8.3.3).
        let tag = format!("\"{}{}{coding}\"", hex::encode(&self.hash[..16]), if coding.is_empty() { "" } else { "-" });
        let is_current = headers.get_all(IF_NONE_MATCH).iter().any(|tags| {
            tags.to_str().is_ok_and(|tags| tags.split(',').any(|one| one.trim().trim_start_matches("W/") == tag))
        });
        let mut answer = Response::new(if is_current { Bytes::new() } else { body });
        if is_current {
            *answer.status_mut() = StatusCode::NOT_MODIFIED;
        }
        let fields = answer.headers_mut();
        fields.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        fields.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
        // The names of files say nothing about their content, so that it is compared before each use.
        fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        fields.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
        fields.insert(ETAG, HeaderValue::from_str(&tag).expect("hexadecimal digits in quotes are a field value"));
        if !coding.is_empty() {
            fields.insert(CONTENT_ENCODING, HeaderValue::from_static(coding));
        }
        answer
    }
}

/// A browser refuses a script without a script's type.
fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("json" | "map") => "application/json",
        Some("png") => "image/png",
        Some("ico") => "image/x-icon",
        Some("woff2") => "font/woff2",
        _ => "text/plain; charset=utf-8",
    }
}

fn redirect(status: StatusCode) -> Response<Bytes> {
    let mut answer = empty(status);
    answer.headers_mut().insert(LOCATION, HeaderValue::from_static("/console/"));
    answer
}

fn empty(status: StatusCode) -> Response<Bytes> {
    let mut answer = Response::default();
    *answer.status_mut() = status;
    answer
}
