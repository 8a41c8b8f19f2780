//! A second, simple interpreter of expressions, with which the compiled form is compared.

use std::borrow::Cow;
use std::collections::HashMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::Expression;
use crate::variable::{Variable, Variables};

/// Values by the variable's name.
#[derive(Clone, Debug, Default)]
struct Request {
    values: HashMap<String, String>,
    lists: HashMap<String, Vec<String>>,
}

impl Request {
    fn of(values: &[(&str, &str)]) -> Request {
        let own = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
        Request { values: values.iter().map(own).collect(), lists: HashMap::new() }
    }
}

impl Variables for Request {
    fn variable(&self, variable: &Variable) -> Option<Cow<'_, [u8]>> {
        self.values.get(&variable.to_string()).map(|value| value.as_bytes().into())
    }

    fn any_element(&self, variable: &Variable, test: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.lists.get(&variable.to_string()).is_some_and(|list| list.iter().any(|element| test(element.as_bytes())))
    }
}

fn interpret(rule: &Value, request: &Request) -> bool {
    let rule = rule.as_array().expect("a rule");
    match rule.first() {
        Some(Value::String(word)) => match word.as_str() {
            "AND" => rule[1..].iter().all(|rule| interpret(rule, request)),
            "OR" => rule[1..].iter().any(|rule| interpret(rule, request)),
            "!AND" => !rule[1..].iter().all(|rule| interpret(rule, request)),
            "!OR" => !rule[1..].iter().any(|rule| interpret(rule, request)),
            name if rule[1] == "!" => !compare(name, rule[2].as_str().expect("an operator"), &rule[3], request),
            name => compare(name, rule[1].as_str().expect("an operator"), &rule[2], request),
        },
        _ => rule.iter().all(|rule| interpret(rule, request)),
    }
}

fn compare(name: &str, operator: &str, constant: &Value, request: &Request) -> bool {
    let value = request.values.get(name).map(String::as_str);
    let equal = |value: Option<&str>, constant: &Value| match (value, constant) {
        (None, constant) => constant.is_null(),
        (Some(value), Value::String(text)) => value == text,
        (Some(value), Value::Number(number)) => value.trim().parse::<f64>().ok() == number.as_f64(),
        (Some(value), Value::Bool(word)) => value == word.to_string(),
        _ => false,
    };
    let bound = match constant {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    let ordered = |number: fn(&f64, &f64) -> bool, text: fn(&str, &str) -> bool| match (value, bound) {
        (None, _) => false,
        (Some(value), Some(bound)) => value.trim().parse::<f64>().is_ok_and(|value| number(&value, &bound)),
        (Some(value), None) => constant.as_str().is_some_and(|constant| text(value, constant)),
    };
    match operator {
        "==" => equal(value, constant),
        "~=" => !equal(value, constant),
        ">" => ordered(|a, b| a > b, |a, b| a > b),
        ">=" => ordered(|a, b| a >= b, |a, b| a >= b),
        "<" => ordered(|a, b| a < b, |a, b| a < b),
        "<=" => ordered(|a, b| a <= b, |a, b| a <= b),
        "in" => constant.as_array().expect("a list").iter().any(|constant| equal(value, constant)),
        "has" => request.lists.get(name).is_some_and(|list| list.iter().any(|item| equal(Some(item), constant))),
        // The generator produces only literal patterns and values in lower case.
        "~~" => value.is_some_and(|value| value.contains(constant.as_str().expect("a string"))),
        "~*" => value.is_some_and(|value| value.contains(&constant.as_str().expect("a string").to_lowercase())),
        "ipmatch" => value.is_some_and(|value| value.starts_with("10.")),
        _ => unreachable!("the generator knows no other operator"),
    }
}

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["arg_a", "arg_b", "http_x_y", "remote_addr", "graphql_root_fields", "nobody"])
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "", "a", "b", "ab", "0", "1", "18", "9", " 9 ", "1.5", "-1", "007", "true", "10.1.2.3"
        ])
        .prop_map(str::to_owned),
        "[a-c1-3]{0,3}",
    ]
}

