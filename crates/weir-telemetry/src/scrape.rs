//! The metrics shown, their names and units.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use crate::cell::{ByClass, ByStatus, ByWord, Counter, Histogram, HistogramTotals};
use crate::exemplar::BucketExemplars;
use crate::metrics::{EventCounters, Metrics, WorkerMetrics};
use crate::page::{Page, Resolution};
use crate::process;
use crate::routes::RouteTotals;
use crate::upstreams::EndpointTotals;

impl Metrics {
    /// All metrics of this process as one page; `add` appends further ones.
    pub fn page(&self, add: impl FnOnce(&mut Page)) -> Page {
        let mut page = Page::default();
        page.gauge("weir_info", "The version of Weir, in the label `version`; the value is always 1.")
            .value(&[("version", env!("CARGO_PKG_VERSION"))], 1);
        self.exchanges(&mut page);
        self.connections(&mut page);
        self.upstreams(&mut page);
        self.named_upstreams(&mut page);
        self.routes(&mut page);
        self.control(&mut page);
        process::metrics(&mut page);
        add(&mut page);
        page
    }

    fn exchanges(&self, page: &mut Page) {
        page.counter("weir_http_requests", "Requests read from clients.").total(&[], self.sum(|of| &of.requests));

        let classes = self.workers().iter().map(|worker| worker.statuses.by_class());
        let classes = classes.fold([0; 6], |sum: [u64; 6], of| std::array::from_fn(|class| sum[class] + of[class]));
        page.counter("weir_http_responses", "Responses sent to clients, by class of their status.");
        for (class, count) in ByClass::LABELS.iter().zip(classes) {
            page.total(&[("class", class)], count);
        }

        let mut statuses = BTreeMap::new();
        for (status, count) in self.workers().iter().flat_map(|worker| worker.statuses.values()) {
            *statuses.entry(status).or_insert(0) += count;
        }
        page.counter("weir_http_responses_by_status", "Responses sent to clients, by status.");
        for (status, count) in statuses {
            let name = if status == ByStatus::INVALID { "other".to_owned() } else { status.to_string() };
            page.total(&[("status", &name)], count);
        }

        page.counter("weir_http_errors", "Exchanges that ended early, by cause.");
        for (cause, count) in self.by_word(|of| &of.errors) {
            page.total(&[("cause", cause)], count);
        }

        page.histogram(
            "weir_http_request_duration_seconds",
            "Time from the first byte of a request to the last byte of its response.",
        );
        let mut exemplars = BucketExemplars::default();
        self.workers().iter().for_each(|worker| worker.request_exemplars.add_to(&mut exemplars, 0));
        page.exemplified(&[], &self.histogram(|of| &of.request_duration), &exemplars, Resolution::Full);

        page.counter("weir_client_bytes", "Bytes received from clients and sent to them, heads included.");
        page.total(&[("direction", "received")], self.sum(|of| &of.client_bytes_received));
        page.total(&[("direction", "sent")], self.sum(|of| &of.client_bytes_sent));
    }

