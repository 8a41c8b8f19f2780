//! Decides when requests are due, in a closed and in an open loop.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use crate::engine::pacing::{Arrivals, Pauses, client_start};
use crate::engine::plan::{LoadPlan, Pacing};
use crate::engine::prepare::PreparedLoad;
use crate::engine::recorder::MeasuredWindow;

/// The source of due requests.
pub(super) enum RequestSource {
    Closed {
        pauses: Pauses,
        /// When clients that are pausing, or have not started, send their next request.
        timers: BinaryHeap<Reverse<(u64, usize)>>,
    },
    Open {
        arrivals: Arrivals,
        next: Option<u64>,
        /// The free slots of each origin. The one that has been free the longest is used first, so that all connections are used.
        free: Vec<VecDeque<usize>>,
        /// The requests of each origin that are due and wait for a connection.
        backlog: Vec<VecDeque<(u64, u32)>>,
    },
}

impl RequestSource {
    pub(super) fn new(
        plan: &LoadPlan,
        prepared: &PreparedLoad,
        thread: usize,
        clients: &Range<usize>,
        window: MeasuredWindow,
    ) -> Self {
        match (&plan.pacing, Arrivals::new(&plan.pacing, plan.seed, thread, plan.threads)) {
            (_, Some(mut arrivals)) => {
                let origins = prepared.origins.len();
                let slots_of = |origin: usize| (0..clients.len()).map(|client| client * origins + origin).collect();
                RequestSource::Open {
                    next: arrivals.next().map(|at| window.start + at),
                    arrivals,
                    free: (0..origins).map(slots_of).collect(),
                    backlog: vec![VecDeque::new(); origins],
                }
            }
            (Pacing::Closed { think, ramp_up_ms }, None) => {
                let start = |client| window.start + client_start(client, plan.connections, *ramp_up_ms);
                RequestSource::Closed {
                    pauses: Pauses::new(*think, plan.seed, thread),
                    timers: clients.clone().map(|client| Reverse((start(client), client - clients.start))).collect(),
                }
            }
            (_, None) => unreachable!("every pacing but the closed loop has arrivals"),
        }
    }
}

impl RequestSource {
    pub(super) fn has_backlog(&self) -> bool {
        matches!(self, RequestSource::Open { backlog, .. } if backlog.iter().any(|queue| !queue.is_empty()))
    }
}
