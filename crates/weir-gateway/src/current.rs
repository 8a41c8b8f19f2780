//! A snapshot as one worker holds it: with its own pools, its own place in each rotation, and a reference count that no
//! other core touches.

use std::rc::Rc;
use std::sync::Arc;

use weir_plugin::{Exchange, RouteFacts, Routes};
use weir_telemetry::metrics::RouteSlot;

use crate::balance::{Balancer, Dice, Latency, Loads, Tried};
use crate::pool::{Endpoint, Pools};
use crate::snapshot::{self, Snapshot};

pub struct Current {
    pub snapshot: Arc<Snapshot>,
    /// Beside [`Snapshot::upstreams`].
    upstreams: Vec<Upstream>,
    /// Beside [`Snapshot::routes`].
    slots: Arc<[RouteSlot]>,
}

/// A worker's side of an upstream.
pub struct Upstream {
    pub endpoints: Vec<Rc<Endpoint>>,
    balancer: Balancer,
    dice: Dice,
}

impl Current {
    pub fn new(snapshot: Arc<Snapshot>, slots: Arc<[RouteSlot]>, pools: &Pools, now_ns: u64) -> Current {
        let upstreams = snapshot
            .upstreams
            .iter()
            .map(|upstream| Upstream {
                endpoints: upstream
                    .endpoints
                    .iter()
                    .map(|endpoint| pools.endpoint(endpoint, upstream, now_ns))
                    .collect(),
                balancer: Balancer::new(&upstream.balance, &upstream.endpoints),
                dice: Dice::shaken(),
            })
            .collect();
        pools.forget_unused();
        Current { snapshot, upstreams, slots }
    }

    pub fn upstream(&self, number: usize) -> (&snapshot::Upstream, &Upstream) {
        (&self.snapshot.upstreams[number], &self.upstreams[number])
    }

    pub fn slot(&self, route: usize) -> RouteSlot {
        self.slots[route]
    }
}

impl Upstream {
    /// An endpoint in rotation that has not been tried; when all are out of rotation, any that has not been tried.
    pub fn pick(&self, settings: &snapshot::Upstream, exchange: &Exchange, tried: Tried, now_ns: u64) -> Option<usize> {
        let pick = |usable: &dyn Fn(usize) -> bool| self.balancer.pick(exchange, &*self.endpoints, now_ns, usable);
        let untried = |index: usize| !tried.contains(index);
        let in_rotation = |index: usize| untried(index) && self.endpoints[index].health.is_up(now_ns);
        if let Some(ramp) = settings.slow_start {
            // What an endpoint that has just come back does not get yet goes to the others.
            let takes_its_share = |index: usize| {
                let share = self.endpoints[index].health.share(ramp, now_ns);
                in_rotation(index) && (share >= 1.0 || self.dice.shows(share))
            };
            if let Some(picked) = pick(&takes_its_share) {
                return Some(picked);
            }
        }
        self.balancer.pick(exchange, &*self.endpoints, now_ns, in_rotation).or_else(|| pick(&untried))
    }
}

impl Loads for [Rc<Endpoint>] {
    fn in_flight(&self, endpoint: usize) -> u32 {
        self[endpoint].in_flight()
    }

    fn latency(&self, endpoint: usize) -> &Latency {
        &self[endpoint].latency
    }
}

impl Routes for Current {
    fn facts(&self, route: usize) -> &RouteFacts {
        &self.snapshot.routes[route].facts
    }
}
