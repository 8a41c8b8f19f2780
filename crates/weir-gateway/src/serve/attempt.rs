//! One attempt: a connection to the endpoint, and the relay over it.

use std::rc::Rc;

use weir_plugin::{EndedBy, Stop};

use crate::answer::relay::{self, PersistenceCookie, RelayOutcome, RelayTerms, StatusRetryRule};
use crate::answer::upgrade::tunneled;
use crate::context::WorkerContext;
use crate::context::served_exchange::ServedExchange;
use crate::endpoint::pool::{EndpointPool, Freshness, Permit};
use crate::message::AfterExchange;
use crate::message::sides::{ClientSide, until_client_disconnects};
use crate::plugins::chain::Plugins;
use crate::snapshot::Timeouts;
use crate::worker::snapshot::{UpstreamView, WorkerSnapshot};

/// A failed attempt.
pub(super) struct Failure {
    pub stop: Stop,
    /// Its connection had carried a request before, so the endpoint may have closed it before this request came.
    pub on_reused_connection: bool,
}

/// When an attempt begins: once the exchange has a permit.
#[derive(Clone, Copy)]
pub(super) struct AttemptStart {
    pub at_ns: u64,
    /// How long the exchange waited for the permit, in microseconds.
    pub queue_us: u32,
}

impl AttemptStart {
    /// That of an exchange that did not have to wait.
    pub(super) fn at(at_ns: u64) -> AttemptStart {
        AttemptStart { at_ns, queue_us: 0 }
    }

    /// That of an exchange that asked for the permit at `asked_ns`.
    pub(super) fn queued_since(asked_ns: u64, now_ns: u64) -> AttemptStart {
        AttemptStart { at_ns: now_ns, queue_us: waited_us(asked_ns, now_ns) }
    }
}

/// A wait in microseconds, rounded up: it ends by the time-out of the queue, long before there are too many for the number.
pub(super) fn waited_us(since_ns: u64, now_ns: u64) -> u32 {
    u32::try_from(now_ns.saturating_sub(since_ns).div_ceil(1_000)).unwrap_or(u32::MAX)
}

/// The endpoint and the settings of an attempt.
pub(super) struct Attempt<'a> {
    pub current: &'a Rc<WorkerSnapshot>,
    pub upstream: UpstreamView<'a>,
    /// The endpoint's number in the upstream.
    pub endpoint: usize,
    pub timeouts: &'a Timeouts,
    pub start: AttemptStart,
    /// Decides which responses are followed by another attempt.
    pub status_retry: Option<&'a dyn StatusRetryRule>,
}

impl<'a> Attempt<'a> {
    /// Sends the request and relays its response.
    #[expect(clippy::manual_async_fn, reason = "an `async fn` keeps its arguments twice: as given, and as used")]
    pub(super) fn run<C: ClientSide>(
        self,
        permit: Permit<'a>,
        freshness: Freshness,
        client: &mut C,
        exchange: &mut ServedExchange,
    ) -> impl Future<Output = Result<AfterExchange, Failure>> {
        async move {
            let worker = permit.worker();
            exchange.upstream = attempt_record(permit.endpoint(), exchange.upstream.attempts + 1, self.start);
            let terms = self.terms(worker, exchange);
            let end = match permit.endpoint().is_http2() {
                true => Box::pin(self.over_http2(&terms, permit, freshness, client, exchange)).await,
                false => self.over_http1(&terms, permit, freshness, client, exchange).await,
            };
            if let Err(Failure { stop, .. }) = &end
                && stop.ending().blame == EndedBy::Client
                && exchange.upstream.status != 0
            {
                // The endpoint has answered; that the client has not taken all of it says nothing about the endpoint.
                self.report_health(worker, exchange);
            }
            end
        }
    }

    /// Counts the endpoint's response: once it is complete, or when a tunnel begins.
    fn answered(&self, worker: &WorkerContext, exchange: &ServedExchange) {
        let upstream = &exchange.upstream;
        self.upstream.state.counters.answered(self.endpoint, upstream.status, upstream.head_ns());
        self.report_health(worker, exchange);
    }

    fn report_health(&self, worker: &WorkerContext, exchange: &ServedExchange) {
        let health = &self.upstream.state.health[self.endpoint];
        let passive = &self.upstream.settings.passive;
        health.answered(exchange.upstream.status, passive, self.start.at_ns, worker.now_ns());
    }

