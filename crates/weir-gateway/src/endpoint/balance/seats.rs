//! Drawing from the endpoints that take part in balancing.

use super::dice::BalancerRandom;
use crate::snapshot::seats::WeightedEndpoint;

/// How often a seat is drawn at random before all are searched for a usable one.
const DRAWS: usize = 16;

/// A usable endpoint, each with a probability by its weight. Goes through all seats.
pub(super) fn any(seats: &[WeightedEndpoint], dice: &BalancerRandom, usable: &impl Fn(usize) -> bool) -> Option<usize> {
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
pub(super) fn draw<T>(draw: impl Fn() -> T, usable: impl Fn(&T) -> bool) -> Option<T> {
    (0..DRAWS).map(|_| draw()).find(usable)
}
