//! Expressions of templates: the part of Lua's that needs no Lua. They have no side effects, and each has a bound on its work.

use std::borrow::Cow;
use std::io::{self, Write};

use serde_json::{Number, Value};
use weir_plugin::{Exchange, Variable, Variables};

use super::fault::TemplateError;
use crate::content::xml;

/// The deepest nesting of an expression, in which operators in a row count, and of blocks.
pub(super) const MOST_NESTED: usize = 128;
/// The most steps that a template takes for one message. A step is an operation, or [`STEP_BYTES`] of a text that it reads or makes.
const MOST_STEPS: u64 = 1_000_000;
const STEP_BYTES: usize = 256;

#[derive(Debug)]
pub(super) enum LuaExpression {
    Constant(Value),
    /// A member of the body.
    Name(Box<str>),
    /// A local variable, counted from the outermost.
    Local(usize),
    /// `context`: the body as it was read.
    Context,
    /// `_body`: the body as text.
    Body,
    /// `_ctx.var.NAME`.
    Variable(Variable),
    Member(Box<[LuaExpression; 2]>),
    Call(Function, Vec<LuaExpression>),
    Unary(Unary, Box<LuaExpression>),
    Binary(Binary, Box<[LuaExpression; 2]>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    EscapeJson,
    EscapeXml,
    ToString,
    ToNumber,
    Type,
    Lower,
    Upper,
    /// `string.gsub` with plain texts, which are no patterns.
    Replace,
}

/// The functions, by name, with the number of their arguments.
const FUNCTIONS: [(&str, Function, usize); 8] = [
    ("_escape_json", Function::EscapeJson, 1),
    ("_escape_xml", Function::EscapeXml, 1),
    ("tostring", Function::ToString, 1),
    ("tonumber", Function::ToNumber, 1),
    ("type", Function::Type, 1),
    ("string.lower", Function::Lower, 1),
    ("string.upper", Function::Upper, 1),
    ("string.gsub", Function::Replace, 3),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unary {
    Not,
    Minus,
    Length,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binary {
    Or,
    And,
    Less,
    Greater,
    AtMost,
    AtLeast,
    Differs,
    Equals,
    Concat,
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
}

/// The operators as they are written, with their precedence; a longer one stands before its prefixes.
const OPERATORS: [(&str, Binary, u8); 14] = [
    ("or", Binary::Or, 1),
    ("and", Binary::And, 2),
    ("<=", Binary::AtMost, 3),
    (">=", Binary::AtLeast, 3),
    ("~=", Binary::Differs, 3),
    ("==", Binary::Equals, 3),
    ("<", Binary::Less, 3),
    (">", Binary::Greater, 3),
    ("..", Binary::Concat, 4),
    ("+", Binary::Add, 5),
    ("-", Binary::Subtract, 5),
    ("*", Binary::Multiply, 6),
    ("/", Binary::Divide, 6),
    ("%", Binary::Modulo, 6),
];

/// The precedence of the operand of `not`, `-` and `#`.
const OF_UNARY: u8 = 7;

const KEYWORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil", "not", "or",
    "repeat", "return", "then", "true", "until", "while",
];

/// Names that mean something of APISIX or of Lua that is not here.
const ABSENT: [&str; 8] = ["_G", "_multipart", "coroutine", "debug", "ngx", "package", "require", "string"];

/// A reader of code in a template, up to `end`.
pub(super) struct CodeReader<'t> {
    pub text: &'t str,
    pub at: usize,
    pub end: usize,
    /// The local variables that are visible.
    pub locals: Vec<&'t str>,
    /// The variables of the exchange that were read.
    pub variables: Vec<Variable>,
    nested: usize,
}

impl<'t> CodeReader<'t> {
    pub(super) fn new(text: &'t str) -> CodeReader<'t> {
        CodeReader { text, at: 0, end: text.len(), locals: Vec::new(), variables: Vec::new(), nested: 0 }
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..self.end]
    }

    pub(super) fn fault<T>(&self, problem: impl Into<String>) -> Result<T, TemplateError> {
        Err(TemplateError::new(self.text, self.at, problem))
    }

    pub(super) fn skip_blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len();
    }

    pub(super) fn is_at_end(&mut self) -> bool {
        self.skip_blanks();
        self.at == self.end
    }

