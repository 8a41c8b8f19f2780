//! Writes JSON directly into a buffer: building a tree of values first would cost several times as much.

use weir_plugin::escape;
use weir_plugin::proto::field;

/// Writes a JSON object. Each member ends with a comma; the closing brace, which is written when it is dropped, replaces the last
/// one.
pub(crate) struct JsonObjectWriter<'a> {
    out: &'a mut Vec<u8>,
    /// It is the value of a member.
    is_member: bool,
}

/// A member's name from the source text of this program, with the quotation mark that opens a text. Written as one constant
/// by [`known!`].
#[derive(Clone, Copy)]
pub(crate) struct MemberName(#[doc(hidden)] pub &'static str);

/// A [`MemberName`] from a literal, in which nothing has to be escaped.
macro_rules! known {
    ($name:literal) => {
        $crate::log::json::MemberName(concat!("\"", $name, "\":\""))
    };
}
pub(crate) use known;

impl MemberName {
    /// The name by itself.
    pub(crate) fn name(self) -> &'static str {
        &self.0[1..self.0.len() - 3]
    }
}

const NS_PER_MS: u64 = 1_000_000;

/// Up to this many pairs are compared with each other; more are sorted.
const FEW: usize = 32;

// Inlined where names are known, so that each is copied as a constant.
impl JsonObjectWriter<'_> {
    pub(crate) fn begin(out: &mut Vec<u8>) -> JsonObjectWriter<'_> {
        out.push(b'{');
        JsonObjectWriter { out, is_member: false }
    }

    fn name(&mut self, name: &[u8]) {
        self.out.push(b'"');
        escape::json(self.out, name);
        self.out.extend_from_slice(b"\":");
    }

    /// The name of a member whose value is not a text.
    #[inline(always)]
    fn known_name(&mut self, name: MemberName) {
        self.out.extend_from_slice(&name.0.as_bytes()[..name.0.len() - 1]);
    }

    #[inline(always)]
    pub(crate) fn object(&mut self, name: MemberName) -> JsonObjectWriter<'_> {
        self.known_name(name);
        self.out.push(b'{');
        JsonObjectWriter { out: self.out, is_member: true }
    }

    #[inline(always)]
    pub(crate) fn text(&mut self, name: MemberName, value: &[u8]) {
        self.plain_text(name, |out| escape::json(out, value));
    }

    /// A text that `write` appends; it escapes what has to be escaped.
    #[inline(always)]
    pub(crate) fn plain_text(&mut self, name: MemberName, write: impl FnOnce(&mut Vec<u8>)) {
        self.out.extend_from_slice(name.0.as_bytes());
        write(self.out);
        self.out.extend_from_slice(b"\",");
    }

    pub(crate) fn text_bytes(&mut self, name: &[u8], value: &[u8]) {
        self.name(name);
        text(self.out, value);
        self.out.push(b',');
    }

    #[inline(always)]
    pub(crate) fn text_if(&mut self, name: MemberName, value: Option<&[u8]>) {
        if let Some(value) = value {
            self.text(name, value);
        }
    }

    #[inline(always)]
    pub(crate) fn number(&mut self, name: MemberName, value: u64) {
        self.known_name(name);
        digits(self.out, value);
        self.out.push(b',');
    }

    /// A time in nanoseconds, written as milliseconds with at least one and at most six decimal places; or `null`.
    #[inline(always)]
    pub(crate) fn ms(&mut self, name: MemberName, ns: Option<u64>) {
        self.known_name(name);
        match ns {
            Some(ns) => ms(self.out, ns),
            None => self.out.extend_from_slice(b"null"),
        }
        self.out.push(b',');
    }

    /// A member whose value, which `write` appends, is JSON already.
    #[inline(always)]
    pub(crate) fn value(&mut self, name: MemberName, write: impl FnOnce(&mut Vec<u8>)) {
        self.known_name(name);
        write(self.out);
        self.out.push(b',');
    }

    /// A member whose value is JSON already.
    pub(crate) fn raw(&mut self, name: &[u8], json: &[u8]) {
        self.name(name);
        self.out.extend_from_slice(json);
        self.out.push(b',');
    }

    /// Begins an object as a member; [`JsonObjectWriter::end_nested`] ends it.
    pub(crate) fn nested(&mut self, name: &[u8]) {
        self.name(name);
        self.out.push(b'{');
    }

    pub(crate) fn end_nested(&mut self) {
        close(self.out);
        self.out.push(b',');
    }

    /// Writes each pair as a member; several values of one name become a list.
    pub(crate) fn grouped<'p>(&mut self, pairs: impl Iterator<Item = (&'p [u8], &'p [u8])> + Clone, kind: PairKind) {
        let (mut count, mut seen, mut are_different) = (0, 0_u64, true);
        for (name, _) in pairs.clone() {
            let bit = 1 << (kind.hash(name) & 63);
            are_different &= seen & bit == 0;
            seen |= bit;
            count += 1;
        }
        if are_different {
            // The ordinary case: no two names have a hash in common.
            return pairs.for_each(|(name, value)| {
                self.pair_name(name, kind);
                self.pair_value(value, kind);
            });
        }
        let mut pairs: Vec<_> = pairs.collect();
        if count > FEW {
            pairs.sort_by(|(one, _), (other, _)| kind.shown(one).cmp(kind.shown(other)));
            for alike in pairs.chunk_by(|(one, _), (other, _)| kind.are_equal(one, other)) {
                self.values(alike[0].0, kind, alike.iter().map(|(_, value)| *value));
            }
            return;
        }
        for (index, (name, _)) in pairs.iter().enumerate() {
            if !pairs[..index].iter().any(|(earlier, _)| kind.are_equal(earlier, name)) {
                let alike = pairs[index..].iter().filter(|(other, _)| kind.are_equal(other, name));
                self.values(name, kind, alike.map(|(_, value)| *value));
            }
        }
    }

    /// Writes one value, or a list of several.
    fn values<'v>(&mut self, name: &[u8], kind: PairKind, values: impl Iterator<Item = &'v [u8]>) {
        self.pair_name(name, kind);
        let start = self.out.len();
        for (index, value) in values.enumerate() {
            if index == 1 {
                self.out.insert(start, b'[');
            }
            self.pair_value(value, kind);
        }
        if self.out[start] == b'[' {
            self.out.pop();
            self.out.extend_from_slice(b"],");
        }
    }

    /// Writes a name and the colon behind it.
    fn pair_name(&mut self, name: &[u8], kind: PairKind) {
        self.out.push(b'"');
        match kind {
            PairKind::Fields => self.out.extend(name.iter().map(|&byte| FIELD_NAME[usize::from(byte)])),
            PairKind::Arguments => escape::json(self.out, name),
            PairKind::PlainArguments => self.out.extend_from_slice(name),
        }
        self.out.extend_from_slice(b"\":");
    }

    fn pair_value(&mut self, value: &[u8], kind: PairKind) {
        self.out.push(b'"');
        match kind {
            PairKind::PlainArguments => self.out.extend_from_slice(value),
            PairKind::Fields | PairKind::Arguments => escape::json(self.out, value),
        }
        self.out.extend_from_slice(b"\",");
    }
}

