//! What is told of an object in its status.

use serde_json::{Map, Value, json};

use super::super::conditions::StatusConditions;
use crate::objects::meta::{ObjectMeta, StatusCondition};
use crate::objects::{KubeObject, ObjectRef};
use crate::translation::ObjectStatus;

/// The most problems that a message has.
const MOST_PROBLEMS: usize = 8;

/// Why a part of an object is not served as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ApisixProblem {
    /// The object itself says something that cannot be served.
    Spec(String),
    /// What it refers to is missing, or cannot be used.
    Reference(String),
    /// An older object has the same.
    Conflict(String),
}

impl ApisixProblem {
    pub(super) fn text(&self) -> &str {
        match self {
            ApisixProblem::Spec(text) | ApisixProblem::Reference(text) | ApisixProblem::Conflict(text) => text,
        }
    }

    /// The same problem at a place of the object.
    pub(super) fn at(self, place: &str) -> ApisixProblem {
        let with = |text: String| format!("{place}: {text}");
        match self {
            ApisixProblem::Spec(text) => ApisixProblem::Spec(with(text)),
            ApisixProblem::Reference(text) => ApisixProblem::Reference(with(text)),
            ApisixProblem::Conflict(text) => ApisixProblem::Conflict(with(text)),
        }
    }
}

/// What was found out about an object.
#[derive(Default)]
pub(super) struct ApisixOutcome(Vec<ApisixProblem>);

impl ApisixOutcome {
    pub(super) fn add(&mut self, problem: ApisixProblem) {
        self.0.push(problem);
    }

    /// The status of the object. Conditions of other types stay as they are.
    pub(super) fn status<T: KubeObject>(&self, object: &T, before: &[StatusCondition]) -> ObjectStatus {
        let metadata: &ObjectMeta = object.metadata();
        let mut conditions = StatusConditions::new(before, metadata.generation);
        let conflicts = self.texts(|problem| match problem {
            ApisixProblem::Conflict(text) => Some(text),
            _ => None,
        });
        let faults = self.texts(|problem| match problem {
            ApisixProblem::Spec(text) => Some(text),
            _ => None,
        });
        match (&*faults, &*conflicts) {
            ("", "") => conditions.set("Accepted", true, "Accepted", ""),
            ("", conflicts) => conditions.set("Accepted", false, "Conflicted", conflicts),
            (faults, "") => conditions.set("Accepted", false, "InvalidSpec", faults),
            (faults, conflicts) => {
                conditions.set("Accepted", false, "InvalidSpec", &format!("{faults}; {conflicts}"));
            }
        }
        let unresolved = self.texts(|problem| match problem {
            ApisixProblem::Reference(text) => Some(text),
            _ => None,
        });
        match &*unresolved {
            "" => conditions.set("ResolvedRefs", true, "ResolvedRefs", ""),
            unresolved => conditions.set("ResolvedRefs", false, "RefNotUsable", unresolved),
        }
        let mut all = conditions.into_value();
        let others = before.iter().filter(|condition| !["Accepted", "ResolvedRefs"].contains(&&*condition.kind));
        if let Value::Array(all) = &mut all {
            all.extend(others.map(|condition| json!(condition)));
        }
        ObjectStatus {
            object: ObjectRef::of(object),
            generation: metadata.generation,
            status: Value::Object(Map::from_iter([("conditions".to_owned(), all)])),
        }
    }

    fn texts<'p>(&'p self, of: impl Fn(&'p ApisixProblem) -> Option<&'p String>) -> String {
        let texts: Vec<&str> = self.0.iter().filter_map(of).map(String::as_str).collect();
        let mut joined = texts[..texts.len().min(MOST_PROBLEMS)].join("; ");
        if texts.len() > MOST_PROBLEMS {
            joined.push_str(&format!("; and {} more", texts.len() - MOST_PROBLEMS));
        }
        joined
    }
}
