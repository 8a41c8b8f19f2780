//! Parameters of operations: how they are declared, and whether those of a request fit.

use std::net::IpAddr;

use serde_json::Value;

use super::document::{OasDocument, SpecFaults, below};
use super::faults::RequestFaults;
use super::schemas::{OasSchemas, SchemaCollection, SchemaNumber};
use super::shape::{STRING, ValueShape};
use super::style::{Notation, ParameterStyle, TextPairs};
use crate::content::content_type;
use crate::security::request_validation::{BodyBounds, Fault};

/// The longest name of a parameter, in bytes.
const MOST_NAME: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParameterPlace {
    Path,
    Query,
    Header,
    Cookie,
}

impl ParameterPlace {
    fn named(name: &str) -> Option<ParameterPlace> {
        Some(match name {
            "path" => ParameterPlace::Path,
            "query" => ParameterPlace::Query,
            "header" => ParameterPlace::Header,
            "cookie" => ParameterPlace::Cookie,
            _ => return None,
        })
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            ParameterPlace::Path => "path",
            ParameterPlace::Query => "query",
            ParameterPlace::Header => "header",
            ParameterPlace::Cookie => "cookie",
        }
    }

    fn allows(self, style: ParameterStyle) -> bool {
        use ParameterStyle as S;
        match self {
            ParameterPlace::Path => matches!(style, S::Simple | S::Label | S::Matrix),
            ParameterPlace::Query => {
                matches!(style, S::Form | S::SpaceDelimited | S::PipeDelimited | S::DeepObject)
            }
            ParameterPlace::Header => style == S::Simple,
            ParameterPlace::Cookie => style == S::Form,
        }
    }
}

/// A parameter of an operation.
#[derive(Debug)]
pub(super) struct DeclaredParameter {
    pub name: String,
    pub at: ParameterPlace,
    required: bool,
    allows_empty: bool,
    /// Its value is a text in JSON.
    is_json: bool,
    notation: Notation,
    /// `None`: any value.
    schema: Option<SchemaNumber>,
    /// What faults name: `query.limit`.
    place: String,
}

/// The parts of a request that parameters are in, decoded.
pub(super) struct ParameterTexts<'a> {
    /// The values of the template.
    pub path: &'a [(&'a str, String)],
    pub query: TextPairs,
    pub cookies: TextPairs,
    /// The values of a header field, joined as in a list.
    pub header: &'a dyn Fn(&str) -> Option<String>,
    /// The names of all arguments that are declared.
    pub declared: &'a [String],
    pub json: JsonReader<'a>,
}

/// Reads JSON that is a part of a request, with the bounds of bodies.
#[derive(Clone, Copy)]
pub(super) struct JsonReader<'a> {
    pub bounds: &'a BodyBounds,
    pub client: IpAddr,
}

impl JsonReader<'_> {
    /// # Errors
    /// If it is not JSON, has a name twice in an object, or is too much for the node.
    pub(super) fn read(self, text: &str) -> Result<Value, String> {
        match self.bounds.read_json(text.as_bytes(), self.client) {
            Ok((value, _held)) => Ok(value),
            Err(Fault::Problem(problem)) => Err(problem.replacen("the body ", "", 1)),
            Err(Fault::Stop(_)) => Err("takes more memory than is left".to_owned()),
        }
    }
}

