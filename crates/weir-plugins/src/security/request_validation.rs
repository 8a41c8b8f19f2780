use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::paths::LocationSegment;
use jsonschema::{Draft, PatternOptions, ValidationError, Validator};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_plugin::{Build, ConfigError, Definition, Exchange, Flow, Phases, Plugin, Stage, Stop, form};

use crate::content::coding;
use crate::content::content_type;
use crate::content::json::{JsonError, JsonToken, Scanner};

/// Lets only requests through whose fields and bodies are as JSON Schemas say.
///
/// A body is read as a form where it says that it is one, and as JSON otherwise; a name twice in one object is refused,
/// since readers disagree about which of them counts. Schemas are of draft 7, unless their `$schema` says another.
/// Patterns in them are regular expressions without look-around and back-references.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestValidation {
    /// The schema of the request's fields: an object with the values as strings, of fields that came several times as a
    /// list of strings. Names count in any case.
    header_schema: Option<Map<String, Value>>,
    /// The schema of the body. In a form all values are strings.
    body_schema: Option<Map<String, Value>>,
    /// The largest body read, in bytes; a larger one is refused with 413.
    #[serde(default = "max_body")]
    #[schemars(range(min = 1))]
    max_req_body_size: u64,
    /// The status of a refusal, 200 to 599.
    #[serde(default = "bad_request")]
    #[schemars(range(min = 200, max = 599))]
    rejected_code: u16,
    /// What a refused client is told instead of what is wrong.
    #[schemars(length(min = 1, max = 256))]
    rejected_msg: Option<String>,
}

fn max_body() -> u64 {
    64 << 20
}

fn bad_request() -> u16 {
    400
}

/// How large a compiled pattern of a schema may be, in bytes.
const MAX_PATTERN: usize = 1 << 20;
/// How deep a body may be nested.
const MAX_DEPTH: usize = 100;

impl Definition for RequestValidation {
    const NAME: &'static str = "request-validation";
    const PRIORITY: i32 = 2800;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = r#"request-validation:
  header_schema: { type: object, required: [X-Tenant] }
  body_schema: { type: object, required: [name], properties: { name: { type: string, maxLength: 100 } } }"#;

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        if self.header_schema.is_none() && self.body_schema.is_none() {
            return Err(ConfigError::new("", "has neither `header_schema` nor `body_schema`"));
        }
        if self.max_req_body_size == 0 {
            return Err(ConfigError::new("max_req_body_size", "must be at least 1"));
        }
        if !(200..=599).contains(&self.rejected_code) {
            return Err(ConfigError::new("rejected_code", "must be from 200 to 599"));
        }
        if self.rejected_msg.as_ref().is_some_and(|text| !(1..=256).contains(&text.chars().count())) {
            return Err(ConfigError::new("rejected_msg", "must have from 1 to 256 characters"));
        }
        let names = self.header_schema.as_ref().map(names).unwrap_or_default();
        let compiled =
            |schema: Option<Map<String, Value>>, path| schema.map(|schema| compile(schema, path)).transpose();
        Ok(Arc::new(Validation {
            headers: compiled(self.header_schema, "header_schema")?,
            names,
            body: compiled(self.body_schema, "body_schema")?,
            limit: self.max_req_body_size,
            status: self.rejected_code,
            message: self.rejected_msg,
        }))
    }
}

fn compile(schema: Map<String, Value>, path: &str) -> Result<Validator, ConfigError> {
    let mut options = jsonschema::options()
        .with_pattern_options(PatternOptions::regex().size_limit(MAX_PATTERN).dfa_size_limit(MAX_PATTERN));
    if !schema.contains_key("$schema") {
        options = options.with_draft(Draft::Draft7);
    }
    options.build(&Value::Object(schema)).map_err(|error| {
        let place = error.instance_path().segments().fold(path.to_owned(), |place, segment| match segment {
            LocationSegment::Property(name) => format!("{place}.{name}"),
            LocationSegment::Index(index) => format!("{place}[{index}]"),
        });
        ConfigError::new(place, format!("is no JSON Schema: {error}"))
    })
}

/// The names of fields as a schema spells them.
fn names(schema: &Map<String, Value>) -> Vec<String> {
    let properties = schema.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys).cloned();
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    properties.chain(required.filter_map(|name| name.as_str().map(str::to_owned))).collect()
}

struct Validation {
    headers: Option<Validator>,
    names: Vec<String>,
    body: Option<Validator>,
    limit: u64,
    status: u16,
    message: Option<String>,
}

impl Validation {
    fn refuse(&self, exchange: &mut Exchange, problem: &str) -> Stop {
        let text = self.message.as_deref().unwrap_or(problem);
        exchange.respond(self.status, "text/plain; charset=utf-8", text.as_bytes())
    }

