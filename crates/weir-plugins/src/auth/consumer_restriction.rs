use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_plugin::{Build, ConfigError, Definition, Exchange, Flow, Plugin, Stage, Stop, Variable, Variables};

use crate::answer::RefusalResponse;

/// Allows or refuses requests by consumer, consumer group, service or route, optionally by method.
///
/// A request without a consumer is refused with 401.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConsumerRestriction {
    /// What the entries of the lists are.
    #[serde(default, rename = "type")]
    subject: RestrictedSubject,
    /// Only these are allowed, in addition to those that `allowed_by_methods` allows.
    #[schemars(length(min = 1))]
    whitelist: Option<Vec<String>>,
    /// These are refused, even if another list allows them.
    #[schemars(length(min = 1))]
    blacklist: Option<Vec<String>>,
    /// The methods that are allowed for each entry of this list. Consumers (or groups, services, routes) that are not
    /// in this list may use all methods, unless there is a `whitelist`.
    allowed_by_methods: Option<Vec<MethodRule>>,
    /// The status of a refusal, 200 to 999.
    #[serde(default = "default_rejected_code")]
    #[schemars(range(min = 200, max = 999))]
    rejected_code: u16,
    /// The message in the body of a refusal: `{"message":"..."}`.
    rejected_msg: Option<String>,
}

/// The methods one may use.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MethodRule {
    /// The name or id, as `type` defines.
    user: String,
    /// The methods, in upper case.
    #[schemars(length(min = 1))]
    methods: Vec<String>,
}

/// What is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum RestrictedSubject {
    /// The name of the consumer.
    #[default]
    ConsumerName,
    /// The group of the consumer.
    ConsumerGroupId,
    /// The id of the service that the route belongs to.
    ServiceId,
    /// The id of the route.
    RouteId,
}

fn default_rejected_code() -> u16 {
    403
}

const METHODS: [&str; 10] = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PURGE"];

impl Definition for ConsumerRestriction {
    const NAME: &'static str = "consumer-restriction";
    const PRIORITY: i32 = 2400;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "consumer-restriction: { whitelist: [jack], rejected_code: 403 }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        if self.whitelist.is_none() && self.blacklist.is_none() && self.allowed_by_methods.is_none() {
            return Err(ConfigError::new("", "needs `whitelist`, `blacklist` or `allowed_by_methods`"));
        }
        for (index, rule) in self.allowed_by_methods.iter().flatten().enumerate() {
            if rule.methods.is_empty() || !rule.methods.iter().all(|method| METHODS.contains(&method.as_str())) {
                let problem = format!("must be a list of one or more of {}", METHODS.join(", "));
                build.fault(format!("allowed_by_methods[{index}].methods"), problem);
            }
        }
        let (variable, name) = match self.subject {
            RestrictedSubject::ConsumerName => (Variable::ConsumerName, "consumer_name"),
            RestrictedSubject::ConsumerGroupId => (Variable::ConsumerGroupId, "consumer_group_id"),
            RestrictedSubject::ServiceId => (Variable::ServiceId, "service_id"),
            RestrictedSubject::RouteId => (Variable::RouteId, "route_id"),
        };
        let unknown = format!("The request is rejected, please check the {name} for this request");
        let refused = self.rejected_msg.unwrap_or_else(|| format!("The {name} is forbidden."));
        Ok(Arc::new(ConsumerAccessList {
            variable,
            whitelist: self.whitelist,
            blacklist: self.blacklist.unwrap_or_default(),
            by_methods: self.allowed_by_methods.unwrap_or_default(),
            unknown: RefusalResponse::new(401, "message", &unknown),
            refusal: RefusalResponse::new(self.rejected_code, "message", &refused),
        }))
    }
}

struct ConsumerAccessList {
    variable: Variable,
    whitelist: Option<Vec<String>>,
    blacklist: Vec<String>,
    by_methods: Vec<MethodRule>,
    unknown: RefusalResponse,
    refusal: RefusalResponse,
}

