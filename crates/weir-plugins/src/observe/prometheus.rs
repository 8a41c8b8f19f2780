use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Build, ConfigError, Definition, Exchange, HasMetadata, PerWorker, Phases, Plugin, Stage, state};

mod labels;

use labels::{LabelledMetric, PrometheusMetadata};
use labels::{RecordedLabels, SeriesLabels, ShownLabels};

/// Exports the metrics of Apache APISIX for the requests of a route, by route, service, consumer and endpoint.
///
/// With this plugin, `/metrics` on the status address includes `apisix_http_status`, `apisix_http_latency`
/// (milliseconds), `apisix_bandwidth` (bytes), `apisix_node_info`, and `apisix_upstream_status` for endpoints with
/// active checks. The labels are those of APISIX. `matched_uri` and `matched_host` are the patterns of the route that fit the
/// request, `response_source` is `upstream` or `apisix`, which stands for the gateway, and `request_type` is always
/// `traditional_http`. The plugin's metadata can leave labels out and add others. At most 2,000 combinations of labels and status are counted separately; further combinations share
/// the label `(other)`. When the limit is reached, combinations without a request for an hour are removed. Weir's own metrics by route do not need this plugin.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Prometheus {
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

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let labels = build.metadata::<Prometheus>().compile(self.prefer_name, build)?;
        Ok(Arc::new(Observer { labels, series: series() }))
    }
}

impl HasMetadata for Prometheus {
    type Metadata = PrometheusMetadata;
}

/// The upper bounds of the latency buckets, in milliseconds.
pub const BOUNDS_MS: [u32; 15] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000];
/// The kinds of latencies: of the whole request, of the upstream, and of the gateway.
pub const KINDS: [&str; 3] = ["request", "upstream", "apisix"];
/// The most combinations of labels and status; further ones are counted under `OTHER`.
const LIMIT: usize = 2000;

/// A histogram of latencies: the count of each bucket, the last one without a bound.
#[derive(Clone, Copy, Debug, Default)]
pub struct BucketHistogram {
    pub buckets: [u64; BOUNDS_MS.len() + 1],
    pub sum_ms: f64,
}

/// The labels of a metric that it shows for a series.
type MetricLabels = Vec<(&'static str, String)>;

/// The totals of all series, by the labels that each metric shows.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Responses by status.
    pub statuses: BTreeMap<(MetricLabels, u16), u64>,
    /// Bytes from clients and to them.
    pub bandwidth: BTreeMap<MetricLabels, [u64; 2]>,
    /// One histogram for each of [`KINDS`].
    pub latencies: BTreeMap<MetricLabels, [BucketHistogram; KINDS.len()]>,
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
        self.add((SeriesLabels::other(), status), now)
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
    /// Of the configuration in use.
    shown: Mutex<ShownLabels>,
    own: PerWorker<WorkerCounts>,
}

impl Default for NodeSeries {
    fn default() -> NodeSeries {
        let shown = Mutex::default();
        NodeSeries { known: Mutex::default(), shown, own: state::per_worker("prometheus", "", WorkerCounts::default) }
    }
}

fn series() -> Arc<NodeSeries> {
    state::permanent("prometheus")
}

/// The totals since the start. `None` if nothing has been counted.
pub fn totals() -> Option<Totals> {
    let series = series();
    let shown = series.shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let known = series.known.lock().unwrap_or_else(PoisonError::into_inner);
    let mut all = Totals::default();
    let counts = known.series.iter().flat_map(|(key, entry)| entry.counts.iter().map(move |counts| (key, counts)));
    for ((labels, status), counts) in counts {
        let of = |metric| {
            let labels = shown.of(metric, labels).into_iter();
            labels.map(|(name, value)| (name, value.to_owned())).collect::<MetricLabels>()
        };
        *all.statuses.entry((of(LabelledMetric::HttpStatus), *status)).or_default() += counts.responses();
        let [ingress, egress] = all.bandwidth.entry(of(LabelledMetric::Bandwidth)).or_default();
        *ingress += counts.ingress.load(Relaxed);
        *egress += counts.egress.load(Relaxed);
        let latencies = all.latencies.entry(of(LabelledMetric::HttpLatency)).or_default();
        for (kind, latency) in latencies.iter_mut().enumerate() {
            for (total, bucket) in latency.buckets.iter_mut().zip(&counts.buckets[kind]) {
                *total += bucket.load(Relaxed);
            }
            latency.sum_ms += counts.sums[kind].load(Relaxed) as f64 / 1e3;
        }
    }
    (!all.statuses.is_empty()).then_some(all)
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
    labels: RecordedLabels,
    series: Arc<NodeSeries>,
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
        Phases::LOG.and(Phases::START)
    }

    fn start(&self) -> Result<(), String> {
        *self.series.shown.lock().unwrap_or_else(PoisonError::into_inner) = self.labels.shown.clone();
        Ok(())
    }

    fn on_log(&self, exchange: &Exchange) {
        if exchange.client.protocol.is_stream() {
            return; // these series are about statuses and latencies of HTTP
        }
        let this = (exchange.client.connection, exchange.client.connection_requests, exchange.started_ns);
        let own = self.series.own.get();
        if own.last.replace(this) == this {
            return;
        }
        let own = &mut *own.counts.borrow_mut();
        let (status, now_ns) = (exchange.response.status, exchange.ended_ns);
        own.key.clear();
        self.labels.write(exchange, &mut own.key);
        // Writing to a `Vec` does not fail.
        let _ = write!(own.key, "{status}");
        if let Some(counted) = own.counts.get(&*own.key).filter(|counted| counted.is_usable(now_ns)) {
            return counted.counts.note(exchange);
        }
        let mut labels = Some(self.labels.read(&own.key));
        if own.counts.len() >= MOST_KEYS && !own.counts.contains_key(&*own.key) {
            own.counts.retain(|_, counted| counted.is_usable(now_ns));
            if own.counts.len() >= MOST_KEYS {
                labels = None;
                own.key.clear();
                let _ = write!(own.key, "{status}");
            }
        }
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

    use super::labels::Label;
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
        let all = totals().expect("something was counted");
        let (_, count) = all.statuses.iter().find(|((_, status), _)| *status == 299).expect("it was counted");
        let (_, [ingress, _]) = all.bandwidth.first_key_value().expect("it was counted");
        let (_, latencies) = all.latencies.first_key_value().expect("it was counted");
        assert_eq!((*count, *ingress), (2, 20));
        assert_eq!((latencies[0].buckets[2], latencies[0].sum_ms), (2, 6.0));
        assert_eq!(latencies[1].buckets.iter().sum::<u64>(), 0, "no upstream was asked");
    }

    #[test]
    fn series_without_traffic_make_room_when_there_are_many() {
        let (mut known, start) = (KnownSeries::default(), Instant::now());
        let labels = |node: usize| SeriesLabels::with(Label::Node, &node.to_string());
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
        let labels = |node: usize| SeriesLabels::with(Label::Node, &node.to_string());
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
