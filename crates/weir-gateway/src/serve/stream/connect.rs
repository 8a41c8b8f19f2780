//! The connection of a stream to an endpoint. As long as none is open no byte has been sent, so that any other endpoint may be
//! tried.

use std::rc::Rc;
use std::time::Duration;

use weir_plugin::Stop;

use super::{StreamClient, poll_stopped};
use crate::context::WorkerContext;
use crate::context::served_exchange::ServedExchange;
use crate::endpoint::pool::{EndpointPool, Permit, StreamConnection};
use crate::message::sides::until_client_disconnects;
use crate::serve::attempt::{AttemptStart, Failure, attempt_record};
use crate::serve::retry::Attempts;
use crate::snapshot::Timeouts;
use crate::worker::snapshot::UpstreamView;

/// Connects to the endpoint that the upstream picks, or to another one if that fails and the upstream allows it.
pub(super) async fn connect<'w>(
    worker: &'w Rc<WorkerContext>,
    upstream: UpstreamView<'_>,
    client: &impl StreamClient,
    exchange: &mut ServedExchange,
) -> Result<StreamConnection<'w>, Stop> {
    let UpstreamView { settings, state } = upstream;
    let mut attempts = Attempts::new(exchange, settings, worker.now_ns());
    state.retries.earn(settings.retry_budget);
    let mut picked = upstream.pick(exchange, attempts.tried, attempts.first_ns).ok_or(Stop::NoEndpoint)?;
    loop {
        let started_ns = worker.now_ns();
        let opening = open(worker, &state.endpoints[picked], settings.timeouts, exchange, started_ns);
        match until_client_disconnects(opening, |_| poll_stopped(client.service())).await {
            Ok(connection) => {
                exchange.upstream.connect_ns = worker.wake_up();
                state.counters.connected(picked);
                state.health[picked].connected(&settings.passive, started_ns, worker.now_ns());
                attempts.connected(upstream, started_ns);
                return Ok(connection);
            }
            Err(stop) => {
                let failure = Failure { stop, on_reused_connection: false };
                picked = attempts.next(worker, upstream, exchange, picked, failure)?;
            }
        }
    }
}

async fn open<'w>(
    worker: &'w Rc<WorkerContext>,
    endpoint: &Rc<EndpointPool>,
    timeouts: Timeouts,
    exchange: &mut ServedExchange,
    started_ns: u64,
) -> Result<StreamConnection<'w>, Stop> {
    let permit = permit(worker, endpoint, timeouts.connect, started_ns).await?;
    let start = AttemptStart::queued_since(started_ns, worker.now_ns());
    exchange.upstream = attempt_record(permit.endpoint(), exchange.upstream.attempts + 1, start);
    permit.connect_stream(timeouts, exchange).await
}

/// A permit for a stream at the endpoint, which it keeps as long as it is open.
pub(super) async fn permit<'w>(
    worker: &'w Rc<WorkerContext>,
    endpoint: &Rc<EndpointPool>,
    patience: Duration,
    since_ns: u64,
) -> Result<Permit<'w>, Stop> {
    match endpoint.try_stream_permit(worker) {
        Some(permit) => Ok(permit),
        None => endpoint.wait_for_stream_permit(worker, since_ns, patience).await,
    }
}
