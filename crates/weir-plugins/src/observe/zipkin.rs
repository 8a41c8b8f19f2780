use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU64;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_otlp::span::TraceSpan;
use weir_plugin::proto::Head;
use weir_plugin::proto::head::BadField;
use weir_plugin::{Build, ConfigError, Definition, Exchange, Flow, Phases, Plugin, Stage, Stop};
use weir_services::http_answer;

use crate::observe::trace::b3::{B3Context, B3Fields, B3Sampling, B3Span};
use crate::observe::trace::exchange_spans::ExtraAttributes;
use crate::observe::trace::json_collector::JsonCollector;
use crate::observe::trace::note::{TraceNote, TraceNoteKey, next_id};
use crate::observe::trace::sampler::{SampleRatio, new_trace};
use crate::observe::trace::span_sink::{SpanFormat, SpanSink};
use crate::observe::trace::zipkin_json::ZipkinWriter;

/// Traces requests, and sends the spans to Zipkin, as JSON of its API v2.
///
/// A sampled request has a server span and, for each attempt at an upstream, a client span. The trace context is read from
/// the header field `b3` or the fields `X-B3-…`, and forwarded to the upstream in the same form. Requests never wait for
/// Zipkin; `/records` and the metric `weir_log_records_total` report the outcome for every request.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Zipkin {
    /// The `http` or `https` URL that spans are sent to, such as `http://127.0.0.1:9411/api/v2/spans`.
    #[schemars(extend("x-weir-reaches" = "server"))]
    endpoint: String,
    /// The fraction of requests without a sampling decision of the caller that are traced, 0.00001 to 1.
    #[schemars(range(min = 0.00001, max = 1))]
    sample_ratio: f64,
    /// The name of the gateway in traces.
    #[serde(default = "default_service_name")]
    service_name: String,
    /// The IPv4 address of the gateway in traces. Without it, the address that the client is connected to.
    server_addr: Option<Ipv4Addr>,
    /// Has no effect: each exchange has a server span and each attempt a client span.
    #[serde(default = "default_span_version", rename = "span_version")]
    #[schemars(range(min = 1, max = 2))]
    #[schemars(extend("deprecated" = true))]
    _span_version: u8,
}

fn default_service_name() -> String {
    "APISIX".to_owned()
}

fn default_span_version() -> u8 {
    2
}

impl Definition for Zipkin {
    const NAME: &'static str = "zipkin";
    const PRIORITY: i32 = 12011;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str =
        r#"zipkin: { endpoint: "http://127.0.0.1:9411/api/v2/spans", sample_ratio: 0.1, service_name: front }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let ratio = SampleRatio::new(self.sample_ratio);
        let server = JsonCollector::parse(build, &self.endpoint, "endpoint", http_answer::strict_failure)?;
        let writer = ZipkinWriter { service: self.service_name, local: self.server_addr.map(IpAddr::from) };
        let sink = server.sink(build, Self::NAME, &self.endpoint, writer);
        let extra = ExtraAttributes::compile(&[], &[], build)?;
        Ok(Arc::new(ZipkinTracer { ratio, extra, sink, key: TraceNoteKey::unique() }))
    }
}

impl SpanFormat for ZipkinWriter {
    fn span(&self, span: &TraceSpan<'_>, _: &Exchange, note: &TraceNote, out: &mut Vec<u8>) {
        self.write(out, span, note);
    }
}

const SINGLE: &[u8] = b"b3";
const TRACE_ID: &[u8] = b"X-B3-TraceId";
const SPAN_ID: &[u8] = b"X-B3-SpanId";
const PARENT_ID: &[u8] = b"X-B3-ParentSpanId";
const SAMPLED: &[u8] = b"X-B3-Sampled";
const FLAGS: &[u8] = b"X-B3-Flags";

/// The context of a request, and whether it is in the single field `b3`.
fn context(head: &Head) -> (B3Context, bool) {
    if let Some(context) = head.value(SINGLE).and_then(B3Context::of_field) {
        return (context, true);
    }
    let fields = B3Fields {
        trace: head.value(TRACE_ID),
        span: head.value(SPAN_ID),
        parent: head.value(PARENT_ID),
        sampled: head.value(SAMPLED),
        flags: head.value(FLAGS),
    };
    (B3Context::of_fields(&fields), false)
}

