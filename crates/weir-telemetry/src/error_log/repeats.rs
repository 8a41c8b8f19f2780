//! Limits repeated log lines: of many lines from one place in the code within a short time, a few are written, and the number of
//! the others.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::ErrorLogFormat;

/// Lines from one place that are written within [`WINDOW`]; further ones are counted.
pub(super) const LINES: u32 = 30;
pub(super) const WINDOW: Duration = Duration::from_secs(10);
/// The target of lines whose writer bounds their number: one place in the code writes those of many.
pub const BOUNDED: &str = "plugin";
/// The beginning of the targets of our own lines.
const OWN: &str = "weir";

/// Formats lines, and suppresses those that repeat too often.
pub(super) struct SummarizeRepeats<F> {
    lines: F,
    shape: ErrorLogFormat,
    /// Lines of libraries are written, too: they say what failed, and not for whom.
    of_libraries: bool,
    windows: Mutex<HashMap<Identifier, Window>>,
}

/// The recent lines of one place in the code.
struct Window {
    began: Instant,
    /// Lines since `began`, written or suppressed.
    lines: u32,
}

/// What to do with a line.
#[derive(Debug, PartialEq, Eq)]
enum LineVerdict {
    Write,
    /// Write it, and announce that further lines are suppressed.
    WriteAndTell,
    LeaveOut,
    /// Report the number of lines suppressed in the previous window, then write the line.
    TellAndWrite(u32),
}

impl Window {
    fn judge(&mut self, now: Instant) -> LineVerdict {
        if now.duration_since(self.began) >= WINDOW {
            let left_out = self.lines.saturating_sub(LINES);
            *self = Window { began: now, lines: 1 };
            return if left_out == 0 { LineVerdict::Write } else { LineVerdict::TellAndWrite(left_out) };
        }
        self.lines = self.lines.saturating_add(1);
        match self.lines {
            ..LINES => LineVerdict::Write,
            LINES => LineVerdict::WriteAndTell,
            _ => LineVerdict::LeaveOut,
        }
    }
}

impl<F> SummarizeRepeats<F> {
    pub(super) fn new(lines: F, shape: ErrorLogFormat, of_libraries: bool) -> Self {
        Self { lines, shape, of_libraries, windows: Mutex::default() }
    }

    fn judge(&self, place: Identifier, now: Instant) -> LineVerdict {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        windows.entry(place).or_insert(Window { began: now, lines: 0 }).judge(now)
    }

    /// Writes a line of the log about itself.
    fn tell(&self, mut writer: Writer<'_>, of: &Metadata<'_>, what: fmt::Arguments<'_>) -> fmt::Result {
        let level = of.level();
        match self.shape {
            ErrorLogFormat::Text => {
                SystemTime.format_time(&mut writer)?;
                writeln!(writer, " {level:>5} {what}")
            }
            ErrorLogFormat::Json => {
                write!(writer, "{{\"timestamp\":\"")?;
                SystemTime.format_time(&mut writer)?;
                writeln!(writer, "\",\"level\":\"{level}\",\"message\":\"{what}\"}}")
            }
        }
    }
}

impl<S, N, F> FormatEvent<S, N> for SummarizeRepeats<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let of = event.metadata();
        if of.target() == BOUNDED {
            return self.lines.format_event(context, writer, event);
        }
        if !self.of_libraries && !of.target().starts_with(OWN) {
            return Ok(());
        }
        let verdict = self.judge(of.callsite(), Instant::now());
        match verdict {
            LineVerdict::LeaveOut => return Ok(()),
            LineVerdict::TellAndWrite(count) => {
                let what = format_args!("{count} lines like the one below were left out");
                self.tell(writer.by_ref(), of, what)?;
            }
            LineVerdict::Write | LineVerdict::WriteAndTell => {}
        }
        self.lines.format_event(context, writer.by_ref(), event)?;
        if verdict == LineVerdict::WriteAndTell {
            let window_s = WINDOW.as_secs();
            let what = format_args!("further lines like the one above are left out for up to {window_s} s");
            self.tell(writer, of, what)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_that_was_full_tells_how_many_were_left_out() {
        let began = Instant::now();
        let mut window = Window { began, lines: 0 };
        for _ in 1..LINES {
            assert_eq!(window.judge(began), LineVerdict::Write);
        }
        assert_eq!(window.judge(began), LineVerdict::WriteAndTell);
        for _ in 0..7 {
            assert_eq!(window.judge(began), LineVerdict::LeaveOut);
        }
        assert_eq!(window.judge(began + WINDOW), LineVerdict::TellAndWrite(7));
        assert_eq!(window.judge(began + WINDOW), LineVerdict::Write);
        assert_eq!(window.judge(began + 2 * WINDOW), LineVerdict::Write, "nothing was left out");
    }
}
