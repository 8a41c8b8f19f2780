//! The activity of a node between two readings of its metrics.

use std::collections::{BTreeMap, BTreeSet};

use super::format::{bytes, count, seconds};
use super::interval::ReadingPair;
use super::problems::problems;
use super::scrape::{LabelValues, Scrape};

/// The figures of one interval.
#[derive(Debug, Default)]
pub(super) struct NodeFigures {
    version: String,
    uptime_s: f64,
    revision: f64,
    connections: f64,
    memory: f64,
    cpu: f64,
    total: RouteFigures,
    problems: Vec<String>,
    pub routes: Vec<RouteFigures>,
    pub endpoints: Vec<EndpointFigures>,
    pub plugins: Vec<PluginFigures>,
    pub sinks: Vec<LogFigures>,
}

#[derive(Debug, Default)]
pub(super) struct RouteFigures {
    pub route: String,
    /// Per second.
    pub responses: f64,
    pub client_errors: f64,
    pub server_errors: f64,
    /// Bytes to clients per second.
    pub sent: f64,
    /// In seconds; `None` if there was no response.
    pub p50: Option<f64>,
    pub p99: Option<f64>,
}

#[derive(Debug)]
pub(super) struct EndpointFigures {
    pub upstream: String,
    pub endpoint: String,
    pub is_up: bool,
}

#[derive(Debug)]
pub(super) struct PluginFigures {
    pub route: String,
    pub plugin: String,
    /// Processor time per call, in seconds, since the node started; `None` before the first measured call.
    pub cpu: Option<f64>,
    /// Time that it waited for other services, per call, like `cpu`.
    pub waited: Option<f64>,
    pub refusals: f64,
    pub errors: f64,
}

#[derive(Debug)]
pub(super) struct LogFigures {
    pub sink: String,
    pub is_up: bool,
    pub delivered: f64,
    /// Since the node started.
    pub lost: f64,
    pub pending: f64,
}

impl NodeFigures {
    pub(super) fn between(before: &Scrape, after: &Scrape) -> NodeFigures {
        let span = ReadingPair { before, after, seconds: (after.at - before.at).as_secs_f64().max(0.001) };
        let started = after.sum("process_start_time_seconds", &[]);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now_s = now.map_or(0.0, |now| now.as_secs_f64());
        NodeFigures {
            version: values(after, "weir_info", "version").into_iter().next().unwrap_or_default(),
            uptime_s: (now_s - started).max(0.0),
            revision: after.sum("weir_config_revision", &[]),
            connections: after.sum("weir_client_connections", &[]),
            memory: after.sum("process_resident_memory_bytes", &[]),
            cpu: span.rate("process_cpu_seconds_total", &[]),
            total: span.responses(
                String::new(),
                "weir_http_responses_total",
                "weir_http_request_duration_seconds",
                &[],
            ),
            problems: problems(&span, now_s),
            routes: span.routes(),
            endpoints: endpoints(after),
            plugins: span.plugins(),
            sinks: span.sinks(),
        }
    }

    /// Two lines about the node, and a line for each problem.
    pub(super) fn summary(&self) -> Vec<String> {
        let NodeFigures { version, uptime_s, revision, connections, memory, cpu, total, .. } = self;
        let down = self.endpoints.iter().filter(|endpoint| !endpoint.is_up).count();
        let latency = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), seconds);
        let lines = [
            format!(
                "weir {version}, up {}, revision {revision}, {} connections, {} of memory, CPU {:.0} %, {} of {} endpoints down",
                seconds(*uptime_s),
                count(*connections),
                bytes(*memory),
                cpu * 100.0,
                down,
                self.endpoints.len()
            ),
            format!(
                "{}/s responses, {}/s 4xx, {}/s 5xx, p50 {}, p99 {}",
                count(total.responses),
                count(total.client_errors),
                count(total.server_errors),
                latency(total.p50),
                latency(total.p99)
            ),
        ];
        lines.into_iter().chain(self.problems.iter().map(|problem| format!("! {problem}"))).collect()
    }
}

