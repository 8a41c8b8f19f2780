//! The role of a field in a message (RFC 9113 §8.2, §8.3). HPACK tables store it with each entry, so a recurring field is
//! classified and checked only once.

use crate::field::{self, Known};

/// The role of a field, with its name and value checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldClass {
    Method,
    Scheme,
    Authority,
    Path,
    /// `:protocol` of an extended CONNECT (RFC 8441 §4).
    Protocol,
    Status,
    /// `cookie`, which may be split into several fields that are joined again (RFC 9113 §8.2.3).
    Cookie,
    Field(Known),
    /// A field that makes its message malformed.
    Malformed,
}

impl FieldClass {
    /// The class of a field with this name, if its value is valid.
    pub fn of_name(name: &[u8]) -> FieldClass {
        match name {
            b":method" => FieldClass::Method,
            b":scheme" => FieldClass::Scheme,
            b":authority" => FieldClass::Authority,
            b":path" => FieldClass::Path,
            b":protocol" => FieldClass::Protocol,
            b":status" => FieldClass::Status,
            b"cookie" => FieldClass::Cookie,
            _ if !is_lower_case_name(name) => FieldClass::Malformed,
            _ => match Known::parse(name) {
                // RFC 9113 §8.2.2: connection-specific fields are forbidden.
                Known::Connection
                | Known::KeepAlive
                | Known::ProxyConnection
                | Known::TransferEncoding
                | Known::Upgrade => FieldClass::Malformed,
                known => FieldClass::Field(known),
            },
        }
    }

    /// The class after checking the value: bytes that could end a line, and blanks at the ends of a value, make the field
    /// malformed.
    pub fn with_value(self, value: &[u8]) -> FieldClass {
        if !field::is_value(value) {
            return FieldClass::Malformed;
        }
        let is_padded = matches!(value, [b' ' | b'\t', ..] | [.., b' ' | b'\t']);
        match self {
            FieldClass::Field(_) | FieldClass::Cookie if is_padded => FieldClass::Malformed,
            FieldClass::Field(Known::Te) if !value.eq_ignore_ascii_case(b"trailers") => FieldClass::Malformed,
            class => class,
        }
    }

    /// The class of a field, by name and value.
    pub fn of(name: &[u8], value: &[u8]) -> FieldClass {
        FieldClass::of_name(name).with_value(value)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_checked() {
        for (name, value, class) in [
            (":path", "/", FieldClass::Path),
            ("cookie", "a=b", FieldClass::Cookie),
            ("te", "Trailers", FieldClass::Field(Known::Te)),
            ("x", "a\tb\u{fc}", FieldClass::Field(Known::Other)),
            ("content-length", "1", FieldClass::Field(Known::ContentLength)),
        ] {
            assert_eq!(FieldClass::of(name.as_bytes(), value.as_bytes()), class, "{name}: {value}");
        }
        for (name, value) in [
            ("X", "a"),
            ("", "a"),
            ("a b", "a"),
            (":unknown", "a"),
            (":", "a"),
            ("x", " a"),
            ("x", "a\t"),
            ("x", "a\nb"),
            ("x", "a\0"),
            ("x", "a\x7f"),
            (":path", "/\r"),
            ("te", "gzip"),
            ("connection", "close"),
            ("upgrade", "h2c"),
            ("transfer-encoding", "chunked"),
        ] {
            assert_eq!(FieldClass::of(name.as_bytes(), value.as_bytes()), FieldClass::Malformed, "{name:?}: {value:?}");
        }
    }
}
