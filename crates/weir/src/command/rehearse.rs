//! `weir rehearse`: sends the requests of a log to the old and to the new gateway, and reports in what the answers differ.

mod lines;
mod options;
mod routes;

use std::fs;
use std::future;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use weir_rehearsal::report::is_hidden;
use weir_rehearsal::{GatewayTarget, Rehearsal, RehearsalFindings, RehearsalReport, RehearsalTotals, TargetSettings};

use self::lines::LinesAhead;
use self::options::{GivenAddress, ReplayOptions};
use self::routes::ExplainedRoutes;
use super::admin_client::authorities;
use crate::exit::ExitFailure;
use crate::say::{self, say};

/// The exit code of wrong usage, which is also clap's.
const MISUSED: u8 = 2;
/// How often the progress is shown on a terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Sends the requests of a log to an old and a new gateway, and reports in what their answers differ.
///
/// `weir rehearse --log access.log --old https://10.0.0.5 --new http://127.0.0.1:9080 --explain weir.yaml`
///
/// The log may be one of nginx or Apache (common or combined), of Envoy (its default format), lines of JSON (of Weir, of file-logger, of nginx
/// and others), an HTTP archive (HAR), or a list of methods and URLs; also compressed with gzip. The format is recognised.
///
/// Each request is sent to the old gateway twice and to the new one once; a request whose answers differ is sent up to four more times to
/// both. What differs between two answers of the old gateway is not compared. Only GET, HEAD and OPTIONS are sent, without credentials, and 20
/// requests of the log per second at most, unless options say otherwise. It ends early if more than 10 of the last 50 answers of the old
/// gateway are 5xx, 429 or missing where the log has another status.
///
/// Exits with 0 if all answers are alike, with 1 if there are differences or less than 90 % of the sent requests could be compared, with 2 if
/// an option or the log is not usable, and with 5 if it ended early or no request was compared.
#[derive(Debug, Args)]
pub(crate) struct RehearseCommand {
    /// The log; `-` is standard input. Can be given several times.
    #[arg(long = "log", value_name = "FILE", required = true)]
    logs: Vec<PathBuf>,
    /// The old gateway: scheme, host and port.
    #[arg(long, value_name = "URL")]
    old: String,
    /// The new gateway.
    #[arg(long, value_name = "URL")]
    new: String,
    #[command(flatten)]
    replay: ReplayOptions,
    /// An address in place of the one that a name has, for the host and port of `--old` or `--new`: `shop.example:443:10.0.0.5`.
    #[arg(long, value_name = "HOST:PORT:ADDRESS")]
    resolve: Vec<GivenAddress>,
    /// A PEM file with the CA certificates that the gateways' certificates are verified with.
    #[arg(long, alias = "cacert", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Does not verify the gateways' certificates. That of an Admin API still is.
    #[arg(long)]
    insecure: bool,
    /// How long to wait for each answer, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// The configuration file of the new gateway, or the URL of its Admin API (with its key in WEIR_ADMIN_KEY): the report then tells which
    /// route the requests take.
    #[arg(long, value_name = "FILE|URL")]
    explain: Option<PathBuf>,
    /// A PEM file with the CA certificates that the certificate of the Admin API of `--explain` is verified with.
    #[arg(long, value_name = "FILE")]
    admin_ca: Option<PathBuf>,
    /// Does not verify the certificate of the Admin API, which then may be read and changed on the way with the key.
    #[arg(long)]
    admin_insecure: bool,
    /// Writes the report to this file, as a page for browsers.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Prints the report as JSON.
    #[arg(long)]
    json: bool,
    /// The share of differing requests, in percent, up to which the answers count as alike.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = options::percent)]
    tolerate: f64,
}

impl RehearseCommand {
    pub(crate) fn execute(self) -> ExitCode {
        self.rehearse().unwrap_or_else(|problem| {
            say!("{problem}");
            ExitCode::from(MISUSED)
        })
    }