impl ReadingPair<'_> {
    fn responses(&self, route: String, counter: &str, histogram: &str, labels: &[(&str, &str)]) -> RouteFigures {
        let class = |class: &'static str| {
            let labels: Vec<_> = labels.iter().copied().chain([("class", class)]).collect();
            self.rate(counter, &labels)
        };
        let sent: Vec<_> = labels.iter().copied().chain([("direction", "sent")]).collect();
        let buckets = self.buckets(histogram, labels);
        RouteFigures {
            route,
            responses: self.rate(counter, labels),
            client_errors: class("4xx"),
            server_errors: class("5xx"),
            sent: self.rate("weir_route_bytes_total", &sent),
            p50: quantile(&buckets, 0.5),
            p99: quantile(&buckets, 0.99),
        }
    }

    fn routes(&self) -> Vec<RouteFigures> {
        // Series are grouped by route once; a search for each route would take quadratic time.
        let names = values(self.after, "weir_route_responses_total", "route");
        let (before, after) = (by_route(self.before), by_route(self.after));
        let empty = Scrape::parse("", self.before.at);
        names
            .into_iter()
            .map(|name| {
                let span = ReadingPair {
                    before: before.get(&name).unwrap_or(&empty),
                    after: after.get(&name).unwrap_or(&empty),
                    seconds: self.seconds,
                };
                span.responses(name, "weir_route_responses_total", "weir_route_request_duration_seconds", &[])
            })
            .collect()
    }

    /// The upper bounds of the buckets, and the cumulative count of each in the interval.
    fn buckets(&self, histogram: &str, labels: &[(&str, &str)]) -> Vec<(f64, f64)> {
        let name = format!("{histogram}_bucket");
        let has_all = |of: &LabelValues| labels.iter().all(|(name, value)| of.get(*name).is_some_and(|is| is == value));
        let collect = |scrape: &Scrape| {
            let mut counts: BTreeMap<u64, f64> = BTreeMap::new();
            for (of, value) in scrape.of(&name).iter().filter(|(of, _)| has_all(of)) {
                let bound: f64 = of.get("le").and_then(|bound| bound.parse().ok()).unwrap_or(f64::INFINITY);
                // The bits of positive numbers have the same order as the numbers.
                *counts.entry(bound.to_bits()).or_default() += value;
            }
            counts
        };
        let (before, after) = (collect(self.before), collect(self.after));
        let came = |(bits, count): (&u64, &f64)| {
            let earlier = before.get(bits).copied().unwrap_or(0.0);
            (f64::from_bits(*bits), if *count < earlier { *count } else { count - earlier })
        };
        after.iter().map(came).collect()
    }

    fn plugins(&self) -> Vec<PluginFigures> {
        let calls = self.after.of("weir_policy_measured_calls_total").iter();
        let figures = calls.map(|(labels, calls)| {
            let label = |name: &str| labels.get(name).cloned().unwrap_or_default();
            let (route, plugin) = (label("route"), label("policy"));
            let at = [("route", route.as_str()), ("policy", plugin.as_str())];
            let per_call = |metric: &str| (*calls > 0.0).then(|| self.after.sum(metric, &at) / calls);
            PluginFigures {
                cpu: per_call("weir_policy_measured_cpu_seconds_total"),
                waited: per_call("weir_policy_measured_wait_seconds_total"),
                refusals: self.rate("weir_policy_refusals_total", &at),
                errors: self.rate("weir_policy_errors_total", &at),
                route,
                plugin,
            }
        });
        figures.collect()
    }

    fn sinks(&self) -> Vec<LogFigures> {
        let figure = |sink: String| {
            let total = |outcome: &'static str| {
                self.after.sum("weir_log_records_total", &[("sink", &sink), ("outcome", outcome)])
            };
            LogFigures {
                is_up: self.after.sum("weir_log_sink_up", &[("sink", &sink)]) > 0.0,
                delivered: self.rate("weir_log_records_total", &[("sink", &sink), ("outcome", "delivered")]),
                lost: total("dropped") + total("rejected"),
                pending: self.after.sum("weir_log_pending_records", &[("sink", &sink)]),
                sink,
            }
        };
        values(self.after, "weir_log_sink_up", "sink").into_iter().map(figure).collect()
    }
}

/// The series of each route, as separate readings.
fn by_route(scrape: &Scrape) -> BTreeMap<String, Scrape> {
    let mut routes = BTreeMap::new();
    for name in ["weir_route_responses_total", "weir_route_request_duration_seconds_bucket", "weir_route_bytes_total"] {
        for (labels, value) in scrape.of(name) {
            let Some(route) = labels.get("route") else { continue };
            let part: &mut Scrape = routes.entry(route.clone()).or_insert_with(|| Scrape::parse("", scrape.at));
            part.add(name, labels, *value);
        }
    }
    routes
}

