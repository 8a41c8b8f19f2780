//! Which endpoint gets the next attempt: a file per way of choosing.

use crate::snapshot::Endpoint;

mod round_robin;

use round_robin::RoundRobin;

/// One worker's chooser for one upstream.
pub struct Balancer {
    round_robin: RoundRobin,
}

/// The endpoints an exchange has tried. They get no second attempt while another is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried(u128);

impl Tried {
    pub fn contains(self, endpoint: usize) -> bool {
        endpoint < 128 && self.0 >> endpoint & 1 == 1
    }

    pub fn add(&mut self, endpoint: usize) {
        if endpoint < 128 {
            self.0 |= 1 << endpoint;
        }
    }
}

impl Balancer {
    pub fn new(endpoints: &[Endpoint]) -> Balancer {
        Balancer { round_robin: RoundRobin::new(endpoints) }
    }

    /// The next endpoint in turn among those that are `usable`; `None` if there is none.
    pub fn pick(&self, usable: impl Fn(usize) -> bool) -> Option<usize> {
        self.round_robin.pick(usable)
    }
}
