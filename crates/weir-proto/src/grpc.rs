//! The deadline of a gRPC call ("gRPC over HTTP2", Timeout).

use std::num::NonZeroU64;

/// Parses a `grpc-timeout`, at most eight digits and a unit, to nanoseconds. `None` if it is malformed. Zero becomes one
/// nanosecond.
pub fn timeout_ns(value: &[u8]) -> Option<NonZeroU64> {
    let (unit, digits) = value.split_last()?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let amount = digits.iter().fold(0, |sum, digit| 10 * sum + u64::from(digit - b'0'));
    let unit_ns = match unit {
        b'H' => 3_600_000_000_000,
        b'M' => 60_000_000_000,
        b'S' => 1_000_000_000,
        b'm' => 1_000_000,
        b'u' => 1_000,
        b'n' => 1,
        _ => return None,
    };
    NonZeroU64::new(amount.saturating_mul(unit_ns).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_unit_is_read() {
        for (value, ns) in
            [("1H", 3_600_000_000_000), ("2M", 120_000_000_000), ("3S", 3_000_000_000), ("200m", 200_000_000)]
                .into_iter()
                .chain([("5u", 5_000), ("00000006n", 6), ("0S", 1), ("99999999H", u64::MAX)])
        {
            assert_eq!(timeout_ns(value.as_bytes()).map(NonZeroU64::get), Some(ns), "{value}");
        }
    }

    #[test]
    fn anything_else_is_none() {
        for value in ["", "m", "5", "5s", "-5m", "5.5S", "123456789m", " 5m", "5 m"] {
            assert_eq!(timeout_ns(value.as_bytes()), None, "{value:?}");
        }
    }
}
