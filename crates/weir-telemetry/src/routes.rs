//! Assigns metrics cells to routes.
//!
//! The number of series is bounded: the first routes of the configuration have cells of their own, all others share one slot. A
//! slot belongs to a route's id and not to a snapshot, so its counters survive a change of the configuration.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::cell::{ByClass, Counter, Histogram, HistogramTotals};
use crate::exemplar::{BucketExemplars, Exemplars};
use crate::price::{RoutePrice, RoutePriceTotals};

/// The default limit of routes with their own series, and of upstreams, and of endpoints. At some 18 series each, the routes stay
/// below 10,000, a common sample limit in Prometheus.
pub const LIMIT: usize = 500;
/// The label of the slot shared by all routes above the limit and by exchanges without a route. It cannot be a route's id, since
/// ids contain no parentheses.
pub const OTHER: &str = "(other)";

/// The cells of one route on one worker.
#[derive(Debug, Default)]
pub struct RouteMetrics {
    pub responses: ByClass,
    pub duration: Histogram,
    /// Of `duration`.
    pub exemplars: Exemplars,
    pub bytes_received: Counter,
    pub bytes_sent: Counter,
    /// Streams without HTTP that have begun, and ended.
    pub streams_opened: Counter,
    pub streams_closed: Counter,
    pub price: RoutePrice,
}

/// The index of a route's cells. The default is the shared slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RouteSlot(pub(crate) u16);

/// Owns the cells of one worker's routes.
pub trait RouteCells {
    fn route(&self, slot: RouteSlot) -> &RouteMetrics;
}

/// Counts of one route, summed over workers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RouteTotals {
    /// The number of the route's slot, which it keeps while it is configured; 0 is the shared slot.
    pub slot: u16,
    pub responses: [u64; 6],
    pub duration: HistogramTotals,
    /// Of `duration`.
    pub exemplars: BucketExemplars,
    pub bytes_received: u64,
    pub bytes_sent: u64,
    pub streams_opened: u64,
    pub streams_closed: u64,
    pub price: RoutePriceTotals,
}

impl RouteTotals {
    /// The exemplars are those since a time in milliseconds since 1970.
    fn read(workers: &[Arc<impl RouteCells>], slot: RouteSlot, since_unix_ms: u64) -> Self {
        let mut totals = Self::default();
        for worker in workers {
            let cells = worker.route(slot);
            for (total, value) in totals.responses.iter_mut().zip(cells.responses.values()) {
                *total = total.wrapping_add(value);
            }
            cells.duration.add_to(&mut totals.duration);
            cells.exemplars.add_to(&mut totals.exemplars, since_unix_ms);
            totals.bytes_received = totals.bytes_received.wrapping_add(cells.bytes_received.value());
            totals.bytes_sent = totals.bytes_sent.wrapping_add(cells.bytes_sent.value());
            // In this order, one that ends in between cannot make the difference negative.
            totals.streams_closed = totals.streams_closed.wrapping_add(cells.streams_closed.value());
            totals.streams_opened = totals.streams_opened.wrapping_add(cells.streams_opened.value());
            totals.price.add(&cells.price);
        }
        totals
    }

    fn subtract(&mut self, base: &Self) {
        for (value, base) in self.responses.iter_mut().zip(base.responses) {
            *value = value.wrapping_sub(base);
        }
        for (value, base) in self.duration.buckets.iter_mut().zip(base.duration.buckets) {
            *value = value.wrapping_sub(base);
        }
        self.duration.sum_ns = self.duration.sum_ns.wrapping_sub(base.duration.sum_ns);
        self.bytes_received = self.bytes_received.wrapping_sub(base.bytes_received);
        self.bytes_sent = self.bytes_sent.wrapping_sub(base.bytes_sent);
        self.streams_opened = self.streams_opened.wrapping_sub(base.streams_opened);
        self.streams_closed = self.streams_closed.wrapping_sub(base.streams_closed);
        self.price.subtract(&base.price);
    }

    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Debug)]
struct SlotOwner {
    id: String,
    /// Whether the last published configuration contains this route.
    configured: bool,
    /// The counts of previous owners of the slot, to be subtracted. Cells cannot be reset, since only their worker may write
    /// them.
    base: RouteTotals,
    /// When the slot was assigned to this route, in milliseconds since 1970: earlier exemplars belong to previous owners.
    since_unix_ms: u64,
}

/// The owners of the slots. Written when a configuration is published and read by scrapes, never while serving requests.
#[derive(Debug)]
pub struct RouteSlots {
    /// Routes with a slot of their own.
    limit: usize,
    owners: Mutex<Owners>,
}

#[derive(Debug, Default)]
struct Owners {
    /// `owners[n]` owns slot `n + 1`.
    owners: Vec<SlotOwner>,
    by_id: HashMap<String, u16>,
}

impl RouteSlots {
    pub fn new(limit: usize) -> RouteSlots {
        RouteSlots { limit, owners: Mutex::default() }
    }

