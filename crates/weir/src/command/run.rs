use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use weir_records::SinkRegister;
use weir_telemetry::error_log::ErrorLogFormat;

use super::check::CheckCommand;
use crate::exit;
use crate::node::{GatewayNode, NodeOptions};
use crate::say;

/// Runs the gateway from a configuration file.
///
/// The file is watched: a valid change takes effect at once, an invalid one is rejected as a whole. On standard error,
/// `weir: listening on ADDRESS (http)`, or `(https)`, and `weir: status on ADDRESS` name each address, and `weir: ready`
/// follows when all addresses are served.
#[derive(Debug, Args)]
#[command(after_help = SIGNALS)]
pub(crate) struct RunCommand {
    /// The configuration file.
    file: PathBuf,

    /// Only check the file, as `weir check` does.
    #[arg(long)]
    check: bool,

    /// The format of the lines on standard error, including the lines at start and stop.
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,

    /// The time-out, in seconds, for a new process to become ready after SIGUSR2. When it expires, the new process is ended and
    /// this one keeps serving.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    upgrade_timeout: Duration,
}

const SIGNALS: &str = "\
Signals:
  SIGTERM, SIGQUIT  not ready (shutdown_delay), accept no new connections, finish exchanges in flight
                    (worker_shutdown_timeout), exit
  SIGINT            exit at once
  SIGHUP            reload the configuration file
  SIGUSR1           reopen the access log and the audit log, after they were renamed
  SIGUSR2           upgrade: start the binary's file as a new process on the same sockets; when the new
                    process is ready, this one drains; when it fails, this one keeps serving";

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

impl From<LogFormat> for ErrorLogFormat {
    fn from(format: LogFormat) -> ErrorLogFormat {
        match format {
            LogFormat::Text => ErrorLogFormat::Text,
            LogFormat::Json => ErrorLogFormat::Json,
        }
    }
}

impl RunCommand {
    pub(crate) fn execute(self) -> ExitCode {
        if self.check {
            return CheckCommand::of(self.file).execute();
        }
        let log_format = ErrorLogFormat::from(self.log_format);
        say::like(log_format);
        let options = NodeOptions { file: self.file, log_format, upgrade_patience: self.upgrade_timeout };
        // The allocator enables huge pages, which cost 16 MiB more for 500 clients without a gain (docs/decisions/huge-pages.md).
        // An error is ignored, since it only costs memory. Child processes, such as a newer `weir`, inherit the setting.
        let _ = rustix::thread::disable_transparent_huge_pages(true);
        match GatewayNode::start(options) {
            Ok(node) => {
                node.run();
                weir_plugins::finish_counters(LAST_COUNTS);
                SinkRegister::of_process().finish(LAST_RECORDS);
                exit::DONE
            }
            Err(failure) => failure.into(),
        }
    }
}

/// How long a process that ends tries to write the counters of durable limits.
const LAST_COUNTS: Duration = Duration::from_secs(5);

/// How long a process that ends tries to deliver the log records of its plugins.
const LAST_RECORDS: Duration = Duration::from_secs(5);

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds, such as 60 or 0.5".to_owned())?;
    let duration = Duration::try_from_secs_f64(seconds).map_err(|_| "out of range; try 60".to_owned())?;
    if duration.is_zero() { Err("must be more than zero; try 60".to_owned()) } else { Ok(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_a_number_of_seconds_above_nothing() {
        assert_eq!(seconds("60"), Ok(Duration::from_secs(60)));
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "1m", "", "1e40", "NaN"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
