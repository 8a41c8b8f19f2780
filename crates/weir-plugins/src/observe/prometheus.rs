use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Build, ConfigError, Definition, Exchange, PerWorker, Phases, Plugin, Stage, state};

/// Exports the metrics of Apache APISIX for the requests of a route, by route, service, consumer and endpoint.
///
/// With this plugin, `/metrics` on the status address includes `apisix_http_status`, `apisix_http_latency`
/// (milliseconds), `apisix_bandwidth` (bytes), `apisix_node_info`, and `apisix_upstream_status` for endpoints with
/// active checks. At most 2,000 combinations of labels and status are counted separately; further combinations share
/// the label `(other)`. When the limit is reached, combinations without a request for an hour are removed. Weir's own metrics by route do not need this plugin.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prometheus {
    /// Uses the names of routes and services as labels, instead of their ids. Routes and services without a name keep
    /// their id.
    #[serde(default)]
    prefer_name: bool,
}

impl Definition for Prometheus {
    const NAME: &'static str = "prometheus";
    const PRIORITY: i32 = 500;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "prometheus: { prefer_name: true }";

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        Ok(Arc::new(Observer { prefer_name: self.prefer_name, series: series() }))
    }
}

/// The upper bounds of the latency buckets, in milliseconds.
pub const BOUNDS_MS: [u32; 15] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000];
/// The kinds of latencies: of the whole request, of the upstream, and of the gateway.
pub const KINDS: [&str; 3] = ["request", "upstream", "apisix"];
/// The most combinations of labels and status; further ones are counted under `OTHER`.
const LIMIT: usize = 2000;
const OTHER: &str = "(other)";

/// The labels of a series.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeriesLabels {
    pub route: String,
    pub service: String,
    pub consumer: String,
    pub node: String,
}

/// A histogram of latencies: the count of each bucket, the last one without a bound.
#[derive(Clone, Copy, Debug, Default)]
pub struct BucketHistogram {
    pub buckets: [u64; BOUNDS_MS.len() + 1],
    pub sum_ms: f64,
}

/// The totals of one set of labels.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Responses by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Bytes from and to clients.
    pub ingress: u64,
    pub egress: u64,
    /// One histogram for each of [`KINDS`].
    pub latencies: [BucketHistogram; KINDS.len()],
}

/// The counts of one worker for one set of labels and status. Only this worker writes to them.
#[derive(Debug, Default)]
struct SeriesCounts {
    ingress: AtomicU64,
    egress: AtomicU64,
    buckets: [[AtomicU64; BOUNDS_MS.len() + 1]; KINDS.len()],
    /// Sums in microseconds.
    sums: [AtomicU64; KINDS.len()],
    /// No longer shown; the worker has to begin new counts.
    is_retired: AtomicBool,
}

impl SeriesCounts {
    /// Each response is counted in exactly one bucket.
    fn responses(&self) -> u64 {
        self.buckets[0].iter().map(|bucket| bucket.load(Relaxed)).sum()
    }
}

fn add(number: &AtomicU64, amount: u64) {
    number.store(number.load(Relaxed).wrapping_add(amount), Relaxed);
}

#[derive(Default)]
struct KnownSeries {
    series: HashMap<(SeriesLabels, u16), KnownEntry>,
    /// When idle series were last searched.
    searched: Option<Instant>,
}

/// The counts of all workers for one set of labels and status.
struct KnownEntry {
    counts: Vec<Arc<SeriesCounts>>,
    /// The responses at the last search, and when there was the last change.
    responses: u64,
    changed: Instant,
}

/// A series without a response for this long makes room for others. Names of endpoints change with each rollout.
const IDLE: Duration = Duration::from_secs(3600);
/// The least time between two searches for idle series.
const SEARCH_EVERY: Duration = Duration::from_secs(60);

impl KnownSeries {
    /// Counts of a worker for these labels; `None` if there is no room for them.
    fn register(&mut self, labels: SeriesLabels, status: u16, now: Instant) -> Option<Arc<SeriesCounts>> {
        let key = (labels, status);
        if self.series.len() >= LIMIT && !self.series.contains_key(&key) {
            self.retire_idle(now);
            if self.series.len() >= LIMIT {
                return None;
            }
        }
        Some(self.add(key, now))
    }

