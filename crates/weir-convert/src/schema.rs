//! Converts schemas of OpenAPI and AsyncAPI to self-contained JSON Schemas.

use crate::conversion::DocumentConversion;
use crate::document::{DocumentValue, ValueKind};
use crate::yaml::{Yaml, YamlMembers};

/// Converts a schema of what clients send.
pub(crate) struct RequestSchema<'a, 'b> {
    conversion: &'a mut DocumentConversion<'b>,
    /// Whether this is OpenAPI 3.0, whose schemas differ from JSON Schema.
    is_older: bool,
    /// Pointers to other schemas, and their names in `definitions`: first those converted already, then the pending ones.
    references: Vec<(String, String)>,
}

/// Annotations, which have no effect on validation.
const LEFT_OUT: [&str; 14] = [
    "title",
    "description",
    "summary",
    "example",
    "examples",
    "default",
    "deprecated",
    "discriminator",
    "xml",
    "externalDocs",
    "readOnly",
    "writeOnly",
    "nullable",
    "$comment",
];

/// Members that are maps of schemas.
const MAPS: [&str; 4] = ["properties", "patternProperties", "dependentSchemas", "$defs"];

/// Members that are a schema or a list of schemas.
const SCHEMAS: [&str; 15] = [
    "items",
    "prefixItems",
    "additionalProperties",
    "unevaluatedProperties",
    "unevaluatedItems",
    "propertyNames",
    "contains",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "definitions",
];

impl<'a, 'b> RequestSchema<'a, 'b> {
    pub(crate) fn new(conversion: &'a mut DocumentConversion<'b>) -> RequestSchema<'a, 'b> {
        let is_older = conversion.root.text("openapi").is_some_and(|version| version.starts_with("3.0"));
        RequestSchema { conversion, is_older, references: Vec::new() }
    }

    /// Converts a schema, with the schemas that it refers to under `definitions`.
    ///
    /// # Errors
    /// If it refers to something outside of the document.
    pub(crate) fn convert(self, schema: &DocumentValue) -> Result<Yaml, String> {
        self.convert_any(&[schema])
    }

    /// A schema that matches what any of these matches.
    ///
    /// # Errors
    /// If one of them refers to something outside of the document.
    pub(crate) fn convert_any(mut self, schemas: &[&DocumentValue]) -> Result<Yaml, String> {
        let mut converted = schemas.iter().map(|schema| self.schema(schema)).collect::<Result<Vec<_>, _>>()?;
        let mut members = match (converted.len(), converted.pop()) {
            (1, Some(Yaml::Map(members))) => members,
            (1, Some(other)) => return Ok(other),
            (_, last) => vec![("anyOf".to_owned(), Yaml::List(converted.into_iter().chain(last).collect()))],
        };
        if !self.is_older && self.conversion.root.text("openapi").is_some() {
            members.insert(0, ("$schema".to_owned(), Yaml::text("https://json-schema.org/draft/2020-12/schema")));
        }
        let mut definitions = YamlMembers::new();
        while let Some((pointer, name)) = self.references.get(definitions.len()).cloned() {
            let root = self.conversion.root;
            let target = root.at_pointer(&pointer).ok_or_else(|| format!("`{pointer}` is not in this document"))?;
            definitions.push((name, self.schema(target)?));
        }
        if !definitions.is_empty() {
            members.push(("definitions".to_owned(), Yaml::Map(definitions)));
        }
        Ok(Yaml::Map(members))
    }

    fn schema(&mut self, schema: &DocumentValue) -> Result<Yaml, String> {
        let ValueKind::Map(members) = &schema.kind else { return Ok(schema.to_yaml()) };
        if let Some(pointer) = schema.text("$ref") {
            let reference = self.reference(pointer)?;
            if self.is_older || members.len() == 1 {
                return Ok(Yaml::Map(vec![reference]));
            }
        }
        let mut out = YamlMembers::new();
        for (name, value) in members {
            if LEFT_OUT.contains(&name.as_str()) || name.starts_with("x-") {
                continue;
            }
            if let Some(value) = self.member(schema, name, value)? {
                out.push((name.clone(), value));
            }
        }
        if self.is_older {
            exclusive_bounds(schema, &mut out);
            if schema.is_true("nullable", false) {
                return Ok(nullable(out));
            }
        }
        Ok(Yaml::Map(out))
    }

