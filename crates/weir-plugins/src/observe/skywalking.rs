use std::num::NonZeroU64;
use std::sync::Arc;

use http::{Response, StatusCode};
use hyper::body::Bytes;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Build, ConfigError, Definition, Exchange, Flow, Phases, Plugin, Stage, Stop};
use weir_records::{RejectReason, SendOutcome};
use weir_services::http_answer;

use crate::observe::trace::exchange_spans::ExtraAttributes;
use crate::observe::trace::json_collector::JsonCollector;
use crate::observe::trace::note::{TraceNote, TraceNoteKey};
use crate::observe::trace::sampler::{SampleRatio, new_trace};
use crate::observe::trace::segment_json::{self, MOST_NAME, SW8, SegmentWriter, received};
use crate::observe::trace::span_sink::SpanSink;
use crate::observe::trace::sw8::Sw8Context;

/// Traces requests, and sends the spans to the OAP server of SkyWalking, as JSON over HTTP.
///
/// A sampled request has a segment with an entry span and, for each attempt at an upstream, an exit span. The trace context is read from
/// the header field `sw8`, and forwarded to the upstream in the same form. Requests never wait for the server; `/records` and the metric
/// `weir_log_records_total` report the outcome for every request. Instances of the service appear with their first segment: unlike in
/// APISIX, the gateway sends no heartbeats. In APISIX, all options but `sample_ratio` are in `plugin_attr`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Skywalking {
    /// The `http` or `https` URL of the server; segments are sent to its path `/v3/segments`.
    #[serde(default = "default_endpoint_addr")]
    #[schemars(extend("x-weir-reaches" = "server"))]
    endpoint_addr: String,
    /// The fraction of requests without a sampling decision of the caller that are traced, 0.00001 to 1.
    #[serde(default = "default_sample_ratio")]
    #[schemars(range(min = 0.00001, max = 1))]
    sample_ratio: f64,
    /// The name of the gateway in traces.
    #[serde(default = "default_service_name")]
    #[schemars(length(min = 1, max = 50))]
    service_name: String,
    /// The name of this node in traces; `$hostname` is the name of its host.
    #[serde(default = "default_service_instance_name")]
    #[schemars(length(min = 1, max = 50))]
    service_instance_name: String,
}

fn default_endpoint_addr() -> String {
    "http://127.0.0.1:12800".to_owned()
}

fn default_sample_ratio() -> f64 {
    1.0
}

fn default_service_name() -> String {
    "APISIX".to_owned()
}

fn default_service_instance_name() -> String {
    "APISIX Instance Name".to_owned()
}

impl Definition for Skywalking {
    const NAME: &'static str = "skywalking";
    const PRIORITY: i32 = 12010;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str =
        r#"skywalking: { endpoint_addr: "http://127.0.0.1:12800", sample_ratio: 0.1, service_name: front }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let ratio = SampleRatio::new(self.sample_ratio);
        let url = format!("{}/v3/segments", self.endpoint_addr.trim_end_matches('/'));
        let server = JsonCollector::parse(build, &url, "endpoint_addr", refused)?;
        let instance = match &*self.service_instance_name {
            "$hostname" => segment_json::cut(&rustix::system::uname().nodename().to_string_lossy(), MOST_NAME),
            _ => self.service_instance_name,
        };
        let names = (self.service_name.clone(), instance.clone());
        let sink = server.sink(build, Self::NAME, &url, SegmentWriter { service: self.service_name, instance });
        let extra = ExtraAttributes::compile(&[], &[], build)?;
        Ok(Arc::new(SegmentTracer { ratio, extra, sink, names, key: TraceNoteKey::unique() }))
    }
}

/// The server answers 500 to a list with a segment that it cannot read: the others are sent without it.
fn refused(answer: &Response<Bytes>) -> SendOutcome {
    match answer.status() {
        StatusCode::INTERNAL_SERVER_ERROR => {
            SendOutcome::Invalid { reason: RejectReason::Invalid, error: http_answer::quoted(answer) }
        }
        _ => http_answer::strict_failure(answer),
    }
}

/// Tells the upstream of a further attempt the number of its own span.
fn rewrite_context(exchange: &mut Exchange) {
    let context = exchange.request.head.value(SW8).and_then(Sw8Context::of_field);
    if let Some(context) = context {
        let next = Sw8Context { span: context.span + 1, ..context };
        // Cannot fail: the value consists of digits, hyphens and base64.
        let _ = exchange.request.head.set(SW8, next.field().as_bytes());
    }
}

struct SegmentTracer {
    ratio: SampleRatio,
    extra: ExtraAttributes,
    sink: SpanSink<SegmentWriter>,
    /// Of the service and of its instance.
    names: (String, String),
    key: TraceNoteKey,
}

