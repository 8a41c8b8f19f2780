//! A snapshot as one worker holds it: with its own pools, its own place in each rotation, and a reference count that no
//! other core touches.

use std::rc::Rc;
use std::sync::Arc;

use weir_plugin::{RouteFacts, Routes};
use weir_telemetry::metrics::RouteSlot;

use crate::balance::Balancer;
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
    pub balancer: Balancer,
}

impl Current {
    pub fn new(snapshot: Arc<Snapshot>, slots: Arc<[RouteSlot]>, pools: &Pools) -> Current {
        let upstreams = snapshot
            .upstreams
            .iter()
            .map(|upstream| Upstream {
                endpoints: upstream.endpoints.iter().map(|endpoint| pools.endpoint(endpoint, upstream)).collect(),
                balancer: Balancer::new(&upstream.endpoints),
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

impl Routes for Current {
    fn facts(&self, route: usize) -> &RouteFacts {
        &self.snapshot.routes[route].facts
    }
}
