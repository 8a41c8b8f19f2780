//! What expressions mean: values that can be written with variables, and conditions.

use std::collections::HashMap;
use std::fmt::Write;

use serde_json::{Value, json};
use weir_plugin::Expression;

use super::syntax::{LuaStatement, LuaStatementKind, LuaTerm, LuaTermKind};
use super::{HIDDEN, LuaObstacle, is_secret};

/// Variables of the request that have the same value in `ctx.var`, in `ngx.var` and in Weir.
const VARIABLES: [&str; 8] =
    ["host", "remote_addr", "remote_port", "request_method", "request_uri", "scheme", "server_port", "uri"];
/// The beginnings of the names of such variables.
const FAMILIES: [&str; 3] = ["arg_", "cookie_", "http_"];

/// `ngx.HTTP_…`
const STATUSES: [(&str, u16); 20] = [
    ("HTTP_OK", 200),
    ("HTTP_CREATED", 201),
    ("HTTP_ACCEPTED", 202),
    ("HTTP_NO_CONTENT", 204),
    ("HTTP_MOVED_PERMANENTLY", 301),
    ("HTTP_MOVED_TEMPORARILY", 302),
    ("HTTP_SEE_OTHER", 303),
    ("HTTP_TEMPORARY_REDIRECT", 307),
    ("HTTP_PERMANENT_REDIRECT", 308),
    ("HTTP_BAD_REQUEST", 400),
    ("HTTP_UNAUTHORIZED", 401),
    ("HTTP_FORBIDDEN", 403),
    ("HTTP_NOT_FOUND", 404),
    ("HTTP_NOT_ALLOWED", 405),
    ("HTTP_NOT_ACCEPTABLE", 406),
    ("HTTP_CONFLICT", 409),
    ("HTTP_GONE", 410),
    ("HTTP_TOO_MANY_REQUESTS", 429),
    ("HTTP_INTERNAL_SERVER_ERROR", 500),
    ("HTTP_SERVICE_UNAVAILABLE", 503),
];

/// The beginnings of credentials that are no secrets.
const SCHEMES: [&str; 3] = ["Basic ", "Bearer ", "Token "];

/// What an expression stands for.
#[derive(Clone, Debug)]
pub(super) enum LuaValue {
    Nil,
    Number(String),
    Text(String),
    /// A variable of the request.
    Variable(String),
    /// Texts and variables in a row.
    Joined(Vec<LuaValue>),
    /// The header fields of the request.
    RequestFields,
    /// A function or a table of the platform, such as `ngx.req.set_header`.
    Path(String),
    /// A table of literals, as JSON.
    Table(Value),
}

/// The names that are in force.
#[derive(Clone, Debug)]
pub(super) struct LuaScope {
    names: HashMap<String, LuaValue>,
}

impl LuaScope {
    pub(super) fn new() -> LuaScope {
        let names = ["ngx", "require", "tonumber"];
        let path = |name: &str| (name.to_owned(), LuaValue::Path(name.to_owned()));
        LuaScope { names: names.into_iter().map(path).collect() }
    }

    pub(super) fn declare(&mut self, name: &str, value: LuaValue) {
        self.names.insert(name.to_owned(), value);
    }

    /// Takes a declaration into the scope. `false` if the statement is another one.
    pub(super) fn takes(&mut self, statement: &LuaStatement) -> Result<bool, LuaObstacle> {
        let LuaStatementKind::Local(name, expression) = &statement.kind else { return Ok(false) };
        let value = self.value(expression)?;
        self.declare(name, value);
        Ok(true)
    }

    pub(super) fn value(&self, expression: &LuaTerm) -> Result<LuaValue, LuaObstacle> {
        let obstacle = || LuaObstacle::new(expression.line, described(expression));
        match &expression.kind {
            LuaTermKind::Nil => Ok(LuaValue::Nil),
            LuaTermKind::Number(number) => Ok(LuaValue::Number(number.clone())),
            LuaTermKind::Text(text) => Ok(LuaValue::Text(text.clone())),
            LuaTermKind::Name(name) => self.names.get(name).cloned().ok_or_else(obstacle),
            LuaTermKind::Member(of, key) => {
                let (of, key) = (self.value(of)?, self.value(key)?);
                member(&of, &key).ok_or_else(obstacle)
            }
            LuaTermKind::Call(function, arguments) => {
                let LuaValue::Path(function) = self.value(function)? else { return Err(obstacle()) };
                result(&function, &self.values(arguments)?).ok_or_else(obstacle)
            }
            LuaTermKind::Binary("..", left, right) => {
                let mut parts = Vec::new();
                for side in [left, right] {
                    match self.value(side)? {
                        LuaValue::Joined(inner) => parts.extend(inner),
                        part @ (LuaValue::Text(_) | LuaValue::Variable(_)) => parts.push(part),
                        _ => return Err(obstacle()),
                    }
                }
                Ok(LuaValue::Joined(parts))
            }
            LuaTermKind::Table(members) => {
                let member = |(name, value): &(String, LuaTerm)| {
                    let literal = match &value.kind {
                        LuaTermKind::Boolean(boolean) => json!(boolean),
                        _ => self.value(value)?.literal().ok_or_else(obstacle)?,
                    };
                    Ok((name.clone(), literal))
                };
                Ok(LuaValue::Table(Value::Object(members.iter().map(member).collect::<Result<_, _>>()?)))
            }
            LuaTermKind::Boolean(_) | LuaTermKind::Not(_) | LuaTermKind::Binary(..) => Err(obstacle()),
        }
    }

