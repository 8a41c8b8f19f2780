//! How long events take from the upstream's connection to the connections of the clients.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_telemetry::cell::{Histogram, HistogramTotals};

/// The delays on all workers since the process started. Each worker counts in a histogram of its own.
#[derive(Debug, Default)]
pub struct EventDelays(Mutex<DelaySets>);

#[derive(Debug, Default)]
struct DelaySets {
    current: Vec<Arc<Histogram>>,
    /// The sum of those that are not used any more.
    ended: HistogramTotals,
}

impl EventDelays {
    fn sets(&self) -> MutexGuard<'_, DelaySets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A histogram for one thread. Its counts stay when the thread has dropped it.
    pub fn begin(&self) -> Arc<Histogram> {
        let histogram = Arc::<Histogram>::default();
        self.sets().current.push(Arc::clone(&histogram));
        histogram
    }

    pub fn totals(&self) -> HistogramTotals {
        let mut sets = self.sets();
        let DelaySets { current, ended } = &mut *sets;
        current.retain(|histogram| {
            let is_used = Arc::strong_count(histogram) > 1;
            if !is_used {
                histogram.add_to(ended);
            }
            is_used
        });
        let mut totals = ended.clone();
        current.iter().for_each(|histogram| histogram.add_to(&mut totals));
        totals
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn counts_stay_when_their_thread_has_ended() {
        let delays = EventDelays::default();
        let (one, other) = (delays.begin(), delays.begin());
        one.record(Duration::from_millis(1));
        other.record(Duration::from_millis(2));
        assert_eq!(delays.totals().count(), 2);
        drop(one);
        other.record(Duration::from_millis(3));
        assert_eq!([delays.totals().count(), delays.totals().count()], [3, 3]);
        assert_eq!(delays.sets().current.len(), 1);
    }
}
