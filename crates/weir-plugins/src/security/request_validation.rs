use std::borrow::Cow;
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::paths::LocationSegment;
use jsonschema::{ValidationError, Validator};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_plugin::proto::{Framing, Head};
use weir_plugin::{AllOf, Build, ConfigError, Definition, Exchange, Flow, Held, Phases, Plugin, Stage, Stop, form};

use crate::content::coding::{self, Opaque};
use crate::content::content_type;
use crate::content::elsewhere::{elsewhere, is_long};
use crate::content::json::{JsonError, JsonToken, Scanner};
use crate::options::json_schema;

/// Requires that the header fields and the body of a request match JSON Schemas.
///
/// A body is parsed as a form if its `Content-Type` is that of a form, and as JSON otherwise. Duplicate names in a JSON
/// object are refused, because parsers disagree about which of the values they use. Schemas follow draft 7, unless
/// their `$schema` names another draft. Patterns in schemas are regular expressions without look-around and
/// back-references. Bodies of more than 16 KiB are validated on another thread, so that they do not block other
/// requests of the worker. Where a `body_schema` has references and alternatives (`oneOf`, `anyOf`), the message does not say what is
/// wrong: it would take exponentially long to find by the depth of the body.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestValidation {
    /// The schema for the header fields: an object with the values as strings. The value of a field that occurs several
    /// times is an array of strings. Names are case-insensitive.
    header_schema: Option<Map<String, Value>>,
    /// The schema for the body. All values of a form are strings.
    body_schema: Option<Map<String, Value>>,
    /// The largest body, in bytes, both as received and after decoding. A larger body is refused. APISIX's default is
    /// 64 MiB.
    #[serde(default = "default_max_req_body_size")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_req_body_size: u64,
    /// The maximum number of values in a body: objects, arrays, strings, numbers and literals, or the fields of a form.
    /// Not in APISIX.
    #[serde(default = "default_max_values")]
    #[schemars(range(min = 1))]
    max_values: usize,
    /// The maximum nesting depth of a body, up to 127. Not in APISIX.
    #[serde(default = "default_max_depth")]
    #[schemars(range(min = 1, max = MOST_DEPTH))]
    max_depth: usize,
    /// The status of a refusal, 200 to 599.
    #[serde(default = "default_rejected_code")]
    #[schemars(range(min = 200, max = 599))]
    rejected_code: u16,
    /// The message of a refusal, instead of a description of the error.
    #[schemars(length(min = 1, max = 256))]
    rejected_msg: Option<String>,
}

fn default_max_req_body_size() -> u64 {
    1 << 20
}

fn default_max_values() -> usize {
    100_000
}

fn default_max_depth() -> usize {
    100
}

/// The largest `max_depth`: the JSON parser refuses what is nested deeper.
const MOST_DEPTH: usize = 127;

fn default_rejected_code() -> u16 {
    400
}

/// The memory for one value of a parsed body, in bytes: an upper bound of the average.
const VALUE_BYTES: u64 = 128;
/// The most bytes of a request that are quoted in a refusal, and the most bytes of a refusal.
const MOST_QUOTED: usize = 100;
const MAX_MESSAGE: usize = 1000;

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
        let names = self.header_schema.as_ref().map(names).unwrap_or_default();
        let is_costly = self.body_schema.as_ref().is_some_and(json_schema::has_costly_faults);
        let compiled = |schema: Option<Map<String, Value>>, path| {
            schema.map(|schema| json_schema::compile(schema, path)).transpose()
        };
        let (headers, body) =
            (compiled(self.header_schema, "header_schema"), compiled(self.body_schema, "body_schema")).all_of()?;
        let (max_bytes, max_values, max_depth) = (self.max_req_body_size, self.max_values, self.max_depth);
        let bounds = BodyBounds { max_bytes, max_values, max_depth };
        let rules = |validator| Arc::new(BodyRules { validator, is_costly, bounds });
        let body = body.map(rules);
        let fields = FieldValidation { headers, names, status: self.rejected_code, message: self.rejected_msg };
        Ok(match body {
            Some(body) => Arc::new(BodyValidation { fields, body }),
            None => Arc::new(fields),
        })
    }
}