    fn terms(&self, worker: &'a Rc<WorkerContext>, exchange: &ServedExchange) -> RelayTerms<'a> {
        let Attempt { current, upstream: UpstreamView { settings, state }, endpoint, timeouts, status_retry, .. } =
            *self;
        let persistence = settings.persistence.as_deref();
        RelayTerms {
            plugins: Plugins::of(worker, current, exchange),
            clients: &current.snapshot.clients,
            timeouts,
            tolerance: settings.tolerance,
            response_limits: &settings.response_limits,
            status_retry,
            via: current.snapshot.clients.via.as_deref(),
            pass_host: &settings.pass_host,
            endpoint: &settings.endpoints[endpoint],
            persistence: persistence.map(|persistence| PersistenceCookie {
                persistence,
                sessions: &state.sessions,
                endpoints: &settings.endpoints,
                endpoint,
            }),
        }
    }

    /// Counts a connection opened for this attempt; returns the time.
    #[cold]
    fn connected(&self, worker: &WorkerContext) -> u64 {
        self.upstream.state.counters.connected(self.endpoint);
        worker.wake_up()
    }

    async fn over_http1(
        &self,
        terms: &RelayTerms<'_>,
        permit: Permit<'_>,
        freshness: Freshness,
        client: &mut impl ClientSide,
        exchange: &mut ServedExchange,
    ) -> Result<AfterExchange, Failure> {
        let worker = permit.worker();
        let mut connection = match permit.reuse(freshness, terms.timeouts.send, exchange) {
            Ok(connection) => connection,
            Err(permit) => {
                let opening = permit.open(freshness, *terms.timeouts, exchange);
                // Boxed: most exchanges reuse a connection, and need no memory for the state of opening one.
                let opened = Box::pin(until_client_disconnects(opening, |context| client.poll_leave(context))).await;
                opened.map_err(|stop| Failure { stop, on_reused_connection: false })?
            }
        };
        let reused = connection.requests > 0;
        exchange.upstream.connect_ns = if reused { exchange.upstream.started_ns } else { self.connected(worker) };
        let outcome = relay::both_ways(worker, client, &mut connection, exchange, terms).await;
        exchange.upstream.ended_ns = worker.now_ns();
        match outcome.map_err(|stop| Failure { stop, on_reused_connection: reused })? {
            RelayOutcome::Complete { client, upstream_reusable } => {
                if upstream_reusable {
                    connection.keep(exchange.upstream.ended_ns);
                }
                self.answered(worker, exchange);
                Ok(client)
            }
            RelayOutcome::Tunnel => {
                self.answered(worker, exchange);
                Ok(tunneled(worker, client, connection.stream(), exchange).await)
            }
        }
    }

    /// Relays over one stream of a connection that other exchanges share.
    async fn over_http2(
        &self,
        terms: &RelayTerms<'_>,
        permit: Permit<'_>,
        freshness: Freshness,
        client: &mut impl ClientSide,
        exchange: &mut ServedExchange,
    ) -> Result<AfterExchange, Failure> {
        let worker = permit.worker();
        let opening = permit.open_stream(freshness, *terms.timeouts, terms.response_limits.head_bytes, exchange);
        let opened = until_client_disconnects(opening, |context| client.poll_leave(context)).await;
        let mut stream = opened.map_err(|stop| Failure { stop, on_reused_connection: false })?;
        let reused = stream.is_reused();
        exchange.upstream.connect_ns = if reused { exchange.upstream.started_ns } else { self.connected(worker) };
        let outcome = relay::both_ways(worker, client, &mut stream, exchange, terms).await;
        exchange.upstream.ended_ns = worker.now_ns();
        // A reused connection is to blame only if the connection itself was lost, and not just this stream. One that was opened
        // after such a loss is not.
        let on_reused_connection = reused && freshness != Freshness::New && stream.has_lost_connection();
        match outcome.map_err(|stop| Failure { stop, on_reused_connection })? {
            RelayOutcome::Complete { client, .. } => {
                self.answered(worker, exchange);
                Ok(client)
            }
            RelayOutcome::Tunnel => {
                self.answered(worker, exchange);
                Ok(tunneled(worker, client, &mut stream, exchange).await)
            }
        }
    }
}

/// The record of an attempt when it begins.
pub(super) fn attempt_record(
    endpoint: &EndpointPool,
    attempts: u16,
    start: AttemptStart,
) -> weir_plugin::AttemptRecord {
    let (addr, tls) = (Some(endpoint.addr()), endpoint.is_secured());
    let AttemptStart { at_ns: started_ns, queue_us } = start;
    weir_plugin::AttemptRecord { addr, tls, attempts, started_ns, queue_us, ..Default::default() }
}
