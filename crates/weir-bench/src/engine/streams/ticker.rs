//! Waits with microsecond precision: the runtime's own timers have milliseconds.

use std::io;
use std::os::fd::OwnedFd;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::yield_now;

use super::StreamsState;
use crate::engine::clock::now_ns;

/// The longest duration of an idle turn of the runtime; a longer one contained work.
const LONGEST_TURN_NS: u64 = 2_000;

/// A timer of the kernel (timerfd).
pub(super) struct Ticker(AsyncFd<OwnedFd>);

impl Ticker {
    #[expect(unsafe_code, reason = "tokio asks for a promise about the descriptor")]
    pub(super) fn new() -> io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        // SAFETY: an `OwnedFd` names the same open file as long as it lives, and lives in here.
        Ok(Self(unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE) }?))
    }

    /// Returns at this time of the monotonic clock; the last part is spent spinning, as the plan defines.
    pub(super) async fn until(&self, at: u64, shared: &StreamsState) {
        let spin = shared.plan().spin_ns;
        let mut now = now_ns();
        if at > now + spin {
            self.sleep(at - spin).await;
            now = now_ns();
        }
        while now < at {
            yield_now().await;
            let before = std::mem::replace(&mut now, now_ns());
            shared.record().spun((now - before).min(LONGEST_TURN_NS));
        }
    }

    async fn sleep(&self, at: u64) {
        let moment = Timespec { tv_sec: (at / 1_000_000_000) as i64, tv_nsec: (at % 1_000_000_000) as _ };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: moment };
        let set = timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::ABSTIME, &once);
        set.expect("the descriptor is a timer and the time is valid");
        // An expired timer stays readable until it is read or set again.
        if let Ok(mut ready) = self.0.readable().await {
            let mut expirations = [0; 8];
            let _ = rustix::io::read(self.0.get_ref(), &mut expirations);
            ready.clear_ready();
        }
    }
}
