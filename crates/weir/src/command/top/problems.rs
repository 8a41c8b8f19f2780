//! The problems of a node, in words.

use super::format::{count, seconds};
use super::interval::ReadingPair;
use super::scrape::LabelValues;

/// The most problems shown; the tables and `/metrics` have all of them.
const SHOWN: usize = 5;
/// A certificate that expires within this time, in seconds, is a problem.
const SOON_S: f64 = 7.0 * 86_400.0;

/// One line per problem in the interval; those of the whole node come first. `now_s` is in seconds since 1970.
pub(super) fn problems(span: &ReadingPair<'_>, now_s: f64) -> Vec<String> {
    let mut all = Vec::new();
    configuration(span, &mut all);
    certificates(span, now_s, &mut all);
    connections(span, &mut all);
    logs(span, &mut all);
    policies(span, &mut all);
    endpoints(span, &mut all);
    if all.len() > SHOWN {
        let others = all.len() - SHOWN;
        all.truncate(SHOWN);
        all.push(format!("and {others} more problems"));
    }
    all
}

fn label<'a>(labels: &'a LabelValues, name: &str) -> &'a str {
    labels.get(name).map_or("", String::as_str)
}

const STORE_DOWN: &str =
    "the configuration store does not answer or has lost its resources, the last known resources stay in use";

fn configuration(span: &ReadingPair<'_>, all: &mut Vec<String>) {
    // A node without this series is an older version.
    if span.after.of("weir_config_last_reload_successful").iter().any(|(_, value)| *value == 0.0) {
        all.push("the last configuration was rejected, the previous one stays in use".to_owned());
    }
    if span.after.of("weir_store_up").iter().any(|(_, value)| *value == 0.0) {
        all.push(STORE_DOWN.to_owned());
    }
    let set_aside = span.after.sum("weir_resources_set_aside", &[]);
    if set_aside > 0.0 {
        all.push(format!("resources that cannot be served as they are in the store: {}", count(set_aside)));
    }
    if span.after.of("weir_store_writable").iter().any(|(_, value)| *value == 0.0) {
        all.push("changes cannot be written to the configuration store".to_owned());
    }
    for (labels, _) in span.after.of("weir_hub_up").iter().filter(|(_, is_up)| *is_up == 0.0) {
        all.push(format!("the hub {} cannot store events", label(labels, "hub")));
    }
    for (labels, failing) in
        span.after.of("weir_hub_failing_subscriptions").iter().filter(|(_, failing)| *failing > 0.0)
    {
        let hub = label(labels, "hub");
        all.push(format!(
            "the hub {hub} cannot deliver, subscriptions whose last delivery has failed: {}",
            count(*failing)
        ));
    }
    for (labels, _) in span.after.of("weir_hub_outcomes_total") {
        let (hub, outcome) = (label(labels, "hub"), label(labels, "outcome"));
        let given_up = span.rate("weir_hub_outcomes_total", &[("hub", hub), ("outcome", outcome)]);
        if outcome == "dead_lettered" && given_up > 0.0 {
            all.push(format!("the hub {hub} gives up on deliveries, new dead letters: {}/s", count(given_up)));
        }
    }
    let unresolved = span.after.sum("weir_names_unresolved", &[]);
    if unresolved > 0.0 {
        all.push(format!("names that cannot be resolved: {}", count(unresolved)));
    }
}

fn certificates(span: &ReadingPair<'_>, now_s: f64, all: &mut Vec<String>) {
    for (labels, failures) in span.after.of("weir_acme_failures").iter().filter(|(_, failures)| *failures > 0.0) {
        let host = label(labels, "host");
        all.push(format!("the certificate of {host} cannot be obtained, failed orders in a row: {}", count(*failures)));
    }
    for (labels, at) in span.after.of("weir_acme_certificate_expiry_timestamp_seconds") {
        if at - now_s <= 0.0 {
            all.push(format!("the automatic certificate of {} has expired", label(labels, "host")));
        }
    }
    for (labels, at) in span.after.of("weir_certificate_expiry_timestamp_seconds") {
        let (name, left) = (label(labels, "certificate"), at - now_s);
        if left <= 0.0 {
            all.push(format!("the certificate of {name} has expired"));
        } else if left <= SOON_S {
            all.push(format!("the certificate of {name} expires in {}", seconds(left)));
        }
    }
}

fn connections(span: &ReadingPair<'_>, all: &mut Vec<String>) {
    if span.rate("weir_client_connections_full_seconds_total", &[]) > 0.0 {
        let closed = span.rate("weir_client_connections_shed_total", &[]);
        all.push(format!(
            "the connection limit of a worker is reached, {} idle connections/s are closed",
            count(closed)
        ));
    }
}

fn logs(span: &ReadingPair<'_>, all: &mut Vec<String>) {
    for (name, counter) in [("access", "weir_access_log_lines_total"), ("audit", "weir_audit_log_lines_total")] {
        let lost = span.rate(counter, &[("outcome", "dropped")]);
        if lost > 0.0 {
            all.push(format!("the {name} log loses {} lines/s", count(lost)));
        }
    }
    for (labels, _) in span.after.of("weir_log_sink_up").iter().filter(|(_, is_up)| *is_up == 0.0) {
        all.push(format!("the log destination {} is down", label(labels, "sink")));
    }
}

fn policies(span: &ReadingPair<'_>, all: &mut Vec<String>) {
    for (labels, _) in span.after.of("weir_policy_errors_total") {
        let (route, policy) = (label(labels, "route"), label(labels, "policy"));
        let errors = span.rate("weir_policy_errors_total", &[("route", route), ("policy", policy)]);
        if errors > 0.0 {
            all.push(format!("the plugin {policy} of the route {route} fails, {}/s", count(errors)));
        }
    }
}

