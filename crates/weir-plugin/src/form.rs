//! Names and values in queries and forms (WHATWG URL §5): `a=1&b=two+words&c=%26`.

use std::borrow::Cow;

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
    let digit = |at: usize| value.get(at).and_then(|&byte| (byte as char).to_digit(16));
    let mut out = Vec::with_capacity(value.len());
    let mut at = 0;
    while at < value.len() {
        match (value[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 2;
            }
            (b'+', ..) => out.push(b' '),
            (byte, ..) => out.push(byte),
        }
        at += 1;
    }
    Cow::Owned(out)
}

/// Appends a name or a value in encoded form.
pub fn write_encoded(value: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in value {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'*' => out.push(byte),
            _ => out.extend_from_slice(&[b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]),
        }
    }
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