    pub(super) fn values(&self, expressions: &[LuaTerm]) -> Result<Vec<LuaValue>, LuaObstacle> {
        expressions.iter().map(|expression| self.value(expression)).collect()
    }

    /// The `vars` for a condition.
    pub(super) fn vars(&self, expression: &LuaTerm) -> Result<Value, LuaObstacle> {
        let vars = match self.condition(expression)? {
            LuaCondition::All(conditions) => Value::Array(conditions.iter().map(LuaCondition::rule).collect()),
            other => json!([other.rule()]),
        };
        match Expression::compile(&vars) {
            Ok(_) => Ok(vars),
            Err(error) => Err(LuaObstacle::new(expression.line, error.reason)),
        }
    }

    fn condition(&self, expression: &LuaTerm) -> Result<LuaCondition, LuaObstacle> {
        let obstacle = || LuaObstacle::new(expression.line, described(expression));
        match &expression.kind {
            LuaTermKind::Not(inner) => Ok(self.condition(inner)?.negated()),
            LuaTermKind::Binary("and", left, right) => {
                Ok(LuaCondition::All(flattened([self.condition(left)?, self.condition(right)?], |inner| match inner {
                    LuaCondition::All(inner) => Ok(inner),
                    other => Err(other),
                })))
            }
            LuaTermKind::Binary("or", left, right) => {
                Ok(LuaCondition::Any(flattened([self.condition(left)?, self.condition(right)?], |inner| match inner {
                    LuaCondition::Any(inner) => Ok(inner),
                    other => Err(other),
                })))
            }
            LuaTermKind::Binary(operator @ ("==" | "~="), left, right) => {
                let (left, right) = (self.compared(left)?, self.compared(right)?);
                equality(operator, left, right).ok_or_else(obstacle)
            }
            LuaTermKind::Binary(operator @ ("<" | "<=" | ">" | ">="), left, right) => {
                match (self.compared(left)?, self.compared(right)?) {
                    (Compared::NumberOf(variable), Compared::Value(LuaValue::Number(number))) => {
                        Ok(LuaCondition::Rule(variable, operator, number_of(&number)))
                    }
                    _ => Err(obstacle()),
                }
            }
            LuaTermKind::Call(function, arguments) => match self.value(function)? {
                LuaValue::Path(function) if function == "ngx.re.match" || function == "ngx.re.find" => {
                    pattern(&self.values(arguments)?).ok_or_else(obstacle)
                }
                _ => self.present(expression),
            },
            _ => self.present(expression),
        }
    }

    /// A value as a condition: it is there.
    fn present(&self, expression: &LuaTerm) -> Result<LuaCondition, LuaObstacle> {
        match self.value(expression)? {
            LuaValue::Variable(name) => Ok(LuaCondition::Rule(name, "~=", Value::Null)),
            _ => Err(LuaObstacle::new(expression.line, described(expression))),
        }
    }

    fn compared(&self, expression: &LuaTerm) -> Result<Compared, LuaObstacle> {
        if let LuaTermKind::Call(function, arguments) = &expression.kind
            && matches!(self.value(function)?, LuaValue::Path(path) if path == "tonumber")
            && let [LuaValue::Variable(name)] = &self.values(arguments)?[..]
        {
            return Ok(Compared::NumberOf(name.clone()));
        }
        self.value(expression).map(Compared::Value)
    }
}

/// A side of a comparison.
enum Compared {
    Value(LuaValue),
    /// `tonumber` of a variable.
    NumberOf(String),
}

