//! The value of a plain scalar: the YAML 1.1 types, as far as JSON has them.
//!
//! Numbers in base 60 (`12:30`) are not supported: they are hardly ever intended, and addresses look alike. `.inf` and `.nan`
//! have no JSON number and stay text, which is refused where a number is expected.

use serde_json::Number;

use crate::text::tree::NodeKind;

pub(in crate::text) fn resolve(text: &str) -> NodeKind {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => NodeKind::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => NodeKind::Bool(true),
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => NodeKind::Bool(false),
        _ => number(text).map_or_else(|| NodeKind::Text(text.into()), NodeKind::Number),
    }
}

fn number(text: &str) -> Option<Number> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return None;
    }
    let (negative, digits) = match text.as_bytes()[0] {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let digits = &*match digits.contains('_') {
        true => std::borrow::Cow::Owned(digits.replace('_', "")),
        false => std::borrow::Cow::Borrowed(digits),
    };
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let radix = |digits: &str, radix| {
        digits.starts_with(|c: char| c.is_digit(radix)).then(|| u64::from_str_radix(digits, radix).ok()).flatten()
    };
    let whole = if let Some(digits) = digits.strip_prefix("0x") {
        radix(digits, 16)
    } else if let Some(digits) = digits.strip_prefix("0b") {
        radix(digits, 2)
    } else if let Some(octal) = digits.strip_prefix('0').filter(|rest| radix(rest, 8).is_some()) {
        radix(octal, 8)
    } else {
        radix(digits, 10)
    };
    if let Some(whole) = whole {
        return match negative {
            false => Some(whole.into()),
            true => 0_i64.checked_sub_unsigned(whole).map(Number::from),
        };
    }
    float(digits).and_then(|value| Number::from_f64(if negative { -value } else { value }))
}

/// Checks for a decimal number first: Rust's parser would also accept `infinity`.
fn float(digits: &str) -> Option<f64> {
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-'));
    plain.then(|| digits.parse().ok()).flatten().filter(|value: &f64| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn plain_scalars_mean_what_they_mean_in_yaml_1_1() {
        let cases: &[(&str, Value)] = &[
            ("", Value::Null),
            ("~", Value::Null),
            ("yes", json!(true)),
            ("Off", json!(false)),
            ("y", json!("y")),
            ("0", json!(0)),
            ("-17", json!(-17)),
            ("+5", json!(5)),
            ("1_000", json!(1000)),
            ("0755", json!(493)),
            ("08", json!(8)),
            ("0x1F", json!(31)),
            ("0b101", json!(5)),
            ("1.50", json!(1.5)),
            (".5", json!(0.5)),
            ("1e3", json!(1000.0)),
            ("18446744073709551615", json!(u64::MAX)),
            ("-9223372036854775808", json!(i64::MIN)),
            ("99999999999999999999", json!(1e20)),
            (".inf", json!(".inf")),
            (".nan", json!(".nan")),
            ("infinity", json!("infinity")),
            ("12:30", json!("12:30")),
            ("127.0.0.1", json!("127.0.0.1")),
            ("1.2.3", json!("1.2.3")),
            ("--1", json!("--1")),
            ("-", json!("-")),
            ("_1", json!("_1")),
            ("0x", json!("0x")),
            ("0x+1", json!("0x+1")),
            ("1e999", json!("1e999")),
            ("10s", json!("10s")),
        ];
        for (text, expected) in cases {
            let kind = resolve(text);
            assert_eq!(crate::text::tree::TreeNode::unplaced(kind).to_json(), *expected, "{text}");
        }
    }
}
