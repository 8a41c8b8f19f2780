//! One exchange, from request head to log record. Start reading here.

mod acquire;
mod admission;
mod attempt;
mod inner;
mod retry;
pub(crate) mod stream;
mod subrequest;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Once};
use std::task::Poll;
use std::time::Duration;

use tokio::time::Sleep;
use weir_plugin::{Exchange, MatchedRoute, Responder, Stop, UriParameters};
use weir_proto::Method;

use crate::answer::final_recipient;
use crate::answer::relay::StatusRetryRule;
use crate::answer::responder::ResponderMeans;
use crate::answer::{respond, responder};
use crate::context::frame::boxed;
use crate::context::served_exchange::ServedExchange;
use crate::message::AfterExchange;
use crate::message::forward;
use crate::message::sides::ClientSide;
use crate::plugins::chain::Plugins;
use crate::plugins::{content, messages};
use crate::route::Lookup;
use crate::snapshot::{Route, Target, Timeouts};
use crate::tail;
use crate::worker::Worker;
use crate::worker::snapshot::WorkerSnapshot;
use acquire::PermitRequest;
use admission::admit;
use attempt::{Attempt, AttemptStart};
use retry::Attempts;
use subrequest::Pages;

pub(crate) async fn serve(
    worker: &Rc<Worker>,
    client: &mut impl ClientSide,
    mut exchange: Box<ServedExchange>,
) -> AfterExchange {
    worker.metrics.requests.increment();
    let current = worker.current(); // one configuration for the whole exchange
    let is_measured = worker.meter.is_due();
    if is_measured || tail::is_open() && tail::is_traced(&exchange.request) {
        exchange.measured = is_measured;
        return Box::pin(observed(worker, &current, client, exchange)).await;
    }
    let end = answer(worker, &current, client, &mut exchange).await;
    let pages = Pages { worker, current: &current };
    let after = respond::finish(worker, &current, client, &mut exchange, end, &pages).await; // where a Stop becomes a status
    worker.buffers.recycle_exchange(exchange);
    after
}

/// The same for an exchange that is measured (the meter picked it at random), traced, or both.
async fn observed(
    worker: &Rc<Worker>,
    current: &Rc<WorkerSnapshot>,
    client: &mut impl ClientSide,
    mut exchange: Box<ServedExchange>,
) -> AfterExchange {
    exchange.observed = true;
    if tail::is_open() && tail::is_traced(&exchange.request) {
        exchange.trace();
    }
    let (meter, mut cpu_ns) = (&worker.meter, 0);
    let end = meter.over(&mut cpu_ns, answer(worker, current, client, &mut exchange)).await;
    let pages = Pages { worker, current };
    let finish = respond::finish(worker, current, client, &mut exchange, end, &pages);
    let after = meter.over(&mut cpu_ns, finish).await;
    // Only exchanges picked at random count: a mean over traced requests, which a user chose, would not be representative.
    if exchange.measured {
        let price = &current.metrics_of(worker, &exchange).price;
        meter.learn();
        price.sampled.increment();
        price.cpu_ns.add(cpu_ns);
    }
    worker.buffers.recycle_exchange(exchange);
    after
}

/// The result of an exchange: what to do with the client's connection, or why the exchange ended early.
type ExchangeEnd = Result<AfterExchange, Stop>;

