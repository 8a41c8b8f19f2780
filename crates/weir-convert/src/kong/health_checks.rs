//! `healthchecks` of an upstream, as `checks`.

use crate::conversion::DocumentConversion;
use crate::document::DocumentValue;
use crate::yaml::{Yaml, YamlMembers};

/// The most results in a row that `checks` counts.
const MOST_RESULTS: i64 = 254;
const COUNTS: [&str; 3] = ["http_failures", "tcp_failures", "timeouts"];
/// The members of active checks that are converted.
const ACTIVE: [&str; 9] = [
    "type",
    "http_path",
    "timeout",
    "concurrency",
    "https_verify_certificate",
    "headers",
    "healthy",
    "unhealthy",
    "https_sni",
];

/// The member `checks` of an upstream.
pub(super) fn checks(conversion: &mut DocumentConversion, checks: &DocumentValue) -> Option<(String, Yaml)> {
    let active = checks.get("active").and_then(|active| self::active(conversion, active));
    let passive = checks.get("passive").map(passive);
    if checks.get("passive").is_some_and(takes_out) && active.is_none() {
        let text = "`healthchecks`: an endpoint that passive checks have taken out is tried again after a pause; in Kong it stays out";
        conversion.differs(checks, text);
    }
    if let Some(threshold) = checks.get("threshold").filter(|threshold| threshold.as_text() != Some("0")) {
        conversion.lost(threshold, "`threshold` of `healthchecks`: see `all_down` of the upstream");
    }
    let both: YamlMembers = active.into_iter().chain(passive).collect();
    (!both.is_empty()).then(|| ("checks".to_owned(), Yaml::Map(both)))
}

/// Requests to endpoints, which Kong sends if there is an interval.
fn active(conversion: &mut DocumentConversion, active: &DocumentValue) -> Option<(String, Yaml)> {
    let interval = |side: &str| {
        let interval = active.get(side).and_then(|side| side.text("interval")?.parse::<f64>().ok());
        interval.filter(|interval| *interval > 0.0)
    };
    let (healthy, unhealthy) = (interval("healthy"), interval("unhealthy"));
    if healthy.is_none() != unhealthy.is_none() {
        let text = "active `healthchecks`: endpoints are checked both in and out of rotation, at the one interval";
        conversion.differs(active, text);
    }
    let (healthy, unhealthy) = (healthy.or(unhealthy)?, unhealthy.or(healthy)?);
    let mut options = vec![("type".to_owned(), Yaml::text(active.text("type").unwrap_or("http")))];
    options.extend(active.text("http_path").map(|path| ("http_path".to_owned(), Yaml::text(path))));
    let timeout = active.text("timeout").and_then(|timeout| timeout.parse().ok());
    options.extend(timeout.map(|timeout| ("timeout".to_owned(), Yaml::number(timeout))));
    options.extend(active.number("concurrency").map(|number| ("concurrency".to_owned(), Yaml::Integer(number))));
    if active.text("https_verify_certificate") == Some("false") {
        options.push(("https_verify_certificate".to_owned(), Yaml::Boolean(false)));
    }
    let fields = active.get("headers").map(DocumentValue::members).unwrap_or_default().iter();
    let lines: Vec<String> = fields
        .flat_map(|(name, values)| {
            values.items().iter().filter_map(move |value| Some(format!("{name}: {}", value.as_text()?)))
        })
        .collect();
    if !lines.is_empty() {
        options.push(("req_headers".to_owned(), Yaml::texts(lines)));
    }
    for (name, value) in
        active.members().iter().filter(|(name, _)| name == "https_sni" || !ACTIVE.contains(&name.as_str()))
    {
        if value.as_text().is_some() {
            conversion.lost(value, format!("`{name}` of active `healthchecks`"));
        }
    }
    // A count of 0 is one that is never reached.
    let count = |side: &str, name: &str| match active.get(side).and_then(|side| side.number(name)).unwrap_or(0) {
        0 => MOST_RESULTS,
        count => count.clamp(1, MOST_RESULTS),
    };
    let mut good = vec![("interval".to_owned(), Yaml::number(healthy))];
    good.extend(active.get("healthy").and_then(statuses));
    good.push(("successes".to_owned(), Yaml::Integer(count("healthy", "successes"))));
    let mut bad = vec![("interval".to_owned(), Yaml::number(unhealthy))];
    bad.extend(active.get("unhealthy").and_then(statuses));
    bad.extend(COUNTS.map(|name| (name.to_owned(), Yaml::Integer(count("unhealthy", name)))));
    options.push(("healthy".to_owned(), Yaml::Map(good)));
    options.push(("unhealthy".to_owned(), Yaml::Map(bad)));
    Some(("active".to_owned(), Yaml::Map(options)))
}

