//! `GET /weir/v1/settings`: the settings of workers, of log records and of the connections to upstreams, as they are in use. None of them
//! is a secret.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use weir_gateway::snapshot::{ClientSettings, Concurrency, Upstream};

use super::answer::{self, AdminResponse, Refused};
use super::context::AdminContext;
use super::request::AdminRequest;
use crate::document::NodeSettings;

/// The most upstreams that are listed.
const MOST_UPSTREAMS: usize = 500;

/// Responds with the settings, each under its name in the configuration file.
pub(super) fn answer(context: &AdminContext, request: &AdminRequest) -> Refused<AdminResponse> {
    request.caller.needs_all("the settings of the node")?;
    let Some(running) = context.checker.publisher().running() else {
        let problem = json!({ "error_msg": "no configuration is served yet" });
        return Err(Box::new(answer::json_of(StatusCode::SERVICE_UNAVAILABLE, &problem)));
    };
    let upstreams = &running.snapshot.upstreams;
    let listed: Vec<Value> = upstreams.iter().take(MOST_UPSTREAMS).map(|(_, upstream)| pool(upstream)).collect();
    let body = json!({
        "workers": workers(&running.settings, (context.served)().len()),
        "records": {
            "records_threads": running.settings.records.threads,
            "records_max_memory": bytes(running.settings.records.memory),
        },
        "more": upstreams.len().saturating_sub(listed.len()),
        "upstreams": listed,
    });
    Ok(answer::json_of(StatusCode::OK, &body))
}

fn workers(settings: &NodeSettings, count: usize) -> Value {
    let ClientSettings { header_timeout, idle_timeout, keepalive_requests, body_bytes, http2, held, .. } =
        &settings.clients;
    json!({
        "worker_processes": count,
        "worker_shutdown_timeout": time(settings.worker_shutdown_timeout),
        "shutdown_delay": time(settings.shutdown_delay),
        "keepalive_timeout": time(*idle_timeout),
        "keepalive_requests": keepalive_requests,
        "client_header_timeout": time(*header_timeout),
        "client_max_body_size": body_bytes.map(bytes),
        "held_content_max": bytes(held.node),
        "enable_http2": if *http2 { "true" } else { "false" },
        "price_every": settings.price_every,
    })
}

/// What an upstream keeps and has in flight, for each worker and endpoint.
fn pool(upstream: &Upstream) -> Value {
    json!({
        "name": upstream.name,
        "endpoints": upstream.endpoints.len(),
        "size": upstream.keepalive.size,
        "idle_timeout": time(upstream.keepalive.idle_timeout),
        "requests": upstream.keepalive.requests,
        "in_flight": match upstream.concurrency {
            Concurrency::Auto => json!("auto"),
            Concurrency::Fixed(most) => json!(most),
            Concurrency::Unlimited => Value::Null,
        },
        "queue": upstream.queue.size,
    })
}

/// As configurations have it: `90s`, or `500ms`.
fn time(time: Duration) -> String {
    if time.subsec_millis() == 0 { format!("{}s", time.as_secs()) } else { format!("{}ms", time.as_millis()) }
}

fn bytes(count: u64) -> String {
    match count {
        count if count > 0 && count % (1 << 20) == 0 => format!("{}MiB", count >> 20),
        count if count > 0 && count % (1 << 10) == 0 => format!("{}KiB", count >> 10),
        count => format!("{count}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_configurations_have_them() {
        assert_eq!([1_500, 90_000, 0].map(|ms| time(Duration::from_millis(ms))), ["1500ms", "90s", "0s"]);
        assert_eq!([256 << 20, 1 << 10, 1_000, 0].map(bytes), ["256MiB", "1KiB", "1000", "0"]);
    }
}
