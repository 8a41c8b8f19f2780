//! Durations and sizes as people write them.

use std::time::Duration;

/// The longest duration; clocks could overflow with longer ones.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// Seconds, with fractions, up to [`LONGEST`].
pub fn seconds(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok().filter(|duration| *duration <= LONGEST)
}

/// `500ms`, `10s`, `5m`, `1h`, `1d`; a bare number is seconds.
pub fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = split(text)?;
    let scale = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return None,
    };
    seconds(number.parse::<f64>().ok()? * scale)
}

/// `16k`, `8m` and `1g` count in 1024 as nginx does; `KB`, `MB`, `GB` in 1000; `KiB`, `MiB`, `GiB` in 1024.
pub fn size(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let scale: u64 = match unit {
        "" | "B" => 1,
        "k" | "K" | "KiB" => 1 << 10,
        "m" | "M" | "MiB" => 1 << 20,
        "g" | "G" | "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        "KB" | "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(scale)
}

fn split(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    number.starts_with(|c: char| c.is_ascii_digit()).then(|| (number, unit.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (text, ms) in
            [("500ms", 500), ("10s", 10_000), ("1.5 s", 1_500), ("5m", 300_000), ("1h", 3_600_000), ("0", 0)]
        {
            assert_eq!(duration(text), Some(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "10 x", "-1s", "1e3s", "1..2s", "400d", "10S"] {
            assert_eq!(duration(text), None, "{text}");
        }
        assert_eq!(seconds(f64::NAN), None);
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [("0", 0), ("16k", 16_384), ("8MB", 8_000_000), ("8MiB", 8_388_608), ("2 GiB", 2 << 30)] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["", "8Mb", "1.5k", "-1", "99999999999TB", "k"] {
            assert_eq!(size(text), None, "{text}");
        }
    }
}
