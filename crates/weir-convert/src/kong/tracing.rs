//! `opentelemetry`, whose collector the metadata of the plugin names.

use crate::document::DocumentValue;
use crate::yaml::{Yaml, YamlMembers};

/// The options that are converted, or concern how Kong sends spans.
pub(super) const OPTIONS: [&str; 14] = [
    "endpoint",
    "traces_endpoint",
    "headers",
    "resource_attributes",
    "sampling_rate",
    "sampling_strategy",
    "header_type",
    "batch_span_count",
    "batch_flush_delay",
    "connect_timeout",
    "send_timeout",
    "read_timeout",
    "queue",
    "propagation",
];
/// The part of the requests that Kong traces, unless the plugin or `kong.conf` says otherwise.
const SAMPLED: f64 = 0.01;
/// The path to which spans are sent.
const PATH: &str = "/v1/traces";

pub(super) const DIFFERENCE: &str = "`opentelemetry`: the trace context is read from and sent in `traceparent` only, and spans of phases are \
                                     left out; without a `sampling_rate`, one request in a hundred is traced";

/// The plugin for a route.
pub(super) fn converted(config: &DocumentValue) -> Result<(String, Yaml), &'static str> {
    metadata(config)?;
    let rate = config.text("sampling_rate").map_or(Ok(SAMPLED), str::parse::<f64>);
    let rate = rate.ok().filter(|rate| (0.0..=1.0).contains(rate)).ok_or("a `sampling_rate` outside of 0 to 1")?;
    let fraction = Yaml::map([("fraction", Yaml::number(rate))]);
    let root = Yaml::map([("name", Yaml::text("trace_id_ratio")), ("options", fraction)]);
    let sampler = Yaml::map([("name", Yaml::text("parent_base")), ("options", Yaml::map([("root", root)]))]);
    Ok(("opentelemetry".to_owned(), Yaml::map([("sampler", sampler)])))
}

/// The metadata of the plugin: the collector, and the attributes of all spans.
pub(super) fn metadata(config: &DocumentValue) -> Result<YamlMembers, &'static str> {
    let endpoint = config.text("traces_endpoint").or(config.text("endpoint")).ok_or("it has no `traces_endpoint`")?;
    let address = endpoint.strip_suffix(PATH).filter(|address| address.starts_with("http"));
    let address = address.ok_or("an endpoint with another path than `/v1/traces`, or from a vault")?;
    let mut collector = vec![("address".to_owned(), Yaml::text(address))];
    let texts = |name: &str| -> Option<YamlMembers> {
        let members = config.get(name).map(DocumentValue::members).unwrap_or_default();
        members.iter().map(|(name, value)| Some((name.clone(), Yaml::text(value.as_text()?)))).collect()
    };
    let fields = texts("headers").ok_or("`headers` with several values")?;
    let is_secret = |(_, value): &(String, Yaml)| matches!(value, Yaml::Text(text) if text.starts_with("{vault"));
    if fields.iter().any(is_secret) {
        return Err("`headers` from a vault; write `request_headers` of its `collector` in `plugin_metadata`");
    }
    if !fields.is_empty() {
        collector.push(("request_headers".to_owned(), Yaml::Map(fields)));
    }
    let mut resource = texts("resource_attributes").ok_or("`resource_attributes` that are no texts")?;
    if resource.iter().all(|(name, _)| name != "service.name") {
        resource.insert(0, ("service.name".to_owned(), Yaml::text("kong")));
    }
    Ok(vec![
        ("id".to_owned(), Yaml::text("opentelemetry")),
        ("collector".to_owned(), Yaml::Map(collector)),
        ("resource".to_owned(), Yaml::Map(resource)),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::convert;

    fn converted(config: &str, of_route: &str) -> (String, Vec<String>) {
        let text = format!(
            "_format_version: '3.0'\nplugins: [{{ name: opentelemetry, config: {{ {config} }} }}]\n\
             services: [{{ name: a, host: h, routes: [{{ name: r, paths: [/r] }}, {{ name: s, paths: [/s], plugins: [{of_route}] }}] }}]\n"
        );
        let converted = convert("t", &text).expect("correct");
        let found = converted.findings.iter().map(ToString::to_string).collect();
        let yaml = converted.yaml().replace(['{', '}', '"', ','], " ");
        (yaml.split_whitespace().collect::<Vec<_>>().join(" "), found)
    }

    #[test]
    fn spans_go_to_the_collector_of_the_plugin() {
        let (yaml, found) = converted(
            "traces_endpoint: 'http://otel:4318/v1/traces', sampling_rate: 0.5, headers: { X-Key: k }, resource_attributes: { service.name: edge }",
            "",
        );
        let metadata = "- id: opentelemetry collector: address: http://otel:4318 request_headers: X-Key: k resource: service.name: edge";
        assert!(yaml.contains(metadata), "{yaml}");
        assert_eq!(yaml.matches("root: name: trace_id_ratio options: fraction: 0.5").count(), 2, "{yaml}");
        assert!(found.len() == 1 && found[0].contains("`traceparent` only"), "{found:?}");
    }

    #[test]
    fn another_collector_than_the_first_is_told() {
        let other = "{ name: opentelemetry, config: { endpoint: 'http://other:4318/v1/traces' } }";
        let (yaml, found) = converted("endpoint: 'http://otel:4318/v1/traces'", other);
        assert_eq!(yaml.matches("id: opentelemetry").count(), 1, "{yaml}");
        assert_eq!(yaml.matches("fraction: 0.01").count(), 1, "{yaml}");
        assert!(found[0].contains("plugin `opentelemetry`: the collector is set once for the node"), "{found:?}");
        for (config, told) in [
            ("endpoint: 'http://otel:4318/spans'", "another path than `/v1/traces`"),
            (
                "endpoint: 'http://otel:4318/v1/traces', headers: { X-Key: '{vault://env/key}' }",
                "`headers` from a vault",
            ),
        ] {
            let (yaml, found) = converted(config, "");
            assert!(!yaml.contains("plugin_metadata:") && found[0].contains(told), "{found:?}");
        }
    }
}