/// How often results of this kind have to follow each other; 0 if they do not count.
fn passive_count(passive: &DocumentValue, side: &str, name: &str) -> i64 {
    passive.get(side).and_then(|side| side.number(name)).unwrap_or(0).clamp(0, MOST_RESULTS)
}

/// Whether results of requests take an endpoint out.
fn takes_out(passive: &DocumentValue) -> bool {
    COUNTS.iter().any(|name| passive_count(passive, "unhealthy", name) > 0)
}

/// What the results of requests say.
fn passive(passive: &DocumentValue) -> (String, Yaml) {
    let count = |side: &str, name: &str| passive_count(passive, side, name);
    if !takes_out(passive) {
        let never = COUNTS.map(|name| (name.to_owned(), Yaml::Integer(0)));
        return ("passive".to_owned(), Yaml::map([("unhealthy", Yaml::Map(never.to_vec()))]));
    }
    let mut good: YamlMembers = passive.get("healthy").and_then(statuses).into_iter().collect();
    good.push(("successes".to_owned(), Yaml::Integer(count("healthy", "successes"))));
    let mut bad: YamlMembers = passive.get("unhealthy").and_then(statuses).into_iter().collect();
    bad.extend(COUNTS.map(|name| (name.to_owned(), Yaml::Integer(count("unhealthy", name)))));
    let both = [("healthy", Yaml::Map(good)), ("unhealthy", Yaml::Map(bad))];
    ("passive".to_owned(), Yaml::map(both))
}

fn statuses(side: &DocumentValue) -> Option<(String, Yaml)> {
    let statuses: Vec<Yaml> = side
        .list("http_statuses")
        .iter()
        .filter_map(|status| status.as_text()?.parse().ok())
        .filter(|status| (200..600).contains(status))
        .map(Yaml::Integer)
        .collect();
    (!statuses.is_empty()).then(|| ("http_statuses".to_owned(), Yaml::List(statuses)))
}

#[cfg(test)]
mod tests {
    use super::super::convert;

    fn converted(checks: &str) -> (String, Vec<String>) {
        let text = format!(
            "_format_version: '3.0'\nservices: [{{ name: a, host: u, routes: [{{ name: r, paths: [/] }}] }}]\n\
             upstreams: [{{ name: u, targets: [{{ target: 'h:1' }}], healthchecks: {{ {checks} }} }}]\n"
        );
        let converted = convert("t", &text).expect("correct");
        let checks = converted.upstreams[0].members.iter().find(|(name, _)| name == "checks");
        let found = converted.findings.iter().map(ToString::to_string).collect();
        (checks.map_or_else(String::new, |(_, checks)| checks.flow()), found)
    }

    #[test]
    fn checks_of_upstreams_are_carried_over() {
        let (checks, found) = converted(
            "active: { type: https, http_path: /up, timeout: 2, headers: { X-A: [b, c] }, https_verify_certificate: false, \
             healthy: { interval: 5, successes: 1 }, unhealthy: { interval: 2, http_failures: 3, http_statuses: [500, 503] } }, \
             passive: { healthy: { successes: 4, http_statuses: [200, 101] }, unhealthy: { tcp_failures: 2 } }, threshold: 0",
        );
        let active = "active: { type: https, http_path: /up, timeout: 2, https_verify_certificate: false, req_headers: [\"X-A: b\", \"X-A: c\"], \
                      healthy: { interval: 5, successes: 1 }, unhealthy: { interval: 2, http_statuses: [500, 503], http_failures: 3, \
                      tcp_failures: 254, timeouts: 254 } }";
        let passive = "passive: { healthy: { http_statuses: [200], successes: 4 }, unhealthy: { http_failures: 0, tcp_failures: 2, timeouts: 0 } }";
        assert_eq!(checks, format!("{{ {active}, {passive} }}"));
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn checks_that_kong_does_not_make_are_left_out() {
        let off = "active: { healthy: { interval: 0 }, unhealthy: { interval: 0, timeouts: 3 } }, passive: { unhealthy: { timeouts: 0 } }";
        let never = "{ passive: { unhealthy: { http_failures: 0, tcp_failures: 0, timeouts: 0 } } }";
        assert_eq!(converted(off), (never.to_owned(), Vec::new()));
        let (off, _) = off.split_once(", passive").expect("both");
        assert_eq!(converted(off), (String::new(), Vec::new()));
        let (checks, found) = converted("passive: { unhealthy: { timeouts: 3 } }, threshold: 50");
        assert!(checks.contains("timeouts: 3"), "{checks}");
        assert!(found[0].contains("`threshold` of `healthchecks`"), "{found:?}");
        assert!(found[1].contains("in Kong it stays out"), "{found:?}");
        let (checks, found) = converted("active: { https_sni: a.example, unhealthy: { interval: 3 } }");
        assert!(checks.contains("healthy: { interval: 3, "), "{checks}");
        assert!(found[0].contains("`https_sni`") && found[1].contains("both in and out of rotation"), "{found:?}");
    }
}
