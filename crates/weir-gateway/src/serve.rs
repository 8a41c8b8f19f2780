//! One exchange, from request head to log record. Start reading here.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weir_plugin::{Exchange, MatchedRoute, Retry, Stop, Taken};
use weir_proto::{Framing, Method};

use crate::certificates::Admission;
use crate::connection::After;
use crate::endpoint::balance::Tried;
use crate::endpoint::pool::{EndpointPool, Freshness, Permit};
use crate::message::final_recipient;
use crate::message::relay::{self, Persisting, RelayOutcome, RelayTerms};
use crate::message::sides::{ClientSide, unless_left};
use crate::message::tunnel;
use crate::message::{respond, responder};
use crate::plugins::chain::Plugins;
use crate::plugins::content;
use crate::route::Lookup;
use crate::snapshot::{self, Route, Target};
use crate::worker::Worker;
use crate::worker::snapshot::{WorkerSnapshot, WorkerUpstream};

pub async fn serve(worker: &Rc<Worker>, client: &mut impl ClientSide, mut exchange: Box<Exchange>) -> After {
    worker.metrics.requests.increment();
    let current = worker.current(); // one configuration for the whole exchange
    if worker.meter.is_due() {
        return Box::pin(measured(worker, &current, client, exchange)).await;
    }
    let end = answer(worker, &current, client, &mut exchange).await;
    let after = respond::finish(worker, &current, client, &mut exchange, end).await; // where a Stop becomes a status
    worker.buffers.give_exchange(exchange);
    after
}

/// The same for an exchange that chance has picked, whose price is written down.
async fn measured(
    worker: &Rc<Worker>,
    current: &Rc<WorkerSnapshot>,
    client: &mut impl ClientSide,
    mut exchange: Box<Exchange>,
) -> After {
    exchange.measured = true;
    let (meter, mut cpu_ns) = (&worker.meter, 0);
    let end = meter.over(&mut cpu_ns, answer(worker, current, client, &mut exchange)).await;
    let finish = respond::finish(worker, current, client, &mut exchange, end);
    let after = meter.over(&mut cpu_ns, finish).await;
    let price = &current.metrics_of(worker, &exchange).price;
    meter.learn();
    price.sampled.increment();
    price.cpu_ns.add(cpu_ns);
    worker.buffers.give_exchange(exchange);
    after
}

/// How an exchange ends well: with what is to become of the client's connection.
type Ending = Result<After, Stop>;

async fn answer(
    worker: &Rc<Worker>,
    current: &Rc<WorkerSnapshot>,
    client: &mut impl ClientSide,
    exchange: &mut Exchange,
) -> Ending {
    admit(current, exchange)?;
    let Some(route) = matched(current, exchange) else {
        Plugins::of(worker, current, exchange).on_request(exchange, |context| client.poll_leave(context)).await?;
        return Err(final_recipient::without_route(exchange));
    };
    if exchange.request.encoded_separator && !route.encoded_separators {
        return Err(Stop::EncodedSeparator);
    }
    exchange.request.upgrade &= route.upgrades;
    let plugins = Plugins::of(worker, current, exchange);
    plugins.on_request(exchange, |context| client.poll_leave(context)).await?;
    final_recipient::count_hop(exchange)?;
    if plugins.see_request_bodies(exchange) {
        Box::pin(content::request(worker, &current.snapshot.clients, plugins, client, exchange)).await?;
    }
    if let Some(responder) = exchange.responder().map(Arc::clone) {
        return Box::pin(responder::answer(worker, current, route, &responder, client, exchange)).await;
    }
    let diverted = exchange.diverted.map(|number| Target::Upstream(number as usize));
    match diverted.as_ref().unwrap_or(&route.target) {
        Target::Upstream(number) => proxy(worker, current, route, current.upstream(*number), client, exchange).await,
        Target::Responder(responder) => {
            Box::pin(responder::answer(worker, current, route, responder, client, exchange)).await
        }
        Target::Nothing => Err(Stop::NoUpstream),
    }
}