fn constant() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => text().prop_map(Value::from),
        2 => (-3i64..20).prop_map(Value::from),
        1 => Just(json!(1.5)),
        1 => any::<bool>().prop_map(Value::from),
        1 => Just(Value::Null),
    ]
}

fn comparison() -> impl Strategy<Value = Value> {
    let bound = prop_oneof![text().prop_map(|text| json!(text.trim())), (-3i64..20).prop_map(Value::from)];
    let rest = prop_oneof![
        (prop::sample::select(vec!["==", "~=", "has"]), constant()).prop_map(|(operator, value)| (operator, value)),
        (prop::sample::select(vec![">", ">=", "<", "<="]), bound),
        (Just("in"), prop::collection::vec(constant(), 0..4).prop_map(Value::from)),
        (Just("~~"), "[a-c1-3]{0,2}".prop_map(Value::from)),
        (Just("~*"), "[A-C1-3]{0,2}".prop_map(Value::from)),
        (Just("ipmatch"), Just(json!(["10.0.0.0/8"]))),
    ];
    (name(), any::<bool>(), rest).prop_map(|(name, negated, (operator, value))| {
        if negated { json!([name, "!", operator, value]) } else { json!([name, operator, value]) }
    })
}

fn rule() -> impl Strategy<Value = Value> {
    comparison().prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            (prop::sample::select(vec!["AND", "OR", "!AND", "!OR"]), prop::collection::vec(inner.clone(), 2..4))
                .prop_map(|(word, rules)| Value::Array([vec![json!(word)], rules].concat())),
            prop::collection::vec(inner, 1..3).prop_map(Value::from),
        ]
    })
}

fn request() -> impl Strategy<Value = Request> {
    let address = prop_oneof![Just("10.9.8.7".to_owned()), Just("11.0.0.1".to_owned()), text()];
    let values = prop::collection::hash_map(name().prop_map(str::to_owned), text(), 0..6);
    let list = prop::collection::vec(text(), 0..4);
    (values, prop::option::of(address), list).prop_map(|(mut values, address, list)| {
        values.extend(address.map(|address| ("remote_addr".to_owned(), address)));
        Request { values, lists: HashMap::from([("graphql_root_fields".to_owned(), list)]) }
    })
}

