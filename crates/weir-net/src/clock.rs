//! The worker's clock: monotonic nanoseconds since it was made. Read once per wake-up, then passed along.

use std::time::Instant;

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base: Instant,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock { base: Instant::now() }
    }
}

impl Clock {
    /// Never 0, which stands for "has not happened".
    pub fn now_ns(&self) -> u64 {
        self.base.elapsed().as_nanos() as u64 + 1
    }
}
