use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use weir_telemetry::error_log::ErrorLogFormat;

use super::run::LogFormat;
use crate::exit;
use crate::node::controller::{ControllerNode, ControllerOptions};
use crate::say;

/// Follows a cluster of Kubernetes for nodes that have no rights there.
///
/// It translates the objects of the cluster, serves the result to nodes (`store: { controller: … }`), and writes statuses when the nodes
/// serve it. It serves no traffic. Several may run: all serve nodes, and one writes statuses. `weir check` checks its file, too.
#[derive(Debug, Args)]
#[command(after_help = SIGNALS)]
pub(crate) struct ControllerCommand {
    /// The configuration file, with `controller`.
    #[arg(short, long = "config", value_name = "FILE", default_value = "controller.yaml")]
    config: PathBuf,

    /// The format of the lines on standard error.
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
}

const SIGNALS: &str = "\
Signals:
  SIGTERM, SIGQUIT, SIGINT  end; nodes go on with what they have, and connect to another controller
  SIGHUP                    read the certificates again; that is also done when the files change";

impl ControllerCommand {
    pub(crate) fn execute(self) -> ExitCode {
        let log_format = ErrorLogFormat::from(self.log_format);
        say::like(log_format);
        let options = ControllerOptions { file: self.config, log_format };
        match ControllerNode::start(options).and_then(ControllerNode::run) {
            Ok(()) => exit::DONE,
            Err(failure) => failure.into(),
        }
    }
}
