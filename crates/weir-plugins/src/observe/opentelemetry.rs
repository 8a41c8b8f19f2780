use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_otlp::messages;
use weir_otlp::span::TraceSpan;
use weir_plugin::{AllOf, Build, ConfigError, Definition, Exchange, Flow, HasMetadata, Phases, Plugin, Stage, Stop};

use crate::observe::collector::{CollectorMetadata, OtlpCollector, TraceIdSource};
use crate::observe::trace::exchange_spans::{ExtraAttributes, error_of};
use crate::observe::trace::note::{TraceNote, TraceNoteKey, next_id};
use crate::observe::trace::sampler::{SampleRate, SampleRatio, Sampler, new_trace};
use crate::observe::trace::span_sink::{SpanFormat, SpanSink};
use crate::observe::trace::w3c::{self, Traceparent};

/// Traces requests, and sends the spans to an OpenTelemetry collector (OTLP over HTTP or gRPC).
///
/// A sampled request has a server span and, for each attempt at an upstream, a client span. The trace context is read from
/// `traceparent` and `tracestate` (W3C Trace Context) and forwarded to the upstream. Requests never wait for the collector;
/// `/records` and the metric `weir_log_records_total` report the outcome for every request. Spans contain no query strings,
/// cookies or credentials. The collector is configured once for the node, in `plugin_metadata`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Opentelemetry {
    /// Which requests are traced.
    #[serde(default)]
    sampler: SamplerSpec,
    /// Names of variables, such as `consumer_name`, that become attributes of the server span under the same name.
    #[serde(default)]
    additional_attributes: Vec<String>,
    /// Request header fields that become attributes `http.request.header.<name>` of the server span. With `*` at the end, all
    /// fields whose names have this prefix. Fields with credentials are left out.
    #[serde(default)]
    additional_header_prefix_attributes: Vec<String>,
    /// Also sends the spans of unsampled requests that failed with a status of 500 or more. Such a trace has only the spans
    /// of this gateway, because the upstream was told that the request is not sampled. Not in APISIX.
    #[serde(default)]
    keep_errors: bool,
    /// Also sends the spans of unsampled requests that took at least this number of seconds. Not in APISIX.
    #[schemars(range(min = 0.001, max = 86_400))]
    #[schemars(extend("x-weir-unit" = "s"))]
    keep_slower_than: Option<f64>,
}

/// Which requests are traced.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct SamplerSpec {
    /// `always_on`, `always_off`, `trace_id_ratio` (a fraction of the traces), `rate_limiting` (a number of traces per second;
    /// not in APISIX), or `parent_base` (the decision of the caller in `traceparent`; without one, `options.root` decides).
    name: SamplerName,
    /// Settings of the sampler.
    options: SamplerOptions,
}

/// Settings of a sampler.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct SamplerOptions {
    /// The fraction of traces for `trace_id_ratio`, 0 to 1.
    #[schemars(range(min = 0, max = 1))]
    fraction: f64,
    /// The highest number of traces per second for `rate_limiting`, on this node. Plugins with the same options share it. Not
    /// in APISIX.
    #[schemars(range(min = 0.001, max = 1000000))]
    max_traces_per_second: f64,
    /// The sampler of `parent_base` for requests without `traceparent`.
    root: RootSamplerSpec,
}

/// The sampler for requests without a caller's decision.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct RootSamplerSpec {
    /// `always_on`, `always_off`, `trace_id_ratio` or `rate_limiting`.
    name: RootSamplerName,
    /// Settings of the sampler.
    options: RootSamplerOptions,
}

/// Settings of a root sampler.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct RootSamplerOptions {
    /// The fraction of traces for `trace_id_ratio`, 0 to 1.
    #[schemars(range(min = 0, max = 1))]
    fraction: f64,
    /// The highest number of traces per second for `rate_limiting`, on this node. Plugins with the same options share it. Not
    /// in APISIX.
    #[schemars(range(min = 0.001, max = 1000000))]
    max_traces_per_second: f64,
}

#[derive(Clone, Copy, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum SamplerName {
    AlwaysOn,
    #[default]
    AlwaysOff,
    TraceIdRatio,
    RateLimiting,
    ParentBase,
}

#[derive(Clone, Copy, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum RootSamplerName {
    AlwaysOn,
    #[default]
    AlwaysOff,
    TraceIdRatio,
    RateLimiting,
}

