//! Header fields in plugin options: their names, their values, and edits of a head.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_plugin::proto::head::{BadField, Head};
use weir_plugin::proto::{Known, field};
use weir_plugin::{AllOf, Build, CollectAll, ConfigError, Exchange, Template, Variable, Variables};

/// The value of a field in options: text or a number.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Value")]
pub(crate) struct Scalar(String);

impl TryFrom<Value> for Scalar {
    type Error = &'static str;

    fn try_from(value: Value) -> Result<Scalar, &'static str> {
        match value {
            Value::String(text) => Ok(Scalar(text)),
            Value::Number(number) => Ok(Scalar(number.to_string())),
            _ => Err("expected a string or a number"),
        }
    }
}

impl JsonSchema for Scalar {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Scalar".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": ["string", "number"]})
    }
}

impl Scalar {
    /// The value as text.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// The value as a template; an error if its constant parts are not valid in a field.
    pub(crate) fn template(&self, path: &str, build: &mut Build) -> Result<Template, ConfigError> {
        match field::is_value(self.0.as_bytes()) {
            true => Ok(build.template(&self.0, path)),
            false => {
                Err(ConfigError::new(path, "has a character that is not allowed in a header field, such as a line end"))
            }
        }
    }
}

/// A field name that an option may set or remove. Fields that control framing are refused.
pub(crate) fn header_name<'a>(name: &'a str, path: &str) -> Result<&'a [u8], ConfigError> {
    if !field::is_name(name.as_bytes()) {
        return Err(ConfigError::new(path, "is not the name of a header field; use letters, digits and dashes"));
    }
    let known = Known::parse(name.as_bytes());
    if known == Known::ContentLength || known.is_hop_by_hop() {
        return Err(ConfigError::new(
            path,
            "controls the framing of messages or the connection, which the gateway manages itself; leave it out",
        ));
    }
    Ok(name.as_bytes())
}

/// Edits of a head, as in the option `headers` of `proxy-rewrite`: `add`, `set` and `remove`, or only names and values,
/// which means `set`.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct HeaderOptions(Map<String, Value>);

impl JsonSchema for HeaderOptions {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "HeaderOptions".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let fields = fields_schema();
        let lines = json_schema!({"type": "array", "items": {"type": "string"}});
        let add = json_schema!({
            "description": "Fields to add to those of the same name: names and values, or a list of `name: value`.",
            "oneOf": [fields, lines],
        });
        let mut set = fields.clone();
        set.insert("description".into(), "Fields to set; they replace existing fields of the same name.".into());
        json_schema!({"anyOf": [
            {
                "type": "object",
                "properties": {
                    "add": add,
                    "set": set,
                    "remove": {
                        "description": "Names of the fields to remove.",
                        "type": "array",
                        "items": {"type": "string"},
                    },
                },
                "additionalProperties": false,
            },
            fields,
        ]})
    }
}

/// The schema of names and values of fields.
fn fields_schema() -> Schema {
    let value = json_schema!({"type": ["string", "number", "array"], "items": {"type": ["string", "number"]}});
    json_schema!({"type": "object", "additionalProperties": value})
}

/// Fields to set: their names and values, of which there may be several for a name.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct SetHeaderOptions(Map<String, Value>);

impl JsonSchema for SetHeaderOptions {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "SetHeaderOptions".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut schema = fields_schema();
        schema.insert("minProperties".into(), 1.into());
        schema
    }
}

impl SetHeaderOptions {
    /// Compiles them to edits; `path` is the path of the options.
    pub(crate) fn compile(&self, path: &str, build: &mut Build) -> Result<HeaderEdits, ConfigError> {
        Ok(HeaderEdits { set: compile_fields(&self.0, path, build)?, ..HeaderEdits::default() })
    }
}

