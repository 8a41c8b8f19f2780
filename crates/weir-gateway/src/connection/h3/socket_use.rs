//! When the workers of an address may close its UDP sockets. All stay open until no worker needs its own any more, and clients that begin
//! connections come to any of them: each worker goes on refusing them until the last one has served its connections to their end.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// The use of an address by one worker. Each copy is that of another one, and ends at the latest when it is dropped.
#[derive(Debug)]
pub(super) struct SocketUse {
    all: Arc<Mutex<SocketUses>>,
    has_ended: bool,
}

#[derive(Debug, Default)]
struct SocketUses {
    count: usize,
    /// Workers that have ended their use, and wait for the others: one waker for each.
    waiting: Vec<Waker>,
}

impl SocketUse {
    pub(super) fn new() -> SocketUse {
        SocketUse { all: Arc::new(Mutex::new(SocketUses { count: 1, waiting: Vec::new() })), has_ended: false }
    }

    /// Ends the use of this worker; ready when that of all others has ended, too.
    pub(super) fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.end();
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if all.count == 0 {
            return Poll::Ready(());
        }
        if !all.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            all.waiting.push(context.waker().clone());
        }
        Poll::Pending
    }

    fn end(&mut self) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.count -= 1;
        if all.count == 0 {
            all.waiting.drain(..).for_each(Waker::wake);
        }
    }
}

impl Clone for SocketUse {
    fn clone(&self) -> SocketUse {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.count += usize::from(!self.has_ended);
        SocketUse { all: Arc::clone(&self.all), has_ended: self.has_ended }
    }
}

impl Drop for SocketUse {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_waits_for_the_last_use_of_others() {
        let mut context = Context::from_waker(Waker::noop());
        let mut first = SocketUse::new();
        let (mut second, third) = (first.clone(), first.clone());
        assert!(first.poll_end(&mut context).is_pending());
        assert!(second.poll_end(&mut context).is_pending());
        assert!(first.poll_end(&mut context).is_pending());
        drop(third);
        assert!(first.poll_end(&mut context).is_ready() && second.poll_end(&mut context).is_ready());
    }
}