/// The names of fields in the schema, as spelled there.
fn names(schema: &Map<String, Value>) -> Vec<String> {
    let properties = schema.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys).cloned();
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    properties.chain(required.filter_map(|name| name.as_str().map(str::to_owned))).collect()
}

/// Validates the header fields of requests.
struct FieldValidation {
    headers: Option<Arc<Validator>>,
    names: Vec<String>,
    status: u16,
    message: Option<String>,
}

impl FieldValidation {
    fn refuse(&self, exchange: &mut Exchange, problem: &str) -> Stop {
        let text = self.message.as_deref().unwrap_or(problem);
        exchange.respond(self.status, "text/plain; charset=utf-8", text.as_bytes())
    }

    /// The fields of a request as a JSON object, with the names as spelled in the schema.
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

impl FieldValidation {
    fn check(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let Some(schema) = &self.headers else { return Ok(()) };
        let problem = schema.validate(&self.fields(exchange)).err().map(|error| said(&error));
        problem.map_or(Ok(()), |problem| Err(self.refuse(exchange, &problem)))
    }
}

impl Plugin for FieldValidation {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        Ok(self.check(exchange)?.into())
    }
}

/// Validates fields and bodies of requests.
struct BodyValidation {
    fields: FieldValidation,
    body: Arc<BodyRules>,
}

impl BodyValidation {
    fn check_head(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        self.fields.check(exchange)?;
        match exchange.request.framing {
            Framing::None | Framing::Sized(0) if self.fields.message.is_none() => {
                Err(Stop::Respond(self.fields.status))
            }
            Framing::None | Framing::Sized(0) => Err(self.fields.refuse(exchange, "")),
            Framing::Sized(length) if length > self.body.bounds.max_bytes => {
                Err(self.fields.refuse(exchange, &self.body.bounds.too_large()))
            }
            _ => Ok(()),
        }
    }

    fn answer(&self, exchange: &mut Exchange, verdict: Result<(), Fault>) -> Result<(), Stop> {
        match verdict {
            Ok(()) => Ok(()),
            Err(Fault::Stop(stop)) => Err(stop),
            Err(Fault::Problem(problem)) => Err(self.fields.refuse(exchange, &problem)),
        }
    }

    async fn check_elsewhere(&self, exchange: &mut Exchange, body: &mut Vec<u8>, is_form: bool) -> Result<(), Stop> {
        let (rules, client, content) = (Arc::clone(&self.body), exchange.client.addr, std::mem::take(body));
        let head = exchange.request.head.clone();
        let judge = move || {
            let verdict = rules.judge(&head, &content, is_form, client);
            (content, verdict)
        };
        let (content, verdict) = elsewhere(client, judge).await?;
        *body = content;
        self.answer(exchange, verdict)
    }
}

impl Plugin for BodyValidation {
    fn phases(&self) -> Phases {
        Phases::REQUEST.and(Phases::REQUEST_BODY)
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        Ok(self.check_head(exchange)?.into())
    }

    fn whole_request(&self, _: &mut Exchange) -> Result<Option<u64>, Stop> {
        Ok(Some(self.body.bounds.max_bytes))
    }

    fn too_much_content(&self, exchange: &mut Exchange) -> Stop {
        self.fields.refuse(exchange, &self.body.bounds.too_large())
    }

    fn on_request_body<'a>(&'a self, exchange: &'a mut Exchange, body: &'a mut Vec<u8>) -> Result<Flow<'a>, Stop> {
        let is_form = content_type::of_request(exchange)?.is_some_and(content_type::is_form);
        if is_long(&exchange.request.head, body) {
            return Ok(Flow::wait(self.check_elsewhere(exchange, body, is_form)));
        }
        let verdict = self.body.judge(&exchange.request.head, body, is_form, exchange.client.addr);
        Ok(self.answer(exchange, verdict)?.into())
    }
}

/// Why a body is refused.
pub(super) enum Fault {
    Problem(String),
    Stop(Stop),
}

impl From<JsonError> for Fault {
    fn from(fault: JsonError) -> Fault {
        Fault::Problem(match fault {
            JsonError::Syntax(at) => format!("the body is not valid JSON at byte {}", at + 1),
            JsonError::Depth => "the body is nested too deep".to_owned(),
        })
    }
}