/// Compiled edits of a head. They run in the order add, set, remove.
#[derive(Debug, Default)]
pub(crate) struct HeaderEdits {
    add: Vec<(Box<[u8]>, Template)>,
    /// A field may have several values; the first one replaces the values that exist.
    set: Vec<(Box<[u8]>, Vec<Template>)>,
    remove: Vec<Box<[u8]>>,
}

impl HeaderOptions {
    /// Compiles the edits; `path` is the path of the options.
    pub(crate) fn compile(self, path: &str, build: &mut Build) -> Result<HeaderEdits, ConfigError> {
        let mut edits = HeaderEdits::default();
        // With a list or a map of another kind than it needs, it is reported below, and not taken for a field of this name either.
        let is_edit = |(name, value): (&String, &Value)| {
            ["add", "set", "remove"].contains(&name.as_str()) && (value.is_object() || value.is_array())
        };
        for (word, shape) in
            [("add", "a map, or a list of `name: value`"), ("set", "a map"), ("remove", "a list of names")]
        {
            // Not taken for a field of this name.
            if self.0.get(word).is_some_and(|value| !value.is_object() && !value.is_array()) {
                build.fault(format!("{path}.{word}"), format!("must be {shape}"));
            }
        }
        if self.0.is_empty() || !self.0.iter().any(is_edit) {
            edits.set = compile_fields(&self.0, path, build)?;
            return Ok(edits);
        }
        for (name, value) in &self.0 {
            let path = format!("{path}.{name}");
            match (name.as_str(), value) {
                ("add", Value::Object(fields)) => {
                    let fields = compile_fields(fields, &path, build);
                    for (name, values) in build.keep(fields) {
                        edits.add.extend(values.into_iter().map(|value| (name.clone(), value)));
                    }
                }
                ("add", Value::Array(lines)) => {
                    let line = |(index, line)| added_line(line, &format!("{path}[{index}]"), build);
                    let lines = lines.iter().enumerate().map(line).collect_all::<Vec<_>>();
                    edits.add.extend(build.keep(lines));
                }
                ("set", Value::Object(fields)) => {
                    let fields = compile_fields(fields, &path, build);
                    edits.set = build.keep(fields);
                }
                ("remove", Value::Array(names)) => {
                    let name = |(index, name): (usize, &Value)| {
                        let path = format!("{path}[{index}]");
                        let name = name.as_str().ok_or_else(|| ConfigError::new(&path, "expected a field's name"))?;
                        Ok(header_name(name, &path)?.into())
                    };
                    edits.remove = build.keep(names.iter().enumerate().map(name).collect_all());
                }
                // Reported above.
                ("add" | "set" | "remove", value) if !value.is_object() && !value.is_array() => {}
                ("add" | "set", _) => build.fault(path, "expected a map of names and values"),
                ("remove", _) => build.fault(path, "expected a list of names"),
                _ => build.fault(path, "is none of `add`, `set` and `remove`"),
            }
        }
        Ok(edits)
    }
}

/// A line `name: value` of the option `add`.
fn added_line(line: &Value, path: &str, build: &mut Build) -> Result<(Box<[u8]>, Template), ConfigError> {
    let (name, value) = line
        .as_str()
        .and_then(|line| line.split_once(':'))
        .ok_or_else(|| ConfigError::new(path, "is not `name: value`"))?;
    let value = Scalar(value.trim().to_owned()).template(path, build)?;
    Ok((header_name(name.trim(), path)?.into(), value))
}

type TemplatedFields = Vec<(Box<[u8]>, Vec<Template>)>;

fn compile_fields(fields: &Map<String, Value>, path: &str, build: &mut Build) -> Result<TemplatedFields, ConfigError> {
    let compile = |(name, value): (&String, &Value)| {
        let path = format!("{path}.{name}");
        let values = match value {
            Value::Array(values) if !values.is_empty() => values.as_slice(),
            Value::Array(_) => return Err(ConfigError::new(path, "needs at least one value")),
            value => std::slice::from_ref(value),
        };
        let templates = values.iter().map(|value| {
            let scalar = Scalar::try_from(value.clone()).map_err(|problem| ConfigError::new(&path, problem))?;
            scalar.template(&path, build)
        });
        let templates = templates.collect_all();
        let (name, templates) = (header_name(name, &path), templates).all_of()?;
        Ok((name.into(), templates))
    };
    fields.iter().map(compile).collect_all()
}