    /// Takes a symbol or a keyword, if it is the next.
    pub(super) fn take(&mut self, symbol: &str) -> bool {
        self.skip_blanks();
        let is_word = symbol.ends_with(|char: char| char.is_ascii_alphabetic());
        let found = if is_word { self.word() == Some(symbol) } else { self.rest().starts_with(symbol) };
        if found {
            self.at += symbol.len();
        }
        found
    }

    pub(super) fn expect(&mut self, symbol: &str) -> Result<(), TemplateError> {
        if self.take(symbol) { Ok(()) } else { self.fault(format!("expected `{symbol}`")) }
    }

    /// The name or keyword at this place.
    fn word(&self) -> Option<&'t str> {
        let rest = self.rest();
        let is_part = |char: char| char == '_' || char.is_ascii_alphanumeric();
        let word = &rest[..rest.find(|char| !is_part(char)).unwrap_or(rest.len())];
        (!word.is_empty() && !word.starts_with(|char: char| char.is_ascii_digit())).then_some(word)
    }

    pub(super) fn name(&mut self) -> Result<&'t str, TemplateError> {
        self.skip_blanks();
        match self.word() {
            Some(word) if !KEYWORDS.contains(&word) => {
                self.at += word.len();
                Ok(word)
            }
            _ => self.fault("expected a name"),
        }
    }

    /// An expression whose operators bind at least as strongly.
    pub(super) fn expression(&mut self, least: u8) -> Result<LuaExpression, TemplateError> {
        let outside = self.nested;
        self.nest()?;
        let mut left = self.operand()?;
        while let Some((binary, precedence)) = self.operator(least) {
            // `..` is the only one that binds to the right.
            let is_right = binary == Binary::Concat;
            let right = self.expression(if is_right { precedence } else { precedence + 1 })?;
            left = LuaExpression::Binary(binary, Box::new([left, right]));
            self.nest()?;
        }
        self.nested = outside;
        Ok(left)
    }

    fn nest(&mut self) -> Result<(), TemplateError> {
        self.nested += 1;
        match self.nested > MOST_NESTED {
            true => self.fault(format!("is nested deeper than {MOST_NESTED} levels")),
            false => Ok(()),
        }
    }

    fn operator(&mut self, least: u8) -> Option<(Binary, u8)> {
        let (_, binary, precedence) = OPERATORS.iter().find(|(symbol, _, precedence)| {
            let before = self.at;
            let found = *precedence >= least && self.take(symbol);
            if !found {
                self.at = before;
            }
            found
        })?;
        Some((*binary, *precedence))
    }

    fn operand(&mut self) -> Result<LuaExpression, TemplateError> {
        for (symbol, unary) in [("not", Unary::Not), ("-", Unary::Minus), ("#", Unary::Length)] {
            if self.take(symbol) {
                return Ok(LuaExpression::Unary(unary, Box::new(self.expression(OF_UNARY)?)));
            }
        }
        for (word, value) in [("nil", Value::Null), ("true", Value::Bool(true)), ("false", Value::Bool(false))] {
            if self.take(word) {
                return Ok(LuaExpression::Constant(value));
            }
        }
        self.skip_blanks();
        match self.rest().as_bytes().first() {
            Some(b'"' | b'\'') => Ok(LuaExpression::Constant(Value::String(self.quoted()?))),
            Some(b'0'..=b'9') => self.number(),
            Some(b'(') => {
                self.at += 1;
                let inner = self.expression(0)?;
                self.expect(")")?;
                self.members(inner)
            }
            _ => self.named(),
        }
    }

    fn number(&mut self) -> Result<LuaExpression, TemplateError> {
        let rest = self.rest();
        // `1 ..` is a number and an operator, as in Lua.
        let end = rest.find(|char: char| !char.is_ascii_digit()).unwrap_or(rest.len());
        let fraction =
            rest[end..].strip_prefix('.').filter(|after| after.starts_with(|char: char| char.is_ascii_digit()));
        let digits = |text: &str| text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
        let end = fraction.map_or(end, |after| end + 1 + digits(after));
        if rest[end..].starts_with(|char: char| char.is_ascii_alphanumeric()) {
            return self.fault("is no decimal number");
        }
        match rest[..end].parse().ok().and_then(number) {
            Some(value) => {
                self.at += end;
                Ok(LuaExpression::Constant(value))
            }
            None => self.fault("is no decimal number"),
        }
    }

    fn quoted(&mut self) -> Result<String, TemplateError> {
        let mut chars = self.rest().char_indices();
        let quote = chars.next().map(|(_, quote)| quote);
        let mut text = String::new();
        while let Some((place, char)) = chars.next() {
            match char {
                _ if Some(char) == quote => {
                    self.at += place + 1;
                    return Ok(text);
                }
                '\n' => break,
                '\\' => match chars.next() {
                    Some((_, escaped @ ('\\' | '"' | '\''))) => text.push(escaped),
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, 'r')) => text.push('\r'),
                    Some((_, 't')) => text.push('\t'),
                    _ => return self.fault(r#"has an escape other than `\\`, `\"`, `\'`, `\n`, `\r` and `\t`"#),
                },
                _ => text.push(char),
            }
        }
        self.fault("is a string without an end")
    }

    /// A name, with its members or its arguments.
    fn named(&mut self) -> Result<LuaExpression, TemplateError> {
        let start = self.at;
        let name = match self.name() {
            Ok(name) => name,
            Err(_) => {
                return self.fault("expected a value; of Lua, names, strings, numbers and operators are supported");
            }
        };
        if let Some(place) = self.locals.iter().rposition(|local| *local == name) {
            return self.members(LuaExpression::Local(place));
        }
        let is_of_strings = name == "string" && self.take(".");
        let full = if is_of_strings { format!("string.{}", self.name()?) } else { name.to_owned() };
        if let Some((_, function, count)) = FUNCTIONS.iter().find(|(known, ..)| *known == full) {
            return self.call(*function, *count);
        }
        let found = match name {
            "_ctx" => return self.variable(),
            "_body" => LuaExpression::Body,
            "context" => LuaExpression::Context,
            _ if ABSENT.contains(&name) => {
                self.at = start;
                return self.fault(format!("`{full}` of Lua is not supported"));
            }
            _ => LuaExpression::Name(name.into()),
        };
        self.members(found)
    }

    fn variable(&mut self) -> Result<LuaExpression, TemplateError> {
        self.expect(".")?;
        if !self.take("var") {
            return self.fault("of `_ctx`, only `_ctx.var.NAME` is supported");
        }
        let name = if self.take("[") {
            self.skip_blanks();
            let name = self.quoted()?;
            self.expect("]")?;
            Cow::Owned(name)
        } else {
            self.expect(".")?;
            Cow::Borrowed(self.name()?)
        };
        match Variable::parse(&name) {
            Some(variable) => {
                self.variables.push(variable.clone());
                Ok(LuaExpression::Variable(variable))
            }
            None => self.fault(format!("`{name}` is not a variable")),
        }
    }

    fn call(&mut self, function: Function, count: usize) -> Result<LuaExpression, TemplateError> {
        self.expect("(")?;
        let mut arguments = Vec::new();
        loop {
            arguments.push(self.expression(0)?);
            if !self.take(",") {
                break;
            }
        }
        self.expect(")")?;
        if arguments.len() != count {
            return self.fault(format!("takes {count} arguments here"));
        }
        if function == Function::Replace {
            let is_plain = |argument: &LuaExpression, magic: &str| match argument {
                LuaExpression::Constant(Value::String(text)) => {
                    !text.is_empty() && !text.contains(|char| magic.contains(char))
                }
                _ => false,
            };
            let replaces_plain =
                matches!(&arguments[2], LuaExpression::Constant(Value::String(text)) if !text.contains('%'));
            if !is_plain(&arguments[1], "^$()%.[]*+-?") || !replaces_plain {
                return self.fault("`string.gsub` is supported for quoted texts without patterns");
            }
        }
        Ok(LuaExpression::Call(function, arguments))
    }

    fn members(&mut self, mut of: LuaExpression) -> Result<LuaExpression, TemplateError> {
        loop {
            self.skip_blanks();
            let key = if !self.rest().starts_with("..") && self.take(".") {
                LuaExpression::Constant(Value::String(self.name()?.to_owned()))
            } else if self.take("[") {
                let key = self.expression(0)?;
                self.expect("]")?;
                key
            } else if matches!(self.rest().as_bytes().first(), Some(b'(' | b':' | b'{' | b'"' | b'\'')) {
                return self.fault("this call of Lua is not supported");
            } else {
                return Ok(of);
            };
            of = LuaExpression::Member(Box::new([of, key]));
            self.nest()?;
        }
    }
}

