//! Short forms of numbers and texts.

pub(super) fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

pub(super) fn count(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if value < 10.0 && value.fract() != 0.0 => format!("{value:.1}"),
        value if value < 100_000.0 => format!("{value:.0}"),
        value if value < 10e6 => format!("{:.0}k", value / 1e3),
        value => format!("{:.0}M", value / 1e6),
    }
}

pub(super) fn seconds(value: f64) -> String {
    match value {
        0.0 => "0 µs".to_owned(),
        value if value < 0.000_009_95 => format!("{:.2} µs", value * 1e6),
        value if value < 0.000_999_5 => format!("{:.0} µs", value * 1e6),
        value if value < 0.01 => format!("{:.1} ms", value * 1e3),
        value if value < 0.999_5 => format!("{:.0} ms", value * 1e3),
        value if value < 120.0 => format!("{value:.1} s"),
        value if value < 7_200.0 => format!("{:.0} min", value / 60.0),
        value if value < 172_800.0 => format!("{:.0} h", value / 3_600.0),
        value => format!("{:.0} d", value / 86_400.0),
    }
}

pub(super) fn bytes(value: f64) -> String {
    match value {
        value if value < 1_000.0 => format!("{value:.0} B"),
        value if value < 1e6 => format!("{:.1} kB", value / 1e3),
        value if value < 1e9 => format!("{:.1} MB", value / 1e6),
        value => format!("{:.1} GB", value / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_few_digits() {
        let counts = [0.0, 0.25, 12.4, 99_999.0, 123_456.0, 12e6].map(count);
        assert_eq!(counts, ["0", "0.2", "12", "99999", "123k", "12M"]);
        let times = [0.0, 0.000_000_4, 0.000_035, 0.001_24, 0.5, 3.0, 600.0, 9_000.0, 1e6].map(seconds);
        assert_eq!(times, ["0 µs", "0.40 µs", "35 µs", "1.2 ms", "500 ms", "3.0 s", "10 min", "2 h", "12 d"]);
        assert_eq!([512.0, 20_480.0, 5e6, 3e9].map(bytes), ["512 B", "20.5 kB", "5.0 MB", "3.0 GB"]);
    }
}
