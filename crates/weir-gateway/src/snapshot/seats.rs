//! The endpoints that take part in balancing.

use super::endpoint::Endpoint;

/// An endpoint that takes part in balancing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WeightedEndpoint {
    pub endpoint: usize,
    /// At least 1.
    pub weight: u32,
}

/// The endpoints with a weight above 0, grouped by priority, the highest first.
pub(crate) fn by_priority(endpoints: &[Endpoint]) -> Vec<Vec<WeightedEndpoint>> {
    let mut order: Vec<usize> = (0..endpoints.len()).filter(|&index| endpoints[index].weight > 0).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(endpoints[index].priority));
    order
        .chunk_by(|&one, &next| endpoints[one].priority == endpoints[next].priority)
        .map(|tier| {
            tier.iter().map(|&endpoint| WeightedEndpoint { endpoint, weight: endpoints[endpoint].weight }).collect()
        })
        .collect()
}

/// The greatest common divisor.
pub(crate) fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
