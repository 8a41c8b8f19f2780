//! `otel_trace` and the directives with it (nginx's module for OpenTelemetry), as `opentelemetry`, whose collector the metadata of the
//! plugin names.

use super::Conversion;
use super::scope::{BlockScope, seconds};
use super::syntax::Directive;
use crate::output::ConvertedResource;
use crate::yaml::{Yaml, YamlMembers};

const PLUGIN: &str = "opentelemetry";
/// How many requests wait for the collector by default, and at most.
const QUEUE: i64 = 2_048;
const MOST_WAITING: i64 = 1_048_576;
/// The variable that says whether the caller has sampled the request.
const OF_CALLER: &str = "$otel_parent_sampled";

/// The plugin for the tracing in effect.
pub(super) fn plugin(conversion: &mut Conversion, scope: &BlockScope) -> Option<(String, Yaml)> {
    let trace = scope.last("otel_trace").filter(|trace| trace.argument(0) != "off")?;
    let Some(sampler) = sampler(conversion, trace) else {
        let text = "write `opentelemetry` with a `sampler`, such as `trace_id_ratio`";
        conversion.lost(&trace.place, format!("`{}`: {text}", trace.head()));
        return None;
    };
    let mut options = vec![("sampler".to_owned(), sampler)];
    let context = scope.last("otel_trace_context");
    if context.is_none_or(|context| context.argument(0) != "propagate") {
        let at = context.unwrap_or(trace);
        let text = format!("`{}`: the trace context is read from `traceparent` and sent to the upstream", at.head());
        conversion.differs_here_first("trace context", &at.place, text);
    }
    if let Some(name) = scope.last("otel_span_name") {
        conversion.lost(&name.place, format!("`{}`: spans are named by the method and the route", name.head()));
    }
    let attributes = attributes(conversion, scope);
    if !attributes.is_empty() {
        options.push(("additional_attributes".to_owned(), Yaml::texts(attributes)));
    }
    Some((PLUGIN.to_owned(), Yaml::Map(options)))
}

/// Variables as attributes of spans, which have the names of the variables.
fn attributes<'a>(conversion: &mut Conversion, scope: &BlockScope<'a>) -> Vec<&'a str> {
    let mut names = Vec::new();
    for attribute in scope.all("otel_span_attr") {
        let variable = attribute.argument(1).strip_prefix('$').map(|name| name.trim_matches(['{', '}']));
        let is_name = |name: &&str| name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_');
        match variable.filter(is_name).filter(|_| super::variables::unknown_in_answer(attribute.argument(1)).is_none())
        {
            Some(name) => {
                let text = format!("`{}`: the attribute has the name `{name}`", attribute.head());
                conversion.differs(&attribute.place, text);
                names.push(name);
            }
            None => {
                let text = "only a variable alone can be an attribute of spans; see `resource` of the metadata for a fixed one";
                conversion.lost(&attribute.place, format!("`{}`: {text}", attribute.head()));
            }
        }
    }
    names
}

fn sampler(conversion: &Conversion, trace: &Directive) -> Option<Yaml> {
    let named = |name: &str| Yaml::map([("name", Yaml::text(name))]);
    match trace.argument(0) {
        "on" => Some(named("always_on")),
        OF_CALLER => Some(named("parent_base")),
        variable => {
            let is_it = |block: &&Directive| block.name == "split_clients" && block.argument(1) == variable;
            let fraction = fraction(conversion.http.iter().find(is_it)?)?;
            let options = Yaml::map([("fraction", Yaml::number(fraction))]);
            Some(Yaml::map([("name", Yaml::text("trace_id_ratio")), ("options", options)]))
        }
    }
}

/// The part of the traces that `split_clients $otel_trace_id $v { 10% on; * off; }` samples.
fn fraction(split: &Directive) -> Option<f64> {
    let [on, rest @ ..] = split.children() else { return None };
    let is_rest = rest.len() <= 1 && rest.iter().all(|rest| rest.name == "*" && rest.argument(0) == "off");
    let percent: f64 = on.name.strip_suffix('%')?.parse().ok()?;
    (is_rest && split.argument(0) == "$otel_trace_id" && on.argument(0) == "on").then_some(percent / 100.0)
}

/// Whether a `split_clients` says which requests are traced.
pub(super) fn is_sampler(conversion: &Conversion, block: &Directive) -> bool {
    fn is_used(block: &[Directive], variable: &str) -> bool {
        let is_it = |child: &Directive| child.name == "otel_trace" && child.argument(0) == variable;
        block.iter().any(|child| is_it(child) || is_used(child.children(), variable))
    }
    block.name == "split_clients" && fraction(block).is_some() && is_used(conversion.http, block.argument(1))
}