fn equality(operator: &'static str, left: Compared, right: Compared) -> Option<LuaCondition> {
    use Compared::{NumberOf, Value as Plain};
    match (left, right) {
        (Plain(LuaValue::Variable(name)), Plain(constant @ (LuaValue::Text(_) | LuaValue::Nil)))
        | (Plain(constant @ (LuaValue::Text(_) | LuaValue::Nil)), Plain(LuaValue::Variable(name))) => {
            let constant = constant.literal().filter(|constant| constant.as_str().is_none_or(is_only_text))?;
            let is_hidden = constant.is_string() && is_secret(&name);
            Some(LuaCondition::Rule(name, operator, if is_hidden { json!(HIDDEN) } else { constant }))
        }
        (NumberOf(name), Plain(LuaValue::Number(number))) => {
            Some(LuaCondition::Rule(name, operator, number_of(&number)))
        }
        _ => None,
    }
}

/// Whether a text stands for itself in a file: it is no reference to a secret or a variable.
fn is_only_text(text: &str) -> bool {
    !text.contains("${{") && !text.starts_with('$')
}

fn pattern(arguments: &[LuaValue]) -> Option<LuaCondition> {
    let (name, pattern, options) = match arguments {
        [LuaValue::Variable(name), LuaValue::Text(pattern)] => (name, pattern, ""),
        [LuaValue::Variable(name), LuaValue::Text(pattern), LuaValue::Text(options)] => (name, pattern, &**options),
        _ => return None,
    };
    let operator = if options.contains('i') { "~*" } else { "~~" };
    let are_known = options.chars().all(|option| "ijo".contains(option));
    let pattern = if is_secret(name) { HIDDEN } else { pattern };
    (are_known && is_only_text(pattern)).then(|| LuaCondition::Rule(name.clone(), operator, json!(pattern)))
}

