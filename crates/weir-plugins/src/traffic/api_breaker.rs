use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_net::backoff::Backoff;
use weir_plugin::{
    Build, CollectAll, ConfigError, Definition, Exchange, Flow, NoteKey, Phases, Plugin, Stage, Stop, Template,
};

use crate::clock;
use crate::options::headers::header_name;
use crate::store::counters::{self, CounterKey, CounterTable, PackedCounter};

/// Stops sending requests to an upstream that keeps failing, and tries again after a pause (circuit breaker).
///
/// Failures are counted by host and path, over all workers. After every `unhealthy.failures` failures the circuit
/// opens, and the gateway answers requests itself: for 2 seconds the first time, then for 4, 8 and so on, up to
/// `max_breaker_sec`. `healthy.successes` successful responses in a row reset the count.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApiBreaker {
    /// The status of the gateway's own responses while the circuit is open, 200 to 599.
    #[schemars(range(min = 200, max = 599))]
    break_response_code: u16,
    /// The body of these responses, which may contain `$variables`. Without it, the gateway's short default text.
    break_response_body: Option<String>,
    /// Header fields of these responses. Values may contain `$variables`.
    #[serde(default)]
    break_response_headers: Vec<FieldOptions>,
    /// The longest time, in seconds, for which the circuit stays open; at least 3.
    #[serde(default = "default_max_breaker_sec")]
    #[schemars(range(min = 3, max = 86_400))]
    #[schemars(extend("x-weir-unit" = "s"))]
    max_breaker_sec: u64,
    /// Which responses count as failures.
    #[serde(default)]
    unhealthy: Unhealthy,
    /// Which responses count as successful.
    #[serde(default)]
    healthy: Healthy,
}

/// One header field.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FieldOptions {
    /// The field's name.
    key: String,
    /// The field's value.
    value: String,
}

/// Which responses count as failures.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Unhealthy {
    /// Statuses of the upstream that count as failures, 500 to 599.
    #[serde(default = "default_unhealthy_statuses")]
    #[schemars(length(min = 1), inner(range(min = 500, max = 599)), extend("uniqueItems" = true))]
    http_statuses: Vec<u16>,
    /// The number of failures after which the circuit opens.
    #[serde(default = "default_threshold")]
    #[schemars(range(min = 1, max = MAX_COUNT))]
    failures: u64,
}

/// Which responses count as successful.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Healthy {
    /// Statuses of the upstream that count as successful, 200 to 499.
    #[serde(default = "default_healthy_statuses")]
    #[schemars(length(min = 1), inner(range(min = 200, max = 499)), extend("uniqueItems" = true))]
    http_statuses: Vec<u16>,
    /// The number of successful responses in a row that resets the count of failures.
    #[serde(default = "default_threshold")]
    #[schemars(range(min = 1, max = MAX_COUNT))]
    successes: u64,
}

impl Default for Unhealthy {
    fn default() -> Unhealthy {
        Unhealthy { http_statuses: default_unhealthy_statuses(), failures: default_threshold() }
    }
}

impl Default for Healthy {
    fn default() -> Healthy {
        Healthy { http_statuses: default_healthy_statuses(), successes: default_threshold() }
    }
}

fn default_unhealthy_statuses() -> Vec<u16> {
    vec![500]
}

fn default_healthy_statuses() -> Vec<u16> {
    vec![200]
}

fn default_threshold() -> u64 {
    3
}

fn default_max_breaker_sec() -> u64 {
    300
}

impl Definition for ApiBreaker {
    const NAME: &'static str = "api-breaker";
    const PRIORITY: i32 = 1005;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str =
        "api-breaker: { break_response_code: 503, unhealthy: { http_statuses: [500, 502, 503, 504], failures: 5 } }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let body = self.break_response_body.as_deref().map(|text| build.template(text, "break_response_body"));
        let field = |(index, field): (usize, &FieldOptions)| {
            let name = header_name(&field.key, &format!("break_response_headers[{index}].key"))?;
            Ok((name.into(), build.template(&field.value, &format!("break_response_headers[{index}].value"))))
        };
        let fields = self.break_response_headers.iter().enumerate().map(field).collect_all()?;
        Ok(Arc::new(Breaker {
            status: self.break_response_code,
            body,
            fields,
            rule: BreakerRule {
                max_open: Duration::from_secs(self.max_breaker_sec),
                unhealthy: self.unhealthy.http_statuses.into(),
                failures: self.unhealthy.failures,
                healthy: self.healthy.http_statuses.into(),
                successes: self.healthy.successes,
            },
            name: counters::name(build.identity()),
            note: NoteKey::unique(),
            table: build.shared("api-breaker", "", || CounterTable::passed_on("api-breaker", MOST_KEYS)),
        }))
    }
}

