use super::median;

/// `b[i] / a[i]` of values that were measured side by side, so that changes of the machine cancel out. Empty unless
/// both have the same number of values, and all of `a` are above 0.
pub fn ratios(a: &[f64], b: &[f64]) -> Vec<f64> {
    if a.len() != b.len() || a.iter().any(|value| *value <= 0.0) {
        return Vec::new();
    }
    a.iter().zip(b).map(|(a, b)| b / a).collect()
}

/// The ratio for a repeat in which two targets took turns: the median over the turns, so that a disturbance of one turn
/// has no effect. `None` unless both have the same, non-zero number of turns.
pub fn sliced_ratio(a: &[f64], b: &[f64]) -> Option<f64> {
    median(&ratios(a, b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairing_removes_what_both_sides_share() {
        let a = [100.0, 50.0, 100.0, 52.0, 98.0];
        let b: Vec<f64> = a.iter().map(|value| value * 0.97).collect();
        assert!(ratios(&a, &b).iter().all(|ratio| (ratio - 0.97).abs() < 1e-9));
        assert!(ratios(&a, &b[..3]).is_empty());
        assert!(ratios(&[0.0], &[1.0]).is_empty());
    }

    #[test]
    fn a_hiccup_in_one_turn_does_not_count() {
        assert_eq!(sliced_ratio(&[100.0, 100.0, 100.0, 100.0, 20.0], &[97.0, 97.0, 97.0, 97.0, 97.0]), Some(0.97));
        assert_eq!(sliced_ratio(&[], &[]), None);
    }
}
