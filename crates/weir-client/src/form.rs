//! Names and values in queries and forms (WHATWG URL §5): `a=1&b=two+words&c=%26`.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode};

/// The pairs of a query or a form, decoded, in order. A name without `=` has an empty value.
pub fn pairs(text: &[u8]) -> impl Iterator<Item = (Cow<'_, [u8]>, Cow<'_, [u8]>)> {
    text.split(|&byte| byte == b'&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = halves(pair);
        (decoded(name), decoded(value))
    })
}

/// Name and value of one pair, not decoded.
pub fn halves(pair: &[u8]) -> (&[u8], &[u8]) {
    let end = pair.iter().position(|&byte| byte == b'=').unwrap_or(pair.len());
    (&pair[..end], pair.get(end + 1..).unwrap_or_default())
}

/// Decodes `%XX` and `+`; an invalid escape is kept as it is.
pub fn decoded(value: &[u8]) -> Cow<'_, [u8]> {
    if !value.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return Cow::Borrowed(value);
    }
    let spaced: Vec<u8> = value.iter().map(|&byte| if byte == b'+' { b' ' } else { byte }).collect();
    Cow::Owned(percent_decode(&spaced).collect())
}

/// All but the characters that stand for themselves in a form.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'*');

/// Appends a name or a value in encoded form.
pub fn write_encoded(value: &[u8], out: &mut Vec<u8>) {
    percent_encode(value, ENCODED).for_each(|part| out.extend_from_slice(part.as_bytes()));
}

/// A name or a value in encoded form.
pub fn encoded(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    write_encoded(value, &mut out);
    out
}

/// Encodes pairs as a form.
pub fn encoded_pairs(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in pairs {
        if !out.is_empty() {
            out.push(b'&');
        }
        write_encoded(name.as_bytes(), &mut out);
        out.push(b'=');
        write_encoded(value.as_bytes(), &mut out);
    }
    out
}

/// A URL with further pairs in its query.
pub fn with_pairs(url: &str, pairs: &[(&str, &str)]) -> String {
    let mark = if url.contains('?') { '&' } else { '?' };
    format!("{url}{mark}{}", String::from_utf8_lossy(&encoded_pairs(pairs)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_decoded() {
        let found: Vec<_> = pairs(b"a=1&b=two+words&&c&%64=%26%zz=x")
            .map(|(name, value)| {
                (String::from_utf8_lossy(&name).into_owned(), String::from_utf8_lossy(&value).into_owned())
            })
            .collect();
        let want = [("a", "1"), ("b", "two words"), ("c", ""), ("d", "&%zz=x")];
        assert_eq!(found, want.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn every_byte_survives_encoding_and_decoding() {
        let all: Vec<u8> = (0..=u8::MAX).collect();
        let mut out = Vec::new();
        write_encoded(&all, &mut out);
        assert!(out.iter().all(|byte| byte.is_ascii_graphic() && !b"&=+#".contains(byte)), "{out:?}");
        assert_eq!(*decoded(&out), *all);
    }
}