struct Breaker {
    status: u16,
    body: Option<Template>,
    fields: Box<[(Box<[u8]>, Template)]>,
    rule: BreakerRule,
    name: u64,
    /// The note that stores the key of a request that was let through.
    note: NoteKey,
    table: Arc<CounterTable<BreakerRecord>>,
}

struct BreakerRule {
    max_open: Duration,
    unhealthy: Box<[u16]>,
    failures: u64,
    healthy: Box<[u16]>,
    successes: u64,
}

/// How long requests are refused after the first trip; twice as long after each further one.
const FIRST_OPEN: Duration = Duration::from_secs(2);
/// The most hosts and paths at a time: 65,536, in at most 1 MiB.
const MOST_KEYS: usize = 1 << 16;

/// The largest count of failures or successes.
const MAX_COUNT: u64 = (1 << 26) - 1;
/// How long failures are kept before another key may use their place in a full table: an hour, in ticks.
const MEMORY_TICKS: u64 = 3600 * 16;

/// The failures and successes of a host and path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BreakerRecord {
    /// When the first failure occurred or the breaker last opened, in sixteenths of a second since 1970: 36 bits.
    at_ticks: u64,
    /// 26 bits each.
    failures: u64,
    successes: u64,
}

fn ticks(time: Duration) -> u64 {
    (time.as_millis() / 1000 * 16 + time.as_millis() % 1000 * 16 / 1000) as u64
}

impl PackedCounter for BreakerRecord {
    fn from_bits(bits: u128) -> BreakerRecord {
        let count = |shift: u32| (bits >> shift) as u64 & MAX_COUNT;
        BreakerRecord { at_ticks: (bits >> 52) as u64, failures: count(26), successes: count(0) }
    }

    fn bits(self) -> u128 {
        u128::from(self.at_ticks) << 52 | u128::from(self.failures) << 26 | u128::from(self.successes)
    }

    fn is_live(self, now_ticks: u64) -> bool {
        self.failures > 0 && self.at_ticks + MEMORY_TICKS > now_ticks
    }

    fn weight(self, _: u64) -> u64 {
        self.failures
    }
}

impl BreakerRule {
    /// Whether requests are refused at this time.
    fn is_open(&self, record: BreakerRecord, now: Duration) -> bool {
        let trips = record.failures / self.failures;
        if trips == 0 {
            return false;
        }
        let trips = u32::try_from(trips).unwrap_or(u32::MAX);
        let open = Backoff::new(FIRST_OPEN, self.max_open).after(trips);
        ticks(now) < record.at_ticks + ticks(open)
    }

    /// The record after a response; `None` if it does not change.
    fn after(&self, record: BreakerRecord, status: u16, now: Duration) -> Option<BreakerRecord> {
        let BreakerRecord { at_ticks, failures, successes } = record;
        if self.unhealthy.contains(&status) {
            let failures = (failures + 1).min(MAX_COUNT);
            let trips = failures.is_multiple_of(self.failures) || failures == 1;
            return Some(BreakerRecord { at_ticks: if trips { ticks(now) } else { at_ticks }, failures, successes: 0 });
        }
        if failures == 0 || !self.healthy.contains(&status) {
            return None;
        }
        Some(match successes + 1 >= self.successes {
            true => BreakerRecord { at_ticks: 0, failures: 0, successes: 0 },
            false => BreakerRecord { at_ticks, failures, successes: successes + 1 },
        })
    }
}

impl Plugin for Breaker {
    fn phases(&self) -> Phases {
        Phases::REQUEST.and(Phases::LOG)
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        let request = &exchange.request;
        let key = self.table.key(self.name, &[request.host(), b"\0", request.path()].concat());
        if self.rule.is_open(self.table.read(key), clock::now()) {
            return Err(self.answer(exchange)?);
        }
        exchange.notes.write(self.note, [key.number(), 0, 0]);
        Ok(Flow::Continue)
    }

    fn on_log(&self, exchange: &Exchange) {
        let Some([key, ..]) = exchange.notes.read(self.note) else { return };
        let status = match (exchange.upstream.status, exchange.stop()) {
            // No attempt got a response. The status for the client is not used: for gRPC it is 200 with an error in the trailer.
            (0, Some(stop)) if exchange.upstream.attempts > 0 => stop.ending().status,
            (status, _) => status,
        };
        let now = clock::now();
        self.table
            .update(CounterKey::from_number(key), ticks(now), |record| (self.rule.after(record, status, now), ()));
    }
}

impl Breaker {
    fn answer(&self, exchange: &mut Exchange) -> Result<Stop, Stop> {
        let Some(template) = &self.body else {
            if self.fields.is_empty() {
                return Ok(Stop::Respond(self.status));
            }
            let stop = exchange.respond(self.status, "text/plain; charset=utf-8", b"");
            return self.add_fields(exchange).map(|()| stop);
        };
        let mut body = Vec::new();
        template.render(exchange, &mut body);
        let stop = exchange.respond(self.status, "text/plain; charset=utf-8", &body);
        self.add_fields(exchange).map(|()| stop)
    }

