//! The cost of each policy of a row: rows with all policies but this one, and rows with only this one.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Scenario, ScenarioError, ScenarioRow};

/// Two rows that differ in one plugin. Their difference is the cost of the plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ablation {
    /// The name of the plugin.
    pub policy: String,
    /// The name of the row with the plugin.
    pub with: String,
    /// The name of the row without the plugin.
    pub without: String,
}

/// The name of a row without policies, after the name of the original row and a colon.
pub const NO_POLICY: &str = "no policy";

impl Scenario {
    /// The scenario with the rows needed to compute the cost of each policy: for every row with policies, the same row
    /// without any, with each alone, and with all but each. Rows that exist already are not added again.
    pub fn ablated(mut self) -> Result<Scenario, ScenarioError> {
        let rows: Vec<ScenarioRow> = self.rows.iter().filter(|row| !row.policies.is_empty()).cloned().collect();
        if rows.is_empty() {
            return Err(ScenarioError::NoPolicies);
        }
        for row in rows {
            let bare = self.variation(&row, NO_POLICY, BTreeMap::new());
            for (policy, options) in &row.policies {
                let only = BTreeMap::from([(policy.clone(), options.clone())]);
                let alone = self.variation(&row, &format!("{policy} alone"), only);
                self.compare(policy, alone, bare.clone());
                if row.policies.len() > 1 {
                    let mut others = row.policies.clone();
                    others.remove(policy);
                    let without = self.variation(&row, &format!("without {policy}"), others);
                    self.compare(policy, row.name.clone(), without);
                }
            }
        }
        Ok(self)
    }

    /// Whether `--ablation` added this row.
    pub fn is_variation(&self, row: &ScenarioRow) -> bool {
        let of = |other: &ScenarioRow| row.name.strip_prefix(&other.name).is_some_and(|rest| rest.starts_with(": "));
        let compared = |one: &Ablation| one.with == row.name || one.without == row.name;
        self.ablations.iter().any(compared) && self.rows.iter().any(of)
    }

    fn compare(&mut self, policy: &str, with: String, without: String) {
        let one = Ablation { policy: policy.to_owned(), with, without };
        if !self.ablations.contains(&one) {
            self.ablations.push(one);
        }
    }

    /// The name of the row that equals `row` with these policies; added if it does not exist.
    fn variation(&mut self, row: &ScenarioRow, what: &str, policies: BTreeMap<String, Value>) -> String {
        // Consumers without an auth policy would be a different workload, which some targets refuse.
        let known = policies.keys().any(|policy| policy.ends_with("-auth"));
        let wanted = ScenarioRow {
            name: format!("{}: {what}", row.name),
            policies,
            consumers: if known { row.consumers } else { 0 },
            compare_with: None,
            published: Vec::new(),
            ..row.clone()
        };
        if let Some(same) = self.rows.iter().find(|have| workload(have) == workload(&wanted)) {
            return same.name.clone();
        }
        let name = wanted.name.clone();
        self.rows.push(wanted);
        name
    }
}

/// The workload of a row, without its name and the rows it is compared with.
fn workload(row: &ScenarioRow) -> Value {
    let bare = ScenarioRow { name: String::new(), compare_with: None, published: Vec::new(), ..row.clone() };
    serde_json::to_value(bare).expect("a row has string keys and finite numbers")
}

#[cfg(test)]
mod tests {
    use crate::scenario;

    #[test]
    fn each_policy_is_alone_and_left_out_once() {
        let text = "{name: a, title: A, about: b, targets: [none], baseline: none, connections: [1], rows: [
            {name: get}, {name: all, consumers: 1, policies: {cors: {}, gzip: {}, key-auth: {}}},
            {name: key, consumers: 1, policies: {key-auth: {}}, compare_with: get}]}";
        let scenario = scenario::parse("a.yaml", text).unwrap().ablated().unwrap();
        let names: Vec<&str> = scenario.rows.iter().map(|row| row.name.as_str()).collect();
        let added =
            ["all: cors alone", "all: without cors", "all: gzip alone", "all: without gzip", "all: without key-auth"];
        assert_eq!(names, [&["get", "all", "key"][..], &added].concat(), "get and key are there already");
        let made: Vec<bool> = scenario.rows.iter().map(|row| scenario.is_variation(row)).collect();
        assert_eq!(made, [false, false, false, true, true, true, true, true]);
        let pairs: Vec<[&str; 3]> =
            scenario.ablations.iter().map(|one| [&one.policy, &one.with, &one.without].map(String::as_str)).collect();
        assert_eq!(pairs.len(), 6, "{pairs:?}");
        assert!(
            pairs.contains(&["key-auth", "key", "get"])
                && pairs.contains(&["key-auth", "all", "all: without key-auth"])
        );
        assert!(pairs.contains(&["cors", "all: cors alone", "get"]));
        assert_eq!(scenario.row("all: cors alone").unwrap().consumers, 0);
        assert_eq!(scenario.row("all: without cors").unwrap().consumers, 1);
    }

    #[test]
    fn a_publication_that_has_all_the_rows_gets_no_more() {
        let scenario = scenario::read("api7").unwrap();
        let rows = scenario.rows.len();
        let ablated = scenario.ablated().unwrap();
        assert_eq!(ablated.rows.len(), rows);
        assert!(ablated.ablations.iter().any(|one| one.policy == "limit-count" && one.with.starts_with("key-auth + ")));
    }

    #[test]
    fn rows_without_policies_have_nothing_to_switch_off() {
        assert!(scenario::read("gwlb").unwrap().ablated().unwrap_err().to_string().contains("no row has policies"));
    }
}
