//! The clock of a worker's thread, read once per wake-up.

use std::cell::{Cell, RefCell};
use std::time::SystemTime;

use weir_net::clock::Clock;

pub struct WorkerClock {
    clock: Clock,
    now_ns: Cell<u64>,
    date: RefCell<Date>,
}

#[derive(Default)]
struct Date {
    text: String,
    until_ns: u64,
}

impl WorkerClock {
    pub fn new(clock: Clock) -> WorkerClock {
        WorkerClock { clock, now_ns: Cell::new(clock.now_ns()), date: RefCell::default() }
    }

    /// The last reading of the clock. A task reads the clock when it wakes up; everything it does until it waits again
    /// counts as done at that time.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    /// Reads the clock.
    pub fn wake_up(&self) -> u64 {
        let now_ns = self.clock.now_ns();
        self.now_ns.set(now_ns);
        now_ns
    }

    /// The `Date` of a response that the gateway makes (RFC 9110 §6.6.1), formatted ten times a second at most.
    pub fn with_date<T>(&self, now_ns: u64, use_it: impl FnOnce(&str) -> T) -> T {
        let mut date = self.date.borrow_mut();
        if now_ns >= date.until_ns {
            date.until_ns = now_ns + 100_000_000;
            date.text = httpdate::fmt_http_date(SystemTime::now());
        }
        use_it(&date.text)
    }
}
