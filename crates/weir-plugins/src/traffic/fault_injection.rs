use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_plugin::{
    AllOf, Build, CollectAll, ConfigError, Definition, Exchange, Expression, Flow, Plugin, Stage, Stop, Template,
};

use crate::options::headers::{Scalar, header_name};

/// Delays requests, answers them with an error, or both, to test how clients react.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FaultInjection {
    /// The response that the gateway sends instead of the upstream's, after the delay.
    abort: Option<AbortOptions>,
    /// A delay before the request is processed further.
    delay: Option<DelayOptions>,
}

/// An answer instead of the upstream's.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AbortOptions {
    /// The status of the response, 200 to 999.
    #[schemars(range(min = 200, max = 999))]
    http_status: u16,
    /// The body of the response, which may contain `$variables`. Without it, the response has no body.
    body: Option<String>,
    /// Additional header fields of the response. Values may contain `$variables`.
    #[serde(default)]
    headers: BTreeMap<String, Scalar>,
    /// The percentage of requests that are answered this way. Without it, all requests.
    #[schemars(range(min = 0, max = 100))]
    percentage: Option<u8>,
    /// A list of expressions, each a list of rules. The fault applies only to requests for which at least one
    /// expression is true.
    #[serde(default)]
    #[schemars(length(max = 20))]
    vars: Vec<Value>,
}

/// A pause.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DelayOptions {
    /// Seconds to wait; fractions are allowed.
    #[schemars(range(min = 0, max = 86_400))]
    #[schemars(extend("x-weir-unit" = "s"))]
    duration: f64,
    /// The percentage of requests that are delayed. Without it, all requests.
    #[schemars(range(min = 0, max = 100))]
    percentage: Option<u8>,
    /// A list of expressions, each a list of rules. The fault applies only to requests for which at least one
    /// expression is true.
    #[serde(default)]
    #[schemars(length(max = 20))]
    vars: Vec<Value>,
}

impl Definition for FaultInjection {
    const NAME: &'static str = "fault-injection";
    const PRIORITY: i32 = 11000;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = r#"fault-injection: { delay: { duration: 0.2, percentage: 10 }, abort: { http_status: 503, body: "not now\n", vars: [[[arg_fail, "==", "1"]]] } }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let abort = self.abort.map(|abort| abort.compile(build)).transpose();
        let Some(delay) = self.delay else {
            let abort = abort?.ok_or_else(|| ConfigError::new("", "needs `abort`, `delay` or both"))?;
            return Ok(Arc::new(abort));
        };
        let when = FaultCondition::compile(delay.percentage, &delay.vars, "delay", build);
        let (abort, when) = (abort, when).all_of()?;
        Ok(Arc::new(InjectedDelay { duration: Duration::from_secs_f64(delay.duration), when, abort }))
    }
}

impl AbortOptions {
    fn compile(self, build: &mut Build) -> Result<Abort, ConfigError> {
        let body = self.body.as_deref().map(|text| build.template(text, "abort.body"));
        let field = |(name, value): (&String, &Scalar)| {
            let path = format!("abort.headers.{name}");
            let (name, value) = (header_name(name, &path), value.template(&path, build)).all_of()?;
            Ok((name.into(), value))
        };
        let fields = self.headers.iter().map(field).collect_all();
        let when = FaultCondition::compile(self.percentage, &self.vars, "abort", build);
        let (fields, when) = (fields, when).all_of()?;
        Ok(Abort { status: self.http_status, body, fields, when })
    }
}

/// Selects the requests that a fault applies to.
struct FaultCondition {
    percentage: u8,
    vars: Box<[Expression]>,
}

impl FaultCondition {
    fn compile(
        percentage: Option<u8>,
        vars: &[Value],
        path: &str,
        build: &mut Build,
    ) -> Result<FaultCondition, ConfigError> {
        let percentage = percentage.unwrap_or(100);
        let condition = |(index, value): (usize, &Value)| build.condition(value, &format!("{path}.vars[{index}]"));
        Ok(FaultCondition { percentage, vars: vars.iter().enumerate().map(condition).collect_all()? })
    }

    fn is_always(&self) -> bool {
        self.percentage == 100 && self.vars.is_empty()
    }

    fn is_now(&self, exchange: &Exchange) -> bool {
        let drawn = self.percentage == 100 || rand::random_range(0..100) < self.percentage;
        drawn && (self.vars.is_empty() || self.vars.iter().any(|expression| expression.holds(exchange)))
    }
}

