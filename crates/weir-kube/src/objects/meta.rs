//! What all objects have, and the parts that several kinds share.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ObjectMeta {
    pub name: String,
    pub namespace: String,
    /// Tells the object from others that had its name. Those who cannot read the object cannot guess it.
    pub uid: Box<str>,
    /// Counts the changes of the specification.
    pub generation: i64,
    /// RFC 3339 in UTC, in whole seconds: as text it sorts by time.
    pub creation_timestamp: String,
    pub deletion_timestamp: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

/// A value that is kept as its text, which takes a fraction of the memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JsonText(Option<Box<str>>);

impl JsonText {
    /// The value; `null` if there is none.
    pub fn value(&self) -> Value {
        self.0.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }
}

impl From<&Value> for JsonText {
    fn from(value: &Value) -> JsonText {
        JsonText((!value.is_null()).then(|| value.to_string().into()))
    }
}

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<JsonText, D::Error> {
        Value::deserialize(deserializer).map(|value| JsonText::from(&value))
    }
}

/// A condition in a status. `lastTransitionTime` is empty until the writer of the status sets it: the translation has no clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StatusCondition {
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    pub observed_generation: i64,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_transition_time: String,
    pub reason: String,
    pub message: String,
}

/// A reference to an object. What is not stated has a default that depends on the field.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ObjectReference {
    /// `apiGroup` in objects of `networking.k8s.io`.
    #[serde(skip_serializing_if = "Option::is_none", alias = "apiGroup")]
    pub group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
    /// Only of backends and parents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Only of parents: the name of a listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
}

/// Selects objects by their labels. An empty one selects all.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LabelSelector {
    pub match_labels: BTreeMap<String, String>,
    pub match_expressions: Vec<LabelRequirement>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LabelRequirement {
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    pub values: Vec<String>,
}

impl LabelSelector {
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| requirement.matches(labels))
    }
}

impl LabelRequirement {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        match self.operator.as_str() {
            "In" => value.is_some_and(|value| self.values.contains(value)),
            "NotIn" => value.is_none_or(|value| !self.values.contains(value)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            // The API server accepts no other operator.
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    fn selector(value: serde_json::Value) -> LabelSelector {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_selector_holds_if_all_its_requirements_do() {
        let selector = selector(serde_json::json!({
            "matchLabels": { "team": "a" },
            "matchExpressions": [
                { "key": "stage", "operator": "NotIn", "values": ["test"] },
                { "key": "open", "operator": "Exists" },
                { "key": "old", "operator": "DoesNotExist" },
            ],
        }));
        assert!(selector.matches(&labels(&[("team", "a"), ("open", "")])));
        assert!(!selector.matches(&labels(&[("team", "a")])));
        assert!(!selector.matches(&labels(&[("team", "a"), ("open", ""), ("stage", "test")])));
        assert!(!selector.matches(&labels(&[("team", "a"), ("open", ""), ("old", "")])));
    }

    #[test]
    fn an_empty_selector_selects_all() {
        assert!(LabelSelector::default().matches(&labels(&[])));
    }
}
