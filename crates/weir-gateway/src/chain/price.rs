//! What plugins cost, and where that is written down.

use weir_plugin::{Exchange, Stop};
use weir_telemetry::price::PluginPrice;

use super::Plugins;
use crate::snapshot::Link;

/// Places in [`PluginPrice::phases`].
pub(super) const REQUEST: usize = 0;
pub(super) const RESPONSE: usize = 1;
pub(super) const LOG: usize = 2;

/// Adds what a plugin spent in a phase.
pub(super) fn note(price: &PluginPrice, phase: usize, cpu_ns: u64) {
    price.cpu_ns.add(cpu_ns);
    price.phases[phase].increment();
}

impl<'a> Plugins<'a> {
    /// Runs a plugin, and writes down what that cost where there is a place for it.
    pub(super) fn measure<T>(self, price: Option<&PluginPrice>, phase: usize, run: impl FnOnce() -> T) -> T {
        let (Some(price), Some((worker, _))) = (price, self.site) else { return run() };
        let (result, cpu_ns) = worker.meter.of(run);
        note(price, phase, cpu_ns);
        result
    }

    pub(super) fn price_if<const MEASURED: bool>(self, link: &Link, exchange: &Exchange) -> Option<&'a PluginPrice> {
        if MEASURED { self.price(link, exchange) } else { None }
    }

    pub(super) fn price(self, link: &Link, exchange: &Exchange) -> Option<&'a PluginPrice> {
        let (worker, current) = self.site?;
        current.metrics_of(worker, exchange).price.plugin(link.plugin)
    }

    /// Counts that a plugin has ended an exchange. That is rare enough to be counted always.
    #[cold]
    pub(super) fn stopped(self, link: &Link, exchange: &Exchange, stop: Stop) {
        let Some(price) = self.price(link, exchange) else { return };
        match stop {
            Stop::Internal | Stop::Respond(500) => price.errors.increment(),
            Stop::Answered | Stop::Respond(_) => price.refusals.increment(),
            _ => {}
        }
    }
}
