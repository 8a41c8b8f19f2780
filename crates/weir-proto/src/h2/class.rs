//! The role of a field in a message (RFC 9113 §8.2, §8.3). HPACK tables store it with each entry, so a recurring field is
//! classified and checked only once.

use crate::field::{self, Known};

/// The role of a field, with its name and value checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
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

impl Class {
    /// The class of a field with this name, if its value is valid.
    pub fn of_name(name: &[u8]) -> Class {
        match name {
            b":method" => Class::Method,
            b":scheme" => Class::Scheme,
            b":authority" => Class::Authority,
            b":path" => Class::Path,
            b":protocol" => Class::Protocol,
            b":status" => Class::Status,
            b"cookie" => Class::Cookie,
            _ if !is_lower_case_name(name) => Class::Malformed,
            _ => match Known::parse(name) {
                // RFC 9113 §8.2.2: connection-specific fields are forbidden.
                Known::Connection
                | Known::KeepAlive
                | Known::ProxyConnection
                | Known::TransferEncoding
                | Known::Upgrade => Class::Malformed,
                known => Class::Field(known),
            },
        }
    }

    /// The class after checking the value: bytes that could end a line, and blanks at the ends of a value, make the field
    /// malformed.
    pub fn with_value(self, value: &[u8]) -> Class {
        if !field::is_value(value) {
            return Class::Malformed;
        }
        let is_padded = matches!(value, [b' ' | b'\t', ..] | [.., b' ' | b'\t']);
        match self {
            Class::Field(_) | Class::Cookie if is_padded => Class::Malformed,
            Class::Field(Known::Te) if !value.eq_ignore_ascii_case(b"trailers") => Class::Malformed,
            class => class,
        }
    }

    /// The class of a field, by name and value.
    pub fn of(name: &[u8], value: &[u8]) -> Class {
        Class::of_name(name).with_value(value)
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
            (":path", "/", Class::Path),
            ("cookie", "a=b", Class::Cookie),
            ("te", "Trailers", Class::Field(Known::Te)),
            ("x", "a\tb\u{fc}", Class::Field(Known::Other)),
            ("content-length", "1", Class::Field(Known::ContentLength)),
        ] {
            assert_eq!(Class::of(name.as_bytes(), value.as_bytes()), class, "{name}: {value}");
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
            assert_eq!(Class::of(name.as_bytes(), value.as_bytes()), Class::Malformed, "{name:?}: {value:?}");
        }
    }
}
