//! Durations and sizes in Caddy's syntax.

/// Seconds of `90s`, `1m30s`, `1.5h` or `2d`.
pub(super) fn seconds(text: &str) -> Option<f64> {
    let mut sum = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(rest.len());
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|char: char| char.is_ascii_digit()).unwrap_or(rest.len());
        let factor = match &rest[..unit] {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            "" if sum == 0.0 && number == 0.0 => 0.0,
            _ => return None,
        };
        sum += number * factor;
        rest = &rest[unit..];
    }
    (!text.is_empty()).then_some(sum)
}

/// Bytes of `10MB` (multiples of 1000) or `10MiB` (multiples of 1024).
pub(super) fn bytes(text: &str) -> Option<i64> {
    let digits = text.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(text.len());
    let factor: f64 = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "ki" | "kib" => 1024.0,
        "mi" | "mib" => 1024.0 * 1024.0,
        "gi" | "gib" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    Some((text[..digits].parse::<f64>().ok()? * factor) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_are_those_of_caddy() {
        assert_eq!((seconds("1m30s"), seconds("500ms"), seconds("1.5h")), (Some(90.0), Some(0.5), Some(5_400.0)));
        assert_eq!((seconds("2d"), seconds("0"), seconds("5"), seconds("")), (Some(172_800.0), Some(0.0), None, None));
        assert_eq!(
            (bytes("10MB"), bytes("1.5KiB"), bytes("7"), bytes("x")),
            (Some(10_000_000), Some(1536), Some(7), None)
        );
    }
}
