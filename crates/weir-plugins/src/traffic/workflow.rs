use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_plugin::{
    AllOf, Build, CollectAll, ConfigError, Definition, Exchange, Expression, Flow, Phases, Plugin, Stage, Stop,
};

use crate::answer::RefusalResponse;
use crate::limit::replacement::{self, Replacement};

/// Applies a rate limit or a refusal depending on conditions: the first rule whose `case` matches the request is
/// applied.
///
/// A `limit-count` or `limit-conn` action replaces the plugin of the same name on the route, for this request.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Workflow {
    /// The rules, in the order in which they are tried.
    #[schemars(length(min = 1))]
    rules: Vec<WorkflowRuleOptions>,
}

/// What happens in one case.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WorkflowRuleOptions {
    /// An expression, such as `[[uri, "==", /a]]`. A rule without a `case` matches every request.
    case: Option<Value>,
    /// One or more actions: `[return, { code: 403 }]`, `[limit-count, { ... }]` or `[limit-conn, { ... }]`.
    #[schemars(length(min = 1))]
    actions: Vec<Vec<Value>>,
}

/// The options of the action `return`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReturnOptions {
    code: u16,
}

impl Definition for Workflow {
    const NAME: &'static str = "workflow";
    const PRIORITY: i32 = 1006;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"workflow:
  rules:
    - { case: [[uri, "==", /old]], actions: [[return, { code: 410 }]] }
    - { case: [[http_x_tier, "==", free]], actions: [[limit-count, { count: 10, time_window: 60, rejected_code: 429 }]] }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let rule = |(index, rule): (usize, WorkflowRuleOptions)| {
            let path = format!("rules[{index}]");
            let case = rule.case.as_ref().map(|case| build.condition(case, &format!("{path}.case"))).transpose();
            let action = |(number, action): (usize, Vec<Value>)| {
                WorkflowAction::compile(&action, &format!("{path}.actions[{number}]"), build)
            };
            let actions = rule.actions.into_iter().enumerate().map(action).collect_all();
            let (case, actions) = (case, actions).all_of()?;
            Ok(WorkflowRule { case, actions })
        };
        let rules = self.rules.into_iter().enumerate().map(rule).collect_all()?;
        Ok(Arc::new(WorkflowRules(rules)))
    }
}

struct WorkflowRules(Box<[WorkflowRule]>);

struct WorkflowRule {
    case: Option<Expression>,
    actions: Box<[WorkflowAction]>,
}

enum WorkflowAction {
    Return(RefusalResponse),
    Limit { plugin: Arc<dyn Plugin>, replaced: &'static Replacement },
}

impl WorkflowAction {
    fn compile(action: &[Value], path: &str, build: &mut Build) -> Result<WorkflowAction, ConfigError> {
        let [Value::String(name), options] = action else {
            return Err(ConfigError::new(path, "is not an action; write as `[return, { code: 403 }]`"));
        };
        let path = format!("{path}[1]");
        match name.as_str() {
            "return" => {
                let options = ReturnOptions::deserialize(options);
                let ReturnOptions { code } = options.map_err(|error| ConfigError::new(&path, error.to_string()))?;
                if !(200..=599).contains(&code) {
                    return Err(ConfigError::new(format!("{path}.code"), "must be from 200 to 599"));
                }
                Ok(WorkflowAction::Return(RefusalResponse::new(code, "error_msg", "rejected by workflow")))
            }
            "limit-count" | "limit-conn" => {
                let entry = crate::REGISTRY.find(name).expect("both are plugins");
                // `within` gives each action an identity of its own, so that equal options do not share counters.
                let mut part = build.within(&path);
                let step = (entry.build)(options, &mut part).map_err(|error| error.below(&path))?;
                build.warnings.extend(part.warnings.into_iter().map(|warning| warning.below(&path)));
                let replaced = if name == "limit-count" { &replacement::LIMIT_COUNT } else { &replacement::LIMIT_CONN };
                Ok(WorkflowAction::Limit { plugin: step, replaced })
            }
            _ => Err(ConfigError::new(path, format!("`{name}` is none of `return`, `limit-count` and `limit-conn`"))),
        }
    }
}

impl WorkflowAction {
    fn run<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        match self {
            WorkflowAction::Return(refusal) => Err(refusal.send(exchange)),
            WorkflowAction::Limit { plugin, .. } => plugin.on_request(exchange),
        }
    }

    /// Notes that the route's plugin of this name is replaced for this exchange.
    fn replace(&self, exchange: &mut Exchange) {
        if let WorkflowAction::Limit { replaced, .. } = self {
            exchange.notes.write(***replaced, [0; 3]);
        }
    }
}