    fn add_fields(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        for (name, template) in &self.fields {
            let mut value = Vec::new();
            template.render(exchange, &mut value);
            // A value is invalid only because of the content of a variable.
            exchange.response.head.set(name, &value).map_err(|_| Stop::Respond(400))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{body, build, get, on_request, refused, sent};

    /// An exchange that was let through, with this status from the upstream.
    fn answered(step: &Arc<dyn Plugin>, status: u16) -> Result<(), Stop> {
        let mut exchange = get("/a");
        on_request(step, &mut exchange)?;
        exchange.upstream.attempts = 1;
        exchange.upstream.status = status;
        step.on_log(&exchange);
        Ok(())
    }

    #[test]
    fn failures_stop_the_asking_for_this_path() {
        let options = json!({"break_response_code": 599, "break_response_body": "closed: $uri",
            "break_response_headers": [{"key": "Content-Type", "value": "text/x"}],
            "unhealthy": {"http_statuses": [500, 503], "failures": 2}});
        let step = build::<ApiBreaker>(options);
        assert_eq!([answered(&step, 500), answered(&step, 404), answered(&step, 503)], [Ok(()), Ok(()), Ok(())]);
        let mut exchange = get("/a");
        // The first pause is two seconds: a machine that stands still for as long sees its end.
        let is_refused = (0..5).any(|_| {
            exchange = get("/a");
            let outcome = on_request(&step, &mut exchange);
            let _ = [answered(&step, 500), answered(&step, 500)];
            outcome == Err(Stop::Answered)
        });
        assert!(is_refused);
        assert_eq!((exchange.response.status, body(&exchange)), (599, "closed: /a"));
        assert_eq!(sent(&exchange, "content-type"), Some("text/x"));
        assert_eq!(on_request(&step, &mut get("/b")), Ok(()), "another path");
    }

    #[test]
    fn the_pause_doubles_until_answers_are_good_again() {
        let rule = BreakerRule {
            max_open: Duration::from_secs(10),
            unhealthy: [500].into(),
            failures: 2,
            healthy: [200].into(),
            successes: 2,
        };
        let mut record = BreakerRecord::from_bits(0);
        let mut take = |status, second: u64| {
            let now = Duration::from_secs(1_000_000 + second);
            let open = rule.is_open(record, now);
            if !open {
                record = rule.after(record, status, now).unwrap_or(record);
            }
            !open
        };
        for (status, second, asked) in [
            (500, 0, true),
            (500, 0, true), // opens for 2 s
            (200, 1, false),
            (500, 2, true),
            (500, 2, true), // for 4 s
            (200, 5, false),
            (500, 6, true),
            (500, 6, true), // for 8 s
            (200, 13, false),
            (500, 14, true),
            (500, 14, true), // for 10 s, the most
            (200, 23, false),
            (200, 24, true),
            (500, 24, true),
            (500, 24, true),
            (200, 25, false),
            (200, 34, true),
            (200, 34, true), // forgotten
            (500, 34, true),
            (200, 34, true),
        ] {
            assert_eq!(take(status, second), asked, "{status} at {second}");
        }
    }

    #[test]
    fn asking_in_vain_is_a_failure_when_its_status_is() {
        let step = build::<ApiBreaker>(
            json!({"break_response_code": 503, "unhealthy": {"http_statuses": [502], "failures": 1}}),
        );
        let mut exchange = get("/a");
        assert_eq!(on_request(&step, &mut exchange), Ok(()));
        exchange.upstream.attempts = 1;
        exchange.end_by(Stop::ConnectFailed);
        // The client's status does not count: for gRPC it is 200.
        exchange.response.status = 200;
        // More than once, since a machine may stand still for as long as the pause.
        let is_refused = (0..5).any(|_| {
            step.on_log(&exchange);
            on_request(&step, &mut get("/a")) == Err(Stop::Respond(503))
        });
        assert!(is_refused);
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "the option `break_response_code` is missing"),
            (
                json!({"break_response_code": 502, "break_response_headers": [{"key": "a b", "value": "1"}]}),
                "break_response_headers[0].key: is not the name",
            ),
            (
                json!({"break_response_code": 502, "unhealthy": {"http_statuses": [500, 503, 500]}}),
                "unhealthy.http_statuses: has an item twice",
            ),
            (
                json!({"break_response_code": 502, "healthy": {"http_statuses": [200, 200]}}),
                "healthy.http_statuses: has an item twice",
            ),
        ] {
            let error = refused::<ApiBreaker>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
