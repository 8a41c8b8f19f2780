use std::sync::Arc;

use regex::bytes::RegexSet;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Build, ConfigError, Definition, Exchange, Flow, Plugin, Stage, Stop};

use crate::answer::RefusalResponse;
use crate::options::pattern;

/// Refuses requests whose path and query match a regular expression.
///
/// The expressions are matched both against the request target as the client wrote it and against its normalized form,
/// so percent-encoding (`/%61dmin`) does not bypass them.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UriBlocker {
    /// Regular expressions that are matched against the path with its query.
    block_rules: Vec<String>,
    /// The status of a refusal, 200 to 999.
    #[serde(default = "default_rejected_code")]
    #[schemars(range(min = 200, max = 999))]
    rejected_code: u16,
    /// The message in the body of a refusal, `{"error_msg":"..."}`. Without it, a refusal has only the status.
    #[schemars(length(min = 1))]
    rejected_msg: Option<String>,
    /// Ignores case.
    #[serde(default)]
    case_insensitive: bool,
}

fn default_rejected_code() -> u16 {
    403
}

impl Definition for UriBlocker {
    const NAME: &'static str = "uri-blocker";
    const PRIORITY: i32 = 2900;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = r#"uri-blocker: { block_rules: ["\\.(env|git)", "^/admin"], rejected_code: 404 }"#;

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        Ok(Arc::new(Blocker {
            rules: pattern::compile_set(&self.block_rules, self.case_insensitive, "block_rules")?,
            refusal: RefusalResponse::error(self.rejected_code, self.rejected_msg.as_deref()),
        }))
    }
}

struct Blocker {
    rules: Arc<RegexSet>,
    refusal: RefusalResponse,
}

impl Plugin for Blocker {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        let request = &exchange.request;
        let is_blocked = |path: &[u8]| match request.query() {
            None => self.rules.is_match(path),
            Some(query) => self.rules.is_match(&[path, b"?", query].concat()),
        };
        let blocked = self.rules.is_match(request.target())
            || (request.target() != request.path() && is_blocked(request.path()))
            || (request.has_empty_segments() && is_blocked(request.unmerged_path()));
        if blocked { Err(self.refusal.send(exchange)) } else { Ok(Flow::Continue) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{body, build, get, on_request, refused};

    #[test]
    fn matching_targets_are_refused_in_any_spelling() {
        let step = build::<UriBlocker>(json!({"block_rules": ["^/admin", "root\\.exe", "[?&]debug="]}));
        for target in ["/admin", "//admin", "/%61dmin/x", "/a/../admin", "/root.exe", "/x?a=root.exe", "/x?debug=1"] {
            assert_eq!(on_request(&step, &mut get(target)), Err(Stop::Respond(403)), "{target}");
        }
        for target in ["/a/admin", "/rootXexe", "/ADMIN", "/debug="] {
            assert_eq!(on_request(&step, &mut get(target)), Ok(()), "{target}");
        }
    }

    #[test]
    fn a_refusal_says_what_it_is_told() {
        let options = json!({"block_rules": ["^/admin"], "case_insensitive": true, "rejected_code": 404,
            "rejected_msg": "nothing here"});
        let mut exchange = get("/ADMIN");
        assert_eq!(on_request(&build::<UriBlocker>(options), &mut exchange), Err(Stop::Answered));
        assert_eq!((exchange.response.status, body(&exchange)), (404, "{\"error_msg\":\"nothing here\"}\n"));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "the option `block_rules` is missing"),
            (json!({"block_rules": []}), "block_rules: must contain from 1"),
            (json!({"block_rules": ["a", "[z-a]"]}), "block_rules[1]: is not a regular expression"),
        ] {
            let error = refused::<UriBlocker>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
