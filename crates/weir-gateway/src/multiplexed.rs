//! What connections of HTTP/2 have in common on both sides of the gateway.

pub mod fields;
mod io;
mod outgoing;

pub use io::Io;
pub use outgoing::Outgoing;

/// A failure of a stream or of its connection, for those who only need to know that there was one.
pub fn broken(error: h2::Error) -> std::io::Error {
    std::io::Error::other(error)
}
