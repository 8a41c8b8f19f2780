//! Pure statistics: results depend only on the values and the seed.

mod bootstrap;
mod knee;
mod modes;
mod queueing;
mod random;
mod ranks;
mod ratios;
mod scalability;

use statrs::distribution::{ContinuousCDF, StudentsT};

pub use self::{
    bootstrap::{ConfidenceInterval, median_interval},
    knee::{ENOUGH_LEVELS, NoKnee, knee},
    modes::{Modes, modes},
    queueing::{LittlesLaw, littles_law},
    random::SeededRandom,
    ranks::{Comparison, RankTest, compare, compare_apart, least_p, mann_kendall, mann_whitney, wilcoxon},
    ratios::{ratios, sliced_ratio},
    scalability::{Scalability, fit_scalability},
};

/// The middle value; the mean of the two middle ones for an even count. `None` for no values.
pub fn median(values: &[f64]) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    Some(if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 })
}

/// Arithmetic mean. `None` for no values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Sample standard deviation. `None` for fewer than two values.
pub fn deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values)?;
    (values.len() > 1).then(|| {
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        (squares / (values.len() - 1) as f64).sqrt()
    })
}

/// Two-sided p-value of Student's t test that the mean is zero. 1 for fewer than two values, or when all are zero.
pub fn t_test(values: &[f64]) -> f64 {
    moderated_t_test(values, 0.0, 0.0)
}

/// The same with a prior: other figures have shown this variance, which counts as `weight` further degrees of freedom.
pub fn moderated_t_test(values: &[f64], variance: f64, weight: f64) -> f64 {
    let (Some(mean), Some(deviation)) = (mean(values), deviation(values)) else { return 1.0 };
    let (count, own) = (values.len() as f64, values.len() as f64 - 1.0);
    let variance = (weight * variance + own * deviation.powi(2)) / (weight + own);
    if variance == 0.0 {
        return if mean == 0.0 { 1.0 } else { 0.0 };
    }
    let t = mean / (variance / count).sqrt();
    let distribution = StudentsT::new(0.0, 1.0, weight + own).expect("there are degrees of freedom from two values on");
    2.0 * distribution.sf(t.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_none() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn t_test_agrees_with_the_table() {
        // t = 2.776 is the 97.5th percentile with 4 degrees of freedom.
        let values = [-1.0, -0.5, 0.0, 0.5, 1.0];
        let shift = 2.776 * deviation(&values).unwrap() / 5f64.sqrt();
        assert!((t_test(&values.map(|value| value + shift)) - 0.05).abs() < 1e-4);
        assert_eq!((t_test(&values), t_test(&[1.0]), t_test(&[0.0, 0.0]), t_test(&[2.0, 2.0])), (1.0, 1.0, 1.0, 0.0));
    }

    #[test]
    fn deviation_is_the_sample_one() {
        assert!((deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap() - 2.138).abs() < 1e-3);
        assert_eq!(deviation(&[1.0]), None);
    }
}
