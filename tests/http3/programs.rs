//! HTTP/3 by programs with libraries of their own: libcurl with ngtcp2, aioquic, and quic-go (tests/clients/README.md). One that is
//! not installed is named on stderr (`skipped: …`), and its tests pass; `scripts/setup` installs them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use aws_lc_rs::digest::{Context, SHA256};
use serde_json::{Value, json};
use weir_testkit::{BodyFraming, Origin, OriginConnection, ReadError, Reading, skipped};

use crate::{Served, serve, with_workers};

/// A program that makes requests over HTTP/3.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Http3Program {
    Curl,
    Aioquic,
    QuicGo,
}

/// A file of this repository.
pub(crate) fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A Python that can import `module`.
pub(crate) fn python(module: &str) -> Option<Command> {
    let python = file(".cache/python/bin/python");
    let imports = Command::new(&python).args(["-c", &format!("import {module}")]).stderr(Stdio::null()).status();
    if imports.is_ok_and(|status| status.success()) {
        return Some(Command::new(python));
    }
    skipped(&format!("there is no Python with `{module}`"));
    None
}

impl Http3Program {
    /// `None`, with a line that reports the test as skipped, if it is not installed.
    pub(crate) fn command(self) -> Option<Command> {
        let script = |module, path| {
            let mut python = python(module)?;
            python.arg(file(path));
            Some(python)
        };
        match self {
            Http3Program::Curl => script("pycurl", "tests/clients/http3_curl.py"),
            Http3Program::Aioquic => script("aioquic", "tests/clients/http3_aioquic.py"),
            Http3Program::QuicGo => {
                let client = file(".cache/bin/http3");
                if client.exists() {
                    return Some(Command::new(client));
                }
                skipped("there is no client of quic-go");
                None
            }
        }
    }

    /// What it says about an order; `None` if it is not installed.
    #[track_caller]
    pub(crate) fn ask(self, served: &Served, order: &[&str]) -> Option<Value> {
        self.ask_at(served, served.gateway.tls_addr(), order)
    }

    /// The same at another address.
    #[track_caller]
    pub(crate) fn ask_at(self, served: &Served, address: SocketAddr, order: &[&str]) -> Option<Value> {
        let mut command = self.command()?;
        let authority = served.gateway.directory().write("ca.pem", &served.authority.certificate);
        command.arg(address.port().to_string()).arg(authority).args(order).stdin(Stdio::null());
        let output = command.output().expect("it is installed");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{self:?} {order:?}: {said}");
        Some(
            serde_json::from_slice(&output.stdout)
                .unwrap_or_else(|error| panic!("{self:?} {order:?}: {error}: {said}")),
        )
    }
}

/// The bodies of so many responses of `/object/N`.
pub(crate) fn bodies(count: usize) -> Value {
    (0..count).map(|number| format!("/object/{number}")).collect()
}

/// How many connections the gateway has accepted over HTTP/3.
pub(crate) fn accepted(served: &Served) -> u64 {
    served.gateway.metrics().sum("weir_quic_connections_total", &["outcome=\"accepted\""]) as u64
}

pub(crate) const MIB: usize = 1024 * 1024;

/// The bytes of content that are made, and summed, at a time.
const PIECE: usize = 64 * 1024;

/// Content of so many bytes, in pieces of which no two are the same.
pub(crate) fn pieces(length: u64) -> impl Iterator<Item = Vec<u8>> {
    (0..length.div_ceil(PIECE as u64)).map(move |number| {
        let mut piece = vec![number as u8; PIECE.min((length - number * PIECE as u64) as usize)];
        piece.iter_mut().zip(number.to_be_bytes()).for_each(|(byte, digit)| *byte ^= digit);
        piece
    })
}

/// The SHA-256 of content.
pub(crate) fn sum(pieces: impl Iterator<Item = Vec<u8>>) -> String {
    let mut sum = Context::new(&SHA256);
    pieces.for_each(|piece| sum.update(&piece));
    hex::encode(sum.finish())
}

/// Reads content, and returns its SHA-256.
fn sum_of_request(connection: &mut OriginConnection, framing: BodyFraming) -> Result<String, ReadError> {
    let mut sum = Context::new(&SHA256);
    match framing {
        BodyFraming::Length(mut left) => {
            while left > 0 {
                let piece = connection.up_to(left)?;
                if piece.is_empty() {
                    return Err(ReadError::Closed { partial: String::new() });
                }
                sum.update(&piece);
                left -= piece.len() as u64;
            }
        }
        BodyFraming::Chunked => {
            loop {
                let chunk = connection.chunk()?;
                if chunk.is_empty() {
                    break;
                }
                sum.update(&chunk);
            }
            connection.trailers()?;
        }
        BodyFraming::None | BodyFraming::Close => {}
    }
    Ok(hex::encode(sum.finish()))
}

fn ok(connection: &mut OriginConnection, body: &str) -> std::io::Result<()> {
    connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
}

/// One answer; `None` ends the connection.
fn answer(connection: &mut OriginConnection) -> Option<()> {
    let request = connection.head().ok()?;
    connection.record(&request);
    if request.target == "/sum" {
        let sum = sum_of_request(connection, request.framing).ok()?;
        return ok(connection, &sum).ok();
    }
    connection.body(request.framing).ok()?;
    if request.target == "/trailers" {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        return connection.send(format!("{head}2\r\nok\r\n0\r\nX-Sum: 7\r\n\r\n")).ok();
    }
    let Some(length) = request.target.strip_prefix("/content/") else { return ok(connection, &request.target).ok() };
    let length: u64 = length.parse().expect("a test asks for a length");
    connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n")).ok()?;
    pieces(length).try_for_each(|piece| connection.send(piece)).ok()
}

/// Answers `/content/N` with N bytes, `/sum` with the SHA-256 of what was sent to it, `/trailers` with trailers, and any other
/// path with itself. Content that is large is not kept.
pub(crate) fn origin() -> Origin {
    Origin::scripted(Reading::Strict, |connection| while answer(connection).is_some() {})
}

/// All of 100 objects come over one connection, at the same time.
#[track_caller]
pub(crate) fn objects_come_over_one_connection(program: Http3Program) {
    let origin = origin();
    let served = with_workers(&origin, 2);
    let Some(said) = program.ask(&served, &["objects", "100"]) else { return };
    assert_eq!(said["bodies"], bodies(100));
    assert_eq!(accepted(&served), 1);
}

/// Uploads and downloads of so many bytes are whole.
#[track_caller]
pub(crate) fn large_content_is_whole(program: Http3Program, length: usize) {
    let origin = origin();
    let served = serve(&origin, "");
    let Some(up) = program.ask(&served, &["upload", "/sum", &length.to_string()]) else { return };
    assert_eq!((&up["status"], &up["body"]), (&json!(200), &up["sum"]));
    let down = program.ask(&served, &["download", &format!("/content/{length}")]).expect("it is installed");
    let whole = json!({ "status": 200, "length": length, "sum": sum(pieces(length as u64)) });
    for name in ["status", "length", "sum"] {
        assert_eq!(down[name], whole[name], "{name}");
    }
}
