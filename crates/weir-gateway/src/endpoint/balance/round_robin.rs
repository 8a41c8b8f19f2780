//! Smooth weighted round robin: each endpoint gets its share, spread as evenly as the weights allow.
//!
//! In each turn every endpoint gains its weight; the one with the most credit is chosen and pays the sum of all weights.
//! That order is periodic, so it is computed beforehand if the period is short, and a pick costs the same for a thousand
//! endpoints as for two. The turn of an unusable endpoint goes to any of the others by weight, not to the next one, which
//! would get twice its share.

use std::cell::{Cell, RefCell};

use super::dice::BalancerRandom;
use super::seats;
use crate::snapshot::seats::{WeightedEndpoint, gcd};

/// The longest period that is computed beforehand,
const MAX_TURNS: u64 = 1 << 16;
/// and the most steps for computing it, so that a reload takes milliseconds.
const MAX_STEPS: u64 = 1 << 22;

pub(super) struct RoundRobin {
    seats: Box<[WeightedEndpoint]>,
    turns: WeightedTurnState,
}

enum WeightedTurnState {
    Known { order: Box<[u32]>, next: Cell<usize> },
    Counted(RefCell<Credits>),
}

/// The credit of each seat.
struct Credits(Vec<i64>);

impl Credits {
    fn new(seats: &[WeightedEndpoint]) -> Credits {
        Credits(vec![0; seats.len()])
    }

    /// The next seat among the usable ones.
    fn next_seat(&mut self, seats: &[WeightedEndpoint], usable: impl Fn(usize) -> bool) -> Option<usize> {
        let mut total = 0;
        let mut best: Option<usize> = None;
        for (index, seat) in seats.iter().enumerate().filter(|(_, seat)| usable(seat.endpoint)) {
            total += i64::from(seat.weight);
            self.0[index] += i64::from(seat.weight);
            if best.is_none_or(|best| self.0[index] > self.0[best]) {
                best = Some(index);
            }
        }
        self.0[best?] -= total;
        best
    }
}

impl RoundRobin {
    /// Starts at a random position: where configurations change often, the first endpoints must not get more.
    pub(super) fn new(seats: Vec<WeightedEndpoint>, dice: &BalancerRandom) -> RoundRobin {
        let rotation = RoundRobin { turns: WeightedTurnState::new(&seats), seats: seats.into() };
        if let WeightedTurnState::Known { order, next } = &rotation.turns {
            next.set(dice.below(order.len() as u64) as usize);
        }
        rotation
    }

    pub(super) fn pick(&self, dice: &BalancerRandom, usable: &impl Fn(usize) -> bool) -> Option<usize> {
        let (order, next) = match &self.turns {
            WeightedTurnState::Known { order, next } => (order, next),
            WeightedTurnState::Counted(credits) => {
                return credits.borrow_mut().next_seat(&self.seats, usable).map(|seat| self.seats[seat].endpoint);
            }
        };
        let turn = next.get();
        // Only if an endpoint is picked: where none is in rotation, the next pick is one among all, which have their turns then.
        let advance = || next.set(if turn + 1 == order.len() { 0 } else { turn + 1 });
        let endpoint = order[turn] as usize;
        if usable(endpoint) {
            advance();
            return Some(endpoint);
        }
        let another = || order[dice.below(order.len() as u64) as usize] as usize;
        let drawn = seats::draw(another, |&endpoint| usable(endpoint));
        let picked = drawn.or_else(|| seats::any(&self.seats, dice, usable))?;
        advance();
        Some(picked)
    }
}

impl WeightedTurnState {
    fn new(seats: &[WeightedEndpoint]) -> WeightedTurnState {
        let divisor = seats.iter().fold(0, |divisor, seat| gcd(divisor, seat.weight));
        let count: u64 = seats.iter().map(|seat| u64::from(seat.weight / divisor)).sum();
        let mut credits = Credits::new(seats);
        if count == seats.len() as u64 {
            let order = seats.iter().map(|seat| seat.endpoint as u32).collect();
            return WeightedTurnState::Known { order, next: Cell::new(0) };
        }
        if count > MAX_TURNS || count * seats.len() as u64 > MAX_STEPS {
            return WeightedTurnState::Counted(RefCell::new(credits));
        }
        let turn = |_| credits.next_seat(seats, |_| true).expect("a tier has a seat");
        let order = (0..count).map(turn).map(|seat| seats[seat].endpoint as u32).collect();
        WeightedTurnState::Known { order, next: Cell::new(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picks(weights: &[u32], count: usize) -> Vec<usize> {
        let seats: Vec<WeightedEndpoint> =
            weights.iter().enumerate().map(|(endpoint, &weight)| WeightedEndpoint { endpoint, weight }).collect();
        let dice = BalancerRandom::with_seed(1);
        let rotation = RoundRobin::new(seats, &dice);
        if let WeightedTurnState::Known { next, .. } = &rotation.turns {
            next.set(0);
        }
        (0..count).map(|_| rotation.pick(&dice, &|_| true).expect("all are usable")).collect()
    }

    #[test]
    fn rotation_does_not_advance_while_no_endpoint_is_usable() {
        let seats: Vec<WeightedEndpoint> = (0..2).map(|endpoint| WeightedEndpoint { endpoint, weight: 1 }).collect();
        let dice = BalancerRandom::with_seed(1);
        let rotation = RoundRobin::new(seats, &dice);
        let pick = || {
            assert_eq!(rotation.pick(&dice, &|_| false), None);
            rotation.pick(&dice, &|_| true).expect("all are usable")
        };
        let picks: Vec<usize> = (0..4).map(|_| pick()).collect();
        assert!(picks == [0, 1, 0, 1] || picks == [1, 0, 1, 0], "{picks:?}");
    }

    #[test]
    fn shares_follow_weights_and_are_spread() {
        assert_eq!(picks(&[5, 1, 1], 7), [0, 0, 1, 0, 2, 0, 0]);
        assert_eq!(picks(&[50, 10, 10], 7), [0, 0, 1, 0, 2, 0, 0]);
        assert_eq!(picks(&[3, 3, 3], 6), [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn an_order_too_long_to_keep_is_counted() {
        let weights = [65_537, 3];
        let seats: Vec<WeightedEndpoint> =
            weights.iter().enumerate().map(|(endpoint, &weight)| WeightedEndpoint { endpoint, weight }).collect();
        assert!(matches!(WeightedTurnState::new(&seats), WeightedTurnState::Counted(_)));
        let picked = picks(&weights, 65_540);
        assert_eq!(picked.iter().filter(|&&endpoint| endpoint == 1).count(), 3);
    }
}
