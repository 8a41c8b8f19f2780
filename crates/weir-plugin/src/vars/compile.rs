//! Compiles the JSON form of an expression to a tree.

use std::sync::Arc;

use regex::bytes::Regex;
use serde_json::Value;

use super::condition::{Condition, Constant, Relation, Set, Test};
use super::network::parse_network;
use super::number::number;
use super::{Error, Node};
use crate::pattern::{self, PatternFault};
use crate::variable::Variable;

/// Limit of the nesting of rules, and so of the recursion of compiling and evaluating.
const MAX_DEPTH: usize = 32;
/// Limit of the comparisons in an expression.
const MAX_TESTS: usize = 1_000;
/// Limit of the constants in a list of `in` or `ipmatch`.
const MAX_LIST: usize = 10_000;
/// Limit of the regular expressions in an expression: each may take [`MAX_REGEX_SIZE`].
const MAX_REGEXES: usize = 100;
/// Limit of the text of a regular expression, in bytes.
const MAX_REGEX_TEXT: usize = 16 << 10;
/// Limit of a compiled regular expression, and of its cache, in bytes.
const MAX_REGEX_SIZE: usize = 1 << 20;

const OPERATORS: &str = "use one of ==, ~=, >, >=, <, <=, ~~, ~*, in, has, ipmatch";

/// Compiles an expression; also returns what is valid in it but probably a mistake.
pub(super) fn compile(value: &Value) -> Result<(Node, Vec<Error>), Error> {
    let mut compiler = ExpressionCompiler { place: Vec::new(), tests: 0, regexes: 0, doubts: Vec::new() };
    let Value::Array(items) = value else {
        return Err(compiler.unwrapped());
    };
    let root = match items.first() {
        Some(Value::String(word)) if Connective::parse(word).is_some() => compiler.node(items),
        // ["arg_a", "==", "b"]: the outer brackets are missing.
        Some(Value::String(_)) if !matches!(items.get(1), Some(Value::Array(_))) => Err(compiler.unwrapped()),
        Some(Value::String(word)) => Err(compiler.with_index(0, |it| it.not_connective(word))),
        _ => compiler.nodes(items, 0).map(Node::All),
    }?;
    Ok((root, compiler.doubts))
}

#[derive(Clone, Copy)]
struct Connective {
    any: bool,
    negated: bool,
}

impl Connective {
    fn parse(word: &str) -> Option<Connective> {
        let (word, negated) = match word.strip_prefix('!') {
            Some(rest) => (rest, true),
            None => (word, false),
        };
        match word {
            "AND" => Some(Connective { any: false, negated }),
            "OR" => Some(Connective { any: true, negated }),
            _ => None,
        }
    }
}

struct ExpressionCompiler {
    /// The indices that lead to the value being compiled.
    place: Vec<usize>,
    tests: usize,
    regexes: usize,
    doubts: Vec<Error>,
}

impl ExpressionCompiler {
    /// Compiles the value at `index` of the current place.
    fn with_index<T>(&mut self, index: usize, compile: impl FnOnce(&mut Self) -> T) -> T {
        self.place.push(index);
        let result = compile(self);
        self.place.pop();
        result
    }

    fn nodes(&mut self, items: &[Value], offset: usize) -> Result<Box<[Node]>, Error> {
        let compile = |(index, item): (usize, &Value)| {
            self.with_index(index + offset, |it| match item {
                Value::Array(items) => it.node(items),
                _ => Err(it.unwrapped()),
            })
        };
        items.iter().enumerate().map(compile).collect()
    }

