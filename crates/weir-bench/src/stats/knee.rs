//! The knee of a throughput curve.

/// The least number of levels that make a curve.
pub const ENOUGH_LEVELS: usize = 4;

/// Why a curve has no knee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoKnee {
    TooFewLevels,
    /// The first level is already beyond the knee.
    BelowTheFirst,
    /// The last level is still below the knee.
    BeyondTheLast,
}

/// The level beyond which throughput gains less than it costs in latency: of `(throughput, latency)` at ascending numbers
/// of clients, the index where their quotient is largest. That is "power" (Kleinrock, "Power and deterministic rules of
/// thumb for probabilistic problems in computer communications", 1979). At its maximum a percent more throughput costs
/// just a percent more latency; for a closed loop it is where the clients would saturate the system if none had to wait.
///
/// Kneedle (Satopaa et al., 2011) finds the largest distance from a chord instead. The chord ends where the levels do, so
/// one more level at the far end would move the knee of the same system, and it wants a smooth curve: here are a handful
/// of levels, chosen by hand.
pub fn knee(levels: &[(f64, f64)]) -> Result<usize, NoKnee> {
    if levels.len() < ENOUGH_LEVELS {
        return Err(NoKnee::TooFewLevels);
    }
    let power = levels.iter().map(|(throughput, latency)| throughput / latency.max(f64::MIN_POSITIVE));
    let best = power.enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(index, _)| index);
    match best.unwrap_or(0) {
        0 => Err(NoKnee::BelowTheFirst),
        last if last + 1 == levels.len() => Err(NoKnee::BeyondTheLast),
        index => Ok(index),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system that answers after 1 ms and carries at most 100 requests/ms, with these numbers of clients.
    fn closed(clients: &[f64]) -> Vec<(f64, f64)> {
        let level = |clients: &f64| {
            let throughput = clients.min(100.0);
            (throughput, clients / throughput)
        };
        clients.iter().map(level).collect()
    }

    #[test]
    fn the_knee_is_where_clients_saturate_the_system_that_makes_none_wait() {
        assert_eq!(knee(&closed(&[10.0, 50.0, 100.0, 500.0, 1000.0])), Ok(2));
        assert_eq!(knee(&closed(&[10.0, 50.0, 100.0, 500.0])), Ok(2), "where the levels end does not matter");
        assert_eq!(knee(&closed(&[10.0, 40.0, 80.0, 300.0])), Ok(2));
    }

    #[test]
    fn a_knee_outside_the_levels_is_not_named() {
        assert_eq!(knee(&closed(&[10.0, 20.0, 40.0, 80.0])), Err(NoKnee::BeyondTheLast));
        assert_eq!(knee(&closed(&[200.0, 300.0, 400.0, 500.0])), Err(NoKnee::BelowTheFirst));
        assert_eq!(knee(&closed(&[10.0, 100.0, 500.0])), Err(NoKnee::TooFewLevels));
    }
}
