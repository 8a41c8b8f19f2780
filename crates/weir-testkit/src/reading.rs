//! How the peers read messages, and the errors of reading.

use std::fmt;

/// How an origin reads requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Everything that RFC 9112 forbids or calls ambiguous is a violation, recorded in [`crate::Origin::violations`].
    Strict,
    /// As lenient servers read: bare LF, folded lines, spaces around names, `_` for `-`, any `chunk…` coding, sizes
    /// with anything after the digits. If a message has both lengths, `Content-Length` counts.
    LengthWins,
    /// The same, but if a message has both lengths, the chunked coding counts.
    ChunkedWins,
}

/// Why reading failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// The peer closed its sending side before the requested part was complete.
    Closed {
        /// The bytes received of that part, as Latin-1.
        partial: String,
    },
    /// The connection was reset.
    Reset {
        /// The bytes received of the requested part, as Latin-1.
        partial: String,
    },
    /// Nothing was received within the deadline.
    TimedOut {
        /// The bytes received of the requested part, as Latin-1.
        partial: String,
    },
    /// The bytes received are not valid HTTP/1 for this way of reading.
    Malformed(String),
}

impl ReadError {
    /// Whether the peer has closed or reset the connection before the first byte of the requested part.
    pub fn is_gone(&self) -> bool {
        matches!(self, ReadError::Closed { partial } | ReadError::Reset { partial } if partial.is_empty())
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Closed { partial } => write!(f, "closed after {partial:?}"),
            ReadError::Reset { partial } => write!(f, "reset after {partial:?}"),
            ReadError::TimedOut { partial } => write!(f, "nothing more came after {partial:?}"),
            ReadError::Malformed(what) => write!(f, "malformed: {what}"),
        }
    }
}

impl std::error::Error for ReadError {}
