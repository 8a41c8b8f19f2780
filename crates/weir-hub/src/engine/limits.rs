//! The counters of limits of deliveries.

use std::collections::HashMap;

use slab::Slab;

use crate::limit::{DeliveryLimit, ExcessDelivery, LimitWindow};

/// The limits of all subscriptions, each kept once and counted once per subscription. The counters begin anew with the process.
#[derive(Default)]
pub(super) struct DeliveryLimits {
    limits: Slab<CountedLimit>,
    numbers: HashMap<DeliveryLimit, u32>,
}

struct CountedLimit {
    limit: DeliveryLimit,
    uses: u32,
    window_began_ms: u64,
    current: Counted,
    /// Of the window before; only for sliding windows.
    previous: Counted,
}

#[derive(Clone, Copy, Default)]
struct Counted {
    events: u64,
    bytes: u64,
}

/// Whether an event may be delivered now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitVerdict {
    Deliver,
    WaitUntil(u64),
    Drop,
}

/// The use of a limit, in events or in bytes: the maximum, and what the current and the previous window have used.
#[derive(Clone, Copy)]
struct LimitUse {
    most: u64,
    current: u64,
    previous: u64,
}

impl CountedLimit {
    fn window_ms(&self) -> u64 {
        self.limit.window_s.saturating_mul(1_000).max(1)
    }

    /// Begins another window if the last one is over.
    fn roll(&mut self, now_ms: u64) {
        let (window_ms, elapsed_ms) = (self.window_ms(), now_ms.saturating_sub(self.window_began_ms));
        if elapsed_ms < window_ms {
            return;
        }
        let follows = self.limit.window == LimitWindow::Sliding && elapsed_ms < 2 * window_ms;
        self.previous = if follows { self.current } else { Counted::default() };
        self.current = Counted::default();
        self.window_began_ms = if follows { self.window_began_ms + window_ms } else { now_ms };
    }

    /// When something may be left again; `None` if something is left now.
    fn used_up_until(&mut self, now_ms: u64) -> Option<u64> {
        self.roll(now_ms);
        let (current, previous) = (self.current, self.previous);
        let of_count = |most| LimitUse { most, current: current.events, previous: previous.events };
        let of_bytes = |most| LimitUse { most, current: current.bytes, previous: previous.bytes };
        let (of_count, of_bytes) = (self.limit.count.map(of_count), self.limit.bytes.map(of_bytes));
        [of_count, of_bytes].into_iter().flatten().filter_map(|used| self.free_at(used, now_ms)).max()
    }

    /// When a limit has something left again.
    fn free_at(&self, used: LimitUse, now_ms: u64) -> Option<u64> {
        let LimitUse { most, current, previous } = used;
        let window_ms = u128::from(self.window_ms());
        let left_ms = window_ms - u128::from(now_ms.saturating_sub(self.window_began_ms));
        let of_previous = u128::from(previous) * left_ms / window_ms;
        if u128::from(current) + of_previous < u128::from(most) {
            return None;
        }
        let end_ms = self.window_began_ms + self.window_ms();
        if current >= most || previous == 0 {
            return Some(end_ms);
        }
        // At this time, less of the previous window counts than the current one leaves.
        let counting_ms = u128::from(most - current) * window_ms / u128::from(previous);
        Some((end_ms - (counting_ms.min(window_ms) as u64)).max(now_ms + 1))
    }
}

impl DeliveryLimits {
    /// The number of a limit, which gets one more use.
    pub(super) fn add(&mut self, limit: &DeliveryLimit) -> u32 {
        if let Some(number) = self.numbers.get(limit) {
            self.limits[*number as usize].uses += 1;
            return *number;
        }
        let counted = CountedLimit {
            limit: limit.clone(),
            uses: 1,
            window_began_ms: 0,
            current: Counted::default(),
            previous: Counted::default(),
        };
        let number = self.limits.insert(counted) as u32;
        self.numbers.insert(limit.clone(), number);
        number
    }

    pub(super) fn release(&mut self, number: u32) {
        let counted = &mut self.limits[number as usize];
        counted.uses -= 1;
        if counted.uses == 0 {
            let counted = self.limits.remove(number as usize);
            self.numbers.remove(&counted.limit);
        }
    }

