use std::borrow::Cow;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weir_plugin::proto::Method;
use weir_plugin::{Build, ConfigError, Definition, Exchange, Flow, HasMetadata, NoteKey, Phases, Plugin, Stage, Stop};

use crate::answer::RefusalResponse;
use crate::content::graphql::request::{self, GraphqlBody};
use crate::content::graphql::{self, GraphqlDocument, GraphqlFault, QueryCost};
use crate::content::{coding, content_type};
use crate::limit::limit_count::{CountedLimits, LimitCount, LimitCountMetadata};
use crate::limit::replacement::Replaceable;

/// The options of `limit-count` and those of [`QueryCostOptions`].
pub(crate) struct GraphqlLimitCount {
    own: QueryCostOptions,
    limit: LimitCount,
}

/// Limits the sum of the costs of GraphQL queries in a time window, for each client, key or tenant.
///
/// It has the options of `limit-count`, and counts the cost of a query where that plugin counts 1. A query is refused if its cost is more
/// than what is left of one limit, and then costs nothing: with `rules`, all are checked before one counts. Of several operations in a
/// document, the most expensive one counts. Responses have what was counted, or would have been, in `X-Graphql-Query-Cost`, unless
/// `show_limit_quota_header` is `false`. Only POST is accepted, with the query in the body, as JSON or `application/graphql`: other
/// methods are answered with 405, other types with 415, and what is no GraphQL request with 400. The schema is not known: lengths of lists are known by the names of arguments, in place of APISIX's cost
/// decorations. `graphql-threat-protection` bounds each query alone.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct QueryCostOptions {
    /// What a query costs.
    #[serde(default)]
    cost_strategy: CostStrategy,
    /// Queries that cost more are refused with 403, before `score_factor`; 0 is no limit.
    #[serde(default)]
    #[schemars(range(min = 0))]
    max_cost: f64,
    /// The cost is multiplied by it before it is counted, rounded up, and counts as 1 at least.
    #[serde(default = "default_score_factor")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    score_factor: f64,
    /// Whether an argument that is a variable has the value that the request has in `variables`. Otherwise, the default of the variable
    /// counts.
    #[serde(default = "default_resolve_variables")]
    resolve_variables: bool,
    /// The names of arguments that say how long a list may be. Not in APISIX.
    #[serde(default = "graphql::default_list_arguments")]
    list_arguments: Vec<String>,
    /// The largest body, in bytes after decoding. A larger body is refused with 413. Not in APISIX.
    #[serde(default = "default_max_body_size")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_body_size: u64,
}

/// What a query costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum CostStrategy {
    /// The depth of its fields.
    #[default]
    Depth,
    /// The number of its fields, where those in a list count as often as the list may be long.
    Complexity,
    /// The number of its lists, where those in a list count as often as that list may be long.
    NodeQuantifier,
}

fn default_score_factor() -> f64 {
    1.0
}

fn default_resolve_variables() -> bool {
    true
}

fn default_max_body_size() -> u64 {
    1 << 20
}

/// The names of the options in a schema.
fn names(schema: &Schema) -> impl Iterator<Item = &String> {
    schema.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys)
}

impl<'de> Deserialize<'de> for GraphqlLimitCount {
    fn deserialize<D: serde::Deserializer<'de>>(options: D) -> Result<GraphqlLimitCount, D::Error> {
        let mut limit = Map::deserialize(options)?;
        let mut own = Map::new();
        for name in names(&schemars::schema_for!(QueryCostOptions)) {
            own.extend(limit.remove(name).map(|value| (name.clone(), value)));
        }
        let wrong = serde::de::Error::custom;
        Ok(GraphqlLimitCount {
            own: serde_json::from_value(own.into()).map_err(wrong)?,
            limit: serde_json::from_value(limit.into()).map_err(wrong)?,
        })
    }
}

impl JsonSchema for GraphqlLimitCount {
    fn schema_name() -> Cow<'static, str> {
        "GraphqlLimitCount".into()
    }

    /// The options of `limit-count` and its own.
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (mut schema, mut own) = (LimitCount::json_schema(generator), QueryCostOptions::json_schema(generator));
        let added = own.remove("properties");
        let options = schema.get_mut("properties").and_then(Value::as_object_mut);
        if let (Some(options), Some(Value::Object(added))) = (options, added) {
            options.extend(added);
        }
        if let Some(description) = own.remove("description") {
            schema.insert("description".to_owned(), description);
        }
        schema
    }
}

impl Definition for GraphqlLimitCount {
    const NAME: &'static str = "graphql-limit-count";
    const PRIORITY: i32 = 1004;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "graphql-limit-count: { count: 1000, time_window: 60, cost_strategy: complexity, \
        max_cost: 200, rejected_code: 429 }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let names = build.metadata::<GraphqlLimitCount>();
        let shown = self.limit.shows_quota().then(NoteKey::unique);
        let limits = self.limit.limits(GraphqlLimitCount::NAME, Replaceable::never(), &names, build)?;
        Ok(Arc::new(QueryCostLimiter { own: self.own, limits, shown }))
    }
}

