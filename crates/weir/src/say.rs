//! Output to the terminal: results on stdout; messages on stderr, as lines that begin with `weir: `, or as objects if the log
//! format is JSON.

use std::fmt::Arguments;
use std::io::{self, BufRead, IsTerminal, Write as _};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tracing::Level;
use weir_telemetry::{error_log, stderr};

use crate::exit::{self, ExitFailure};

static IN_JSON: AtomicBool = AtomicBool::new(false);

/// Sets the format of the lines to that of the error log.
pub(crate) fn like(format: error_log::ErrorLogFormat) {
    IN_JSON.store(format == error_log::ErrorLogFormat::Json, Relaxed);
}

/// Writes one line in a single write, so that lines of two processes do not mix during an upgrade. Only JSON shows the level.
pub(crate) fn line(level: Level, text: Arguments) {
    if IN_JSON.load(Relaxed) {
        stderr::write_line(error_log::json_line(level, &text.to_string()).as_bytes());
    } else {
        stderr::write_line(format!("weir: {text}\n").as_bytes());
    }
}

/// `say!("listening on {addr}")`.
macro_rules! say {
    ($($format:tt)*) => { $crate::say::line(tracing::Level::INFO, format_args!($($format)*)) };
}
pub(crate) use say;

/// Says what has failed: `say_error!("cannot listen on {addr}: {error}")`.
macro_rules! say_error {
    ($($format:tt)*) => { $crate::say::line(tracing::Level::ERROR, format_args!($($format)*)) };
}
pub(crate) use say_error;

/// Prints a result. A closed pipe, as with `head`, is not a failure.
pub(crate) fn print(text: &[u8]) -> ExitCode {
    match io::stdout().write_all(text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            say_error!("cannot write to standard output: {error}");
            ExitFailure::System.into()
        }
        _ => exit::DONE,
    }
}

/// Asks on standard error whether a change is to be made. A script, whose input is no terminal, must say so by an option.
///
/// # Errors
/// Standard input is not a terminal, or cannot be read.
pub(crate) fn confirmed(question: &str) -> Result<bool, String> {
    let input = io::stdin();
    if !input.is_terminal() {
        return Err("standard input is not a terminal, so the change cannot be confirmed: use `--yes`".to_owned());
    }
    let _ = write!(io::stderr(), "{question} [y/N] ");
    let mut line = String::new();
    input.lock().read_line(&mut line).map_err(|error| format!("the answer cannot be read: {error}"))?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}