    fn connections(&self, page: &mut Page) {
        page.gauge("weir_client_connections", "Open client connections, by worker.");
        for (number, worker) in self.workers().iter().enumerate() {
            page.value(&[("worker", &number.to_string())], worker.connections());
        }
        page.counter("weir_client_connections_opened", "Client connections accepted.");
        page.total(&[], self.sum(|of| &of.connections_opened));
        page.counter(
            "weir_client_connections_handed_over",
            "Client connections that one worker handed over to another.",
        );
        page.total(&[], self.sum(|of| &of.connections_handed_over));
        page.counter(
            "weir_accept_errors",
            "Client connections that could not be accepted, for example for lack of file descriptors.",
        );
        page.total(&[], self.sum(|of| &of.accept_errors));
        page.counter(
            "weir_client_connections_full_seconds",
            "Seconds during which the connection limit of a worker was reached, summed over the workers.",
        );
        page.total(&[], self.sum(|of| &of.connections_full));
        page.counter(
            "weir_client_connections_shed",
            "Idle client connections that were closed to accept others, because the connection limit was reached.",
        );
        page.total(&[], self.sum(|of| &of.connections_shed));
        page.counter(
            "weir_client_connections_over_share",
            "Client connections that were closed because of `client_max_connections`, the limit of one client address.",
        );
        page.total(&[], self.sum(|of| &of.connections_over_share));
        page.counter("weir_tls_handshakes", "TLS handshakes with clients, by outcome.");
        let resumed = self.sum(|of| &of.tls_resumptions);
        page.total(&[("outcome", "full")], self.sum(|of| &of.tls_handshakes).saturating_sub(resumed));
        page.total(&[("outcome", "resumed")], resumed);
        page.total(&[("outcome", "failed")], self.sum(|of| &of.tls_failures));
        page.histogram(
            "weir_worker_tick_delay_seconds",
            "Delay of a timer in each worker that is due every 20 ms. A long delay means that the worker did not run.",
        );
        page.distribution(&[], &self.histogram(|of| &of.tick_delay), Resolution::Full);
        page.histogram(
            "weir_worker_adoption_slice_seconds",
            "Duration of each step in which a worker adopts a new configuration. It serves requests between the steps.",
        );
        page.distribution(&[], &self.histogram(|of| &of.adoption_slice), Resolution::Full);
        // Closed ones are read first, so that one closed in between cannot make the difference negative.
        let closed = self.sum(|of| &of.tunnels_closed);
        let opened = self.sum(|of| &of.tunnels_opened);
        page.gauge("weir_tunnels", "Open connections that were upgraded, such as WebSockets.");
        page.value(&[], opened.saturating_sub(closed));
        page.counter("weir_tunnels_opened", "Connections that were upgraded.").total(&[], opened);
        self.quic(page);
        self.streams(page);
        self.events(page);
    }

    fn quic(&self, page: &mut Page) {
        page.counter(
            "weir_quic_connections",
            "Connections that clients of HTTP/3 began: accepted, refused at a limit or while the node leaves, and those whose clients had \
             to prove their address first.",
        );
        page.total(&[("outcome", "accepted")], self.sum(|of| &of.quic.accepted));
        page.total(&[("outcome", "refused")], self.sum(|of| &of.quic.refused));
        page.total(&[("outcome", "retry")], self.sum(|of| &of.quic.retried));
        page.counter(
            "weir_quic_packets",
            "Packets sent to clients of HTTP/3, and those of them that were lost on the way.",
        );
        page.total(&[("outcome", "sent")], self.sum(|of| &of.quic.packets_sent));
        page.total(&[("outcome", "lost")], self.sum(|of| &of.quic.packets_lost));
    }

