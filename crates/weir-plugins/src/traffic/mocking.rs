use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quick_xml::escape::partial_escape;
use rand::random_range;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_plugin::proto::field;
use weir_plugin::template::TemplateStyle;
use weir_plugin::{AllOf, Build, CollectAll, ConfigError, Definition, Exchange, Flow, Plugin, Stage, Stop, Template};

use crate::options::headers::{Scalar, header_name};

/// Answers requests in the gateway, with an example or with random data that matches a schema, without asking an
/// upstream.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mocking {
    /// The body of the response. `$variables` are replaced. If `content_type` is JSON, their values are escaped, so
    /// that a request cannot inject JSON.
    response_example: Option<String>,
    /// A JSON schema. Each response is random data that matches its `type`, `properties`, `items` and `example`.
    /// Ignored if there is a `response_example`.
    response_schema: Option<Map<String, Value>>,
    /// The status of the response, 200 to 999.
    #[serde(default = "default_response_status")]
    #[schemars(range(min = 200, max = 999))]
    response_status: u16,
    /// The `Content-Type` of the response.
    #[serde(default = "default_content_type")]
    content_type: String,
    /// Additional header fields of the response. Values may contain `$variables`.
    #[serde(default)]
    response_headers: BTreeMap<String, Scalar>,
    /// The delay before the response, in seconds.
    #[serde(default)]
    #[schemars(extend("x-weir-unit" = "s"))]
    delay: u32,
    /// Adds `x-mock-by: Weir/<version>` to the response.
    #[serde(default = "default_true")]
    with_mock_header: bool,
}

fn default_response_status() -> u16 {
    200
}

fn default_content_type() -> String {
    "application/json;charset=utf8".to_owned()
}

fn default_true() -> bool {
    true
}

impl Definition for Mocking {
    const NAME: &'static str = "mocking";
    const PRIORITY: i32 = 10900;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"mocking: { response_example: '{"hello":"$remote_addr"}', response_status: 200 }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        if !field::is_value(self.content_type.as_bytes()) {
            build.fault("content_type", "has a character that is not allowed in a header field");
        }
        let is_json = self.content_type.contains("json");
        let style = if is_json { TemplateStyle::JSON } else { TemplateStyle::PLAIN };
        let content = match (self.response_example, self.response_schema) {
            (Some(example), _) => {
                let template = build.template(&example, "response_example");
                Ok(match template.constant() {
                    Some(text) => MockContent::Constant(text.into()),
                    None => MockContent::Template(template, style),
                })
            }
            (None, Some(schema)) => SchemaShape::of(&Value::Object(schema), "response_schema", 0)
                .map(|shape| MockContent::Random { shape, xml: self.content_type.contains("xml") }),
            (None, None) => Err(ConfigError::new("", "has neither `response_example` nor `response_schema`; give one")),
        };
        let mut fields = Vec::new();
        if self.with_mock_header {
            let by = concat!("Weir/", env!("CARGO_PKG_VERSION"));
            fields.push((b"x-mock-by".as_slice().into(), Template::compile(by)));
        }
        let field = |(name, value): (&String, &Scalar)| {
            let path = format!("response_headers.{name}");
            let (name, value) = (header_name(name, &path), value.template(&path, build)).all_of()?;
            Ok((name.into(), value))
        };
        let own = self.response_headers.iter().map(field).collect_all::<Vec<_>>();
        let (content, own) = (content, own).all_of()?;
        fields.extend(own);
        let mock = Mock {
            status: self.response_status,
            content_type: self.content_type.into(),
            content,
            fields: fields.into(),
        };
        Ok(match self.delay {
            0 => Arc::new(mock),
            seconds => Arc::new(DelayedMock { mock, delay: Duration::from_secs(seconds.into()) }),
        })
    }
}

struct Mock {
    status: u16,
    content_type: Box<str>,
    content: MockContent,
    fields: Box<[(Box<[u8]>, Template)]>,
}

enum MockContent {
    Constant(Box<[u8]>),
    Template(Template, TemplateStyle),
    Random { shape: SchemaShape, xml: bool },
}

