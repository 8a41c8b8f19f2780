//! What the command tells who started it, on stderr: lines that begin with `weir: `, or objects of JSON where the error log
//! consists of them.

use std::fmt::Arguments;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use weir_telemetry::{error_log, stderr};

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

/// `say!("listening on {addr}")`.
macro_rules! say {
    ($($format:tt)*) => { $crate::say::line(format_args!($($format)*)) };
}
pub(crate) use say;