impl HasMetadata for GraphqlLimitCount {
    type Metadata = LimitCountMetadata;
}

struct QueryCostLimiter {
    own: QueryCostOptions,
    limits: CountedLimits,
    /// The note of what a query counts, if responses tell it.
    shown: Option<NoteKey>,
}

/// The field of responses with what the query counts.
const COST_FIELD: &[u8] = b"X-Graphql-Query-Cost";

impl QueryCostLimiter {
    /// What a body costs.
    ///
    /// # Errors
    /// Why it is no GraphQL request.
    fn cost(&self, is_json: bool, body: &[u8]) -> Result<u64, String> {
        let GraphqlBody { query, variables, .. } = GraphqlBody::read(is_json, body)?;
        let query = query.ok_or("The body has no query")?;
        let told = |fault: GraphqlFault| format!("The query {}", fault.text());
        let document = GraphqlDocument::parse(&query).map_err(told)?;
        let variables = variables.filter(|_| self.own.resolve_variables).unwrap_or_default();
        let QueryCost { depth, fields, lists } =
            graphql::cost(&document, &variables, &self.own.list_arguments).map_err(told)?;
        Ok(match self.own.cost_strategy {
            CostStrategy::Depth => depth,
            CostStrategy::Complexity => fields,
            CostStrategy::NodeQuantifier => lists,
        })
    }
}

/// The part of a product of two floats that is no more than their rounding.
const ROUNDING: f64 = 1e-12;

impl QueryCostOptions {
    /// What is counted for a cost.
    fn score(&self, cost: u64) -> u64 {
        let product = cost as f64 * self.score_factor;
        // 50 times 1.1 is a little more than 55 as a float. One beyond the largest integer becomes the largest one.
        ((product - product * ROUNDING).ceil() as u64).max(1)
    }
}

fn refuse(exchange: &mut Exchange, status: u16, problem: &str) -> Stop {
    RefusalResponse::new(status, "message", problem).send(exchange)
}

impl Plugin for QueryCostLimiter {
    fn phases(&self) -> Phases {
        let shown = if self.shown.is_some() { Phases::RESPONSE } else { Phases::NONE };
        Phases::REQUEST.and(Phases::REQUEST_BODY).and(self.limits.phases()).and(shown)
    }

    fn start(&self) -> Result<(), String> {
        self.limits.start()
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        if exchange.request.method != Method::Post {
            return Err(Stop::Respond(405));
        }
        if request::is_in_target(exchange) {
            return Err(refuse(exchange, 400, "A request with a body has no query in its query string"));
        }
        match exchange.request.framing.has_body() || exchange.request_body().is_some() {
            true => Ok(Flow::Continue),
            false => Err(refuse(exchange, 400, "The request has no body")),
        }
    }

    fn whole_request(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        match content_type::of_request(exchange)?.is_some_and(request::is_request) {
            true => Ok(Some(self.own.max_body_size)),
            false => Err(Stop::Respond(415)),
        }
    }

