//! The answer of OPA: whether a request is allowed, and what a refused client is told.

use std::fmt;

use serde::Deserialize;
use serde_json::{Map, Value};
use weir_plugin::proto::field;

use crate::options::headers::header_name;

/// The status of a refusal without `status_code`, as in APISIX.
const REFUSED: u64 = 403;

/// A name and a value.
type AnswerField = (Box<str>, Box<str>);

/// The result of a policy.
#[derive(Debug, PartialEq)]
pub(super) struct Decision {
    pub is_allowed: bool,
    /// The status of a refusal, 200 to 599.
    pub status: u16,
    /// A text, or any other JSON.
    pub reason: Option<Value>,
    /// Names and values; a field with several values occurs several times.
    pub headers: Vec<AnswerField>,
}

/// Other members are for other callers of the same policy. In Rego, an undefined rule is a missing member.
#[derive(Deserialize)]
struct PolicyResult {
    allow: Option<bool>,
    status_code: Option<u64>,
    reason: Option<Value>,
    headers: Option<Map<String, Value>>,
}

/// Why an answer is not a decision.
#[derive(Debug)]
pub(super) enum BadAnswer {
    NoJson(serde_json::Error),
    NoResult,
    NoObject,
    BadMember(serde_json::Error),
    BadStatus(u64),
    BadField(String),
}

impl fmt::Display for BadAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadAnswer::NoJson(error) => write!(f, "the answer is not JSON of OPA: {error}"),
            BadAnswer::NoResult => {
                write!(f, "the policy has no `result`; is its path, with slashes, that of a package?")
            }
            BadAnswer::NoObject => {
                write!(f, "`result` is not an object with `allow`; name the package of the policy, and not its rule")
            }
            BadAnswer::BadMember(error) => write!(f, "`result` has a member of another type: {error}"),
            BadAnswer::BadStatus(status) => write!(f, "`status_code` is {status}, and must be 200 to 599"),
            BadAnswer::BadField(name) => write!(f, "`headers` has a name or a value that is not allowed: {name:?}"),
        }
    }
}

impl Decision {
    /// From the content of OPA's answer to `POST /v1/data/POLICY`.
    ///
    /// # Errors
    /// If it is not a result of the form that the plugin documents.
    pub(super) fn parse(content: &[u8]) -> Result<Decision, BadAnswer> {
        let mut answer: Map<String, Value> = serde_json::from_slice(content).map_err(BadAnswer::NoJson)?;
        let result = answer.remove("result").filter(|result| !result.is_null()).ok_or(BadAnswer::NoResult)?;
        // An array would be read as the members in their order.
        if !result.is_object() {
            return Err(BadAnswer::NoObject);
        }
        let result: PolicyResult = serde_json::from_value(result).map_err(BadAnswer::BadMember)?;
        let status = result.status_code.unwrap_or(REFUSED);
        let is_status = (200..=599).contains(&status);
        Ok(Decision {
            is_allowed: result.allow == Some(true),
            status: u16::try_from(status).ok().filter(|_| is_status).ok_or(BadAnswer::BadStatus(status))?,
            reason: result.reason,
            headers: fields(result.headers.unwrap_or_default())?,
        })
    }

    /// The values of a field; the case of the name is ignored.
    pub(super) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.headers.iter().filter(move |(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| &**value)
    }

    /// The content of a refusal, with its type.
    pub(super) fn content(&self) -> (&'static str, String) {
        match &self.reason {
            None => ("text/plain; charset=utf-8", String::new()),
            Some(Value::String(text)) => ("text/plain; charset=utf-8", text.clone()),
            Some(other) => ("application/json", other.to_string()),
        }
    }
}

/// The fields of a result, whose values are texts, numbers, booleans or lists of them.
fn fields(map: Map<String, Value>) -> Result<Vec<AnswerField>, BadAnswer> {
    let mut fields = Vec::new();
    for (name, value) in map {
        let values = match value {
            Value::Array(values) => values,
            value => vec![value],
        };
        for value in values {
            let text = match value {
                Value::String(text) => Some(text),
                Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
                _ => None,
            };
            let is_valid = |text: &String| header_name(&name, "").is_ok() && field::is_value(text.as_bytes());
            let Some(text) = text.filter(is_valid) else { return Err(BadAnswer::BadField(name)) };
            fields.push((name.as_str().into(), text.into()));
        }
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(answer: &Value) -> Result<Decision, String> {
        Decision::parse(answer.to_string().as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn only_a_true_allow_allows() {
        for (result, is_allowed) in [
            (json!({"allow": true, "other": [1]}), true),
            (json!({"allow": false}), false),
            (json!({"allow": null}), false),
            (json!({}), false),
        ] {
            assert_eq!(parse(&json!({ "result": result })).expect("a decision").is_allowed, is_allowed, "{result}");
        }
    }

    #[test]
    fn fields_are_texts_numbers_and_lists() {
        let headers = json!({"X-User": "jack", "x-level": 3, "X-Role": ["a", "b"], "X-None": []});
        let decision = parse(&json!({"result": {"allow": true, "headers": headers}})).expect("a decision");
        let values = |name| decision.values(name).collect::<Vec<_>>();
        assert_eq!([values("x-user"), values("X-Level"), values("X-Role")], [vec!["jack"], vec!["3"], vec!["a", "b"]]);
        assert_eq!(values("x-none"), [""; 0]);
    }

    #[test]
    fn an_answer_without_a_decision_says_why() {
        for (answer, want) in [
            (json!({}), "the policy has no `result`"),
            (json!({"result": null}), "the policy has no `result`"),
            (json!({"code": "invalid_parameter"}), "the policy has no `result`"),
            (json!([{"allow": true}]), "the answer is not JSON of OPA"),
            (json!({"result": true}), "`result` is not an object with `allow`; name"),
            (json!({"result": [true]}), "`result` is not an object with `allow`; name"),
            (json!({"result": {"allow": "yes"}}), "`result` has a member of another type: invalid type"),
            (json!({"result": {"status_code": 42}}), "`status_code` is 42"),
            (json!({"result": {"status_code": 66_000}}), "`status_code` is 66000"),
            (json!({"result": {"headers": {"a b": "c"}}}), "`headers` has a name or a value"),
            (json!({"result": {"headers": {"a": "b\r\nc: d"}}}), "`headers` has a name or a value"),
            (json!({"result": {"headers": {"Content-Length": 3}}}), "`headers` has a name or a value"),
            (json!({"result": {"headers": {"a": {"b": 1}}}}), "`headers` has a name or a value"),
        ] {
            let error = parse(&answer).expect_err("refused");
            assert!(error.starts_with(want), "{answer}: {error}");
        }
        assert!(matches!(Decision::parse(b"allow"), Err(BadAnswer::NoJson(_))));
    }
}