    /// Counts of a worker for all labels that there is no room for.
    fn register_other(&mut self, status: u16, now: Instant) -> Arc<SeriesCounts> {
        self.add((SeriesLabels { route: OTHER.to_owned(), ..SeriesLabels::default() }, status), now)
    }

    fn add(&mut self, key: (SeriesLabels, u16), now: Instant) -> Arc<SeriesCounts> {
        let entry =
            self.series.entry(key).or_insert_with(|| KnownEntry { counts: Vec::new(), responses: 0, changed: now });
        let counts = Arc::<SeriesCounts>::default();
        entry.counts.push(Arc::clone(&counts));
        counts
    }

    fn retire_idle(&mut self, now: Instant) {
        if self.searched.is_some_and(|searched| now - searched < SEARCH_EVERY) {
            return;
        }
        self.searched = Some(now);
        self.series.retain(|_, entry| {
            let responses = entry.counts.iter().map(|counts| counts.responses()).sum();
            if responses != entry.responses {
                (entry.responses, entry.changed) = (responses, now);
            }
            let is_kept = now - entry.changed < IDLE;
            if !is_kept {
                entry.counts.iter().for_each(|counts| counts.is_retired.store(true, Relaxed));
            }
            is_kept
        });
    }
}

/// All series of this process, shared by all plugins and configurations.
struct NodeSeries {
    known: Mutex<KnownSeries>,
    own: PerWorker<WorkerCounts>,
}

impl Default for NodeSeries {
    fn default() -> NodeSeries {
        NodeSeries { known: Mutex::default(), own: state::per_worker("prometheus", "", WorkerCounts::default) }
    }
}

fn series() -> Arc<NodeSeries> {
    state::permanent("prometheus")
}

/// The totals since the start, by labels.
pub fn totals() -> BTreeMap<SeriesLabels, Totals> {
    let series = series();
    let known = series.known.lock().unwrap_or_else(PoisonError::into_inner);
    let mut all = BTreeMap::<SeriesLabels, Totals>::new();
    let counts = known.series.iter().flat_map(|(key, entry)| entry.counts.iter().map(move |counts| (key, counts)));
    for ((labels, status), counts) in counts {
        let totals = all.entry(labels.clone()).or_default();
        totals.ingress += counts.ingress.load(Relaxed);
        totals.egress += counts.egress.load(Relaxed);
        *totals.statuses.entry(*status).or_default() += counts.responses();
        for (kind, latency) in totals.latencies.iter_mut().enumerate() {
            for (total, bucket) in latency.buckets.iter_mut().zip(&counts.buckets[kind]) {
                *total += bucket.load(Relaxed);
            }
            latency.sum_ms += counts.sums[kind].load(Relaxed) as f64 / 1e3;
        }
    }
    all
}

/// The counts of one worker.
#[derive(Default)]
struct WorkerCounts {
    /// Identifies the exchange that was counted last: it must be counted once, even if a global rule and a route both
    /// have the plugin.
    last: Cell<(u64, u64, u64)>,
    counts: RefCell<OwnCounts>,
}

#[derive(Default)]
struct OwnCounts {
    /// A buffer for the key of an exchange, so that a known key needs no allocation.
    key: Vec<u8>,
    counts: HashMap<Box<[u8]>, CountedSeries>,
    /// By status, for keys without counts of their own.
    other: HashMap<u16, Arc<SeriesCounts>>,
}

/// The counts of a key.
struct CountedSeries {
    counts: Arc<SeriesCounts>,
    /// When counts of its own are asked for again, by the worker's clock; `None` if it has them.
    asks_again_ns: Option<u64>,
}

impl CountedSeries {
    fn is_usable(&self, now_ns: u64) -> bool {
        !self.counts.is_retired.load(Relaxed) && self.asks_again_ns.is_none_or(|again_ns| now_ns < again_ns)
    }
}

