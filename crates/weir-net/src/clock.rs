//! The worker's clock: monotonic nanoseconds since its creation, read once per wake-up and passed along; and a thread's CPU
//! time.

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base_ns: u64,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock { base_ns: monotonic_ns() }
    }
}

impl Clock {
    /// The current time; never 0, which stands for "has not happened".
    pub fn now_ns(&self) -> u64 {
        monotonic_ns() - self.base_ns + 1
    }
}

/// Nanoseconds of the clock behind `Instant`, without the checks and conversions of a difference of two instants.
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds of CPU time used by this thread, including the kernel. A system call of some hundred nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

#[expect(unsafe_code, reason = "the call with the least around it, since a worker reads the clock whenever it wakes")]
fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec, to a valid pointer.
    let failed = unsafe { libc::clock_gettime(clock, &raw mut time) };
    debug_assert_eq!(failed, 0, "every Linux has these clocks");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