    pub(super) fn get(&self, number: u32) -> &DeliveryLimit {
        &self.limits[number as usize].limit
    }

    /// Counts an event against all of these limits, if none is used up.
    pub(super) fn take(&mut self, numbers: &[u32], bytes: u64, now_ms: u64) -> LimitVerdict {
        let mut wait_until = None;
        for number in numbers {
            let counted = &mut self.limits[*number as usize];
            let Some(until_ms) = counted.used_up_until(now_ms) else { continue };
            match counted.limit.excess {
                ExcessDelivery::Drop => return LimitVerdict::Drop,
                ExcessDelivery::Wait => wait_until = wait_until.max(Some(until_ms)),
            }
        }
        if let Some(until_ms) = wait_until {
            return LimitVerdict::WaitUntil(until_ms);
        }
        for number in numbers {
            let current = &mut self.limits[*number as usize].current;
            current.events += 1;
            current.bytes = current.bytes.saturating_add(bytes);
        }
        LimitVerdict::Deliver
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(count: Option<u64>, bytes: Option<u64>, window: LimitWindow) -> DeliveryLimit {
        DeliveryLimit { key: "k".into(), count, bytes, window_s: 10, window, excess: ExcessDelivery::Wait }
    }

    /// The times at which events are delivered that are all due at the beginning.
    fn times(limit: &DeliveryLimit, events: usize, bytes: u64) -> Vec<u64> {
        let mut limits = DeliveryLimits::default();
        let number = limits.add(limit);
        let (mut now_ms, mut times) = (1_000_000, Vec::new());
        while times.len() < events {
            match limits.take(&[number], bytes, now_ms) {
                LimitVerdict::Deliver => times.push(now_ms - 1_000_000),
                LimitVerdict::WaitUntil(at_ms) => {
                    assert!(at_ms > now_ms, "{at_ms} is not later than {now_ms}");
                    now_ms = at_ms;
                }
                LimitVerdict::Drop => panic!("events wait"),
            }
        }
        times
    }

    #[test]
    fn a_fixed_window_begins_with_its_first_event() {
        let fixed = |count, bytes| limit(count, bytes, LimitWindow::Fixed);
        assert_eq!(times(&fixed(Some(2), None), 5, 7), [0, 0, 10_000, 10_000, 20_000]);
        assert_eq!(times(&fixed(None, Some(10)), 5, 7), [0, 0, 10_000, 10_000, 20_000], "while any bytes are left");
        assert_eq!(times(&fixed(Some(9), Some(1)), 3, 7), [0, 10_000, 20_000], "the stricter one holds");
    }

    #[test]
    fn a_sliding_window_spreads_what_follows_a_burst() {
        let times = times(&limit(Some(4), None, LimitWindow::Sliding), 12, 1);
        assert_eq!(times[..4], [0; 4]);
        assert!(times[4..].windows(2).all(|pair| pair[0] < pair[1]), "one after the other: {times:?}");
        for from in &times[4..] {
            let within = times.iter().filter(|at| (*from..from + 10_000).contains(at)).count();
            assert!(within <= 5, "{within} from {from}: {times:?}");
        }
    }

    #[test]
    fn all_limits_have_to_leave_something_and_those_of_no_one_are_forgotten() {
        let mut limits = DeliveryLimits::default();
        let one = limits.add(&limit(Some(1), None, LimitWindow::Fixed));
        let drops =
            DeliveryLimit { key: "d".into(), excess: ExcessDelivery::Drop, ..limit(Some(2), None, LimitWindow::Fixed) };
        let other = limits.add(&drops);
        assert_eq!(limits.take(&[one, other], 1, 0), LimitVerdict::Deliver);
        assert_eq!(limits.take(&[one, other], 1, 1), LimitVerdict::WaitUntil(10_000));
        assert_eq!(limits.take(&[other], 1, 1), LimitVerdict::Deliver);
        assert_eq!(limits.take(&[one, other], 1, 2), LimitVerdict::Drop);
        assert_eq!(limits.add(&drops), other);
        [one, other, other].into_iter().for_each(|number| limits.release(number));
        assert!(limits.limits.is_empty() && limits.numbers.is_empty());
    }
}
