//! The conditions of a status.

use serde_json::{Value, json};

use crate::objects::meta::StatusCondition;

/// Longer messages are cut; the API server refuses those above 32 KiB.
const LONGEST_MESSAGE: usize = 1_024;

/// Why something is not as its author wants it: a reason as the Gateway API names it, and a message for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub reason: &'static str,
    pub message: String,
}

impl Problem {
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> Problem {
        Problem { reason, message: message.into() }
    }
}

/// Conditions that are being set.
pub(super) struct StatusConditions<'a> {
    /// Those that the object has.
    before: &'a [StatusCondition],
    generation: i64,
    list: Vec<StatusCondition>,
}

impl<'a> StatusConditions<'a> {
    pub(super) fn new(before: &'a [StatusCondition], generation: i64) -> StatusConditions<'a> {
        StatusConditions { before, generation, list: Vec::new() }
    }

    /// Sets a condition. The time of the last transition is that of the object if the status is the same, and otherwise left to
    /// the writer.
    pub(super) fn set(&mut self, kind: &str, status: bool, reason: &str, message: &str) {
        let status = if status { "True" } else { "False" };
        let same = self.before.iter().find(|known| known.kind == kind && known.status == status);
        let mut message = message.to_owned();
        message.truncate(message.floor_char_boundary(LONGEST_MESSAGE));
        self.list.push(StatusCondition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            observed_generation: self.generation,
            last_transition_time: same.map(|known| known.last_transition_time.clone()).unwrap_or_default(),
            reason: reason.to_owned(),
            message,
        });
    }

    /// Sets a condition that is true without a problem, with the name of the condition as the reason, as the Gateway API has it.
    pub(super) fn set_result(&mut self, kind: &str, problem: Option<&Problem>) {
        match problem {
            None => self.set(kind, true, kind, ""),
            Some(problem) => self.set(kind, false, problem.reason, &problem.message),
        }
    }

    pub(super) fn into_value(self) -> Value {
        json!(self.list)
    }
}

/// The entries of a status with ours in place of those that we had, so that two controllers agree on the order: those of others stay
/// where they are, and new ones come last.
pub(super) fn with_own(
    before: Vec<Value>,
    mut own: Vec<Value>,
    is_own: impl Fn(&Value) -> bool,
    reference: &str,
) -> Vec<Value> {
    let mut entries = Vec::with_capacity(before.len() + own.len());
    for entry in before {
        if !is_own(&entry) {
            entries.push(entry);
        } else if let Some(index) = own.iter().position(|new| new[reference] == entry[reference]) {
            entries.push(own.remove(index));
        }
    }
    entries.extend(own);
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_transition_is_kept_while_the_status_is_the_same() {
        let before = [StatusCondition {
            kind: "Accepted".to_owned(),
            status: "True".to_owned(),
            last_transition_time: "2026-01-01T00:00:00Z".to_owned(),
            ..StatusCondition::default()
        }];
        let time = |problem: Option<&Problem>| {
            let mut conditions = StatusConditions::new(&before, 2);
            conditions.set_result("Accepted", problem);
            conditions.into_value()[0]["lastTransitionTime"].clone()
        };
        assert_eq!(time(None), "2026-01-01T00:00:00Z");
        assert_eq!(time(Some(&Problem::new("Invalid", "no"))), Value::Null);
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let mut conditions = StatusConditions::new(&[], 1);
        conditions.set("Accepted", false, "Invalid", &"é".repeat(1_000));
        assert_eq!(conditions.into_value()[0]["message"].as_str().map(str::len), Some(1_024));
    }
}
