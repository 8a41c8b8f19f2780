//! What plugins log: lines of the error log, at most so many in a period.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tracing::Level;

use crate::limits;

/// The level of lines about what fails.
pub const ERROR: u32 = 4;

/// The lines that the plugin of one resource may still write.
#[derive(Debug)]
pub struct PluginLog {
    plugin: Box<str>,
    budget: Mutex<LogBudget>,
}

#[derive(Debug)]
struct LogBudget {
    since: Instant,
    written: u32,
    dropped: u64,
}

impl PluginLog {
    /// `plugin`: its name, and the resource that it stands in.
    pub fn new(plugin: &str) -> PluginLog {
        let budget = LogBudget { since: Instant::now(), written: 0, dropped: 0 };
        PluginLog { plugin: plugin.into(), budget: Mutex::new(budget) }
    }

    /// A line of the plugin, at a level of its interface: from 0, trace, to 5, critical.
    pub fn line(&self, level: u32, text: &str) {
        let shown = is_shown(level);
        if !shown || !self.may_write() {
            return;
        }
        let plugin = &*self.plugin;
        match level {
            0 => tracing::trace!("plugin {plugin}: {text}"),
            1 => tracing::debug!("plugin {plugin}: {text}"),
            2 => tracing::info!("plugin {plugin}: {text}"),
            3 => tracing::warn!("plugin {plugin}: {text}"),
            _ => tracing::error!("plugin {plugin}: {text}"),
        }
    }

    fn may_write(&self) -> bool {
        let mut budget = self.budget.lock().unwrap_or_else(PoisonError::into_inner);
        if budget.since.elapsed() >= limits::LOG_PERIOD {
            let dropped = std::mem::take(&mut budget.dropped);
            (budget.since, budget.written) = (Instant::now(), 0);
            if dropped > 0 {
                tracing::warn!("plugin {}: {dropped} lines were left out before this one", self.plugin);
            }
        }
        let may = budget.written < limits::LOG_LINES;
        budget.written += u32::from(may);
        budget.dropped += u64::from(!may);
        may
    }
}

/// The least severe level that the error log has.
pub fn least_level() -> u32 {
    (0..5).find(|level| is_shown(*level)).unwrap_or(5)
}

fn is_shown(level: u32) -> bool {
    match level {
        0 => tracing::enabled!(Level::TRACE),
        1 => tracing::enabled!(Level::DEBUG),
        2 => tracing::enabled!(Level::INFO),
        3 => tracing::enabled!(Level::WARN),
        _ => tracing::enabled!(Level::ERROR),
    }
}