    /// Counts by word, summed over the workers.
    fn by_word(&self, of: fn(&WorkerMetrics) -> &ByWord) -> BTreeMap<&'static str, u64> {
        let mut sums = BTreeMap::new();
        for (word, count) in self.workers().iter().flat_map(|worker| of(worker).values()) {
            *sums.entry(word).or_insert(0) += count;
        }
        sums
    }

    fn streams(&self, page: &mut Page) {
        let closed = self.sum(|of| &of.streams_closed);
        let opened = self.sum(|of| &of.streams_opened);
        page.gauge("weir_streams", "Open connections without HTTP, which stream routes carry.");
        page.value(&[], opened.saturating_sub(closed));
        page.counter("weir_streams_opened", "Connections without HTTP.").total(&[], opened);
        page.counter("weir_stream_errors", "Connections without HTTP that did not end by themselves, by cause.");
        for (cause, count) in self.by_word(|of| &of.stream_errors) {
            page.total(&[("cause", cause)], count);
        }
        page.counter("weir_stream_datagrams_dropped", "Datagrams of stream routes that were dropped, by cause.");
        for (cause, count) in self.by_word(|of| &of.datagrams_dropped) {
            page.total(&[("cause", cause)], count);
        }
    }

    fn events(&self, page: &mut Page) {
        type Stream = fn(&WorkerMetrics) -> &EventCounters;
        let streams: [(&str, &str, Stream); 3] = [
            ("websocket", "from_client", |of| &of.client_messages),
            ("websocket", "from_upstream", |of| &of.upstream_messages),
            ("sse", "from_upstream", |of| &of.server_sent_events),
        ];
        type Outcome = fn(&EventCounters) -> &Counter;
        let outcomes: [(&str, Outcome); 3] =
            [("passed", |of| &of.passed), ("throttled", |of| &of.throttled), ("failed", |of| &of.failed)];
        // Outcomes are read first, so that their sum never exceeds `seen`.
        let sums = streams.map(|(protocol, direction, stream)| {
            let counts = outcomes.map(|(_, outcome)| self.sum(|of| outcome(stream(of))));
            (protocol, direction, counts, self.sum(|of| &stream(of).seen))
        });
        page.counter(
            "weir_events_seen",
            "WebSocket messages and server-sent events that began, on routes with a plugin that looks at them.",
        );
        for (protocol, direction, _, seen) in &sums {
            page.total(&[("protocol", protocol), ("direction", direction)], seen);
        }
        page.counter("weir_events", "WebSocket messages and server-sent events that ended, on these routes, by outcome: `passed`, `throttled` or `failed`.");
        for (protocol, direction, counts, _) in &sums {
            for ((outcome, _), count) in outcomes.iter().zip(counts) {
                page.total(&[("protocol", protocol), ("direction", direction), ("outcome", outcome)], count);
            }
        }
    }

    fn upstreams(&self, page: &mut Page) {
        page.histogram(
            "weir_upstream_response_duration_seconds",
            "Time from sending a request to an upstream to receiving the head of its response.",
        );
        page.distribution(&[], &self.upstreams.all(), Resolution::Full);
        page.counter("weir_upstream_bytes", "Bytes received from upstreams and sent to them, heads included.");
        page.total(&[("direction", "received")], self.sum(|of| &of.upstream_bytes_received));
        page.total(&[("direction", "sent")], self.sum(|of| &of.upstream_bytes_sent));
        page.counter("weir_upstream_connects", "Connections made to upstreams, by outcome.");
        let closed = self.sum(|of| &of.upstream_connections_closed);
        let connected = self.sum(|of| &of.upstream_connects);
        page.total(&[("outcome", "connected")], connected);
        page.total(&[("outcome", "failed")], self.sum(|of| &of.upstream_connect_failures));
        page.counter("weir_upstream_reuses", "Exchanges sent over a reused upstream connection.");
        page.total(&[], self.sum(|of| &of.upstream_reuses));
        page.counter("weir_upstream_retries", "Retries: attempts after the first.");
        page.total(&[], self.sum(|of| &of.upstream_retries));
        page.counter(
            "weir_upstream_retries_refused",
            "Retries that were not made because the retry budget (`retry_budget`) was used up.",
        );
        page.total(&[], self.sum(|of| &of.upstream_retries_refused));
        let idle: u64 = self.workers().iter().map(|worker| worker.upstream_idle.value()).sum();
        page.gauge("weir_upstream_connections", "Open connections to upstreams, by state.");
        page.value(&[("state", "idle")], idle);
        page.value(&[("state", "busy")], connected.saturating_sub(closed).saturating_sub(idle));
        let queued: u64 = self.workers().iter().map(|worker| worker.upstream_queued.value()).sum();
        page.gauge(
            "weir_upstream_queued",
            "Exchanges that wait because the limit of requests in flight (`concurrency`) is reached.",
        )
        .value(&[], queued);
    }

    /// Series by upstream and by endpoint.
    fn named_upstreams(&self, page: &mut Page) {
        let report = self.upstreams.report();
        page.histogram(
            "weir_upstream_time_to_head_seconds",
            "Time from sending a request to the head of the response, by upstream.",
        );
        for (upstream, totals) in &report.upstreams {
            page.distribution(&[("upstream", upstream)], totals, Resolution::Coarse);
        }
        type Write<'a> = &'a dyn Fn(&mut Page, (&str, &str), &EndpointTotals);
        let each = |page: &mut Page, write: Write<'_>| {
            for ((upstream, endpoint), totals) in &report.endpoints {
                write(page, (upstream, endpoint), totals);
            }
        };
        page.counter("weir_upstream_endpoint_responses", "Complete responses of endpoints, by class of their status.");
        each(page, &|page, (upstream, endpoint), totals| {
            for (class, count) in shown_classes(totals.responses) {
                page.total(&[("upstream", upstream), ("endpoint", endpoint), ("class", class)], count);
            }
        });
        page.counter(
            "weir_upstream_endpoint_time_to_head_seconds",
            "Sum of the times from sending a request to receiving the head of its response, in seconds, by endpoint.",
        );
        each(page, &|page, (upstream, endpoint), totals| {
            page.total(&[("upstream", upstream), ("endpoint", endpoint)], totals.duration.as_secs_f64());
        });
        page.counter("weir_upstream_endpoint_connects", "Connections opened to endpoints for exchanges, by endpoint.");
        each(page, &|page, (upstream, endpoint), totals| {
            page.total(&[("upstream", upstream), ("endpoint", endpoint)], totals.connects);
        });
        page.counter(
            "weir_upstream_endpoint_retries",
            "Retries that were made because an attempt at the endpoint failed, by the endpoint that failed.",
        );
        each(page, &|page, (upstream, endpoint), totals| {
            page.total(&[("upstream", upstream), ("endpoint", endpoint)], totals.retries);
        });
        page.counter("weir_upstream_endpoint_failures", "Failed attempts at endpoints, by endpoint and cause.");
        each(page, &|page, (upstream, endpoint), totals| {
            for (cause, count) in &totals.failures {
                page.total(&[("upstream", upstream), ("endpoint", endpoint), ("cause", cause)], count);
            }
        });
    }

    fn routes(&self, page: &mut Page) {
        let routes = self.routes.totals(self.workers());
        let each = |page: &mut Page, write: &dyn Fn(&mut Page, &str, &RouteTotals)| {
            for (route, totals) in &routes {
                write(page, route, totals);
            }
        };
        page.counter("weir_route_responses", "Responses sent to clients, by route and class of their status.");
        each(page, &|page, route, totals| {
            for (class, count) in shown_classes(totals.responses) {
                page.total(&[("route", route), ("class", class)], count);
            }
        });
        page.histogram(
            "weir_route_request_duration_seconds",
            "Time from the first byte of a request to the last byte of its response, by route. Each bound is four \
             times the one before.",
        );
        each(page, &|page, route, totals| {
            if totals.streams_opened > 0 {
                return; // a stream has no request
            }
            page.exemplified(&[("route", route)], &totals.duration, &totals.exemplars, Resolution::Coarse);
        });
        page.counter("weir_route_bytes", "Bytes received from clients and sent to them, by route.");
        each(page, &|page, route, totals| {
            page.total(&[("route", route), ("direction", "received")], totals.bytes_received);
            page.total(&[("route", route), ("direction", "sent")], totals.bytes_sent);
        });
        let streams: Vec<&(String, RouteTotals)> =
            routes.iter().filter(|(_, totals)| totals.streams_opened > 0).collect();
        page.gauge("weir_route_streams", "Open connections without HTTP, by stream route.");
        for (route, totals) in &streams {
            page.value(&[("route", route)], totals.streams_opened.saturating_sub(totals.streams_closed));
        }
        page.counter("weir_route_streams_opened", "Connections without HTTP, by stream route.");
        for (route, totals) in &streams {
            page.total(&[("route", route)], totals.streams_opened);
        }
    }

    fn control(&self, page: &mut Page) {
        let control = &self.control;
        page.counter("weir_config_reloads", "Configurations read after a change, by outcome.");
        page.total(&[("outcome", "applied")], control.reloads_applied.load(Relaxed));
        page.total(&[("outcome", "refused")], control.reloads_refused.load(Relaxed));
        page.gauge(
            "weir_config_revision",
            "Revision of the last accepted configuration, counted from 1 in each process.",
        );
        page.value(&[], control.revision.load(Relaxed));
        page.gauge(
            "weir_config_last_reload_successful",
            "Whether the configuration that was read last is in use (1) or was refused (0).",
        );
        page.value(&[], u8::from(control.is_current()));
        page.gauge(
            "weir_config_last_applied_timestamp_seconds",
            "When a configuration was last applied, in seconds since 1970.",
        );
        page.value(&[], control.last_applied_unix());
        page.counter(
            "weir_upgrades_failed",
            "Upgrades of the binary (SIGUSR2) that failed. The old process keeps serving.",
        );
        page.total(&[], control.upgrades_failed.load(Relaxed));
        page.counter("weir_access_log_lines", "Lines of the access log, by outcome.");
        page.total(&[("outcome", "written")], self.access_log.written.load(Relaxed));
        page.total(&[("outcome", "dropped")], self.access_log.dropped.load(Relaxed));
        page.counter("weir_access_log_write_errors", "Writes to the access log that failed.");
        page.total(&[], self.access_log.write_errors.load(Relaxed));
        page.counter("weir_audit_log_lines", "Lines of the Admin API's audit log, by outcome.");
        page.total(&[("outcome", "written")], self.audit_log.written.load(Relaxed));
        page.total(&[("outcome", "dropped")], self.audit_log.dropped.load(Relaxed));
        page.counter("weir_audit_log_write_errors", "Writes to the audit log that failed.");
        page.total(&[], self.audit_log.write_errors.load(Relaxed));
    }

    fn sum(&self, of: impl Fn(&WorkerMetrics) -> &Counter) -> u64 {
        self.workers().iter().map(|worker| of(worker).value()).fold(0, u64::wrapping_add)
    }

    fn histogram(&self, of: impl Fn(&WorkerMetrics) -> &Histogram) -> HistogramTotals {
        let mut totals = HistogramTotals::default();
        for worker in self.workers() {
            of(worker).add_to(&mut totals);
        }
        totals
    }
}