/// What a body is held to before it is parsed.
pub(super) struct BodyBounds {
    /// Both as received and after decoding.
    pub max_bytes: u64,
    max_values: usize,
    max_depth: usize,
}

/// The rules for bodies, or for messages of a WebSocket.
pub(super) struct BodyRules {
    validator: Arc<Validator>,
    /// See [`json_schema::has_costly_faults`].
    is_costly: bool,
    bounds: BodyBounds,
}

impl BodyRules {
    /// The rules for JSON messages; `path` is the path of the schema in the options.
    pub(super) fn of_messages(schema: Map<String, Value>, path: &str) -> Result<BodyRules, ConfigError> {
        let is_costly = json_schema::has_costly_faults(&schema);
        let validator = json_schema::compile(schema, path)?;
        Ok(BodyRules { validator, is_costly, bounds: BodyBounds::of_bytes(u64::MAX) })
    }

    /// Whether a message of this client is valid.
    pub(super) fn allow(&self, message: &[u8], client: IpAddr) -> bool {
        self.judge_plain(message, false, client).is_ok()
    }

    fn judge(&self, head: &Head, content: &[u8], is_form: bool, client: IpAddr) -> Result<(), Fault> {
        self.judge_plain(&self.bounds.plain(head, content)?, is_form, client)
    }

    fn judge_plain(&self, plain: &[u8], is_form: bool, client: IpAddr) -> Result<(), Fault> {
        let (value, _held) = if is_form {
            let held = self.bounds.hold_form(plain, client)?;
            (read_form(plain), held)
        } else {
            self.bounds.read_json(plain, client)?
        };
        if self.is_costly {
            return match self.validator.is_valid(&value) {
                true => Ok(()),
                false => Err(Fault::Problem("the body does not match its schema".to_owned())),
            };
        }
        self.validator.validate(&value).map_err(|error| Fault::Problem(said(&error)))
    }
}

impl BodyBounds {
    /// This size, and as many values and levels as by default.
    pub(super) fn of_bytes(max_bytes: u64) -> BodyBounds {
        BodyBounds { max_bytes, max_values: default_max_values(), max_depth: default_max_depth() }
    }

    pub(super) fn too_large(&self) -> String {
        format!("the body has more than {} bytes", self.max_bytes)
    }

    /// The content without its coding.
    pub(super) fn plain<'a>(&self, head: &Head, content: &'a [u8]) -> Result<Cow<'a, [u8]>, Fault> {
        coding::plain(head, content, self.max_bytes).map_err(|opaque| match opaque {
            Opaque::TooLarge => Fault::Problem(self.too_large()),
            _ => Fault::Stop(Stop::Respond(opaque.status())),
        })
    }

    /// Takes the memory for a form with so many values.
    pub(super) fn hold_form(&self, plain: &[u8], client: IpAddr) -> Result<Held, Fault> {
        self.hold(plain, form::pairs(plain).take(self.max_values + 1).count(), client)
    }

    /// The value of a JSON text, and the memory that it takes.
    pub(super) fn read_json(&self, plain: &[u8], client: IpAddr) -> Result<(Value, Held), Fault> {
        let held = self.hold(plain, self.count(plain)?, client)?;
        let beyond = |_| Fault::Problem("the body has a number or a string that cannot be represented".to_owned());
        Ok((serde_json::from_slice(plain).map_err(beyond)?, held))
    }

    fn hold(&self, plain: &[u8], values: usize, client: IpAddr) -> Result<Held, Fault> {
        if values > self.max_values {
            return Err(Fault::Problem(format!("the body has more than {} values", self.max_values)));
        }
        let mut held = Held::of(client);
        // The parsed tree needs more memory than its text.
        let bytes = plain.len() as u64 + values as u64 * VALUE_BYTES;
        held.set(bytes).map_err(|exhausted| Fault::Stop(exhausted.into()))?;
        Ok(held)
    }

    /// The number of values in a JSON text, counted before it is parsed into a tree; stops when there are too many.
    fn count(&self, body: &[u8]) -> Result<usize, Fault> {
        let mut scanner = Scanner::new(body, self.max_depth)?;
        let mut open: Vec<HashSet<Cow<'_, str>>> = Vec::new();
        let mut values = 0;
        while let Some(token) = scanner.token()? {
            match token {
                JsonToken::Open(_) => open.push(HashSet::new()),
                JsonToken::Close(_) => _ = open.pop(),
                JsonToken::Name(span) => {
                    let name = scanner.unquoted(&span)?;
                    let said = || format!("the body has the name {:?} twice in one object", quoted(&name));
                    if open.last().is_some_and(|names| names.contains(&name)) {
                        return Err(Fault::Problem(said()));
                    }
                    if let Some(names) = open.last_mut() {
                        names.insert(name);
                    }
                    continue;
                }
                JsonToken::Text(_) | JsonToken::Plain(_) => {}
            }
            values += usize::from(!matches!(token, JsonToken::Close(_)));
            if values > self.max_values {
                break;
            }
        }
        Ok(values)
    }
}

