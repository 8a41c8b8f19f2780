/// The mapping from values to positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    Linear,
    Log,
    /// Percentiles: equal distance for each further nine.
    Nines,
}

/// The unit of values, for their labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Count,
    Milliseconds,
    Microseconds,
    Seconds,
    Bytes,
    Percent,
    /// Value as is, for percentile axes.
    Percentile,
}

impl Unit {
    /// A value with three significant digits and its unit: `12.3k`, `4.56 ms`, `78 MiB`.
    pub fn label(self, value: f64) -> String {
        match self {
            Unit::Count => short(value, &["", "k", "M", "G"], 1000.0),
            Unit::Milliseconds if value != 0.0 && value.abs() < 1.0 => format!("{} µs", digits(value * 1e3)),
            Unit::Milliseconds if value.abs() >= 1e3 => format!("{} s", digits(value / 1e3)),
            Unit::Milliseconds => format!("{} ms", digits(value)),
            Unit::Microseconds if value.abs() >= 1e3 => format!("{} ms", digits(value / 1e3)),
            Unit::Microseconds => format!("{} µs", digits(value)),
            Unit::Seconds => format!("{} s", digits(value)),
            Unit::Bytes => short(value, &[" B", " KiB", " MiB", " GiB"], 1024.0),
            Unit::Percent => format!("{} %", digits(value)),
            Unit::Percentile => format!("{value} %"),
        }
    }
}

fn short(value: f64, suffixes: &[&str], base: f64) -> String {
    let mut scaled = value;
    let mut index = 0;
    while scaled.abs() >= base * 0.9995 && index + 1 < suffixes.len() {
        scaled /= base;
        index += 1;
    }
    format!("{}{}", digits(scaled), suffixes[index])
}

/// Three significant digits without trailing zeros.
pub(super) fn digits(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".to_owned() } else { "–".to_owned() };
    }
    let decimals = (2 - value.abs().log10().floor() as i32).clamp(0, 6) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// An axis: maps values to positions between `from` and `to` pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis that contains all `values`; a linear axis begins at zero.
    pub(super) fn around(scale: Scale, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Axis {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| value.is_finite()) {
            low = low.min(value);
            high = high.max(value);
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        match scale {
            Scale::Linear => {
                low = low.min(0.0);
                if high <= low {
                    high = low + 1.0;
                }
                high += (high - low) * 0.06;
            }
            Scale::Log => {
                low = low.max(1e-6);
                high = high.max(low);
                if high / low < 2.0 {
                    (low, high) = (low / 1.5, high * 1.5);
                } else {
                    (low, high) = (low / 1.12, high * 1.12);
                }
            }
            Scale::Nines => (low, high) = (0.0, high.max(99.0)),
        }
        Axis { scale, low, high, from, to }
    }

    fn warp(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => value,
            Scale::Log => value.max(1e-9).ln(),
            Scale::Nines => -(1.0 - (value / 100.0).min(0.999_999_9)).log10(),
        }
    }

    pub(super) fn place(&self, value: f64) -> f64 {
        let (low, high) = (self.warp(self.low), self.warp(self.high));
        self.from + (self.warp(value) - low) / (high - low) * (self.to - self.from)
    }

    /// The values of grid lines: round in their unit, and few enough to be labelled.
    pub(super) fn ticks(&self, unit: Unit) -> Vec<f64> {
        match self.scale {
            Scale::Linear => self.linear_ticks(unit),
            Scale::Log => self.log_ticks(),
            Scale::Nines => {
                [50.0, 90.0, 99.0, 99.9, 99.99, 99.999].into_iter().filter(|tick| *tick <= self.high).collect()
            }
        }
    }

    fn linear_ticks(&self, unit: Unit) -> Vec<f64> {
        let rough = (self.high - self.low) / 5.0;
        // 20 MiB is a round number of bytes.
        let thousands = if unit == Unit::Bytes { rough.max(1.0).log(1024.0).floor() as i32 } else { 0 };
        let one = 1024f64.powi(thousands);
        let power = one * 10f64.powf((rough / one).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|step| *step >= rough).unwrap_or(rough);
        let first = (self.low / step).ceil() as i64;
        (first..).map(|index| index as f64 * step).take_while(|tick| *tick <= self.high * (1.0 + 1e-9)).collect()
    }

    fn log_ticks(&self) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        let steps: &[f64] = if decades > 4.0 {
            &[1.0]
        } else if decades > 1.6 {
            &[1.0, 3.0]
        } else if decades > 0.7 {
            &[1.0, 2.0, 5.0]
        } else {
            &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0]
        };
        let first = self.low.log10().floor() as i32;
        let last = self.high.log10().ceil() as i32;
        (first..=last)
            .flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)))
            .filter(|tick| (self.low..=self.high).contains(tick))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_short_and_have_a_unit() {
        assert_eq!(Unit::Count.label(24_129.22), "24.1k");
        assert_eq!(Unit::Count.label(999_900.0), "1M");
        assert_eq!(Unit::Milliseconds.label(0.093), "93 µs");
        assert_eq!(Unit::Microseconds.label(127_581.0), "128 ms");
        assert_eq!(Unit::Milliseconds.label(24_500.0), "24.5 s");
        assert_eq!(Unit::Bytes.label(104_857_600.0), "100 MiB");
        assert_eq!(digits(7.0), "7");
    }

    #[test]
    fn ticks_of_bytes_are_round_in_bytes() {
        const MIB: f64 = 1_048_576.0;
        let ticks = |high: f64| Axis::around(Scale::Linear, [high].into_iter(), 0.0, 100.0).ticks(Unit::Bytes);
        assert_eq!(ticks(70.0 * MIB), [0.0, 20.0 * MIB, 40.0 * MIB, 60.0 * MIB]);
        assert_eq!(ticks(2.0 * MIB)[1], 500.0 * 1024.0);
    }

    #[test]
    fn ticks_lie_within_and_are_few() {
        for (scale, values) in [
            (Scale::Linear, vec![0.0, 37_000.0]),
            (Scale::Log, vec![0.05, 900.0]),
            (Scale::Log, vec![64.0, 64.0]),
            (Scale::Nines, vec![0.0, 99.99]),
        ] {
            let axis = Axis::around(scale, values.into_iter(), 0.0, 100.0);
            let ticks = axis.ticks(Unit::Count);
            assert!((1..=12).contains(&ticks.len()), "{scale:?}: {ticks:?}");
            assert!(ticks.iter().all(|tick| (-0.01..=100.01).contains(&axis.place(*tick))));
        }
    }
}
