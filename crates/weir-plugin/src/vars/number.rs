//! Parsing of text as a number, for comparisons with numbers.

/// Longer text is not a number.
const MAX_LENGTH: usize = 64;

/// Parses a number like Lua's `tonumber`: decimal with fraction and exponent, or `0x` and hexadecimal digits, with white space
/// around. Words such as `inf` and `nan` are text here, since they are never meant as numbers.
pub(super) fn number(text: &[u8]) -> Option<f64> {
    let text = text.trim_ascii();
    if text.is_empty() || text.len() > MAX_LENGTH {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if let Some(hexadecimal) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        // `from_str_radix` would accept a second sign.
        let plain = hexadecimal.bytes().all(|byte| byte.is_ascii_hexdigit());
        return u64::from_str_radix(hexadecimal, 16).ok().filter(|_| plain).map(|value| sign * value as f64);
    }
    digits.starts_with(|first: char| first.is_ascii_digit() || first == '.').then_some(())?;
    digits.parse::<f64>().ok().map(|value| sign * value)
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn decimal_hexadecimal_and_white_space() {
        for (text, value) in [
            ("0", 0.0),
            ("18", 18.0),
            (" 18\t", 18.0),
            ("-1.5", -1.5),
            ("+3", 3.0),
            (".5", 0.5),
            ("5.", 5.0),
            ("1e3", 1000.0),
            ("0x1F", 31.0),
            ("-0x10", -16.0),
            ("007", 7.0),
        ] {
            assert_eq!(number(text.as_bytes()), Some(value), "{text}");
        }
    }

    #[test]
    fn text_that_is_no_number_stays_text() {
        let long = "1".repeat(65);
        for text in [
            "", " ", "x", "1x", "0x", "0x+1", "0xg", "--1", "+-1", "1 2", "inf", "-inf", "nan", "infinity", "e5",
            "\u{664}", &long,
        ] {
            assert_eq!(number(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(number(b"\xff"), None);
    }
}
