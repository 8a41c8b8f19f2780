//! Counters of each upstream and endpoint, in separate cells for each worker.
//!
//! The number of series is bounded: the first upstreams and endpoints that are published get cells of their own, up to a limit; all
//! others share the cells of [`OTHER`]. Cells belong to a name and not to a snapshot, so counters survive a reload for as long as any
//! snapshot has the name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::cell::{ByClass, ByWord, Counter, Histogram, HistogramTotals};
use crate::routes::OTHER;

/// The cells of one upstream on one worker.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct UpstreamCells {
    /// From the end of sending the request head to the response head.
    duration: Histogram,
}

/// The cells of one endpoint of an upstream on one worker.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct EndpointCells {
    responses: ByClass,
    /// This endpoint's share of the sum of the upstream's histogram.
    duration_ns: Counter,
    connects: Counter,
    /// Further attempts after a failed one at this endpoint.
    retries: Counter,
    /// Allocated at the first failure: most endpoints have none.
    failures: OnceLock<Box<ByWord>>,
}

/// The counters of one upstream on one worker.
#[derive(Debug, Clone)]
pub struct UpstreamCounters {
    upstream: Arc<UpstreamCells>,
    /// By index of the upstream's endpoint; endpoints beyond its end count in `rest`.
    endpoints: Box<[Arc<EndpointCells>]>,
    rest: Arc<EndpointCells>,
}

impl UpstreamCounters {
    fn endpoint(&self, endpoint: usize) -> &EndpointCells {
        self.endpoints.get(endpoint).unwrap_or(&self.rest)
    }

    /// Counts an exchange that got a response, with the time to its head.
    #[inline]
    pub fn answered(&self, endpoint: usize, status: u16, ns: u64) {
        let cells = self.endpoint(endpoint);
        cells.responses.increment(status);
        cells.duration_ns.add(ns);
        self.upstream.duration.record_ns(ns);
    }

    /// Counts an opened connection.
    pub fn connected(&self, endpoint: usize) {
        self.endpoint(endpoint).connects.increment();
    }

    pub fn failed(&self, endpoint: usize, cause: &'static str) {
        self.endpoint(endpoint).failures.get_or_init(Box::default).increment(cause);
    }

    /// Counts a further attempt after a failed one at `endpoint`.
    pub fn retried(&self, endpoint: usize) {
        self.endpoint(endpoint).retries.increment();
    }
}

/// The counters of one endpoint, summed over workers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndpointTotals {
    pub responses: [u64; 6],
    pub duration: Duration,
    pub connects: u64,
    pub retries: u64,
    pub failures: BTreeMap<&'static str, u64>,
}

impl EndpointTotals {
    fn of(workers: &[Arc<EndpointCells>]) -> EndpointTotals {
        let mut totals = EndpointTotals::default();
        for cells in workers {
            totals.responses.iter_mut().zip(cells.responses.values()).for_each(|(total, value)| *total += value);
            totals.duration += Duration::from_nanos(cells.duration_ns.value());
            totals.connects += cells.connects.value();
            totals.retries += cells.retries.value();
            for (cause, count) in cells.failures.get().iter().flat_map(|failures| failures.values()) {
                *totals.failures.entry(cause).or_default() += count;
            }
        }
        totals
    }
}

/// The cells of one name, by worker.
type OfWorkers<T> = Box<[Arc<T>]>;
type EndpointKey = (Box<str>, Box<str>);

fn of_workers<T: Default>(workers: usize) -> OfWorkers<T> {
    (0..workers).map(|_| Arc::default()).collect()
}

/// The cells by name. Written when a configuration is published and read by scrapes, never while serving requests.
#[derive(Debug)]
pub struct UpstreamRegistry {
    /// Limit of upstreams with cells of their own, and the same limit of endpoints.
    limit: usize,
    names: Mutex<SeriesNames>,
    /// The shared cells of all names beyond the limit.
    other_upstreams: OfWorkers<UpstreamCells>,
    other_endpoints: OfWorkers<EndpointCells>,
    /// The counters of an upstream beyond the limit, by worker.
    other: Arc<[Arc<UpstreamCounters>]>,
}

#[derive(Debug, Default)]
struct SeriesNames {
    upstreams: BTreeMap<Box<str>, OfWorkers<UpstreamCells>>,
    /// The sum of removed upstreams.
    gone: HistogramTotals,
    endpoints: BTreeMap<EndpointKey, OfWorkers<EndpointCells>>,
}

/// The counts of all upstreams and endpoints with series of their own, and the sum of the others under [`OTHER`].
#[derive(Debug, Default)]
pub struct UpstreamReport {
    pub upstreams: Vec<(Box<str>, HistogramTotals)>,
    pub endpoints: Vec<(EndpointKey, EndpointTotals)>,
}

impl UpstreamRegistry {
    pub fn new(workers: usize, limit: usize) -> UpstreamRegistry {
        let (other_upstreams, other_endpoints) = (of_workers(workers), of_workers::<EndpointCells>(workers));
        let other = |worker: usize| {
            Arc::new(UpstreamCounters {
                upstream: Arc::clone(&other_upstreams[worker]),
                endpoints: Box::default(),
                rest: Arc::clone(&other_endpoints[worker]),
            })
        };
        let other = (0..workers).map(other).collect();
        UpstreamRegistry { limit, names: Mutex::default(), other_upstreams, other_endpoints, other }
    }

