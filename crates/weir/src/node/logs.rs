//! Opens the logs that the settings configure.

use std::path::Path;
use std::sync::Arc;

use tracing::level_filters::LevelFilter;
use weir_control::document::{AccessLogFormat, AccessLogSpec, LogLevel};
use weir_gateway::access_log::LineFormat;
use weir_telemetry::access_log;
use weir_telemetry::log_file::{LogCounters, LogSink, LogWriter};

use crate::exit::ExitFailure;
use crate::say::{say, say_error};

/// The names of the logs in messages.
pub(super) const ACCESS_LOG: &str = "access log";
pub(super) const AUDIT_LOG: &str = "audit log";

/// Opens a log, if it is configured.
pub(super) fn open(
    name: &'static str,
    path: Option<&Path>,
    counters: &Arc<LogCounters>,
) -> Result<Option<LogWriter>, ExitFailure> {
    let Some(path) = path else { return Ok(None) };
    LogWriter::open(name, path, Arc::clone(counters)).map(Some).map_err(|error| {
        say_error!(
            "the {name} {} cannot be opened: {error}; check that its folder exists, and that the user of the process may write there",
            path.display()
        );
        ExitFailure::System
    })
}

/// Reopens a log after its file was renamed.
pub(super) fn reopen(name: &'static str, log: &LogWriter) {
    let path = log.path().display().to_string();
    log.reopen(move |reopened| match reopened {
        Ok(()) => say!("the {name} was reopened"),
        Err(error) => say_error!("the {name} {path} cannot be reopened, the old file stays in use: {error}"),
    });
}

/// The format and the sinks for the workers.
pub(super) fn for_workers(
    settings: Option<&AccessLogSpec>,
    log: Option<&LogWriter>,
    workers: usize,
) -> Option<(LineFormat, Vec<LogSink>)> {
    let (settings, log) = settings.zip(log)?;
    let format = LineFormat::new(&template(&settings.format));
    Some((format, (0..workers).map(|_| log.sink()).collect()))
}

fn template(format: &AccessLogFormat) -> String {
    match format {
        AccessLogFormat::Combined => access_log::COMBINED.to_owned(),
        AccessLogFormat::Json => access_log::JSON.to_owned(),
        AccessLogFormat::Template(template) => template.clone(),
        AccessLogFormat::Fields(fields) => {
            // Only the literal text is quoted here; variables stay as they are, and their values are quoted when a line is
            // formatted.
            let quoted = |text: &String| serde_json::Value::from(text.as_str()).to_string();
            let members = fields.iter().map(|(name, value)| format!("{}:{}", quoted(name), quoted(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(","))
        }
    }
}

/// Maps nginx's levels: `notice` becomes the less verbose one of its two neighbours, `warn`, and everything above `error` becomes
/// `error`.
pub(super) fn level(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Emerg | LogLevel::Alert | LogLevel::Crit | LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn | LogLevel::Notice => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p14_fields_of_a_log_are_quoted_and_variables_left_alone() {
        let fields = [("client", "$remote_addr"), ("a \"b\"", "it's \"${uri}\"\n")];
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        assert_eq!(
            template(&AccessLogFormat::Fields(fields)),
            r#"{"client":"$remote_addr","a \"b\"":"it's \"${uri}\"\n"}"#
        );
    }
}
