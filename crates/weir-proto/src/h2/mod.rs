//! Heads as HTTP/2 carries them (RFC 9113 §8), from decoded field sections to the one form everybody else uses. Frames
//! and HPACK are a library's.

pub mod request;
pub mod response;
pub mod watch;

pub use request::{Pseudo, request_head};
pub use response::response_head;
pub use watch::Watch;

use crate::field::{self, Known};
use crate::head::{Field, Head, Span};
use crate::request::Reject;

/// The first bytes of every HTTP/2 connection (RFC 9113 §3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Appends a field as it would stand in an HTTP/1 head, so that it can be forwarded as it is.
fn push(head: &mut Head, name: &[u8], value: &[u8]) {
    let known = Known::parse(name);
    let name = head.append(name);
    head.bytes.extend_from_slice(b": ");
    let value = head.append(value);
    head.bytes.extend_from_slice(b"\r\n");
    head.fields.push(Field { name, value, known, removed: false, added: false, verbatim: true });
}

/// A field that may stand in a message of HTTP/2 (RFC 9113 §8.2): a lower-case name, nothing that could end a line in
/// the value or hide at its ends, and nothing that belongs to a connection.
fn check(name: &[u8], value: &[u8]) -> Result<(), Reject> {
    if !is_lower_case_name(name) || !field::is_value(value) || field::trim(value).len() != value.len() {
        return Err(Reject::Malformed);
    }
    // RFC 9113 §8.2.2.
    match Known::parse(name) {
        Known::Connection | Known::KeepAlive | Known::ProxyConnection | Known::TransferEncoding | Known::Upgrade => {
            Err(Reject::Malformed)
        }
        Known::Te if !value.eq_ignore_ascii_case(b"trailers") => Err(Reject::Malformed),
        _ => Ok(()),
    }
}

/// A token without upper-case letters (RFC 9113 §8.2.1).
fn is_lower_case_name(name: &[u8]) -> bool {
    const MAY_STAND: [bool; 256] = {
        let mut table = [false; 256];
        let mut byte = 0;
        while byte < 256 {
            table[byte] = field::is_token_byte(byte as u8) && !(byte as u8).is_ascii_uppercase();
            byte += 1;
        }
        table
    };
    !name.is_empty() && name.iter().fold(true, |all, &byte| all & MAY_STAND[usize::from(byte)])
}

/// Adds a crumb to the cookie whose field is the one of this number: to HTTP/1 a request has one `Cookie`
/// (RFC 9113 §8.2.3).
fn add_crumb(head: &mut Head, cookie: usize, crumb: &[u8]) {
    let field = head.fields[cookie];
    if field.value.end as usize + 2 == head.bytes.len() {
        head.bytes.truncate(field.value.end as usize);
    } else {
        // Other fields came in between: it moves behind them.
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