fn endpoints(span: &ReadingPair<'_>, all: &mut Vec<String>) {
    for (labels, _) in span.after.of("weir_upstream_endpoint_up").iter().filter(|(_, is_up)| *is_up == 0.0) {
        let (upstream, endpoint) = (label(labels, "upstream"), label(labels, "endpoint"));
        all.push(format!("the endpoint {endpoint} of {upstream} is out of rotation"));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::scrape::Scrape;
    use super::*;

    fn told(before: &str, after: &str) -> Vec<String> {
        let at = Instant::now();
        let (before, after) = (Scrape::parse(before, at), Scrape::parse(after, at));
        problems(&ReadingPair { before: &before, after: &after, seconds: 2.0 }, 1_000.0)
    }

    #[test]
    fn a_node_in_order_has_no_problems() {
        let page = "weir_config_last_reload_successful 1\nweir_names_unresolved 0\nweir_store_up 1\n\
                    weir_certificate_expiry_timestamp_seconds{certificate=\"a\"} 9000000\n\
                    weir_access_log_lines_total{outcome=\"dropped\"} 7\nweir_log_sink_up{sink=\"s\"} 1\n\
                    weir_policy_errors_total{route=\"r\",policy=\"p\"} 4\n\
                    weir_upstream_endpoint_up{upstream=\"u\",endpoint=\"h:1\"} 1\n";
        assert_eq!(told(page, page), Vec::<String>::new());
    }

    #[test]
    fn a_node_whose_clients_use_up_its_connections_has_a_problem() {
        let page = |full: u32, shed: u32| {
            format!("weir_client_connections_full_seconds_total {full}\nweir_client_connections_shed_total {shed}\n")
        };
        let problem = "the connection limit of a worker is reached, 15 idle connections/s are closed";
        assert_eq!(told(&page(7, 10), &page(9, 40)), [problem]);
        assert_eq!(told(&page(9, 40), &page(9, 40)), Vec::<String>::new());
    }

    #[test]
    fn a_full_disk_of_a_hub_or_a_store_is_a_problem() {
        let page = |up: u8| format!("weir_hub_up{{hub=\"h\"}} {up}\nweir_store_writable {up}\n");
        assert_eq!(told("", &page(1)), Vec::<String>::new());
        let problems = ["changes cannot be written to the configuration store", "the hub h cannot store events"];
        assert_eq!(told("", &page(0)), problems);
    }

    #[test]
    fn failing_deliveries_and_new_dead_letters_of_a_hub_are_problems() {
        let page = |failing: u32, dead: u32| {
            format!(
                "weir_hub_failing_subscriptions{{hub=\"h\"}} {failing}\n\
                 weir_hub_outcomes_total{{hub=\"h\",outcome=\"delivered\"}} {dead}\n\
                 weir_hub_outcomes_total{{hub=\"h\",outcome=\"dead_lettered\"}} {dead}\n"
            )
        };
        assert_eq!(told(&page(0, 4), &page(0, 4)), Vec::<String>::new());
        let failing = "the hub h cannot deliver, subscriptions whose last delivery has failed: 3";
        assert_eq!(told(&page(0, 4), &page(3, 4)), [failing]);
        let given_up = "the hub h gives up on deliveries, new dead letters: 5/s";
        assert_eq!(told(&page(0, 4), &page(3, 14)), [failing, given_up]);
    }

    #[test]
    fn each_problem_is_told_in_words_and_many_are_counted() {
        let before = "weir_access_log_lines_total{outcome=\"dropped\"} 7\n";
        let after = "weir_config_last_reload_successful 0\nweir_names_unresolved 2\n\
                     weir_certificate_expiry_timestamp_seconds{certificate=\"a\"} 999\n\
                     weir_certificate_expiry_timestamp_seconds{certificate=\"b\"} 4600\n\
                     weir_access_log_lines_total{outcome=\"dropped\"} 17\n";
        let five = [
            "the last configuration was rejected, the previous one stays in use",
            "names that cannot be resolved: 2",
            "the certificate of a has expired",
            "the certificate of b expires in 60 min",
            "the access log loses 5 lines/s",
        ];
        assert_eq!(told(before, after), five);
        assert_eq!(told("", "weir_store_up 0\n"), [STORE_DOWN]);
        let of_acme = "weir_acme_failures{host=\"a\"} 2\nweir_acme_certificate_expiry_timestamp_seconds{host=\"a\"} 5\n\
                       weir_acme_failures{host=\"b\"} 0\n";
        let failed = "the certificate of a cannot be obtained, failed orders in a row: 2";
        assert_eq!(told("", of_acme), [failed, "the automatic certificate of a has expired"]);
        let set_aside = "resources that cannot be served as they are in the store: 2";
        assert_eq!(told("", "weir_resources_set_aside 2\n"), [set_aside]);
        let more = "weir_log_sink_up{sink=\"s\"} 0\nweir_policy_errors_total{route=\"r\",policy=\"p\"} 4\n\
                    weir_upstream_endpoint_up{upstream=\"u\",endpoint=\"h:1\"} 0\n";
        assert_eq!(told(before, &format!("{after}{more}"))[5], "and 3 more problems");
        assert_eq!(
            told("", more),
            [
                "the log destination s is down",
                "the plugin p of the route r fails, 2/s",
                "the endpoint h:1 of u is out of rotation"
            ]
        );
    }
}