impl Plugin for Mock {
    fn answers_all(&self) -> bool {
        true
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        let stop = match &self.content {
            MockContent::Constant(body) => exchange.respond(self.status, &self.content_type, body),
            MockContent::Template(template, style) => {
                let mut body = Vec::new();
                template.render_as(*style, exchange, &mut body);
                exchange.respond(self.status, &self.content_type, &body)
            }
            MockContent::Random { shape, xml } => {
                let value = shape.draw();
                let body = if *xml { xml_document(&value) } else { value.to_string() };
                exchange.respond(self.status, &self.content_type, body.as_bytes())
            }
        };
        for (name, template) in &self.fields {
            let added = match template.constant() {
                Some(value) => exchange.response.head.add(name, value),
                None => {
                    let mut value = Vec::new();
                    template.render(exchange, &mut value);
                    exchange.response.head.add(name, &value)
                }
            };
            // A value is invalid only because of the content of a variable.
            added.map_err(|_| Stop::Respond(400))?;
        }
        Err(stop)
    }
}

struct DelayedMock {
    mock: Mock,
    delay: Duration,
}

impl Plugin for DelayedMock {
    fn answers_all(&self) -> bool {
        true
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        Ok(Flow::wait(async move {
            tokio::time::sleep(self.delay).await;
            self.mock.on_request(exchange).map(|_| ())
        }))
    }
}

/// The structure of generated data.
enum SchemaShape {
    Example(Value),
    Text,
    Number,
    Integer,
    Boolean,
    List(Box<SchemaShape>),
    Object(Vec<(String, SchemaShape)>),
}

/// How deep a schema may nest.
const MAX_DEPTH: usize = 32;

impl SchemaShape {
    fn of(schema: &Value, path: &str, depth: usize) -> Result<SchemaShape, ConfigError> {
        if depth > MAX_DEPTH {
            return Err(ConfigError::new(path, format!("nests deeper than {MAX_DEPTH} levels")));
        }
        if let Some(example) = schema.get("example") {
            return Ok(SchemaShape::Example(example.clone()));
        }
        let kind = match schema.get("type") {
            Some(Value::String(kind)) => kind.as_str(),
            None if schema.get("properties").is_some() => "object",
            _ => return Err(ConfigError::new(format!("{path}.type"), "is missing; name one type, as \"string\"")),
        };
        Ok(match kind {
            "string" => SchemaShape::Text,
            "number" => SchemaShape::Number,
            "integer" => SchemaShape::Integer,
            "boolean" => SchemaShape::Boolean,
            "array" => {
                let path = format!("{path}.items");
                let items = schema
                    .get("items")
                    .ok_or_else(|| ConfigError::new(&path, "is missing, and required for the type `array`"))?;
                SchemaShape::List(Box::new(SchemaShape::of(items, &path, depth + 1)?))
            }
            "object" => {
                let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
                let shapes = properties.map(|(name, schema)| {
                    Ok((name.clone(), SchemaShape::of(schema, &format!("{path}.properties.{name}"), depth + 1)?))
                });
                SchemaShape::Object(shapes.collect_all()?)
            }
            other => {
                let problem = format!("`{other}` is not a type; use string, number, integer, boolean, array or object");
                return Err(ConfigError::new(format!("{path}.type"), problem));
            }
        })
    }

    fn draw(&self) -> Value {
        match self {
            SchemaShape::Example(value) => value.clone(),
            SchemaShape::Text => Value::String((0..random_range(1..=10)).map(|_| random_range('a'..='z')).collect()),
            SchemaShape::Number => Value::from(random_range(0.0..10_000.0)),
            SchemaShape::Integer => Value::from(random_range(1..=10_000)),
            SchemaShape::Boolean => Value::from(rand::random::<bool>()),
            SchemaShape::List(items) => (0..random_range(1..=3)).map(|_| items.draw()).collect(),
            SchemaShape::Object(properties) => {
                Value::Object(properties.iter().map(|(name, shape)| (name.clone(), shape.draw())).collect())
            }
        }
    }
}

/// The same data as XML: an element per member, a list as repeated elements.
fn xml_document(value: &Value) -> String {
    let mut out = String::new();
    push_element("data", value, &mut out);
    out
}

