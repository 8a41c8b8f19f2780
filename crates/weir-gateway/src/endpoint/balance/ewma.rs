//! `ewma`: of two endpoints drawn at random, the one that is expected to answer a further exchange sooner. The estimate
//! follows a peak at once and forgets it slowly, so that an endpoint which begins to stall loses its traffic with the first
//! slow answer.

use super::seats;
use super::{BalancerRandom, EndpointLoads};
use crate::snapshot::seats::WeightedEndpoint;

pub(super) fn pick(
    seats: &[WeightedEndpoint],
    dice: &BalancerRandom,
    loads: &(impl EndpointLoads + ?Sized),
    now_ns: u64,
    usable: &impl Fn(usize) -> bool,
) -> Option<usize> {
    let drawn = |usable: &dyn Fn(usize) -> bool| {
        let draw = || seats[dice.below(seats.len() as u64) as usize];
        seats::draw(draw, |seat| usable(seat.endpoint)).or_else(|| {
            let endpoint = seats::any(seats, dice, &usable)?;
            seats.iter().copied().find(|seat| seat.endpoint == endpoint)
        })
    };
    let one = drawn(usable)?;
    let Some(other) = drawn(&|endpoint| endpoint != one.endpoint && usable(endpoint)) else {
        return Some(one.endpoint);
    };
    let cost = |seat: &WeightedEndpoint| {
        let latency = loads.latency(seat.endpoint);
        latency.peak.cost(now_ns, loads.in_flight(seat.endpoint)) / f64::from(seat.weight)
    };
    let better = if cost(&other) < cost(&one) { other } else { one };
    Some(better.endpoint)
}
