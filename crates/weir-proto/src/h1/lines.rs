//! Line discipline shared by requests and responses. httparse finds names and values quickly but forgives bare LF, so
//! the bytes between them are looked at again: a few comparisons for each line.

use std::mem::MaybeUninit;

use crate::field::{self, Known};
use crate::head::{Field, Head, Span};

use super::limits::MAX_FIELDS;

/// Slots for httparse, never initialised as a whole.
pub(super) type Slots<'b> = [MaybeUninit<httparse::Header<'b>>; MAX_FIELDS];

pub(super) fn slots<'b>() -> Slots<'b> {
    [const { MaybeUninit::uninit() }; MAX_FIELDS]
}

/// A line that is not `name ":" OWS value OWS CRLF`, or comes after something that is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadLine;

/// Copies a parsed head into `head` and indexes its fields; `fields_start` is where the first field line must begin.
///
/// RFC 9112 §2.2 allows a recipient to take a lone LF for a line end; we do not, since others may not see the line end.
pub(super) fn index(
    bytes: &[u8],
    fields_start: usize,
    parsed: &[httparse::Header<'_>],
    head: &mut Head,
) -> Result<(), BadLine> {
    let mut at = fields_start;
    head.fields.reserve(parsed.len() + 8);
    for header in parsed {
        let name_start = offset(bytes, header.name.as_bytes());
        if name_start != at {
            return Err(BadLine);
        }
        let name_end = name_start + header.name.len();
        let value_start = if header.value.is_empty() { name_end + 1 } else { offset(bytes, header.value) };
        let value_end = value_start + header.value.len();
        let line_end = line_end(bytes, value_end)?;
        let verbatim = value_start == name_end + 2 && bytes[name_end + 1] == b' ' && line_end == value_end + 2;
        head.fields.push(Field {
            name: Span::new(name_start, name_end),
            value: Span::new(value_start, value_end),
            known: Known::parse(header.name.as_bytes()),
            removed: false,
            verbatim,
        });
        at = line_end;
    }
    if bytes[at..] != *b"\r\n" {
        return Err(BadLine);
    }
    head.bytes.extend_from_slice(bytes);
    Ok(())
}

/// The offset after the CRLF that must follow `at`, optional white space skipped.
fn line_end(bytes: &[u8], mut at: usize) -> Result<usize, BadLine> {
    while matches!(bytes.get(at), Some(b' ' | b'\t')) {
        at += 1;
    }
    match bytes.get(at..at + 2) {
        Some(b"\r\n") => Ok(at + 2),
        _ => Err(BadLine),
    }
}

/// Where a slice that httparse borrowed from `bytes` starts in it.
pub(super) fn offset(bytes: &[u8], part: &[u8]) -> usize {
    part.as_ptr() as usize - bytes.as_ptr() as usize
}

/// A `Content-Length`: digits only (RFC 9110 §8.6). A list, even of equal values, is refused by the caller's count.
pub(super) fn content_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    value.iter().try_fold(0u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
}

/// Marks the fields a `Connection` names as hop-by-hop (RFC 9110 §7.6.1). What frames or routes the message cannot be
/// unsaid this way, and neither can the identity fields we set later.
pub(super) fn remove_nominated(head: &mut Head) {
    for index in 0..head.fields.len() {
        if head.fields[index].known != Known::Connection {
            continue;
        }
        let value = head.fields[index].value;
        for other in 0..head.fields.len() {
            let candidate = head.fields[other];
            if matches!(candidate.known, Known::ContentLength | Known::Host | Known::TransferEncoding) {
                continue;
            }
            let name = head.slice(candidate.name);
            if field::list(head.slice(value)).any(|nominated| nominated.eq_ignore_ascii_case(name)) {
                head.fields[other].removed = true;
            }
        }
    }
}
