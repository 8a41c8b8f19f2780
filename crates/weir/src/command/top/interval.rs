//! Two readings, and the rates of counters between them.

use super::scrape::Scrape;

pub(super) struct ReadingPair<'a> {
    pub before: &'a Scrape,
    pub after: &'a Scrape,
    pub seconds: f64,
}

impl ReadingPair<'_> {
    /// The rate per second. A counter that has decreased is of a process that was restarted in between.
    pub(super) fn rate(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let (before, after) = (self.before.sum(name, labels), self.after.sum(name, labels));
        if after < before { after / self.seconds } else { (after - before) / self.seconds }
    }
}
