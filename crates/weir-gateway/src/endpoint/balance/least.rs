//! The endpoint with the least load: `least_conn` by exchanges in flight, `least_time` by the expected time of a further
//! one. Equals share by weight.
//!
//! Of more than sixteen endpoints four are drawn and the least of them is taken: a pick then costs the same for a thousand,
//! and the loss against comparing all is not measurable (Mitzenmacher, "The Power of Two Choices").

use super::seats;
use super::{BalancerRandom, EndpointLoads};
use crate::snapshot::seats::WeightedEndpoint;

const LOOKED_AT: usize = 16;
const DRAWN: usize = 4;

/// The endpoint with the fewest exchanges in flight per weight.
pub(super) fn connections(
    seats: &[WeightedEndpoint],
    dice: &BalancerRandom,
    loads: &(impl EndpointLoads + ?Sized),
    usable: &impl Fn(usize) -> bool,
) -> Option<usize> {
    least(seats, dice, usable, |seat| f64::from(loads.in_flight(seat.endpoint)) / f64::from(seat.weight))
}

/// The endpoint with the least mean latency, times the exchanges that would then share it, per weight.
pub(super) fn time(
    seats: &[WeightedEndpoint],
    dice: &BalancerRandom,
    loads: &(impl EndpointLoads + ?Sized),
    now_ns: u64,
    usable: &impl Fn(usize) -> bool,
) -> Option<usize> {
    least(seats, dice, usable, |seat| {
        let latency = loads.latency(seat.endpoint);
        latency.mean.cost(now_ns, loads.in_flight(seat.endpoint)) / f64::from(seat.weight)
    })
}

fn least(
    seats: &[WeightedEndpoint],
    dice: &BalancerRandom,
    usable: &impl Fn(usize) -> bool,
    cost: impl Fn(&WeightedEndpoint) -> f64,
) -> Option<usize> {
    let mut least = LeastCost { cost: f64::INFINITY, weight: 0, endpoint: None };
    if seats.len() > LOOKED_AT {
        for _ in 0..DRAWN {
            let drawn = || seats[dice.below(seats.len() as u64) as usize];
            if let Some(seat) = seats::draw(drawn, |seat| usable(seat.endpoint)) {
                least.consider(&seat, cost(&seat), dice);
            }
        }
    }
    if least.endpoint.is_none() {
        for seat in seats.iter().filter(|seat| usable(seat.endpoint)) {
            least.consider(seat, cost(seat), dice);
        }
    }
    least.endpoint
}

/// The best so far, and the weight of all that are equally good.
struct LeastCost {
    cost: f64,
    weight: u64,
    endpoint: Option<usize>,
}

impl LeastCost {
    fn consider(&mut self, seat: &WeightedEndpoint, cost: f64, dice: &BalancerRandom) {
        let weight = u64::from(seat.weight);
        if self.endpoint.is_none() || cost < self.cost {
            *self = LeastCost { cost, weight, endpoint: Some(seat.endpoint) };
        } else if cost == self.cost {
            self.weight += weight;
            if dice.below(self.weight) < weight {
                self.endpoint = Some(seat.endpoint);
            }
        }
    }
}