/// Replaces the context, in the single field or in several.
fn set_context(head: &mut Head, context: &B3Context, is_single: bool) -> Result<(), BadField> {
    for name in [SINGLE, TRACE_ID, SPAN_ID, PARENT_ID, SAMPLED, FLAGS] {
        head.remove(name);
    }
    if is_single {
        return context.field().map_or(Ok(()), |field| head.add(SINGLE, field.as_bytes()));
    }
    if let Some(span) = &context.span {
        head.add(TRACE_ID, span.trace_text().as_bytes())?;
        head.add(SPAN_ID, format!("{:016x}", span.span).as_bytes())?;
        if let Some(parent) = span.parent {
            head.add(PARENT_ID, format!("{parent:016x}").as_bytes())?;
        }
    }
    match context.sampling {
        B3Sampling::Deferred => Ok(()),
        B3Sampling::Denied => head.add(SAMPLED, b"0"),
        B3Sampling::Accepted => head.add(SAMPLED, b"1"),
        B3Sampling::Debug => head.add(FLAGS, b"1"),
    }
}

/// Sets a new span for each further attempt, because each attempt has a span of its own.
fn rewrite_context(exchange: &mut Exchange) {
    let head = &mut exchange.request.head;
    let (mut context, is_single) = context(head);
    if let Some(span) = &mut context.span {
        span.span = next_id(span.span);
        // Cannot fail: the values consist of hexadecimal digits and hyphens.
        let _ = set_context(head, &context, is_single);
    }
}

struct ZipkinTracer {
    ratio: SampleRatio,
    extra: ExtraAttributes,
    sink: SpanSink<ZipkinWriter>,
    key: TraceNoteKey,
}

impl Plugin for ZipkinTracer {
    fn phases(&self) -> Phases {
        Phases::REQUEST.and(Phases::LOG).and(Phases::START)
    }

    fn start(&self) -> Result<(), String> {
        self.sink.start()
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        let (received, is_single) = context(&exchange.request.head);
        if received.sampling == B3Sampling::Denied {
            return Ok(Flow::Continue);
        }
        let (trace, is_short) = received.span.map_or_else(|| (new_trace(), false), |span| (span.trace, span.is_short));
        let is_sampled = received.sampling != B3Sampling::Deferred || self.ratio.holds(trace);
        let sent = if is_sampled {
            let span = rand::random::<NonZeroU64>().get();
            let parent = received.span.map_or(0, |span| span.span);
            let is_debug = received.sampling == B3Sampling::Debug;
            self.key.write(exchange, TraceNote { trace, span, parent, is_sampled, is_short, is_debug });
            exchange.before_retry(rewrite_context);
            let sampling = if is_debug { B3Sampling::Debug } else { B3Sampling::Accepted };
            let sent = B3Span { trace, is_short, span: next_id(span), parent: Some(span) };
            B3Context { span: Some(sent), sampling }
        } else {
            B3Context { sampling: B3Sampling::Denied, ..received }
        };
        set_context(&mut exchange.request.head, &sent, is_single).map_err(|_| Stop::Internal)?;
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
    use serde_json::json;

    use super::*;
    use crate::testing::{build, exchange, on_request, refused};

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        let endpoint = "http://a/api/v2/spans";
        for (options, want) in [
            (json!({"sample_ratio": 1}), "the option `endpoint` is missing"),
            (json!({"endpoint": endpoint}), "the option `sample_ratio` is missing"),
            (json!({"endpoint": "a", "sample_ratio": 1}), "endpoint: `a` is not a URL"),
            (json!({"endpoint": endpoint, "sample_ratio": 1, "server_addr": "here"}), "server_addr: "),
        ] {
            let error = refused::<Zipkin>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }

    #[test]
    fn further_attempts_have_spans_of_their_own() {
        let plugin = build::<Zipkin>(json!({"endpoint": "http://a/", "sample_ratio": 1}));
        for field in ["b3: 1", "X-B3-Sampled: 1"] {
            let mut exchange = exchange(&format!("GET / HTTP/1.1\nHost: h\n{field}"));
            on_request(&plugin, &mut exchange).expect("it passes");
            let (first, is_single) = context(&exchange.request.head);
            exchange.retry();
            let span = first.span.expect("the upstream is told");
            let next = B3Span { span: next_id(span.span), ..span };
            let want = (B3Context { span: Some(next), ..first }, is_single);
            assert_eq!((context(&exchange.request.head), is_single), (want, field == "b3: 1"));
        }
    }
}
