//! Header maps as they are passed through a plugin's memory: the number of pairs, the lengths of each name and value, then the bytes
//! of each, followed by a NUL. Numbers have four bytes, the lowest first.

use crate::limits;

/// A name and a value.
pub type MapPair = (Vec<u8>, Vec<u8>);

pub fn encode<'p>(pairs: impl Iterator<Item = (&'p [u8], &'p [u8])> + Clone) -> Vec<u8> {
    let mut out = (pairs.clone().count() as u32).to_le_bytes().to_vec();
    for (name, value) in pairs.clone() {
        out.extend((name.len() as u32).to_le_bytes());
        out.extend((value.len() as u32).to_le_bytes());
    }
    for (name, value) in pairs {
        out.extend_from_slice(name);
        out.push(0);
        out.extend_from_slice(value);
        out.push(0);
    }
    out
}

/// `None` if the bytes are no map, or one with too many pairs. Nothing is reserved by a number that the bytes do not bear out.
pub fn decode(bytes: &[u8]) -> Option<Vec<MapPair>> {
    if bytes.is_empty() {
        return Some(Vec::new());
    }
    if bytes.len() > limits::PAIR_BYTES {
        return None;
    }
    let number = |at: usize| {
        let four: [u8; 4] = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(four)).ok()
    };
    let count = number(0)?;
    if count > limits::PAIRS {
        return None;
    }
    let mut at = 4 + 8 * count;
    let mut text = |length: usize| {
        let end = at.checked_add(length)?;
        let text = bytes.get(at..end)?;
        if *bytes.get(end)? != 0 {
            return None;
        }
        at = end + 1;
        Some(text.to_vec())
    };
    let mut pairs = Vec::new();
    for index in 0..count {
        let lengths = 4 + 8 * index;
        let name = text(number(lengths)?)?;
        let value = text(number(lengths + 4)?)?;
        pairs.push((name, value));
    }
    (at == bytes.len()).then_some(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn borrowed(pairs: &[MapPair]) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
        pairs.iter().map(|(name, value)| (&**name, &**value))
    }

    #[test]
    fn pairs_have_the_form_of_the_specification() {
        let pairs: Vec<MapPair> = vec![(b"a".to_vec(), b"12".to_vec()), (b"bc".to_vec(), Vec::new())];
        let bytes = encode(borrowed(&pairs));
        assert_eq!(bytes, b"\x02\0\0\0\x01\0\0\0\x02\0\0\0\x02\0\0\0\0\0\0\0a\x0012\0bc\0\0");
        assert_eq!(decode(&bytes), Some(pairs));
        assert_eq!(decode(&encode(borrowed(&[]))), Some(Vec::new()));
        assert_eq!(decode(b""), Some(Vec::new()), "no map at all is an empty one");
    }

    #[test]
    fn bytes_that_are_no_pairs_are_refused() {
        let good = encode(borrowed(&[(b"a".to_vec(), b"1".to_vec())]));
        for end in 1..good.len() {
            assert_eq!(decode(&good[..end]), None, "cut after {end}");
        }
        let mut longer = good.clone();
        longer.push(0);
        assert_eq!(decode(&longer), None);
        let mut without_end = good.clone();
        without_end[13] = 1;
        assert_eq!(decode(&without_end), None, "the name does not end with a NUL");
        assert_eq!(decode(&[255; 8]), None, "more pairs than there may be");
        let mut long = good;
        long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(decode(&long), None, "a length beyond the bytes");
    }
}