/// What holds for every request, whatever its route.
fn admit(current: &WorkerSnapshot, exchange: &mut Exchange) -> Result<(), Stop> {
    if let Some(stop) = exchange.stop {
        return Err(stop); // refused while it was read
    }
    let clients = &current.snapshot.clients;
    if !clients.trusted_addresses.is_empty() {
        exchange.client.trusted = clients.trusts(exchange.client.peer.ip());
    }
    if exchange.request.method == Method::Connect {
        return Err(Stop::ConnectMethod);
    }
    if let Some(tls) = &exchange.tls {
        let (host, path, proved) = (exchange.request.host(), exchange.request.path(), tls.certificate.is_some());
        match current.snapshot.certificates.admit(host, path, tls.proof, proved) {
            Admission::Admitted => {}
            Admission::Misdirected => return Err(Stop::Misdirected),
            Admission::Unproved => return Err(Stop::NoCertificate),
        }
    }
    exchange.body_limit = clients.body_bytes.unwrap_or(u64::MAX);
    match exchange.request.framing {
        Framing::Sized(length) if length > exchange.body_limit => Err(Stop::BodyTooLarge),
        _ => Ok(()),
    }
}

/// Finds the route, and writes down in the exchange which one it is.
fn matched<'a>(current: &'a Rc<WorkerSnapshot>, exchange: &mut Exchange) -> Option<&'a Route> {
    let request = &exchange.request;
    let number = current.snapshot.table.find(&Lookup {
        host: request.host(),
        path: request.path(),
        method: request.method,
        remote_addr: exchange.client.addr,
        variables: exchange,
    })?;
    exchange.route = Some(MatchedRoute::new(Rc::clone(current) as Rc<_>, number as usize));
    Some(&current.snapshot.routes[number as usize])
}

/// Who waits no longer than this waits for nobody.
const NO_TIME_NS: u64 = 10_000;

/// Where a request goes after an attempt that failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// The connection had gone stale in the pool, which says nothing about its endpoint.
    NewConnection,
    /// The connection takes no more streams (RFC 9113 §8.7), which says nothing either.
    WhereThereIsRoom,
    OtherEndpoint,
}

/// What the attempts of one exchange have come to.
struct Attempts {
    first_ns: u64,
    idempotent: bool,
    freshness: Freshness,
    tried: Tried,
    retries: u32,
    turned_away: bool,
}

/// Attempts until one succeeds, or no further one is allowed. Never once a byte of a response has left.
async fn proxy(
    worker: &Rc<Worker>,
    current: &Rc<WorkerSnapshot>,
    route: &Route,
    (settings, upstream): (&snapshot::Upstream, &WorkerUpstream),
    client: &mut impl ClientSide,
    exchange: &mut Exchange,
) -> Ending {
    let timeouts = route.timeouts.unwrap_or(settings.timeouts);
    let mut attempts = Attempts::new(exchange, settings, worker.now_ns());
    upstream.retries.earn(settings.retry_budget);
    let picked = upstream.pick(settings, exchange, attempts.tried, attempts.first_ns);
    let mut picked = picked.ok_or(Stop::NoEndpoint)?;
    loop {
        let started_ns = worker.now_ns();
        let (endpoint, permit) = match upstream.endpoints[picked].try_permit(worker) {
            Some(permit) => (picked, permit),
            None => {
                let request =
                    PermitRequest { settings, upstream, picked, tried: attempts.tried, patience: timeouts.connect };
                Box::pin(wait_for_permit(worker, request, client, exchange)).await?
            }
        };
        if client.call_deadline_ns() <= worker.now_ns() + NO_TIME_NS {
            return Err(Stop::CallTimeout);
        }
        let terms = RelayTerms {
            plugins: Plugins::of(worker, current, exchange),
            clients: &current.snapshot.clients,
            timeouts,
            tolerance: settings.tolerance,
            pass_host: &settings.pass_host,
            endpoint: &settings.endpoints[endpoint],
            persistence: settings.persistence.as_deref().map(|persistence| Persisting {
                persistence,
                sessions: &upstream.sessions,
                endpoint,
            }),
        };
        match attempt(&terms, started_ns, permit, attempts.freshness, client, exchange).await {
            Ok(after) => {
                upstream.health[endpoint].answered(exchange.upstream.status, &settings.passive, worker.now_ns());
                return Ok(after);
            }
            Err(failure) => picked = attempts.next(worker, (settings, upstream), exchange, endpoint, failure)?,
        }
    }
}

