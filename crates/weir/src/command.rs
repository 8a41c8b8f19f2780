//! The commands, in one file each; those of the lab are in its own crate.

pub mod admin_client;
pub mod apply;
pub mod bench;
pub mod check;
pub mod completions;
pub mod convert;
pub mod explain;
pub mod history;
pub mod hub;
pub mod man;
pub mod plugins;
mod recorded_requests;
pub mod records;
pub mod reference;
pub mod resource_files;
pub mod resources;
pub mod run;
pub mod schema;
pub mod status_stream;
pub mod store;
pub mod tail;
pub mod top;
pub mod trace;
pub mod version;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::exit;

/// An API gateway that measures itself.
#[derive(Debug, Parser)]
#[command(name = "weir", version, after_help = exit::HELP)]
pub struct Weir {
    #[command(subcommand)]
    command: WeirCommand,
}

#[derive(Debug, Subcommand)]
enum WeirCommand {
    Run(run::RunCommand),
    Check(check::CheckCommand),
    #[command(visible_alias = "import")]
    Convert(convert::ConvertCommand),
    Explain(explain::Explain),
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

impl Weir {
    pub fn execute(self) -> ExitCode {
        match self.command {
            WeirCommand::Run(command) => command.execute(),
            WeirCommand::Check(command) => command.execute(),
            WeirCommand::Convert(command) => command.execute(),
            WeirCommand::Explain(command) => command.execute(),
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