/// Any JSON value, biased towards expressions.
fn anything() -> impl Strategy<Value = Value> {
    let word = prop::sample::select(vec!["AND", "!OR", "!", "==", "~~", "in", "has", "ipmatch", "arg_a", "(", "1"]);
    let leaf = prop_oneof![
        any::<f64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        word.prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 6, |inner| {
        prop_oneof![
            4 => prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            1 => prop::collection::hash_map(".{0,4}", inner, 0..3).prop_map(|map| map.into_iter().collect()),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn agrees_with_the_plain_interpreter(rules in prop::collection::vec(rule(), 0..4), request in request()) {
        let rules = Value::from(rules);
        let expression = Expression::compile(&rules).expect("a generated rule is right");
        prop_assert_eq!(expression.holds(&request), interpret(&rules, &request), "{}", expression);
        prop_assert_eq!(expression.unmet(&request).is_none(), expression.holds(&request));
    }

    #[test]
    fn compiles_or_refuses_anything(value in anything(), request in request()) {
        match Expression::compile(&value) {
            Ok(expression) => {
                expression.holds(&request);
                prop_assert!(!expression.to_string().is_empty());
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}

#[test]
fn documented_meanings() {
    let request = Request {
        lists: HashMap::from([("graphql_root_fields".to_owned(), vec!["owner".to_owned(), "repo".to_owned()])]),
        ..Request::of(&[
            ("arg_name", "json"),
            ("arg_weight", "9"),
            ("http_user_agent", "Curl/8"),
            ("remote_addr", "10.0.0.7"),
        ])
    };
    let cases = [
        (json!([]), true),
        (json!([["arg_name", "==", "json"], ["arg_weight", "<", 10]]), true),
        (json!([["arg_weight", "==", 9.0]]), true),
        (json!([["arg_weight", "==", "9.0"]]), false),
        (json!([["arg_weight", ">", "18"]]), false),
        (json!([["arg_name", ">", 1]]), false),
        (json!([["arg_name", ">", "abc"]]), true),
        (json!([["arg_none", "==", "json"]]), false),
        (json!([["arg_none", "~=", "json"]]), true),
        (json!([["arg_none", "==", null]]), true),
        (json!([["arg_name", "~=", null]]), true),
        (json!([["arg_none", "!", ">", 3]]), true),
        (json!([["arg_none", "~~", ".*"]]), false),
        (json!([["http_user-agent", "~~", "^curl"]]), false),
        (json!([["http_user-agent", "~*", "^curl/\\d$"]]), true),
        (json!([["arg_name", "in", ["xml", "json"]]]), true),
        (json!([["arg_weight", "IN", [8, 9]]]), true),
        (json!([["graphql_root_fields", "has", "owner"]]), true),
        (json!([["graphql_root_fields", "!", "has", "owner"]]), false),
        (json!([["arg_name", "has", "json"]]), false),
        (json!([["remote_addr", "ipmatch", ["127.0.0.1", "10.0.0.0/8"]]]), true),
        (json!([["arg_name", "ipmatch", ["0.0.0.0/0"]]]), false),
        (json!(["!AND", ["arg_name", "==", "json"], ["OR", ["arg_weight", ">", 10], ["arg_h", "!", ">", 15]]]), false),
        (json!([["OR", ["arg_name", "==", "x"], [["arg_name", "==", "json"], ["arg_weight", "==", "9"]]]]), true),
    ];
    for (value, expected) in cases {
        let expression = Expression::compile(&value).expect("right");
        assert_eq!(expression.holds(&request), expected, "{value}: {expression}");
    }
}

#[test]
fn bytes_that_are_not_text_match_regular_expressions() {
    struct Latin1;
    impl Variables for Latin1 {
        fn variable(&self, _: &Variable) -> Option<Cow<'_, [u8]>> {
            Some(b"caf\xe9 au lait".into())
        }
    }
    let holds = |regex| Expression::compile(&json!([["http_x", "~~", regex]])).expect("right").holds(&Latin1);
    assert!(holds("^caf. au"));
    assert!(holds("lait$"));
    assert!(!holds("café"));
}

/// R05: matching is linear, whatever the expression and the value.
#[test]
fn nested_repetition_does_not_blow_up() {
    let request = Request::of(&[("arg_a", &"a".repeat(50_000))]);
    let expression = Expression::compile(&json!([["arg_a", "~~", "^(a+)+$b"]])).expect("right");
    assert!(!expression.holds(&request));
}

#[test]
fn people_can_read_what_did_not_hold() {
    let value = json!([["arg_a", "==", "1"], ["OR", ["arg_b", "in", ["x", 2]], ["arg_b", "!", ">=", 3]]]);
    let expression = Expression::compile(&value).expect("right");
    assert_eq!(expression.to_string(), r#"arg_a == "1" and (arg_b in ["x", 2] or not (arg_b >= 3))"#);
    let request = Request::of(&[("arg_a", "1"), ("arg_b", "7")]);
    assert_eq!(expression.unmet(&request).as_deref(), Some(r#"arg_b in ["x", 2] or not (arg_b >= 3)"#));
    assert_eq!(expression.unmet(&Request::of(&[])).as_deref(), Some(r#"arg_a == "1""#));
}

#[test]
fn variables_are_listed() {
    let value = json!([["arg_a", "==", "1"], ["OR", ["nonsense", "==", "x"], ["post_arg_b", "!", ">=", 3]]]);
    let expression = Expression::compile(&value).expect("right");
    let variables = expression.variables();
    assert_eq!(variables.len(), 3);
    assert!(variables.contains(&&Variable::Unknown("nonsense".into())));
}
