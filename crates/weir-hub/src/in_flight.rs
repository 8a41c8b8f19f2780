//! The events of the deliveries under way, which are held in memory until the last of them has ended.

use std::collections::HashMap;

/// The bytes of distinct events after which no delivery begins. Deliveries of one event share its content.
const MOST_BYTES: usize = 64 << 20;

#[derive(Default)]
pub(crate) struct EventsInFlight {
    /// By number: the deliveries, and the size of the content.
    events: HashMap<u64, (usize, usize)>,
    bytes: usize,
}

impl EventsInFlight {
    /// Whether another delivery may begin.
    pub(crate) fn has_room(&self) -> bool {
        self.bytes < MOST_BYTES
    }

    pub(crate) fn begin(&mut self, seq: u64, bytes: usize) {
        let (deliveries, _) = self.events.entry(seq).or_insert_with(|| {
            self.bytes += bytes;
            (0, bytes)
        });
        *deliveries += 1;
    }

    pub(crate) fn end(&mut self, seq: u64) {
        let Some((deliveries, bytes)) = self.events.get_mut(&seq) else { return };
        *deliveries -= 1;
        if *deliveries == 0 {
            self.bytes -= *bytes;
            self.events.remove(&seq);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_counts_once_until_its_last_delivery_has_ended() {
        let mut in_flight = EventsInFlight::default();
        for _ in 0..1_000 {
            in_flight.begin(1, MOST_BYTES - 1);
        }
        assert!(in_flight.has_room());
        in_flight.begin(2, 1);
        assert!(!in_flight.has_room());
        (0..999).for_each(|_| in_flight.end(1));
        assert!(!in_flight.has_room());
        in_flight.end(1);
        assert!(in_flight.has_room());
        in_flight.end(2);
        assert!(in_flight.events.is_empty() && in_flight.bytes == 0);
    }
}