impl HeaderEdits {
    /// The names of fields that are added or set.
    pub(crate) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.add.iter().map(|(name, _)| &**name).chain(self.set.iter().map(|(name, _)| &**name))
    }

    /// Refuses edits of `Host`, which is not a field of the request on its way to the upstream: `path` is that of the options.
    pub(crate) fn refuse_host(&self, path: &str) -> Result<(), ConfigError> {
        if !self.names().any(|name| name.eq_ignore_ascii_case(b"host")) {
            return Ok(());
        }
        let problem = "cannot change `Host`; use the option `host` of `proxy-rewrite`, or `pass_host` of the upstream";
        Err(ConfigError::new(path, problem))
    }

    /// Applies the edits. Setting a field to an empty text removes it, as in APISIX. `groups` are the groups of a
    /// regular expression, for `$1`, `$2`... in values. Fails if a variable contains bytes that are invalid in a field;
    /// some edits may have been applied by then.
    pub(crate) fn apply(&self, exchange: &mut Exchange, side: EditedHead, groups: &[Vec<u8>]) -> Result<(), BadField> {
        self.edit(exchange, side, groups, |added| added)
    }

    /// The same, but leaves out each value with bytes that are invalid in a field.
    pub(crate) fn apply_valid(&self, exchange: &mut Exchange, side: EditedHead) {
        let _ = self.edit(exchange, side, &[], |_| Ok(()));
    }

    fn edit(
        &self,
        exchange: &mut Exchange,
        side: EditedHead,
        groups: &[Vec<u8>],
        judge: impl Fn(Result<(), BadField>) -> Result<(), BadField>,
    ) -> Result<(), BadField> {
        for (name, template) in &self.add {
            judge(add(exchange, side, name, template, groups))?;
        }
        for (name, templates) in &self.set {
            // The new values may contain the old one.
            let values: Vec<Vec<u8>> = templates.iter().map(|template| rendered(exchange, template, groups)).collect();
            side(exchange).remove(name);
            for value in values.iter().filter(|value| !value.is_empty()) {
                judge(side(exchange).add(name, value))?;
            }
        }
        for name in &self.remove {
            side(exchange).withhold(name);
        }
        Ok(())
    }
}

fn rendered(exchange: &Exchange, template: &Template, groups: &[Vec<u8>]) -> Vec<u8> {
    let mut value = Vec::new();
    template.render(&WithGroups { exchange, groups }, &mut value);
    value
}

/// Selects the head of an exchange to edit.
pub(crate) type EditedHead = fn(&mut Exchange) -> &mut Head;

fn add(
    exchange: &mut Exchange,
    side: EditedHead,
    name: &[u8],
    template: &Template,
    groups: &[Vec<u8>],
) -> Result<(), BadField> {
    if let Some(value) = template.constant() {
        return side(exchange).add(name, value);
    }
    let value = rendered(exchange, template, groups);
    side(exchange).add(name, &value)
}

/// An exchange with the groups of a regular expression as `$1`, `$2`...
pub(crate) struct WithGroups<'a> {
    pub exchange: &'a Exchange,
    pub groups: &'a [Vec<u8>],
}

impl Variables for WithGroups<'_> {
    fn variable(&self, variable: &Variable) -> Option<Cow<'_, [u8]>> {
        match variable {
            Variable::Capture(number) => self.groups.get(usize::from(*number)).map(|group| Cow::Borrowed(&**group)),
            other => self.exchange.variable(other),
        }
    }
}
