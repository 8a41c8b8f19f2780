use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_plugin::{AllOf, Build, CollectAll, ConfigError, Definition, Exchange, Expression, Flow, Plugin, Stage, Stop};

use crate::options::headers::{HeaderEdits, SetHeaderOptions};
use crate::traffic::weighted_shares::{WeightedShares, default_weight};

/// Labels requests with header fields by conditions and weights, for the upstream and for plugins that run later.
///
/// The first rule that matches a request is applied, with one of its actions. The weights of the actions are kept exactly, over all
/// workers. It runs before `traffic-split`, whose rules may match the labels.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TrafficLabel {
    /// The rules, in the order in which they are tried. A request that matches no rule is not changed.
    #[schemars(length(min = 1))]
    rules: Vec<LabelRuleOptions>,
}

/// Which requests get labels, and which labels.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LabelRuleOptions {
    /// An expression, such as `[[arg_version, "==", v1]]`. Without it, the rule matches all requests.
    #[serde(rename = "match")]
    #[schemars(length(min = 1))]
    case: Option<Vec<Value>>,
    /// The actions, of which each request gets one.
    #[schemars(length(min = 1))]
    actions: Vec<LabelActionOptions>,
}

/// What becomes of a share of the requests.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LabelActionOptions {
    /// Header fields of the request to set: names and values, which may contain `$variables`. Without it, the request is not
    /// changed.
    set_headers: Option<SetHeaderOptions>,
    /// The weight relative to the other actions of the rule.
    #[serde(default = "default_weight")]
    #[schemars(range(min = 1))]
    weight: u32,
}

impl Definition for TrafficLabel {
    const NAME: &'static str = "traffic-label";
    const PRIORITY: i32 = 967;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"traffic-label:
  rules:
    - match: [[arg_version, "==", v1]]
      actions: [{ set_headers: { X-Label: stable } }]
    - actions:
        - { set_headers: { X-Label: canary }, weight: 1 }
        - { weight: 9 }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let rule = |(index, rule): (usize, LabelRuleOptions)| rule.compile(&format!("rules[{index}]"), build);
        let rules = self.rules.into_iter().enumerate().map(rule).collect_all()?;
        Ok(Arc::new(TrafficLabeler { rules }))
    }
}

impl LabelRuleOptions {
    fn compile(self, path: &str, build: &mut Build) -> Result<LabelRule, ConfigError> {
        let case = self.case.map(|case| build.condition(&Value::Array(case), &format!("{path}.match"))).transpose();
        let action = |(index, action): (usize, LabelActionOptions)| {
            let path = format!("{path}.actions[{index}].set_headers");
            let edits = action.set_headers.map(|fields| fields.compile(&path, build)).transpose()?.unwrap_or_default();
            edits.refuse_host(&path)?;
            Ok((action.weight, edits))
        };
        let actions = self.actions.into_iter().enumerate().map(action).collect_all::<Vec<_>>();
        let (case, actions) = (case, actions).all_of()?;
        let actions = WeightedShares::compile(actions, &format!("{path}.actions"), build);
        Ok(LabelRule { case, actions })
    }
}

struct TrafficLabeler {
    rules: Box<[LabelRule]>,
}

struct LabelRule {
    /// `None` if the rule applies to all requests.
    case: Option<Expression>,
    actions: WeightedShares<HeaderEdits>,
}

impl Plugin for TrafficLabeler {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        let matches = |rule: &&LabelRule| rule.case.as_ref().is_none_or(|case| case.holds(exchange));
        let Some(rule) = self.rules.iter().find(matches) else { return Ok(Flow::Continue) };
        let Some((_, edits)) = rule.actions.pick() else { return Ok(Flow::Continue) };
        // The names have been checked; a value is invalid only because of the content of a variable.
        let edited = edits.apply(exchange, |exchange| &mut exchange.request.head, &[]);
        edited.map(Flow::from).map_err(|_| Stop::Respond(400))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{build, get, on_request, refused};

    /// The label that a request gets.
    fn label(step: &Arc<dyn Plugin>, target: &str) -> Option<String> {
        let mut exchange = get(target);
        on_request(step, &mut exchange).expect("it refuses no request");
        exchange.request.head.value(b"x-label").map(|value| value.escape_ascii().to_string())
    }

    #[test]
    fn the_first_rule_that_matches_labels_the_request() {
        let step = build::<TrafficLabel>(json!({"rules": [
            {"match": [["arg_a", "==", "1"]], "actions": [{"set_headers": {"X-Label": "a $arg_a"}}]},
            {"match": ["OR", ["arg_b", "==", "1"], ["arg_c", "==", "1"]], "actions": [{"set_headers": {"X-Label": 2}}]},
        ]}));
        let labels = ["/?a=1&b=1", "/?b=1", "/?c=1", "/"].map(|target| label(&step, target));
        assert_eq!(labels, [Some("a 1".to_owned()), Some("2".to_owned()), Some("2".to_owned()), None]);
    }

    #[test]
    fn actions_get_exactly_their_shares() {
        let step = build::<TrafficLabel>(json!({"rules": [{"actions": [
            {"set_headers": {"X-Label": "one"}, "weight": 3},
            {"set_headers": {"X-Label": "two"}, "weight": 2},
            {"weight": 5},
        ]}]}));
        let labels: Vec<_> = (0..100).map(|_| label(&step, "/")).collect();
        let count = |wanted: Option<&str>| labels.iter().filter(|label| label.as_deref() == wanted).count();
        assert_eq!((count(Some("one")), count(Some("two")), count(None)), (30, 20, 50));
    }

    #[test]
    fn a_label_replaces_what_the_client_says_and_cannot_break_its_line() {
        let step = build::<TrafficLabel>(json!({"rules": [{"actions": [{"set_headers": {"X-Label": "$arg_a"}}]}]}));
        let mut exchange = get("/?a=own");
        exchange.request.head.add(b"x-label", b"forged").expect("valid");
        on_request(&step, &mut exchange).expect("valid");
        assert_eq!(exchange.request.head.values(b"x-label").collect::<Vec<_>>(), [b"own"]);
        assert_eq!(on_request(&step, &mut get("/?a=x%0d%0aX-B:%201")), Err(Stop::Respond(400)));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        let actions = |actions: Value| json!({"rules": [{"actions": actions}]});
        for (options, want) in [
            (json!({"rules": []}), "rules: is empty"),
            (json!({"rules": [{}]}), "rules[0]: the option `actions` is missing"),
            (json!({"rules": [{"match": [], "actions": [{}]}]}), "rules[0].match: is empty"),
            (actions(json!([])), "rules[0].actions: is empty"),
            (actions(json!([{"weight": 0}])), "rules[0].actions[0].weight: expected a whole number"),
            (actions(json!([{"set_headers": {}}])), "rules[0].actions[0].set_headers: is empty"),
            (actions(json!([{"set_headers": {"Host": "x"}}])), "rules[0].actions[0].set_headers: cannot change `Host`"),
            (
                actions(json!([{"set_header": {}}])),
                "rules[0].actions[0].set_header: the option `set_header` is not known",
            ),
        ] {
            let error = refused::<TrafficLabel>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
