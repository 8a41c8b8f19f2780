//! How parameters are written in requests (OpenAPI "Style Values"), and what they are then.

use serde_json::Value;

use super::shape::{ARRAY, OBJECT, ValueShape};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParameterStyle {
    Simple,
    Label,
    Matrix,
    Form,
    SpaceDelimited,
    PipeDelimited,
    DeepObject,
}

impl ParameterStyle {
    pub(super) fn named(name: &str) -> Option<ParameterStyle> {
        Some(match name {
            "simple" => ParameterStyle::Simple,
            "label" => ParameterStyle::Label,
            "matrix" => ParameterStyle::Matrix,
            "form" => ParameterStyle::Form,
            "spaceDelimited" => ParameterStyle::SpaceDelimited,
            "pipeDelimited" => ParameterStyle::PipeDelimited,
            "deepObject" => ParameterStyle::DeepObject,
            _ => return None,
        })
    }

    fn delimiter(self) -> char {
        match self {
            ParameterStyle::SpaceDelimited => ' ',
            ParameterStyle::PipeDelimited => '|',
            _ => ',',
        }
    }
}

/// How one parameter is written.
#[derive(Clone, Debug)]
pub(super) struct Notation {
    pub style: ParameterStyle,
    pub explode: bool,
    pub shape: ValueShape,
}

/// Names and values of a query, a form or cookies, decoded.
pub(super) type TextPairs = Vec<(String, String)>;

/// Items of one text, as pairs: `role,admin,first,Alex`.
fn alternating<'a>(items: &[&'a str]) -> Result<Vec<(&'a str, &'a str)>, String> {
    if !items.len().is_multiple_of(2) {
        return Err("is not a list of names and values".to_owned());
    }
    Ok(items.chunks(2).map(|pair| (pair[0], pair[1])).collect())
}

/// `role=admin`
fn named<'a>(items: impl Iterator<Item = &'a str>) -> Result<Vec<(&'a str, &'a str)>, String> {
    items.map(|item| item.split_once('=').ok_or_else(|| "is not a list of NAME=VALUE".to_owned())).collect()
}

impl Notation {
    fn is_list(&self) -> bool {
        self.shape.is_only(ARRAY)
    }

    fn is_object(&self) -> bool {
        self.shape.is_only(OBJECT)
    }

    /// The value of one text whose items are delimited.
    fn of_delimited(&self, text: &str, delimiter: char, explode: bool) -> Result<Value, String> {
        let items: Vec<&str> = if text.is_empty() { Vec::new() } else { text.split(delimiter).collect() };
        if self.is_object() {
            let pairs = if explode { named(items.into_iter())? } else { alternating(&items)? };
            self.shape.read_object(pairs)
        } else if self.is_list() || (self.shape.has(ARRAY) && items.len() > 1) {
            Ok(self.shape.read_list(items))
        } else {
            Ok(self.shape.read(text))
        }
    }

    /// The value of a path segment, or of the part of one that a parameter stands for, decoded.
    ///
    /// # Errors
    /// If it is not written in this style.
    pub(super) fn of_segment(&self, name: &str, text: &str) -> Result<Value, String> {
        match self.style {
            ParameterStyle::Label => {
                let rest = text.strip_prefix('.').ok_or("does not begin with `.` (style label)")?;
                self.of_delimited(rest, if self.explode { '.' } else { ',' }, self.explode)
            }
            ParameterStyle::Matrix => self.of_matrix(name, text),
            _ => self.of_delimited(text, ',', self.explode),
        }
    }