impl WorkflowRules {
    fn limits(&self) -> impl Iterator<Item = &Arc<dyn Plugin>> {
        self.0.iter().flat_map(|rule| &rule.actions).filter_map(|action| match action {
            WorkflowAction::Limit { plugin, .. } => Some(plugin),
            WorkflowAction::Return(_) => None,
        })
    }
}

impl Plugin for WorkflowRules {
    fn phases(&self) -> Phases {
        self.limits().fold(Phases::REQUEST, |phases, plugin| phases.and(plugin.phases()))
    }

    fn start(&self) -> Result<(), String> {
        self.limits().filter(|plugin| plugin.phases().start).try_for_each(|plugin| plugin.start())
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        let holds = |rule: &&WorkflowRule| rule.case.as_ref().is_none_or(|case| case.holds(exchange));
        let Some(rule) = self.0.iter().find(holds) else { return Ok(Flow::Continue) };
        rule.actions.iter().for_each(|action| action.replace(exchange));
        match &*rule.actions {
            [action] => action.run(exchange),
            actions => Ok(Flow::wait(async move {
                for action in actions {
                    action.run(exchange)?.finish().await?;
                }
                Ok(())
            })),
        }
    }

    /// Each limit knows from its own notes whether it was applied.
    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        self.limits().filter(|plugin| plugin.phases().response).try_for_each(|plugin| plugin.on_response(exchange))
    }

    fn on_log(&self, exchange: &Exchange) {
        self.limits().filter(|plugin| plugin.phases().log).for_each(|plugin| plugin.on_log(exchange));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::limit::limit_count::LimitCount;
    use crate::testing::{body, build, get, on_request, refused, sent};

    #[test]
    fn the_first_case_that_holds_counts() {
        let limit = |count: u64| json!(["limit-count", {"count": count, "time_window": 60, "rejected_code": 429}]);
        let step = build::<Workflow>(json!({"rules": [
            {"case": [["uri", "==", "/old"]], "actions": [["return", {"code": 410}]]},
            {"case": [["arg_tier", "==", "free"]], "actions": [limit(1)]},
            {"case": [["arg_tier", "==", "paid"]], "actions": [limit(1)]},
        ]}));
        let mut old = get("/old?tier=free");
        assert_eq!(on_request(&step, &mut old), Err(Stop::Answered));
        assert_eq!((old.response.status, body(&old)), (410, "{\"error_msg\":\"rejected by workflow\"}\n"));
        assert_eq!(on_request(&step, &mut get("/a")), Ok(()));
        assert_eq!(on_request(&step, &mut get("/a?tier=free")), Ok(()));
        assert_eq!(on_request(&step, &mut get("/a?tier=paid")), Ok(()), "each rule counts on its own");
        let mut second = get("/a?tier=free");
        assert_eq!(on_request(&step, &mut second), Err(Stop::Respond(429)));
        assert!(step.phases().response);
        step.on_response(&mut second).expect("fields are added");
        assert_eq!(sent(&second, "x-ratelimit-remaining"), Some("0"));
    }

    #[test]
    fn u18_a_chosen_limit_takes_the_place_of_the_routes() {
        let limit = |count: u64| json!({"count": count, "time_window": 60});
        let chosen = build::<Workflow>(json!({"rules": [
            {"case": [["arg_tier", "==", "paid"]], "actions": [["limit-count", limit(3)]]},
        ]}));
        let usual = build::<LimitCount>(limit(1));
        let asked = |target: &str| {
            let mut exchange = get(target);
            on_request(&chosen, &mut exchange)?;
            on_request(&usual, &mut exchange)
        };
        let paid: Vec<_> = (0..4).map(|_| asked("/?tier=paid").is_ok()).collect();
        assert_eq!(paid, [true, true, true, false]);
        assert_eq!([asked("/").is_ok(), asked("/").is_ok()], [true, false]);
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        let rule = |actions: Value| json!({"rules": [{"actions": actions}]});
        for (options, want) in [
            (json!({"rules": []}), "rules: is empty"),
            (rule(json!([])), "rules[0].actions: is empty"),
            (rule(json!([["return"]])), "rules[0].actions[0]: is not an action"),
            (rule(json!([["return", {"code": 42}]])), "rules[0].actions[0][1].code: must be from 200"),
            (rule(json!([["cors", {}]])), "rules[0].actions[0][1]: `cors` is none of"),
            (rule(json!([["limit-count", {"count": 0, "time_window": 1}]])), "rules[0].actions[0][1].count: must be"),
            (
                json!({"rules": [{"case": [["a", "?", 1]], "actions": [["return", {"code": 403}]]}]}),
                "rules[0].case[0][1]: invalid operator",
            ),
        ] {
            let error = refused::<Workflow>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