impl DeclaredParameter {
    /// Reads the parameter that stands, or is referred to, at a place. `None` for one without effect, and with a fault.
    pub(super) fn read(
        document: &OasDocument,
        at: &str,
        schemas: &mut SchemaCollection<'_>,
        faults: &mut SpecFaults,
    ) -> Option<DeclaredParameter> {
        let (declared, at) = document.resolve(at, faults)?;
        let Some(name) = declared["name"].as_str().map(str::to_owned) else {
            faults.add(&at, "is a parameter without `name`");
            return None;
        };
        if name.len() > MOST_NAME {
            faults.add(&at, format!("has a name of more than {MOST_NAME} bytes"));
            return None;
        }
        let Some(place) = declared["in"].as_str().and_then(ParameterPlace::named) else {
            faults.add(&at, "`in` must be path, query, header or cookie");
            return None;
        };
        // OpenAPI: such a definition is to be ignored.
        let ignored = ["accept", "authorization", "content-type"];
        if place == ParameterPlace::Header && ignored.contains(&name.to_ascii_lowercase().as_str()) {
            return None;
        }
        let default = match place {
            ParameterPlace::Path | ParameterPlace::Header => ParameterStyle::Simple,
            ParameterPlace::Query | ParameterPlace::Cookie => ParameterStyle::Form,
        };
        let style = declared["style"].as_str().map_or(Some(default), ParameterStyle::named);
        let Some(style) = style.filter(|style| place.allows(*style)) else {
            faults.add(&at, format!("`style` is none of a parameter in `{}`", place.name()));
            return None;
        };
        let content = declared["content"].as_object().and_then(|content| content.iter().next());
        let is_json = content.is_some_and(|(kind, _)| content_type::is_json(kind.as_bytes()));
        let schema_at = match content {
            Some((kind, _)) => below(&below(&below(&at, "content"), kind), "schema"),
            None => below(&at, "schema"),
        };
        let schema = document.at(&schema_at).map(|_| schemas.add(&schema_at, faults));
        let shape = schema.filter(|_| content.is_none()).map(|number| schemas.shape(number, faults));
        let explode = declared["explode"].as_bool().unwrap_or(style == ParameterStyle::Form);
        Some(DeclaredParameter {
            place: format!("{}.{}", place.name(), crate::content::quoted(&name)),
            name,
            at: place,
            required: declared["required"] == true || place == ParameterPlace::Path,
            allows_empty: declared["allowEmptyValue"] == true,
            is_json,
            notation: Notation { style, explode, shape: shape.unwrap_or_default() },
            schema,
        })
    }

    /// The value in a request, or why it has none that could be checked.
    fn value(&self, texts: &ParameterTexts<'_>) -> Option<Result<Value, String>> {
        if self.at == ParameterPlace::Query && !self.is_json {
            return self.notation.of_pairs(&self.name, &texts.query, texts.declared);
        }
        Some(self.text(texts)?.and_then(|text| {
            if self.is_json {
                return texts.json.read(&text);
            }
            match self.at {
                ParameterPlace::Path => self.notation.of_segment(&self.name, &text),
                _ => self.notation.of_text(&text),
            }
        }))
    }

    /// The only text that has this name.
    fn text(&self, texts: &ParameterTexts<'_>) -> Option<Result<String, String>> {
        let of_pairs = |pairs: &TextPairs| {
            let mut values = pairs.iter().filter(|(name, _)| *name == self.name).map(|(_, value)| value);
            let first = values.next()?;
            Some(match values.count() {
                0 => Ok(first.clone()),
                // Recipients take one or another of them.
                more => Err(format!("is there {} times, and takes one value", more + 1)),
            })
        };
        match self.at {
            ParameterPlace::Path => {
                texts.path.iter().find(|(name, _)| *name == self.name).map(|(_, value)| Ok(value.clone()))
            }
            ParameterPlace::Query => of_pairs(&texts.query),
            ParameterPlace::Cookie => of_pairs(&texts.cookies),
            ParameterPlace::Header => (texts.header)(&self.name).map(Ok),
        }
    }

    pub(super) fn check(&self, texts: &ParameterTexts<'_>, schemas: &OasSchemas, faults: &mut RequestFaults) {
        let value = match self.value(texts) {
            None if self.required => return faults.add(&self.place, "is required"),
            None => return,
            Some(Err(problem)) => return faults.add(&self.place, problem),
            Some(Ok(value)) => value,
        };
        if self.allows_empty && value == "" {
            return;
        }
        if let Some(number) = self.schema {
            check_read(&self.notation.shape, number, value, schemas, &self.place, faults);
        }
    }
}

/// Checks a value that was read by its shape. Where texts are possible as well, `5` may be one.
pub(super) fn check_read(
    shape: &ValueShape,
    number: SchemaNumber,
    value: Value,
    schemas: &OasSchemas,
    place: &str,
    faults: &mut RequestFaults,
) {
    let other = shape.has(STRING) && matches!(value, Value::Number(_) | Value::Bool(_));
    if !(other && schemas.allow(number, Value::String(value.to_string()))) {
        schemas.check(number, value, place, faults);
    }
}
