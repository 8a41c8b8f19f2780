//! What the command tells who started it. Lines begin with `weir: ` and go to stderr.

use std::fmt::Arguments;
use std::io::Write;

/// Writes one line. A stderr that is closed or full is no reason to stop: whoever read it has gone.
pub fn line(text: Arguments) {
    // One write for the whole line, so that lines of two processes do not mix during an upgrade.
    let line = format!("weir: {text}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// `say!("listening on {addr}")`.
macro_rules! say {
    ($($format:tt)*) => { $crate::say::line(format_args!($($format)*)) };
}
pub(crate) use say;
