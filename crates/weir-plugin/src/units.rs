//! Durations and sizes as people write them.

use std::time::Duration;

/// The longest duration; clocks could overflow with longer ones.
pub const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// Seconds, with fractions, up to [`LONGEST`].
pub fn seconds(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok().filter(|duration| *duration <= LONGEST)
}

/// `500ms`, `10s`, `5m`, `1h`, `1d`; a bare number is seconds.
pub fn duration(text: &str) -> Option<Duration> {
    seconds(time_in_s(text)?)
}

/// The same as a number of seconds, which may be longer.
pub fn time_in_s(text: &str) -> Option<f64> {
    let (number, unit) = split(text)?;
    let scale = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * scale)
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

/// The texts that [`duration`] takes.
pub const DURATION_PATTERN: &str = r"^[0-9]+(\.[0-9]+)? *(ms|s|m|min|h|d)?$";
/// The texts that [`size`] takes.
pub const SIZE_PATTERN: &str = r"^[0-9]+ *(B|k|K|KiB|m|M|MiB|g|G|GiB|TiB|KB|kB|MB|GB|TB)?$";

/// A duration in its largest unit that leaves a whole number.
pub fn written_time(time: Duration) -> String {
    const UNITS: [(u128, &str); 4] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    let ms = time.as_millis();
    let fitting = UNITS.iter().find(|(scale, _)| ms > 0 && ms.is_multiple_of(*scale));
    match fitting {
        // One minute is as often written in seconds as an hour in minutes.
        Some((60_000, _)) if ms < 300_000 => format!("{}s", ms / 1_000),
        Some((scale, unit)) => format!("{}{unit}", ms / scale),
        None if ms == 0 => "0s".to_owned(),
        None => format!("{ms}ms"),
    }
}

/// A size in its largest binary unit that leaves a whole number.
pub fn written_size(size: u64) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let fitting = UNITS.iter().find(|(bits, _)| size > 0 && size.is_multiple_of(1 << bits));
    fitting.map_or_else(|| size.to_string(), |(bits, unit)| format!("{}{unit}", size >> bits))
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
        for text in ["500ms", "10s", "60s", "90s", "5m", "1h", "2d", "0s"] {
            assert_eq!(duration(text).map(written_time).as_deref(), Some(text));
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [("0", 0), ("16k", 16_384), ("8MB", 8_000_000), ("8MiB", 8_388_608), ("2 GiB", 2 << 30)] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["0", "240", "1KiB", "256MiB", "1GiB", "1TiB"] {
            assert_eq!(size(text).map(written_size).as_deref(), Some(text));
        }
        for text in ["", "8Mb", "1.5k", "-1", "99999999999TB", "k"] {
            assert_eq!(size(text), None, "{text}");
        }
    }
}