struct Abort {
    status: u16,
    body: Option<Template>,
    fields: Box<[(Box<[u8]>, Template)]>,
    when: FaultCondition,
}

impl Plugin for Abort {
    fn answers_all(&self) -> bool {
        self.when.is_always()
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        if !self.when.is_now(exchange) {
            return Ok(Flow::Continue);
        }
        let mut body = Vec::new();
        if let Some(template) = &self.body {
            template.render(exchange, &mut body);
        }
        let stop = exchange.respond(self.status, "text/plain; charset=utf-8", &body);
        for (name, template) in &self.fields {
            let mut value = Vec::new();
            template.render(exchange, &mut value);
            // A value is invalid only because of the content of a variable.
            exchange.response.head.set(name, &value).map_err(|_| Stop::Respond(400))?;
        }
        Err(stop)
    }
}

struct InjectedDelay {
    duration: Duration,
    when: FaultCondition,
    abort: Option<Abort>,
}

impl Plugin for InjectedDelay {
    fn answers_all(&self) -> bool {
        self.abort.as_ref().is_some_and(Plugin::answers_all)
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        let aborted = |exchange| self.abort.as_ref().map_or(Ok(Flow::Continue), |abort| abort.on_request(exchange));
        if !self.when.is_now(exchange) {
            return aborted(exchange);
        }
        Ok(Flow::wait(async move {
            tokio::time::sleep(self.duration).await;
            aborted(exchange).map(|_| ())
        }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{body, build, get, on_request, refused, sent};

    #[test]
    fn answers_with_an_error() {
        let options =
            json!({"abort": {"http_status": 418, "body": "tea $uri", "headers": {"X-A": "$arg_a", "X-B": 2}}});
        let mut exchange = get("/hello?a=1");
        assert_eq!(on_request(&build::<FaultInjection>(options), &mut exchange), Err(Stop::Answered));
        assert_eq!((exchange.response.status, body(&exchange)), (418, "tea /hello"));
        assert_eq!((sent(&exchange, "x-a"), sent(&exchange, "x-b")), (Some("1"), Some("2")));
    }

    #[test]
    fn u18_an_abort_without_a_body_has_none() {
        let bare = build::<FaultInjection>(json!({"abort": {"http_status": 503}}));
        let mut exchange = get("/");
        assert_eq!(on_request(&bare, &mut exchange), Err(Stop::Answered));
        assert_eq!((exchange.response.status, body(&exchange)), (503, ""));
    }

    #[test]
    fn waits_and_goes_on_or_not() {
        let mut exchange = get("/");
        let waits = build::<FaultInjection>(json!({"delay": {"duration": 3600.5}}));
        assert_eq!(on_request(&waits, &mut exchange), Ok(()));
        let both = build::<FaultInjection>(json!({"delay": {"duration": 1}, "abort": {"http_status": 500}}));
        assert_eq!(on_request(&both, &mut exchange), Err(Stop::Answered));
        assert_eq!(exchange.response.status, 500);
    }

    #[test]
    fn only_some_requests_are_meant() {
        let vars = json!([[["arg_a", "==", "1"], ["arg_b", "==", "2"]], [["arg_c", "==", "3"]]]);
        let step = build::<FaultInjection>(json!({"abort": {"http_status": 500, "vars": vars}}));
        for (target, meant) in [("/?a=1&b=2", true), ("/?a=1", false), ("/?c=3", true), ("/", false)] {
            assert_eq!(on_request(&step, &mut get(target)).is_err(), meant, "{target}");
        }
        let share = |percentage: u8| {
            let step = build::<FaultInjection>(json!({"abort": {"http_status": 500, "percentage": percentage}}));
            (0..1000).filter(|_| on_request(&step, &mut get("/")).is_err()).count()
        };
        assert_eq!((share(0), share(100)), (0, 1000));
        assert!((100..900).contains(&share(50)));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "needs `abort`, `delay` or both"),
            (json!({"abort": {}}), "abort: the option `http_status` is missing"),
            (
                json!({"abort": {"http_status": 200, "vars": [[["a", "?", 1]]]}}),
                "abort.vars[0][0][1]: invalid operator",
            ),
        ] {
            let error = refused::<FaultInjection>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
