//! `weir diff` and `weir apply`: make the resources of a running node equal to those in files, in one transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use http::Method;
use serde_json::{Value, json};
use weir_control::stores::resources::ResourceKey;

use super::admin_client::{AdminClient, AdminOptions};
use super::resource_files;
use super::resources::ended;
use crate::say::say;

/// Which resources, and how far.
#[derive(Debug, Args)]
pub struct WantedFiles {
    /// Files and directories with resources, in YAML or JSON; `-` is standard input.
    #[arg(short = 'f', long = "file", value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Deletes resources of the node that have this label and are not in the files.
    #[arg(long, value_name = "LABEL=VALUE")]
    prune: Option<String>,
    #[command(flatten)]
    node: AdminOptions,
}

/// Shows what `weir apply` would change. Exits with 0 if there is no difference, and with 1 if there is.
#[derive(Debug, Args)]
pub struct DiffCommand {
    #[command(flatten)]
    wanted: WantedFiles,
}

/// Writes the resources of files to a running node in one transaction: all of them, or none if there is an error.
///
/// The changes are shown first, and must be confirmed. Resources that are not in the files stay unchanged, unless `--prune`
/// selects them for deletion.
#[derive(Debug, Args)]
pub struct ApplyCommand {
    #[command(flatten)]
    wanted: WantedFiles,
    /// Applies the changes without asking for confirmation.
    #[arg(long)]
    yes: bool,
    /// A message with the reason, stored in the history.
    #[arg(short = 'm', long, value_name = "TEXT")]
    message: Option<String>,
}

/// The operations to perform, and the resulting changes as computed by the node.
struct ApplyPlan {
    operations: Vec<Value>,
    changes: Vec<Value>,
    /// The store revision that the plan is based on.
    revision: u64,
}

impl DiffCommand {
    pub fn execute(self) -> ExitCode {
        match AdminClient::new(&self.wanted.node).and_then(|node| plan(&node, &self.wanted)) {
            Ok(plan) if plan.operations.is_empty() => {
                show(&plan);
                crate::exit::DONE
            }
            Ok(plan) => {
                show(&plan);
                ExitCode::from(1)
            }
            Err(problem) => ended(Err(problem)),
        }
    }
}

impl ApplyCommand {
    pub fn execute(self) -> ExitCode {
        ended(self.apply())
    }

    fn apply(&self) -> Result<(), String> {
        let node = AdminClient::new(&self.wanted.node)?;
        let plan = plan(&node, &self.wanted)?;
        show(&plan);
        if plan.operations.is_empty() {
            return Ok(());
        }
        if !self.yes && !confirmed()? {
            return Err("nothing was changed".to_owned());
        }
        // `if_revision` prevents that concurrent changes are overwritten unseen.
        let body = json!({ "if_revision": plan.revision, "operations": plan.operations });
        let fields = [("X-Weir-Message", self.message.as_deref())];
        let answer = node.ask(Method::PATCH, "configs?wait=10s", &fields, Some(&body))?;
        say!("applied: revision {}", answer.body["revision"]);
        Ok(())
    }
}

