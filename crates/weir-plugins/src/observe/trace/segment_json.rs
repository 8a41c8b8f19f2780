//! Encodes the spans of an exchange as a segment of SkyWalking, in JSON.

use serde_json::json;
use weir_otlp::span::{AttributeValue, SpanKind, TraceSpan};
use weir_plugin::Exchange;

use super::exchange_spans::server_span_name;
use super::note::{TraceNote, next_id};
use super::span_sink::SpanFormat;
use super::sw8::Sw8Context;
use crate::log::json::{JsonObjectWriter, known};

/// The field with the context.
pub(crate) const SW8: &[u8] = b"sw8";

/// The number of nginx in SkyWalking's list of components, whose icon shows a gateway.
const COMPONENT: u64 = 6000;

/// Writes the segments of one service.
pub(crate) struct SegmentWriter {
    pub service: String,
    pub instance: String,
}

/// The id of the gateway's segment.
pub(crate) fn segment_id(note: &TraceNote) -> String {
    format!("{:016x}{:032x}", note.span, note.trace)
}

/// The id of a trace that begins here.
pub(crate) fn trace_id(note: &TraceNote) -> String {
    format!("{:032x}", note.trace)
}

/// By which name upstreams of a route are known, in the context that they get and in the span of a call: SkyWalking finds out by it which
/// service it is.
pub(crate) fn upstream_name(exchange: &Exchange) -> String {
    format!("upstream of {}", exchange.route.as_ref().map_or("", |route| &route.route_id))
}

/// The most bytes of the name of an operation, and of a service or an instance: SkyWalking has no room for more.
const MOST_OPERATION: usize = 149;
pub(crate) const MOST_NAME: usize = 50;

/// The name of the operation of a server's span, which is the endpoint of the caller in the context for the upstream.
pub(crate) fn operation(exchange: &Exchange) -> String {
    cut(&String::from_utf8_lossy(&server_span_name(exchange)), MOST_OPERATION)
}

/// The beginning of a text, with at most so many bytes.
pub(crate) fn cut(text: &str, most: usize) -> String {
    text[..text.floor_char_boundary(most)].to_owned()
}

/// The context that the client has sent, if it is part of this trace.
pub(crate) fn received(exchange: &Exchange) -> Option<Sw8Context> {
    exchange.request.head.original(SW8).and_then(Sw8Context::of_field)
}

/// The number of a span in its segment: 0 is the server's, and each attempt has the next one.
fn number(note: &TraceNote, id: u64) -> u64 {
    let ids = std::iter::successors(Some(note.span), |id| Some(next_id(*id)));
    (0..u64::from(u8::MAX)).zip(ids).find(|(_, own)| *own == id).map_or(0, |(number, _)| number)
}

fn milliseconds(ns: u64) -> u64 {
    ns / 1_000_000
}

impl SegmentWriter {
    fn reference(&self, out: &mut Vec<u8>, caller: &Sw8Context) {
        let mut object = JsonObjectWriter::begin(out);
        object.text(known!("refType"), b"CrossProcess");
        object.text(known!("traceId"), caller.trace.as_bytes());
        object.text(known!("parentTraceSegmentId"), caller.segment.as_bytes());
        object.number(known!("parentSpanId"), caller.span.into());
        object.text(known!("parentService"), caller.service.as_bytes());
        object.text(known!("parentServiceInstance"), caller.instance.as_bytes());
        object.text(known!("parentEndpoint"), caller.endpoint.as_bytes());
        object.text(known!("networkAddressUsedAtPeer"), caller.address.as_bytes());
    }
}

impl SpanFormat for SegmentWriter {
    fn open(&self, exchange: &Exchange, note: &TraceNote, out: &mut Vec<u8>) {
        let caller = received(exchange);
        let trace = caller.map_or_else(|| trace_id(note), |caller| caller.trace);
        let head = json!({
            "traceId": trace,
            "traceSegmentId": segment_id(note),
            "service": self.service,
            "serviceInstance": self.instance,
        });
        out.extend_from_slice(head.to_string().as_bytes());
        // The members go on.
        out.pop();
        out.extend_from_slice(b",\"spans\":[");
    }

    fn span(&self, span: &TraceSpan<'_>, exchange: &Exchange, note: &TraceNote, out: &mut Vec<u8>) {
        let is_server = span.kind == SpanKind::Server;
        {
            let mut object = JsonObjectWriter::begin(out);
            match is_server {
                true => object.text(known!("operationName"), operation(exchange).as_bytes()),
                false => object.text(known!("operationName"), &span.name),
            }
            object.number(known!("startTime"), milliseconds(span.start_ns));
            object.number(known!("endTime"), milliseconds(span.end_ns));
            object.text(known!("spanType"), if is_server { b"Entry" } else { b"Exit" });
            object.text(known!("spanLayer"), b"Http");
            object.number(known!("componentId"), COMPONENT);
            object.number(known!("spanId"), number(note, span.id));
            object.raw(b"parentSpanId", if is_server { b"-1" } else { b"0" });
            object.raw(b"isError", if span.is_failed { b"true" } else { b"false" });
            object.raw(b"skipAnalysis", b"false");
            match (is_server, span.peer) {
                (true, Some(peer)) => object.text(known!("peer"), peer.to_string().as_bytes()),
                (true, None) => {}
                (false, _) => object.text(known!("peer"), upstream_name(exchange).as_bytes()),
            }
            if let Some(caller) = received(exchange).filter(|_| is_server) {
                object.value(known!("refs"), |out| {
                    out.push(b'[');
                    self.reference(out, &caller);
                    out.push(b']');
                });
            }
            object.value(known!("tags"), |out| tags(out, span));
        }
        out.push(b',');
    }

    fn close(&self, out: &mut Vec<u8>) {
        if out.last() == Some(&b',') {
            out.pop();
        }
        out.extend_from_slice(b"]},");
    }
}

/// The attributes of a span, of which SkyWalking knows some by other names.
fn tags(out: &mut Vec<u8>, span: &TraceSpan<'_>) {
    out.push(b'[');
    for (name, value) in &span.attributes {
        let name = match &**name {
            "http.request.method" => "http.method",
            "http.response.status_code" => "http.status_code",
            name => name,
        };
        {
            let mut object = JsonObjectWriter::begin(out);
            object.text(known!("key"), name.as_bytes());
            match value {
                AttributeValue::Text(text) => object.text(known!("value"), text),
                AttributeValue::Number(number) => object.text(known!("value"), number.to_string().as_bytes()),
                AttributeValue::Texts(texts) => object.text(known!("value"), &texts.join(&b","[..])),
            }
        }
        out.push(b',');
    }
    if out.last() == Some(&b',') {
        out.pop();
    }
    out.push(b']');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_cut_between_its_letters() {
        assert_eq!(cut(&"a".repeat(200), MOST_OPERATION), "a".repeat(149));
        assert_eq!(cut(&"é".repeat(100), MOST_OPERATION), "é".repeat(74));
        assert_eq!(cut("GET /a", MOST_OPERATION), "GET /a");
    }
}