    /// # Errors
    /// What is wrong with an option or the log: then nothing was sent.
    fn rehearse(self) -> Result<ExitCode, String> {
        let [old, new] = [("--old", &self.old), ("--new", &self.new)].map(|(option, url)| {
            let advice =
                if url.contains("://") { "" } else { "; write scheme, host and port, as `http://10.0.0.5:9080`" };
            self.target(url).map_err(|problem| format!("{option}: {problem}{advice}"))
        });
        let rehearsal = Rehearsal { plan: self.replay.plan()?, old: old?, new: new? };
        let lines = LinesAhead::read(&self.logs)?;
        let routes = self.explain.as_deref().map(|source| ExplainedRoutes::open(source, &self)).transpose()?;
        self.html.as_deref().map(writable).transpose()?;
        let (findings, mut faults) = run(&rehearsal, lines)?;
        let new = (rehearsal.new.is_https(), rehearsal.new.port());
        let (report, fault) = match routes {
            None => (RehearsalReport::of(findings, &mut |_| None), None),
            Some(routes) => routes.report(findings, new),
        };
        faults.extend(fault);
        // What was found is told, whatever goes wrong after it.
        let printed = say::print(self.told(&report)?.as_bytes());
        if let Some(file) = &self.html {
            let page = report.html(weir_bench::report::STYLE, &self.compared());
            faults.extend(fs::write(file, page).err().map(|error| unwritable(file, &error)));
        }
        if !faults.is_empty() {
            return Err(faults.join("\n"));
        }
        Ok(match report.differs_by_more_than(self.tolerate) {
            true => ExitFailure::Configuration.into(),
            false if report.stopped.is_some() || report.totals.compared == 0 => ExitFailure::Refused.into(),
            false if report.compares_too_few() => ExitFailure::Configuration.into(),
            false => printed,
        })
    }

    fn told(&self, report: &RehearsalReport) -> Result<String, String> {
        if !self.json {
            return Ok(report.text());
        }
        let json = serde_json::to_string_pretty(report).map_err(|error| error.to_string())?;
        // Outside its texts, JSON has no such characters but the ends of lines.
        let told = |char: char| match is_hidden(char) && char != '\n' {
            true => format!("\\u{:04x}", u32::from(char)),
            false => char.to_string(),
        };
        Ok(json.chars().map(told).collect::<String>() + "\n")
    }

    fn target(&self, url: &str) -> Result<GatewayTarget, String> {
        GatewayTarget::new(
            url,
            TargetSettings {
                authorities: authorities(self.ca.as_deref())?,
                accepts_any_certificate: self.insecure,
                timeout: Duration::from_secs(self.timeout),
                max_body_bytes: self.replay.max_body_bytes(),
                resolved: self.resolve.iter().map(GivenAddress::parts).collect(),
            },
        )
    }

    /// What the report says about itself.
    fn compared(&self) -> Vec<(&'static str, String)> {
        let logs: Vec<String> = self.logs.iter().map(|log| log.display().to_string()).collect();
        vec![("Log", logs.join(", ")), ("Old gateway", self.old.clone()), ("New gateway", self.new.clone())]
    }
}

/// The findings, and why they may not be complete.
fn run(
    rehearsal: &Rehearsal,
    LinesAhead { lines, fault }: LinesAhead,
) -> Result<(RehearsalFindings, Vec<String>), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("the async runtime cannot be started: {error}"))?;
    let findings = runtime.block_on(rehearsal.run(lines, interrupted(), progress()));
    Ok((findings, fault.get().cloned().into_iter().collect()))
}

/// # Errors
/// The report could not be written to this file. What the file has stays.
fn writable(file: &Path) -> Result<(), String> {
    let opened = fs::OpenOptions::new().write(true).create(true).truncate(false).open(file);
    opened.map(|_| ()).map_err(|error| unwritable(file, &error))
}

fn unwritable(file: &Path, error: &io::Error) -> String {
    format!("{} cannot be written: {error}", file.display())
}

/// Ready when the user has enough.
async fn interrupted() -> String {
    match tokio::signal::ctrl_c().await {
        Ok(()) => "it was interrupted".to_owned(),
        // Then the signal ends the process.
        Err(_) => future::pending::<String>().await,
    }
}

/// Tells how far the rehearsal is, if a terminal shows it.
fn progress() -> impl FnMut(&RehearsalTotals) {
    let (is_watched, mut last) = (io::stderr().is_terminal(), Instant::now());
    move |totals| {
        if is_watched && last.elapsed() >= PROGRESS_INTERVAL {
            last = Instant::now();
            say!("{} lines read, {} requests sent", totals.lines, totals.sent);
        }
    }
}