/// Adds a value to an object; several values of one name become a list.
fn add(object: &mut Map<String, Value>, name: String, value: &[u8]) {
    let value = Value::String(String::from_utf8_lossy(value).into_owned());
    match object.get_mut(&name) {
        None => _ = object.insert(name, value),
        Some(Value::Array(values)) => values.push(value),
        Some(first) => *first = Value::Array(vec![first.take(), value]),
    }
}

fn read_form(body: &[u8]) -> Value {
    let mut object = Map::new();
    for (name, value) in form::pairs(body) {
        add(&mut object, String::from_utf8_lossy(&name).into_owned(), &value);
    }
    Value::Object(object)
}

/// The part of a text that is quoted in a refusal.
fn quoted(text: &str) -> &str {
    &text[..text.floor_char_boundary(MOST_QUOTED)]
}

/// The part of a value that is quoted in a refusal, as JSON; the rest is not rendered.
fn quoted_value(value: &Value) -> String {
    struct Beginning(Vec<u8>);
    impl std::io::Write for Beginning {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let room = MOST_QUOTED - self.0.len();
            self.0.extend_from_slice(&bytes[..bytes.len().min(room)]);
            if bytes.len() > room { Err(std::io::ErrorKind::WriteZero.into()) } else { Ok(bytes.len()) }
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut beginning = Beginning(Vec::new());
    // An error means that the value did not fit.
    let is_cut = serde_json::to_writer(&mut beginning, value).is_err();
    let text = String::from_utf8_lossy(&beginning.0);
    if is_cut { format!("{}...", text.trim_end_matches('\u{fffd}')) } else { text.into_owned() }
}

/// The message for a validation error, worded as in Apache APISIX if it is one of the common ones.
fn said(error: &ValidationError<'_>) -> String {
    let place: String = error
        .instance_path()
        .segments()
        .map(|segment| match segment {
            LocationSegment::Property(name) => format!("property {:?} validation failed: ", quoted(&name)),
            // APISIX counts from 1.
            LocationSegment::Index(index) => format!("failed to validate item {}: ", index + 1),
        })
        .collect();
    let problem = match error.kind() {
        ValidationErrorKind::Required { property } => format!("property {property} is required"),
        ValidationErrorKind::AdditionalProperties { unexpected } => {
            format!("additional properties forbidden, found {}", quoted(&unexpected.join(", ")))
        }
        ValidationErrorKind::Type { kind: TypeKind::Single(expected) } => {
            format!("wrong type: expected {expected}, got {}", kind_of(error.instance()))
        }
        _ => error.masked_with(quoted_value(error.instance())).to_string(),
    };
    let mut said = format!("{place}{problem}");
    said.truncate(said.floor_char_boundary(MAX_MESSAGE));
    said
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

    /// The status and message of the refusal, if the body is refused.
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
            ("{bad", Some("400 the body is not valid JSON at byte 2")),
            (r#"{"a": "x", "\u0061": "x"}"#, Some(r#"400 the body has the name "a" twice in one object"#)),
        ] {
            assert_eq!(problem(schema.clone(), "application/json", content).as_deref(), want, "{content}");
        }
    }

    #[test]
    fn u01_a_body_is_bounded_in_values_depth_and_bytes() {
        let options = json!({"body_schema": {}, "max_values": 5, "max_depth": 3, "max_req_body_size": 1000});
        let step = build::<RequestValidation>(options);
        let form = "application/x-www-form-urlencoded";
        for (content_type, content, want) in [
            ("application/json", "[1,2,3,4]", None),
            ("application/json", "[1,2,3,4,5]", Some("the body has more than 5 values")),
            ("application/json", r#"{"a":1,"b":2,"c":{"d":3}}"#, None),
            ("application/json", "[[[[]]]]", Some("the body is nested too deep")),
            (form, "a=1&b=2&c=3&d=4&e=5", None),
            (form, "a=1&b=2&c=3&d=4&e=5&f=6", Some("the body has more than 5 values")),
        ] {
            let mut exchange = exchange(&format!("POST / HTTP/1.1\nHost: h\nContent-Type: {content_type}"));
            let end = on_request_body(&step, &mut exchange, content);
            assert_eq!(end.err().map(|_| body(&exchange)), want, "{content}");
        }
        let deepest = build::<RequestValidation>(json!({"body_schema": {}, "max_depth": MOST_DEPTH}));
        for (depth, want) in [(MOST_DEPTH, None), (MOST_DEPTH + 1, Some("the body is nested too deep"))] {
            let content = "[".repeat(depth) + &"]".repeat(depth);
            let mut exchange = exchange("POST / HTTP/1.1\nHost: h\nContent-Type: application/json");
            let end = on_request_body(&deepest, &mut exchange, &content);
            assert_eq!(end.err().map(|_| body(&exchange)), want, "{depth}");
        }
        let mut long = exchange("POST / HTTP/1.1\nHost: h\nContent-Length: 1001");
        assert!(on_request(&step, &mut long).is_err());
        assert_eq!((long.response.status, body(&long)), (400, "the body has more than 1000 bytes"));
    }

    #[test]
    fn u01_a_long_body_is_judged_elsewhere_and_comes_back() {
        let schema = json!({"body_schema": {"maxItems": 20_000}});
        let step = build::<RequestValidation>(schema);
        let list = |count: usize| format!("[{}]", vec!["1"; count].join(","));
        assert_eq!(on_request_body(&step, &mut exchange("POST / HTTP/1.1\nHost: h"), &list(20_000)), Ok(()));
        let mut refused = exchange("POST / HTTP/1.1\nHost: h");
        assert!(on_request_body(&step, &mut refused, &list(20_001)).is_err());
        assert!(body(&refused).len() < 2 * MOST_QUOTED, "{}", body(&refused));
    }

    #[test]
    fn u01_a_refusal_quotes_little_of_a_value() {
        let long = "x".repeat(5_000);
        for (schema, content) in [
            (json!({"maxLength": 3}), format!("{long:?}")),
            (json!({"enum": ["a"]}), format!("{long:?}")),
            (json!({"additionalProperties": false}), format!("{{{long:?}: 1}}")),
            (json!({"additionalProperties": {"type": "string"}}), format!("{{{long:?}: 1}}")),
            (json!({"propertyNames": {"maxLength": 3}}), format!("{{{long:?}: 1}}")),
            (json!({}), format!("{{{long:?}: 1, {long:?}: 2}}")),
        ] {
            let said = problem(schema.clone(), "application/json", &content).expect("refused");
            assert!(said.len() <= MAX_MESSAGE + 4 && said.matches('x').count() <= MAX_MESSAGE, "{schema}: {said}");
        }
        let said = problem(json!({"maxLength": 3}), "application/json", &format!("{long:?}")).expect("refused");
        assert!(said.matches('x').count() <= MOST_QUOTED, "{said}");
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
            (json!({"body_schema": {"type": "strin"}}), "body_schema.type: is not a JSON Schema"),
            (json!({"body_schema": {"$ref": "http://h.example/s"}}), "body_schema: is not a JSON Schema"),
            (json!({"body_schema": {"pattern": "(?=a)"}}), "body_schema"),
        ] {
            let error = refused::<RequestValidation>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
