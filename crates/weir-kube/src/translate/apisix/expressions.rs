//! `exprs` as conditions of a route.

use serde_json::{Value, json};

use super::super::expressions::Expressions;
use super::super::node_references::is_reference;
use crate::objects::apisix::ApisixExpression;

/// The condition of a route that an expression stands for.
///
/// # Errors
/// What is wrong with it.
pub(super) fn condition(
    expression: &ApisixExpression,
    namespace: &str,
    expressions: &mut Expressions,
) -> Result<Value, String> {
    let subject = subject(expression)?;
    let texts = expression.set.iter().flatten().chain(&expression.value).chain([&subject]);
    if texts.into_iter().any(|text| is_reference(text)) {
        return Err("value: begins with `$env://` or `$secret://`, which would be a value of the node".to_owned());
    }
    let (negated, operator) = operator(&expression.op)?;
    let value = match operator {
        "in" => {
            let set = expression.set.as_ref().filter(|set| !set.is_empty());
            json!(set.ok_or_else(|| format!("op: `{}` needs `set` with values", expression.op))?)
        }
        _ => {
            let value = expression.value.as_ref();
            json!(value.ok_or_else(|| format!("op: `{}` needs `value`", expression.op))?)
        }
    };
    if let (true, Some(pattern)) = (operator.starts_with('~') && operator != "~=", value.as_str()) {
        expressions.check(namespace, pattern).map_err(|problem| format!("value: {problem}"))?;
    }
    Ok(match negated {
        true => json!([subject, "!", operator, value]),
        false => json!([subject, operator, value]),
    })
}

/// The variable.
fn subject(expression: &ApisixExpression) -> Result<String, String> {
    let name = &expression.subject.name;
    let scope = &*expression.subject.scope;
    if name.is_empty() && scope != "Path" {
        return Err("subject.name: is missing".to_owned());
    }
    match scope {
        "Query" => Ok(format!("arg_{name}")),
        "Header" => Ok(format!("http_{}", name.to_ascii_lowercase().replace('-', "_"))),
        "Cookie" => Ok(format!("cookie_{name}")),
        "Path" => Ok("uri".to_owned()),
        "Variable" => Ok(name.clone()),
        _ => Err(format!("subject.scope: `{scope}` is none of Query, Header, Cookie, Path and Variable")),
    }
}

/// The operator of a condition, and whether it is negated.
fn operator(name: &str) -> Result<(bool, &'static str), String> {
    Ok(match name {
        "Equal" => (false, "=="),
        "NotEqual" => (false, "~="),
        "GreaterThan" => (false, ">"),
        "GreaterThanEqual" => (false, ">="),
        "LessThan" => (false, "<"),
        "LessThanEqual" => (false, "<="),
        "RegexMatch" => (false, "~~"),
        "RegexNotMatch" => (true, "~~"),
        "RegexMatchCaseInsensitive" => (false, "~*"),
        "RegexNotMatchCaseInsensitive" => (true, "~*"),
        "In" => (false, "in"),
        "NotIn" => (true, "in"),
        _ => return Err(format!("op: `{name}` is not an operator")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition_of(value: Value) -> Result<Value, String> {
        let expression = serde_json::from_value(value).expect("it has the form");
        condition(&expression, "shop", &mut Expressions::default())
    }

    #[test]
    fn expressions_become_conditions_on_variables() {
        for (subject, op, rest, expected) in [
            (
                json!({ "scope": "Header", "name": "X-Canary" }),
                "Equal",
                ("value", json!("yes")),
                json!(["http_x_canary", "==", "yes"]),
            ),
            (
                json!({ "scope": "Query", "name": "v" }),
                "In",
                ("set", json!(["1", "2"])),
                json!(["arg_v", "in", ["1", "2"]]),
            ),
            (
                json!({ "scope": "Cookie", "name": "a" }),
                "NotIn",
                ("set", json!(["b"])),
                json!(["cookie_a", "!", "in", ["b"]]),
            ),
            (json!({ "scope": "Path" }), "RegexMatch", ("value", json!("^/a")), json!(["uri", "~~", "^/a"])),
            (
                json!({ "scope": "Variable", "name": "remote_port" }),
                "RegexNotMatchCaseInsensitive",
                ("value", json!("8$")),
                json!(["remote_port", "!", "~*", "8$"]),
            ),
        ] {
            let (key, value) = rest;
            assert_eq!(condition_of(json!({ "subject": subject, "op": op, key: value })), Ok(expected));
        }
    }

    #[test]
    fn faults_of_expressions_name_the_field() {
        for (value, told) in [
            (json!({ "subject": { "scope": "Header" }, "op": "Equal", "value": "a" }), "subject.name"),
            (json!({ "subject": { "scope": "Body", "name": "a" }, "op": "Equal", "value": "a" }), "subject.scope"),
            (json!({ "subject": { "scope": "Path" }, "op": "Equal", "value": "$env://HOME" }), "value: begins with"),
            (json!({ "subject": { "scope": "Path" }, "op": "Like", "value": "a" }), "op: `Like`"),
            (json!({ "subject": { "scope": "Path" }, "op": "In", "value": "a" }), "needs `set`"),
            (json!({ "subject": { "scope": "Path" }, "op": "Equal", "set": ["a"] }), "needs `value`"),
            (json!({ "subject": { "scope": "Path" }, "op": "RegexMatch", "value": "(" }), "value: it is not"),
        ] {
            let problem = condition_of(value.clone()).expect_err("it has a fault");
            assert!(problem.contains(told), "{value}: {problem}");
        }
    }
}
