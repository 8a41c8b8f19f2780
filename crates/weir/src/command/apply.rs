//! `weir diff` and `weir apply`: make the resources of a running node equal to those in files, in one transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use http::Method;
use serde_json::{Value, json};
use weir_control::stores::resources::ResourceKey;

use super::admin_client::{AdminClient, AdminOptions, placed_warnings};
use super::change_words::changes_in_words;
use super::resource_files::ResourceFiles;
use super::resources::ended;
use super::{compared_files, compared_requests, recorded_requests, resource_files};
use crate::exit::ExitCause;
use crate::say::{self, say};

/// How long a node may wait until all workers, or all nodes, serve the change.
const MOST_WAIT: Duration = Duration::from_secs(10);

/// The members of a resource that its node sets.
const SET_BY_NODE: [&str; 3] = ["id", "create_time", "update_time"];

/// How far files are compared with a node, and which node.
#[derive(Debug, Args)]
pub(crate) struct ComparisonOptions {
    /// Deletes resources of the node that have this label and are not in the files.
    #[arg(long, value_name = "LABEL=VALUE")]
    prune: Option<String>,
    /// Shows which of these requests would take another route, other plugins or another upstream. The file is a log
    /// in any format that `weir rehearse` reads, or a list of requests such as `GET https://shop.example/orders/1`.
    #[arg(long, value_name = "FILE")]
    requests: Option<PathBuf>,
    #[command(flatten)]
    node: AdminOptions,
}

/// Shows what `weir apply` would change, or how two configuration files differ. Exits with 0 if there is no difference, and with 1 if there is.
///
/// With two configuration files no node is asked: `weir diff weir.yaml new.yaml` lists the resources that differ, and the settings of the node.
/// `weir diff weir.yaml new.yaml --requests access.log` shows instead which of the requests would be handled differently. Both exit
/// with 1 also if one of the files is not valid. Host names are not looked up.
#[derive(Debug, Args)]
#[command(override_usage = "weir diff [OPTIONS] --file <FILE>\n       weir diff [OPTIONS] <BEFORE> <AFTER>")]
pub(crate) struct DiffCommand {
    /// Two configuration files: what differs in them, or with `--requests` in how they handle requests.
    #[arg(value_names = ["BEFORE", "AFTER"], num_args = 2, conflicts_with_all = ["files", "prune"])]
    configurations: Vec<PathBuf>,
    /// Files and directories with resources, in YAML or JSON; `-` is standard input.
    #[arg(short = 'f', long = "file", value_name = "FILE", required_unless_present = "configurations")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    wanted: ComparisonOptions,
}

/// Writes the resources of files to a running node in one transaction: all of them, or none if there is an error.
///
/// The changes are shown first, and must be confirmed. Resources that are not in the files stay unchanged, unless `--prune`
/// selects them for deletion.
#[derive(Debug, Args)]
pub(crate) struct ApplyCommand {
    /// Files and directories with resources, in YAML or JSON; `-` is standard input.
    #[arg(short = 'f', long = "file", value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    wanted: ComparisonOptions,
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
    tried: TriedChanges,
    /// The store revision that the plan is based on.
    revision: u64,
    files: ResourceFiles,
}

/// What a dry run has told.
#[derive(Default)]
struct TriedChanges {
    changes: Vec<Value>,
    warnings: Vec<String>,
    /// How the changes concern the given requests, if there are any.
    requests: Option<Value>,
}