async fn answer(
    worker: &Rc<Worker>,
    current: &Rc<WorkerSnapshot>,
    client: &mut impl ClientSide,
    exchange: &mut ServedExchange,
) -> ExchangeEnd {
    // Long, since each step has its own end, and its last one as a function of its own would cost every exchange a call.
    admit(current, exchange)?;
    let Some(route) = find_route(current, exchange) else {
        Plugins::of(worker, current, exchange).on_request(exchange, |context| client.poll_leave(context)).await?;
        return Err(final_recipient::without_route(exchange));
    };
    if exchange.request.encoded_separator && !route.encoded_separators {
        return Err(Stop::EncodedSeparator);
    }
    if exchange.request.has_empty_segments() && route.merge_slashes {
        exchange.request.merge_slashes();
    }
    if exchange.request.upgrade && !route.upgrades {
        leave_out_upgrade(exchange)?;
    }
    let plugins = Plugins::of(worker, current, exchange);
    if plugins.see_requests() {
        plugins.on_request(exchange, |context| client.poll_leave(context)).await?;
        if route.merge_slashes {
            exchange.request.merge_slashes();
        }
    }
    final_recipient::count_hop(exchange)?;
    if let Some(via) = &current.snapshot.clients.via {
        let version = exchange.request.version;
        forward::add_via(&mut exchange.request.head, version, via);
    }
    if plugins.see_request_bodies(exchange) {
        Box::pin(content::request(worker, &current.snapshot.clients, plugins, client, exchange)).await?;
    }
    if exchange.request.upgrade && plugins.see_messages(exchange) {
        messages::prepare(plugins, exchange)?;
    }
    let diverted = exchange.diverted_to().map(|number| Target::Upstream(number as usize));
    let target = diverted.as_ref().unwrap_or(&route.target);
    let has_made_content = |exchange: &ServedExchange| exchange.request_body().is_some();
    let responder = exchange.responder().filter(|it| it.takes_made_content() || !has_made_content(exchange));
    if let Some(responder) = responder.map(Arc::clone) {
        return Box::pin(answer_by_plugin(worker, current, (route, target), &responder, client, exchange)).await;
    }
    match target {
        Target::Upstream(number) => {
            let mut timer = time_limit(route, exchange).map(|most| timer(worker, exchange, most));
            let end = {
                let mut served = pin!(proxy(worker, current, route.timeouts.as_ref(), *number, client, exchange));
                // Polled at one place, so that an exchange without a timer pays a branch and no call. At the end of its time it is
                // dropped: that closes its connection to the endpoint, or resets its stream.
                poll_fn(|context| match (served.as_mut().poll(context), &mut timer) {
                    (Poll::Ready(end), _) => Poll::Ready(Some(end)),
                    (Poll::Pending, None) => Poll::Pending,
                    (Poll::Pending, Some(timer)) => timer.as_mut().poll(context).map(|()| None),
                })
                .await
            };
            end.unwrap_or_else(|| Err(out_of_time(worker, exchange)))
        }
        Target::Responder(responder) => {
            let means = ResponderMeans::default();
            Box::pin(responder::answer(worker, current, route, (responder, means), client, exchange)).await
        }
        Target::Nothing => Err(Stop::NoUpstream),
    }
}

/// A plugin has set a responder, which answers in place of the target. Where this is an upstream, the limits of the exchange are those
/// that it would have without the responder.
async fn answer_by_plugin(
    worker: &Rc<Worker>,
    current: &Rc<WorkerSnapshot>,
    (route, target): (&Route, &Target),
    responder: &Arc<dyn Responder>,
    client: &mut impl ClientSide,
    exchange: &mut ServedExchange,
) -> ExchangeEnd {
    if exchange.responders_collide() {
        static LOGGED: Once = Once::new();
        let route = &route.facts.route_id;
        LOGGED.call_once(|| {
            tracing::error!(
                "route {route}: two plugins answer in place of the upstream, and one of them may not be left out"
            );
        });
        return Err(Stop::Internal);
    }
    let means = ResponderMeans {
        upstream: subrequest::upstream(worker, current, exchange, target),
        gateway: responder.asks_gateway().then(|| inner::gateway(worker, exchange)).flatten(),
    };
    let most = time_limit(route, exchange).filter(|_| means.upstream.is_some());
    let Some(mut timer) = most.map(|most| timer(worker, exchange, most)) else {
        return responder::answer(worker, current, route, (responder, means), client, exchange).await;
    };
    let answered = tokio::select! {
        end = responder::answer(worker, current, route, (responder, means), client, exchange) => Some(end),
        () = &mut timer => None,
    };
    answered.unwrap_or_else(|| Err(out_of_time(worker, exchange)))
}

/// The time for a whole exchange, if it is limited.
fn time_limit(route: &Route, exchange: &Exchange) -> Option<Duration> {
    match exchange.time_limit() {
        None => route.request_timeout,
        Some(most) => Some(route.request_timeout.map_or(most, |of_route| of_route.min(most))),
    }
}

#[cold]
fn out_of_time(worker: &Rc<Worker>, exchange: &mut Exchange) -> Stop {
    (exchange.upstream.ended_ns, exchange.upstream.failure) = (worker.now_ns(), Some(Stop::RequestTimeout));
    Stop::RequestTimeout
}

/// What is left of the time for a whole exchange.
#[cold]
fn timer(worker: &Rc<Worker>, exchange: &ServedExchange, most: Duration) -> Pin<Box<Sleep>> {
    let spent = Duration::from_nanos(worker.now_ns().saturating_sub(exchange.started_ns));
    Box::pin(tokio::time::sleep(most.saturating_sub(spent)))
}

