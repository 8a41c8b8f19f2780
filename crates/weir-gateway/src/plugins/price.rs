//! Recording what plugins cost.

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use weir_plugin::{EarlyEnd, Exchange, Filter, Flow, MessageFilter, Stop};
use weir_proto::Trailers;
use weir_telemetry::price::PluginPrice;
use weir_telemetry::routes::{RouteCells, RouteSlot};

use super::guard::{guarded, guarded_wait};
use crate::context::WorkerContext;
use crate::context::served_exchange::{PolicyFilter, ServedExchange};
use crate::message::sides::until_client_disconnects;
use crate::snapshot::Link;
use crate::worker::snapshot::WorkerSnapshot;

/// Indices into [`PluginPrice::phases`].
#[derive(Clone, Copy)]
pub(crate) enum PricedPhase {
    Request,
    Response,
    Log,
    RequestContent,
    ResponseContent,
}

/// Records the cost of the plugins of one worker's exchanges. The default records nothing.
#[derive(Clone, Copy, Default)]
pub(crate) struct Pricing<'a> {
    site: Option<(&'a Rc<WorkerContext>, &'a WorkerSnapshot)>,
}

impl<'a> Pricing<'a> {
    pub(super) fn of(worker: &'a Rc<WorkerContext>, current: &'a WorkerSnapshot) -> Pricing<'a> {
        Pricing { site: Some((worker, current)) }
    }

    /// The worker that serves the exchange.
    pub(super) fn worker(self) -> Option<&'a Rc<WorkerContext>> {
        self.site.map(|(worker, _)| worker)
    }

    /// Runs a plugin in a phase, and adds its cost to `price`, if there is one.
    pub(super) fn measure<T>(self, price: Option<&PluginPrice>, phase: PricedPhase, run: impl FnOnce() -> T) -> T {
        note(price, phase);
        self.spend(price, run)
    }

    fn spend<T>(self, price: Option<&PluginPrice>, run: impl FnOnce() -> T) -> T {
        let (Some(price), Some((worker, _))) = (price, self.site) else { return run() };
        let (result, cpu_ns) = worker.meter.of(run);
        price.cpu_ns.add(cpu_ns);
        result
    }

    /// The same for a plugin that waits. The time until it is done, less its processor time, counts as waiting.
    pub(super) async fn attend(
        self,
        price: Option<&PluginPrice>,
        waiting: impl Future<Output = Result<(), Stop>>,
        poll_leave: impl FnMut(&mut Context<'_>) -> Poll<Stop>,
    ) -> Result<(), Stop> {
        let (Some(price), Some((worker, _))) = (price, self.site) else {
            return until_client_disconnects(waiting, poll_leave).await;
        };
        let (began, mut cpu_ns) = (Instant::now(), 0);
        let end = until_client_disconnects(worker.meter.over(&mut cpu_ns, waiting), poll_leave).await;
        price.cpu_ns.add(cpu_ns);
        price.waited_ns.add((began.elapsed().as_nanos() as u64).saturating_sub(cpu_ns));
        end
    }

    pub(super) fn price_if<const OBSERVED: bool>(
        self,
        link: &Link,
        exchange: &ServedExchange,
    ) -> Option<&'a PluginPrice> {
        if OBSERVED { self.price_if_measured(link, exchange) } else { None }
    }

    fn price(self, link: &Link, exchange: &ServedExchange) -> Option<&'a PluginPrice> {
        let (worker, current) = self.site?;
        current.metrics_of(worker, exchange).price.plugin(link.plugin)
    }

    fn price_if_measured(self, link: &Link, exchange: &ServedExchange) -> Option<&'a PluginPrice> {
        if exchange.measured { self.price(link, exchange) } else { None }
    }

    /// Counts that a plugin has ended an exchange. This is rare, so it is counted in all exchanges.
    #[cold]
    pub(super) fn stopped(self, link: &Link, exchange: &mut ServedExchange, stop: Stop) {
        let is_counted = exchange.refused_by() == link.name;
        // A client that leaves while a plugin waits was not refused.
        if stop != Stop::ClientGone {
            exchange.set_refused_by(link.name);
        }
        let has_failed = exchange.take_service_failure();
        if is_counted {
            // A plugin that fails in one phase often fails in the next ones as well.
            return;
        }
        let Some(price) = self.price(link, exchange) else { return };
        match stop {
            _ if has_failed => price.errors.increment(),
            Stop::Internal | Stop::Respond(500) => price.errors.increment(),
            Stop::Answered | Stop::Respond(_) | Stop::BadConnect(_) => price.refusals.increment(),
            _ => {}
        }
    }

    /// Counts how a plugin has ended that may have asked a service: a failure counts also if the request goes on.
    pub(super) fn ended(self, link: &Link, exchange: &mut ServedExchange, end: Result<(), Stop>) -> Result<(), Stop> {
        match end {
            Err(stop) => self.stopped(link, exchange, stop),
            Ok(()) if exchange.take_service_failure() => self.failed(link, exchange),
            Ok(()) => {}
        }
        end
    }

    /// Counts that a service of a plugin has failed.
    pub(super) fn failed(self, link: &Link, exchange: &ServedExchange) {
        if let Some(price) = self.price(link, exchange) {
            price.errors.increment();
        }
    }

    /// Counts that the service of a plugin has refused the request while a responder asked it.
    pub(super) fn refused(self, link: &Link, exchange: &ServedExchange) {
        if let Some(price) = self.price(link, exchange) {
            price.refusals.increment();
        }
    }

    /// The message filter of a plugin for an exchange.
    pub(super) fn policy_filter(
        self,
        link: &Link,
        exchange: &ServedExchange,
        filter: Box<dyn MessageFilter>,
    ) -> PolicyFilter {
        let slot = self.site.map(|(_, current)| current.slot_of(exchange)).unwrap_or_default();
        PolicyFilter { filter, name: link.name, plugin: link.plugin, slot }
    }

    /// Counts that a plugin is asked what it wants of a message's content.
    pub(crate) fn count_content_decision(self, link: &Link, exchange: &ServedExchange, phase: PricedPhase) {
        note(self.price_if_measured(link, exchange), phase);
    }

    /// Runs a plugin's work on content, and adds its cost.
    pub(crate) fn on_content<T>(
        self,
        link: &Link,
        exchange: &mut ServedExchange,
        run: impl FnOnce(&mut Exchange) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        let price = self.price_if_measured(link, exchange);
        let end = self.spend(price, || guarded(|| run(exchange)));
        end.inspect_err(|stop| self.stopped(link, exchange, *stop))
    }

    /// Gives a plugin the whole content of a request; the plugin may wait.
    pub(crate) async fn on_request_body(
        self,
        link: &Link,
        exchange: &mut ServedExchange,
        body: &mut Vec<u8>,
        poll_leave: impl FnMut(&mut Context<'_>) -> Poll<Stop>,
    ) -> Result<(), Stop> {
        let price = self.price_if_measured(link, exchange);
        let end = match self.spend(price, || guarded(|| link.step.on_request_body(exchange, body))) {
            Ok(Flow::Continue) => Ok(()),
            Ok(Flow::Wait(waiting)) => self.attend(price, guarded_wait(waiting), poll_leave).await,
            Err(stop) => Err(stop),
        };
        self.ended(link, exchange, end)
    }

    /// Wraps the filter so that its cost is recorded, if the exchange is measured.
    pub(crate) fn priced(self, link: &Link, exchange: &ServedExchange, filter: Box<dyn Filter>) -> Box<dyn Filter> {
        match self.site {
            Some((worker, current)) if exchange.measured => {
                let (worker, slot) = (Rc::clone(worker), current.slot_of(exchange));
                Box::new(Priced { filter, worker, slot, plugin: link.plugin })
            }
            _ => filter,
        }
    }

    /// Begins to hold content for the plugins.
    pub(crate) fn held_time(self, links: &[&Link], exchange: &ServedExchange) -> HeldTime<'a> {
        let worker = self.worker();
        HeldTime {
            worker,
            prices: links.iter().filter_map(|link| self.price(link, exchange)).collect(),
            since_ns: worker.map_or(0, |worker| worker.now_ns()),
        }
    }

    /// Counts `bytes` more of held content for each plugin, in all exchanges: holding content costs far more than counting
    /// it.
    pub(crate) fn hold(self, links: &[&Link], exchange: &ServedExchange, bytes: usize) {
        for link in links {
            if let Some(price) = self.price(link, exchange) {
                price.held_bytes.add(bytes as u64);
            }
        }
    }
}

