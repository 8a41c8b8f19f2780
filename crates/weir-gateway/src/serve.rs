//! One exchange, from request head to log record. Start reading here.

use std::rc::Rc;
use std::time::Duration;

use weir_plugin::{Exchange, MatchedRoute, Retry, Stop, Taken};
use weir_proto::{Framing, Method};

use crate::balance::Tried;
use crate::certificates::Admission;
use crate::chain::Plugins;
use crate::connection::{After, unless_left};
use crate::content;
use crate::current::{Current, Upstream};
use crate::pool::{Freshness, Place};
use crate::relay::{self, Outcome, Persisting, Terms};
use crate::respond;
use crate::route::Lookup;
use crate::sides::ClientSide;
use crate::snapshot::{self, Route, Target};
use crate::tunnel;
use crate::worker::Worker;

pub async fn serve(client: &mut impl ClientSide, mut exchange: Box<Exchange>) -> After {
    let worker = &client.worker();
    worker.metrics.requests.increment();
    let current = worker.current(); // one configuration for the whole exchange
    if worker.meter.is_due() {
        return Box::pin(measured(worker, &current, client, exchange)).await;
    }
    let end = answer(worker, &current, client, &mut exchange).await;
    let after = respond::finish(worker, &current, client, &mut exchange, end).await; // where a Stop becomes a status
    worker.give_exchange(exchange);
    after
}

/// The same for an exchange that chance has picked, whose price is written down.
async fn measured(
    worker: &Rc<Worker>,
    current: &Rc<Current>,
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
    worker.give_exchange(exchange);
    after
}

/// How an exchange ends well: with what is to become of the client's connection.
type Answered = Result<After, Stop>;

async fn answer(
    worker: &Rc<Worker>,
    current: &Rc<Current>,
    client: &mut impl ClientSide,
    exchange: &mut Exchange,
) -> Answered {
    admit(current, exchange)?;
    let Some(route) = matched(current, exchange) else {
        Plugins::of(worker, current, exchange).on_request(exchange, |context| client.poll_leave(context)).await?;
        return Err(Stop::NoRoute);
    };
    if exchange.request.encoded_separator && !route.encoded_separators {
        return Err(Stop::EncodedSeparator);
    }
    exchange.request.upgrade &= route.upgrades;
    let plugins = Plugins::of(worker, current, exchange);
    plugins.on_request(exchange, |context| client.poll_leave(context)).await?;
    if plugins.see_request_bodies(exchange) {
        Box::pin(content::request(worker, &current.snapshot.clients, plugins, client, exchange)).await?;
    }
    match exchange.diverted.map_or(route.target, |number| Target::Upstream(number as usize)) {
        Target::Upstream(number) => proxy(worker, current, route, current.upstream(number), client, exchange).await,
        Target::Nothing => Err(Stop::NoUpstream),
    }
}

/// What holds for every request, whatever its route.
fn admit(current: &Current, exchange: &mut Exchange) -> Result<(), Stop> {
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
fn matched<'a>(current: &'a Rc<Current>, exchange: &mut Exchange) -> Option<&'a Route> {
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

/// Where a request goes after an attempt that failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// The connection had gone stale in the pool, which says nothing about its endpoint.
    NewConnection,
    /// The connection takes no more streams (RFC 9113 §8.7), which says nothing either.
    WhereThereIsRoom,
    OtherEndpoint,
}

/// Attempts until one succeeds, or no further one is allowed. Never once a byte of a response has left.
async fn proxy(
    worker: &Rc<Worker>,
    current: &Rc<Current>,
    route: &Route,
    (settings, upstream): (&snapshot::Upstream, &Upstream),
    client: &mut impl ClientSide,
    exchange: &mut Exchange,
) -> Answered {
    let first_ns = worker.now_ns();
    let idempotent = exchange.request.method.is_idempotent();
    let mut freshness = if idempotent { Freshness::Any } else { Freshness::Asked };
    let mut tried = Tried::default();
    let mut retries = settings.retries;
    let mut turned_away = false;
    upstream.retries.earn(settings.retry_budget);
    let mut picked = upstream.pick(settings, exchange, tried, first_ns).ok_or(Stop::NoEndpoint)?;
    loop {
        let timeouts = route.timeouts.unwrap_or(settings.timeouts);
        let started_ns = worker.now_ns();
        let (endpoint, place) = match upstream.endpoints[picked].place(worker) {
            Some(place) => (picked, place),
            None => {
                let destination = (settings, upstream);
                Box::pin(wait_for_place(worker, destination, picked, tried, timeouts.connect, client, exchange)).await?
            }
        };
        let terms = Terms {
            plugins: Plugins::of(worker, current, exchange),
            clients: &current.snapshot.clients,
            timeouts,
            pass_host: &settings.pass_host,
            endpoint: &settings.endpoints[endpoint],
            persistence: settings.persistence.as_deref().map(|persistence| Persisting {
                persistence,
                sessions: &upstream.sessions,
                endpoint,
            }),
        };
        let (stop, reused) = match attempt(&terms, started_ns, place, freshness, client, exchange).await {
            Ok(after) => {
                upstream.health[endpoint].answered(exchange.upstream.status, &settings.passive, worker.now_ns());
                return Ok(after);
            }
            Err(failure) => failure,
        };
        let next = match stop {
            Stop::UpstreamClosed if reused => Next::NewConnection,
            Stop::NotProcessed if !turned_away => Next::WhereThereIsRoom,
            _ => Next::OtherEndpoint,
        };
        if next == Next::OtherEndpoint {
            let began_ns = exchange.upstream.started_ns;
            upstream.health[endpoint].failed(stop, &settings.passive, began_ns, worker.now_ns());
        }
        let safe = match stop.ending().retry {
            Retry::Never => false,
            Retry::Unseen => true,
            Retry::Idempotent => idempotent,
        };
        // What was held for a plugin can be sent again.
        let is_lost = exchange.body_taken != Taken::Nothing && exchange.request_body.is_none();
        let late = settings.retry_timeout.is_some_and(|most| worker.now_ns() - first_ns > most.as_nanos() as u64);
        if !safe || exchange.response_begun || is_lost || late {
            return Err(stop);
        }
        picked = endpoint;
        match next {
            Next::NewConnection => freshness = Freshness::New,
            Next::WhereThereIsRoom => turned_away = true,
            Next::OtherEndpoint => {
                tried.add(endpoint);
                retries = retries.checked_sub(1).ok_or(stop)?;
                picked = upstream.pick(settings, exchange, tried, worker.now_ns()).ok_or(stop)?;
            }
        }
        if next != Next::NewConnection && !upstream.retries.spend() {
            worker.metrics.upstream_retries_refused.increment();
            return Err(stop);
        }
        worker.metrics.upstream_retries.increment();
    }
}