/// The distinct values of a label.
fn values(scrape: &Scrape, name: &str, label: &str) -> BTreeSet<String> {
    scrape.of(name).iter().filter_map(|(labels, _)| labels.get(label).cloned()).collect()
}

fn endpoints(scrape: &Scrape) -> Vec<EndpointFigures> {
    let one = |(labels, value): &(LabelValues, f64)| {
        let label = |name: &str| labels.get(name).cloned().unwrap_or_default();
        EndpointFigures { upstream: label("upstream"), endpoint: label("endpoint"), is_up: *value > 0.0 }
    };
    scrape.of("weir_upstream_endpoint_up").iter().map(one).collect()
}

/// A quantile, with linear interpolation within a bucket.
fn quantile(buckets: &[(f64, f64)], share: f64) -> Option<f64> {
    let total = buckets.last().map(|(_, count)| *count).filter(|count| *count > 0.0)?;
    let wanted = total * share;
    let (mut low, mut below) = (0.0, 0.0);
    for &(bound, count) in buckets {
        if count >= wanted {
            let part = if count > below { (wanted - below) / (count - below) } else { 1.0 };
            return Some(if bound.is_finite() { low + (bound - low) * part } else { low });
        }
        (low, below) = (bound, count);
    }
    None
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    const BEFORE: &str = "\
weir_info{version=\"1.0\"} 1
weir_route_responses_total{route=\"a\",class=\"2xx\"} 10
weir_route_responses_total{route=\"a\",class=\"5xx\"} 0
weir_route_request_duration_seconds_bucket{route=\"a\",le=\"0.001\"} 10
weir_route_request_duration_seconds_bucket{route=\"a\",le=\"0.002\"} 10
weir_route_request_duration_seconds_bucket{route=\"a\",le=\"+Inf\"} 10
";
    const AFTER: &str = "\
weir_info{version=\"1.0\"} 1
weir_route_responses_total{route=\"a\",class=\"2xx\"} 30
weir_route_responses_total{route=\"a\",class=\"5xx\"} 4
weir_route_responses_total{route=\"b\",class=\"4xx\"} 2
weir_route_request_duration_seconds_bucket{route=\"a\",le=\"0.001\"} 10
weir_route_request_duration_seconds_bucket{route=\"a\",le=\"0.002\"} 34
weir_route_request_duration_seconds_bucket{route=\"a\",le=\"+Inf\"} 34
weir_upstream_endpoint_up{upstream=\"u\",endpoint=\"h:1\"} 0
weir_policy_measured_calls_total{route=\"a\",policy=\"cors\"} 4
weir_policy_measured_cpu_seconds_total{route=\"a\",policy=\"cors\"} 0.000008
weir_policy_measured_wait_seconds_total{route=\"a\",policy=\"cors\"} 0.4
weir_log_sink_up{sink=\"s\"} 0
weir_log_records_total{sink=\"s\",outcome=\"dropped\",reason=\"full\"} 3
weir_log_records_total{sink=\"s\",outcome=\"delivered\"} 6
";

    fn figures(before: &str, after: &str) -> NodeFigures {
        let at = Instant::now();
        NodeFigures::between(&Scrape::parse(before, at), &Scrape::parse(after, at + Duration::from_secs(2)))
    }

    #[test]
    fn rates_and_latencies_are_those_of_the_interval() {
        let figures = figures(BEFORE, AFTER);
        let a = &figures.routes[0];
        assert_eq!((a.route.as_str(), a.responses, a.server_errors), ("a", 12.0, 2.0));
        assert_eq!((a.p50, figures.routes[1].p50), (Some(0.0015), None));
        assert_eq!(figures.routes[1].client_errors, 1.0);
        assert!(!figures.endpoints[0].is_up);
        assert_eq!((figures.plugins[0].cpu, figures.plugins[0].waited), (Some(0.000_002), Some(0.1)));
        let sink = &figures.sinks[0];
        assert_eq!((sink.is_up, sink.delivered, sink.lost), (false, 3.0, 3.0));
    }

    #[test]
    fn a_node_that_has_started_again_counts_from_nothing() {
        let figures = figures(AFTER, BEFORE);
        assert_eq!((figures.routes.len(), figures.routes[0].responses), (1, 5.0));
    }
}
