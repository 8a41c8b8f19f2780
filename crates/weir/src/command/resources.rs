//! `weir get`, `weir put`, `weir delete`: resources of a running node, one by one.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use http::{Method, StatusCode};
use serde_json::Value;

use super::admin_client::{AdminClient, AdminOptions};
use crate::exit::{self, ExitFailure};
use crate::say::say;

/// Shows a resource of a running node, or a list of them.
///
/// `weir get routes`, `weir get routes/orders`, `weir get consumers/jack/credentials`
#[derive(Debug, Args)]
pub struct GetCommand {
    /// A list, or a list and an id.
    #[arg(value_name = "LIST[/ID]")]
    key: String,
    #[command(flatten)]
    node: AdminOptions,
}

/// Writes a resource of a running node.
///
/// It is on the node's disk and served by every worker when the command ends.
#[derive(Debug, Args)]
pub struct PutCommand {
    /// A list and an id, as `routes/orders`.
    #[arg(value_name = "LIST/ID")]
    key: String,
    /// A file with the resource, in YAML or JSON; `-` is standard input.
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    file: PathBuf,
    /// Only if the resource is still at this revision, as `weir get` shows it (modifiedIndex).
    #[arg(long, value_name = "REVISION")]
    if_revision: Option<u64>,
    /// Why, for the history.
    #[arg(short = 'm', long, value_name = "TEXT")]
    message: Option<String>,
    #[command(flatten)]
    node: AdminOptions,
}

/// Deletes a resource of a running node.
#[derive(Debug, Args)]
pub struct DeleteCommand {
    /// A list and an id, as `routes/orders`.
    #[arg(value_name = "LIST/ID")]
    key: String,
    /// Although others refer to it: they are set aside.
    #[arg(long)]
    force: bool,
    /// Why, for the history.
    #[arg(short = 'm', long, value_name = "TEXT")]
    message: Option<String>,
    #[command(flatten)]
    node: AdminOptions,
}

impl GetCommand {
    pub fn execute(self) -> ExitCode {
        ended(AdminClient::new(&self.node).and_then(|node| match node.find(&self.key)? {
            Some(found) => {
                print(&found);
                Ok(())
            }
            None => Err(format!("`{}` is not there", self.key)),
        }))
    }
}

impl PutCommand {
    pub fn execute(self) -> ExitCode {
        ended(self.put())
    }

    fn put(&self) -> Result<(), String> {
        let node = AdminClient::new(&self.node)?;
        let value = super::resource_files::one(&self.file)?;
        let tag = self.if_revision.map(|revision| format!("\"{revision}\""));
        let fields = [("If-Match", tag.as_deref()), ("X-Weir-Message", self.message.as_deref())];
        let answer = node.ask(Method::PUT, &self.key, &fields, Some(&value))?;
        let done = if answer.status == StatusCode::CREATED { "created" } else { "replaced" };
        say!("{}: {done}", self.key);
        Ok(())
    }
}

impl DeleteCommand {
    pub fn execute(self) -> ExitCode {
        ended(AdminClient::new(&self.node).and_then(|node| {
            let force = if self.force { "?force=true" } else { "" };
            let fields = [("X-Weir-Message", self.message.as_deref())];
            node.ask(Method::DELETE, &format!("{}{force}", self.key), &fields, None)?;
            say!("{}: deleted", self.key);
            Ok(())
        }))
    }
}

/// Says what went wrong, if anything.
pub fn ended(outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => exit::DONE,
        Err(problem) => {
            problem.lines().for_each(|line| say!("{line}"));
            ExitFailure::Refused.into()
        }
    }
}

/// Writes to standard output. A reader that has gone is not a failure.
pub fn print(value: &Value) {
    let _ = writeln!(io::stdout(), "{value:#}");
}