/// The route allows no upgrades: the request is served as one that asks for none. The request of an HTTP/2 client cannot be, since
/// any 2xx would mean to it that its WebSocket is established (RFC 8441 §5); 501 is the answer of RFC 9220 §3.
#[cold]
fn leave_out_upgrade(exchange: &mut Exchange) -> Result<(), Stop> {
    exchange.request.upgrade = false;
    match exchange.request.client_method() {
        Method::Connect => Err(Stop::Respond(501)),
        _ => Ok(()),
    }
}

/// Finds the route, and stores it in the exchange.
fn find_route<'a>(current: &'a Rc<WorkerSnapshot>, exchange: &mut Exchange) -> Option<&'a Route> {
    let snapshot = &current.snapshot;
    let mut listener = None;
    if !snapshot.listeners.is_empty() {
        let found = snapshot.listeners.find(exchange.client.local, exchange.request.host())?;
        if found.public_port != 0 {
            exchange.client.public_port = found.public_port;
        }
        listener = found.id.as_deref();
    }
    let request = &exchange.request;
    let number = snapshot.table.find(&Lookup {
        host: request.host(),
        path: request.path(),
        method: request.method,
        listener,
        remote_addr: exchange.client.addr,
        variables: exchange,
    })?;
    exchange.route = Some(MatchedRoute::new(Rc::clone(current) as Rc<_>, number as usize));
    let route: &Route = &current.snapshot.routes[number as usize];
    if !route.facts.templates.is_empty() {
        exchange.uri_parameters = UriParameters::of(&route.facts.templates, exchange.request.path()).map(Box::new);
    }
    Some(route)
}

/// An attempt is not begun if the deadline of the call (gRPC) is at most this far away.
const NO_TIME_NS: u64 = 10_000;

/// Makes attempts until one succeeds, or no further one is allowed. None is made once part of a response has been sent.
async fn proxy(
    worker: &Rc<Worker>,
    current: &Rc<WorkerSnapshot>,
    timeouts: Option<&Timeouts>,
    upstream: usize,
    client: &mut impl ClientSide,
    exchange: &mut ServedExchange,
) -> ExchangeEnd {
    let upstream = current.upstream(upstream);
    let mut attempts = Attempts::new(exchange, upstream.settings, worker.now_ns());
    upstream.state.retries.earn(upstream.settings.retry_budget);
    let picked = upstream.pick(exchange, attempts.tried, attempts.first_ns);
    let mut picked = picked.ok_or(Stop::NoEndpoint)?;
    loop {
        let timeouts = timeouts.unwrap_or(&upstream.settings.timeouts);
        let asked_ns = worker.now_ns();
        let (endpoint, permit, start) = match upstream.state.endpoints[picked].try_permit(worker) {
            Some(permit) => (picked, permit, AttemptStart::at(asked_ns)),
            None => {
                let patience = timeouts.connect;
                let request = PermitRequest { upstream, picked, tried: attempts.tried, patience };
                let (endpoint, permit) = boxed(|| request.wait(worker, client, exchange)).await?;
                (endpoint, permit, AttemptStart::queued_since(asked_ns, worker.now_ns()))
            }
        };
        if client.call_deadline_ns() <= worker.now_ns() + NO_TIME_NS {
            return Err(Stop::CallTimeout);
        }
        // Boxed, so that an exchange that waits for its permit does not hold the state of a relay.
        let status_retry = attempts.status_retry(upstream, endpoint);
        let status_retry = status_retry.as_ref().map(|retry| retry as &dyn StatusRetryRule);
        let attempt = Attempt { current, upstream, endpoint, timeouts, start, status_retry };
        match boxed(|| attempt.run(permit, attempts.freshness, client, exchange)).await {
            Ok(after) => {
                attempts.connected(upstream, start.at_ns);
                return Ok(after);
            }
            Err(failure) => picked = attempts.next(worker, upstream, exchange, endpoint, failure)?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::h1::H1Client;

    fn bytes_of<'a, F: Future>(_: impl FnOnce(&'a Rc<Worker>, &'a mut H1Client, &'a mut ServedExchange) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_request_that_waits_for_a_permit_takes_at_most_two_kilobytes() {
        let serving = bytes_of(|worker, client, _| serve(worker, client, Box::default()));
        let request = |_: &ServedExchange| -> PermitRequest<'static> { unreachable!("only its type is asked for") };
        let waiting = bytes_of(|worker, client, exchange| request(exchange).wait(worker, client, exchange));
        let exchange = size_of::<ServedExchange>();
        let sum = serving + waiting + exchange;
        // The bytes of the request head come on top.
        assert!(sum <= 2048, "{serving} + {waiting} + {exchange}");
    }
}
