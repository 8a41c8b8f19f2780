//! Which endpoint gets the next attempt: a file for each policy.
//!
//! Only the usable endpoints of the highest priority that has any take part; the others are reserves. An endpoint of weight
//! 0 takes no part at all. The load that a policy sees is that of its own worker.
//!
//! With round robin and random, if the picked endpoint has no free permit, another one that has is taken; if none has, the
//! exchange waits for the first that has one again ([`crate::endpoint::pool::SharedQueue`]).

use std::sync::Arc;

use weir_plugin::Exchange;

use crate::snapshot::seats::{WeightedEndpoint, by_priority};
use crate::snapshot::{Balance, Endpoint, Hashing};

mod budget;
mod dice;
mod ewma;
mod latency;
mod least;
mod random;
mod round_robin;
mod seats;

pub(crate) use budget::RetryBudget;
pub(crate) use dice::BalancerRandom;
pub(crate) use latency::LatencyEstimate;
use random::WeightedRandom;
use round_robin::RoundRobin;

/// The balancer of one worker for one upstream.
pub(crate) struct Balancer {
    policy: Policy,
    /// Used by the policies that compare loads, and to find another endpoint where the picked one has no free permit.
    seats: PriorityGroups<Box<[WeightedEndpoint]>>,
    dice: BalancerRandom,
}

enum Policy {
    /// There is a single endpoint.
    One,
    RoundRobin(PriorityGroups<RoundRobin>),
    WeightedRandom(PriorityGroups<WeightedRandom>),
    LeastConn,
    LeastTime,
    Ewma,
    Hash(Arc<Hashing>),
}

/// The load of each endpoint by this worker.
pub(crate) trait EndpointLoads {
    /// Exchanges that have begun and not ended.
    fn in_flight(&self, endpoint: usize) -> u32;
    /// Whether a further exchange would get a permit at once.
    fn has_room(&self, endpoint: usize) -> bool;
    fn latency(&self, endpoint: usize) -> &LatencyEstimate;
}

/// The endpoints that an exchange has tried. They get no second attempt while there is another.
///
/// Two words and not a `u128`: a future that holds 16 bytes aligned to 16 costs 250 instructions more to allocate. Of upstreams
/// with more than 128 endpoints, those whose numbers differ by a multiple of it count as one: there are many others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TriedEndpoints([u64; 2]);

impl TriedEndpoints {
    pub(crate) fn contains(self, endpoint: usize) -> bool {
        self.0[endpoint / 64 % 2] >> (endpoint % 64) & 1 == 1
    }

    /// These and another one.
    pub(crate) fn with(mut self, endpoint: usize) -> TriedEndpoints {
        self.add(endpoint);
        self
    }

    pub(crate) fn add(&mut self, endpoint: usize) {
        self.0[endpoint / 64 % 2] |= 1 << (endpoint % 64);
    }
}

impl Balancer {
    pub(crate) fn new(balance: &Balance, endpoints: &[Endpoint]) -> Balancer {
        let dice = BalancerRandom::from_entropy();
        let policy = match balance {
            _ if matches!(endpoints, [only] if only.weight > 0) => Policy::One,
            Balance::RoundRobin => {
                Policy::RoundRobin(PriorityGroups::new(endpoints, |seats| RoundRobin::new(seats, &dice)))
            }
            Balance::Random => Policy::WeightedRandom(PriorityGroups::new(endpoints, WeightedRandom::new)),
            Balance::LeastConn => Policy::LeastConn,
            Balance::LeastTime => Policy::LeastTime,
            Balance::Ewma => Policy::Ewma,
            Balance::Hash(hashing) => Policy::Hash(Arc::clone(hashing)),
        };
        Balancer { policy, seats: PriorityGroups::new(endpoints, Into::into), dice }
    }

    /// Whether only the shares of the weights decide, so that any endpoint may take an exchange.
    pub(crate) fn picks_by_weight_alone(&self) -> bool {
        matches!(self.policy, Policy::RoundRobin(_) | Policy::WeightedRandom(_))
    }

    /// The endpoint that the policy picks among the `usable` ones; `None` if there is none.
    pub(crate) fn pick(
        &self,
        exchange: &Exchange,
        loads: &(impl EndpointLoads + ?Sized),
        now_ns: u64,
        usable: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let (seats, dice) = (&self.seats, &self.dice);
        match &self.policy {
            Policy::One => usable(0).then_some(0),
            // A retry does not advance the rotation, which would change the order for the other requests.
            Policy::RoundRobin(_) if exchange.upstream.attempts > 0 => {
                self.prefer_endpoints_with_room(seats.pick(|seats| seats::any(seats, dice, &usable))?, loads, usable)
            }
            Policy::RoundRobin(tiers) => {
                self.prefer_endpoints_with_room(tiers.pick(|rotation| rotation.pick(dice, &usable))?, loads, usable)
            }
            Policy::WeightedRandom(tiers) => {
                self.prefer_endpoints_with_room(tiers.pick(|random| random.pick(dice, &usable))?, loads, usable)
            }
            Policy::LeastConn => seats.pick(|seats| least::connections(seats, dice, loads, &usable)),
            Policy::LeastTime => seats.pick(|seats| least::time(seats, dice, loads, now_ns, &usable)),
            Policy::Ewma => seats.pick(|seats| ewma::pick(seats, dice, loads, now_ns, &usable)),
            Policy::Hash(hashing) => hashing.pick(exchange, usable),
        }
    }

    /// The picked endpoint, or, if it has no free permit, another of its tier that has one.
    fn prefer_endpoints_with_room(
        &self,
        picked: usize,
        loads: &(impl EndpointLoads + ?Sized),
        usable: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        if loads.has_room(picked) {
            return Some(picked);
        }
        let with_room = |endpoint| loads.has_room(endpoint) && usable(endpoint);
        let tier = self.seats.0.iter().find(|seats| seats.iter().any(|seat| seat.endpoint == picked));
        tier.and_then(|seats| seats::any(seats, &self.dice, &with_room)).or(Some(picked))
    }
}

/// The state of a policy for each priority, the highest first.
struct PriorityGroups<P>(Vec<P>);

impl<P> PriorityGroups<P> {
    fn new(endpoints: &[Endpoint], policy: impl Fn(Vec<WeightedEndpoint>) -> P) -> PriorityGroups<P> {
        PriorityGroups(by_priority(endpoints).into_iter().map(policy).collect())
    }

    fn pick(&self, pick: impl FnMut(&P) -> Option<usize>) -> Option<usize> {
        self.0.iter().find_map(pick)
    }
}

#[cfg(test)]
mod tests;