/// A place as soon as there is one, and whose it is.
async fn wait_for_place<'w>(
    worker: &'w Rc<Worker>,
    (settings, upstream): (&snapshot::Upstream, &Upstream),
    mut picked: usize,
    tried: Tried,
    patience: Duration,
    client: &mut impl ClientSide,
    exchange: &Exchange,
) -> Result<(usize, Place<'w>), Stop> {
    let since_ns = worker.now_ns();
    loop {
        let waiting = upstream.wait(worker, settings, exchange, (picked, tried), (since_ns, patience));
        if let Some(found) = unless_left(waiting, |context| client.poll_leave(context)).await? {
            return Ok(found);
        }
        picked = upstream.pick(settings, exchange, tried, worker.now_ns()).ok_or(Stop::NoEndpoint)?;
        if let Some(place) = upstream.endpoints[picked].place(worker) {
            return Ok((picked, place));
        }
    }
}

/// One attempt at the endpoint of a place; a failure comes with whether its connection had been used before.
async fn attempt(
    terms: &Terms<'_>,
    started_ns: u64,
    place: Place<'_>,
    freshness: Freshness,
    client: &mut impl ClientSide,
    exchange: &mut Exchange,
) -> Result<After, (Stop, bool)> {
    let (worker, endpoint) = (place.worker(), place.endpoint());
    let attempts = exchange.upstream.attempts + 1;
    exchange.upstream = weir_plugin::Upstream {
        addr: Some(endpoint.addr),
        tls: endpoint.is_secured(),
        attempts,
        started_ns,
        ..Default::default()
    };
    if endpoint.http2 {
        return Box::pin(attempt_in_stream(terms, place, freshness, client, exchange)).await;
    }
    let opening = place.open(freshness, terms.timeouts.connect, exchange);
    let opened = unless_left(opening, |context| client.poll_leave(context)).await;
    let mut connection = opened.map_err(|stop| (stop, false))?;
    let reused = connection.requests > 0;
    exchange.upstream.connect_ns = if reused { started_ns } else { worker.wake_up() };
    let outcome = relay::both_ways(worker, client, &mut connection, exchange, terms).await;
    exchange.upstream.ended_ns = worker.now_ns();
    match outcome.map_err(|stop| (stop, reused))? {
        Outcome::Complete { client_reusable, upstream_reusable } => {
            if upstream_reusable {
                connection.keep(exchange.upstream.ended_ns);
            }
            Ok(if client_reusable { After::KeepAlive } else { After::Close })
        }
        Outcome::Tunnel => Ok(Box::pin(tunnel::run(worker, client, connection, exchange)).await),
    }
}

/// The same where the endpoint is spoken to in HTTP/2: in a stream of a connection that others use as well.
async fn attempt_in_stream(
    terms: &Terms<'_>,
    place: Place<'_>,
    freshness: Freshness,
    client: &mut impl ClientSide,
    exchange: &mut Exchange,
) -> Result<After, (Stop, bool)> {
    let worker = place.worker();
    let opening = place.open_stream(freshness, terms.timeouts.connect, exchange);
    let opened = unless_left(opening, |context| client.poll_leave(context)).await;
    let mut stream = opened.map_err(|stop| (stop, false))?;
    let reused = stream.is_reused();
    exchange.upstream.connect_ns = if reused { exchange.upstream.started_ns } else { worker.wake_up() };
    let outcome = relay::both_ways(worker, client, &mut stream, exchange, terms).await;
    exchange.upstream.ended_ns = worker.now_ns();
    match outcome.map_err(|stop| (stop, reused))? {
        Outcome::Complete { client_reusable: true, .. } => Ok(After::KeepAlive),
        Outcome::Complete { .. } => Ok(After::Close),
        Outcome::Tunnel => Err((Stop::BadInterim, reused)),
    }
}
