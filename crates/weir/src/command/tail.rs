//! `weir tail`: shows the exchanges of a running node as they end.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use crate::command::status_stream::{ExchangeStream, ExchangeSummary};
use crate::exit::{self, ExitFailure};
use crate::node::tail::condition;
use crate::say::say;

/// The time-out of an idle stream: practically none.
const SILENCE: Duration = Duration::from_secs(365 * 24 * 3600);

/// Shows the requests of a running node as they end, one line for each.
///
/// The lines come from the node's status address, which answers only on the same machine. If the terminal is too slow, lines
/// are left out, and a line states their number. Requests never wait. If the node refuses the stream, because it has as many as
/// it may have, or ends it, because nothing was read for 20 seconds, the command says so and ends with 5.
#[derive(Debug, Args)]
pub(crate) struct TailCommand {
    /// The node's status address, on this machine
    #[arg(long, value_name = "ADDRESS", env = "WEIR_STATUS", default_value = "127.0.0.1:7085")]
    status: String,
    /// Only requests for which this condition is true: `[["status", ">=", 500]]`, as in `vars` of routes
    #[arg(long, value_name = "JSON")]
    vars: Option<String>,
    /// Prints each request as a JSON object, one per line
    #[arg(long)]
    json: bool,
    /// Ends after this number of requests
    #[arg(short = 'n', long, value_name = "COUNT")]
    count: Option<u64>,
}

impl TailCommand {
    pub(crate) fn execute(self) -> ExitCode {
        if let Some(Err(problem)) = self.vars.as_deref().map(condition) {
            say!("--{problem}");
            return ExitFailure::Configuration.into();
        }
        match self.run() {
            Ok(()) => exit::DONE,
            Err(problem) => {
                say!("{problem}");
                ExitFailure::Refused.into()
            }
        }
    }

    fn run(&self) -> Result<(), String> {
        let arguments = self.vars.as_deref().map(|vars| ("vars", vars));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("the async runtime cannot be started: {error}"))?;
        runtime.block_on(async {
            let mut stream = ExchangeStream::open(&self.status, arguments, SILENCE).await?;
            let mut left = self.count.unwrap_or(u64::MAX);
            while left > 0 {
                let Some(line) = stream.next().await? else { return Ok(()) };
                if !print(&line, self.json) {
                    return Ok(());
                }
                left -= u64::from(line.get("skipped").is_none());
            }
            Ok(())
        })
    }
}

/// Prints an exchange; `false` if standard output is closed.
fn print(exchange: &Value, as_json: bool) -> bool {
    let line = match exchange.get("skipped") {
        _ if as_json => exchange.to_string(),
        Some(skipped) => format!("… {skipped} left out"),
        None => ExchangeSummary(exchange).to_string(),
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).is_ok()
}