    fn node(&mut self, items: &[Value]) -> Result<Node, Error> {
        if self.place.len() > MAX_DEPTH {
            return Err(self.error("invalid expression", format!("nest rules at most {MAX_DEPTH} deep")));
        }
        match items {
            [] => Err(self.error("rule too short", r#"write [variable, operator, constant], as ["arg_a", "==", "1"]"#)),
            [Value::String(word), operands @ ..] => match Connective::parse(word) {
                Some(connective) => self.connected(connective, word, operands),
                None if operands.len() > 1 && operands.iter().all(Value::is_array) => {
                    Err(self.with_index(0, |it| it.not_connective(word)))
                }
                None => self.test(word, operands),
            },
            [Value::Array(_), ..] => self.nodes(items, 0).map(Node::All),
            _ => {
                let help = r#"begin a rule with the name of a variable, as ["arg_id", "==", "1"]"#;
                Err(self.with_index(0, |it| it.error("invalid expression", help)))
            }
        }
    }

    fn connected(&mut self, connective: Connective, word: &str, operands: &[Value]) -> Result<Node, Error> {
        if operands.len() < 2 {
            return Err(self.error("rule too short", format!("give {word} at least two rules")));
        }
        let nodes = self.nodes(operands, 1)?;
        let node = if connective.any { Node::Any(nodes) } else { Node::All(nodes) };
        Ok(if connective.negated { Node::Not(Box::new(node)) } else { node })
    }

    fn test(&mut self, name: &str, rest: &[Value]) -> Result<Node, Error> {
        let not = |value: &Value| value.as_str() == Some("!");
        let equal = Value::from("==");
        let (operator, constant, negated) = match rest {
            // APISIX: two elements are a variable and the value it must equal.
            [constant] if !constant.as_str().is_some_and(is_operator) => (&equal, constant, false),
            [] | [_] => {
                return Err(self.error("rule too short", format!("write [\"{name}\", operator, constant]")));
            }
            [first, second] if !not(first) => (first, second, false),
            [first, second, third] if not(first) => (second, third, true),
            _ => {
                let help = format!("write [\"{name}\", operator, constant] or [\"{name}\", \"!\", operator, constant]");
                return Err(self.error("bad 'not' expression", help));
            }
        };
        if name.is_empty() {
            return Err(self.with_index(0, |it| it.error("invalid expression", "name a variable, as arg_a")));
        }
        self.tests += 1;
        if self.tests > MAX_TESTS {
            return Err(self.error("invalid expression", format!("write at most {MAX_TESTS} comparisons")));
        }
        let operator_index = if rest.len() == 1 { 0 } else { 1 + usize::from(negated) };
        let Some(operator) = operator.as_str() else {
            let reason = format!("invalid operator '{}'", short(&operator.to_string()));
            return Err(self.with_index(operator_index, |it| it.error(reason, OPERATORS)));
        };
        let (condition, inverse) = self.condition(operator, constant, operator_index)?;
        let variable = Variable::named(name);
        if let Condition::Equal(_) | Condition::OneOf(_) = condition {
            self.doubt_boolean(&variable, constant, operator_index);
        }
        let node = Node::Test(Test { variable, condition });
        Ok(if inverse != negated { Node::Not(Box::new(node)) } else { node })
    }

    /// YAML reads `yes` and `on` as the boolean `true`, but values of a request are text.
    fn doubt_boolean(&mut self, variable: &Variable, constant: &Value, operator_index: usize) {
        if !matches!(variable, Variable::Argument(_) | Variable::Header(_) | Variable::Cookie(_)) {
            return;
        }
        let constants = constant.as_array().map_or(std::slice::from_ref(constant), Vec::as_slice);
        let Some(boolean) = constants.iter().find_map(Value::as_bool) else { return };
        let reason = format!("`{variable}` is text, and the boolean {boolean} equals only the text `{boolean}`");
        let words = if boolean { r#""true", "yes" or "on""# } else { r#""false", "no" or "off""# };
        let doubt =
            self.with_index(operator_index + 1, |it| it.error(reason, format!("put the text in quotes, as {words}")));
        self.doubts.push(doubt);
    }

    /// The condition, and whether it is inverted.
    fn condition(&mut self, operator: &str, value: &Value, index: usize) -> Result<(Condition, bool), Error> {
        let value_index = index + 1;
        let condition = match operator {
            "==" | "~=" => Condition::Equal(self.with_index(value_index, |it| it.constant(value))?),
            ">" => self.with_index(value_index, |it| it.ordered(Relation::Greater, value))?,
            ">=" => self.with_index(value_index, |it| it.ordered(Relation::GreaterOrEqual, value))?,
            "<" => self.with_index(value_index, |it| it.ordered(Relation::Less, value))?,
            "<=" => self.with_index(value_index, |it| it.ordered(Relation::LessOrEqual, value))?,
            "~~" | "~*" => {
                let ignore_case = operator == "~*";
                let regex = self.with_index(value_index, |it| it.regex(value, ignore_case))?;
                Condition::Matches { regex, ignore_case }
            }
            "in" | "IN" => Condition::OneOf(self.with_index(value_index, |it| it.set(value))?),
            "has" | "HAS" => Condition::Has(self.with_index(value_index, |it| it.constant(value))?),
            "ipmatch" | "IPMATCH" => Condition::Within(self.with_index(value_index, |it| it.networks(value))?),
            _ => {
                let reason = format!("invalid operator '{}'", short(operator));
                return Err(self.with_index(index, |it| it.error(reason, operator_help(operator))));
            }
        };
        Ok((condition, operator == "~="))
    }

    fn constant(&self, value: &Value) -> Result<Constant, Error> {
        Ok(match value {
            Value::Null => Constant::Missing,
            Value::String(text) => Constant::Text(text.as_bytes().into()),
            Value::Bool(true) => Constant::Text((*b"true").into()),
            Value::Bool(false) => Constant::Text((*b"false").into()),
            Value::Number(number) => match number.as_f64() {
                Some(number) => Constant::Number(number),
                None => return Err(self.error("invalid expression", "use a number of at most 64 bits")),
            },
            Value::Array(_) => {
                return Err(self.error("invalid expression", r#"compare with one constant, or use "in" with a list"#));
            }
            Value::Object(_) => {
                return Err(self.error("invalid expression", "compare with a string, a number or null"));
            }
        })
    }

    fn ordered(&self, accepted: Relation, value: &Value) -> Result<Condition, Error> {
        let bound = match self.constant(value)? {
            Constant::Missing => return Err(self.error("invalid expression", "compare with a number or a string")),
            // ["arg_age", ">", "18"] means the number: compared as text, 9 would be greater.
            Constant::Text(text) => number(&text).map_or(Constant::Text(text), Constant::Number),
            Constant::Number(number) => Constant::Number(number),
        };
        Ok(Condition::Ordered { accepted, bound })
    }

    fn set(&mut self, value: &Value) -> Result<Set, Error> {
        let Value::Array(values) = value else {
            return Err(self.error("invalid expression", r#"give "in" a list, as ["a", "b"]"#));
        };
        self.check_length(values)?;
        values.iter().enumerate().map(|(index, value)| self.with_index(index, |it| it.constant(value))).collect()
    }

    fn networks(&mut self, value: &Value) -> Result<Box<[ipnet::IpNet]>, Error> {
        match value {
            Value::String(_) => Ok([self.network(value)?].into()),
            Value::Array(values) => {
                self.check_length(values)?;
                values.iter().enumerate().map(|(index, value)| self.with_index(index, |it| it.network(value))).collect()
            }
            _ => Err(self.error("invalid expression", r#"give "ipmatch" a list, as ["10.0.0.0/8", "::1"]"#)),
        }
    }

    fn network(&self, value: &Value) -> Result<ipnet::IpNet, Error> {
        value.as_str().and_then(parse_network).ok_or_else(|| {
            let reason = format!("invalid ip address: {}", short(value.as_str().unwrap_or(&value.to_string())));
            self.error(reason, "write an address or a range, as 10.0.0.0/8 or ::1")
        })
    }

    fn check_length(&self, values: &[Value]) -> Result<(), Error> {
        if values.len() > MAX_LIST {
            return Err(self.error("invalid expression", format!("list at most {MAX_LIST} constants")));
        }
        Ok(())
    }

    fn regex(&mut self, value: &Value, ignore_case: bool) -> Result<Arc<Regex>, Error> {
        let text = match value {
            Value::String(text) => text.as_str(),
            Value::Number(number) => &number.to_string(),
            _ => return Err(self.error("invalid expression", "give a regular expression as a string")),
        };
        self.regexes += 1;
        if self.regexes > MAX_REGEXES {
            let help = format!("use at most {MAX_REGEXES} regular expressions");
            return Err(self.error("invalid expression", help));
        }
        if text.len() > MAX_REGEX_TEXT {
            let help = format!("keep a regular expression below {MAX_REGEX_TEXT} bytes");
            return Err(self.error("invalid expression", help));
        }
        pattern::compile(text, ignore_case, MAX_REGEX_SIZE).map_err(|fault| match fault {
            PatternFault::TooLarge => {
                let help = format!("simplify it: the compiled expression must not exceed {} KiB", MAX_REGEX_SIZE >> 10);
                self.error("regular expression too large", help)
            }
            PatternFault::Invalid { reason } => self.error(
                format!("invalid regular expression: {}", short(&reason)),
                "look-around and back-references are not supported",
            ),
        })
    }

    fn unwrapped(&self) -> Error {
        self.error("rule should be wrapped inside brackets", r#"write a list of rules, as [["arg_a", "==", "1"]]"#)
    }

    fn not_connective(&self, word: &str) -> Error {
        self.error(format!("invalid operator '{}'", short(word)), "join rules with AND, OR, !AND or !OR")
    }

    fn error(&self, reason: impl Into<String>, help: impl Into<String>) -> Error {
        let place = self.place.iter().map(|index| format!("[{index}]")).collect();
        Error { place, reason: reason.into(), help: help.into() }
    }
}

/// A rule that ends with one of these lacks its constant.
fn is_operator(text: &str) -> bool {
    const WORDS: [&str; 15] =
        ["!", "==", "~=", ">", ">=", "<", "<=", "~~", "~*", "in", "IN", "has", "HAS", "ipmatch", "IPMATCH"];
    WORDS.contains(&text)
}

fn operator_help(operator: &str) -> &'static str {
    match operator {
        "=" | "===" | "eq" => "use == to compare",
        "!=" | "<>" | "!==" | "ne" => "use ~= for not equal",
        "=~" | "~" | "regex" => "use ~~ for a regular expression, ~* without regard to case",
        "!~" | "!~~" => r#"negate with "!" before the operator: [variable, "!", "~~", regex]"#,
        "=>" => "use >= for greater or equal",
        "=<" => "use <= for less or equal",
        _ => OPERATORS,
    }
}

/// A prefix of a text, for error messages.
fn short(text: &str) -> String {
    const SHOWN: usize = 60;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn error(value: Value) -> String {
        compile(&value).expect_err("an error").to_string()
    }

    #[test]
    fn errors_name_the_place_and_what_would_be_right() {
        let cases = [
            (json!("arg_a == 1"), "vars: rule should be wrapped inside brackets; write a list of rules"),
            (json!(["arg_a", "==", "1"]), "vars: rule should be wrapped inside brackets; write a list of rules"),
            (json!([["arg_a", "==", "1"], "x"]), "vars[1]: rule should be wrapped inside brackets"),
            (json!([["arg_a", "???", "b"]]), "vars[0][1]: invalid operator '???'; use one of ==, ~=, >"),
            (json!([["arg_a", "!", "!=", "b"]]), "vars[0][2]: invalid operator '!='; use ~= for not equal"),
            (json!([["arg_a", 3, "b"]]), "vars[0][1]: invalid operator '3'"),
            (json!([["arg_a"]]), r#"vars[0]: rule too short; write ["arg_a", operator, constant]"#),
            (json!([["arg_a", "=="]]), "vars[0]: rule too short"),
            (json!([[]]), "vars[0]: rule too short"),
            (json!([["arg_a", "!", "=="]]), "vars[0]: bad 'not' expression; write"),
            (json!([["arg_a", "==", "1", "2"]]), "vars[0]: bad 'not' expression; write"),
            (json!([["", "==", "1"]]), "vars[0][0]: invalid expression; name a variable"),
            (
                json!([[1, "==", "1"]]),
                r#"vars[0][0]: invalid expression; begin a rule with the name of a variable, as ["arg_id", "==", "1"]"#,
            ),
            (json!(["AND", ["arg_a", "==", "1"]]), "vars: rule too short; give AND at least two rules"),
            (json!([["arg_a", "==", "1"], ["!OR"]]), "vars[1]: rule too short; give !OR at least two rules"),
            (json!(["XOR", ["arg_a", "==", "1"], ["arg_a", "==", "2"]]), "vars[0]: invalid operator 'XOR'; join rules"),
            (json!([["and", ["arg_a", "==", "1"], ["arg_a", "==", "2"]]]), "vars[0][0]: invalid operator 'and'; join"),
            (json!(["OR", ["arg_a", "==", "1"], ["arg_a", "in", "2"]]), r#"vars[2][2]: invalid expression; give "in""#),
            (json!([["arg_a", "in", ["1", ["2"]]]]), "vars[0][2][1]: invalid expression; compare with one constant"),
            (json!([["arg_a", "==", {"a": 1}]]), "vars[0][2]: invalid expression; compare with a string"),
            (json!([["arg_a", ">", null]]), "vars[0][2]: invalid expression; compare with a number or a string"),
            (
                json!([["arg_a", "ipmatch", ["10.0.0.0/33"]]]),
                "vars[0][2][0]: invalid ip address: 10.0.0.0/33; write an",
            ),
            (json!([["arg_a", "ipmatch", 1]]), r#"vars[0][2]: invalid expression; give "ipmatch" a list"#),
            (json!([["arg_a", "~~", ["a"]]]), "vars[0][2]: invalid expression; give a regular expression as a string"),
            (json!([["arg_a", "~~", "(a"]]), "vars[0][2]: invalid regular expression: unclosed group"),
            (json!([["arg_a", "~~", "(?=a)"]]), "vars[0][2]: invalid regular expression: look-around"),
            (json!([["arg_a", "!", "~*", "a{1000}{1000}{1000}"]]), "vars[0][3]: regular expression too large"),
        ];
        for (value, expected) in cases {
            let text = error(value.clone());
            assert!(text.starts_with(expected), "{value}\n     got: {text}\nexpected: {expected}");
        }
    }

    #[test]
    fn u18_two_elements_ask_for_equality() {
        let printed = |value: Value| compile(&value).expect("valid").0.to_string();
        assert_eq!(printed(json!([["arg_a", "1"]])), printed(json!([["arg_a", "==", "1"]])));
        assert_eq!(
            printed(json!([["arg_a", 1], ["arg_b", null]])),
            printed(json!([["arg_a", "==", 1], ["arg_b", "==", null]]))
        );
        assert!(error(json!([["arg_a", {"a": 1}]])).starts_with("vars[0][1]: invalid expression"));
    }

    #[test]
    fn booleans_are_doubted_where_the_variable_is_text_of_the_client() {
        let places = |value: Value| {
            let (_, doubts) = compile(&value).expect("valid");
            doubts.into_iter().map(|doubt| doubt.place).collect::<Vec<_>>()
        };
        assert_eq!(
            places(json!([["http_x", "==", true], ["cookie_a", "!", "in", ["a", false]]])),
            ["[0][2]", "[1][3]"]
        );
        assert_eq!(places(json!([["arg_a", true], ["arg_a", "~=", false]])), ["[0][1]", "[1][2]"]);
        assert_eq!(places(json!([["arg_a", "==", 1], ["arg_a", "true"], ["post_arg.a", "==", true]])), [""; 0]);
    }

    #[test]
    fn limits_are_errors() {
        let nested = (0..100).fold(json!(["arg_a", "==", "1"]), |inner, _| json!([inner]));
        assert!(error(nested).contains("nest rules at most 32 deep"));
        let wide: Vec<Value> = (0..1_001).map(|_| json!(["arg_a", "==", "1"])).collect();
        assert!(error(wide.into()).starts_with("vars[1000]: invalid expression; write at most 1000 comparisons"));
        let list: Vec<Value> = (0..10_001).map(Value::from).collect();
        assert!(error(json!([["arg_a", "in", list]])).contains("list at most 10000 constants"));
        assert!(error(json!([["arg_a", "~~", "a".repeat(1 << 20)]])).contains("below 16384 bytes"));
        let regexes: Vec<Value> = (0..101).map(|_| json!(["arg_a", "~~", "1"])).collect();
        assert!(error(regexes.into()).contains("at most 100 regular expressions"));
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        assert_eq!(short(&"é".repeat(61)), format!("{}...", "é".repeat(60)));
        assert_eq!(short("abc"), "abc");
    }
}
