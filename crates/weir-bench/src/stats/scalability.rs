use serde::{Deserialize, Serialize};

/// Gunther's Universal Scalability Law: `X(n) = rate * n / (1 + contention * (n - 1) + coherency * n * (n - 1))`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Scalability {
    /// Throughput of one unit alone, requests/s.
    pub rate: f64,
    /// The share of the work that is serialised between units.
    pub contention: f64,
    /// The cost of coordination between each pair of units.
    pub coherency: f64,
    /// Root mean square of the relative residuals.
    pub error: f64,
}

impl Scalability {
    pub fn throughput(&self, units: f64) -> f64 {
        self.rate * units / (1.0 + self.contention * (units - 1.0) + self.coherency * units * (units - 1.0))
    }

    /// The number of units beyond which throughput falls; `None` if the fit does not show a fall.
    pub fn peak_units(&self) -> Option<f64> {
        (self.coherency > 0.0 && self.contention < 1.0)
            .then(|| ((1.0 - self.contention) / self.coherency).sqrt().max(1.0))
    }

    /// The fewest units that carry `rps`, with the fit's error as a margin; `None` if no number of units does.
    pub fn units_for(&self, rps: f64) -> Option<u32> {
        let margin = 1.0 - self.error.min(0.5);
        let limit = self.peak_units().unwrap_or(1e6).ceil() as u32;
        if self.throughput(f64::from(limit)) * margin < rps {
            return None;
        }
        // Throughput grows up to the peak, so a binary search finds the first sufficient number.
        let (mut low, mut high) = (1, limit.max(1));
        while low < high {
            let middle = low + (high - low) / 2;
            if self.throughput(f64::from(middle)) * margin >= rps {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Some(low)
    }
}

/// Least squares on the relative errors of `(units, throughput)` points, with non-negative coefficients.
///
/// Written as `n/X`, the law is linear in `1/rate`, `contention/rate` and `coherency/rate`. `None` for fewer than three
/// distinct numbers of units, because there are three unknowns.
pub fn fit_scalability(points: &[(f64, f64)]) -> Option<Scalability> {
    let mut units: Vec<f64> = points.iter().map(|point| point.0).collect();
    units.sort_by(f64::total_cmp);
    units.dedup();
    if units.len() < 3 || points.iter().any(|(n, x)| *n <= 0.0 || *x <= 0.0) {
        return None;
    }
    // Tries which of contention and coherency are non-zero; the best fit without a negative coefficient is used.
    [[true, true], [true, false], [false, true], [false, false]]
        .iter()
        .filter_map(|free| fit_with(points, *free))
        .filter(|fit| fit.rate > 0.0 && fit.contention >= 0.0 && fit.coherency >= 0.0)
        .min_by(|a, b| a.error.total_cmp(&b.error))
}

fn fit_with(points: &[(f64, f64)], free: [bool; 2]) -> Option<Scalability> {
    let columns: Vec<usize> = [Some(0), free[0].then_some(1), free[1].then_some(2)].into_iter().flatten().collect();
    let size = columns.len();
    let mut matrix = [[0.0f64; 4]; 3];
    for (n, x) in points {
        // Dividing the equation by its right side n/X makes each residual a relative one.
        let scale = x / n;
        let terms = [scale, (n - 1.0) * scale, n * (n - 1.0) * scale];
        for (i, a) in columns.iter().enumerate() {
            for (j, b) in columns.iter().enumerate() {
                matrix[i][j] += terms[*a] * terms[*b];
            }
            matrix[i][3] += terms[*a];
        }
    }
    let solution = solve(matrix, size)?;
    let mut found = [0.0; 3];
    for (column, value) in columns.iter().zip(solution) {
        found[*column] = value;
    }
    let mut fit = Scalability {
        rate: 1.0 / found[0],
        contention: found[1] / found[0],
        coherency: found[2] / found[0],
        error: 0.0,
    };
    let squares: f64 = points.iter().map(|(n, x)| (fit.throughput(*n) / x - 1.0).powi(2)).sum();
    fit.error = (squares / points.len() as f64).sqrt();
    fit.error.is_finite().then_some(fit)
}

/// Gaussian elimination with pivoting of a `size` x `size` system; column 3 is its right side.
fn solve(mut matrix: [[f64; 4]; 3], size: usize) -> Option<Vec<f64>> {
    for column in 0..size {
        let pivot = (column..size).max_by(|a, b| matrix[*a][column].abs().total_cmp(&matrix[*b][column].abs()))?;
        if matrix[pivot][column].abs() < 1e-12 {
            return None;
        }
        matrix.swap(column, pivot);
        let pivot_row = matrix[column];
        for (index, row) in matrix.iter_mut().enumerate().take(size) {
            if index != column {
                let factor = row[column] / pivot_row[column];
                for (cell, pivot_cell) in row.iter_mut().zip(pivot_row) {
                    *cell -= factor * pivot_cell;
                }
            }
        }
    }
    Some((0..size).map(|row| matrix[row][3] / matrix[row][row]).collect())
}

#[cfg(test)]
mod tests {
    use super::{super::SeededRandom, *};

    fn law(rate: f64, contention: f64, coherency: f64) -> Scalability {
        Scalability { rate, contention, coherency, error: 0.0 }
    }

    #[test]
    fn finds_the_coefficients_it_was_made_from() {
        let truth = law(20_000.0, 0.03, 0.0004);
        let points: Vec<_> = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0].iter().map(|n| (*n, truth.throughput(*n))).collect();
        let fit = fit_scalability(&points).unwrap();
        assert!((fit.rate / truth.rate - 1.0).abs() < 1e-6);
        assert!((fit.contention - 0.03).abs() < 1e-6 && (fit.coherency - 0.0004).abs() < 1e-8);
        assert!(fit.error < 1e-6);
        assert!((fit.peak_units().unwrap() - 49.2).abs() < 0.1);
    }

    #[test]
    fn noise_shows_as_error_and_never_as_a_negative_coefficient() {
        let mut random = SeededRandom::new(5);
        let truth = law(1_000.0, 0.0, 0.0);
        let points: Vec<_> =
            (1..=8).map(|n| (f64::from(n), truth.throughput(f64::from(n)) * (1.0 + 0.02 * random.normal()))).collect();
        let fit = fit_scalability(&points).unwrap();
        assert!(fit.contention >= 0.0 && fit.coherency >= 0.0);
        assert!(fit.error > 0.001 && fit.error < 0.05, "{}", fit.error);
    }

    #[test]
    fn says_how_many_units_carry_a_rate_and_when_none_does() {
        let fit = law(10_000.0, 0.0, 0.0);
        assert_eq!(fit.units_for(95_000.0), Some(10));
        assert_eq!(law(10_000.0, 0.1, 0.01).units_for(1e6), None);
    }

    #[test]
    fn two_levels_are_not_enough() {
        assert!(fit_scalability(&[(1.0, 10.0), (2.0, 20.0), (2.0, 19.0)]).is_none());
    }
}
