//! What the command tells who started it: what was asked for on stdout, and on stderr lines that begin with `weir: `, or objects of JSON where the error log
//! consists of them.

use std::fmt::Arguments;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use weir_telemetry::{error_log, stderr};

use crate::exit::{self, ExitFailure};

static IN_JSON: AtomicBool = AtomicBool::new(false);

/// From now on lines look as those of the error log in this format do.
pub fn like(format: error_log::ErrorLogFormat) {
    IN_JSON.store(format == error_log::ErrorLogFormat::Json, Relaxed);
}

/// Writes one line, in one write, so that lines of two processes do not mix during an upgrade.
pub fn line(text: Arguments) {
    if IN_JSON.load(Relaxed) {
        stderr::write_line(error_log::json_line(&text.to_string()).as_bytes());
    } else {
        stderr::write_line(format!("weir: {text}\n").as_bytes());
    }
}

/// Prints what the command was asked for. Whoever reads may have seen enough, as `head` has.
pub fn print(text: &[u8]) -> ExitCode {
    match io::stdout().write_all(text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            line(format_args!("cannot write to standard output: {error}"));
            ExitFailure::System.into()
        }
        _ => exit::DONE,
    }
}

/// `say!("listening on {addr}")`.
macro_rules! say {
    ($($format:tt)*) => { $crate::say::line(format_args!($($format)*)) };
}
pub(crate) use say;
