//! Forms that have a reader of their own, and keys that are known only to be refused.

use std::convert::Infallible;

use serde_json::{Map, Value, json};

use super::{Kind, members};
use crate::keys::schema::Definitions;
use crate::keys::{KeyTable, MapKeys};
use crate::text::read::NodeReader;
use crate::text::tree::NodeKind;

/// A value of several forms, or of a form that no other kind has.
pub struct Custom<T> {
    form: &'static str,
    schema: fn(&mut Definitions) -> Value,
    read: fn(&NodeReader) -> Option<T>,
    inner: Option<&'static dyn MapKeys>,
}

/// `form` is for the reference.
pub const fn custom<T>(
    form: &'static str,
    schema: fn(&mut Definitions) -> Value,
    read: fn(&NodeReader) -> Option<T>,
) -> Custom<T> {
    Custom { form, schema, read, inner: None }
}

impl<T> Custom<T> {
    /// One of the forms is a map with these keys, or a list of such maps.
    pub const fn with(mut self, keys: &'static dyn MapKeys) -> Custom<T> {
        self.inner = Some(keys);
        self
    }
}

impl<T> Kind for Custom<T> {
    type Value = T;

    fn read(&self, at: &NodeReader) -> Option<T> {
        (self.read)(at)
    }

    fn schema(&self, definitions: &mut Definitions) -> Map<String, Value> {
        members((self.schema)(definitions))
    }

    fn form(&self) -> String {
        self.form.to_owned()
    }

    fn inner(&self) -> Option<&'static KeyTable> {
        self.inner.map(MapKeys::table)
    }
}

/// A value that is read with what other keys say.
pub type Form = Custom<Infallible>;

pub const fn form(form: &'static str, schema: fn(&mut Definitions) -> Value) -> Form {
    custom(form, schema, |_| None)
}

/// Any value, which has no effect.
pub struct Anything;

pub const fn anything() -> Anything {
    Anything
}

impl Kind for Anything {
    type Value = ();

    fn read(&self, _: &NodeReader) -> Option<()> {
        Some(())
    }

    fn schema(&self, _: &mut Definitions) -> Map<String, Value> {
        Map::new()
    }

    fn form(&self) -> String {
        "anything".to_owned()
    }
}

/// A value that is known to be refused: a feature of APISIX that is not here.
pub struct RefusedKey {
    problem: &'static str,
    advice: &'static str,
    /// The advice for a text, where it depends on the text.
    advise: fn(&str) -> Option<String>,
}

pub const fn refused(problem: &'static str, advice: &'static str) -> RefusedKey {
    RefusedKey { problem, advice, advise: |_| None }
}

impl RefusedKey {
    #[must_use]
    pub const fn advising(self, advise: fn(&str) -> Option<String>) -> RefusedKey {
        RefusedKey { advise, ..self }
    }

    /// Reports that there is such a key.
    pub(in crate::keys) fn report(&self, at: &NodeReader) {
        let advice = match &at.node().kind {
            NodeKind::Text(text) => (self.advise)(text),
            _ => None,
        };
        at.report_advising(self.problem, advice.unwrap_or_else(|| self.advice.to_owned()));
    }
}

impl Kind for RefusedKey {
    type Value = ();

    fn read(&self, at: &NodeReader) -> Option<()> {
        self.report(at);
        None
    }

    fn schema(&self, _: &mut Definitions) -> Map<String, Value> {
        members(json!({ "not": {} }))
    }

    fn form(&self) -> String {
        "refused".to_owned()
    }

    fn refusal(&self) -> Option<&RefusedKey> {
        Some(self)
    }
}
