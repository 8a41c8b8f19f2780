//! What the command tells who started it. Lines begin with `weir: ` and go to stderr.

use std::fmt::Arguments;

/// Writes one line, in one write, so that lines of two processes do not mix during an upgrade.
pub fn line(text: Arguments) {
    weir_telemetry::stderr::write_line(format!("weir: {text}\n").as_bytes());
}

/// `say!("listening on {addr}")`.
macro_rules! say {
    ($($format:tt)*) => { $crate::say::line(format_args!($($format)*)) };
}
pub(crate) use say;
