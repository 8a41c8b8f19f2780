//! The endpoints that take part in balancing, and drawing from them.

use super::dice::BalancerRandom;
use crate::snapshot::endpoint::Endpoint;

/// An endpoint that takes part in balancing.
#[derive(Clone, Copy, Debug)]
pub struct WeightedEndpoint {
    pub endpoint: usize,
    /// At least 1.
    pub weight: u32,
}

/// How often a seat is drawn at random before all are searched for a usable one.
const DRAWS: usize = 16;

/// The endpoints with a weight above 0, grouped by priority, the highest first.
pub fn by_priority(endpoints: &[Endpoint]) -> Vec<Vec<WeightedEndpoint>> {
    let mut order: Vec<usize> = (0..endpoints.len()).filter(|&index| endpoints[index].weight > 0).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(endpoints[index].priority));
    order
        .chunk_by(|&one, &next| endpoints[one].priority == endpoints[next].priority)
        .map(|tier| {
            tier.iter().map(|&endpoint| WeightedEndpoint { endpoint, weight: endpoints[endpoint].weight }).collect()
        })
        .collect()
}

/// A usable endpoint, each with a probability by its weight. Goes through all seats.
pub fn any(seats: &[WeightedEndpoint], dice: &BalancerRandom, usable: &impl Fn(usize) -> bool) -> Option<usize> {
    let mut total = 0;
    let mut chosen = None;
    for seat in seats.iter().filter(|seat| usable(seat.endpoint)) {
        total += u64::from(seat.weight);
        if dice.below(total) < u64::from(seat.weight) {
            chosen = Some(seat.endpoint);
        }
    }
    chosen
}

/// Draws until the result is usable; `None` if none of [`DRAWS`] draws was.
pub fn draw<T>(draw: impl Fn() -> T, usable: impl Fn(&T) -> bool) -> Option<T> {
    (0..DRAWS).map(|_| draw()).find(usable)
}
