//! `weir history` and `weir rollback`: the history of a running node's store.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use http::Method;
use serde_json::Value;

use super::admin_client::{AdminClient, AdminList, AdminOptions, say_warnings};
use super::change_words::{changes_in_words, members_in_words};
use super::resources::ended;
use crate::exit::ExitCause;
use crate::say::{self, say};

/// Lists the latest changes of a running node's resources, or shows one change.
#[derive(Debug, Args)]
pub(crate) struct HistoryCommand {
    /// Shows the change of this revision, field by field.
    #[arg(value_parser = revision)]
    revision: Option<u64>,
    /// Only changes of this resource, such as `routes/orders`.
    #[arg(long, value_name = "LIST/ID")]
    key: Option<String>,
    /// The number of changes to list.
    #[arg(long, default_value_t = 20)]
    count: u32,
    #[command(flatten)]
    node: AdminOptions,
}

fn revision(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| match text.contains('/') {
        true => format!("a revision is a number; `weir history --key {text}` lists the changes of a resource"),
        false => "a revision is a number, as `weir history` lists it".to_owned(),
    })
}

/// Lists the nodes that share a store, or pull from one controller, with the revision that each node serves.
///
/// The node asks its store (etcd), or the controller that it is connected to; which one, is said on standard error.
#[derive(Debug, Args)]
pub(crate) struct NodesCommand {
    #[command(flatten)]
    node: AdminOptions,
}

impl NodesCommand {
    pub(crate) fn execute(self) -> ExitCode {
        ended(self.list())
    }

    fn list(&self) -> Result<(), ExitCause> {
        let node = AdminClient::new(&self.node)?;
        let AdminList { items: nodes, answer } = node.list("nodes")?;
        if let Some(told_by) = answer["told_by"].as_str() {
            say!("told by {told_by}");
        }
        if let Some(problem) = answer["problem"].as_str() {
            say!("the store: {problem}");
        }
        let mut lines = format!("{:<40} {:<10} {:>12} {:<8} SET ASIDE\n", "NODE", "VERSION", "REVISION", "IN STEP");
        for one in &nodes {
            let text = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
            let in_step = if one["in_step"] == true { "yes" } else { "no" };
            // A JSON value ignores the width of its column.
            let (id, version, revision) = (text("id"), text("version"), one["revision"].to_string());
            let aside = &one["set_aside"];
            lines += &format!("{id:<40} {version:<10} {revision:>12} {in_step:<8} {aside}\n");
        }
        // A closed pipe is not a failure.
        let _ = io::stdout().write_all(lines.as_bytes());
        Ok(())
    }
}

/// Restores all resources of a running node to their state at an earlier revision. The result is a new revision.
///
/// The changes are shown first. They are made if they are confirmed, or with `--yes`.
#[derive(Debug, Args)]
pub(crate) struct RollbackCommand {
    /// The revision, as `weir history` lists it.
    #[arg(value_parser = revision)]
    revision: u64,
    /// Shows the changes without making them.
    #[arg(long)]
    dry_run: bool,
    /// Makes the changes without asking.
    #[arg(long, conflicts_with = "dry_run")]
    yes: bool,
    /// A message with the reason, stored in the history.
    #[arg(short = 'm', long, value_name = "TEXT")]
    message: Option<String>,
    #[command(flatten)]
    node: AdminOptions,
}

impl HistoryCommand {
    pub(crate) fn execute(self) -> ExitCode {
        ended(self.show())
    }

    fn show(&self) -> Result<(), ExitCause> {
        let node = AdminClient::new(&self.node)?;
        if let Some(revision) = self.revision {
            let found = node.find(&format!("history/{revision}"))?;
            let record = found.ok_or_else(|| format!("revision {revision} is not in the history"))?;
            let members = members_in_words(changes_of(&node, &record)?);
            say::print(format!("{}{members}", line(&record)).as_bytes());
            return Ok(());
        }
        let key = self.key.as_ref().map(|key| format!("&key={key}")).unwrap_or_default();
        let changes = node.list(&format!("history?count={}{key}", self.count))?.items;
        let lines: String = changes.iter().map(line).collect();
        // A closed pipe is not a failure.
        let _ = io::stdout().write_all(lines.as_bytes());
        Ok(())
    }
}

impl RollbackCommand {
    pub(crate) fn execute(self) -> ExitCode {
        ended(self.roll_back())
    }

    fn roll_back(&self) -> Result<(), ExitCause> {
        let node = AdminClient::new(&self.node)?;
        let mut wait = "?wait=10s".to_owned();
        if !self.yes {
            let seen = node.find("history?count=1")?.unwrap_or_default()["revision"].as_u64().unwrap_or_default();
            say::print(changes_in_words(changes_of(&node, &self.ask(&node, "?dry_run=true")?)?).as_bytes());
            if self.dry_run {
                return Ok(());
            }
            if !say::confirmed(&format!("Roll back to revision {}?", self.revision)).map_err(ExitCause::local)? {
                return Err(ExitCause::local("nothing was changed"));
            }
            // Changes that came since are not undone unseen.
            wait.push_str(&format!("&if_revision={seen}"));
        }
        let made = self.ask(&node, &wait)?;
        say!("rolled back to revision {}; the new revision is {}", self.revision, made["revision"]);
        say_warnings(&made);
        Ok(())
    }

    fn ask(&self, node: &AdminClient, query: &str) -> Result<Value, String> {
        let path = format!("history/{}/rollback{query}", self.revision);
        Ok(node.ask(Method::POST, &path, &[("X-Weir-Message", self.message.as_deref())], None)?.body)
    }
}

/// The changes in an answer of the Admin API.
fn changes_of<'a>(node: &AdminClient, answer: &'a Value) -> Result<&'a [Value], String> {
    answer["changes"].as_array().map(Vec::as_slice).ok_or_else(|| node.is_foreign())
}

/// A line with revision, time, author, changes and message.
fn line(record: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let changes: Vec<String> = record["changes"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|change| format!("{} {}", text(&change["action"]), text(&change["key"])))
        .collect();
    let at = std::time::UNIX_EPOCH + std::time::Duration::from_millis(record["at_ms"].as_u64().unwrap_or_default());
    let author = &record["author"];
    let message = match author["message"].as_str() {
        Some(message) => format!("  \"{message}\""),
        None => String::new(),
    };
    let told = if changes.len() > 4 {
        format!("{} and {} more", changes[..4].join(", "), changes.len() - 4)
    } else {
        changes.join(", ")
    };
    let at = httpdate::fmt_http_date(at);
    format!("{:>6}  {at}  {:12}  {told}{message}\n", record["revision"].to_string(), text(&author["name"]))
}
