//! A request that the node sends to its own listener, to show how it is handled.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::http::uri::Authority;
use hyper::{Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use weir_client::{CallSettings, HttpClient, ServiceUrl};
use weir_control::admin::TracedRequest;
use weir_gateway::tail::{TRACE_FIELD, Tail, TailFilter};

use crate::node::listening::ClientListeners;
use crate::node::status;

/// How long the whole response may take.
const LONGEST: Duration = Duration::from_secs(30);
/// How long to wait for the gateway's report after the response.
const REPORT: Duration = Duration::from_secs(5);
/// The most bytes of a response; a longer one is not read to its end.
const MOST_CONTENT: usize = 1 << 20;
/// The most bytes of a response that are shown.
const MOST_SHOWN: usize = 64 << 10;
/// The most requests that are sent at a time.
const MOST_TRACES: usize = 4;

/// Sends requests to a listener of this node.
pub(super) struct OwnTraces {
    listeners: Arc<ClientListeners>,
    turn: Semaphore,
    client: HttpClient,
}

impl OwnTraces {
    pub(super) fn new(listeners: Arc<ClientListeners>) -> OwnTraces {
        OwnTraces { listeners, turn: Semaphore::new(MOST_TRACES), client: HttpClient::default() }
    }

    /// The first listener that is in the clear and without the PROXY protocol now.
    fn listener(&self) -> Option<SocketAddr> {
        let addr = self.listeners.in_the_clear()?;
        // Of a listener for all addresses, the loopback one.
        let ip = match addr.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        Some(SocketAddr::new(ip, addr.port()))
    }

    /// Sends a request, and waits for the response and the gateway's report.
    pub(super) async fn send(&self, wanted: TracedRequest) -> Response<Bytes> {
        let problem = |status: StatusCode, text: String| status::json(status, &json!({ "error_msg": text }));
        let Ok(_turn) = self.turn.try_acquire() else {
            return problem(
                StatusCode::TOO_MANY_REQUESTS,
                format!("{MOST_TRACES} requests are being traced; try again later"),
            );
        };
        let (name, url, request) = match self.prepared(wanted) {
            Ok(prepared) => prepared,
            Err(text) => return problem(StatusCode::BAD_REQUEST, text),
        };
        let mut tail = Tail::open(TailFilter::Trace(name.into()));
        let settings = CallSettings { timeout: LONGEST, max_content_bytes: MOST_CONTENT, ..CallSettings::default() };
        let begun = Instant::now();
        let answered = self.client.call(&url, request, &settings).await;
        let took_ms = begun.elapsed().as_secs_f64() * 1e3;
        let line = timeout(REPORT, std::future::poll_fn(|context| tail.poll_line(context))).await;
        let exchange: Value = match line {
            Ok(Some(line)) => serde_json::from_slice(line.as_ref()).unwrap_or_default(),
            _ => Value::Null,
        };
        let mut told = match answered {
            Ok(answer) => shown(&answer),
            Err(error) => json!({ "status": null, "error_msg": error.to_string() }),
        };
        told["took_ms"] = ((took_ms * 1e3).round() / 1e3).into();
        told["exchange"] = exchange;
        status::json(StatusCode::OK, &told)
    }

    /// The name of the trace, the listener's URL, and the request.
    fn prepared(&self, wanted: TracedRequest) -> Result<(String, ServiceUrl, Request<Bytes>), String> {
        let TracedRequest { method, url, headers, body } = wanted;
        let listener =
            self.listener().ok_or("no listener of this node is in the clear; use `weir trace` on the machine")?;
        let Some(rest) = url.strip_prefix("http://") else {
            return Err("only URLs with http:// can be sent; use `weir trace` for TLS".to_owned());
        };
        let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        authority.parse::<Authority>().map_err(|error| format!("`{authority}` is not a host: {error}"))?;
        let slash = if target.starts_with('/') { "" } else { "/" };
        let mut random = [0; 16];
        aws_lc_rs::rand::fill(&mut random).map_err(|_| "the random number generator failed")?;
        let name = hex::encode(random);
        let own = format!("http://{listener}/");
        let own = ServiceUrl::parse(&own).map_err(|error| format!("{own}: {error}"))?;
        if let Some((name, _)) = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(TRACE_FIELD)) {
            return Err(format!("the field `{name}` names the trace, and the node sets it; leave it out"));
        }
        let has_host = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host"));
        let mut request = Request::builder().method(&*method).uri(format!("{slash}{target}"));
        if !has_host {
            request = request.header("host", authority);
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.header(TRACE_FIELD, &name).body(Bytes::from(body));
        Ok((name, own, request.map_err(|error| format!("the request cannot be built: {error}"))?))
    }
}

fn shown(answer: &Response<Bytes>) -> Value {
    let fields: Vec<[String; 2]> = answer
        .headers()
        .iter()
        .map(|(name, value)| [name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()])
        .collect();
    let content = answer.body();
    let part = &content[..content.len().min(MOST_SHOWN)];
    json!({
        "status": answer.status().as_u16(),
        "headers": fields,
        "body": String::from_utf8_lossy(part),
        "truncated": part.len() < content.len(),
    })
}