/// What expressions are evaluated with.
pub struct Scene<'a> {
    pub root: &'a Value,
    /// The body as text.
    pub body: &'a Value,
    pub variables: SceneVariables<'a>,
    pub locals: Vec<Cow<'a, Value>>,
    /// The most bytes of a text.
    pub most_bytes: usize,
    /// Whether texts in `{{...}}` are escaped for HTML.
    pub escapes_html: bool,
    steps: u64,
}

/// Where a template finds the variables of its exchange.
#[derive(Clone, Copy)]
pub enum SceneVariables<'a> {
    Exchange(&'a Exchange),
    /// Those of the template as they were read before, for another thread.
    Read(&'a [(Variable, Option<String>)]),
}

impl<'a> Scene<'a> {
    pub fn new(root: &'a Value, body: &'a Value, variables: SceneVariables<'a>, most_bytes: usize) -> Scene<'a> {
        Scene { root, body, variables, locals: Vec::new(), most_bytes, escapes_html: true, steps: 0 }
    }

    fn variable(&mut self, variable: &Variable) -> Result<Cow<'a, Value>, String> {
        let value = match self.variables {
            SceneVariables::Exchange(exchange) => {
                // It is searched for in the head, and some are in the body.
                self.spend(exchange.request.head.bytes().len() + exchange.request_body().map_or(0, <[u8]>::len))?;
                exchange.variable(variable).map(|value| String::from_utf8_lossy(&value).into_owned())
            }
            SceneVariables::Read(values) => {
                let value = values.iter().find(|(own, _)| own == variable).and_then(|(_, value)| value.as_ref());
                self.spend(value.map_or(0, String::len))?;
                value.cloned()
            }
        };
        value.map_or(Ok(Cow::Owned(Value::Null)), |value| self.made(value))
    }

    /// Counts a step, and the bytes of texts that it reads.
    pub fn spend(&mut self, bytes: usize) -> Result<(), String> {
        self.steps += 1 + (bytes / STEP_BYTES) as u64;
        match self.steps > MOST_STEPS {
            true => Err(format!("takes more than {MOST_STEPS} steps")),
            false => Ok(()),
        }
    }

    /// The same for a text that it makes.
    fn spend_on_text(&mut self, bytes: usize) -> Result<(), String> {
        self.check_length(bytes)?;
        self.spend(bytes)
    }

    fn check_length(&self, bytes: usize) -> Result<(), String> {
        match bytes > self.most_bytes {
            true => Err(self.too_long()),
            false => Ok(()),
        }
    }

    fn too_long(&self) -> String {
        format!("makes a text of more than {} bytes", self.most_bytes)
    }

    /// JSON of a value, which may be many times as long as its texts.
    fn json(&self, value: &Value) -> Result<String, String> {
        let mut text = BoundedText { bytes: Vec::new(), most: self.most_bytes };
        match serde_json::to_writer(&mut text, value) {
            Ok(()) => String::from_utf8(text.bytes).map_err(|error| error.to_string()),
            Err(_) => Err(self.too_long()),
        }
    }

    /// Evaluates an operand, whose text is read.
    fn operand(&mut self, expression: &LuaExpression) -> Result<Cow<'a, Value>, String> {
        let value = expression.value(self)?;
        self.spend(value.as_str().map_or(0, str::len))?;
        Ok(value)
    }

    fn made(&mut self, text: String) -> Result<Cow<'a, Value>, String> {
        self.spend_on_text(text.len())?;
        Ok(Cow::Owned(Value::String(text)))
    }
}

