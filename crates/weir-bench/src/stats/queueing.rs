/// Little's law over one run: requests in flight = throughput x time each spent in the system.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LittlesLaw {
    /// What throughput and mean latency imply.
    pub in_flight: f64,
    /// The highest throughput that the stated connections and latency allow.
    pub highest_rps: f64,
}

/// `throughput` in requests/s, `mean_ms` the mean time of one request, `connections` with one request at a time each.
pub fn littles_law(throughput: f64, mean_ms: f64, connections: f64) -> LittlesLaw {
    LittlesLaw { in_flight: throughput * mean_ms / 1e3, highest_rps: connections / (mean_ms / 1e3) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_connections_at_five_milliseconds_cannot_carry_ten_thousand_a_second() {
        let law = littles_law(10_809.0, 4.99, 10.0);
        assert!((law.in_flight - 53.9).abs() < 0.1);
        assert!((law.highest_rps - 2004.0).abs() < 1.0);
    }
}
