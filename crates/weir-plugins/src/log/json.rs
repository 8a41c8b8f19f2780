//! Writes JSON directly into a buffer: building a tree of values first would cost several times as much.

use std::borrow::Cow;

use weir_plugin::escape;

/// Writes a JSON object. The closing brace is written when it is dropped.
pub struct JsonObjectWriter<'a> {
    out: &'a mut Vec<u8>,
    is_empty: bool,
}

/// A name and a value.
pub type Pair<'a> = (Cow<'a, [u8]>, Cow<'a, [u8]>);

const NS_PER_MS: u64 = 1_000_000;

/// Up to this many pairs are compared with each other; more are sorted.
const FEW: usize = 32;

impl JsonObjectWriter<'_> {
    pub fn begin(out: &mut Vec<u8>) -> JsonObjectWriter<'_> {
        out.push(b'{');
        JsonObjectWriter { out, is_empty: true }
    }

    fn comma(&mut self) {
        if !std::mem::take(&mut self.is_empty) {
            self.out.push(b',');
        }
    }

    fn name(&mut self, name: &[u8]) {
        self.comma();
        text(self.out, name);
        self.out.push(b':');
    }

    /// A name from the source text of this program, in which nothing has to be escaped.
    fn known_name(&mut self, name: &'static str) {
        self.comma();
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    pub fn object(&mut self, name: &'static str) -> JsonObjectWriter<'_> {
        self.known_name(name);
        JsonObjectWriter::begin(self.out)
    }

    pub fn text(&mut self, name: &'static str, value: &[u8]) {
        self.known_name(name);
        text(self.out, value);
    }

    /// A text in several parts, each of which is escaped.
    pub fn text_of<const N: usize>(&mut self, name: &'static str, parts: [&[u8]; N]) {
        self.known_name(name);
        self.out.push(b'"');
        parts.iter().for_each(|part| escape::json(self.out, part));
        self.out.push(b'"');
    }

    /// A text in which nothing has to be escaped, such as an address or a time; `write` appends it.
    pub fn plain_text(&mut self, name: &'static str, write: impl FnOnce(&mut Vec<u8>)) {
        self.known_name(name);
        self.out.push(b'"');
        write(self.out);
        self.out.push(b'"');
    }

    pub fn text_bytes(&mut self, name: &[u8], value: &[u8]) {
        self.name(name);
        text(self.out, value);
    }

    pub fn text_if(&mut self, name: &'static str, value: Option<&[u8]>) {
        if let Some(value) = value {
            self.text(name, value);
        }
    }

    pub fn number(&mut self, name: &'static str, value: u64) {
        self.known_name(name);
        self.out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    }

    /// A time in nanoseconds, written as milliseconds with at least one and at most six decimal places; or `null`.
    pub fn ms(&mut self, name: &'static str, ns: Option<u64>) {
        self.known_name(name);
        let Some(ns) = ns else { return self.out.extend_from_slice(b"null") };
        self.out.extend_from_slice(itoa::Buffer::new().format(ns / NS_PER_MS).as_bytes());
        self.out.push(b'.');
        let mut buffer = itoa::Buffer::new();
        // The leading 1 keeps the zeroes behind it.
        let places = &buffer.format(NS_PER_MS + ns % NS_PER_MS).as_bytes()[1..];
        let length = places.iter().rposition(|&digit| digit != b'0').map_or(1, |last| last + 1);
        self.out.extend_from_slice(&places[..length]);
    }

    /// A member whose value is JSON already.
    pub fn raw(&mut self, name: &[u8], json: &[u8]) {
        self.name(name);
        self.out.extend_from_slice(json);
    }

    /// Begins an object as a member; [`JsonObjectWriter::end_nested`] ends it.
    pub fn nested(&mut self, name: &[u8]) {
        self.name(name);
        self.out.push(b'{');
        self.is_empty = true;
    }

    pub fn end_nested(&mut self) {
        self.out.push(b'}');
        self.is_empty = false;
    }

    /// Writes each pair as a member; several values of one name become a list.
    pub fn grouped(&mut self, mut pairs: Vec<Pair<'_>>) {
        if pairs.len() > FEW {
            pairs.sort_by(|(one, _), (other, _)| one.cmp(other));
            for alike in pairs.chunk_by(|(one, _), (other, _)| one == other) {
                self.values(&alike[0].0, alike.iter().map(|(_, value)| &**value));
            }
            return;
        }
        for (index, (name, _)) in pairs.iter().enumerate() {
            if !pairs[..index].iter().any(|(earlier, _)| earlier == name) {
                let alike = pairs[index..].iter().filter(|(other, _)| other == name);
                self.values(name, alike.map(|(_, value)| &**value));
            }
        }
    }

    /// Writes one value, or a list of several.
    fn values<'v>(&mut self, name: &[u8], values: impl Iterator<Item = &'v [u8]>) {
        self.name(name);
        let start = self.out.len();
        for (index, value) in values.enumerate() {
            if index == 1 {
                self.out.insert(start, b'[');
            }
            if index > 0 {
                self.out.push(b',');
            }
            text(self.out, value);
        }
        if self.out[start] == b'[' {
            self.out.push(b']');
        }
    }
}

impl Drop for JsonObjectWriter<'_> {
    fn drop(&mut self) {
        self.out.push(b'}');
    }
}

fn text(out: &mut Vec<u8>, value: &[u8]) {
    out.push(b'"');
    escape::json(out, value);
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_are_written_as_a_floating_point_number_would_be() {
        for ns in [0, 1, 10, 999_999, 1_000_000, 1_500_000, 1_719_595, 12_000_100, 86_400_000_000_000] {
            let mut out = Vec::new();
            JsonObjectWriter::begin(&mut out).ms("ms", Some(ns));
            let value: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
            assert_eq!(value["ms"], ns as f64 / 1e6, "{ns}");
        }
        let mut out = Vec::new();
        JsonObjectWriter::begin(&mut out).ms("ms", None);
        assert_eq!(out, b"{\"ms\":null}");
    }
}
