use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal};

use super::{ConfidenceInterval, median_interval};

/// The test that gave a p-value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RankTest {
    /// Two independent samples.
    MannWhitney,
    /// Pairs: two targets in the same repeat.
    Wilcoxon,
}

/// The comparison of two targets in the same row and level.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Comparison {
    /// The ratio `b / a`: above 1 if `b` is larger.
    pub ratio: ConfidenceInterval,
    pub test: RankTest,
    pub p: f64,
    /// Whether `p` is below `1 - confidence`.
    pub different: bool,
}

/// Whether `b` differs from `a`, both in the order of the repeats; `ratios` are `b / a` within each repeat.
///
/// Only the number of repeats decides on the test, not the values: from 6 repeats on, Wilcoxon's on the ratios, because
/// 5 pairs cannot reach p < 0.05; below, Mann-Whitney on the values. `None` if a side is empty.
pub fn compare(a: &[f64], b: &[f64], ratios: &[f64], confidence: f64, seed: u64) -> Option<Comparison> {
    let Some(ratio) = median_interval(ratios, confidence, seed) else {
        return compare_apart(a, b, confidence, seed);
    };
    if ratios.len() < ENOUGH_PAIRS {
        return Some(Comparison { ratio, ..compare_apart(a, b, confidence, seed)? });
    }
    let p = wilcoxon(ratios);
    Some(Comparison { ratio, test: RankTest::Wilcoxon, p, different: p < 1.0 - confidence })
}

/// The least number of pairs for which Wilcoxon's test can be significant at 95 %.
const ENOUGH_PAIRS: usize = 6;

/// The lowest p-value that [`compare`] can have with so many repeats: all ratios are on the same side of 1, and all values apart.
pub fn least_p(repeats: u32) -> f64 {
    let ratios: Vec<f64> = (0..repeats).map(|number| f64::from(number) + 2.0).collect();
    if ratios.len() < ENOUGH_PAIRS {
        let other: Vec<f64> = ratios.iter().map(|value| -value).collect();
        return mann_whitney(&ratios, &other);
    }
    wilcoxon(&ratios)
}

/// Whether `b` differs from `a` when the two were not measured side by side: always Mann and Whitney's test.
pub fn compare_apart(a: &[f64], b: &[f64], confidence: f64, seed: u64) -> Option<Comparison> {
    let (from, to) = (median_interval(a, confidence, seed)?, median_interval(b, confidence, seed)?);
    let ratio =
        ConfidenceInterval { median: to.median / from.median, low: to.low / from.high, high: to.high / from.low };
    let p = mann_whitney(a, b);
    Some(Comparison { ratio, test: RankTest::MannWhitney, p, different: p < 1.0 - confidence })
}

/// Two-sided p-value of the Mann-Whitney U test: exact without ties up to 20 + 20 values, else by the normal
/// approximation with continuity and tie correction. 1 when a side is empty.
pub fn mann_whitney(a: &[f64], b: &[f64]) -> f64 {
    let (n, m) = (a.len(), b.len());
    if n == 0 || m == 0 {
        return 1.0;
    }
    let all: Vec<f64> = a.iter().chain(b).copied().collect();
    let (ranks, tie_term) = ranks(&all);
    let u = ranks[..n].iter().sum::<f64>() - (n * (n + 1)) as f64 / 2.0;
    let smaller = u.min((n * m) as f64 - u);
    if tie_term == 0.0 && n <= 20 && m <= 20 {
        let ways = mann_whitney_ways(n, m);
        let total: f64 = ways.iter().sum();
        let tail: f64 = ways[..=smaller as usize].iter().sum();
        return (2.0 * tail / total).min(1.0);
    }
    let (n, m) = (n as f64, m as f64);
    let count = n + m;
    let variance = n * m / 12.0 * (count + 1.0 - tie_term / (count * (count - 1.0)));
    two_sided(n * m / 2.0 - smaller, variance)
}

/// The number of arrangements of `n` and `m` values for each U of `0..=n*m`.
fn mann_whitney_ways(n: usize, m: usize) -> Vec<f64> {
    // ways[j][u]: arrangements of the values seen so far with j of the second sample among them.
    let mut ways = vec![vec![0.0; n * m + 1]; m + 1];
    ways[0][0] = 1.0;
    for placed in 0..n + m {
        for j in (0..=m.min(placed + 1)).rev() {
            let i = placed + 1 - j;
            for u in (0..=n * m).rev() {
                let from_first = if i <= n && i > 0 && u >= j { ways[j][u - j] } else { 0.0 };
                let from_second = if j > 0 && i <= n { ways[j - 1][u] } else { 0.0 };
                ways[j][u] = from_first + from_second;
            }
        }
    }
    ways.swap_remove(m)
}