impl Attempts {
    fn new(exchange: &Exchange, settings: &snapshot::Upstream, first_ns: u64) -> Attempts {
        let idempotent = exchange.request.method.is_idempotent();
        Attempts {
            first_ns,
            idempotent,
            freshness: if idempotent { Freshness::Any } else { Freshness::Asked },
            tried: Tried::default(),
            retries: settings.retries,
            turned_away: false,
        }
    }

    /// An attempt at `endpoint` has failed, maybe on a connection that had been used before: whose turn it is now, if there
    /// is another.
    fn next(
        &mut self,
        worker: &Worker,
        (settings, upstream): (&snapshot::Upstream, &WorkerUpstream),
        exchange: &mut Exchange,
        endpoint: usize,
        (stop, reused): (Stop, bool),
    ) -> Result<usize, Stop> {
        let now_ns = worker.now_ns();
        exchange.upstream.ended_ns = now_ns;
        let next = match stop {
            Stop::UpstreamClosed if reused => Next::NewConnection,
            Stop::NotProcessed if !self.turned_away => Next::WhereThereIsRoom,
            _ => Next::OtherEndpoint,
        };
        if next == Next::OtherEndpoint {
            upstream.health[endpoint].failed(stop, &settings.passive, exchange.upstream.started_ns, now_ns);
        }
        let safe = match stop.ending().retry {
            Retry::Never => false,
            Retry::Unseen => true,
            Retry::Idempotent => self.idempotent,
        };
        // What was held for a plugin can be sent again.
        let is_lost = exchange.body_taken != Taken::Nothing && exchange.request_body.is_none();
        let late = settings.retry_timeout.is_some_and(|most| now_ns - self.first_ns > most.as_nanos() as u64);
        if !safe || exchange.response_begun || is_lost || late {
            return Err(stop);
        }
        let mut picked = endpoint;
        match next {
            Next::NewConnection => self.freshness = Freshness::New,
            Next::WhereThereIsRoom => self.turned_away = true,
            Next::OtherEndpoint => {
                self.tried.add(endpoint);
                self.retries = self.retries.checked_sub(1).ok_or(stop)?;
                picked = upstream.pick(settings, exchange, self.tried, now_ns).ok_or(stop)?;
            }
        }
        if next != Next::NewConnection && !upstream.retries.spend() {
            worker.metrics.upstream_retries_refused.increment();
            return Err(stop);
        }
        worker.metrics.upstream_retries.increment();
        exchange.earlier.push(exchange.upstream);
        Ok(picked)
    }
}

/// A permit that is waited for: at the endpoint that was picked, or wherever it does not matter which one it is.
struct PermitRequest<'a> {
    settings: &'a snapshot::Upstream,
    upstream: &'a WorkerUpstream,
    picked: usize,
    tried: Tried,
    patience: Duration,
}