/// What pairs are: this decides how they are written, and which names are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PairKind {
    /// Header fields. Their names are tokens, the same in any case (RFC 9110 §5.1), and are written in lower case.
    Fields,
    /// Arguments of a query.
    Arguments,
    /// The same, if nothing in them has to be escaped.
    PlainArguments,
}

/// The bytes of field names as they are written. A token has none that would have to be escaped; any other becomes `_`.
const FIELD_NAME: [u8; 256] = {
    let (mut bytes, mut byte) = ([b'_'; 256], 0);
    while byte < 256 {
        if field::is_token_byte(byte as u8) {
            bytes[byte] = (byte as u8).to_ascii_lowercase();
        }
        byte += 1;
    }
    bytes
};

impl PairKind {
    fn are_equal(self, one: &[u8], other: &[u8]) -> bool {
        match self {
            PairKind::Fields => one.eq_ignore_ascii_case(other),
            PairKind::Arguments | PairKind::PlainArguments => one == other,
        }
    }

    /// The bytes of a name in the case in which it is written.
    fn shown(self, name: &[u8]) -> impl Iterator<Item = u8> {
        name.iter().map(move |byte| if self == PairKind::Fields { byte.to_ascii_lowercase() } else { *byte })
    }

    /// The same for names that are the same, and mostly different for others.
    fn hash(self, name: &[u8]) -> usize {
        let byte = |at: usize| name.get(at).map_or(0, |byte| usize::from(byte | 0x20));
        byte(0) ^ (5 * byte(name.len() / 2)) ^ (11 * byte(name.len().wrapping_sub(1))) ^ (23 * name.len())
    }
}

