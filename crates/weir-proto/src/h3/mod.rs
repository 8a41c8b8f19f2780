//! HTTP/3 on the wire (RFC 9114), on top of the streams of QUIC: bytes to frames and field sections, and back, without I/O. Fields,
//! heads and their rules are those of HTTP/2 ([`crate::h2`]).

pub mod control;
pub mod error;
pub mod frame;
pub mod head;
pub mod message;
pub mod qpack;
pub mod settings;
pub mod unidirectional;
pub mod varint;

pub use control::{ControlEvent, ControlReader};
pub use error::{H3ErrorCode, H3Fault};
pub use message::{H3MessageReader, MessageAhead, MessagePart};
pub use settings::H3Settings;
pub use unidirectional::{PeerStreams, UnidirectionalReader};
