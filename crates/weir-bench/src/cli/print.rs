//! Output of the commands. The reader may close the pipe early: `weir bench run … | head` still writes its result.

use std::fmt::Arguments;
use std::io::Write;

/// Writes one line to stdout. Errors are ignored, because the reader may have closed the pipe.
pub(crate) fn line(text: Arguments) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Like `println!`, but ignores a closed pipe.
macro_rules! out {
    ($($format:tt)*) => { $crate::cli::print::line(format_args!($($format)*)) };
}
pub(crate) use out;
