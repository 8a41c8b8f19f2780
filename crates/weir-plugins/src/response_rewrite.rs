use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_plugin::{Build, ConfigError, Definition, Exchange, Expression, Phases, Plugin, Stage, Step, Stop};

use crate::headers::{HeaderEdits, HeaderOptions};

/// Changes the response on its way to the client: status, header fields, and the whole body.
///
/// It sees every response of the route, also those that the gateway or another plugin has made.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponseRewrite {
    /// The new status, 200 to 598.
    #[schemars(range(min = 200, max = 598))]
    status_code: Option<u16>,
    /// The new body. The upstream's is thrown away.
    body: Option<String>,
    /// `body` is written in base64.
    #[serde(default)]
    body_base64: bool,
    /// Header fields to add (names and values, or a list of `name: value`), set and remove, in this order; or names and
    /// values alone, which are set. `$variables` in values are replaced.
    headers: Option<HeaderOptions>,
    /// An expression over request and response; where it does not hold, the response stays as it is.
    vars: Option<Value>,
    /// Replacements in the body. Not supported by this version.
    filters: Option<Value>,
    /// The largest body that `filters` look at, in bytes.
    max_resp_body_size: Option<u64>,
}

impl Definition for ResponseRewrite {
    const NAME: &'static str = "response-rewrite";
    const PRIORITY: i32 = 899;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"response-rewrite: { status_code: 200, headers: { set: { X-Served-By: $upstream_addr }, remove: [X-Powered-By] }, vars: [[status, "==", 404]] }"#;

    fn build(self, build: &mut Build) -> Result<Step, ConfigError> {
        if self.filters.is_some() {
            return Err(ConfigError::new("filters", "is not supported by this version; use `body`"));
        }
        if self.max_resp_body_size == Some(0) {
            return Err(ConfigError::new("max_resp_body_size", "must be at least 1"));
        }
        if self.status_code.is_some_and(|status| !(200..=598).contains(&status)) {
            return Err(ConfigError::new("status_code", "must be from 200 to 598"));
        }
        let body = match self.body {
            Some(text) if self.body_base64 => {
                let wrong = |_| ConfigError::new("body", "is not base64, as `body_base64` says");
                Some(STANDARD.decode(text).map_err(wrong)?)
            }
            Some(text) => Some(text.into_bytes()),
            None if self.body_base64 => return Err(ConfigError::new("body_base64", "needs a `body`")),
            None => None,
        };
        let vars = self.vars.as_ref().map(Expression::compile).transpose().map_err(|error| {
            ConfigError::new(format!("vars{}", error.place), format!("{}; {}", error.reason, error.help))
        })?;
        let headers = self.headers.map(|options| options.compile("headers")).transpose()?;
        if self.status_code.is_none() && body.is_none() && headers.is_none() {
            build.warnings.push(ConfigError::new("", "changes nothing; give `status_code`, `body` or `headers`"));
        }
        Ok(Step::new(Rewrite {
            status: self.status_code,
            body: body.map(Vec::into_boxed_slice),
            headers: headers.unwrap_or_default(),
            vars,
        }))
    }
}

struct Rewrite {
    status: Option<u16>,
    body: Option<Box<[u8]>>,
    headers: HeaderEdits,
    vars: Option<Expression>,
}

/// Fields that describe a body which is no longer sent.
const OF_THE_BODY: [&[u8]; 6] =
    [b"Content-Length", b"Content-Encoding", b"Content-Range", b"ETag", b"Last-Modified", b"Accept-Ranges"];

impl Plugin for Rewrite {
    fn phases(&self) -> Phases {
        Phases::RESPONSE
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        if self.vars.as_ref().is_some_and(|vars| !vars.holds(exchange)) {
            return Ok(());
        }
        if let Some(status) = self.status {
            exchange.response.set_status(status);
        }
        if let Some(body) = &self.body {
            for name in OF_THE_BODY {
                exchange.response.head.remove(name);
            }
            exchange.body.clear();
            exchange.body.extend_from_slice(body);
        }
        // Only what a variable brought can be unfit for a field.
        self.headers.apply(exchange, |exchange| &mut exchange.response.head, &[]).map_err(|_| Stop::Internal)?;
        if self.body.is_some() { Err(Stop::Answered) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{body, build, get, refused, sent};

    fn answered(status: u16) -> Exchange {
        let mut exchange = get("/?a=1");
        exchange.response.set_status(status);
        exchange.response.head.add(b"Content-Type", b"text/html").expect("valid");
        exchange.response.head.add(b"ETag", b"\"1\"").expect("valid");
        exchange
    }

    #[test]
    fn status_fields_and_body_are_replaced() {
        let options = json!({"status_code": 209, "body": "hi\n",
            "headers": {"set": {"X-A": "$status"}, "add": ["X-B: 1", "X-B:2"], "remove": ["Content-Type"]}});
        let mut exchange = answered(200);
        assert_eq!(build::<ResponseRewrite>(options).on_response(&mut exchange), Err(Stop::Answered));
        assert_eq!((exchange.response.status, body(&exchange)), (209, "hi\n"));
        assert_eq!(
            (sent(&exchange, "x-a"), sent(&exchange, "content-type"), sent(&exchange, "etag")),
            (Some("209"), None, None)
        );
        assert_eq!(exchange.response.head.values(b"x-b").collect::<Vec<_>>(), [b"1", b"2"]);
    }

    #[test]
    fn only_where_the_expression_holds() {
        let step = build::<ResponseRewrite>(json!({"vars": [["status", "==", 404]], "headers": {"X-A": "1"}}));
        let (mut found, mut missing) = (answered(200), answered(404));
        assert_eq!(step.on_response(&mut found), Ok(()));
        assert_eq!(step.on_response(&mut missing), Ok(()));
        assert_eq!((sent(&found, "x-a"), sent(&missing, "x-a")), (None, Some("1")));
        assert_eq!(sent(&missing, "etag"), Some("\"1\""), "the body is the upstream's");
    }

    #[test]
    fn a_body_can_be_binary() {
        let mut exchange = answered(200);
        let step = build::<ResponseRewrite>(json!({"body": "/wA=", "body_base64": true}));
        assert_eq!(step.on_response(&mut exchange), Err(Stop::Answered));
        assert_eq!(exchange.body, [0xff, 0]);
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"status_code": 600}), "status_code: must be from 200 to 598"),
            (json!({"body": "%", "body_base64": true}), "body: is not base64"),
            (json!({"body_base64": true}), "body_base64: needs a `body`"),
            (json!({"vars": [["status"]]}), "vars[0]: rule too short"),
            (json!({"headers": {"add": ["X-A"]}}), "headers.add[0]: is no `name: value`"),
            (json!({"headers": {"set": {"Transfer-Encoding": "x"}}}), "headers.set.Transfer-Encoding: frames messages"),
            (json!({"filters": []}), "filters: is not supported"),
        ] {
            let error = refused::<ResponseRewrite>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