struct Observer {
    prefer_name: bool,
    series: Arc<NodeSeries>,
}

impl Observer {
    fn labels<'a>(&self, exchange: &'a Exchange) -> [&'a str; 3] {
        let route = exchange.route.as_deref();
        let preferred = |name: &'a str, id: &'a str| if self.prefer_name && !name.is_empty() { name } else { id };
        [
            route.map_or("", |route| preferred(&route.route_name, &route.route_id)),
            route.map_or("", |route| preferred(&route.service_name, &route.service_id)),
            exchange.identity.as_ref().map_or("", |identity| &identity.consumer.username),
        ]
    }
}

impl OwnCounts {
    /// Finds counts for the labels of `key`, in a table that is shared by all workers.
    #[cold]
    fn register(&mut self, series: &NodeSeries, labels: Option<SeriesLabels>, status: u16, now_ns: u64) {
        let mut known = series.known.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let own = labels.and_then(|labels| known.register(labels, status, now));
        let counted = match own {
            Some(counts) => CountedSeries { counts, asks_again_ns: None },
            None => {
                let other = self.other.entry(status).and_modify(|counts| {
                    if counts.is_retired.load(Relaxed) {
                        *counts = known.register_other(status, now);
                    }
                });
                let counts = Arc::clone(other.or_insert_with(|| known.register_other(status, now)));
                CountedSeries { counts, asks_again_ns: Some(now_ns.saturating_add(SEARCH_EVERY.as_nanos() as u64)) }
            }
        };
        self.counts.insert(self.key.as_slice().into(), counted);
    }
}

/// The most keys of one worker; further exchanges are counted under one key.
const MOST_KEYS: usize = 2 * LIMIT;

impl Plugin for Observer {
    fn phases(&self) -> Phases {
        Phases::LOG
    }

    fn on_log(&self, exchange: &Exchange) {
        if exchange.client.is_stream {
            return; // these series are about statuses and latencies of HTTP
        }
        let this = (exchange.client.connection, exchange.client.connection_requests, exchange.started_ns);
        let own = self.series.own.get();
        if own.last.replace(this) == this {
            return;
        }
        let own = &mut *own.counts.borrow_mut();
        let (labels, status, now_ns) = (self.labels(exchange), exchange.response.status, exchange.ended_ns);
        let node = exchange.upstream.addr.map(|addr| addr.ip());
        own.key.clear();
        for label in labels {
            own.key.extend_from_slice(label.as_bytes());
            own.key.push(0);
        }
        // Writing to a `Vec` does not fail.
        let _ = write!(own.key, "{node:?} {status}");
        if let Some(counted) = own.counts.get(&*own.key).filter(|counted| counted.is_usable(now_ns)) {
            return counted.counts.note(exchange);
        }
        let mut labels = Some(labels);
        if own.counts.len() >= MOST_KEYS && !own.counts.contains_key(&*own.key) {
            own.counts.retain(|_, counted| counted.is_usable(now_ns));
            if own.counts.len() >= MOST_KEYS {
                labels = None;
                own.key.clear();
                let _ = write!(own.key, "{status}");
            }
        }
        let labels = labels.map(|[route, service, consumer]| SeriesLabels {
            route: route.to_owned(),
            service: service.to_owned(),
            consumer: consumer.to_owned(),
            node: node.map_or_else(String::new, |node| node.to_string()),
        });
        own.register(&self.series, labels, status, now_ns);
        own.counts[&*own.key].counts.note(exchange);
    }
}

impl SeriesCounts {
    fn note(&self, exchange: &Exchange) {
        add(&self.ingress, exchange.request_bytes);
        add(&self.egress, exchange.response_bytes);
        let (request_ms, upstream_ms) = latencies_ms(exchange);
        let times_ms = [Some(request_ms), upstream_ms, Some(request_ms - upstream_ms.unwrap_or_default())];
        for (kind, time_ms) in times_ms.into_iter().enumerate() {
            let Some(time_ms) = time_ms else { continue };
            let bucket = BOUNDS_MS.partition_point(|bound| f64::from(*bound) < time_ms);
            add(&self.buckets[kind][bucket], 1);
            add(&self.sums[kind], (time_ms * 1e3) as u64);
        }
    }
}

