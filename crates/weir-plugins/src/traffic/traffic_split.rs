use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_plugin::{
    Build, CollectAll, ConfigError, Definition, Exchange, Expression, Flow, NoteKey, Phases, Plugin, Stage, Stop,
};

use crate::options::headers::{HeaderEdits, HeaderOptions};
use crate::traffic::weighted_shares::{WeightedShares, default_weight};

/// Distributes traffic among several upstreams by weight: canary releases, blue-green deployments, A/B tests.
///
/// The first rule that matches a request is applied. Its weights are kept exactly, over all workers: with `weight: 10`
/// and `weight: 90`, exactly 10 of every 100 requests go to the first upstream. All retries of a request use the same
/// upstream. An entry may answer with a status in place of an upstream, and change the header fields of its share.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TrafficSplit {
    /// The rules, in the order in which they are tried. A request that matches no rule goes to the upstream of its
    /// route.
    #[serde(default)]
    rules: Vec<SplitRuleOptions>,
}

/// Who is split, and how.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SplitRuleOptions {
    /// The rule matches a request if at least one of these entries matches. Without `match`, the rule matches all
    /// requests.
    #[serde(default, rename = "match")]
    cases: Vec<CaseOptions>,
    /// The upstreams and their weights. Without it, matching requests go to the upstream of their route.
    #[serde(default)]
    weighted_upstreams: Vec<ShareOptions>,
}

/// One of several cases.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CaseOptions {
    /// An expression, such as `[[http_x_canary, "==", "yes"]]`.
    #[serde(default)]
    vars: Option<Value>,
}

/// A share of the traffic.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ShareOptions {
    /// The definition of an upstream, as in a route. Without `upstream` and `upstream_id`, the upstream of the route.
    #[expect(dead_code, reason = "read by the compiler of the document, which resolves the names of the nodes")]
    #[schemars(extend("x-weir-reaches" = "server"))]
    upstream: Option<Value>,
    /// The id of an upstream.
    #[expect(dead_code, reason = "read by the compiler of the document, which knows all upstreams")]
    #[schemars(extend("type" = ["string", "integer", "null"], "x-weir-reaches" = "server", "x-weir-reference" = "upstreams"))]
    upstream_id: Option<Value>,
    /// The weight relative to the other entries; 0 means no requests.
    #[serde(default = "default_weight")]
    weight: u32,
    /// The status of the answer to these requests, 200 to 599, in place of an upstream.
    #[schemars(range(min = 200, max = 599))]
    status: Option<u16>,
    /// Header fields of these requests to add (names and values, or a list of `name: value`), set and remove, in this
    /// order; or a map of names and values, which are set. Values may contain `$variables`.
    headers: Option<HeaderOptions>,
    /// The same for the responses to these requests.
    response_headers: Option<HeaderOptions>,
}

impl Definition for TrafficSplit {
    const NAME: &'static str = "traffic-split";
    const PRIORITY: i32 = 966;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"traffic-split:
  rules:
    - match: [{ vars: [[http_x_canary, "==", "yes"]] }]
      weighted_upstreams: [{ upstream: { type: roundrobin, nodes: { "127.0.0.1:8002": 1 } } }]
    - weighted_upstreams:
        - { upstream: { type: roundrobin, nodes: { "127.0.0.1:8002": 1 } }, weight: 10 }
        - { weight: 90 }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        if self.rules.is_empty() {
            build
                .warnings
                .push(ConfigError::new("", "has no `rules`, so all traffic goes to the upstreams of the routes"));
        }
        let rule =
            |(index, options): (usize, SplitRuleOptions)| SplitRule::new(options, &format!("rules[{index}]"), build);
        let rules = self.rules.into_iter().enumerate().map(rule).collect_all()?;
        Ok(Arc::new(Split { rules, picked: NoteKey::unique() }))
    }
}

struct Split {
    rules: Box<[SplitRule]>,
    /// The note of the rule and of the entry that a request has got, by their numbers, if responses to it are changed.
    picked: NoteKey,
}

struct SplitRule {
    /// One of these conditions has to hold; none if the rule applies to all requests.
    cases: Box<[Expression]>,
    shares: WeightedShares<SplitShare>,
}