    fn member(&mut self, schema: &DocumentValue, name: &str, value: &DocumentValue) -> Result<Option<Yaml>, String> {
        Ok(Some(match name {
            "$ref" => self.reference(value.as_text().unwrap_or_default())?.1,
            "required" => match self.required(schema, value) {
                names if names.is_empty() => return Ok(None),
                names => Yaml::texts(names),
            },
            "pattern" if value.as_text().is_some_and(has_look_around) => {
                self.conversion.lost(value, "a pattern with look-around is not supported; it is left out");
                return Ok(None);
            }
            _ if MAPS.contains(&name) => {
                let schemas = value.members().iter();
                let schemas = schemas.map(|(name, value)| Ok((name.clone(), self.schema(value)?)));
                Yaml::Map(schemas.collect::<Result<_, String>>()?)
            }
            _ if SCHEMAS.contains(&name) => match &value.kind {
                ValueKind::List(items) => {
                    Yaml::List(items.iter().map(|item| self.schema(item)).collect::<Result<_, _>>()?)
                }
                _ => self.schema(value)?,
            },
            _ => value.to_yaml(),
        }))
    }

    /// The required properties, without those that only responses have.
    fn required(&self, schema: &DocumentValue, names: &DocumentValue) -> Vec<String> {
        let is_sent = |name: &&str| {
            let property = schema.get("properties").and_then(|properties| properties.get(name));
            let target = property.and_then(|property| property.text("$ref"));
            let property = target.map_or(property, |pointer| self.conversion.root.at_pointer(pointer));
            !property.is_some_and(|property| property.is_true("readOnly", false))
        };
        names.items().iter().filter_map(DocumentValue::as_text).filter(is_sent).map(str::to_owned).collect()
    }

    fn reference(&mut self, pointer: &str) -> Result<(String, Yaml), String> {
        if self.conversion.root.at_pointer(pointer).is_none() {
            return Err(format!("`{pointer}` is not in this document"));
        }
        let known = self.references.iter().find(|(known, _)| known == pointer).map(|(_, name)| name.clone());
        let name = known.unwrap_or_else(|| {
            let last = pointer.rsplit('/').next().unwrap_or_default();
            let name = last.replace(|char: char| !char.is_ascii_alphanumeric() && !"-_.".contains(char), "_");
            let is_taken = self.references.iter().any(|(_, known)| *known == name);
            let name = if is_taken { format!("{name}-{}", self.references.len() + 1) } else { name };
            self.references.push((pointer.to_owned(), name.clone()));
            name
        });
        Ok(("$ref".to_owned(), Yaml::text(format!("#/definitions/{name}"))))
    }
}

/// Converts exclusive bounds, which OpenAPI 3.0 marks by a boolean member.
fn exclusive_bounds(schema: &DocumentValue, out: &mut YamlMembers) {
    for (bound, exclusive) in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")] {
        let Some(flag) = schema.text(exclusive).filter(|flag| ["true", "false"].contains(flag)) else { continue };
        let value = out.iter().find(|(name, _)| name == bound).map(|(_, value)| value.clone());
        out.retain(|(name, _)| name != exclusive && (flag == "false" || name != bound));
        if flag == "true" {
            out.extend(value.map(|value| (exclusive.to_owned(), value)));
        }
    }
}

/// The schema, extended by null.
fn nullable(mut members: YamlMembers) -> Yaml {
    if let Some((_, Yaml::List(values))) = members.iter_mut().find(|(name, _)| name == "enum")
        && !values.contains(&Yaml::Null)
    {
        values.push(Yaml::Null);
    }
    match members.iter_mut().find(|(name, _)| name == "type") {
        Some((_, kind)) => {
            *kind = Yaml::List(vec![kind.clone(), Yaml::text("null")]);
            Yaml::Map(members)
        }
        None => Yaml::map([("anyOf", Yaml::List(vec![Yaml::Map(members), Yaml::map([("type", Yaml::text("null"))])]))]),
    }
}

fn has_look_around(pattern: &str) -> bool {
    ["(?=", "(?!", "(?<=", "(?<!"].iter().any(|part| pattern.contains(part))
}
