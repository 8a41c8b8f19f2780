//! Smooth weighted round robin: each endpoint gets its share, spread as evenly as the weights allow.
//!
//! Every turn each endpoint gains its weight, the richest is chosen and pays the sum of all. Endpoints of the highest
//! priority that has a usable one take part; the others wait as reserves.

use std::cell::RefCell;

use crate::snapshot::Endpoint;

pub(super) struct RoundRobin {
    seats: RefCell<Vec<Seat>>,
}

struct Seat {
    weight: i64,
    priority: i64,
    credit: i64,
}

impl RoundRobin {
    pub(super) fn new(endpoints: &[Endpoint]) -> RoundRobin {
        let seats = endpoints
            .iter()
            .map(|endpoint| Seat { weight: i64::from(endpoint.weight), priority: endpoint.priority, credit: 0 })
            .collect();
        RoundRobin { seats: RefCell::new(seats) }
    }

    pub(super) fn pick(&self, usable: impl Fn(usize) -> bool) -> Option<usize> {
        let mut seats = self.seats.borrow_mut();
        if let [seat] = &seats[..] {
            return (seat.weight > 0 && usable(0)).then_some(0);
        }
        let takes_part = |index: usize, seat: &Seat| seat.weight > 0 && usable(index);
        let priority = seats
            .iter()
            .enumerate()
            .filter(|(index, seat)| takes_part(*index, seat))
            .map(|(_, seat)| seat.priority)
            .max()?;
        let mut total = 0;
        let mut best: Option<usize> = None;
        for index in 0..seats.len() {
            if seats[index].priority != priority || !takes_part(index, &seats[index]) {
                continue;
            }
            total += seats[index].weight;
            seats[index].credit += seats[index].weight;
            if best.is_none_or(|best| seats[index].credit > seats[best].credit) {
                best = Some(index);
            }
        }
        let best = best?;
        seats[best].credit -= total;
        Some(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rotation(weights: &[(u32, i64)]) -> RoundRobin {
        let endpoints: Vec<_> = weights
            .iter()
            .map(|&(weight, priority)| Endpoint {
                name: "".into(),
                addr: ([127, 0, 0, 1], 1).into(),
                weight,
                priority,
                host: "".into(),
            })
            .collect();
        RoundRobin::new(&endpoints)
    }

    #[test]
    fn shares_follow_weights_and_are_spread() {
        let rotation = rotation(&[(5, 0), (1, 0), (1, 0)]);
        let picks: Vec<_> = (0..7).map(|_| rotation.pick(|_| true).unwrap()).collect();
        assert_eq!(picks, [0, 0, 1, 0, 2, 0, 0]);
    }

    #[test]
    fn lower_priorities_wait_until_no_higher_one_is_usable() {
        let rotation = rotation(&[(1, 1), (1, 0), (0, 9)]);
        assert!((0..10).all(|_| rotation.pick(|_| true) == Some(0)));
        assert_eq!(rotation.pick(|index| index != 0), Some(1));
        assert_eq!(rotation.pick(|_| false), None);
    }

    #[test]
    fn a_weight_of_nothing_is_never_picked() {
        assert_eq!(rotation(&[(0, 0)]).pick(|_| true), None);
        let rotation = rotation(&[(0, 0), (2, 0)]);
        assert!((0..10).all(|_| rotation.pick(|_| true) == Some(1)));
    }
}
