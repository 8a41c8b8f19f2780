//! Integers with a prefix (RFC 7541 §5.1).

use super::BrokenFieldSection;

/// Reads an integer that starts in the low `prefix` bits of `first` and may continue in `bytes`. A continuation of more than
/// four bytes is an error: no valid size or index needs as many.
pub(crate) fn read(first: u8, prefix: u32, bytes: &mut &[u8]) -> Result<usize, BrokenFieldSection> {
    let most = (1_usize << prefix) - 1;
    let value = usize::from(first) & most;
    if value < most {
        return Ok(value);
    }
    read_rest(most, bytes)
}

#[cold]
fn read_rest(mut value: usize, bytes: &mut &[u8]) -> Result<usize, BrokenFieldSection> {
    for shift in (0..28).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(BrokenFieldSection)?;
        *bytes = rest;
        value += usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(BrokenFieldSection)
}

/// Writes an integer into the low `prefix` bits below `pattern`, and into further bytes if needed.
pub(crate) fn write(pattern: u8, prefix: u32, value: usize, out: &mut Vec<u8>) {
    let most = (1_usize << prefix) - 1;
    if value < most {
        return out.push(pattern | value as u8);
    }
    out.push(pattern | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_the_specification() {
        // RFC 7541 appendix C.1.
        for (prefix, value, written) in [(5, 10, &[10][..]), (5, 1337, &[31, 154, 10]), (8, 42, &[42])] {
            let mut out = Vec::new();
            write(0, prefix, value, &mut out);
            assert_eq!(out, written);
            assert_eq!(read(out[0], prefix, &mut &out[1..]), Ok(value));
        }
    }

    #[test]
    fn an_integer_has_an_end() {
        for bad in [&[][..], &[0x80], &[0xff; 3], &[0xff; 4], &[0x80, 0x80, 0x80, 0x80, 0x00]] {
            assert_eq!(read(0xff, 7, &mut &bad[..]), Err(BrokenFieldSection), "{bad:x?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn integer_survives_writing_and_reading(prefix in 1u32..=8, value in 0usize..1 << 27) {
            let mut out = Vec::new();
            write(0, prefix, value, &mut out);
            let mut rest = &out[1..];
            proptest::prop_assert_eq!(read(out[0], prefix, &mut rest), Ok(value));
            proptest::prop_assert!(rest.is_empty());
        }
    }
}
