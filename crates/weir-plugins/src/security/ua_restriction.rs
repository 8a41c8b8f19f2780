use std::sync::Arc;

use regex::bytes::RegexSet;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Build, ConfigError, Definition, Exchange, Flow, Plugin, Stage, Stop};

use crate::answer::RefusalResponse;
use crate::options::pattern;

/// Allows or refuses requests by their `User-Agent`.
///
/// A request with several `User-Agent` fields is refused if any of the values is refused.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UaRestriction {
    /// Allows requests without a `User-Agent`.
    #[serde(default)]
    bypass_missing: bool,
    /// Regular expressions. Requests that match one of them are allowed; all others are refused.
    allowlist: Option<Vec<String>>,
    /// Regular expressions. Requests that match one of them are refused; all others are allowed.
    denylist: Option<Vec<String>>,
    /// The message in the body of a refusal, whose status is 403: `{"message":"..."}`.
    #[serde(default = "default_message")]
    #[schemars(length(min = 1, max = 1024))]
    message: String,
}

fn default_message() -> String {
    "Not allowed".to_owned()
}

impl Definition for UaRestriction {
    const NAME: &'static str = "ua-restriction";
    const PRIORITY: i32 = 2999;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"ua-restriction: { denylist: ["^curl/", "(?i)python"], bypass_missing: true }"#;

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let (texts, path, allowed) = match (self.allowlist, self.denylist) {
            (Some(texts), None) => (texts, "allowlist", true),
            (None, Some(texts)) => (texts, "denylist", false),
            (allowed, denied) => {
                let options = [("allowlist", allowed.is_some()), ("denylist", denied.is_some())];
                return Err(ConfigError::one_of(&options));
            }
        };
        Ok(Arc::new(UserAgentAccessList {
            patterns: pattern::compile_set(&texts, false, path)?,
            allowed,
            bypass_missing: self.bypass_missing,
            refusal: RefusalResponse::new(403, "message", &self.message),
        }))
    }
}

struct UserAgentAccessList {
    patterns: Arc<RegexSet>,
    /// Whether matching agents are allowed, and others refused, or the reverse.
    allowed: bool,
    bypass_missing: bool,
    refusal: RefusalResponse,
}

impl Plugin for UserAgentAccessList {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        if self.lets_through(exchange) { Ok(Flow::Continue) } else { Err(self.refusal.send(exchange)) }
    }
}

impl UserAgentAccessList {
    fn lets_through(&self, exchange: &Exchange) -> bool {
        let mut agents = exchange.request.head.values(b"user-agent").peekable();
        match agents.peek() {
            None => self.bypass_missing,
            Some(_) => agents.all(|agent| self.patterns.is_match(agent) == self.allowed),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{body, build, exchange, get, on_request, refused};

    fn passes(options: Value, agent: &str) -> bool {
        let mut exchange = exchange(&format!("GET / HTTP/1.1\nHost: h\nUser-Agent: {agent}"));
        on_request(&build::<UaRestriction>(options), &mut exchange).is_ok()
    }

    #[test]
    fn lists_let_through_and_refuse() {
        assert!(passes(json!({"allowlist": ["^my-app/", "Baidu"]}), "Baiduspider"));
        assert!(!passes(json!({"allowlist": ["^my-app/"]}), "curl/8"));
        assert!(!passes(json!({"denylist": ["curl.*"]}), "curl/8"));
        assert!(passes(json!({"denylist": ["curl.*"]}), "Mozilla"));
        assert!(!passes(json!({"denylist": ["curl.*"]}), "Mozilla\nUser-Agent: curl"), "one of two");
    }

    #[test]
    fn a_missing_agent_is_refused_unless_told() {
        let mut exchange = get("/");
        let step = build::<UaRestriction>(json!({"denylist": ["x"]}));
        assert_eq!(on_request(&step, &mut exchange), Err(Stop::Answered));
        assert_eq!((exchange.response.status, body(&exchange)), (403, "{\"message\":\"Not allowed\"}\n"));
        let step = build::<UaRestriction>(json!({"denylist": ["x"], "bypass_missing": true}));
        assert_eq!(on_request(&step, &mut exchange), Ok(()));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "needs one of"),
            (json!({"denylist": []}), "denylist: must contain from 1"),
            (json!({"denylist": ["a", "("]}), "denylist[1]: is not a regular expression"),
        ] {
            let error = refused::<UaRestriction>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
