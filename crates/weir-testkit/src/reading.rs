//! How the peers read messages, and why they could not.

use std::fmt;

/// How an origin reads requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Anything RFC 9112 calls wrong or doubtful is a violation, kept in [`crate::Origin::violations`].
    Strict,
    /// As careless servers do: bare LF, folded lines, spaces around names, `_` for `-`, any `chunk…` coding, sizes with
    /// anything after the digits; where both lengths are there, `Content-Length` counts.
    LengthWins,
    /// The same, but where both lengths are there, chunks count.
    ChunkedWins,
}

/// Why nothing more could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// The peer ended the stream in order, before what was asked for was complete.
    Closed {
        /// What had come of it, as Latin-1.
        partial: String,
    },
    /// The connection was reset.
    Reset {
        /// What had come of it, as Latin-1.
        partial: String,
    },
    /// Nothing came within the deadline.
    TimedOut {
        /// What had come of it, as Latin-1.
        partial: String,
    },
    /// What came is not HTTP/1 as the reader wants it.
    Malformed(String),
}

impl ReadError {
    /// Whether the peer is gone, in order or not, without a byte of what was asked for.
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
