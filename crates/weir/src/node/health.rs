//! The health of endpoints, for `/status` and `/metrics`.

use serde_json::{Value, json};
use weir_gateway::Gateway;
use weir_gateway::gateway::EndpointHealth;
use weir_telemetry::exposition::Page;

/// Endpoints that get series of their own. Whoever has more looks at `/status`.
const SERIES: usize = 1_000;

/// Upstreams by name, each with its endpoints.
pub fn report(gateway: &Gateway) -> Value {
    let endpoints = gateway.endpoints();
    let upstreams = endpoints.chunk_by(|one, next| one.upstream == next.upstream);
    let all = |endpoints: &[EndpointHealth]| endpoints.iter().map(endpoint).collect::<Value>();
    upstreams.map(|endpoints| json!({ "name": endpoints[0].upstream, "endpoints": all(endpoints) })).collect()
}

fn endpoint(endpoint: &EndpointHealth) -> Value {
    json!({
        "name": endpoint.name,
        "address": endpoint.addr,
        "weight": endpoint.weight,
        "priority": endpoint.priority,
        "up": endpoint.is_up,
        "active_checks": endpoint.is_checked,
    })
}

pub fn write(gateway: &Gateway, page: &mut Page) {
    let endpoints = gateway.endpoints();
    page.gauge("weir_upstream_endpoint_up", "Whether an endpoint is in rotation.");
    for endpoint in endpoints.iter().take(SERIES) {
        let addr = endpoint.addr.to_string();
        page.value(&[("upstream", &endpoint.upstream), ("endpoint", &addr)], u8::from(endpoint.is_up));
    }
    let (healthy, unhealthy) = gateway.checks();
    page.counter("weir_health_checks", "Active health checks made, by what they found.");
    page.total(&[("outcome", "healthy")], healthy);
    page.total(&[("outcome", "unhealthy")], unhealthy);
}
