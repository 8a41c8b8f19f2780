//! The cost of plugins, by route: cells workers write for the exchanges they measure, and their sums.
//!
//! A plugin is identified by its number in the registry.

use std::sync::OnceLock;

use crate::cell::Counter;

/// Limit of plugins measured; those with higher numbers are not.
pub const PLUGINS: usize = 128;
/// Phases of an exchange in which a plugin can use CPU time.
pub const PHASES: usize = 5;

/// One worker's cells for a route.
#[derive(Debug, Default)]
pub struct RoutePrice {
    /// Exchanges measured, and the CPU time they took, including plugins.
    pub sampled: Counter,
    pub cpu_ns: Counter,
    /// Allocated when the first plugin is measured: most routes are never used on most workers.
    plugins: OnceLock<Box<[PluginPrice]>>,
}

/// One worker's cells for a plugin on a route.
#[derive(Debug, Default)]
pub struct PluginPrice {
    /// Of the exchanges measured: the number in which each phase ran (request, response, log, content of requests, content of
    /// responses), the CPU time of the plugin, and the time it waited for something else.
    pub phases: [Counter; PHASES],
    pub cpu_ns: Counter,
    pub waited_ns: Counter,
    /// Of all exchanges: those the plugin answered itself, and those in which it failed.
    pub refusals: Counter,
    pub errors: Counter,
    /// Bytes of content the gateway held for the plugin, in all exchanges.
    pub held_bytes: Counter,
    /// How long such content was held, summed over the exchanges.
    pub held_ns: Counter,
}

impl RoutePrice {
    pub fn plugin(&self, number: u16) -> Option<&PluginPrice> {
        let cells = self.plugins.get_or_init(|| (0..PLUGINS).map(|_| PluginPrice::default()).collect());
        cells.get(usize::from(number))
    }
}

/// Measurements of a route, summed over workers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoutePriceTotals {
    pub sampled: u64,
    pub cpu_ns: u64,
    /// By the plugin's number; empty if nothing was measured.
    plugins: Vec<PluginTotals>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PluginTotals {
    phases: [u64; PHASES],
    pub cpu_ns: u64,
    pub waited_ns: u64,
    pub refusals: u64,
    pub errors: u64,
    pub held_bytes: u64,
    pub held_ns: u64,
}

impl PluginTotals {
    /// The number of measured exchanges that involved the plugin: the maximum of the phases. Another plugin that answers early
    /// skips this one's request phase, but not its response phase.
    pub fn calls(&self) -> u64 {
        self.phases.into_iter().max().unwrap_or_default()
    }

    /// Applies `change` to each number and its counterpart in `other`.
    fn each(&mut self, other: PluginTotals, change: impl Fn(u64, u64) -> u64) {
        let PluginTotals { phases, cpu_ns, waited_ns, refusals, errors, held_bytes, held_ns } = self;
        *phases = std::array::from_fn(|phase| change(phases[phase], other.phases[phase]));
        *cpu_ns = change(*cpu_ns, other.cpu_ns);
        *waited_ns = change(*waited_ns, other.waited_ns);
        *refusals = change(*refusals, other.refusals);
        *errors = change(*errors, other.errors);
        *held_bytes = change(*held_bytes, other.held_bytes);
        *held_ns = change(*held_ns, other.held_ns);
    }
}

impl RoutePriceTotals {
    pub(crate) fn add(&mut self, cells: &RoutePrice) {
        self.sampled = self.sampled.wrapping_add(cells.sampled.value());
        self.cpu_ns = self.cpu_ns.wrapping_add(cells.cpu_ns.value());
        let Some(plugins) = cells.plugins.get() else { return };
        self.plugins.resize(PLUGINS, PluginTotals::default());
        for (total, cells) in self.plugins.iter_mut().zip(plugins) {
            let values = PluginTotals {
                phases: std::array::from_fn(|phase| cells.phases[phase].value()),
                cpu_ns: cells.cpu_ns.value(),
                waited_ns: cells.waited_ns.value(),
                refusals: cells.refusals.value(),
                errors: cells.errors.value(),
                held_bytes: cells.held_bytes.value(),
                held_ns: cells.held_ns.value(),
            };
            total.each(values, u64::wrapping_add);
        }
    }

    pub(crate) fn subtract(&mut self, base: &RoutePriceTotals) {
        self.sampled = self.sampled.wrapping_sub(base.sampled);
        self.cpu_ns = self.cpu_ns.wrapping_sub(base.cpu_ns);
        for (total, base) in self.plugins.iter_mut().zip(&base.plugins) {
            total.each(*base, u64::wrapping_sub);
        }
    }

    /// Adds the totals of another route.
    pub fn merge(&mut self, other: &RoutePriceTotals) {
        self.sampled += other.sampled;
        self.cpu_ns += other.cpu_ns;
        self.plugins.resize(self.plugins.len().max(other.plugins.len()), PluginTotals::default());
        for (total, other) in self.plugins.iter_mut().zip(&other.plugins) {
            total.each(*other, u64::wrapping_add);
        }
    }

    /// The plugins with measurements, by number.
    pub fn plugins(&self) -> impl Iterator<Item = (u16, &PluginTotals)> {
        (0..).zip(&self.plugins).filter(|(_, totals)| **totals != PluginTotals::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_of_workers_add_up_and_start_anew_for_another_route() {
        let workers = [RoutePrice::default(), RoutePrice::default()];
        for cells in &workers {
            cells.sampled.add(2);
            cells.plugin(3).expect("one of so many").cpu_ns.add(100);
        }
        assert!(workers[0].plugin(PLUGINS as u16).is_none());
        let sum = || {
            let mut totals = RoutePriceTotals::default();
            workers.iter().for_each(|cells| totals.add(cells));
            totals
        };
        let before = sum();
        assert_eq!(before.sampled, 4);
        let expected = PluginTotals { cpu_ns: 200, ..PluginTotals::default() };
        assert_eq!(before.plugins().collect::<Vec<_>>(), [(3, &expected)]);
        workers[1].plugin(3).expect("one of so many").phases[1].increment();
        let mut now = sum();
        now.subtract(&before);
        let expected = PluginTotals { phases: [0, 1, 0, 0, 0], ..PluginTotals::default() };
        assert_eq!((now.sampled, now.plugins().collect::<Vec<_>>()), (0, vec![(3, &expected)]));
        assert_eq!(expected.calls(), 1);
        let mut both = before.clone();
        both.merge(&now);
        assert_eq!((both.sampled, both.plugins().count()), (4, 1));
    }
}