struct SplitShare {
    target: ShareTarget,
    request: HeaderEdits,
    response: Option<HeaderEdits>,
}

/// What becomes of the requests of a share.
enum ShareTarget {
    /// `None` for the upstream of the route.
    Upstream(Option<u32>),
    Status(u16),
}

impl ShareOptions {
    fn compile(self, path: &str, build: &mut Build) -> Result<SplitShare, ConfigError> {
        let mut edits = |options: Option<HeaderOptions>, key: &str| {
            options.map(|options| options.compile(&format!("{path}.{key}"), build)).transpose()
        };
        let request = edits(self.headers, "headers")?.unwrap_or_default();
        request.refuse_host(&format!("{path}.headers"))?;
        let response = edits(self.response_headers, "response_headers")?;
        let upstream = build.upstream(path);
        let target = match self.status {
            None => ShareTarget::Upstream(upstream),
            Some(_) if upstream.is_some() => {
                return Err(ConfigError::new(
                    format!("{path}.status"),
                    "takes the place of an upstream; keep one of them",
                ));
            }
            Some(status) => ShareTarget::Status(status),
        };
        Ok(SplitShare { target, request, response })
    }
}

impl SplitRule {
    fn new(options: SplitRuleOptions, path: &str, build: &mut Build) -> Result<SplitRule, ConfigError> {
        let mut cases = Vec::new();
        for (index, case) in options.cases.iter().enumerate() {
            let path = format!("{path}.match[{index}].vars");
            // A case without `vars` always holds, so the rule applies to all requests.
            let Some(vars) = &case.vars else {
                cases.clear();
                break;
            };
            let case = build.condition(vars, &path).map(Some);
            cases.extend(build.keep(case));
        }
        let share = |(index, share): (usize, ShareOptions)| {
            Ok((share.weight, share.compile(&format!("{path}.weighted_upstreams[{index}]"), build)?))
        };
        let shares = options.weighted_upstreams.into_iter().enumerate().map(share).collect_all::<Vec<_>>()?;
        let path = format!("{path}.weighted_upstreams");
        let shares = WeightedShares::compile(shares, &path, build);
        if shares.sum() == 0 && !shares.is_empty() {
            return Err(ConfigError::new(path, "has no weight above 0, so no request could be sent anywhere"));
        }
        Ok(SplitRule { cases: cases.into(), shares })
    }

    fn matches(&self, exchange: &Exchange) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|case| case.holds(exchange))
    }
}

