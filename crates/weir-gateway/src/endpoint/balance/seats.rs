//! The endpoints that take part, and drawing among them.

use super::dice::Dice;
use crate::snapshot::endpoint::Endpoint;

/// An endpoint that takes part.
#[derive(Clone, Copy, Debug)]
pub struct Seat {
    pub endpoint: usize,
    /// At least 1.
    pub weight: u32,
}

/// So often a seat is drawn that may turn out not to be usable, before all are looked at.
const DRAWS: usize = 16;

/// The endpoints with a weight, by priority.
pub fn tiers(endpoints: &[Endpoint]) -> Vec<Vec<Seat>> {
    let mut order: Vec<usize> = (0..endpoints.len()).filter(|&index| endpoints[index].weight > 0).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(endpoints[index].priority));
    order
        .chunk_by(|&one, &next| endpoints[one].priority == endpoints[next].priority)
        .map(|tier| tier.iter().map(|&endpoint| Seat { endpoint, weight: endpoints[endpoint].weight }).collect())
        .collect()
}

/// A usable endpoint, each as likely as its weight says. Looks at all.
pub fn any(seats: &[Seat], dice: &Dice, usable: &impl Fn(usize) -> bool) -> Option<usize> {
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

/// Draws until something usable comes, and says which; `None` where nothing came in so many draws.
pub fn draw<T>(draw: impl Fn() -> T, usable: impl Fn(&T) -> bool) -> Option<T> {
    (0..DRAWS).map(|_| draw()).find(usable)
}