/// Two-sided p-value of Wilcoxon's signed-rank test on the logarithms of ratios: exact without ties up to 25 of them.
/// Pairs without a difference are left out. 1 when nothing is left.
pub fn wilcoxon(ratios: &[f64]) -> f64 {
    let differences: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).filter(|d| *d != 0.0 && d.is_finite()).collect();
    let n = differences.len();
    if n == 0 {
        return 1.0;
    }
    let sizes: Vec<f64> = differences.iter().map(|d| d.abs()).collect();
    let (ranks, tie_term) = ranks(&sizes);
    let positive: f64 = ranks.iter().zip(&differences).filter(|(_, d)| **d > 0.0).map(|(rank, _)| rank).sum();
    let highest = (n * (n + 1)) as f64 / 2.0;
    let smaller = positive.min(highest - positive);
    if tie_term == 0.0 && n <= 25 {
        let mut ways = vec![0.0; highest as usize + 1];
        ways[0] = 1.0;
        for rank in 1..=n {
            for sum in (rank..ways.len()).rev() {
                ways[sum] += ways[sum - rank];
            }
        }
        let tail: f64 = ways[..=smaller as usize].iter().sum();
        return (2.0 * tail / 2f64.powi(n as i32)).min(1.0);
    }
    let n = n as f64;
    two_sided(highest / 2.0 - smaller, n * (n + 1.0) * (2.0 * n + 1.0) / 24.0 - tie_term / 48.0)
}

/// Mann and Kendall's test for a trend over time: two-sided p-value, and whether the values grow. 1 for fewer than 4.
pub fn mann_kendall(values: &[f64]) -> (f64, bool) {
    let n = values.len();
    if n < 4 {
        return (1.0, false);
    }
    let mut s = 0.0f64;
    for (i, earlier) in values.iter().enumerate() {
        for later in &values[i + 1..] {
            s += match later.total_cmp(earlier) {
                std::cmp::Ordering::Greater => 1.0,
                std::cmp::Ordering::Less => -1.0,
                std::cmp::Ordering::Equal => 0.0,
            };
        }
    }
    let n = n as f64;
    (two_sided(s.abs(), n * (n - 1.0) * (2.0 * n + 5.0) / 18.0), s > 0.0)
}

fn two_sided(distance: f64, variance: f64) -> f64 {
    if variance <= 0.0 {
        return 1.0;
    }
    let z = (distance.abs() - 0.5).max(0.0) / variance.sqrt();
    (2.0 * (1.0 - Normal::standard().cdf(z))).min(1.0)
}

