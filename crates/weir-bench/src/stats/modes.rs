/// Two modes of a figure over its repeats: the median of each, and its number of repeats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Modes {
    pub low: (f64, usize),
    pub high: (f64, usize),
}

/// The least ratio of the medians of the two modes; a smaller one is ordinary spread.
const APART: f64 = 1.15;
/// The least ratio of the gap between the modes to the widest gap within one.
const GAP: f64 = 3.0;

/// Finds two modes of a positive figure: each with at least two repeats, and with a gap between them that is much wider
/// than those within. A median between two modes would be a figure that no repeat has shown.
pub fn modes(values: &[f64]) -> Option<Modes> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| *value > 0.0).collect();
    sorted.sort_by(f64::total_cmp);
    let gaps: Vec<f64> = sorted.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let (at, widest) = gaps.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let (low, high) = sorted.split_at(at + 1);
    let others = gaps.iter().enumerate().filter(|(index, _)| *index != at).map(|(_, gap)| *gap);
    let next = others.fold(0.0, f64::max);
    let (low_median, high_median) = (super::median(low)?, super::median(high)?);
    let two = low.len() >= 2 && high.len() >= 2 && widest >= next * GAP && high_median >= low_median * APART;
    two.then_some(Modes { low: (low_median, low.len()), high: (high_median, high.len()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_modes_are_told_from_a_wide_one() {
        let found = modes(&[43.0, 63.0, 44.0, 62.0, 63.5]).unwrap();
        assert_eq!((found.low, found.high), ((43.5, 2), (63.0, 3)));
        assert_eq!(modes(&[43.0, 48.0, 53.0, 58.0, 63.0]), None, "evenly spread");
        assert_eq!(modes(&[43.0, 43.1, 43.2, 43.3, 63.0]), None, "one that stands apart is not a mode");
        assert_eq!(modes(&[60.0, 60.1, 62.0, 62.1]), None, "three percent");
        assert_eq!(modes(&[]), None);
    }
}