fn push_element(name: &str, value: &Value, out: &mut String) {
    if let Value::Array(items) = value {
        items.iter().for_each(|item| push_element(name, item, out));
        return;
    }
    out.extend(["<", name, ">"]);
    match value {
        Value::Object(members) => members.iter().for_each(|(name, value)| push_element(name, value, out)),
        Value::String(text) => out.push_str(&partial_escape(text)),
        other => out.push_str(&other.to_string()),
    }
    out.extend(["</", name, ">"]);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{body, build, exchange, get, on_request, refused, sent};

    #[test]
    fn answers_with_the_example() {
        let options = json!({"response_example": "{\"a\":\"$remote_addr\"}", "response_status": 201,
            "response_headers": {"X-A": 1, "X-B": "$uri"}});
        let mut exchange = get("/hello");
        assert_eq!(on_request(&build::<Mocking>(options), &mut exchange), Err(Stop::Answered));
        assert_eq!((exchange.response.status, body(&exchange)), (201, "{\"a\":\"192.0.2.7\"}"));
        assert_eq!(sent(&exchange, "content-type"), Some("application/json;charset=utf8"));
        assert_eq!(sent(&exchange, "x-mock-by"), Some(concat!("Weir/", env!("CARGO_PKG_VERSION"))));
        assert_eq!((sent(&exchange, "x-a"), sent(&exchange, "x-b")), (Some("1"), Some("/hello")));
    }

    #[test]
    fn a_request_cannot_break_out_of_a_json_example_or_a_field() {
        let step = build::<Mocking>(json!({"response_example": "{\"a\":\"$arg_a\"}"}));
        let mut exchange = get("/?a=%22%7D");
        assert_eq!(on_request(&step, &mut exchange), Err(Stop::Answered));
        assert_eq!(body(&exchange), r#"{"a":"\"}"}"#);
        let step = build::<Mocking>(json!({"response_example": "x", "response_headers": {"X-A": "$arg_a"}}));
        assert_eq!(on_request(&step, &mut get("/?a=%0d%0aSet-Cookie:%20x")), Err(Stop::Respond(400)));
    }

    #[test]
    fn answers_late_when_told() {
        let step = build::<Mocking>(json!({"response_example": "x", "delay": 3600, "with_mock_header": false}));
        let mut exchange = exchange("POST / HTTP/1.1\nHost: h\nContent-Length: 3");
        assert_eq!(on_request(&step, &mut exchange), Err(Stop::Answered));
        assert_eq!((body(&exchange), sent(&exchange, "x-mock-by")), ("x", None));
    }

    #[test]
    fn random_data_fits_the_schema() {
        let schema = json!({"type": "object", "properties": {
            "id": {"type": "integer"}, "name": {"type": "string"}, "kind": {"type": "string", "example": "cat"},
            "tags": {"type": "array", "items": {"type": "boolean"}}, "size": {"type": "number"}}});
        let step = build::<Mocking>(json!({"response_schema": schema}));
        let mut exchange = get("/");
        assert_eq!(on_request(&step, &mut exchange), Err(Stop::Answered));
        let value: Value = serde_json::from_slice(&exchange.body).expect("JSON");
        assert!(value["id"].is_u64() && value["name"].is_string() && value["size"].is_f64(), "{value}");
        assert!(value["kind"] == "cat" && value["tags"][0].is_boolean(), "{value}");
        let xml = json!({"response_schema": {"type": "object", "properties": {"a": {"type": "string", "example": "<1>"}}},
            "content_type": "application/xml"});
        assert_eq!(on_request(&build::<Mocking>(xml), &mut exchange), Err(Stop::Answered));
        assert_eq!(body(&exchange), "<data><a>&lt;1&gt;</a></data>");
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "has neither `response_example` nor `response_schema`; give one"),
            (json!({"response_example": "", "response_headers": {"a b": 1}}), "response_headers.a b: "),
            (json!({"response_example": 1}), "response_example: expected text, found a number"),
            (json!({"respons_example": ""}), "respons_example: the option `respons_example` is not known"),
            (
                json!({"response_schema": {"type": "object", "properties": {"a": {"type": "text"}}}}),
                "response_schema.properties.a.type: `text` is not a type",
            ),
        ] {
            let error = refused::<Mocking>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
