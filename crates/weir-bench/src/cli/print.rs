//! What commands print. The reader may leave early: `weir bench run … | head` still writes its result.

use std::fmt::Arguments;
use std::io::Write;

/// Writes one line to stdout. A reader that has gone is no reason to stop.
pub fn line(text: Arguments) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// As `println!`, but for a reader that has gone.
macro_rules! out {
    ($($format:tt)*) => { $crate::cli::print::line(format_args!($($format)*)) };
}
pub(crate) use out;
