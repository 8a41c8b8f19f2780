//! HTTP/2 on the wire (RFC 9113): bytes to events and back, without I/O. A stream error ends its stream; the connection ends if
//! the framing or the HPACK state is broken.

pub mod class;
pub mod connection;
pub mod credit;
pub mod frame;
pub mod hpack;
pub mod priority;
pub mod request;
pub mod response;
pub mod settings;
pub mod streams;
pub mod trailers;
pub mod window;

pub use connection::{Connection, ConnectionEvent, FieldWriter, HeadTarget, PeerLimits, Role, Sent, Unfinished};
pub use frame::ErrorCode;
pub use priority::Priority;
pub use request::{PseudoField, RequestReader, request_head};
pub use response::{ResponseReader, response_head};

use crate::field::Known;
use crate::head::{Field, Head, Span};

/// The first bytes of every HTTP/2 connection (RFC 9113 §3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Appends a field as an HTTP/1 line, so that it can be forwarded without rewriting.
fn push(head: &mut Head, known: Known, name: &[u8], value: &[u8]) {
    let name = head.append(name);
    head.bytes.extend_from_slice(b": ");
    let value = head.append(value);
    head.bytes.extend_from_slice(b"\r\n");
    head.fields.push(Field { name, value, known, removed: false, added: false, verbatim: true });
}

/// Appends a crumb to the cookie field with index `cookie`: RFC 9113 §8.2.3 requires one `Cookie` field when a request is
/// forwarded to HTTP/1.
fn add_crumb(head: &mut Head, cookie: usize, crumb: &[u8]) {
    let field = head.fields[cookie];
    if field.value.end as usize + 2 == head.bytes.len() {
        head.bytes.truncate(field.value.end as usize);
    } else {
        // Other fields follow the cookie: move it behind them.
        let (name, start) = (head.append(b"cookie: "), head.bytes.len());
        head.bytes.extend_from_within(field.value.range());
        head.fields[cookie].name = Span { start: name.start, end: name.end - 2 };
        head.fields[cookie].value.start = start as u32;
    }
    head.bytes.extend_from_slice(b"; ");
    let end = head.append(crumb).end;
    head.fields[cookie].value.end = end;
    head.bytes.extend_from_slice(b"\r\n");
}