    /// The fields of a request as a schema sees them.
    fn fields(&self, exchange: &Exchange) -> Value {
        let mut fields: Map<String, Value> = Map::new();
        for (name, value) in exchange.request.head.fields() {
            let name = String::from_utf8_lossy(name);
            let spelled = self.names.iter().find(|known| known.eq_ignore_ascii_case(&name));
            add(&mut fields, spelled.map_or_else(|| name.to_ascii_lowercase(), String::clone), value);
        }
        Value::Object(fields)
    }
}

/// Adds a value to an object in which several of one name become a list.
fn add(object: &mut Map<String, Value>, name: String, value: &[u8]) {
    let value = Value::String(String::from_utf8_lossy(value).into_owned());
    match object.get_mut(&name) {
        None => _ = object.insert(name, value),
        Some(Value::Array(values)) => values.push(value),
        Some(first) => *first = Value::Array(vec![first.take(), value]),
    }
}

impl Plugin for Validation {
    fn phases(&self) -> Phases {
        if self.body.is_some() { Phases::REQUEST.and(Phases::REQUEST_BODY) } else { Phases::REQUEST }
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        if let Some(schema) = &self.headers
            && let Err(error) = schema.validate(&self.fields(exchange))
        {
            let problem = said(&error);
            return Err(self.refuse(exchange, &problem));
        }
        match self.body.is_some() && !exchange.request.framing.has_body() {
            true if self.message.is_some() => Err(self.refuse(exchange, "")),
            true => Err(Stop::Respond(self.status)),
            false => Ok(Flow::Continue),
        }
    }

    fn whole_request(&self, _: &mut Exchange) -> Result<Option<u64>, Stop> {
        Ok(Some(self.limit))
    }

    fn on_request_body(&self, exchange: &mut Exchange, body: &mut Vec<u8>) -> Result<Flow<'static>, Stop> {
        let Some(schema) = &self.body else { return Ok(Flow::Continue) };
        let is_form = content_type::of_request(exchange)?.is_some_and(content_type::is_form);
        let head = &exchange.request.head;
        let plain = coding::plain(head, body, self.limit).map_err(|opaque| Stop::Respond(opaque.status()))?;
        let problem = match if is_form { Ok(read_form(&plain)) } else { read_json(&plain) } {
            Ok(value) => schema.validate(&value).err().map(|error| said(&error)),
            Err(problem) => Some(problem.into_owned()),
        };
        match problem {
            None => Ok(Flow::Continue),
            Some(problem) => Err(self.refuse(exchange, &problem)),
        }
    }
}

fn read_form(body: &[u8]) -> Value {
    let mut object = Map::new();
    for (name, value) in form::pairs(body) {
        add(&mut object, String::from_utf8_lossy(&name).into_owned(), &value);
    }
    Value::Object(object)
}

fn read_json(body: &[u8]) -> Result<Value, Cow<'static, str>> {
    let fault = |fault: JsonError| match fault {
        JsonError::Syntax(at) => Cow::Owned(format!("the body is not JSON from byte {} on", at + 1)),
        JsonError::Depth => Cow::Borrowed("the body is nested too deep"),
    };
    let mut scanner = Scanner::new(body, MAX_DEPTH).map_err(fault)?;
    let mut open: Vec<HashSet<String>> = Vec::new();
    while let Some(token) = scanner.next().map_err(fault)? {
        match token {
            JsonToken::Open(_) => open.push(HashSet::new()),
            JsonToken::Close(_) => _ = open.pop(),
            JsonToken::Name(span) => {
                let name = scanner.unquoted(&span).map_err(fault)?;
                if open.last_mut().is_some_and(|names| !names.insert(name.clone().into_owned())) {
                    return Err(Cow::Owned(format!("the body has the name {name:?} twice in one object")));
                }
            }
            JsonToken::Text(_) | JsonToken::Plain(_) => {}
        }
    }
    serde_json::from_slice(body).map_err(|_| Cow::Borrowed("the body has a number or a text beyond what can be read"))
}

