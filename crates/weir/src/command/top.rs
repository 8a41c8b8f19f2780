//! `weir top`: the activity of a node, in a terminal.

mod figures;
mod format;
mod interval;
mod problems;
mod scrape;
mod screen;
mod table;

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Args;

use crate::exit::ExitFailure;
use crate::say::{self, say};
use figures::NodeFigures;
use scrape::{Scrape, StatusClient};
use table::View;

/// Shows requests, errors, latencies, endpoints, plugins and log destinations of a running node, and how they change.
///
/// The figures come from the node's status address. Rates and latencies are those of the last interval. Those of
/// single routes are interpolated between 0.5, 2, 8, 34, 134 and 537 ms, 2.1 and 8.6 s, and can be off by a factor of two; those of the
/// first line are finer. Lines that begin with
/// `!` name problems: rejected configurations, names that cannot be resolved, certificates that expire within 7 days, logs
/// that lose lines, plugins that fail, and endpoints out of rotation.
///
/// Keys: `r`, `e`, `p` and `l` show routes, endpoints, plugins and log destinations; `s` sorts by the next column, `R` reverses the
/// order, `/` filters by name, Enter shows the plugins of the selected route, `q` quits.
#[derive(Debug, Args)]
pub(crate) struct TopCommand {
    /// The node's status address.
    #[arg(long, value_name = "ADDRESS", env = "WEIR_STATUS", default_value = "127.0.0.1:7085")]
    status: String,
    /// The time between two readings, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=3600))]
    interval: u32,
    /// Prints the figures of one interval as text, and ends
    #[arg(long)]
    once: bool,
}

impl TopCommand {
    pub(crate) fn execute(self) -> ExitCode {
        let client = match StatusClient::new(&self.status) {
            Ok(client) => client,
            Err(error) => {
                say!("{error}");
                return ExitFailure::System.into();
            }
        };
        let interval = Duration::from_secs(self.interval.into());
        if !self.once {
            return screen::run(&client, interval);
        }
        match one_interval(&client, interval) {
            Ok(figures) => say::print(text(&figures).as_bytes()),
            Err(error) => {
                say!("{error}");
                ExitFailure::Refused.into()
            }
        }
    }
}

fn one_interval(client: &StatusClient, interval: Duration) -> Result<NodeFigures, String> {
    let before: Scrape = client.scrape()?;
    thread::sleep(interval);
    Ok(NodeFigures::between(&before, &client.scrape()?))
}

/// All tables, one below the other.
fn text(figures: &NodeFigures) -> String {
    let mut lines = figures.summary();
    for view in View::ALL {
        let table = view.table(figures);
        if !table.rows.is_empty() {
            lines.push(String::new());
            lines.push(view.title().to_owned());
            lines.extend(table.sorted(0, false).lines(usize::MAX));
        }
    }
    lines.join("\n") + "\n"
}
