//! Two readings, and how fast counters grew between them.

use super::scrape::Scrape;

pub struct ReadingPair<'a> {
    pub before: &'a Scrape,
    pub after: &'a Scrape,
    pub seconds: f64,
}

impl ReadingPair<'_> {
    /// A counter that went back belongs to a process that has started since.
    pub fn rate(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let (before, after) = (self.before.sum(name, labels), self.after.sum(name, labels));
        if after < before { after / self.seconds } else { (after - before) / self.seconds }
    }
}