/// What is wrong, as Apache APISIX says it where it is one of the usual things.
fn said(error: &ValidationError<'_>) -> String {
    let place: String = error
        .instance_path()
        .segments()
        .map(|segment| match segment {
            LocationSegment::Property(name) => format!("property {name:?} validation failed: "),
            // Counted from 1 there.
            LocationSegment::Index(index) => format!("failed to validate item {}: ", index + 1),
        })
        .collect();
    let problem = match error.kind() {
        ValidationErrorKind::Required { property } => format!("property {property} is required"),
        ValidationErrorKind::AdditionalProperties { unexpected } => {
            format!("additional properties forbidden, found {}", unexpected.join(", "))
        }
        ValidationErrorKind::Type { kind: TypeKind::Single(expected) } => {
            format!("wrong type: expected {expected}, got {}", kind_of(error.instance()))
        }
        _ => error.to_string(),
    };
    format!("{place}{problem}")
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{body, build, exchange, on_request, on_request_body, refused};

    /// What is said about a body, if it is refused.
    fn problem(schema: Value, content_type: &str, content: &str) -> Option<String> {
        let step = build::<RequestValidation>(json!({"body_schema": schema}));
        let mut exchange = exchange(&format!("POST / HTTP/1.1\nHost: h\nContent-Type: {content_type}"));
        match on_request_body(&step, &mut exchange, content) {
            Ok(()) => None,
            Err(_) => Some(format!("{} {}", exchange.response.status, body(&exchange))),
        }
    }

    #[test]
    fn bodies_are_validated() {
        let schema = json!({"type": "object", "required": ["a"], "additionalProperties": false,
            "properties": {"a": {"type": "string", "pattern": "^x"}, "b": {"type": "array", "items": {"type": "object",
                "required": ["c"]}}, "d": {"type": "integer", "maximum": 5}}});
        for (content, want) in [
            (r#"{"a": "xy", "b": [{"c": 1}], "d": 5}"#, None),
            ("{}", Some(r#"400 property "a" is required"#)),
            (r#"{"a": 5}"#, Some(r#"400 property "a" validation failed: wrong type: expected string, got number"#)),
            (r#"{"a": "x", "z": 1}"#, Some("400 additional properties forbidden, found z")),
            (
                r#"{"a": "x", "b": [{"c": 1}, {}]}"#,
                Some(r#"400 property "b" validation failed: failed to validate item 2: property "c" is required"#),
            ),
            (
                r#"{"a": "x", "d": 6}"#,
                Some(r#"400 property "d" validation failed: 6 is greater than the maximum of 5"#),
            ),
            ("{bad", Some("400 the body is not JSON from byte 2 on")),
            (r#"{"a": "x", "\u0061": "x"}"#, Some(r#"400 the body has the name "a" twice in one object"#)),
        ] {
            assert_eq!(problem(schema.clone(), "application/json", content).as_deref(), want, "{content}");
        }
    }

    #[test]
    fn forms_are_objects_of_strings() {
        let schema = json!({"properties": {"a": {"type": "array"}, "b": {"enum": ["x y"]}}, "required": ["b"]});
        let form = "application/x-www-form-urlencoded; charset=utf-8";
        assert_eq!(problem(schema.clone(), form, "a=1&b=x+y&a=2"), None);
        assert_eq!(problem(schema, form, "a=1").as_deref().map(|said| &said[..3]), Some("400"));
    }

    #[test]
    fn u06_a_type_that_can_be_read_in_two_ways_is_refused() {
        let form = "application/x-www-form-urlencoded";
        for types in [
            &format!("{form}\nContent-Type: application/json"),
            &format!("application/json\nContent-Type: {form}"),
            &format!("{form}, application/json"),
        ] {
            let said = problem(json!({}), types, r#"{"a": 1}"#);
            assert!(said.as_deref().is_some_and(|said| said.starts_with("400 Content-Type")), "{types}: {said:?}");
        }
    }

    #[test]
    fn fields_are_validated_whatever_their_case() {
        let options = json!({"header_schema": {"required": ["X-Tenant"], "properties": {
            "X-Tenant": {"type": "string", "pattern": "^[a-z]+$"}, "x-n": {"type": "array", "maxItems": 2}}},
            "rejected_code": 422, "rejected_msg": "no"});
        let step = build::<RequestValidation>(options);
        assert!(!step.phases().request_body);
        for (fields, passes) in [
            ("x-tenant: a", true),
            ("X-TENANT: a\nX-N: 1\nX-n: 2", true),
            ("X-Tenant: 1", false),
            ("X-Tenant: a\nX-N: 1\nX-N: 2\nX-N: 3", false),
            ("X: a", false),
        ] {
            let mut exchange = exchange(&format!("GET / HTTP/1.1\nHost: h\n{fields}"));
            assert_eq!(on_request(&step, &mut exchange).is_ok(), passes, "{fields}");
            assert!(passes || (exchange.response.status, body(&exchange)) == (422, "no"));
        }
    }

    #[test]
    fn a_body_has_to_be_there() {
        let step = build::<RequestValidation>(json!({"body_schema": {}}));
        assert_eq!(on_request(&step, &mut exchange("GET / HTTP/1.1\nHost: h")), Err(Stop::Respond(400)));
        let with = on_request(&step, &mut exchange("POST / HTTP/1.1\nHost: h\nContent-Length: 1"));
        assert_eq!(with, Ok(()));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "has neither `header_schema` nor `body_schema`"),
            (json!({"body_schema": {"type": "strin"}}), "body_schema.type: is no JSON Schema"),
            (json!({"body_schema": {"$ref": "http://h.example/s"}}), "body_schema: is no JSON Schema"),
            (json!({"body_schema": {"pattern": "(?=a)"}}), "body_schema"),
            (json!({"body_schema": {}, "rejected_code": 100}), "rejected_code: must be from 200"),
            (json!({"body_schema": {}, "rejected_msg": ""}), "rejected_msg: must have from 1"),
        ] {
            let error = refused::<RequestValidation>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