/// Takes no more than `most` bytes.
struct BoundedText {
    bytes: Vec<u8>,
    most: usize,
}

impl Write for BoundedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.most {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// In Lua, only `nil` and `false` are not true.
pub(super) fn is_true(value: &Value) -> bool {
    !matches!(value, Value::Null | Value::Bool(false))
}

impl LuaExpression {
    /// # Errors
    /// What has no value, for the log and the client.
    pub(super) fn value<'a>(&self, scene: &mut Scene<'a>) -> Result<Cow<'a, Value>, String> {
        scene.spend(0)?;
        match self {
            LuaExpression::Constant(value) => Ok(Cow::Owned(value.clone())),
            LuaExpression::Name(name) => Ok(Cow::Borrowed(scene.root.get(&**name).unwrap_or(&Value::Null))),
            LuaExpression::Local(place) => {
                let value = scene.locals.get(*place).cloned().unwrap_or(Cow::Owned(Value::Null));
                // Such a value is copied.
                if let Cow::Owned(Value::String(text)) = &value {
                    scene.spend(text.len())?;
                }
                Ok(value)
            }
            LuaExpression::Context => Ok(Cow::Borrowed(scene.root)),
            LuaExpression::Body => Ok(Cow::Borrowed(scene.body)),
            LuaExpression::Variable(variable) => scene.variable(variable),
            LuaExpression::Member(parts) => {
                let (of, key) = (parts[0].value(scene)?, scene.operand(&parts[1])?);
                member(of, &key).map_err(|kind| format!("`{}` is a {kind}, which has no members", parts[0]))
            }
            LuaExpression::Call(function, arguments) => call(*function, arguments, scene),
            LuaExpression::Unary(unary, operand) => {
                let value = scene.operand(operand)?;
                let made = match (unary, &*value) {
                    (Unary::Not, value) => Value::Bool(!is_true(value)),
                    (Unary::Minus, value) => negated(value)?,
                    (Unary::Length, Value::String(text)) => Value::from(text.len()),
                    (Unary::Length, Value::Array(list)) => Value::from(list.len()),
                    (Unary::Length, Value::Object(_)) => Value::from(0),
                    (Unary::Length, value) => return Err(format!("a {} has no length", kind(value))),
                };
                Ok(Cow::Owned(made))
            }
            LuaExpression::Binary(Binary::And, parts) => {
                let left = parts[0].value(scene)?;
                if is_true(&left) { parts[1].value(scene) } else { Ok(left) }
            }
            LuaExpression::Binary(Binary::Or, parts) => {
                let left = parts[0].value(scene)?;
                if is_true(&left) { Ok(left) } else { parts[1].value(scene) }
            }
            LuaExpression::Binary(binary, parts) => {
                let (left, right) = (scene.operand(&parts[0])?, scene.operand(&parts[1])?);
                combined(*binary, &left, &right, scene)
            }
        }
    }
}