/// The latency of the exchange, and of the upstream if there was one.
fn latencies_ms(exchange: &Exchange) -> (f64, Option<f64>) {
    let between = |from_ns: u64, to_ns: u64| to_ns.saturating_sub(from_ns) as f64 / 1e6;
    let upstream = &exchange.upstream;
    let asked = upstream.started_ns != 0 && upstream.ended_ns != 0;
    (between(exchange.started_ns, exchange.ended_ns), asked.then(|| between(upstream.started_ns, upstream.ended_ns)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{build, get, refused};

    #[test]
    fn an_exchange_is_counted_once_however_many_rules_want_it() {
        let (route, global) = (build::<Prometheus>(json!({})), build::<Prometheus>(json!({"prefer_name": true})));
        let mut exchange = get("/");
        exchange.response.status = 299;
        (exchange.client.connection, exchange.request_bytes) = (77, 10);
        (exchange.started_ns, exchange.ended_ns) = (1_000_000, 4_000_000);
        route.on_log(&exchange);
        global.on_log(&exchange);
        exchange.client.connection_requests += 1;
        route.on_log(&exchange);
        let all = totals();
        let totals = &all[&SeriesLabels::default()];
        assert_eq!((totals.statuses[&299], totals.ingress), (2, 20));
        assert_eq!((totals.latencies[0].buckets[2], totals.latencies[0].sum_ms), (2, 6.0));
        assert_eq!(totals.latencies[1].buckets.iter().sum::<u64>(), 0, "no upstream was asked");
    }

    #[test]
    fn series_without_traffic_make_room_when_there_are_many() {
        let (mut known, start) = (KnownSeries::default(), Instant::now());
        let labels = |node: usize| SeriesLabels { node: node.to_string(), ..SeriesLabels::default() };
        let counts: Vec<_> = (0..LIMIT).filter_map(|node| known.register(labels(node), 200, start)).collect();
        assert!(known.register(labels(LIMIT), 200, start + IDLE / 2).is_none(), "all others may still be in use");
        add(&counts[7].buckets[0][0], 1);
        assert!(known.register(labels(LIMIT), 200, start + IDLE).is_some());
        assert!(known.series.contains_key(&(labels(7), 200)), "it has changed since the last search");
        assert_eq!(counts.iter().filter(|counts| counts.is_retired.load(Relaxed)).count(), LIMIT - 1);
    }

    #[test]
    fn a_key_without_room_asks_again() {
        let mut own = OwnCounts { key: b"key".to_vec(), ..OwnCounts::default() };
        let series = NodeSeries::default();
        let labels = |node: usize| SeriesLabels { node: node.to_string(), ..SeriesLabels::default() };
        {
            let mut known = series.known.lock().expect("no test panics with it");
            (0..LIMIT).for_each(|node| drop(known.register(labels(node), 200, Instant::now())));
        }
        let mut ask = |now_ns: u64| {
            own.register(&series, Some(labels(LIMIT)), 200, now_ns);
            let counted = &own.counts[&b"key"[..]];
            let first = counted.is_usable(now_ns) && counted.is_usable(now_ns + 59_000_000_000);
            (first, counted.is_usable(now_ns + 60_000_000_000), Arc::as_ptr(&counted.counts))
        };
        let (first, second) = (ask(1), ask(60_000_000_001));
        assert_eq!((first.0, first.1), (true, false), "it is counted with others for a minute");
        assert_eq!(first, second, "by the same counts as before");
        let mut known = series.known.lock().expect("no test panics with it");
        (0..2).for_each(|node| drop(known.series.remove(&(labels(node), 200))));
        drop(known);
        assert!(ask(120_000_000_001).1, "there is room for it now");
    }

    #[test]
    fn wrong_options_are_refused() {
        assert!(
            refused::<Prometheus>(json!({"prefer_name": 1}))
                .starts_with("prefer_name: expected true or false, found the number 1")
        );
    }
}
