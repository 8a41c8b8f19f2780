//! `weir get`, `weir put`, `weir delete`: individual resources of a running node.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::admin_client::{AdminClient, AdminOptions, say_warnings};
use crate::exit::{self, ExitCause};
use crate::say::{self, say};

/// Shows a resource of a running node, or a list of resources.
///
/// `weir get routes`, `weir get routes/orders`, `weir get consumers/jack/credentials`
#[derive(Debug, Args)]
pub(crate) struct GetCommand {
    /// A list such as `routes`, or a list and an id such as `routes/orders`.
    #[arg(value_name = "LIST[/ID]")]
    key: String,
    /// `json` prints the response of the node, and `yaml` the resources alone, as `weir put` and `weir apply` read them.
    #[arg(short = 'o', long, value_name = "FORMAT", value_enum, default_value_t)]
    output: ResourceFormat,
    #[command(flatten)]
    node: AdminOptions,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ResourceFormat {
    #[default]
    Json,
    Yaml,
}

/// Writes a resource to a running node.
///
/// When the command ends, the resource is on the node's disk and every worker serves it.
#[derive(Debug, Args)]
pub(crate) struct PutCommand {
    /// A list and an id, such as `routes/orders`.
    #[arg(value_name = "LIST/ID")]
    key: String,
    /// A file with the resource, in YAML or JSON; `-` is standard input.
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    file: PathBuf,
    /// Writes only if the resource is still at this revision: `modifiedIndex` in the output of `weir get`.
    #[arg(long, value_name = "REVISION")]
    if_revision: Option<u64>,
    /// A message with the reason, stored in the history.
    #[arg(short = 'm', long, value_name = "TEXT")]
    message: Option<String>,
    #[command(flatten)]
    node: AdminOptions,
}

/// Deletes a resource of a running node.
#[derive(Debug, Args)]
pub(crate) struct DeleteCommand {
    /// A list and an id, such as `routes/orders`.
    #[arg(value_name = "LIST/ID")]
    key: String,
    /// Deletes the resource although other resources refer to it. Those stay in the store and are no longer served.
    #[arg(long)]
    force: bool,
    /// A message with the reason, stored in the history.
    #[arg(short = 'm', long, value_name = "TEXT")]
    message: Option<String>,
    #[command(flatten)]
    node: AdminOptions,
}

impl GetCommand {
    pub(crate) fn execute(self) -> ExitCode {
        ended(self.get())
    }

    fn get(&self) -> Result<(), ExitCause> {
        let node = AdminClient::new(&self.node)?;
        let found = node.find(&self.key)?.ok_or_else(|| format!("`{}` does not exist", self.key))?;
        let list = self.key.split(['/', '?']).next().unwrap_or_default();
        let is_of_resources = super::resource_files::lists().any(|known| known == list);
        if is_of_resources && !found["list"].is_array() && found["key"].is_null() {
            return Err(node.is_foreign().into());
        }
        if self.output == ResourceFormat::Json {
            print(&found);
            return Ok(());
        }
        let unreadable = say_unreadable(&found);
        let resources = plain(&self.key, &found).ok_or_else(|| node.is_foreign())?;
        let text =
            serde_saphyr::to_string(&resources).map_err(|error| format!("cannot be written as YAML: {error}"))?;
        say::print(text.as_bytes());
        match unreadable {
            0 => Ok(()),
            _ => Err("what is not JSON in the store is left out; write it anew with `weir put`, or delete it"
                .to_owned()
                .into()),
        }
    }
}

/// What a node says of a resource whose text in the store is not JSON, such as one that another writer has put into etcd.
fn unreadable(item: &Value) -> Option<&str> {
    item["error"].as_str().filter(|_| item["value"].is_null())
}

/// Names the resources that are not JSON, and returns their number.
fn say_unreadable(found: &Value) -> usize {
    let items = found["list"].as_array().map_or(std::slice::from_ref(found), Vec::as_slice);
    let named = items.iter().filter_map(|item| Some((item["key"].as_str().unwrap_or_default(), unreadable(item)?)));
    named.map(|(key, error)| say!("{}: {error}", key.strip_prefix("/apisix/").unwrap_or(key))).count()
}

/// The resources of an answer, without what the node adds: one as `weir put` reads it, a list as `weir apply` does. `None` if it
/// is no answer of the Admin API.
fn plain(key: &str, found: &Value) -> Option<Value> {
    let plain = |item: &Value| {
        let mut value = item["value"].clone();
        let members = value.as_object_mut()?;
        ["create_time", "update_time"].iter().for_each(|time| drop(members.shift_remove(*time)));
        Some(value)
    };
    match &found["list"] {
        Value::Array(items) => {
            let readable = items.iter().filter(|item| unreadable(item).is_none());
            let items: Option<Vec<Value>> = readable.map(plain).collect();
            let list = key.split('?').next()?.rsplit('/').next()?;
            Some(json!({ list: items? }))
        }
        _ if unreadable(found).is_some() => Some(Value::Null),
        _ => plain(found),
    }
}

impl PutCommand {
    pub(crate) fn execute(self) -> ExitCode {
        ended(self.put())
    }

    fn put(&self) -> Result<(), ExitCause> {
        let node = AdminClient::new(&self.node)?;
        let value = super::resource_files::one(&self.file).map_err(ExitCause::local)?;
        let tag = self.if_revision.map(|revision| format!("\"{revision}\""));
        let fields = [("If-Match", tag.as_deref()), ("X-Weir-Message", self.message.as_deref())];
        let answer = node.ask(Method::PUT, &self.key, &fields, Some(&value))?;
        let done = if answer.status == StatusCode::CREATED { "created" } else { "replaced" };
        // With a list alone, the resource has its id in the file.
        let key = answer.body["key"].as_str().and_then(|key| key.strip_prefix("/apisix/")).unwrap_or(&self.key);
        say!("{key}: {done}");
        say_warnings(&answer.body);
        Ok(())
    }
}

impl DeleteCommand {
    pub(crate) fn execute(self) -> ExitCode {
        ended(self.delete())
    }

    fn delete(&self) -> Result<(), ExitCause> {
        let node = AdminClient::new(&self.node)?;
        let force = if self.force { "?force=true" } else { "" };
        let fields = [("X-Weir-Message", self.message.as_deref())];
        let answer = node.ask(Method::DELETE, &format!("{}{force}", self.key), &fields, None);
        answer.map_err(|problem| match problem.starts_with("Key not found") {
            true => format!("`{}` does not exist", self.key),
            false => problem,
        })?;
        say!("{}: deleted", self.key);
        Ok(())
    }
}

/// Prints the error, if there is one, and returns the exit code.
pub(crate) fn ended(outcome: Result<(), ExitCause>) -> ExitCode {
    match outcome {
        Ok(()) => exit::DONE,
        Err(ExitCause { code, problem }) => {
            problem.lines().for_each(|line| say!("{line}"));
            code.into()
        }
    }
}

/// Writes to standard output. A closed pipe is not a failure.
pub(crate) fn print(value: &Value) {
    let _ = writeln!(io::stdout(), "{value:#}");
}
