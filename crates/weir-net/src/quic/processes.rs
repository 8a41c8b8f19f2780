//! The processes that share addresses during upgrades of the binary.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) const TAG_BYTES: usize = size_of::<u32>();

/// What the connection ids of a process have in common, and those of other processes do not: in an upgrade, several processes have
/// sockets at the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessTag(pub u32);

impl ProcessTag {
    /// A random tag that no process in `others` has.
    pub fn new(others: &[ProcessTag]) -> ProcessTag {
        loop {
            let mut tag = [0; TAG_BYTES];
            aws_lc_rs::rand::fill(&mut tag).expect("the system has random numbers");
            let tag = ProcessTag(u32::from_be_bytes(tag));
            if !others.contains(&tag) {
                return tag;
            }
        }
    }
}

/// Tells whether a later process still serves an address: the one that was started, or those that it has handed the address on to.
#[derive(Debug)]
pub struct SuccessorWatch {
    pub bound: SocketAddr,
    /// The end of a pipe that can be read to its end when no later process serves the address. It does not block.
    pub(super) end: OwnedFd,
}

impl SuccessorWatch {
    /// Whether no later process serves the address over QUIC any more.
    pub fn is_left(&self) -> bool {
        // Nothing is ever written.
        rustix::io::read(&self.end, &mut [0; 1]) == Ok(0)
    }
}

/// The other processes that share addresses with this one, as far as known. The kernel seldom gives a datagram to the wrong process: it
/// may if a client has several connections with one socket, whose datagrams the kernel joins (GRO). A process must not reset a connection
/// that another has.
#[derive(Debug, Default)]
pub struct OtherProcesses {
    /// Earlier ones that have not ended.
    earlier: Mutex<Vec<ProcessTag>>,
    /// A later one has been started, or has taken over.
    has_later: AtomicBool,
    /// The addresses that were handed over to it.
    handed_over: Mutex<Vec<SuccessorWatch>>,
}

impl OtherProcesses {
    pub fn new(earlier: Vec<ProcessTag>) -> OtherProcesses {
        OtherProcesses { earlier: Mutex::new(earlier), ..OtherProcesses::default() }
    }

    /// An earlier process has ended.
    pub fn forget(&self, tag: ProcessTag) {
        self.earlier().retain(|earlier| *earlier != tag);
    }

    /// Sets the addresses that are handed over to a later process; `None` if there is none.
    pub fn set_later(&self, handed_over: Option<Vec<SuccessorWatch>>) {
        let has_later = handed_over.is_some();
        *self.handed_over() = handed_over.unwrap_or_default();
        self.has_later.store(has_later, Ordering::Relaxed);
    }

    /// Whether a later process serves this address.
    pub fn has_later_at(&self, bound: SocketAddr) -> bool {
        let bound = canonical(bound);
        self.handed_over().iter().any(|watch| canonical(watch.bound) == bound && !watch.is_left())
    }

    /// Whether another process with this tag may be there. The tag of a later one is not known.
    pub(super) fn may_have(&self, tag: ProcessTag) -> bool {
        self.has_later.load(Ordering::Relaxed) || self.earlier().contains(&tag)
    }

    fn handed_over(&self) -> MutexGuard<'_, Vec<SuccessorWatch>> {
        self.handed_over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn earlier(&self) -> MutexGuard<'_, Vec<ProcessTag>> {
        self.earlier.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

#[cfg(test)]
mod tests {
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    #[test]
    fn an_address_counts_as_handed_over_until_the_last_process_has_closed_its_end() {
        let [served, other] = ["192.0.2.1:443", "192.0.2.2:443"].map(|addr| addr.parse().expect("an address"));
        let others = OtherProcesses::default();
        let later = |others: &OtherProcesses| [served, other].map(|addr| others.has_later_at(addr));
        assert_eq!(later(&others), [false, false]);
        let (end, first) = pipe_with(PipeFlags::NONBLOCK).expect("a pipe");
        let second = first.try_clone().expect("a descriptor");
        others.set_later(Some(vec![SuccessorWatch { bound: served, end }]));
        assert_eq!(later(&others), [true, false], "the other one was dropped before");
        drop(first);
        assert_eq!(later(&others), [true, false], "it has been handed on");
        drop(second);
        assert_eq!(later(&others), [false, false]);
        assert!(others.may_have(ProcessTag(1)), "there is a later process");
        others.set_later(None);
        assert!(!others.may_have(ProcessTag(1)));
    }

    #[test]
    fn a_new_tag_differs_from_those_of_others() {
        let others: Vec<ProcessTag> = (0..3).map(|_| ProcessTag::new(&[])).collect();
        assert!(!others.contains(&ProcessTag::new(&others)));
    }
}
