//! Bodies of operations, by their media types.

use std::net::IpAddr;

use serde_json::{Map, Value};
use weir_plugin::{Stop, form};

use super::document::{OasDocument, SpecFaults, below};
use super::faults::RequestFaults;
use super::parameter::{JsonReader, check_read};
use super::schemas::{OasSchemas, SchemaCollection, SchemaNumber};
use super::shape::{OBJECT, ValueShape};
use super::style::{Notation, ParameterStyle, TextPairs};
use crate::content::content_type;
use crate::content::quoted;
use crate::security::request_validation::{BodyBounds, Fault};

/// The body of an operation.
#[derive(Debug)]
pub(super) struct DeclaredBody {
    pub required: bool,
    content: Vec<DeclaredContent>,
}

/// Content of one media type, or of a range of them.
#[derive(Debug)]
struct DeclaredContent {
    /// In lower case, without parameters.
    media_type: String,
    schema: Option<SchemaNumber>,
    shape: ValueShape,
    /// Of the fields of a form, those that are not written as by default.
    fields: Vec<(String, Notation)>,
}

pub(super) fn is_json(media_type: &str) -> bool {
    content_type::is_json(media_type.as_bytes())
}

fn essence(media_type: &str) -> String {
    media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// The longest media type, in bytes.
const MOST_MEDIA_TYPE: usize = 256;

impl DeclaredBody {
    /// Reads the body that stands, or is referred to, at a place.
    pub(super) fn read(
        document: &OasDocument,
        at: &str,
        schemas: &mut SchemaCollection<'_>,
        faults: &mut SpecFaults,
    ) -> Option<DeclaredBody> {
        let (declared, at) = document.resolve(at, faults)?;
        let Some(kinds) = declared["content"].as_object() else {
            faults.add(&at, "is a body without `content`");
            return None;
        };
        let at_content = below(&at, "content");
        let of_forms = kinds.values().filter_map(|declared| declared["encoding"].as_object());
        if !schemas.count_contents(kinds.len() + of_forms.map(Map::len).sum::<usize>(), &at_content, faults) {
            return None;
        }
        if kinds.keys().any(|kind| kind.len() > MOST_MEDIA_TYPE) {
            faults.add(&at_content, format!("has a media type of more than {MOST_MEDIA_TYPE} bytes"));
            return None;
        }
        let read = |(kind, declared): (&String, &Value)| {
            let schema_at = below(&below(&at_content, kind), "schema");
            let schema = document.at(&schema_at).map(|_| schemas.add(&schema_at, faults));
            let media_type = essence(kind);
            // JSON says itself what its texts are.
            let shape = schema.filter(|_| !is_json(&media_type));
            let shape = shape.map(|number| schemas.shape(number, faults)).unwrap_or_default();
            let fields = fields(&shape, &declared["encoding"], &mut |shape| schemas.count_shape(shape, faults));
            DeclaredContent { media_type, schema, shape, fields }
        };
        Some(DeclaredBody { required: declared["required"] == true, content: kinds.iter().map(read).collect() })
    }

    /// The content of a media type: of this type, of its range, of any.
    fn of_type(&self, media_type: &str) -> Option<&DeclaredContent> {
        let range = media_type.split('/').next().unwrap_or_default();
        [media_type, &format!("{range}/*"), "*/*"]
            .iter()
            .find_map(|wanted| self.content.iter().find(|content| content.media_type == *wanted))
    }

    /// Whether content of this type has to be read to be judged.
    pub(super) fn is_read(&self, media_type: &str) -> bool {
        let media_type = essence(media_type);
        let is_known = is_json(&media_type) || is_form(&media_type) || is_text(&media_type);
        is_known && self.of_type(&media_type).is_some_and(|content| content.schema.is_some())
    }

    /// Checks that content of this type is possible.
    pub(super) fn check_type(&self, media_type: Option<&str>, faults: &mut RequestFaults) {
        let possible = || self.content.iter().map(|content| content.media_type.as_str()).collect::<Vec<_>>().join(", ");
        match media_type {
            None => faults.add("body", format!("has no Content-Type; possible are {}", possible())),
            Some(media_type) if self.of_type(&essence(media_type)).is_none() => {
                faults.add("body", format!("is {}; possible are {}", quoted(media_type), possible()));
            }
            Some(_) => {}
        }
    }

    /// Checks content.
    ///
    /// # Errors
    /// If the node cannot hold it.
    pub(super) fn check(
        &self,
        media_type: &str,
        content: &[u8],
        schemas: &OasSchemas,
        reading: (&BodyBounds, IpAddr),
        faults: &mut RequestFaults,
    ) -> Result<(), Stop> {
        let media_type = essence(media_type);
        let Some(declared) = self.of_type(&media_type) else { return Ok(()) };
        let Some(number) = declared.schema else { return Ok(()) };
        let (bounds, client) = reading;
        if is_json(&media_type) {
            match bounds.read_json(content, client) {
                Ok((value, _held)) => schemas.check(number, value, "body", faults),
                Err(Fault::Problem(problem)) => faults.add("body", problem),
                Err(Fault::Stop(stop)) => return Err(stop),
            }
        } else if is_form(&media_type) {
            match bounds.hold_form(content, client) {
                Ok(_held) => {
                    schemas.check(number, declared.read_form(content, JsonReader { bounds, client }), "body", faults)
                }
                Err(Fault::Problem(problem)) => faults.add("body", problem),
                Err(Fault::Stop(stop)) => return Err(stop),
            }
        } else if is_text(&media_type) {
            let value = declared.shape.read(&String::from_utf8_lossy(content));
            check_read(&declared.shape, number, value, schemas, "body", faults);
        }
        Ok(())
    }
}

fn is_form(media_type: &str) -> bool {
    content_type::is_form(media_type.as_bytes())
}

fn is_text(media_type: &str) -> bool {
    media_type.starts_with("text/") && !content_type::is_xml(media_type.as_bytes())
}

/// The fields of a form whose `encoding` has a style.
fn fields(
    shape: &ValueShape,
    encoding: &Value,
    may_keep: &mut dyn FnMut(&ValueShape) -> bool,
) -> Vec<(String, Notation)> {
    let styled = encoding.as_object().into_iter().flatten();
    styled
        .filter_map(|(name, encoding)| {
            let style = encoding["style"].as_str().map_or(Some(ParameterStyle::Form), ParameterStyle::named)?;
            let explode = encoding["explode"].as_bool().unwrap_or(style == ParameterStyle::Form);
            let is_styled = encoding.get("style").or(encoding.get("explode")).is_some();
            let shape =
                shape.of_property(name).filter(|shape| is_styled && may_keep(shape)).cloned().unwrap_or_default();
            is_styled.then(|| (name.clone(), Notation { style, explode, shape }))
        })
        .collect()
}

impl DeclaredContent {
    /// The value of a form: its fields by the shapes of the properties, others as texts.
    fn read_form(&self, content: &[u8], json: JsonReader<'_>) -> Value {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let pairs: TextPairs = form::pairs(content).map(|(name, value)| (text(&name), text(&value))).collect();
        let mut object = Map::new();
        for (name, notation) in &self.fields {
            match notation.of_pairs(name, &pairs, &[]) {
                Some(Ok(value)) => _ = object.insert(name.clone(), value),
                // As a text it does not fit, which is told.
                Some(Err(_)) => _ = object.insert(name.clone(), Value::Null),
                None => {}
            }
        }
        let is_styled = |name: &str| {
            self.fields.iter().any(|(styled, notation)| match notation.style {
                ParameterStyle::DeepObject => name.starts_with(&format!("{styled}[")),
                _ => styled == name,
            })
        };
        for (name, value) in pairs.iter().filter(|(name, _)| !is_styled(name)) {
            self.add_field(&mut object, (name, value), json);
        }
        Value::Object(object)
    }

    fn add_field(&self, object: &mut Map<String, Value>, (name, text): (&str, &str), json: JsonReader<'_>) {
        let any = ValueShape::default();
        let shape = self.shape.of_property(name).unwrap_or(&any);
        let is_list = shape.is_only(super::shape::ARRAY);
        let shape = if is_list { shape.of_item() } else { shape };
        let value = match shape.is_only(OBJECT).then(|| json.read(text)) {
            // Objects in a form are JSON by default. What is none stays a text, which does not fit.
            Some(Ok(value)) => value,
            _ => shape.read(text),
        };
        match object.get_mut(name) {
            Some(Value::Array(items)) => items.push(value),
            Some(first) => *first = Value::Array(vec![first.take(), value]),
            None if is_list => _ = object.insert(name.to_owned(), Value::Array(vec![value])),
            None => _ = object.insert(name.to_owned(), value),
        }
    }
}
