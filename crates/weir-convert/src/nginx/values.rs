//! Header fields with their values, in the order of the file.

use crate::yaml::Yaml;

/// Fields; one that is written several times has several values.
#[derive(Default)]
pub(super) struct FieldValues(Vec<(String, Vec<String>)>);

impl FieldValues {
    pub(super) fn add(&mut self, name: &str, value: &str) {
        match self.0.iter_mut().find(|(known, _)| known.eq_ignore_ascii_case(name)) {
            Some((_, values)) => values.push(value.to_owned()),
            None => self.0.push((name.to_owned(), vec![value.to_owned()])),
        }
    }

    /// The same in place of earlier values.
    pub(super) fn replace(&mut self, name: &str, value: &str) {
        self.remove(name);
        self.add(name, value);
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.0.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known.eq_ignore_ascii_case(name))
    }

    /// A map with a text for each field, or a list of texts.
    pub(super) fn yaml(self) -> Yaml {
        let value = |values: Vec<String>| match values.as_slice() {
            [value] => Yaml::text(value),
            values => Yaml::texts(values),
        };
        Yaml::Map(self.0.into_iter().map(|(name, values)| (name, value(values))).collect())
    }
}

/// Fields that frame messages or describe connections, in lower case.
const OF_CONNECTIONS: [&str; 8] =
    ["content-length", "transfer-encoding", "connection", "keep-alive", "proxy-connection", "te", "trailer", "upgrade"];

/// Why a field cannot be changed.
pub(super) const NOT_EDITABLE: &str = "the gateway writes this field itself, or its name is not valid";

/// Whether plugins can change a field of this name.
pub(super) fn is_editable(name: &str) -> bool {
    let is_token = |char: char| char.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(char);
    !name.is_empty() && name.chars().all(is_token) && !OF_CONNECTIONS.contains(&name.to_ascii_lowercase().as_str())
}
