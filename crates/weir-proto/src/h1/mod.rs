//! HTTP/1.x on the wire (RFC 9112): strict where leniency lets two readers disagree.

pub mod chunked;
pub mod limits;
pub mod request;
pub mod response;

mod lines;

pub use limits::Limits;
pub use request::{Reject, parse_request};
pub use response::{BadResponse, parse_response};