/// The classes that occurred, and with the first response also 5xx: `rate()` would miss the first error of a series that begins with it.
fn shown_classes(responses: [u64; ByClass::LABELS.len()]) -> impl Iterator<Item = (&'static str, u64)> {
    let any = responses.iter().any(|count| *count > 0);
    let classes = ByClass::LABELS.into_iter().zip(responses);
    classes.filter(move |(class, count)| *count > 0 || (any && *class == "5xx"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exemplar::SampledTrace;
    use crate::exposition::Format;
    use crate::routes::RouteCells;
    use std::io::Write;
    use std::process::Stdio;

    use weir_testkit::Program;

    fn used() -> Metrics {
        let metrics = Metrics::new(2);
        let slots = metrics.routes.assign(metrics.workers(), ["orders", "a.b-c_d"]);
        for worker in metrics.workers() {
            worker.requests.add(3);
            worker.connections_opened.add(2);
            worker.connections_closed.increment();
            worker.statuses.increment(200);
            worker.errors.increment("no_route");
            worker.request_duration.record_ns(70_000);
            worker.upstream_connects.add(4);
            worker.upstream_idle.set(3);
            for slot in &slots {
                worker.route(*slot).responses.increment(200);
                worker.route(*slot).duration.record_ns(70_000);
                worker.exemplify(worker.route(*slot), 70_000, SampledTrace { trace: 7, span: 8 });
            }
        }
        for counters in &*metrics.upstreams.counters("u", ["h:1"]) {
            counters.connected(0);
            counters.failed(0, "read_timeout");
            counters.retried(0);
            counters.answered(0, 200, 50_000);
        }
        metrics.control.served(7);
        metrics
    }

    #[test]
    fn workers_are_added_up() {
        let page = used().page(|_| {}).text(Format::Prometheus);
        for line in [
            "weir_http_requests_total 6",
            "weir_http_responses_total{class=\"2xx\"} 2",
            "weir_http_errors_total{cause=\"no_route\"} 2",
            "weir_client_connections{worker=\"1\"} 1",
            "weir_http_request_duration_seconds_count 2",
            "weir_http_request_duration_seconds_sum 0.00014",
            "weir_upstream_connections{state=\"idle\"} 6",
            "weir_upstream_connections{state=\"busy\"} 2",
            "weir_route_responses_total{route=\"orders\",class=\"2xx\"} 2",
            "weir_route_responses_total{route=\"orders\",class=\"5xx\"} 0",
            "weir_http_responses_by_status_total{status=\"200\"} 2",
            "weir_upstream_response_duration_seconds_count 2",
            "weir_upstream_time_to_head_seconds_count{upstream=\"u\"} 2",
            "weir_upstream_endpoint_responses_total{upstream=\"u\",endpoint=\"h:1\",class=\"2xx\"} 2",
            "weir_upstream_endpoint_time_to_head_seconds_total{upstream=\"u\",endpoint=\"h:1\"} 0.0001",
            "weir_upstream_endpoint_connects_total{upstream=\"u\",endpoint=\"h:1\"} 2",
            "weir_upstream_endpoint_retries_total{upstream=\"u\",endpoint=\"h:1\"} 2",
            "weir_upstream_endpoint_failures_total{upstream=\"u\",endpoint=\"h:1\",cause=\"read_timeout\"} 2",
            "weir_config_revision 7",
        ] {
            assert!(page.lines().any(|written| written == line), "{line} is missing in\n{page}");
        }
    }

    #[test]
    fn no_series_comes_twice_and_no_family_either() {
        let page = used().page(|_| {}).text(Format::OpenMetrics);
        let mut names: Vec<&str> = page
            .lines()
            .map(|line| match line.strip_prefix("# ") {
                Some(comment) => comment.rsplitn(2, ' ').last().unwrap_or_default(),
                None => line.rsplit_once(' ').expect("a name and a value").0,
            })
            .collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "{page}");
    }

    #[test]
    fn series_stay_below_ten_thousand_with_any_number_of_routes() {
        let metrics = Metrics::new(2);
        let ids: Vec<String> = (0..5_000).map(|number| format!("route-{number}")).collect();
        let slots = metrics.routes.assign(metrics.workers(), ids.iter().map(String::as_str));
        for slot in slots {
            for status in [200, 302, 404, 502] {
                metrics.worker(0).route(slot).responses.increment(status);
            }
        }
        let page = metrics.page(|_| {}).text(Format::Prometheus);
        let series = page.lines().filter(|line| !line.starts_with('#')).count();
        assert!(series < 10_000, "{series} series");
    }

    #[test]
    fn ten_thousand_upstreams_with_traffic_and_failures_stay_within_the_budget() {
        let metrics = Metrics::new(2);
        for number in 0..10_000 {
            let (one, two) = (format!("h{number}:1"), format!("h{number}:2"));
            let counters = metrics.upstreams.counters(&format!("upstream-{number}"), [&*one, &*two]);
            for endpoint in 0..2 {
                counters[1].connected(endpoint);
                [200, 302, 404, 502].iter().for_each(|status| counters[0].answered(endpoint, *status, 1_000_000));
                ["connect_failed", "read_timeout", "upstream_reset"]
                    .iter()
                    .for_each(|cause| counters[0].failed(endpoint, cause));
            }
        }
        let page = metrics.page(|_| {}).text(Format::Prometheus);
        let series = page.lines().filter(|line| !line.starts_with('#')).count();
        assert!(series < 15_000, "{series} series");
        let others =
            "weir_upstream_endpoint_failures_total{upstream=\"(other)\",endpoint=\"(other)\",cause=\"read_timeout\"}";
        assert!(page.lines().any(|line| line == format!("{others} {}", 20_000 - 500)), "what does not fit is summed");
        assert!(page.lines().any(|line| line == "weir_upstream_response_duration_seconds_count 80000"));
    }

    #[test]
    fn promtool_finds_nothing_to_say() {
        let Some(mut check) = Program::find("promtool") else { return };
        check.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut promtool = check.spawn().expect("it is installed");
        let page = used().page(|_| {}).text(Format::Prometheus);
        promtool.stdin.take().expect("it is piped").write_all(page.as_bytes()).expect("promtool reads it");
        let output = promtool.wait_with_output().expect("promtool ends");
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
    }
}
