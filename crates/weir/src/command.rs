//! The commands, in one file each; those of the lab are in its own crate.

pub(crate) mod admin_client;
pub(crate) mod apply;
pub(crate) mod bench;
mod change_words;
pub(crate) mod check;
mod compared_files;
mod compared_requests;
pub(crate) mod completions;
pub(crate) mod controller;
pub(crate) mod convert;
pub(crate) mod explain;
pub(crate) mod history;
pub(crate) mod hub;
pub(crate) mod man;
pub(crate) mod plugins;
mod recorded_requests;
pub(crate) mod records;
pub(crate) mod reference;
pub(crate) mod rehearse;
pub(crate) mod resource_files;
pub(crate) mod resources;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod status_stream;
pub(crate) mod store;
pub(crate) mod tail;
pub(crate) mod top;
pub(crate) mod trace;
pub(crate) mod version;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::exit;

/// An API gateway that measures itself.
#[derive(Debug, Parser)]
#[command(name = "weir", version = version::VERSION, after_help = exit::HELP)]
struct Weir {
    #[command(subcommand)]
    command: WeirCommand,
}

#[derive(Debug, Subcommand)]
enum WeirCommand {
    Run(run::RunCommand),
    Controller(controller::ControllerCommand),
    Check(check::CheckCommand),
    #[command(visible_alias = "import")]
    Convert(convert::ConvertCommand),
    Explain(explain::Explain),
    Rehearse(Box<rehearse::RehearseCommand>),
    Plugins(plugins::PluginsCommand),
    Schema(schema::SchemaCommand),
    Reference(reference::ReferenceCommand),
    Get(resources::GetCommand),
    Put(resources::PutCommand),
    Delete(resources::DeleteCommand),
    Diff(apply::DiffCommand),
    Apply(apply::ApplyCommand),
    History(history::HistoryCommand),
    Rollback(history::RollbackCommand),
    Nodes(history::NodesCommand),
    Hub(hub::HubCommand),
    Store(store::StoreCommand),
    Records(records::RecordsCommand),
    Top(top::TopCommand),
    Tail(tail::TailCommand),
    Trace(trace::TraceCommand),
    Version(version::VersionCommand),
    Completions(completions::Completions),
    Man(man::Man),
    Load(Box<weir_bench::cli::load::LoadArguments>),
    Backend(weir_bench::cli::backend::BackendArguments),
    Bench(bench::BenchCommand),
}

/// The sections of `weir --help`, with their commands in order.
const SECTIONS: [(&str, &[&str]); 6] = [
    (
        "The gateway and its configuration",
        &["run", "controller", "check", "convert", "explain", "rehearse", "plugins", "schema"],
    ),
    (
        "Resources of a running node (Admin API)",
        &["get", "put", "delete", "diff", "apply", "history", "rollback", "nodes", "hub"],
    ),
    ("What a node does", &["top", "tail", "trace"]),
    ("Files of a node", &["store", "records"]),
    ("The lab", &["bench", "load", "backend"]),
    ("The program", &["version", "completions", "man", "reference"]),
];

/// The command line, with its commands in sections, which clap has only for options.
pub(crate) fn command_line() -> clap::Command {
    let command = Weir::command();
    let mut list = String::new();
    for (title, names) in SECTIONS {
        list.push_str(&format!("\n{title}:\n"));
        for name in names {
            let Some(found) = command.find_subcommand(name) else { continue };
            let about = found.get_about().cloned().unwrap_or_default();
            let aliases: String = found.get_visible_aliases().map(|alias| format!(" [alias: {alias}]")).collect();
            list.push_str(&format!("  {name:<12}{about}{aliases}\n"));
        }
    }
    command
        .help_template(format!("{{about}}\n\n{{usage-heading}} {{usage}}\n{list}\nOptions:\n{{options}}{{after-help}}"))
}

/// Does what the command line says.
pub(crate) fn execute() -> ExitCode {
    match Weir::from_arg_matches(&command_line().get_matches()) {
        Ok(weir) => weir.execute(),
        Err(error) => error.exit(),
    }
}

impl Weir {
    fn execute(self) -> ExitCode {
        match self.command {
            WeirCommand::Run(command) => command.execute(),
            WeirCommand::Controller(command) => command.execute(),
            WeirCommand::Check(command) => command.execute(),
            WeirCommand::Convert(command) => command.execute(),
            WeirCommand::Explain(command) => command.execute(),
            WeirCommand::Rehearse(command) => command.execute(),
            WeirCommand::Plugins(command) => command.execute(),
            WeirCommand::Schema(command) => command.execute(),
            WeirCommand::Reference(command) => command.execute(),
            WeirCommand::Get(command) => command.execute(),
            WeirCommand::Put(command) => command.execute(),
            WeirCommand::Delete(command) => command.execute(),
            WeirCommand::Diff(command) => command.execute(),
            WeirCommand::Apply(command) => command.execute(),
            WeirCommand::History(command) => command.execute(),
            WeirCommand::Rollback(command) => command.execute(),
            WeirCommand::Nodes(command) => command.execute(),
            WeirCommand::Hub(command) => command.execute(),
            WeirCommand::Store(command) => command.execute(),
            WeirCommand::Records(command) => command.execute(),
            WeirCommand::Top(command) => command.execute(),
            WeirCommand::Tail(command) => command.execute(),
            WeirCommand::Trace(command) => command.execute(),
            WeirCommand::Version(command) => command.execute(),
            WeirCommand::Completions(command) => command.execute(),
            WeirCommand::Man(command) => command.execute(),
            WeirCommand::Load(options) => weir_bench::cli::load::main(*options),
            WeirCommand::Backend(options) => weir_bench::cli::backend::main(options),
            WeirCommand::Bench(command) => command.execute(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_command_is_in_one_section_of_the_help() {
        let command = Weir::command();
        let all: BTreeSet<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        let listed: Vec<&str> = SECTIONS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        assert_eq!(listed.iter().copied().collect::<BTreeSet<_>>(), all);
        assert_eq!(listed.len(), all.len(), "none is listed twice");
        let help = command_line().render_help().to_string();
        assert!(help.contains("\n  rollback    Restores all resources"), "{help}");
    }
}