    /// Assigns a slot to each route of a configuration, in the given order. Ids keep their slots; once all slots are taken,
    /// those of routes that are no longer configured are reassigned, and remaining routes count as [`OTHER`].
    pub fn assign<'a>(
        &self,
        workers: &[Arc<impl RouteCells>],
        ids: impl IntoIterator<Item = &'a str>,
    ) -> Vec<RouteSlot> {
        let ids: Vec<&str> = ids.into_iter().collect();
        let wanted: HashSet<&str> = ids.iter().take(self.limit).copied().collect();
        let mut table = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let table = &mut *table;

        let mut free = Vec::new();
        for (place, owner) in table.owners.iter_mut().enumerate() {
            owner.configured = wanted.contains(owner.id.as_str());
            if !owner.configured {
                free.push(place);
            }
        }
        free.reverse();

        ids.iter()
            .map(|&id| {
                if !wanted.contains(id) {
                    return RouteSlot::default();
                }
                if let Some(&slot) = table.by_id.get(id) {
                    return RouteSlot(slot);
                }
                let place = if table.owners.len() < self.limit {
                    let base = RouteTotals::default();
                    table.owners.push(SlotOwner { id: id.to_owned(), configured: true, base, since_unix_ms: 0 });
                    table.owners.len() - 1
                } else if let Some(place) = free.pop() {
                    let base = RouteTotals::read(workers, RouteSlot(place as u16 + 1), u64::MAX);
                    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                    let since_unix_ms = since.as_millis() as u64;
                    let new = SlotOwner { id: id.to_owned(), configured: true, base, since_unix_ms };
                    let old = std::mem::replace(&mut table.owners[place], new);
                    table.by_id.remove(&old.id);
                    place
                } else {
                    return RouteSlot::default();
                };
                let slot = place as u16 + 1;
                table.by_id.insert(id.to_owned(), slot);
                RouteSlot(slot)
            })
            .collect()
    }

    /// The counts of every configured route with traffic, and of the shared slot under the name [`OTHER`].
    pub fn totals(&self, workers: &[Arc<impl RouteCells>]) -> Vec<(String, RouteTotals)> {
        let table = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Vec::new();
        for (place, owner) in table.owners.iter().enumerate().filter(|(_, owner)| owner.configured) {
            let mut totals = RouteTotals::read(workers, RouteSlot(place as u16 + 1), owner.since_unix_ms);
            totals.subtract(&owner.base);
            if !totals.is_zero() {
                totals.slot = place as u16 + 1;
                all.push((owner.id.clone(), totals));
            }
        }
        let other = RouteTotals::read(workers, RouteSlot::default(), 0);
        if !other.is_zero() {
            all.push((OTHER.to_owned(), other));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exemplar::SampledTrace;
    use crate::metrics::Metrics;

    fn names(count: usize, prefix: &str) -> Vec<String> {
        (0..count).map(|number| format!("{prefix}{number}")).collect()
    }

    fn assign(metrics: &Metrics, ids: &[String]) -> Vec<RouteSlot> {
        metrics.routes.assign(metrics.workers(), ids.iter().map(String::as_str))
    }

    #[test]
    fn a_route_keeps_its_counts_when_the_configuration_is_replaced() {
        let metrics = Metrics::new(2);
        let before = assign(&metrics, &names(2, "r"));
        metrics.worker(0).route(before[1]).responses.increment(200);
        let after = assign(&metrics, &["new".into(), "r1".into()]);
        metrics.worker(1).route(after[1]).responses.increment(200);
        assert_eq!(before[1], after[1]);
        let totals = metrics.routes.totals(metrics.workers());
        assert_eq!(totals.len(), 1, "r0 is gone and `new` was never asked for");
        assert_eq!(totals[0].0, "r1");
        assert_eq!(totals[0].1.responses, [0, 2, 0, 0, 0, 0]);
    }

    #[test]
    fn routes_above_the_limit_count_as_other() {
        let metrics = Metrics::new(1);
        let slots = assign(&metrics, &names(LIMIT + 2, "r"));
        assert_ne!(slots[LIMIT - 1], RouteSlot::default());
        assert_eq!(slots[LIMIT..], [RouteSlot::default(); 2]);
        metrics.worker(0).route(slots[LIMIT]).bytes_sent.add(7);
        let totals = metrics.routes.totals(metrics.workers());
        assert_eq!((totals[0].0.as_str(), totals[0].1.bytes_sent), (OTHER, 7));
    }

    #[test]
    fn the_slot_of_a_route_that_is_gone_starts_again_from_nothing() {
        let metrics = Metrics::new(1);
        let old = assign(&metrics, &names(LIMIT, "old"));
        for slot in &old {
            metrics.worker(0).route(*slot).responses.increment(500);
            metrics.worker(0).route(*slot).exemplars.record(1, SampledTrace { trace: 1, span: 1 }, 1);
        }
        let new = assign(&metrics, &names(3, "new"));
        assert!(new.iter().all(|slot| old.contains(slot)), "no slot is left but those of routes that are gone");
        metrics.worker(0).route(new[2]).responses.increment(200);
        let totals = metrics.routes.totals(metrics.workers());
        assert_eq!(totals.len(), 1);
        assert_eq!(totals[0].0, "new2");
        assert_eq!(totals[0].1.responses, [0, 1, 0, 0, 0, 0]);
        assert_eq!(totals[0].1.exemplars, BucketExemplars::default());
    }
}
