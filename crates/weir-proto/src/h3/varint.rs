//! Integers of variable length (RFC 9000 §16).

/// The largest value.
pub const MAX: u64 = (1 << 62) - 1;
/// The most bytes that a value takes.
pub const MAX_BYTES: usize = 8;

/// The length of a value in bytes, by its first byte.
pub fn length_of(first: u8) -> usize {
    1 << (first >> 6)
}

/// Takes a value from the front of `bytes`; `None`, with `bytes` as before, if it is not complete.
pub fn take(bytes: &mut &[u8]) -> Option<u64> {
    let first = *bytes.first()?;
    let (value, rest) = bytes.split_at_checked(length_of(first))?;
    *bytes = rest;
    let start = u64::from(first & 0x3f);
    Some(value[1..].iter().fold(start, |value, byte| value << 8 | u64::from(*byte)))
}

/// Appends a value, in as few bytes as possible. Values above [`MAX`] cannot be written: the bits above are lost.
pub fn write(out: &mut Vec<u8>, value: u64) {
    debug_assert!(value <= MAX, "a value that cannot be written: {value}");
    match value {
        0..=0x3f => out.push(value as u8),
        0x40..=0x3fff => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        0x4000..=0x3fff_ffff => out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes()),
        _ => out.extend_from_slice(&(value | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_the_specification() {
        // RFC 9000 appendix A.1.
        for (written, value) in [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
        ] {
            let mut rest = written;
            assert_eq!((take(&mut rest), rest), (Some(value), &[][..]));
            let mut out = Vec::new();
            write(&mut out, value);
            assert_eq!(out, written);
        }
        assert_eq!(take(&mut &[0x40, 0x25][..]), Some(37), "a longer form of the same");
    }

    #[test]
    fn a_value_that_is_not_complete_is_left_where_it_is() {
        for part in [&[][..], &[0x40], &[0x80, 1, 2], &[0xc0, 1, 2, 3, 4, 5, 6]] {
            let mut rest = part;
            assert_eq!((take(&mut rest), rest), (None, part));
        }
    }

    proptest::proptest! {
        #[test]
        fn value_survives_writing_and_reading(value in 0..=MAX) {
            let mut out = Vec::new();
            write(&mut out, value);
            proptest::prop_assert_eq!(out.len(), length_of(out[0]));
            let mut rest = &out[..];
            proptest::prop_assert_eq!(take(&mut rest), Some(value));
            proptest::prop_assert!(rest.is_empty());
        }
    }
}
