//! Waiting for a permit.

use std::rc::Rc;
use std::time::Duration;

use weir_net::prefetch::MemoryRegion;
use weir_plugin::{AttemptRecord, Exchange, Stop};

use super::attempt::waited_us;
use crate::context::WorkerContext;
use crate::endpoint::balance::TriedEndpoints;
use crate::endpoint::pool::Permit;
use crate::message::sides::{ClientSide, until_client_disconnects};
use crate::worker::snapshot::UpstreamView;

/// Waits for a permit of the picked endpoint, or, where any endpoint will do, of the first endpoint that has one free.
pub(super) struct PermitRequest<'a> {
    pub upstream: UpstreamView<'a>,
    pub picked: usize,
    pub tried: TriedEndpoints,
    pub patience: Duration,
}

impl PermitRequest<'_> {
    /// Waits for a permit; returns it with the number of its endpoint.
    pub(super) async fn wait<'w>(
        self,
        worker: &'w Rc<WorkerContext>,
        client: &mut impl ClientSide,
        exchange: &mut Exchange,
    ) -> Result<(usize, Permit<'w>), Stop> {
        let PermitRequest { upstream, mut picked, tried, patience } = self;
        let since_ns = worker.now_ns();
        loop {
            let endpoint = &upstream.state.endpoints[picked];
            let shared_queue = upstream.shared_queue_for(exchange, picked, tried, worker.now_ns());
            // If the exchange ends while it waits, its last attempt has not begun: no endpoint was asked.
            let attempts = exchange.upstream.attempts;
            exchange.upstream = AttemptRecord { attempts, ..AttemptRecord::default() };
            let head = &exchange.request.head;
            let working_set = [
                MemoryRegion::of(&*client),
                MemoryRegion::of(exchange),
                MemoryRegion::of(head.bytes()),
                MemoryRegion::of(head.entries()),
            ];
            let waiting = async {
                match shared_queue {
                    Some(queue) => queue.wait(&upstream.state.endpoints, worker, since_ns, patience, working_set).await,
                    None => {
                        Ok(Some((picked, endpoint.wait_for_permit(worker, since_ns, patience, working_set).await?)))
                    }
                }
            };
            let waited = until_client_disconnects(waiting, |context| client.poll_leave(context)).await;
            exchange.upstream.queue_us = waited_us(since_ns, worker.now_ns());
            if let Some(found) = waited? {
                return Ok(found);
            }
            picked = upstream.pick(exchange, tried, worker.now_ns()).ok_or(Stop::NoEndpoint)?;
            if let Some(permit) = upstream.state.endpoints[picked].try_permit(worker) {
                return Ok((picked, permit));
            }
        }
    }
}
