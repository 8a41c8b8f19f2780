//! The clock of a worker's thread, read once per wake-up.

use std::cell::{Cell, RefCell};
use std::time::SystemTime;

use weir_net::clock::Clock;
use weir_proto::field::{Name, PreparedField};

pub(crate) struct WorkerClock {
    #[cfg(not(test))]
    clock: Clock,
    now_ns: Cell<u64>,
    date: RefCell<Date>,
    /// When the clock was made, for it and for the runtime, whose time a test may simulate.
    #[cfg(test)]
    made: (u64, tokio::time::Instant),
}

/// The `Date` line of responses, and until when it is used.
struct Date {
    name: Name,
    line: PreparedField,
    until_ns: u64,
}

impl Date {
    fn new() -> Date {
        let name = Name::new(b"Date").expect("a valid name");
        Date { line: Date::line(&name), name, until_ns: 0 }
    }

    fn line(name: &Name) -> PreparedField {
        name.with(httpdate::fmt_http_date(SystemTime::now()).as_bytes()).expect("a date is a valid value")
    }
}

impl WorkerClock {
    pub(crate) fn new(clock: Clock) -> WorkerClock {
        WorkerClock {
            #[cfg(not(test))]
            clock,
            now_ns: Cell::new(clock.now_ns()),
            date: RefCell::new(Date::new()),
            #[cfg(test)]
            made: (clock.now_ns(), tokio::time::Instant::now()),
        }
    }

    /// The last reading of the clock. A task reads the clock when it wakes up; everything it does until it waits again
    /// counts as done at that time.
    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    /// Reads the clock.
    pub(crate) fn wake_up(&self) -> u64 {
        let now_ns = self.read();
        self.now_ns.set(now_ns);
        now_ns
    }

    #[cfg(not(test))]
    #[inline]
    fn read(&self) -> u64 {
        self.clock.now_ns()
    }

    #[cfg(test)]
    fn read(&self) -> u64 {
        let (made_ns, made) = self.made;
        made_ns + made.elapsed().as_nanos() as u64
    }

    /// The `Date` of a response (RFC 9110 §6.6.1), formatted ten times a second at most.
    pub(crate) fn with_date<T>(&self, now_ns: u64, use_it: impl FnOnce(&PreparedField) -> T) -> T {
        let mut date = self.date.borrow_mut();
        if now_ns >= date.until_ns {
            date.until_ns = now_ns + 100_000_000;
            date.line = Date::line(&date.name);
        }
        use_it(&date.line)
    }
}