impl ConsumerAccessList {
    /// Whether the request is allowed; `None` if it has no value for the variable.
    fn lets_in(&self, exchange: &Exchange) -> Option<bool> {
        let subject = exchange.variable(&self.variable)?;
        let named = |list: &[String]| list.iter().any(|one| one.as_bytes() == &*subject);
        if named(&self.blacklist) {
            return Some(false);
        }
        if self.whitelist.as_deref().is_some_and(named) {
            return Some(true);
        }
        let method = exchange.request.method_name();
        let mut rules = self.by_methods.iter().filter(|rule| rule.user.as_bytes() == &*subject).peekable();
        Some(match rules.peek() {
            None => self.whitelist.is_none(),
            Some(_) => rules.any(|rule| rule.methods.iter().any(|allowed| allowed.as_bytes() == method)),
        })
    }
}

impl Plugin for ConsumerAccessList {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        match self.lets_in(exchange) {
            Some(true) => Ok(Flow::Continue),
            Some(false) => Err(self.refusal.send(exchange)),
            None => Err(self.unknown.send(exchange)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use weir_plugin::{Consumer, Credential};

    use super::*;
    use crate::testing::{body, build, exchange, get, on_request, refused};

    fn passes(options: &Value, username: &str, method: &str) -> bool {
        let mut exchange = exchange(&format!("{method} / HTTP/1.1\nHost: h"));
        let consumer = Arc::new(Consumer { username: username.into(), ..Consumer::default() });
        let credential = Credential { consumer, id: Box::default(), options: json!({}) };
        exchange.identify(&Arc::new(credential)).expect("a valid name");
        match on_request(&build::<ConsumerRestriction>(options.clone()), &mut exchange) {
            Ok(()) => true,
            Err(stop) => {
                assert_eq!((stop, exchange.response.status), (Stop::Answered, 403));
                assert_eq!(body(&exchange), "{\"message\":\"The consumer_name is forbidden.\"}\n");
                false
            }
        }
    }

    #[test]
    fn lists_say_who_comes_in() {
        let white = json!({"whitelist": ["jack"]});
        assert!(passes(&white, "jack", "GET") && !passes(&white, "rose", "GET"));
        let black = json!({"blacklist": ["jack"]});
        assert!(!passes(&black, "jack", "GET") && passes(&black, "rose", "GET"));
        let methods = json!({"allowed_by_methods": [{"user": "jack", "methods": ["GET", "HEAD"]}]});
        assert!(
            passes(&methods, "jack", "GET") && !passes(&methods, "jack", "POST") && passes(&methods, "rose", "POST")
        );
        let both = json!({"whitelist": ["rose"], "allowed_by_methods": [{"user": "jack", "methods": ["GET"]}]});
        assert!(passes(&both, "jack", "GET") && !passes(&both, "jack", "POST") && !passes(&both, "joe", "GET"));
    }

    #[test]
    fn request_without_a_consumer_is_refused() {
        let mut exchange = get("/");
        let step = build::<ConsumerRestriction>(json!({"blacklist": ["jack"]}));
        assert_eq!(on_request(&step, &mut exchange), Err(Stop::Answered));
        assert_eq!(exchange.response.status, 401);
        let want = "{\"message\":\"The request is rejected, please check the consumer_name for this request\"}\n";
        assert_eq!(body(&exchange), want);
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "needs `whitelist`, `blacklist` or"),
            (json!({"whitelist": []}), "whitelist: is empty"),
            (json!({"type": "role", "whitelist": ["a"]}), "type: `role` is not an allowed value"),
            (
                json!({"allowed_by_methods": [{"user": "a", "methods": ["get"]}]}),
                "allowed_by_methods[0].methods: must be a list",
            ),
        ] {
            let error = refused::<ConsumerRestriction>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
