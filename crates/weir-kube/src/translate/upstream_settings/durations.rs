//! Durations as Go writes them: `5s`, `1m30s`, `1.5h`.

/// The longest duration that a node takes, in seconds.
const LONGEST: f64 = 365.0 * 86_400.0;

/// In seconds.
///
/// # Errors
/// What is wrong with the text.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    parse(text).ok_or_else(|| format!("`{text}` is not a duration of at most a year: write it as 30s, 1m30s or 500ms"))
}

fn parse(text: &str) -> Option<f64> {
    let mut sum = 0.0;
    let mut rest = text;
    if rest == "0" {
        return Some(sum);
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let after = &rest[digits..];
        let letters = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let unit = match &after[..letters] {
            "h" => 3_600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        sum += number * unit;
        rest = &after[letters..];
    }
    (!text.is_empty() && sum <= LONGEST).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_go_are_read() {
        for (text, expected) in
            [("5s", 5.0), ("1m30s", 90.0), ("1.5h", 5_400.0), ("500ms", 0.5), ("0", 0.0), ("0s", 0.0)]
        {
            assert_eq!(parse(text), Some(expected), "{text}");
        }
        for text in ["", "5", "s", "5x", "-1s", "1.2.3s", "1s5", "10000000h"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
