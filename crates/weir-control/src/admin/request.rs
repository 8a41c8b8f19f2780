//! A request to the Admin API, authenticated and with its body.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, USER_AGENT};
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::answer::{AdminResponse, Refused, json_of, refuse};
use super::host::RequestHost;
use super::keys::Caller;
use super::lanes::ClientPresence;
use super::query::Query;
use crate::stores::live::now_ms;
use crate::stores::resources::Author;
use crate::text::json::{self, JsonFault};

/// The most bytes of a body, as in Apache APISIX.
pub(super) const MAX_BODY: usize = 1_572_864;
/// The most bytes that the patterns of a request may take when they are compiled, all together. This is about a second.
const MAX_PATTERNS: usize = 32 << 20;
/// The same for a whole configuration.
const MAX_PATTERNS_OF_CONFIGURATION: usize = 256 << 20;
/// The most bytes of a body with a whole configuration, which APISIX does not limit.
pub(super) const MAX_CONFIGURATION: usize = 64 << 20;

/// The most bytes of a body with the texts of files.
pub(super) const MAX_DRAFT: usize = 16 << 20;

/// The most bytes that the values of a body may take in memory; a text of typical resources takes some fifteen times its length.
const MAX_TREE: usize = 48 << 20;
/// The same for a whole configuration.
const MAX_TREE_OF_CONFIGURATION: usize = 512 << 20;

/// Why a body could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFault {
    TooLarge,
    Incomplete,
    /// It was not complete in time.
    TimedOut,
    /// The bodies of other requests take all the memory that there is for bodies.
    NoRoom,
}

/// The addresses of a client.
#[derive(Clone, Copy, Debug)]
pub enum AdminPeer {
    Tcp {
        local: SocketAddr,
        remote: SocketAddr,
    },
    /// A process on this machine that may connect to the Unix socket.
    Unix,
}

impl AdminPeer {
    /// The client's address in the history and the audit log.
    pub(super) fn address(self) -> String {
        match self {
            AdminPeer::Tcp { remote, .. } => remote.ip().to_string(),
            AdminPeer::Unix => "unix".to_owned(),
        }
    }
}

impl fmt::Display for AdminPeer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdminPeer::Tcp { remote, .. } => remote.fmt(out),
            AdminPeer::Unix => "a client of the Unix socket".fmt(out),
        }
    }
}

/// A request from an authenticated sender.
pub(super) struct AdminRequest {
    pub(super) method: Method,
    /// The parts of the path after `/apisix/admin/` or `/weir/v1/`.
    pub(super) path: Vec<String>,
    pub(super) query: Query,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) caller: Caller,
    pub(super) peer: AdminPeer,
    pub(super) client: ClientPresence,
    pub(super) host: Arc<dyn RequestHost>,
}

impl AdminRequest {
    pub(super) fn path(&self) -> Vec<&str> {
        self.path.iter().map(String::as_str).collect()
    }

    /// The body as JSON; `None` if it is empty.
    pub(super) fn json(&self) -> Refused<Option<Value>> {
        if self.body.is_empty() {
            return Ok(None);
        }
        json::parse(&self.body, self.tree_bytes()).map(Some).map_err(|fault| {
            let error = match fault {
                JsonFault::TooLarge(error) => return Box::new(too_large(&error)),
                JsonFault::Wrong(error) => error,
            };
            let body = String::from_utf8_lossy(&self.body[..self.body.len().min(MAX_SHOWN)]);
            let problem = format!("invalid request body: {error}");
            Box::new(json_of(StatusCode::BAD_REQUEST, &json!({ "req_body": body, "error_msg": problem })))
        })
    }

    /// The most bytes that the values of the body may take.
    pub(super) fn tree_bytes(&self) -> usize {
        if self.path == ["configs"] { MAX_TREE_OF_CONFIGURATION } else { MAX_TREE }
    }

    pub(super) fn pattern_bytes(&self) -> usize {
        if self.path == ["configs"] { MAX_PATTERNS_OF_CONFIGURATION } else { MAX_PATTERNS }
    }

    pub(super) fn is_yaml(&self) -> bool {
        let kind = self.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        kind.is_some_and(|kind| kind.starts_with("application/yaml"))
    }

    pub(super) fn author(&self) -> Author {
        let text = |name: &str| {
            let value = self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
            value.chars().take(MAX_TOLD).collect()
        };
        Author {
            name: self.caller.name.to_string(),
            address: self.peer.address(),
            user_agent: text(USER_AGENT.as_str()),
            message: text("x-weir-message"),
        }
    }

    /// When the written resource expires, in milliseconds since 1970.
    pub(super) fn expires_ms(&self) -> Refused<Option<u64>> {
        let Some(ttl) = self.query.get("ttl") else { return Ok(None) };
        match ttl.parse::<f64>() {
            Ok(0.0) => {
                refuse("invalid argument ttl: with 0 the resource would be gone at once; leave it out, or give seconds")
            }
            Ok(seconds) if (0.0..=MAX_TTL).contains(&seconds) => Ok(Some(now_ms() + (seconds * 1_000.0) as u64)),
            Ok(_) => refuse(format!("invalid argument ttl: should be from 0 to {MAX_TTL}")),
            Err(_) => refuse("invalid argument ttl: should be a number"),
        }
    }
}

/// Whether a request is to change something.
pub(super) fn is_change(method: &Method, path: &[String], query: &Query) -> bool {
    !matches!(*method, Method::GET | Method::HEAD) && !is_check(path) && !query.is_true("dry_run")
}

/// Whether the path is one of a check, which changes nothing.
pub(super) fn is_check(path: &[String]) -> bool {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    matches!(
        path.as_slice(),
        ["schema", "validate", _] | ["configs", "validate"] | ["explain"] | ["draft", "check" | "edit"]
    )
}

/// The most bytes shown of a body that is not JSON.
const MAX_SHOWN: usize = 1_024;
/// The most characters of a field from the client.
const MAX_TOLD: usize = 256;
/// In seconds: a hundred years.
const MAX_TTL: f64 = 3.2e9;

/// The response to a body that is small enough as text, and not as what it says.
pub(super) fn too_large(problem: &str) -> AdminResponse {
    let problem = format!("invalid request body: {problem}");
    json_of(StatusCode::PAYLOAD_TOO_LARGE, &json!({ "error_msg": problem }))
}

pub(super) fn unreadable(fault: BodyFault, limit: usize) -> AdminResponse {
    let (status, problem) = match fault {
        BodyFault::TooLarge => (
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("invalid request body: request size is greater than the maximum size {limit} allowed"),
        ),
        BodyFault::Incomplete => (StatusCode::BAD_REQUEST, "invalid request body: it is incomplete".to_owned()),
        BodyFault::TimedOut => {
            (StatusCode::REQUEST_TIMEOUT, "invalid request body: it was not complete within a minute".to_owned())
        }
        BodyFault::NoRoom => {
            let problem = "bodies of other requests take all the memory that there is for bodies; try again later";
            (StatusCode::SERVICE_UNAVAILABLE, problem.to_owned())
        }
    };
    json_of(status, &json!({ "error_msg": problem }))
}