/// Counts the time that content is held for plugins, until it is dropped.
pub(crate) struct HeldTime<'a> {
    worker: Option<&'a Rc<WorkerContext>>,
    prices: Vec<&'a PluginPrice>,
    since_ns: u64,
}

impl Drop for HeldTime<'_> {
    fn drop(&mut self) {
        let Some(worker) = self.worker else { return };
        let held_ns = worker.now_ns().saturating_sub(self.since_ns);
        self.prices.iter().for_each(|price| price.held_ns.add(held_ns));
    }
}

/// Counts one more exchange for a plugin in a phase.
fn note(price: Option<&PluginPrice>, phase: PricedPhase) {
    if let Some(price) = price {
        price.phases[phase as usize].increment();
    }
}

/// A filter that records its cost.
struct Priced {
    filter: Box<dyn Filter>,
    worker: Rc<WorkerContext>,
    slot: RouteSlot,
    plugin: u16,
}

impl Priced {
    fn spend<T>(&mut self, work: impl FnOnce(&mut dyn Filter) -> T) -> T {
        let (result, cpu_ns) = self.worker.meter.of(|| work(&mut *self.filter));
        if let Some(price) = self.worker.metrics.route(self.slot).price.plugin(self.plugin) {
            price.cpu_ns.add(cpu_ns);
        }
        result
    }
}

impl Filter for Priced {
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), Stop> {
        self.spend(|filter| filter.piece(piece, out))
    }

    fn observe(&mut self, piece: &[u8]) -> Result<(), Stop> {
        self.spend(|filter| filter.observe(piece))
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        self.spend(|filter| filter.flush(out))
    }

    fn flush_due_ns(&self) -> u64 {
        self.filter.flush_due_ns()
    }

    fn trailers(&mut self, trailers: &mut Trailers) {
        self.spend(|filter| filter.trailers(trailers));
    }

    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        self.spend(|filter| filter.end(out))
    }

    fn is_over(&self) -> bool {
        self.filter.is_over()
    }

    fn early_end(&self) -> Option<EarlyEnd> {
        self.filter.early_end()
    }

    fn is_observer(&self) -> bool {
        self.filter.is_observer()
    }
}