/// How the place is written, for messages: its names only.
impl std::fmt::Display for LuaExpression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LuaExpression::Name(name) => f.write_str(name),
            LuaExpression::Context => f.write_str("context"),
            LuaExpression::Member(parts) => match &parts[1] {
                LuaExpression::Constant(Value::String(name)) => write!(f, "{}.{name}", parts[0]),
                LuaExpression::Constant(Value::Number(number)) => write!(f, "{}[{number}]", parts[0]),
                _ => write!(f, "{}[...]", parts[0]),
            },
            _ => f.write_str("..."),
        }
    }
}

/// The member of a list or of an object. Lists are counted from 1.
///
/// # Errors
/// The kind of a value that has no members.
fn member<'a>(of: Cow<'a, Value>, key: &Value) -> Result<Cow<'a, Value>, &'static str> {
    let index = key.as_u64().and_then(|index| usize::try_from(index).ok()?.checked_sub(1));
    let found = |of: &'a Value| match (of, key) {
        (Value::Object(members), Value::String(name)) => members.get(name),
        // The texts of an element of XML that has attributes or other elements.
        (Value::Object(members), Value::Number(number)) => members.get(&number.to_string()),
        (Value::Array(list), _) => index.and_then(|index| list.get(index)),
        _ => None,
    };
    match of {
        Cow::Borrowed(of @ (Value::Object(_) | Value::Array(_))) => {
            Ok(Cow::Borrowed(found(of).unwrap_or(&Value::Null)))
        }
        of => Err(kind(&of)),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nil",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) | Value::Object(_) => "table",
    }
}

/// A text, as Lua makes one of numbers and booleans.
pub(super) fn text(value: &Value) -> Result<Cow<'_, str>, String> {
    match value {
        Value::String(text) => Ok(Cow::Borrowed(text)),
        Value::Number(value) => {
            let whole = value.as_f64().filter(|_| value.is_f64()).and_then(number);
            Ok(Cow::Owned(whole.map_or_else(|| value.to_string(), |whole| whole.to_string())))
        }
        Value::Bool(flag) => Ok(Cow::Borrowed(if *flag { "true" } else { "false" })),
        value => Err(format!("a {} is no text", kind(value))),
    }
}