    /// The counters of an upstream, one for each worker. Creates cells for new names while the limit allows it.
    pub fn counters<'a>(
        &self,
        upstream: &str,
        endpoints: impl IntoIterator<Item = &'a str>,
    ) -> Arc<[Arc<UpstreamCounters>]> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let names = &mut *names;
        let workers = self.other_upstreams.len();
        if !names.upstreams.contains_key(upstream) {
            if names.upstreams.len() >= self.limit {
                return Arc::clone(&self.other);
            }
            names.upstreams.insert(upstream.into(), of_workers(workers));
        }
        let mut own: Vec<OfWorkers<EndpointCells>> = Vec::new();
        for endpoint in endpoints {
            let key = (upstream.into(), endpoint.into());
            let is_full = names.endpoints.len() >= self.limit;
            let known = names.endpoints.get(&key);
            own.push(match known {
                Some(cells) => cells.clone(),
                None if is_full => self.other_endpoints.clone(),
                None => names.endpoints.entry(key).or_insert(of_workers(workers)).clone(),
            });
        }
        let upstream = &names.upstreams[upstream];
        let counters = |worker: usize| {
            Arc::new(UpstreamCounters {
                upstream: Arc::clone(&upstream[worker]),
                endpoints: own.iter().map(|cells| Arc::clone(&cells[worker])).collect(),
                rest: Arc::clone(&self.other_endpoints[worker]),
            })
        };
        (0..workers).map(counters).collect()
    }

    /// Removes the cells of names that no snapshot uses any more, which makes room for others.
    pub fn forget_unused(&self) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let SeriesNames { upstreams, gone, .. } = &mut *names;
        upstreams.retain(|_, cells| {
            let is_used = cells.iter().any(|cells| Arc::strong_count(cells) > 1);
            if !is_used {
                cells.iter().for_each(|cells| cells.duration.add_to(gone));
            }
            is_used
        });
        names.endpoints.retain(|_, cells| cells.iter().any(|cells| Arc::strong_count(cells) > 1));
    }

    /// The times to the response head, of all upstreams together.
    pub fn all(&self) -> HistogramTotals {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let mut totals = names.gone.clone();
        let workers = names.upstreams.values().chain([&self.other_upstreams]).flatten();
        workers.for_each(|cells| cells.duration.add_to(&mut totals));
        totals
    }

    /// By name.
    pub fn report(&self) -> UpstreamReport {
        let duration = |workers: &OfWorkers<UpstreamCells>| {
            let mut totals = HistogramTotals::default();
            workers.iter().for_each(|cells| cells.duration.add_to(&mut totals));
            totals
        };
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let upstreams = names.upstreams.iter().map(|(name, cells)| (name.clone(), duration(cells)));
        let upstreams = upstreams.chain([(OTHER.into(), duration(&self.other_upstreams))]);
        let endpoints = names.endpoints.iter().map(|(key, cells)| (key.clone(), EndpointTotals::of(cells)));
        let others = ((OTHER.into(), OTHER.into()), EndpointTotals::of(&self.other_endpoints));
        UpstreamReport {
            upstreams: upstreams.filter(|(_, totals)| totals.count() > 0).collect(),
            endpoints: endpoints.chain([others]).filter(|(_, totals)| *totals != EndpointTotals::default()).collect(),
        }
    }

    /// Whether the limit of upstreams, and that of endpoints, is reached.
    pub fn is_full(&self) -> (bool, bool) {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        (names.upstreams.len() >= self.limit, names.endpoints.len() >= self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_live_as_long_as_a_snapshot_has_the_name_and_no_longer() {
        let registry = UpstreamRegistry::new(2, 1);
        let first = registry.counters("a", ["h:1"]);
        first[0].answered(0, 200, 1_000);
        let again = registry.counters("a", ["h:1"]);
        drop(first);
        registry.forget_unused();
        again[1].answered(0, 200, 1_000);
        let report = registry.report();
        assert_eq!((&*report.upstreams[0].0, report.upstreams[0].1.count()), ("a", 2));
        assert_eq!(registry.is_full(), (true, true));
        drop(again);
        registry.forget_unused();
        assert!(registry.report().upstreams.is_empty());
        assert_eq!(registry.all().count(), 2, "the sum over all upstreams never falls");
        registry.counters("b", ["h:1"])[0].answered(0, 500, 1_000);
        assert_eq!(&*registry.report().upstreams[0].0, "b");
    }

    #[test]
    fn upstream_beyond_the_limit_counts_as_other() {
        let registry = UpstreamRegistry::new(1, 1);
        let (first, second) = (registry.counters("a", ["h:1", "h:2"]), registry.counters("b", ["h:3"]));
        first[0].failed(1, "connect_failed");
        second[0].failed(0, "connect_failed");
        second[0].answered(0, 200, 1_000);
        let report = registry.report();
        let ((upstream, endpoint), totals) = &report.endpoints[0];
        assert_eq!((&**upstream, &**endpoint), (OTHER, OTHER));
        assert_eq!((totals.failures["connect_failed"], totals.responses[1]), (2, 1));
        assert_eq!(&*report.upstreams[0].0, OTHER);
    }
}
