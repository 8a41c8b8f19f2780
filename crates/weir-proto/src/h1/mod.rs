//! HTTP/1.x on the wire (RFC 9112): strict where a lenient parser could disagree with another one.

pub mod chunked;
pub mod request;
pub mod response;

mod lines;

pub(crate) use lines::content_length;

pub use crate::limits::Limits;
pub use crate::request::Reject;
pub use request::parse_request;
pub use response::{BadResponse, Tolerance, parse_response};
