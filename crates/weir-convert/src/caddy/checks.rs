//! Health checks of a `reverse_proxy`, as `checks` of the upstream.

use super::units::seconds;
use crate::SourcePlace;
use crate::directive::Directive;
use crate::output::Converted;
use crate::yaml::{Yaml, YamlMembers};

/// Caddy's defaults for the interval and the time-out, in seconds.
const INTERVAL: i64 = 30;
const TIMEOUT: i64 = 5;
/// The most results in a row that `checks` counts.
const MOST_RESULTS: i64 = 254;

#[derive(Default)]
pub(super) struct HealthChecks {
    active: YamlMembers,
    healthy: YamlMembers,
    interval: Option<Yaml>,
    /// For how many seconds an endpoint rests, after how many failures, and the statuses that are failures.
    pause: Option<f64>,
    failures: Option<i64>,
    bad_statuses: Option<Yaml>,
    /// The lines that need a `fail_duration`.
    passive: Vec<(SourcePlace, String)>,
}

/// A YAML number; without decimals if it is whole.
pub(super) fn number(value: f64) -> Yaml {
    if value.fract() == 0.0 { Yaml::Integer(value as i64) } else { Yaml::Decimal(value) }
}

/// `200`, or `2xx` as the common statuses of this class.
fn statuses(texts: &[String]) -> Yaml {
    let each = texts.iter().flat_map(|text| {
        match (text.parse(), text.strip_suffix("xx").and_then(|kind| kind.parse().ok())) {
            (Ok(status), _) => vec![status],
            (_, Some(2)) => (200..=206).collect(),
            (_, Some(5)) => (500..=505).collect(),
            (_, Some(kind @ 3..=4)) => (kind * 100..kind * 100 + if kind == 4 { 30 } else { 9 }).collect(),
            _ => Vec::new(),
        }
    });
    Yaml::List(each.map(Yaml::Integer).collect())
}

/// A count of results in a row, of which only so many are counted.
fn most(converted: &mut Converted, line: &Directive, count: i64) -> i64 {
    if count > MOST_RESULTS {
        converted.differs(&line.place, format!("`{}`: at most {MOST_RESULTS} are counted", line.head()));
    }
    count.min(MOST_RESULTS)
}

impl HealthChecks {
    /// Reads a line of a `reverse_proxy`; `false` if it is not about health checks.
    pub(super) fn read(&mut self, converted: &mut Converted, line: &Directive) -> bool {
        let value = line.argument(0);
        let mut active = |name: &str, value: Yaml| self.active.push((name.to_owned(), value));
        match line.name.as_str() {
            "health_uri" => active("http_path", Yaml::text(value)),
            "health_port" => active("port", Yaml::Integer(value.parse().unwrap_or(80))),
            "health_timeout" => active("timeout", number(seconds(value).unwrap_or(TIMEOUT as f64))),
            "health_method" => active("http_method", Yaml::text(value)),
            "health_headers" => {
                let lines = line.children().iter().map(|field| format!("{}: {}", field.name, field.argument(0)));
                active("req_headers", Yaml::texts(lines));
            }
            "health_status" => self
                .healthy
                .push(("http_statuses".to_owned(), statuses(&line.arguments[..1.min(line.arguments.len())]))),
            "health_interval" => self.interval = seconds(value).map(number),
            "health_passes" => {
                let count = most(converted, line, value.parse().unwrap_or(1));
                self.healthy.push(("successes".to_owned(), Yaml::Integer(count)));
            }
            "health_fails" => {}
            "health_body" => converted
                .lost(&line.place, "`health_body`: health checks here compare the status, and do not read the body"),
            "fail_duration" => {
                self.pause = seconds(value).filter(|pause| *pause > 0.0);
                let text = "`fail_duration`: an endpoint is taken out for so long, and longer if it fails again; failures are counted in a \
                            row, not within this time";
                converted.differs(&line.place, text);
            }
            "max_fails" => {
                self.failures = value.parse().ok().map(|count| most(converted, line, count));
                self.passive.push((line.place.clone(), line.head()));
            }
            "unhealthy_status" => {
                self.bad_statuses = Some(statuses(&line.arguments));
                self.passive.push((line.place.clone(), line.head()));
            }
            "unhealthy_latency" => converted.lost(&line.place, "`unhealthy_latency`: see `type: least_time`"),
            "unhealthy_request_count" => {
                let text = "`unhealthy_request_count`: see `concurrency` of the upstream, which limits each endpoint";
                converted.lost(&line.place, text);
            }
            _ => return false,
        }
        true
    }

    /// Reports the lines about failures without a time that they count for.
    pub(super) fn tell_unused(&self, converted: &mut Converted) {
        for (place, head) in self.passive.iter().filter(|_| self.pause.is_none()) {
            converted.lost(place, format!("`{head}`: without `fail_duration`, Caddy does not count failures"));
        }
    }

    /// Builds `checks` of the upstream.
    pub(super) fn members(&mut self, is_tls: bool) -> Option<(String, Yaml)> {
        let mut checks = YamlMembers::new();
        if self.active.iter().any(|(name, _)| ["http_path", "port"].contains(&name.as_str())) {
            let mut active = vec![("type".to_owned(), Yaml::text(if is_tls { "https" } else { "http" }))];
            active.append(&mut self.active);
            if !active.iter().any(|(name, _)| name == "timeout") {
                active.push(("timeout".to_owned(), Yaml::Integer(TIMEOUT)));
            }
            let interval = ("interval".to_owned(), self.interval.take().unwrap_or(Yaml::Integer(INTERVAL)));
            let mut healthy = vec![interval.clone()];
            healthy.append(&mut self.healthy);
            let of = |name: &str, default: Yaml| (name.to_owned(), default);
            for (name, default) in
                [of("http_statuses", statuses(&["2xx".to_owned()])), of("successes", Yaml::Integer(1))]
            {
                if !healthy.iter().any(|(known, _)| *known == name) {
                    healthy.push((name, default));
                }
            }
            active.push(("healthy".to_owned(), Yaml::Map(healthy)));
            let failures =
                ["http_failures", "tcp_failures", "timeouts"].map(|name| (name.to_owned(), Yaml::Integer(1)));
            active.push(("unhealthy".to_owned(), Yaml::Map([vec![interval], failures.to_vec()].concat())));
            checks.push(("active".to_owned(), Yaml::Map(active)));
        }
        checks.extend(self.passive());
        (!checks.is_empty()).then(|| ("checks".to_owned(), Yaml::Map(checks)))
    }

    /// Passive checks, which Caddy has with a `fail_duration` only.
    fn passive(&mut self) -> Option<(String, Yaml)> {
        let pause = self.pause?;
        let count = Yaml::Integer(self.failures.unwrap_or(1));
        let mut unhealthy = vec![
            ("tcp_failures".to_owned(), count.clone()),
            ("timeouts".to_owned(), count.clone()),
            // Without `unhealthy_status`, no status is a failure.
            ("http_failures".to_owned(), if self.bad_statuses.is_some() { count } else { Yaml::Integer(0) }),
            ("interval".to_owned(), number(pause)),
        ];
        unhealthy.extend(self.bad_statuses.take().map(|statuses| ("http_statuses".to_owned(), statuses)));
        Some(("passive".to_owned(), Yaml::map([("unhealthy", Yaml::Map(unhealthy))])))
    }
}
