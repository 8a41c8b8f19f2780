//! Encodes spans as JSON for version 2 of Zipkin's API.

use std::net::{IpAddr, SocketAddr};

use weir_otlp::span::{AttributeValue, SpanKind, TraceSpan};

use super::note::TraceNote;
use crate::log::json::{JsonObjectWriter, known};

/// Writes the spans of one service.
pub(crate) struct ZipkinWriter {
    pub service: String,
    /// The address of the gateway, if it is not the one that the client is connected to.
    pub local: Option<IpAddr>,
}

impl ZipkinWriter {
    /// Appends a span as a JSON object, followed by a comma.
    pub(crate) fn write(&self, out: &mut Vec<u8>, span: &TraceSpan<'_>, note: &TraceNote) {
        {
            let mut object = JsonObjectWriter::begin(out);
            let digits = if note.is_short { 16 } else { 32 };
            object.text(known!("traceId"), format!("{:0digits$x}", span.trace).as_bytes());
            object.text(known!("id"), format!("{:016x}", span.id).as_bytes());
            if span.parent != 0 {
                object.text(known!("parentId"), format!("{:016x}", span.parent).as_bytes());
            }
            object.text(known!("name"), &span.name);
            object.text(known!("kind"), if span.kind == SpanKind::Server { b"SERVER" } else { b"CLIENT" });
            object.number(known!("timestamp"), span.start_ns / 1000);
            // At least 1: zero would mean that the duration is unknown.
            object.number(known!("duration"), (span.end_ns.saturating_sub(span.start_ns) / 1000).max(1));
            if note.is_debug {
                object.raw(b"debug", b"true");
            }
            {
                let mut local = object.object(known!("localEndpoint"));
                local.text(known!("serviceName"), self.service.as_bytes());
                let addr = self.local.map(|ip| SocketAddr::new(ip, span.local.map_or(0, |local| local.port())));
                endpoint(&mut local, addr.or(span.local));
            }
            endpoint(&mut object.object(known!("remoteEndpoint")), span.peer);
            let mut tags = object.object(known!("tags"));
            for (name, value) in &span.attributes {
                match value {
                    AttributeValue::Text(text) => tags.text_bytes(name.as_bytes(), text),
                    AttributeValue::Number(number) => tags.text_bytes(name.as_bytes(), number.to_string().as_bytes()),
                    AttributeValue::Texts(texts) => tags.text_bytes(name.as_bytes(), &texts.join(&b","[..])),
                }
            }
            if let Some(error) = span.error.as_ref().filter(|_| span.is_failed) {
                tags.text(known!("error"), error.as_bytes());
            }
        }
        out.push(b',');
    }
}

fn endpoint(object: &mut JsonObjectWriter<'_>, addr: Option<SocketAddr>) {
    let Some(addr) = addr else { return };
    object.text(if addr.is_ipv4() { known!("ipv4") } else { known!("ipv6") }, addr.ip().to_string().as_bytes());
    if addr.port() != 0 {
        object.number(known!("port"), addr.port().into());
    }
}
