//! What makes requests due, in a closed and in an open loop.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use crate::engine::pacing::{Arrivals, Pauses, client_start};
use crate::engine::plan::{LoadPlan, Pacing};
use crate::engine::prepare::PreparedLoad;
use crate::engine::recorder::MeasuredWindow;

/// What makes requests due.
pub(super) enum RequestSource {
    Closed {
        pauses: Pauses,
        /// When clients that pause, or have not started, want to send.
        timers: BinaryHeap<Reverse<(u64, usize)>>,
    },
    Open {
        arrivals: Arrivals,
        next: Option<u64>,
        /// Free slots, per origin. The one that has been free longest goes first, so that all connections are in use.
        free: Vec<VecDeque<usize>>,
        /// Requests that are due and have no connection, per origin.
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