enum LuaCondition {
    Rule(String, &'static str, Value),
    /// A rule that does not hold.
    No(String, &'static str, Value),
    All(Vec<LuaCondition>),
    Any(Vec<LuaCondition>),
    NotAll(Vec<LuaCondition>),
    NotAny(Vec<LuaCondition>),
}

impl LuaCondition {
    fn negated(self) -> LuaCondition {
        match self {
            LuaCondition::Rule(name, "==", value) => LuaCondition::Rule(name, "~=", value),
            LuaCondition::Rule(name, "~=", value) => LuaCondition::Rule(name, "==", value),
            LuaCondition::Rule(name, operator, value) => LuaCondition::No(name, operator, value),
            LuaCondition::No(name, operator, value) => LuaCondition::Rule(name, operator, value),
            LuaCondition::All(inner) => LuaCondition::NotAll(inner),
            LuaCondition::NotAll(inner) => LuaCondition::All(inner),
            LuaCondition::Any(inner) => LuaCondition::NotAny(inner),
            LuaCondition::NotAny(inner) => LuaCondition::Any(inner),
        }
    }

    fn rule(&self) -> Value {
        let (word, inner) = match self {
            LuaCondition::Rule(name, operator, value) => return json!([name, operator, value]),
            LuaCondition::No(name, operator, value) => return json!([name, "!", operator, value]),
            LuaCondition::All(inner) => ("AND", inner),
            LuaCondition::Any(inner) => ("OR", inner),
            LuaCondition::NotAll(inner) => ("!AND", inner),
            LuaCondition::NotAny(inner) => ("!OR", inner),
        };
        Value::Array(std::iter::once(json!(word)).chain(inner.iter().map(LuaCondition::rule)).collect())
    }
}

/// The operands of an operator, with those of the same operator in it.
fn flattened(
    sides: [LuaCondition; 2],
    inner: impl Fn(LuaCondition) -> Result<Vec<LuaCondition>, LuaCondition>,
) -> Vec<LuaCondition> {
    sides.into_iter().flat_map(|side| inner(side).unwrap_or_else(|other| vec![other])).collect()
}

impl LuaValue {
    fn literal(&self) -> Option<Value> {
        match self {
            LuaValue::Nil => Some(Value::Null),
            LuaValue::Text(text) => Some(json!(text)),
            LuaValue::Number(number) => Some(number_of(number)),
            _ => None,
        }
    }

    /// The value as a text with variables. `None` if it is something else, or has characters that would mean something there.
    pub(super) fn template(&self) -> Option<String> {
        let is_plain = |text: &str| !text.contains('$') && !text.chars().any(char::is_control);
        match self {
            LuaValue::Text(text) if is_plain(text) && !text.is_empty() => Some(text.clone()),
            LuaValue::Number(number) if !number.contains('.') => Some(number.clone()),
            LuaValue::Variable(name) => Some(format!("${name}")),
            LuaValue::Joined(parts) => {
                let mut whole = String::new();
                for part in parts {
                    match part {
                        LuaValue::Text(text) if is_plain(text) && !text.ends_with('\\') => whole.push_str(text),
                        LuaValue::Variable(name) => write!(whole, "${{{name}}}").expect("a String takes any text"),
                        _ => return None,
                    }
                }
                Some(whole)
            }
            _ => None,
        }
    }

    /// The same value for a field that may have a secret: of texts, only the scheme of a credential is shown.
    pub(super) fn without_secrets(&self) -> LuaValue {
        let shown = |part: &LuaValue| match part {
            LuaValue::Text(text) if !SCHEMES.contains(&text.as_str()) => LuaValue::Text(HIDDEN.to_owned()),
            part => part.clone(),
        };
        match self {
            LuaValue::Joined(parts) => LuaValue::Joined(parts.iter().map(shown).collect()),
            value => shown(value),
        }
    }

    /// The variables in the value.
    pub(super) fn variables(&self) -> Vec<&str> {
        match self {
            LuaValue::Variable(name) => vec![name],
            LuaValue::Joined(parts) => parts.iter().flat_map(LuaValue::variables).collect(),
            _ => Vec::new(),
        }
    }
}

/// A whole number stays one.
fn number_of(number: &str) -> Value {
    match number.parse::<u64>() {
        Ok(whole) => json!(whole),
        Err(_) => json!(number.parse::<f64>().unwrap_or_default()),
    }
}

/// The variable of a header field.
fn field_variable(name: &str) -> Option<LuaValue> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let is_usable = !name.is_empty() && name.bytes().all(is_name);
    is_usable.then(|| LuaValue::Variable(format!("http_{}", name.to_ascii_lowercase().replace('-', "_"))))
}

/// What a member of a table is.
fn member(of: &LuaValue, key: &LuaValue) -> Option<LuaValue> {
    // With a dot, it would look like two members.
    let LuaValue::Text(key) = key else { return None };
    let key = Some(key).filter(|key| !key.contains('.'))?;
    match of {
        LuaValue::RequestFields => field_variable(key),
        LuaValue::Path(path) if path == "ngx.var" || path == "ctx.var" => {
            let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
            let in_family = |family: &&str| key.len() > family.len() && key.starts_with(*family);
            // The names of arguments and cookies may have capital letters.
            let is_written =
                key.bytes().all(|byte| is_name(byte) || byte.is_ascii_uppercase() && !key.starts_with("http_"));
            let is_known = VARIABLES.contains(&key.as_str()) || FAMILIES.iter().any(in_family);
            (is_known && is_written).then(|| LuaValue::Variable(key.clone()))
        }
        LuaValue::Path(path) if path == "ngx" && key.starts_with("HTTP_") => {
            let (_, status) = STATUSES.iter().find(|(name, _)| name == key)?;
            Some(LuaValue::Number(status.to_string()))
        }
        LuaValue::Path(path) => Some(LuaValue::Path(format!("{path}.{key}"))),
        _ => None,
    }
}

/// What a function without side effects returns.
fn result(function: &str, arguments: &[LuaValue]) -> Option<LuaValue> {
    let is_ctx = |value: &LuaValue| matches!(value, LuaValue::Path(path) if path == "ctx");
    match (function, arguments) {
        ("require", [LuaValue::Text(module)]) if module == "apisix.core" => Some(LuaValue::Path("core".to_owned())),
        ("ngx.req.get_headers" | "core.request.headers", []) => Some(LuaValue::RequestFields),
        ("core.request.headers", [ctx]) if is_ctx(ctx) => Some(LuaValue::RequestFields),
        ("core.request.header", [ctx, LuaValue::Text(name)]) if is_ctx(ctx) => field_variable(name),
        ("ngx.req.get_method" | "core.request.get_method", []) => Some(LuaValue::Variable("request_method".to_owned())),
        _ => None,
    }
}

/// An expression as an obstacle names it, without its texts, which may be secrets.
pub(super) fn described(expression: &LuaTerm) -> String {
    match &expression.kind {
        LuaTermKind::Nil => "nil".to_owned(),
        LuaTermKind::Boolean(value) => value.to_string(),
        LuaTermKind::Number(text) | LuaTermKind::Name(text) => text.clone(),
        LuaTermKind::Text(_) => format!("\"{HIDDEN}\""),
        LuaTermKind::Member(of, key) => match &key.kind {
            LuaTermKind::Text(key) => format!("{}.{key}", described(of)),
            _ => format!("{}[…]", described(of)),
        },
        LuaTermKind::Call(function, _) => format!("{}(…)", described(function)),
        LuaTermKind::Table(_) => "{…}".to_owned(),
        LuaTermKind::Not(inner) => format!("not {}", described(inner)),
        LuaTermKind::Binary(operator, left, right) => {
            format!("{} {operator} {}", described(left), described(right))
        }
    }
}