impl Drop for JsonObjectWriter<'_> {
    #[inline]
    fn drop(&mut self) {
        close(self.out);
        if self.is_member {
            self.out.push(b',');
        }
    }
}

/// Closes an object whose members each end with a comma.
#[inline]
fn close(out: &mut Vec<u8>) {
    match out.last_mut() {
        Some(last @ b',') => *last = b'}',
        _ => out.push(b'}'),
    }
}

fn text(out: &mut Vec<u8>, value: &[u8]) {
    out.push(b'"');
    escape::json(out, value);
    out.push(b'"');
}

fn digits(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

fn ms(out: &mut Vec<u8>, ns: u64) {
    digits(out, ns / NS_PER_MS);
    let start = out.len();
    // The leading 1, in whose place the point is written, keeps the zeroes behind it.
    digits(out, NS_PER_MS + ns % NS_PER_MS);
    out[start] = b'.';
    while out.len() > start + 2 && out.last() == Some(&b'0') {
        out.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_each_size_stand_in_each_other() {
        let mut out = Vec::new();
        {
            let mut object = JsonObjectWriter::begin(&mut out);
            drop(object.object(known!("empty")));
            object.object(known!("one")).number(known!("n"), 1);
            object.nested(b"two\"");
            object.text_bytes(b"a", b"1,");
            object.text(known!("b"), b"");
            object.end_nested();
            object.nested(b"none");
            object.end_nested();
            let pairs = [("X", "["), ("y", "2"), ("x", "3")].map(|(name, value)| (name.as_bytes(), value.as_bytes()));
            object.object(known!("pairs")).grouped(pairs.into_iter(), PairKind::Fields);
            object.object(known!("cases")).grouped(pairs.into_iter(), PairKind::Arguments);
            object.object(known!("plain")).grouped(pairs.into_iter(), PairKind::PlainArguments);
            object.value(known!("json"), |out| out.extend_from_slice(b"[]"));
        }
        let expected = r#"{"empty":{},"one":{"n":1},"two\"":{"a":"1,","b":""},"none":{},"pairs":{"x":["[","3"],"y":"2"},"cases":{"X":"[","y":"2","x":"3"},"plain":{"X":"[","y":"2","x":"3"},"json":[]}"#;
        assert_eq!(String::from_utf8(out).expect("text"), expected);
        let mut out = Vec::new();
        drop(JsonObjectWriter::begin(&mut out));
        assert_eq!(out, b"{}");
        assert_eq!(known!("json").name(), "json");
    }

    #[test]
    fn milliseconds_are_written_as_a_floating_point_number_would_be() {
        for ns in [0, 1, 10, 999_999, 1_000_000, 1_500_000, 1_719_595, 12_000_100, 86_400_000_000_000] {
            let mut out = Vec::new();
            JsonObjectWriter::begin(&mut out).ms(known!("ms"), Some(ns));
            let value: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
            assert_eq!(value["ms"], ns as f64 / 1e6, "{ns}");
        }
        let mut out = Vec::new();
        JsonObjectWriter::begin(&mut out).ms(known!("ms"), None);
        assert_eq!(out, b"{\"ms\":null}");
    }
}
