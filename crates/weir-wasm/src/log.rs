//! What plugins log: lines of the error log, at most so many in a period.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tracing::Level;
use weir_telemetry::error_log::BOUNDED;

use crate::limits;

/// The level of lines about what fails.
pub(crate) const ERROR: u32 = 4;

/// The lines that the plugin of one resource may still write.
#[derive(Debug)]
pub(crate) struct PluginLog {
    plugin: Box<str>,
    budget: Mutex<LogBudget>,
    /// Of what the gateway says of it, which must not be lost among its own lines.
    of_gateway: Mutex<LogBudget>,
}

#[derive(Debug)]
struct LogBudget {
    since: Instant,
    written: u32,
    dropped: u64,
}

impl Default for LogBudget {
    fn default() -> LogBudget {
        LogBudget { since: Instant::now(), written: 0, dropped: 0 }
    }
}

impl PluginLog {
    /// `plugin`: its name, and the resource that it stands in.
    pub(crate) fn new(plugin: &str) -> PluginLog {
        PluginLog { plugin: plugin.into(), budget: Mutex::default(), of_gateway: Mutex::default() }
    }

    /// A line of the plugin, at a level of its interface: from 0, trace, to 5, critical.
    pub(crate) fn line(&self, level: u32, text: &str) {
        let shown = is_shown(level);
        if !shown || !self.may_write(&self.budget) {
            return;
        }
        let plugin = &*self.plugin;
        match level {
            0 => tracing::trace!(target: BOUNDED, "plugin {plugin}: {text}"),
            1 => tracing::debug!(target: BOUNDED, "plugin {plugin}: {text}"),
            2 => tracing::info!(target: BOUNDED, "plugin {plugin}: {text}"),
            3 => tracing::warn!(target: BOUNDED, "plugin {plugin}: {text}"),
            _ => tracing::error!(target: BOUNDED, "plugin {plugin}: {text}"),
        }
    }

    /// A line of the gateway about a failure of the plugin.
    pub(crate) fn failure(&self, what: impl Display) {
        if is_shown(ERROR) && self.may_write(&self.of_gateway) {
            tracing::error!(target: BOUNDED, "plugin {}: it has failed: {what}", self.plugin);
        }
    }

    fn may_write(&self, budget: &Mutex<LogBudget>) -> bool {
        let mut budget = budget.lock().unwrap_or_else(PoisonError::into_inner);
        if budget.since.elapsed() >= limits::LOG_PERIOD {
            let dropped = std::mem::take(&mut budget.dropped);
            (budget.since, budget.written) = (Instant::now(), 0);
            if dropped > 0 {
                tracing::warn!(target: BOUNDED, "plugin {}: {dropped} lines were left out before this one", self.plugin);
            }
        }
        let may = budget.written < limits::LOG_LINES;
        budget.written += u32::from(may);
        budget.dropped += u64::from(!may);
        may
    }
}

/// Bytes of a plugin as a line of a log: cut, and without control characters, which would make other lines of it.
pub(crate) fn text(bytes: &[u8]) -> String {
    let is_cut = bytes.len() > limits::LOG_LINE;
    let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(limits::LOG_LINE)]);
    let mut text = shown.trim_end().replace(char::is_control, " ");
    if is_cut {
        text.push('…');
    }
    text
}

/// The least severe level that the error log has.
pub(crate) fn least_level() -> u32 {
    (0..5).find(|level| is_shown(*level)).unwrap_or(5)
}

fn is_shown(level: u32) -> bool {
    match level {
        0 => tracing::enabled!(target: BOUNDED, Level::TRACE),
        1 => tracing::enabled!(target: BOUNDED, Level::DEBUG),
        2 => tracing::enabled!(target: BOUNDED, Level::INFO),
        3 => tracing::enabled!(target: BOUNDED, Level::WARN),
        _ => tracing::enabled!(target: BOUNDED, Level::ERROR),
    }
}