fn confirmed() -> Result<bool, String> {
    let input = io::stdin();
    if !input.is_terminal() {
        return Err("standard input is not a terminal, so the change cannot be confirmed: use `--yes`".to_owned());
    }
    let _ = write!(io::stderr(), "Apply this? [y/N] ");
    let mut line = String::new();
    input.lock().read_line(&mut line).map_err(|error| format!("the answer cannot be read: {error}"))?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

/// Compares the files with the node, and has the node compute the changes in a dry run.
fn plan(node: &AdminClient, wanted: &WantedFiles) -> Result<ApplyPlan, String> {
    let label = match &wanted.prune {
        None => None,
        Some(text) => Some(text.split_once('=').ok_or("--prune needs a label and its value, such as `team=a`")?),
    };
    let resources = resource_files::read(&wanted.files)?;
    let revision = node.find("history?count=1")?.unwrap_or_default()["revision"].as_u64().unwrap_or_default();
    let mut operations = Vec::new();
    let mut lists: BTreeSet<String> = resources.keys().map(list_of).collect();
    if label.is_some() {
        lists.extend(resource_files::LISTS.map(str::to_owned));
    }
    for list in &lists {
        let stored = stored(node, list)?;
        for (key, value) in resources.iter().filter(|(key, _)| list_of(key) == *list) {
            if stored.get(key).is_none_or(|stored| differs(value, stored)) {
                operations.push(json!({ "put": key, "value": without_times(value) }));
            }
        }
        let has_label = |value: &Value| label.is_some_and(|(name, text)| value["labels"][name] == text);
        let gone = stored.iter().filter(|(key, value)| !resources.contains_key(*key) && has_label(value));
        operations.extend(gone.map(|(key, _)| json!({ "delete": key })));
    }
    let mut changes = Vec::new();
    if !operations.is_empty() {
        let body = json!({ "operations": operations });
        let tried = node.ask(Method::PATCH, "configs?dry_run=true", &[], Some(&body))?;
        changes = tried.body["changes"].as_array().cloned().unwrap_or_default();
    }
    Ok(ApplyPlan { operations, changes, revision })
}

/// The list that contains a resource; for a credential, the list of its consumer.
fn list_of(key: &ResourceKey) -> String {
    match key.consumer_of_credential() {
        Some(consumer) => format!("consumers/{consumer}/credentials"),
        None => key.list().to_owned(),
    }
}

fn stored(node: &AdminClient, list: &str) -> Result<BTreeMap<ResourceKey, Value>, String> {
    let found = node.find(list)?.unwrap_or_default();
    let items = found["list"].as_array().cloned().unwrap_or_default();
    let key = |item: &Value| ResourceKey::parse(item["key"].as_str()?.strip_prefix("/apisix/")?);
    Ok(items.into_iter().filter_map(|mut item| Some((key(&item)?, item["value"].take()))).collect())
}

/// Whether the stored resource differs. Ids are in the key, and times are set by the node, so both are ignored.
fn differs(wanted: &Value, stored: &Value) -> bool {
    let plain = |value: &Value| {
        let mut value = without_times(value);
        value.as_object_mut().map(|members| members.shift_remove("id"));
        value
    };
    plain(wanted) != plain(stored)
}

fn without_times(value: &Value) -> Value {
    let mut value = value.clone();
    if let Value::Object(members) = &mut value {
        members.shift_remove("create_time");
        members.shift_remove("update_time");
    }
    value
}

/// Prints one line for each resource, and below it one for each member.
fn show(plan: &ApplyPlan) {
    let mut text = String::new();
    for change in &plan.changes {
        let action = change["action"].as_str().unwrap_or_default();
        text.push_str(&format!("{action} {}\n", change["key"].as_str().unwrap_or_default()));
        for member in change["members"].as_array().into_iter().flatten() {
            let path = member["path"].as_str().unwrap_or_default();
            if action != "changed" || matches!(path, "update_time" | "create_time") {
                continue;
            }
            text.push_str(&format!("  {path}: {} -> {}\n", member["before"], member["after"]));
        }
    }
    if plan.changes.is_empty() {
        text.push_str("no changes\n");
    }
    // A closed pipe is not a failure.
    let _ = io::stdout().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_ids_are_no_difference() {
        let wanted = json!({"id": "r", "uri": "/a"});
        let stored = json!({"uri": "/a", "id": "r", "create_time": 1, "update_time": 2});
        assert!(!differs(&wanted, &stored));
        assert!(differs(&json!({"id": "r", "uri": "/b"}), &stored));
        let credential = ResourceKey::parse("consumers/jack/credentials/one").expect("a key");
        assert_eq!(list_of(&credential), "consumers/jack/credentials");
    }
}
