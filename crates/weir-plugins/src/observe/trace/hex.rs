//! Numbers in lower-case hexadecimal digits, as in trace contexts.

/// A number of exactly `count` digits; `None` if there is another byte.
pub(crate) fn number(digits: &[u8], count: usize) -> Option<u128> {
    if digits.len() != count {
        return None;
    }
    digits.iter().try_fold(0, |number: u128, &byte| Some(number << 4 | u128::from(digit(byte)?)))
}

/// The same for ids, which must not be zero.
pub(crate) fn id(digits: &[u8], count: usize) -> Option<u128> {
    number(digits, count).filter(|&id| id != 0)
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lower_case_digits_of_the_right_number_are_one() {
        assert_eq!(number(b"0aF", 3), None);
        assert_eq!(number(b"0af", 3), Some(0xaf));
        assert_eq!(number(b"0af", 4), None);
        assert_eq!(number(&[b'f'; 32], 32), Some(u128::MAX));
        assert_eq!((id(b"00", 2), id(b"01", 2)), (None, Some(1)));
    }
}
