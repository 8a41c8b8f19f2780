//! `weir bench`: the command line of the lab.

pub mod backend;
mod files;
mod import;
pub mod load;
mod machine;
pub(crate) mod print;
mod run;
mod schema;

use clap::Subcommand;

/// What `weir bench` can do.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Run a scenario: a table, a report, a result file, and a verdict
    Run(run::Arguments),
    /// List scenarios and targets
    List(machine::ListArguments),
    /// Compare two results cell by cell
    Compare(files::CompareArguments),
    /// Write HTML reports from result files
    Report(files::ReportArguments),
    /// Write a page of Markdown from stored results: figures with their spread, or what each policy costs
    Page(files::PageArguments),
    /// Run the scenario of a result file again and compare
    Replay(files::ReplayArguments),
    /// Write a result in another tool's format
    Export(files::ExportArguments),
    /// Calculate how many nodes a rate needs, from a result with several numbers of workers
    Capacity(files::CapacityArguments),
    /// Judge published figures by the rules that apply to results of the lab
    Judge(files::JudgeArguments),
    /// Print the JSON Schema of scenario files or publication files
    Schema(schema::SchemaArguments),
    /// Check this machine's limits, settings and topology, and recommend changes
    Doctor(machine::DoctorArguments),
    /// Convert a JMeter test plan
    Import(import::ImportArguments),
    /// Install a target or a backend from the registry named in its folder
    Install(machine::InstallArguments),
}

/// Runs a command. The number is the exit status: 0, or 1 when a result is invalid or differs.
pub fn run(command: LabCommand) -> Result<u8, String> {
    match command {
        LabCommand::Run(arguments) => run::run(arguments),
        LabCommand::List(arguments) => machine::list(arguments),
        LabCommand::Compare(arguments) => files::compare(arguments),
        LabCommand::Report(arguments) => files::report(arguments),
        LabCommand::Page(arguments) => files::page(arguments),
        LabCommand::Replay(arguments) => files::replay(arguments),
        LabCommand::Export(arguments) => files::export(arguments),
        LabCommand::Capacity(arguments) => files::capacity(arguments),
        LabCommand::Judge(arguments) => files::judge(arguments),
        LabCommand::Schema(arguments) => schema::schema(arguments),
        LabCommand::Doctor(arguments) => machine::doctor(arguments),
        LabCommand::Import(arguments) => import::import(arguments),
        LabCommand::Install(arguments) => machine::install(arguments),
    }
}