/// A rate that plugins with the same options share.
fn rate(per_second: f64, option: &str, build: &Build) -> Result<Sampler, ConfigError> {
    let next_ns = build.shared("trace-rate", build.written_options(), AtomicU64::default);
    Ok(Sampler::Rate(SampleRate::new(per_second, option, next_ns)?))
}

impl SamplerSpec {
    fn compile(&self, build: &Build) -> Result<Sampler, ConfigError> {
        let SamplerOptions { fraction, max_traces_per_second, root } = &self.options;
        Ok(match self.name {
            SamplerName::AlwaysOn => Sampler::AlwaysOn,
            SamplerName::AlwaysOff => Sampler::AlwaysOff,
            SamplerName::TraceIdRatio => Sampler::Ratio(SampleRatio::new(*fraction)),
            SamplerName::RateLimiting => rate(*max_traces_per_second, "sampler.options.max_traces_per_second", build)?,
            SamplerName::ParentBase => Sampler::Parent(Box::new(root.compile(build)?)),
        })
    }
}

impl RootSamplerSpec {
    fn compile(&self, build: &Build) -> Result<Sampler, ConfigError> {
        Ok(match self.name {
            RootSamplerName::AlwaysOn => Sampler::AlwaysOn,
            RootSamplerName::AlwaysOff => Sampler::AlwaysOff,
            RootSamplerName::TraceIdRatio => Sampler::Ratio(SampleRatio::new(self.options.fraction)),
            RootSamplerName::RateLimiting => {
                let option = "sampler.options.root.options.max_traces_per_second";
                rate(self.options.max_traces_per_second, option, build)?
            }
        })
    }
}

impl Definition for Opentelemetry {
    const NAME: &'static str = "opentelemetry";
    const PRIORITY: i32 = 12009;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = "opentelemetry: { sampler: { name: parent_base, options: { root: { name: trace_id_ratio, options: { fraction: 0.1 } } } } }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let sampler = self.sampler.compile(build);
        let slow_ns = self.keep_slower_than.map(|seconds| Duration::from_secs_f64(seconds).as_nanos() as u64);
        let extra =
            ExtraAttributes::compile(&self.additional_attributes, &self.additional_header_prefix_attributes, build);
        let (sampler, extra) = (sampler, extra).all_of()?;
        let metadata = build.metadata::<Opentelemetry>();
        let (collector, options) = OtlpCollector::parse(&metadata, build.http())?;
        let open = Box::new(move || Ok(Box::new(collector) as Box<dyn weir_records::Destination>));
        let identity = format!("opentelemetry {metadata:?}");
        let sink = SpanSink::build(build, &identity, options, OtlpSpans, open);
        Ok(Arc::new(OpentelemetryTracer {
            sampler,
            takes_request_id: metadata.trace_id_source == TraceIdSource::XRequestId,
            keep_errors: self.keep_errors,
            slow_ns,
            extra,
            sink,
            key: TraceNoteKey::unique(),
        }))
    }
}

impl HasMetadata for Opentelemetry {
    type Metadata = CollectorMetadata;
}

struct OtlpSpans;

impl SpanFormat for OtlpSpans {
    fn span(&self, span: &TraceSpan<'_>, _: &Exchange, _: &TraceNote, out: &mut Vec<u8>) {
        messages::span(out, span);
    }
}

struct OpentelemetryTracer {
    sampler: Sampler,
    /// New traces use the request id as the trace id, if it is a UUID.
    takes_request_id: bool,
    keep_errors: bool,
    slow_ns: Option<u64>,
    extra: ExtraAttributes,
    sink: SpanSink<OtlpSpans>,
    key: TraceNoteKey,
}

impl OpentelemetryTracer {
    /// A trace id for a new trace, and whether it is random.
    fn new_trace(&self, exchange: &Exchange) -> (u128, bool) {
        let own = self.takes_request_id.then(|| trace_of(exchange)).flatten();
        own.map_or_else(|| (new_trace(), true), |trace| (trace, false))
    }

    fn is_kept(&self, exchange: &Exchange) -> bool {
        let is_slow = |slow_ns| exchange.ended_ns.saturating_sub(exchange.started_ns) >= slow_ns;
        self.slow_ns.is_some_and(is_slow) || (self.keep_errors && error_of(exchange).1)
    }

    fn may_keep(&self) -> bool {
        self.keep_errors || self.slow_ns.is_some()
    }
}

