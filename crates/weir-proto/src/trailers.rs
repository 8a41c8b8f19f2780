//! Trailer fields (RFC 9110 §6.5).

use crate::field::{self, Known, dashed};
use crate::head::{BadField, write_field};

/// A trailer section as received. Only fields that may be forwarded can be read from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trailers {
    /// Each field as `name: value\r\n`.
    lines: Vec<u8>,
}

impl Trailers {
    /// Wraps lines that have been validated, each ended by CRLF.
    pub(crate) fn from_lines(lines: Vec<u8>) -> Trailers {
        Trailers { lines }
    }

    /// The size of the stored lines in bytes.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Adds a field after the others. A name or value that would break the line is refused.
    pub fn add(&mut self, name: &[u8], value: &[u8]) -> Result<(), BadField> {
        if !field::is_name(name) || !field::is_value(value) {
            return Err(BadField);
        }
        write_field(&mut self.lines, name, value);
        Ok(())
    }

    /// Fields that may be forwarded: none that frame or route the message, or identify the caller (RFC 9110 §6.5.1).
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.lines
            .split(|&byte| byte == b'\n')
            .filter_map(|line| {
                let line = line.strip_suffix(b"\r")?;
                let colon = memchr::memchr(b':', line)?;
                Some((&line[..colon], field::trim(&line[colon + 1..])))
            })
            .filter(|(name, _)| !is_forbidden(name) && !reads_as_forbidden(name))
    }
}

fn is_forbidden(name: &[u8]) -> bool {
    Known::parse(name).is_forbidden_in_trailers() || is_sensitive(name)
}

/// Whether a receiver that does not distinguish `_` from `-` (RFC 3875 §4.1.18) takes the name for a forbidden one. Other names
/// with underscores pass: metadata of gRPC may have them.
fn reads_as_forbidden(name: &[u8]) -> bool {
    memchr::memchr(b'_', name).is_some() && is_forbidden(&dashed(name))
}

/// Fields that would bypass decisions made on the head if they arrived after it.
fn is_sensitive(name: &[u8]) -> bool {
    [
        "authorization",
        "cookie",
        "set-cookie",
        "content-encoding",
        "content-type",
        "content-range",
        "cache-control",
        "max-forwards",
        "range",
    ]
    .iter()
    .any(|sensitive| name.eq_ignore_ascii_case(sensitive.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_leave_out_fields_that_routing_or_framing_depends_on() {
        let mut trailers = Trailers::default();
        for (name, value) in [("X-Sum", "1"), ("Host", "evil"), ("Content-Length", "1"), ("Cookie", "a=b"), ("x_b", "")]
        {
            assert_eq!(trailers.add(name.as_bytes(), value.as_bytes()), Ok(()));
        }
        for name in ["x_forwarded_for", "X-Consumer_Username", "content_length", "Set_Cookie"] {
            assert_eq!(trailers.add(name.as_bytes(), b"1"), Ok(()));
        }
        assert_eq!(trailers.add(b"a b", b""), Err(BadField));
        assert_eq!(trailers.add(b"a", b"1\r\nHost: evil"), Err(BadField));
        assert_eq!(trailers.fields().collect::<Vec<_>>(), [(&b"X-Sum"[..], &b"1"[..]), (b"x_b", b"")]);
    }
}