impl Plugin for Split {
    fn phases(&self) -> Phases {
        let changes_responses = |rule: &SplitRule| rule.shares.items().any(|share| share.response.is_some());
        match self.rules.iter().any(changes_responses) {
            false => Phases::REQUEST,
            true => Phases::REQUEST.and(Phases::RESPONSE),
        }
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        let Some(number) = self.rules.iter().position(|rule| rule.matches(exchange)) else { return Ok(Flow::Continue) };
        let Some((picked, share)) = self.rules[number].shares.pick() else {
            exchange.divert_to(None);
            return Ok(Flow::Continue);
        };
        if share.response.is_some() {
            exchange.notes.write(self.picked, [number as u64, picked as u64, 0]);
        }
        // The names have been checked; a value is invalid only because of the content of a variable.
        let edited = share.request.apply(exchange, |exchange| &mut exchange.request.head, &[]);
        edited.map_err(|_| Stop::Respond(400))?;
        match share.target {
            ShareTarget::Upstream(upstream) => exchange.divert_to(upstream),
            ShareTarget::Status(status) => return Err(Stop::Respond(status)),
        }
        Ok(Flow::Continue)
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let Some([rule, share, _]) = exchange.notes.read(self.picked) else { return Ok(()) };
        let share = self.rules.get(rule as usize).and_then(|rule| rule.shares.get(share as usize));
        let Some(edits) = share.and_then(|share| share.response.as_ref()) else { return Ok(()) };
        edits.apply(exchange, |exchange| &mut exchange.response.head, &[]).map_err(|_| Stop::Internal)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{build_with_upstreams, get, on_request, refused, sent};

    fn chosen(step: &Arc<dyn Plugin>, target: &str) -> Option<u32> {
        let mut exchange = get(target);
        on_request(step, &mut exchange).expect("it refuses nobody");
        exchange.diverted_to()
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let named = |weight: u32| json!({"upstream_id": "a", "weight": weight});
        let step = build_with_upstreams::<TrafficSplit>(json!({"rules": [
            {"match": [{"vars": [["arg_a", "==", "1"]]}, {"vars": [["arg_b", "==", "1"]]}], "weighted_upstreams": [named(1)]},
            {"match": [{"vars": [["arg_c", "==", "1"]]}], "weighted_upstreams": []},
            {"weighted_upstreams": [named(0), {"upstream_id": "b"}]},
        ]}));
        assert_eq!(
            ["/?a=1", "/?b=1", "/?c=1", "/"].map(|target| chosen(&step, target)),
            [Some(0), Some(0), None, Some(2)]
        );
    }

    #[test]
    fn shares_are_exact_and_spread() {
        for (weights, most_in_a_row) in [([1, 1], 1), ([1, 9], 9), ([30, 70], 4), ([99_999, 1], 99_999)] {
            let [own, other] = weights;
            let step = build_with_upstreams::<TrafficSplit>(json!({"rules": [{"weighted_upstreams": [
                {"weight": own}, {"upstream_id": "a", "weight": other},
            ]}]}));
            for _ in 0..3 {
                let picks: Vec<_> = (0..own + other).map(|_| chosen(&step, "/")).collect();
                assert_eq!(picks.iter().filter(|pick| pick.is_none()).count() as u32, own, "{weights:?}");
                let longest = picks.chunk_by(|one, next| one == next).map(<[_]>::len).max().expect("some");
                assert!(longest <= most_in_a_row, "{weights:?}: {longest} in a row");
            }
        }
    }

    #[test]
    fn a_share_may_be_answered_with_a_status() {
        let step = build_with_upstreams::<TrafficSplit>(json!({"rules": [{"weighted_upstreams": [
            {"upstream_id": "a", "weight": 3}, {"status": 500, "weight": 1},
        ]}]}));
        let outcomes: Vec<_> = (0..8).map(|_| on_request(&step, &mut get("/"))).collect();
        assert_eq!(outcomes.iter().filter(|outcome| **outcome == Err(Stop::Respond(500))).count(), 2);
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 6);
    }

    #[test]
    fn header_fields_are_those_of_the_share() {
        let step = build_with_upstreams::<TrafficSplit>(json!({"rules": [{"weighted_upstreams": [
            {"upstream_id": "a", "headers": {"set": {"X-A": "$arg_a"}, "remove": ["X-B"]},
             "response_headers": {"add": {"X-C": "c"}}},
            {"upstream_id": "b"},
        ]}]}));
        for _ in 0..4 {
            let mut exchange = get("/?a=1");
            exchange.request.head.add(b"X-B", b"b").expect("valid");
            on_request(&step, &mut exchange).expect("it refuses no request");
            step.on_response(&mut exchange).expect("the fields are valid");
            let is_first = exchange.diverted_to() == Some(0);
            assert_eq!(exchange.request.head.value(b"x-a"), is_first.then_some(&b"1"[..]));
            assert_eq!(exchange.request.head.value(b"x-b").is_none(), is_first);
            assert_eq!(sent(&exchange, "x-c"), is_first.then_some("c"));
        }
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        let shares = |shares: Value| json!({"rules": [{"weighted_upstreams": shares}]});
        for (options, want) in [
            (
                shares(json!([{"weight": -1}])),
                "rules[0].weighted_upstreams[0].weight: expected a whole number, 0 or more",
            ),
            (
                shares(json!([{"headers": {"set": {"Host": "x"}}}])),
                "rules[0].weighted_upstreams[0].headers: cannot change `Host`",
            ),
            (shares(json!([{"weight": 0}])), "rules[0].weighted_upstreams: has no weight above 0"),
            (shares(json!([{"wait": 1}])), "rules[0].weighted_upstreams[0].wait: the option `wait` is not known"),
            (
                json!({"rules": [{"match": [{"vars": [["a", "?", 1]]}]}]}),
                "rules[0].match[0].vars[0][1]: invalid operator",
            ),
        ] {
            let error = refused::<TrafficSplit>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
