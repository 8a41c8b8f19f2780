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

/// Up to this many pairs are compared with each other; more are sorted.
const FEW: usize = 32;

impl JsonObjectWriter<'_> {
    pub fn begin(out: &mut Vec<u8>) -> JsonObjectWriter<'_> {
        out.push(b'{');
        JsonObjectWriter { out, is_empty: true }
    }

    fn name(&mut self, name: &[u8]) {
        if !std::mem::take(&mut self.is_empty) {
            self.out.push(b',');
        }
        text(self.out, name);
        self.out.push(b':');
    }

    pub fn object(&mut self, name: &str) -> JsonObjectWriter<'_> {
        self.name(name.as_bytes());
        JsonObjectWriter::begin(self.out)
    }

    pub fn text(&mut self, name: &str, value: &[u8]) {
        self.name(name.as_bytes());
        text(self.out, value);
    }

    pub fn text_bytes(&mut self, name: &[u8], value: &[u8]) {
        self.name(name);
        text(self.out, value);
    }

    pub fn text_if(&mut self, name: &str, value: Option<&[u8]>) {
        if let Some(value) = value {
            self.text(name, value);
        }
    }

    pub fn number(&mut self, name: &str, value: u64) {
        self.name(name.as_bytes());
        self.out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    }

    pub fn ms(&mut self, name: &str, value: Option<f64>) {
        self.name(name.as_bytes());
        serde_json::to_writer(&mut *self.out, &value).expect("a Vec takes everything");
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