impl SegmentTracer {
    /// The context for the upstream.
    fn sent(&self, exchange: &Exchange, note: &TraceNote, caller: Option<Sw8Context>) -> Sw8Context {
        let (service, instance) = self.names.clone();
        Sw8Context {
            is_sampled: true,
            trace: caller.map_or_else(|| segment_json::trace_id(note), |caller| caller.trace),
            segment: segment_json::segment_id(note),
            span: 1,
            service,
            instance,
            endpoint: segment_json::operation(exchange),
            address: segment_json::upstream_name(exchange),
        }
    }
}

impl Plugin for SegmentTracer {
    fn phases(&self) -> Phases {
        Phases::REQUEST.and(Phases::LOG).and(Phases::START)
    }

    fn start(&self) -> Result<(), String> {
        self.sink.start()
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        let caller = received(exchange);
        let trace = new_trace();
        if !caller.as_ref().map_or_else(|| self.ratio.holds(trace), |caller| caller.is_sampled) {
            return Ok(Flow::Continue);
        }
        let span = rand::random::<NonZeroU64>().get();
        let shown = caller.as_ref().map_or(Some(trace), Sw8Context::trace_number);
        let trace = shown.unwrap_or(trace);
        let note = TraceNote { trace, span, parent: 0, is_sampled: true, is_short: false, is_debug: false };
        match shown {
            Some(_) => self.key.write(exchange, note),
            None => self.key.write_unshown(exchange, note),
        }
        let sent = self.sent(exchange, &note, caller).field();
        exchange.request.head.set(SW8, sent.as_bytes()).map_err(|_| Stop::Internal)?;
        exchange.before_retry(rewrite_context);
        Ok(Flow::Continue)
    }

    fn on_log(&self, exchange: &Exchange) {
        if let Some(note) = self.key.read(exchange) {
            self.sink.record(exchange, &note, &self.extra);
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde_json::json;

    use super::*;
    use crate::testing::{build, exchange, on_request, refused};

    fn told(exchange: &Exchange) -> Option<Sw8Context> {
        exchange.request.head.value(SW8).and_then(Sw8Context::of_field)
    }

    #[test]
    fn further_attempts_have_spans_of_their_own() {
        let plugin = build::<Skywalking>(json!({"service_name": "a"}));
        let mut exchange = exchange("GET / HTTP/1.1\nHost: h");
        on_request(&plugin, &mut exchange).expect("it passes");
        let first = told(&exchange).expect("the upstream is told");
        assert_eq!((first.span, &*first.service, first.is_sampled), (1, "a", true));
        exchange.retry();
        exchange.retry();
        assert_eq!(told(&exchange), Some(Sw8Context { span: 3, ..first }));
    }

    #[test]
    fn the_decision_of_a_caller_counts() {
        let rarely = build::<Skywalking>(json!({"sample_ratio": 0.00001}));
        for (sampled, span) in [("1", 1), ("0", 3)] {
            let field = format!("{sampled}-YQ==-Yg==-3-Yw==-ZA==-ZQ==-Zg==");
            let mut exchange = exchange(&format!("GET / HTTP/1.1\nHost: h\nsw8: {field}"));
            on_request(&rarely, &mut exchange).expect("it passes");
            let told = told(&exchange).expect("a context");
            assert_eq!((&*told.trace, told.span), ("a", span), "{field}");
        }
    }

    #[test]
    fn variables_show_the_trace_of_a_caller_if_its_id_is_a_number() {
        let plugin = build::<Skywalking>(json!({}));
        let number = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c;
        for (trace, want) in [
            ("0af7651916cd43dd8448eb211c80319c", Some(number)),
            ("0af76519-16cd-43dd-8448-eb211c80319c", Some(number)),
            ("0af7651916cd43dd8448eb211c80319c.1.2", None),
            ("+af7651916cd43dd8448eb211c80319c", None),
            ("00000000000000000000000000000000", None),
        ] {
            let parts = ["YQ=="; 4].join("-");
            let field = format!("1-{}-Yg==-3-{parts}", STANDARD.encode(trace));
            let mut exchange = exchange(&format!("GET / HTTP/1.1\nHost: h\nsw8: {field}"));
            on_request(&plugin, &mut exchange).expect("it passes");
            assert_eq!(exchange.sampled_trace().map(|(trace, _)| trace), want, "{trace}");
            assert_eq!(told(&exchange).expect("a context").trace, trace);
        }
        let mut first = exchange("GET / HTTP/1.1\nHost: h");
        on_request(&plugin, &mut first).expect("it passes");
        let (trace, _) = first.sampled_trace().expect("a trace of its own");
        assert_eq!(told(&first).expect("a context").trace, format!("{trace:032x}"));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"endpoint_addr": "a"}), "endpoint_addr: `a/v3/segments` is not a URL"),
            (json!({"sample_ratio": 0}), "sample_ratio: "),
            (json!({"service_name": ""}), "service_name: "),
            (json!({"service_name": "a".repeat(MOST_NAME + 1)}), "service_name: "),
            (json!({"service_instance_name": "a".repeat(MOST_NAME + 1)}), "service_instance_name: "),
            (json!({"report_interval": 3}), "report_interval: "),
        ] {
            let error = refused::<Skywalking>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
