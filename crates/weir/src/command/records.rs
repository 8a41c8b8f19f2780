use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::exit::{self, ExitFailure};
use crate::say::say;

/// Shows how many log records of a node's plugins were delivered, are pending or were lost, from its `data_dir`.
///
/// These are the records of loggers with `spool`: the account of a logger without it ends with the process, and only the running node
/// shows it. This also works while the node is down. For a running node, `/records` at its status address shows more. After a crash,
/// records that were in memory are shown as pending in memory, until the next start of the node counts them as lost.
#[derive(Debug, Args)]
pub(crate) struct RecordsCommand {
    /// The node's `data_dir`.
    directory: PathBuf,
    /// Prints the newest records that their destination rejected, as one JSON object per line, with the reason and the
    /// response
    #[arg(long)]
    rejected: bool,
    /// Gives the records on disk of this sink, whose logger the configuration has no longer, to the sink of `--to`
    #[arg(long = "move", value_name = "SINK", requires = "to", conflicts_with_all = ["rejected", "dropped"])]
    moved: Option<String>,
    /// The sink that sends the records of `--move`: one of the same plugin, that the node has started before
    #[arg(long, value_name = "SINK", requires = "moved")]
    to: Option<String>,
    /// Removes the records on disk of this sink, whose logger the configuration has no longer, and counts them as `abandoned`
    #[arg(long = "drop", value_name = "SINK", conflicts_with = "rejected")]
    dropped: Option<String>,
}

impl RecordsCommand {
    pub(crate) fn execute(self) -> ExitCode {
        let directory = self.directory.join("records");
        let task = match (&self.moved, &self.to, &self.dropped) {
            (Some(from), Some(to), _) => {
                Some(weir_records::move_spool(&directory, from, to).map(|task| (task, "moved")))
            }
            (_, _, Some(sink)) => Some(weir_records::drop_spool(&directory, sink).map(|task| (task, "dropped"))),
            _ => None,
        };
        match task {
            Some(Ok((task, word))) => {
                say!("{word}: {} records, {} bytes", task.records.records, task.records.bytes);
                return exit::DONE;
            }
            Some(Err(error)) => {
                say!("{error}");
                return ExitFailure::Configuration.into();
            }
            None => {}
        }
        if self.rejected {
            return match weir_records::copy_rejected(&directory, &mut io::stdout().lock()) {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => self.unreadable(&error),
                _ => exit::DONE,
            };
        }
        match weir_records::read_accounts(&directory) {
            Ok(sinks) => {
                let report = json!({ "sinks": sinks });
                println!("{report:#}");
                exit::DONE
            }
            Err(error) => self.unreadable(&error),
        }
    }

    fn unreadable(&self, error: &io::Error) -> ExitCode {
        if error.kind() == io::ErrorKind::NotFound && self.directory.is_dir() {
            say!(
                "{}: holds no log records; loggers with `spool` write them below the `data_dir` of their node",
                self.directory.display()
            );
            return ExitFailure::Configuration.into();
        }
        say!("{}: {error}; give the `data_dir` of a node", self.directory.display());
        ExitFailure::Configuration.into()
    }
}
