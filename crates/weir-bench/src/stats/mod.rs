//! Pure statistics: numbers in, numbers out, the same answer for the same seed.

mod bootstrap;
mod queueing;
mod random;
mod ranks;
mod ratios;
mod scalability;

pub use self::{
    bootstrap::{Interval, median_interval},
    queueing::{LittlesLaw, littles_law},
    random::Random,
    ranks::{Comparison, Test, compare, compare_apart, mann_kendall, mann_whitney, wilcoxon},
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
    fn deviation_is_the_sample_one() {
        assert!((deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap() - 2.138).abs() < 1e-3);
        assert_eq!(deviation(&[1.0]), None);
    }
}