/// The rank of each value from 1, where ties share the mean, and the sum of t^3 - t over the groups of ties.
fn ranks(values: &[f64]) -> (Vec<f64>, f64) {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut tie_term = 0.0;
    let mut start = 0;
    while start < order.len() {
        let mut end = start + 1;
        while end < order.len() && values[order[end]] == values[order[start]] {
            end += 1;
        }
        let shared = (start + 1 + end) as f64 / 2.0;
        for index in &order[start..end] {
            ranks[*index] = shared;
        }
        let ties = (end - start) as f64;
        tie_term += ties.powi(3) - ties;
        start = end;
    }
    (ranks, tie_term)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{SeededRandom, ratios, sliced_ratio},
        *,
    };

    #[test]
    fn mann_whitney_agrees_with_published_values() {
        // All of one side below the other: 2 of the 252 arrangements of 5 + 5.
        let p = mann_whitney(&[1.0, 2.0, 3.0, 4.0, 5.0], &[6.0, 7.0, 8.0, 9.0, 10.0]);
        assert!((p - 2.0 / 252.0).abs() < 1e-12, "{p}");
        // U = 2 with 3 + 4: tables give P(U <= 2) = 4/35.
        let p = mann_whitney(&[1.0, 2.0, 6.0], &[3.0, 5.0, 7.0, 8.0]);
        assert!((p - 2.0 * 4.0 / 35.0).abs() < 1e-12, "{p}");
        assert_eq!(mann_whitney(&[], &[1.0]), 1.0);
        assert_eq!(mann_whitney(&[1.0, 1.0], &[1.0, 1.0]), 1.0);
    }

    #[test]
    fn repeats_decide_how_low_p_can_be() {
        assert_eq!([0, 1].map(least_p), [1.0, 1.0]);
        let expected = [(2, 2.0 / 6.0), (5, 2.0 / 252.0), (6, 2.0 / 64.0), (12, 2.0 / 4_096.0)];
        for (repeats, p) in expected {
            assert!((least_p(repeats) - p).abs() < 1e-12, "{repeats}: {}", least_p(repeats));
        }
        assert!(least_p(100) < 1e-9);
    }

    #[test]
    fn wilcoxon_agrees_with_published_values() {
        assert!((wilcoxon(&[1.01, 1.02, 1.03, 1.04, 1.05, 1.06]) - 2.0 / 64.0).abs() < 1e-12);
        assert_eq!(wilcoxon(&[1.0; 6]), 1.0);
    }

    #[test]
    fn kendall_sees_a_trend_and_no_trend() {
        let (p, rising) = mann_kendall(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        assert!(p < 0.01 && rising);
        assert!(mann_kendall(&[1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0]).0 > 0.3);
    }

    /// Two targets with common phases of the machine, and with independent noise of each run, as in an interleaved A/A test.
    fn phased(random: &mut SeededRandom, repeats: usize, slowdown: f64) -> (Vec<f64>, Vec<f64>) {
        let mut a = Vec::new();
        let mut b = Vec::new();
        for _ in 0..repeats {
            let phase = if random.unit() < 0.2 { 0.5 } else { 1.0 };
            a.push(100_000.0 * phase * (0.01 * random.normal()).exp());
            b.push(100_000.0 * phase * (0.01 * random.normal()).exp() * (1.0 - slowdown));
        }
        (a, b)
    }

    #[test]
    fn the_same_target_twice_is_called_different_no_more_often_than_stated() {
        for repeats in [5, 6, 10] {
            let mut random = SeededRandom::new(42);
            let called = (0..2_000)
                .filter(|_| {
                    let (a, b) = phased(&mut random, repeats, 0.0);
                    compare(&a, &b, &ratios(&a, &b), 0.95, 1).unwrap().different
                })
                .count();
            // 5 % of 2,000 is 100; three standard deviations above that is 129.
            assert!(called <= 129, "{repeats} repeats: {called} of 2000");
        }
    }

    /// Turns of two targets within repeats, on a machine whose speed drifts by tens of percent between turns, with
    /// occasional outliers; each start of a target has a random factor that lasts for its repeat. Both targets, and their ratios.
    fn sliced(random: &mut SeededRandom, slowdown: f64, repeats: u32) -> [Vec<f64>; 3] {
        let (mut a, mut b, mut within) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..repeats {
            let luck = [0.007 * random.normal(), 0.007 * random.normal() - slowdown];
            let mut speed = 0.1 * random.normal();
            let turns: [Vec<f64>; 2] = std::array::from_fn(|_| Vec::with_capacity(12));
            let turns = (0..12).fold(turns, |mut turns, _| {
                for target in [0, 1] {
                    speed += 0.02 * random.normal();
                    let hiccup = if random.unit() < 0.05 { 0.5 } else { 0.0 };
                    turns[target].push(100_000.0 * (speed + luck[target] - hiccup).exp());
                }
                turns
            });
            let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
            a.push(mean(&turns[0]));
            b.push(mean(&turns[1]));
            within.extend(sliced_ratio(&turns[0], &turns[1]));
        }
        [a, b, within]
    }

    /// Whether ten repeats of such turns are called different.
    fn found(random: &mut SeededRandom, slowdown: f64) -> bool {
        let [a, b, within] = sliced(random, slowdown, 10);
        compare(&a, &b, &within, 0.95, 1).unwrap().different
    }

    #[test]
    fn turns_find_three_percent_and_do_not_find_what_is_not_there() {
        let mut random = SeededRandom::new(11);
        let called = (0..1_000).filter(|_| found(&mut random, 0.0)).count();
        // 5 % of 1,000 is 50; three standard deviations above that is 71.
        assert!(called <= 71, "{called} of 1000");
        let found = (0..200).filter(|_| found(&mut random, 0.03)).count();
        assert!(found > 190, "{found} of 200");
    }

    #[test]
    fn fifty_runs_of_planted_name_no_difference_that_is_not_there() {
        let mut random = SeededRandom::new(13);
        // Each run compares throughput and processor time.
        let mut is_different = |slowdown: f64| {
            let [_, _, within] = sliced(&mut random, slowdown, 16);
            wilcoxon(&within) < 1.0 - 0.9995
        };
        let called = (0..2_000).filter(|_| is_different(0.0)).count();
        // One is expected; three standard deviations above that is 4.
        assert!(called <= 4, "{called} of 2000");
        let found = (0..200).filter(|_| is_different(0.03)).count();
        assert!(found > 195, "{found} of 200");
    }

    #[test]
    fn three_percent_is_found_in_ten_repeats_through_phases_that_halve_the_speed() {
        let mut random = SeededRandom::new(7);
        let found = (0..200)
            .filter(|_| {
                let (a, b) = phased(&mut random, 10, 0.03);
                let comparison = compare(&a, &b, &ratios(&a, &b), 0.95, 1).unwrap();
                comparison.different && comparison.ratio.high < 1.0
            })
            .count();
        assert!(found > 190, "{found} of 200");
    }
}
