//! Errors of calls.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::conduct::ServerExcess;

/// Why a call failed. Messages contain hosts and addresses, but not paths and queries, which may contain secrets.
#[derive(Debug)]
pub enum CallError {
    /// The request is invalid.
    Request(String),
    NameLookupTimedOut {
        host: Box<str>,
        after: Duration,
    },
    NameLookup {
        host: Box<str>,
        reason: String,
    },
    /// The address filter allows none of the host's addresses.
    AddressDenied {
        host: Box<str>,
    },
    ConnectTimedOut {
        host: Box<str>,
        address: SocketAddr,
        after: Duration,
    },
    Connect {
        host: Box<str>,
        address: SocketAddr,
        error: io::Error,
    },
    TlsTimedOut {
        host: Box<str>,
        address: SocketAddr,
        after: Duration,
    },
    Tls {
        host: Box<str>,
        address: SocketAddr,
        error: io::Error,
    },
    /// The connection was open, but the response was not complete in time.
    AnswerTimedOut {
        origin: String,
        after: Duration,
    },
    /// The connection ended, or violated the protocol, before the response was complete.
    Broken {
        origin: String,
        error: hyper::Error,
    },
    AnswerTooLarge {
        origin: String,
        max_bytes: usize,
    },
    /// The server sent too much that is neither the response nor its content.
    Excess {
        origin: String,
        excess: ServerExcess,
    },
    Redirect {
        origin: String,
        reason: String,
    },
    /// The server has not chosen HTTP/2 in the TLS handshake, and the call needs it.
    NoHttp2 {
        origin: String,
    },
}

impl CallError {
    /// Whether the call timed out, in any step.
    pub fn is_timeout(&self) -> bool {
        matches!(
            self,
            CallError::NameLookupTimedOut { .. }
                | CallError::ConnectTimedOut { .. }
                | CallError::TlsTimedOut { .. }
                | CallError::AnswerTimedOut { .. }
        )
    }

    /// Whether it is certain that nothing of the request was sent.
    pub fn is_unsent(&self) -> bool {
        !matches!(
            self,
            CallError::AnswerTimedOut { .. }
                | CallError::Broken { .. }
                | CallError::AnswerTooLarge { .. }
                | CallError::Excess { .. }
                | CallError::Redirect { .. }
        )
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Request(reason) => write!(f, "the request cannot be sent: {reason}"),
            CallError::NameLookupTimedOut { host, after } => {
                write!(f, "looking up the name `{host}` timed out after {}; check `dns_resolver`", seconds(*after))
            }
            CallError::NameLookup { host, reason } => write!(f, "the name `{host}` cannot be resolved: {reason}"),
            CallError::AddressDenied { host } => {
                write!(
                    f,
                    "connections to `{host}` are not allowed: no address of it is on the public internet or explicitly allowed"
                )
            }
            CallError::ConnectTimedOut { host, address, after } => {
                write!(f, "connecting to {address} ({host}) timed out after {}", seconds(*after))
            }
            CallError::Connect { host, address, error } => {
                write!(f, "connecting to {address} ({host}) failed: {error}")
            }
            CallError::TlsTimedOut { host, address, after } => {
                write!(f, "TLS handshake with {address} ({host}) timed out after {}", seconds(*after))
            }
            CallError::Tls { host, address, error } => {
                write!(f, "TLS handshake with {address} ({host}) failed: {error}")
            }
            CallError::AnswerTimedOut { origin, after } => {
                write!(f, "{origin} did not answer completely within {}", seconds(*after))
            }
            CallError::Broken { origin, error } => {
                write!(f, "the connection to {origin} failed before the answer was complete: {}", chain(error))
            }
            CallError::AnswerTooLarge { origin, max_bytes } => {
                write!(f, "the answer of {origin} is larger than {max_bytes} bytes")
            }
            CallError::Excess { origin, excess } => {
                write!(f, "the connection to {origin} was closed before the answer was complete: it sent {excess}")
            }
            CallError::Redirect { origin, reason } => write!(f, "the redirect of {origin} is not followed: {reason}"),
            CallError::NoHttp2 { origin } => write!(f, "{origin} does not speak HTTP/2, which gRPC needs"),
        }
    }
}

impl std::error::Error for CallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CallError::Connect { error, .. } | CallError::Tls { error, .. } => Some(error),
            CallError::Broken { error, .. } => Some(error),
            CallError::Excess { excess, .. } => Some(excess),
            _ => None,
        }
    }
}

/// Formats a duration, as `1.5 s` or `200 ms`.
fn seconds(duration: Duration) -> String {
    match duration.as_millis() {
        millis if millis < 1_000 => format!("{millis} ms"),
        _ => format!("{} s", (duration.as_millis() as f64) / 1_000.0),
    }
}

/// hyper's message is the kind of a failure; its source is the cause.
fn chain(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_told_in_the_unit_that_fits() {
        for (millis, told) in [(200, "200 ms"), (1_500, "1.5 s"), (30_000, "30 s")] {
            assert_eq!(seconds(Duration::from_millis(millis)), told);
        }
    }
}
