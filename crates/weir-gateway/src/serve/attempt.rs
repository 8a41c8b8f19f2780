//! One attempt: a connection to the endpoint, and the relay over it.

use std::rc::Rc;

use weir_plugin::Stop;

use crate::connection::AfterExchange;
use crate::context::WorkerContext;
use crate::context::served_exchange::ServedExchange;
use crate::endpoint::pool::{EndpointPool, Freshness, Permit};
use crate::message::relay::{self, PersistenceCookie, RelayOutcome, RelayTerms};
use crate::message::sides::{ClientSide, until_client_disconnects};
use crate::message::upgrade::tunneled;
use crate::plugins::chain::Plugins;
use crate::snapshot::{self, Timeouts};
use crate::worker::snapshot::{WorkerSnapshot, WorkerUpstream};

/// Why an attempt failed, and whether its connection had carried a request before.
pub type Failure = (Stop, bool);

/// The endpoint and the settings of an attempt.
pub struct Attempt<'a> {
    pub current: &'a Rc<WorkerSnapshot>,
    pub settings: &'a snapshot::Upstream,
    pub upstream: &'a WorkerUpstream,
    /// The endpoint's number in the upstream.
    pub endpoint: usize,
    pub timeouts: Timeouts,
    pub started_ns: u64,
    /// The statuses after which another attempt is made.
    pub retried_statuses: &'a [u16],
}

impl<'a> Attempt<'a> {
    /// Sends the request and relays its response.
    #[expect(clippy::manual_async_fn, reason = "an `async fn` keeps its arguments twice: as given, and as used")]
    pub fn run<C: ClientSide>(
        self,
        permit: Permit<'a>,
        freshness: Freshness,
        client: &mut C,
        exchange: &mut ServedExchange,
    ) -> impl Future<Output = Result<AfterExchange, Failure>> {
        async move {
            let worker = permit.worker();
            exchange.upstream = attempt_record(permit.endpoint(), exchange.upstream.attempts + 1, self.started_ns);
            let terms = self.terms(worker, exchange);
            let counted = (self.upstream, self.endpoint);
            let after = match permit.endpoint().http2 {
                true => Box::pin(over_http2(counted, &terms, permit, freshness, client, exchange)).await?,
                false => over_http1(counted, &terms, permit, freshness, client, exchange).await?,
            };
            let upstream = &exchange.upstream;
            self.upstream.counters.answered(self.endpoint, upstream.status, upstream.head_ns());
            let health = &self.upstream.health[self.endpoint];
            health.answered(exchange.upstream.status, &self.settings.passive, worker.now_ns());
            Ok(after)
        }
    }

    fn terms(&self, worker: &'a Rc<WorkerContext>, exchange: &ServedExchange) -> RelayTerms<'a> {
        let Attempt { current, settings, upstream, endpoint, timeouts, retried_statuses, .. } = *self;
        let persistence = settings.persistence.as_deref();
        RelayTerms {
            plugins: Plugins::of(worker, current, exchange),
            clients: &current.snapshot.clients,
            timeouts,
            tolerance: settings.tolerance,
            retried_statuses,
            via: current.snapshot.clients.via.as_deref(),
            pass_host: &settings.pass_host,
            endpoint: &settings.endpoints[endpoint],
            persistence: persistence.map(|persistence| PersistenceCookie {
                persistence,
                sessions: &upstream.sessions,
                endpoint,
            }),
        }
    }
}

/// The record of an attempt when it begins.
pub fn attempt_record(endpoint: &EndpointPool, attempts: u16, started_ns: u64) -> weir_plugin::AttemptRecord {
    let (addr, tls) = (Some(endpoint.addr), endpoint.is_secured());
    weir_plugin::AttemptRecord { addr, tls, attempts, started_ns, ..Default::default() }
}

/// Counts a connection opened for an exchange; returns the time.
#[cold]
fn connected(worker: &WorkerContext, (upstream, endpoint): (&WorkerUpstream, usize)) -> u64 {
    upstream.counters.connected(endpoint);
    worker.wake_up()
}

async fn over_http1(
    counted: (&WorkerUpstream, usize),
    terms: &RelayTerms<'_>,
    permit: Permit<'_>,
    freshness: Freshness,
    client: &mut impl ClientSide,
    exchange: &mut ServedExchange,
) -> Result<AfterExchange, Failure> {
    let worker = permit.worker();
    let mut connection = match permit.reuse(freshness, exchange) {
        Ok(connection) => connection,
        Err(permit) => {
            let opening = permit.open(freshness, terms.timeouts, exchange);
            // Boxed: most exchanges reuse a connection, and need no memory for the state of opening one.
            let opened = Box::pin(until_client_disconnects(opening, |context| client.poll_leave(context))).await;
            opened.map_err(|stop| (stop, false))?
        }
    };
    let reused = connection.requests > 0;
    exchange.upstream.connect_ns = if reused { exchange.upstream.started_ns } else { connected(worker, counted) };
    let outcome = relay::both_ways(worker, client, &mut connection, exchange, terms).await;
    exchange.upstream.ended_ns = worker.now_ns();
    match outcome.map_err(|stop| (stop, reused))? {
        RelayOutcome::Complete { client_reusable, upstream_reusable } => {
            if upstream_reusable {
                connection.keep(exchange.upstream.ended_ns);
            }
            Ok(if client_reusable { AfterExchange::KeepAlive } else { AfterExchange::Close })
        }
        RelayOutcome::Tunnel => Ok(tunneled(worker, client, connection.stream(), exchange).await),
    }
}

/// Relays over one stream of a connection that other exchanges share.
async fn over_http2(
    counted: (&WorkerUpstream, usize),
    terms: &RelayTerms<'_>,
    permit: Permit<'_>,
    freshness: Freshness,
    client: &mut impl ClientSide,
    exchange: &mut ServedExchange,
) -> Result<AfterExchange, Failure> {
    let worker = permit.worker();
    let opening = permit.open_stream(freshness, terms.timeouts, terms.clients.limits.head_bytes, exchange);
    let opened = until_client_disconnects(opening, |context| client.poll_leave(context)).await;
    let mut stream = opened.map_err(|stop| (stop, false))?;
    let reused = stream.is_reused();
    exchange.upstream.connect_ns = if reused { exchange.upstream.started_ns } else { connected(worker, counted) };
    let outcome = relay::both_ways(worker, client, &mut stream, exchange, terms).await;
    exchange.upstream.ended_ns = worker.now_ns();
    // A reused connection is to blame only if the connection itself was lost, and not just this stream.
    match outcome.map_err(|stop| (stop, reused && stream.has_lost_connection()))? {
        RelayOutcome::Complete { client_reusable: true, .. } => Ok(AfterExchange::KeepAlive),
        RelayOutcome::Complete { .. } => Ok(AfterExchange::Close),
        RelayOutcome::Tunnel => Ok(tunneled(worker, client, &mut stream, exchange).await),
    }
}