/// A number, without a fraction if it is whole; `None` if it is none.
fn number(value: f64) -> Option<Value> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() <= EXACT {
        return Some(Value::from(value as i64));
    }
    Number::from_f64(value).map(Value::Number)
}

/// The number in a value: Lua reads those in texts too.
fn float(value: &Value) -> Result<f64, String> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok().filter(|number: &f64| number.is_finite()),
        _ => None,
    }
    .ok_or_else(|| format!("a {} is no number", kind(value)))
}

fn negated(value: &Value) -> Result<Value, String> {
    number(-float(value)?).ok_or_else(|| "is no number".to_owned())
}

fn combined<'a>(binary: Binary, left: &Value, right: &Value, scene: &mut Scene<'a>) -> Result<Cow<'a, Value>, String> {
    let order = |wanted: fn(std::cmp::Ordering) -> bool| {
        let order = match (left, right) {
            (Value::Number(left), Value::Number(right)) => left.as_f64().partial_cmp(&right.as_f64()),
            (Value::String(left), Value::String(right)) => Some(left.as_bytes().cmp(right.as_bytes())),
            _ => None,
        };
        let problem = || format!("a {} and a {} have no order", kind(left), kind(right));
        order.map(|order| Cow::Owned(Value::Bool(wanted(order)))).ok_or_else(problem)
    };
    let calculated = |calculate: fn(f64, f64) -> f64| {
        let made = number(calculate(float(left)?, float(right)?));
        made.map(Cow::Owned).ok_or_else(|| "is no finite number".to_owned())
    };
    match binary {
        Binary::Equals => Ok(Cow::Owned(Value::Bool(is_equal(left, right)))),
        Binary::Differs => Ok(Cow::Owned(Value::Bool(!is_equal(left, right)))),
        Binary::Less => order(std::cmp::Ordering::is_lt),
        Binary::Greater => order(std::cmp::Ordering::is_gt),
        Binary::AtMost => order(std::cmp::Ordering::is_le),
        Binary::AtLeast => order(std::cmp::Ordering::is_ge),
        Binary::Concat => {
            if [left, right].iter().any(|part| part.is_boolean()) {
                return Err("a boolean cannot be joined to a text".to_owned());
            }
            let (left, right) = (text(left)?, text(right)?);
            scene.spend_on_text(left.len() + right.len())?;
            Ok(Cow::Owned(Value::String(format!("{left}{right}"))))
        }
        Binary::Add => calculated(|left, right| left + right),
        Binary::Subtract => calculated(|left, right| left - right),
        Binary::Multiply => calculated(|left, right| left * right),
        Binary::Divide => calculated(|left, right| left / right),
        // The sign of the result is that of the divisor.
        Binary::Modulo => calculated(|left, right| left - (left / right).floor() * right),
        Binary::And | Binary::Or => Err("is evaluated before".to_owned()),
    }
}

/// Tables are equal only to themselves, in Lua; the templates have no two names for one.
fn is_equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => left.as_f64() == right.as_f64(),
        (Value::Array(_) | Value::Object(_), _) => false,
        _ => left == right,
    }
}

fn call<'a>(function: Function, arguments: &[LuaExpression], scene: &mut Scene<'a>) -> Result<Cow<'a, Value>, String> {
    let first = scene.operand(&arguments[0])?;
    let made = match function {
        Function::EscapeJson => scene.json(&first)?,
        Function::EscapeXml => {
            let plain = text(&first)?;
            scene.check_length(xml::escaped_len(&plain))?;
            xml::escaped(&plain)
        }
        Function::ToString if first.is_null() => "nil".to_owned(),
        Function::ToString => text(&first)?.into_owned(),
        Function::ToNumber => return Ok(Cow::Owned(float(&first).ok().and_then(number).unwrap_or_default())),
        Function::Type => kind(&first).to_owned(),
        Function::Lower => text(&first)?.to_ascii_lowercase(),
        Function::Upper => text(&first)?.to_ascii_uppercase(),
        Function::Replace => {
            let (from, to) = (arguments[1].value(scene)?, arguments[2].value(scene)?);
            let (subject, from, to) = (text(&first)?, text(&from)?, text(&to)?);
            let longest = subject.len() + subject.matches(&*from).count() * to.len();
            scene.spend_on_text(longest)?;
            subject.replace(&*from, &to)
        }
    };
    scene.made(made)
}
