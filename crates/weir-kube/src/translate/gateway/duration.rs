//! Durations as GEP-2257 has them: `1h30m`, `500ms`.

use std::time::Duration;

/// Up to four parts, each a whole number of at most five digits with a unit.
pub(super) fn parse(text: &str) -> Option<Duration> {
    let mut sum = Duration::ZERO;
    let mut rest = text;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).filter(|digits| (1..=5).contains(digits))?;
        let number: u64 = rest[..digits].parse().ok()?;
        let after = &rest[digits..];
        let letters = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let unit_ms = match &after[..letters] {
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1_000,
            "ms" => 1,
            _ => return None,
        };
        sum += Duration::from_millis(number * unit_ms);
        rest = &after[letters..];
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_numbers_with_units() {
        assert_eq!(parse("1h30m"), Some(Duration::from_secs(5_400)));
        assert_eq!(parse("1s500ms"), Some(Duration::from_millis(1_500)));
        assert_eq!(parse("0s"), Some(Duration::ZERO));
        for wrong in ["", "1", "s", "1.5s", "-1s", "1d", "123456s", "é"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