/// A permit as soon as there is one, and whose it is.
async fn wait_for_permit<'w>(
    worker: &'w Rc<Worker>,
    PermitRequest { settings, upstream, mut picked, tried, patience }: PermitRequest<'_>,
    client: &mut impl ClientSide,
    exchange: &mut Exchange,
) -> Result<(usize, Permit<'w>), Stop> {
    let since_ns = worker.now_ns();
    loop {
        let endpoint = &upstream.endpoints[picked];
        let shared_queue = upstream.shared_queue_for(settings, exchange, picked, tried, worker.now_ns());
        // Should nothing come of it, this is whom it has waited for.
        let attempts = exchange.upstream.attempts;
        exchange.upstream = match shared_queue {
            Some(_) => weir_plugin::Upstream { attempts, ..Default::default() },
            None => asked(endpoint, attempts, since_ns),
        };
        let waiting = async {
            match shared_queue {
                Some(shared_queue) => shared_queue.wait(&upstream.endpoints, worker, since_ns, patience).await,
                None => Ok(Some((picked, endpoint.wait_for_permit(worker, since_ns, patience).await?))),
            }
        };
        if let Some(found) = unless_left(waiting, |context| client.poll_leave(context)).await? {
            return Ok(found);
        }
        picked = upstream.pick(settings, exchange, tried, worker.now_ns()).ok_or(Stop::NoEndpoint)?;
        if let Some(permit) = upstream.endpoints[picked].try_permit(worker) {
            return Ok((picked, permit));
        }
    }
}

/// What is written down of an attempt when it begins.
fn asked(endpoint: &EndpointPool, attempts: u16, started_ns: u64) -> weir_plugin::Upstream {
    let (addr, tls) = (Some(endpoint.addr), endpoint.is_secured());
    weir_plugin::Upstream { addr, tls, attempts, started_ns, ..Default::default() }
}

/// One attempt at the endpoint of a permit; a failure comes with whether its connection had been used before.
async fn attempt(
    terms: &RelayTerms<'_>,
    started_ns: u64,
    permit: Permit<'_>,
    freshness: Freshness,
    client: &mut impl ClientSide,
    exchange: &mut Exchange,
) -> Result<After, (Stop, bool)> {
    let (worker, endpoint) = (permit.worker(), permit.endpoint());
    exchange.upstream = asked(endpoint, exchange.upstream.attempts + 1, started_ns);
    if endpoint.http2 {
        return Box::pin(attempt_in_stream(terms, permit, freshness, client, exchange)).await;
    }
    let opening = permit.open(freshness, terms.timeouts, exchange);
    let opened = unless_left(opening, |context| client.poll_leave(context)).await;
    let mut connection = opened.map_err(|stop| (stop, false))?;
    let reused = connection.requests > 0;
    exchange.upstream.connect_ns = if reused { started_ns } else { worker.wake_up() };
    let outcome = relay::both_ways(worker, client, &mut connection, exchange, terms).await;
    exchange.upstream.ended_ns = worker.now_ns();
    match outcome.map_err(|stop| (stop, reused))? {
        RelayOutcome::Complete { client_reusable, upstream_reusable } => {
            if upstream_reusable {
                connection.keep(exchange.upstream.ended_ns);
            }
            Ok(if client_reusable { After::KeepAlive } else { After::Close })
        }
        RelayOutcome::Tunnel => Ok(Box::pin(tunnel::run(worker, client, connection, exchange)).await),
    }
}

/// The same where the endpoint is spoken to in HTTP/2: in a stream of a connection that others use as well.
async fn attempt_in_stream(
    terms: &RelayTerms<'_>,
    permit: Permit<'_>,
    freshness: Freshness,
    client: &mut impl ClientSide,
    exchange: &mut Exchange,
) -> Result<After, (Stop, bool)> {
    let worker = permit.worker();
    let opening = permit.open_stream(freshness, terms.timeouts, terms.clients.limits.head_bytes, exchange);
    let opened = unless_left(opening, |context| client.poll_leave(context)).await;
    let mut stream = opened.map_err(|stop| (stop, false))?;
    let reused = stream.is_reused();
    exchange.upstream.connect_ns = if reused { exchange.upstream.started_ns } else { worker.wake_up() };
    let outcome = relay::both_ways(worker, client, &mut stream, exchange, terms).await;
    exchange.upstream.ended_ns = worker.now_ns();
    match outcome.map_err(|stop| (stop, reused))? {
        RelayOutcome::Complete { client_reusable: true, .. } => Ok(After::KeepAlive),
        RelayOutcome::Complete { .. } => Ok(After::Close),
        RelayOutcome::Tunnel => Err((Stop::BadInterim, reused)),
    }
}