    fn of_matrix(&self, name: &str, text: &str) -> Result<Value, String> {
        let wrong = || format!("is not written as `;{name}=VALUE` (style matrix)");
        let rest = text.strip_prefix(';').ok_or_else(wrong)?;
        if self.explode && self.is_object() {
            return self.shape.read_object(named(rest.split(';'))?);
        }
        let value_of = |part: &'_ str| -> Option<usize> {
            let after = part.strip_prefix(name)?;
            (after.is_empty() || after.starts_with('='))
                .then(|| part.len() - after.strip_prefix('=').unwrap_or("").len())
        };
        if self.explode && self.is_list() {
            let items: Option<Vec<&str>> = rest.split(';').map(|part| value_of(part).map(|at| &part[at..])).collect();
            return Ok(self.shape.read_list(items.ok_or_else(wrong)?));
        }
        let at = value_of(rest).ok_or_else(wrong)?;
        self.of_delimited(&rest[at..], ',', false)
    }

    /// The value of a header field or a cookie.
    ///
    /// # Errors
    /// If it is not written in this style.
    pub(super) fn of_text(&self, text: &str) -> Result<Value, String> {
        if self.is_list() {
            return Ok(self.shape.read_list(text.split(',').map(str::trim)));
        }
        self.of_delimited(text, ',', self.explode && self.style == ParameterStyle::Simple)
    }

    /// The value in a query or a form; `None` if it is not there. `declared` are the names of other parameters, which are no
    /// properties of an object without named ones.
    ///
    /// # Errors
    /// If it is not written in this style.
    pub(super) fn of_pairs(&self, name: &str, pairs: &TextPairs, declared: &[String]) -> Option<Result<Value, String>> {
        if self.style == ParameterStyle::DeepObject {
            return self.of_deep_object(name, pairs);
        }
        if self.explode && self.is_object() && self.style == ParameterStyle::Form {
            return self.of_spread_object(pairs, declared);
        }
        let mut values = pairs.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str());
        let first = values.next()?;
        let more: Vec<&str> = values.collect();
        if self.explode && (self.is_list() || (self.shape.has(ARRAY) && !more.is_empty())) {
            return Some(Ok(self.shape.read_list(std::iter::once(first).chain(more))));
        }
        if !more.is_empty() {
            return Some(Err(format!("is there {} times, and takes one value", more.len() + 1)));
        }
        if self.explode && !self.is_object() {
            return Some(Ok(self.shape.read(first)));
        }
        Some(self.of_delimited(first, self.style.delimiter(), false))
    }

    /// `role=admin&first=Alex`: each property is an argument of its own.
    fn of_spread_object(&self, pairs: &TextPairs, declared: &[String]) -> Option<Result<Value, String>> {
        let shape = &self.shape;
        let is_its = |name: &str| match shape.properties.is_empty() {
            true => !declared.iter().any(|other| other == name),
            false => shape.properties.iter().any(|(known, _)| known == name),
        };
        let its: Vec<_> = pairs.iter().filter(|(name, _)| is_its(name)).collect();
        let value = self.shape.read_object(its.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        (!its.is_empty()).then_some(value)
    }

    /// `id[role]=admin&id[tags]=a&id[tags]=b`
    fn of_deep_object(&self, name: &str, pairs: &TextPairs) -> Option<Result<Value, String>> {
        let mut object = serde_json::Map::new();
        for (written, text) in pairs {
            let Some(inner) = written.strip_prefix(name).and_then(|rest| rest.strip_prefix('[')) else { continue };
            let Some(property) = inner.strip_suffix(']').filter(|inner| !inner.contains(['[', ']'])) else {
                return Some(Err("is nested deeper than one level, for which deepObject has no form".to_owned()));
            };
            let shape = self.shape.of_property(property).cloned().unwrap_or_default();
            let is_list = shape.is_only(ARRAY);
            let value = if is_list { shape.of_item().read(text) } else { shape.read(text) };
            match object.get_mut(property) {
                Some(Value::Array(items)) if is_list => items.push(value),
                Some(_) => return Some(Err(format!("has `{}` twice", crate::content::quoted(property)))),
                None if is_list => _ = object.insert(property.to_owned(), Value::Array(vec![value])),
                None => _ = object.insert(property.to_owned(), value),
            }
        }
        (!object.is_empty()).then_some(Ok(Value::Object(object)))
    }
}