impl DiffCommand {
    pub(crate) fn execute(self) -> ExitCode {
        if let [before, after] = &self.configurations[..] {
            return match self.wanted.requests.as_deref() {
                Some(requests) => compared_requests::compare_files([before, after], requests),
                None => compared_files::compare_files([before, after]),
            };
        }
        let planned = AdminClient::new(&self.wanted.node).and_then(|node| plan(&node, &self.files, &self.wanted));
        match planned {
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
    pub(crate) fn execute(self) -> ExitCode {
        ended(self.apply())
    }

    fn apply(&self) -> Result<(), ExitCause> {
        let node = AdminClient::new(&self.wanted.node)?;
        let plan = plan(&node, &self.files, &self.wanted)?;
        show(&plan);
        if plan.operations.is_empty() {
            return Ok(());
        }
        if !self.yes && !say::confirmed("Apply this?").map_err(ExitCause::local)? {
            return Err(ExitCause::local("nothing was changed"));
        }
        // `if_revision` prevents that concurrent changes are overwritten unseen.
        let body = json!({ "if_revision": plan.revision, "operations": plan.operations });
        let fields = [("X-Weir-Message", self.message.as_deref())];
        // The node answers before this command stops waiting for it.
        let wait = MOST_WAIT.min(node.timeout() / 2);
        let path = format!("configs?wait={}ms", wait.as_millis());
        let place = |path: &str| plan.files.place_of(path);
        let answer = node.ask_about(&place, Method::PATCH, &path, &fields, Some(&body))?;
        say!("applied: revision {}", answer.body["revision"]);
        // The others stand above, with the changes.
        let is_new = |warning: &String| !plan.tried.warnings.contains(warning);
        placed_warnings(&answer.body, &place)
            .iter()
            .filter(|warning| is_new(warning))
            .for_each(|warning| say!("warning: {warning}"));
        Ok(())
    }
}

/// Compares the files with the node, and has the node compute the changes in a dry run.
fn plan(node: &AdminClient, files: &[PathBuf], wanted: &ComparisonOptions) -> Result<ApplyPlan, ExitCause> {
    let label = match &wanted.prune {
        None => None,
        Some(text) => Some(
            text.split_once('=')
                .ok_or_else(|| ExitCause::local("--prune needs a label and its value, such as `team=a`"))?,
        ),
    };
    let resources = resource_files::read(files).map_err(ExitCause::local)?;
    let revision = node.find("history?count=1")?.unwrap_or_default()["revision"].as_u64().unwrap_or_default();
    let mut operations = Vec::new();
    let mut lists: BTreeSet<String> = resources.iter().map(|(key, _)| list_of(key)).collect();
    if label.is_some() {
        lists.extend(resource_files::lists().map(str::to_owned));
    }
    for list in &lists {
        let stored = stored(node, list)?;
        for (key, value) in resources.iter().filter(|(key, _)| list_of(key) == *list) {
            if stored.get(key).is_none_or(|stored| differs(value, stored)) {
                operations.push(json!({ "put": key, "value": without_times(value) }));
            }
        }
        let has_label = |value: &Value| label.is_some_and(|(name, text)| value["labels"][name] == text);
        let gone = stored.iter().filter(|(key, value)| !resources.contains(key) && has_label(value));
        operations.extend(gone.map(|(key, _)| json!({ "delete": key })));
    }
    let asked = wanted.requests.as_deref().map(recorded_requests::read).transpose().map_err(ExitCause::local)?;
    let tried =
        if operations.is_empty() { TriedChanges::default() } else { tried(node, &resources, &mut operations, asked)? };
    Ok(ApplyPlan { operations, tried, revision, files: resources })
}

/// Has the node try the operations, and removes those that would change nothing: the node masks secrets in what it shows, so that it
/// alone knows whether one differs.
fn tried(
    node: &AdminClient,
    files: &ResourceFiles,
    operations: &mut Vec<Value>,
    asked: Option<Vec<Value>>,
) -> Result<TriedChanges, String> {
    let mut body = json!({ "operations": operations });
    if let Some(asked) = asked {
        body["requests"] = asked.into();
    }
    let place = |path: &str| files.place_of(path);
    let mut tried = node.ask_about(&place, Method::PATCH, "configs?dry_run=true", &[], Some(&body))?.body;
    let mut changes = tried["changes"].as_array().cloned().unwrap_or_default();
    changes.retain(has_effect);
    let changed: BTreeSet<&str> = changes.iter().filter_map(|change| change["key"].as_str()).collect();
    let is_changed = |key: &Value| key.as_str().is_some_and(|key| changed.contains(key));
    operations.retain(|operation| operation.get("delete").is_some() || is_changed(&operation["put"]));
    if let Some(listed) = tried["warnings"].as_array_mut() {
        listed.retain(|warning| is_changed(&warning["key"]));
    }
    let warnings = placed_warnings(&tried, &place);
    Ok(TriedChanges { changes, warnings, requests: tried.get_mut("requests").map(Value::take) })
}

/// The list that contains a resource; for a credential, the list of its consumer.
fn list_of(key: &ResourceKey) -> String {
    match key.consumer_of_credential() {
        Some(consumer) => format!("consumers/{consumer}/credentials"),
        None => key.list().to_owned(),
    }
}

fn stored(node: &AdminClient, list: &str) -> Result<BTreeMap<ResourceKey, Value>, String> {
    // The list of credentials of a consumer that does not exist yet is not found.
    let found = node.find(list)?.unwrap_or_else(|| json!({ "list": [] }));
    let items = found["list"].as_array().cloned().ok_or_else(|| node.is_foreign())?;
    let key = |item: &Value| ResourceKey::parse(item["key"].as_str()?.strip_prefix("/apisix/")?);
    Ok(items.into_iter().filter_map(|mut item| Some((key(&item)?, item["value"].take()))).collect())
}

/// Whether a change of a resource is more than a new time.
fn has_effect(change: &Value) -> bool {
    let counts = |member: &Value| !SET_BY_NODE.iter().any(|name| member["path"] == *name);
    change["action"] != "changed" || change["members"].as_array().into_iter().flatten().any(counts)
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
    let TriedChanges { changes, warnings, requests } = &plan.tried;
    let mut text = changes_in_words(changes);
    if let Some(requests) = requests {
        text.push_str(&compared_requests::in_words(requests));
    }
    // A closed pipe is not a failure.
    let _ = io::stdout().write_all(text.as_bytes());
    warnings.iter().for_each(|warning| say!("warning: {warning}"));
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