/// The request id as a trace id, if it is a UUID, with or without hyphens.
fn trace_of(exchange: &Exchange) -> Option<u128> {
    let id = match exchange.request_id() {
        b"" => exchange.request.head.value(b"X-Request-Id")?,
        id => id,
    };
    uuid::Uuid::try_parse_ascii(id).ok().map(|id| id.as_u128()).filter(|&id| id != 0)
}

const TRACEPARENT: &[u8] = b"traceparent";
const TRACESTATE: &[u8] = b"tracestate";

/// Sets a new parent span for each further attempt, because each attempt has a span of its own.
fn rewrite_traceparent(exchange: &mut Exchange) {
    let head = &mut exchange.request.head;
    if let Some(parent) = Traceparent::read(head.values(TRACEPARENT)) {
        let next = Traceparent { span: next_id(parent.span), ..parent };
        // Cannot fail: the value consists of hexadecimal digits and hyphens.
        let _ = head.set(TRACEPARENT, next.field().as_bytes());
    }
}

impl Plugin for OpentelemetryTracer {
    fn phases(&self) -> Phases {
        Phases::REQUEST.and(Phases::LOG).and(Phases::START)
    }

    fn start(&self) -> Result<(), String> {
        self.sink.start()
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        let head = &mut exchange.request.head;
        let parent = Traceparent::read(head.values(TRACEPARENT));
        if parent.is_none() || !w3c::is_tracestate(head.values(TRACESTATE)) {
            head.remove(TRACESTATE);
        }
        let (trace, is_random) =
            parent.map_or_else(|| self.new_trace(exchange), |parent| (parent.trace, parent.is_random));
        let is_sampled = self.sampler.samples(trace, parent.map(|parent| parent.is_sampled), exchange.started_ns);
        if !is_sampled && !self.may_keep() && parent.is_some_and(|parent| !parent.is_sampled) {
            // The gateway adds no span, so the context is forwarded unchanged.
            return Ok(Flow::Continue);
        }
        let span = rand::random::<NonZeroU64>().get();
        let sent = Traceparent { trace, span: next_id(span), is_sampled, is_random };
        exchange.request.head.set(TRACEPARENT, sent.field().as_bytes()).map_err(|_| Stop::Internal)?;
        if is_sampled || self.may_keep() {
            let parent = parent.map_or(0, |parent| parent.span);
            self.key.write(exchange, TraceNote { trace, span, parent, is_sampled, is_short: false, is_debug: false });
            exchange.before_retry(rewrite_traceparent);
        }
        Ok(Flow::Continue)
    }

    fn on_log(&self, exchange: &Exchange) {
        let Some(note) = self.key.read(exchange) else { return };
        if note.is_sampled || self.is_kept(exchange) {
            self.sink.record(exchange, &note, &self.extra);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{build, get, on_request, refused};

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (
                json!({"sampler": {"name": "rate_limiting"}}),
                "sampler.options.max_traces_per_second: must be from 0.001 to 1000000",
            ),
            (json!({"sampler": {"name": "some"}}), "sampler.name: `some` is not an allowed value"),
            (json!({"additional_attributes": ["uri", "cookie_a"]}), "additional_attributes[1]: names a cookie"),
            (json!({"nonsense": 1}), "nonsense: the option `nonsense` is not known"),
        ] {
            let error = refused::<Opentelemetry>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }

    #[test]
    fn further_attempts_have_spans_of_their_own() {
        let plugin = build::<Opentelemetry>(json!({"sampler": {"name": "always_on"}}));
        let mut exchange = get("/");
        on_request(&plugin, &mut exchange).expect("it passes");
        let parent = |exchange: &Exchange| {
            Traceparent::read(exchange.request.head.values(TRACEPARENT)).expect("the upstream is told")
        };
        let first = parent(&exchange);
        exchange.retry();
        let second = parent(&exchange);
        assert_eq!(second, Traceparent { span: next_id(first.span), ..first });
        exchange.clear();
        exchange.retry();
        assert_eq!(exchange.request.head.value(TRACEPARENT), None, "the next exchange knows nothing of it");
    }

    #[test]
    fn a_request_id_that_is_a_uuid_can_name_the_trace() {
        for (id, want) in [
            ("01234567-89ab-cdef-0123-456789abcdef", Some(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef)),
            ("0123456789abcdef0123456789abcdef", Some(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef)),
            ("00000000-0000-0000-0000-000000000000", None),
            ("order-7", None),
        ] {
            let exchange = crate::testing::exchange(&format!("GET / HTTP/1.1\nHost: h\nX-Request-Id: {id}"));
            assert_eq!(trace_of(&exchange), want, "{id}");
        }
    }
}
