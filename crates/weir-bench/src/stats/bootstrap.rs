use serde::{Deserialize, Serialize};

use super::{SeededRandom, median};

/// A median with its bootstrap confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfidenceInterval {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

const RESAMPLES: usize = 2_000;

/// Median and percentile bootstrap interval at `confidence` (0.95 is usual). `None` for no values.
pub fn median_interval(values: &[f64], confidence: f64, seed: u64) -> Option<ConfidenceInterval> {
    let centre = median(values)?;
    let mut random = SeededRandom::new(seed);
    let mut sample = vec![0.0; values.len()];
    let medians = resample(|| {
        for slot in &mut sample {
            *slot = values[random.below(values.len())];
        }
        median(&sample).expect("the sample is as long as the values")
    });
    Some(bounds(centre, medians, confidence))
}

fn resample(mut statistic: impl FnMut() -> f64) -> Vec<f64> {
    let mut values: Vec<f64> = (0..RESAMPLES).map(|_| statistic()).collect();
    values.sort_by(f64::total_cmp);
    values
}

fn bounds(centre: f64, sorted: Vec<f64>, confidence: f64) -> ConfidenceInterval {
    let tail = (1.0 - confidence) / 2.0;
    let at = |share: f64| sorted[((sorted.len() - 1) as f64 * share).round() as usize];
    ConfidenceInterval { median: centre, low: at(tail), high: at(1.0 - tail) }
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
        let mut random = SeededRandom::new(1);
        let covered = (0..400)
            .filter(|round| {
                let values: Vec<f64> = (0..15).map(|_| 100.0 + random.normal()).collect();
                let interval = median_interval(&values, 0.95, *round).unwrap();
                interval.low <= 100.0 && 100.0 <= interval.high
            })
            .count();
        assert!((360..=400).contains(&covered), "{covered} of 400");
    }
}
