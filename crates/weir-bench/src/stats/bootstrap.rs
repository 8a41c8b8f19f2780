use serde::{Deserialize, Serialize};

use super::{Random, median};

/// A median with the interval that resampling gives it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

const RESAMPLES: usize = 2_000;

/// Median and percentile bootstrap interval at `confidence` (0.95 is usual). `None` for no values.
pub fn median_interval(values: &[f64], confidence: f64, seed: u64) -> Option<Interval> {
    let centre = median(values)?;
    let mut random = Random::new(seed);
    let mut sample = vec![0.0; values.len()];
    let medians = resample(|| {
        for slot in &mut sample {
            *slot = values[random.below(values.len())];
        }
        median(&sample).expect("the sample is as long as the values")
    });
    Some(bounds(centre, medians, confidence))
}

/// Median of `b[i] / a[i]` with its interval: the two were measured one after the other in repeat `i`, so what the
/// machine did meanwhile cancels out. `None` unless both have the same, non-zero number of positive values.
pub fn ratio_interval(a: &[f64], b: &[f64], confidence: f64, seed: u64) -> Option<Interval> {
    if a.len() != b.len() || a.iter().any(|value| *value <= 0.0) {
        return None;
    }
    let ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| b / a).collect();
    median_interval(&ratios, confidence, seed)
}

fn resample(mut statistic: impl FnMut() -> f64) -> Vec<f64> {
    let mut values: Vec<f64> = (0..RESAMPLES).map(|_| statistic()).collect();
    values.sort_by(f64::total_cmp);
    values
}

fn bounds(centre: f64, sorted: Vec<f64>, confidence: f64) -> Interval {
    let tail = (1.0 - confidence) / 2.0;
    let at = |share: f64| sorted[((sorted.len() - 1) as f64 * share).round() as usize];
    Interval { median: centre, low: at(tail), high: at(1.0 - tail) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_interval() {
        let values = [10.0, 11.0, 9.0, 10.5, 9.5];
        assert_eq!(median_interval(&values, 0.95, 7), median_interval(&values, 0.95, 7));
        let interval = median_interval(&values, 0.95, 7).unwrap();
        assert!(interval.low <= interval.median && interval.median <= interval.high);
    }

    #[test]
    fn interval_covers_the_true_median_about_as_often_as_it_says() {
        let mut random = Random::new(1);
        let covered = (0..400)
            .filter(|round| {
                let values: Vec<f64> = (0..15).map(|_| 100.0 + random.normal()).collect();
                let interval = median_interval(&values, 0.95, *round).unwrap();
                interval.low <= 100.0 && 100.0 <= interval.high
            })
            .count();
        assert!((360..=400).contains(&covered), "{covered} of 400");
    }

    #[test]
    fn pairing_removes_what_both_sides_share() {
        let a = [100.0, 50.0, 100.0, 52.0, 98.0];
        let b: Vec<f64> = a.iter().map(|value| value * 0.97).collect();
        let ratio = ratio_interval(&a, &b, 0.95, 3).unwrap();
        assert!((ratio.median - 0.97).abs() < 1e-9 && ratio.high < 0.98);
        assert_eq!(ratio_interval(&a, &b[..3], 0.95, 3), None);
    }
}
