//! The priority of a thread while others wait for it.

use std::marker::PhantomData;

use rustix::process::{getpriority_process, setpriority_process};

/// How much the nice value falls. The scheduler then counts the thread's processor time at about a tenth.
const STEP: i32 = 10;

/// While it exists, the thread that created it gets the processor soon after each of its pauses, although other threads keep the
/// processors busy.
///
/// A thread that computes, pauses for a short time (a disk write), and continues has had more than its share by then: on a busy
/// processor, Linux lets every other thread run for a whole time slice first, which is 4 ms on many machines. Use it for a few
/// pauses with little work between, and start no thread meanwhile: a new thread inherits the nice value.
#[derive(Debug)]
pub struct PreferredThread {
    before: i32,
    /// It belongs to its thread.
    _not_send: PhantomData<*const ()>,
}

impl PreferredThread {
    /// `None` if the process does not have the right (`CAP_SYS_NICE`, or a limit such as `LimitNICE=-10` of systemd): nothing
    /// changes then.
    pub fn begin() -> Option<PreferredThread> {
        let before = getpriority_process(None).ok()?;
        setpriority_process(None, before - STEP).ok()?;
        Some(PreferredThread { before, _not_send: PhantomData })
    }
}

impl Drop for PreferredThread {
    fn drop(&mut self) {
        // Giving up a preference needs no right.
        let _ = setpriority_process(None, self.before);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn nice() -> i32 {
        getpriority_process(None).expect("of this thread")
    }

    #[test]
    fn a_preference_ends_with_its_guard_and_concerns_one_thread() {
        let before = nice();
        thread::spawn(move || {
            let preferred = PreferredThread::begin();
            let expected = if preferred.is_some() { (before - STEP).max(-20) } else { before };
            assert_eq!(nice(), expected);
            drop(preferred);
            assert_eq!(nice(), before);
        })
        .join()
        .expect("it does not panic");
        assert_eq!(nice(), before);
    }
}