/// Writes the metadata with the collector.
pub(super) fn carry_over(conversion: &mut Conversion) {
    let http = conversion.scope();
    let Some(exporter) = http.last("otel_exporter") else { return };
    let mut collector = YamlMembers::new();
    let mut batches = YamlMembers::new();
    let mut fields = YamlMembers::new();
    for child in exporter.children() {
        let value = child.argument(0);
        match child.name.as_str() {
            "endpoint" => {
                collector.push(("address".to_owned(), Yaml::text(value)));
                collector.push(("protocol".to_owned(), Yaml::text("grpc")));
            }
            "interval" => {
                let time = seconds(value).map(|time| ("batch_timeout".to_owned(), Yaml::number(time.max(0.1))));
                batches.extend(time);
            }
            "batch_size" => {
                let size = value.parse().ok().filter(|&size| size > 0).map(|size: i64| size.min(MOST_WAITING));
                batches.extend(size.map(|size| ("max_export_batch_size".to_owned(), Yaml::Integer(size))));
                let queue = size.filter(|&size| size > QUEUE);
                batches.extend(queue.map(|size| ("max_queue_size".to_owned(), Yaml::Integer(size))));
            }
            // How many batches wait, of which the default is enough here.
            "batch_count" => {}
            "header" => fields.push((value.to_owned(), Yaml::text(child.argument(1)))),
            _ => {
                let text = "the certificate of the collector is verified by the authorities of the system";
                conversion.lost(&child.place, format!("`{}` in `otel_exporter`: {text}", child.head()));
            }
        }
    }
    if !fields.is_empty() {
        collector.push(("request_headers".to_owned(), Yaml::Map(fields)));
    }
    let mut resource = vec![(
        "service.name".to_owned(),
        Yaml::text(http.value("otel_service_name").unwrap_or("unknown_service:nginx")),
    )];
    let attributes = http.all("otel_resource_attr").into_iter();
    resource.extend(attributes.map(|line| (line.argument(0).to_owned(), Yaml::text(line.argument(1)))));
    let mut members = vec![
        ("id".to_owned(), Yaml::text(PLUGIN)),
        ("collector".to_owned(), Yaml::Map(collector)),
        ("resource".to_owned(), Yaml::Map(resource)),
    ];
    if !batches.is_empty() {
        members.push(("batch_span_processor".to_owned(), Yaml::Map(batches)));
    }
    conversion.converted.plugin_metadata.push(ConvertedResource::new(&exporter.place, exporter.head(), members));
}

#[cfg(test)]
mod tests {
    use super::super::convert;

    fn converted(http: &str, location: &str) -> (String, Vec<String>) {
        let text = format!(
            "otel_exporter {{ endpoint 10.0.0.9:4317; interval 2s; batch_size 64; batch_count 4; header X-Key k; }}
             otel_service_name shop; otel_resource_attr deployment.environment test; {http}
             server {{ proxy_redirect off; location / {{ {location} proxy_pass http://a; }} }}"
        );
        let converted = convert("t", &text, &|_| Ok(Vec::new())).expect("correct");
        let found = converted.findings.iter().map(ToString::to_string).collect();
        (converted.yaml().replace(['{', '}', '"'], " ").split_whitespace().collect::<Vec<_>>().join(" "), found)
    }

    #[test]
    fn traces_go_to_the_collector_as_nginx_sends_them() {
        let (yaml, found) = converted("otel_trace_context propagate;", "otel_trace on;");
        let metadata = "plugin_metadata: # t:1: otel_exporter - id: opentelemetry collector: address: 10.0.0.9:4317 , protocol: grpc, \
                        request_headers: X-Key: k resource: service.name: shop, deployment.environment: test \
                        batch_span_processor: batch_timeout: 2, max_export_batch_size: 64";
        assert!(yaml.contains(metadata), "{yaml}");
        assert!(yaml.contains("opentelemetry: sampler: name: always_on"), "{yaml}");
        assert_eq!(found, [""; 0]);
        assert!(!converted("otel_trace on;", "otel_trace off;").0.contains("sampler"), "it is off");
    }

    #[test]
    fn a_batch_is_not_larger_than_the_queue() {
        for (size, expected) in [
            ("2048", "max_export_batch_size: 2048 "),
            ("4096", "max_export_batch_size: 4096, max_queue_size: 4096 "),
            ("9999999", "max_export_batch_size: 1048576, max_queue_size: 1048576 "),
        ] {
            let text = format!(
                "otel_exporter {{ endpoint a:1; batch_size {size}; }} server {{ location / {{ return 204; }} }}"
            );
            let yaml = convert("t", &text, &|_| Ok(Vec::new())).expect("correct").yaml().replace(['{', '}'], " ");
            let plain = yaml.split_whitespace().collect::<Vec<_>>().join(" ") + " ";
            assert!(plain.contains(expected), "{plain}");
        }
    }

    #[test]
    fn the_share_of_requests_is_carried_over() {
        let split = "otel_trace_context propagate; split_clients $otel_trace_id $ratio { 10% on; * off; }";
        let (yaml, found) = converted(split, "otel_trace $ratio;");
        assert!(yaml.contains("sampler: name: trace_id_ratio, options: fraction: 0.1"), "{yaml}");
        assert_eq!(found, [""; 0]);
        let (yaml, _) = converted("", "otel_trace $otel_parent_sampled;");
        assert!(yaml.contains("sampler: name: parent_base"), "{yaml}");
        let (yaml, found) = converted("", "otel_trace $http_x;");
        assert!(!yaml.contains("sampler:"), "{yaml}");
        assert!(found.iter().any(|found| found.contains("`otel_trace $http_x`: write `opentelemetry`")), "{found:?}");
    }

    #[test]
    fn differences_of_spans_are_told() {
        let (yaml, found) =
            converted("", "otel_trace on; otel_span_name x; otel_span_attr tenant $http_x_tenant; otel_span_attr a b;");
        assert!(yaml.contains("additional_attributes: [http_x_tenant]"), "{yaml}");
        for told in [
            "`otel_span_name x`: spans are named",
            "`otel_span_attr tenant $http_x_tenant`: the attribute has the name `http_x_tenant`",
            "`otel_span_attr a b`: only a variable alone",
            "`otel_trace on`: the trace context is read from `traceparent`",
        ] {
            assert!(found.iter().any(|found| found.contains(told)), "{told}: {found:?}");
        }
    }
}