    fn on_request_body<'a>(&'a self, exchange: &'a mut Exchange, body: &'a mut Vec<u8>) -> Result<Flow<'a>, Stop> {
        let is_json = content_type::of_request(exchange)?.is_some_and(content_type::is_json);
        let plain = coding::plain(&exchange.request.head, body, self.own.max_body_size);
        let plain = plain.map_err(|opaque| Stop::Respond(opaque.status()))?;
        let cost = self.cost(is_json, &plain).map_err(|problem| refuse(exchange, 400, &problem))?;
        let score = self.own.score(cost);
        if let Some(key) = self.shown {
            exchange.notes.write(key, [score, 0, 0]);
        }
        let most = self.own.max_cost;
        if most > 0.0 && cost as f64 > most {
            let problem = format!("The cost of the query is {cost}, and at most {most} is allowed");
            return Err(refuse(exchange, 403, &problem));
        }
        self.limits.take(exchange, score)
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        if let Some([score, ..]) = self.shown.and_then(|key| exchange.notes.read(key)) {
            // Fails only for invalid values, which numbers never are.
            exchange.response.head.set(COST_FIELD, score.to_string().as_bytes()).map_err(|_| Stop::Internal)?;
        }
        self.limits.show(exchange)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{body, build, exchange, get, on_request, on_request_body, refused, sent};

    fn posted(step: &Arc<dyn Plugin>, query: &str) -> (Result<(), Stop>, Exchange) {
        let mut exchange = exchange("POST / HTTP/1.1\nHost: h\nContent-Type: application/graphql\nContent-Length: 9");
        on_request(step, &mut exchange).expect("it has a body");
        let end = on_request_body(step, &mut exchange, query);
        step.on_response(&mut exchange).expect("it is told");
        (end, exchange)
    }

    #[test]
    fn a_query_counts_as_much_as_it_costs() {
        let step = build::<GraphqlLimitCount>(json!({"count": 5, "time_window": 60, "rejected_code": 429}));
        for (query, end, left) in [
            ("{a {b {c}}}", Ok(()), "2"),
            ("{a {b {c}}}", Err(Stop::Respond(429)), "2"),
            ("{...None}", Ok(()), "1"),
            ("{a}", Ok(()), "0"),
            ("{a}", Err(Stop::Respond(429)), "0"),
        ] {
            let (found, exchange) = posted(&step, query);
            assert_eq!((found, sent(&exchange, "x-ratelimit-remaining")), (end, Some(left)), "{query}");
        }
    }

    #[test]
    fn a_query_that_one_rule_refuses_costs_nothing_by_the_others() {
        for window_type in ["fixed", "sliding"] {
            let step = build::<GraphqlLimitCount>(json!({"window_type": window_type, "rejected_code": 429, "rules": [
                {"count": 5, "time_window": 600, "key": "a"}, {"count": 2, "time_window": 60, "key": "b"},
            ]}));
            for (query, end, left) in [
                ("{a {b {c}}}", Err(Stop::Respond(429)), ["5", "2"]),
                ("{a {b}}", Ok(()), ["3", "0"]),
                ("{a}", Err(Stop::Respond(429)), ["3", "0"]),
            ] {
                let (found, exchange) = posted(&step, query);
                let told = ["x-1-ratelimit-remaining", "x-2-ratelimit-remaining"].map(|name| sent(&exchange, name));
                assert_eq!((found, told), (end, left.map(Some)), "{window_type} {query}");
            }
        }
    }

    #[test]
    fn a_query_that_costs_too_much_or_is_none_is_refused_and_not_counted() {
        let step = build::<GraphqlLimitCount>(json!({"count": 5, "time_window": 60, "max_cost": 2.5}));
        let (end, exchange) = posted(&step, "{a {b {c}}}");
        let want = "{\"message\":\"The cost of the query is 3, and at most 2.5 is allowed\"}\n";
        assert_eq!((end, exchange.response.status, body(&exchange)), (Err(Stop::Answered), 403, want));
        assert_eq!(sent(&exchange, "x-graphql-query-cost"), Some("3"));
        let (end, exchange) = posted(&step, "{a");
        assert_eq!((end, exchange.response.status), (Err(Stop::Answered), 400));
        assert_eq!(sent(&exchange, "x-ratelimit-remaining"), None);
        assert_eq!(sent(&exchange, "x-graphql-query-cost"), None);
        assert_eq!(on_request(&step, &mut get("/")), Err(Stop::Respond(405)));
    }

    #[test]
    fn responses_tell_what_their_query_counts_unless_they_tell_no_quota() {
        let with = |shows: bool| {
            build::<GraphqlLimitCount>(json!({
                "count": 10, "time_window": 60, "score_factor": 1.5, "show_limit_quota_header": shows,
            }))
        };
        for (query, end, cost) in [("{a {b {c}}}", Ok(()), "5"), ("{a {b {c {d}}}}", Err(Stop::Respond(503)), "6")] {
            let (shown, hidden) = (with(true), with(false));
            if end.is_err() {
                posted(&shown, "{a {b {c}}}").0.expect("the first one passes");
                posted(&hidden, "{a {b {c}}}").0.expect("the first one passes");
            }
            let (found, exchange) = posted(&shown, query);
            assert_eq!((found, sent(&exchange, "x-graphql-query-cost")), (end, Some(cost)));
            let (found, exchange) = posted(&hidden, query);
            assert_eq!((found, sent(&exchange, "x-graphql-query-cost")), (end, None));
        }
    }

    #[test]
    fn costs_are_multiplied_and_rounded_up() {
        let with =
            |factor: f64| serde_json::from_value::<QueryCostOptions>(json!({ "score_factor": factor })).expect("valid");
        for (factor, cost, want) in
            [(1.0, 7, 7), (0.1, 7, 1), (0.1, 0, 1), (1.5, 3, 5), (1.1, 50, 55), (1.1, 51, 57), (1e300, 1, u64::MAX)]
        {
            assert_eq!(with(factor).score(cost), want, "{factor} {cost}");
        }
    }

    #[test]
    fn options_are_those_of_limit_count_and_its_own() {
        for (options, want) in [
            (json!({"count": 1}), "needs `time_window`, or `rules`"),
            (json!({"count": 1, "time_window": 1, "cost_strategy": "width"}), "cost_strategy: "),
            (json!({"count": 1, "time_window": 1, "score_factor": 0}), "score_factor: "),
            (json!({"count": 1, "time_window": 1, "rejected_code": 99}), "rejected_code: "),
            (json!({"count": 1, "time_window": 1, "introspection_endpoint": "http://a"}), "introspection_endpoint: "),
        ] {
            let error = refused::<GraphqlLimitCount>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
