//! The health of endpoints, for `/status` and `/metrics`.

use serde_json::{Value, json};
use weir_gateway::DataPlane;
use weir_gateway::gateway::{EndpointFilter, EndpointHealth};
use weir_telemetry::page::Page;

/// The most endpoints with series of their own. `/status` shows all.
pub(super) const SERIES: usize = 1_000;

/// Endpoints on a page of `/status`.
const PAGE: usize = 1_000;

/// The filter in the query of `/status`: `upstream`, a part of a name; `up`, true or false; `page`, from 1.
pub(super) struct EndpointQuery {
    filter: EndpointFilter,
    page: usize,
}

impl EndpointQuery {
    /// # Errors
    /// The argument with an invalid value, and what would be right.
    pub(super) fn parse(query: &str) -> Result<EndpointQuery, &'static str> {
        let value = |name: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        let page = value("page").map_or(Ok(1), str::parse::<usize>).ok().filter(|page| *page > 0);
        let page = page.ok_or("the argument `page` must be a whole number, 1 or more")?;
        // The name of an inline upstream contains a slash, which clients may encode.
        let upstream = value("upstream").map(|name| name.replace("%2F", "/").replace("%2f", "/"));
        let is_up = value("up").map(str::parse).transpose().map_err(|_| "the argument `up` must be true or false")?;
        let skip = (page - 1).saturating_mul(PAGE);
        Ok(EndpointQuery { filter: EndpointFilter { upstream, is_up, skip, limit: PAGE }, page })
    }
}

/// The endpoints by upstream, and the totals.
pub(super) fn report(gateway: &DataPlane, query: &EndpointQuery) -> (Value, Value) {
    let page = gateway.endpoints(&query.filter);
    let upstreams = page.shown.chunk_by(|one, next| one.upstream == next.upstream);
    let all = |endpoints: &[EndpointHealth]| endpoints.iter().map(endpoint).collect::<Value>();
    let listed = upstreams.map(|endpoints| json!({ "name": endpoints[0].upstream, "endpoints": all(endpoints) }));
    let counts = json!({
        "upstreams": page.upstreams,
        "endpoints": page.endpoints,
        "up": page.up,
        "down": page.endpoints - page.up,
        "matching": page.matching,
        "page": query.page,
        "pages": page.matching.div_ceil(PAGE).max(1),
    });
    (listed.collect(), counts)
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

pub(super) fn write(gateway: &DataPlane, page: &mut Page) {
    let first = EndpointFilter { upstream: None, is_up: None, skip: 0, limit: SERIES };
    page.gauge("weir_upstream_endpoint_up", "Whether an endpoint is in rotation (1) or not (0).");
    for endpoint in &gateway.endpoints(&first).shown {
        let addr = endpoint.addr.to_string();
        page.value(&[("upstream", &endpoint.upstream), ("endpoint", &addr)], u8::from(endpoint.is_up));
    }
    page.gauge(
        "weir_names_without_series",
        "Number of routes, upstreams and endpoints without series of their own, by kind: they are summed under `(other)`.",
    );
    for (kind, count) in gateway.without_series() {
        page.value(&[("kind", kind)], count);
    }
    let (healthy, unhealthy) = gateway.checks();
    page.counter("weir_health_checks", "Active health checks, by outcome.");
    page.total(&[("outcome", "healthy")], healthy);
    page.total(&[("outcome", "unhealthy")], unhealthy);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_says_which_endpoints_are_shown() {
        let asked = EndpointQuery::parse("page=3&upstream=route%2F1&up=false").expect("valid");
        assert_eq!((asked.page, asked.filter.skip, asked.filter.is_up), (3, 2_000, Some(false)));
        assert_eq!(asked.filter.upstream.as_deref(), Some("route/1"));
        let all = EndpointQuery::parse("").expect("valid");
        assert_eq!((all.page, all.filter.skip, all.filter.is_up, all.filter.upstream), (1, 0, None, None));
        for (query, argument) in [("page=0", "`page`"), ("page=x", "`page`"), ("up=maybe", "`up`"), ("up=", "`up`")] {
            let error = EndpointQuery::parse(query).err().unwrap_or_else(|| panic!("{query} is taken"));
            assert!(error.contains(argument), "{query}: {error}");
        }
    }
}
