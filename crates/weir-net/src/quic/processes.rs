//! The processes that share addresses during upgrades of the binary.

use std::net::SocketAddr;
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

/// The other processes that share addresses with this one, as far as known. The kernel seldom gives a datagram to the wrong process: it
/// may if a client has several connections with one socket, whose datagrams the kernel joins (GRO). A process must not reset a connection
/// that another has.
#[derive(Debug, Default)]
pub struct OtherProcesses {
    /// Earlier ones that have not ended.
    earlier: Mutex<Vec<ProcessTag>>,
    /// A later one has been started, or has taken over.
    has_later: AtomicBool,
    /// The addresses that it does not serve.
    left: Mutex<Vec<SocketAddr>>,
}

impl OtherProcesses {
    pub fn new(earlier: Vec<ProcessTag>) -> OtherProcesses {
        OtherProcesses { earlier: Mutex::new(earlier), ..OtherProcesses::default() }
    }

    /// An earlier process has ended.
    pub fn forget(&self, tag: ProcessTag) {
        self.earlier().retain(|earlier| *earlier != tag);
    }

    /// Sets whether there is a later process.
    pub fn set_later(&self, has_later: bool) {
        self.left().clear();
        self.has_later.store(has_later, Ordering::Relaxed);
    }

    /// Sets the addresses that the later process, which is ready, does not serve.
    pub fn set_left(&self, left: impl IntoIterator<Item = SocketAddr>) {
        self.left().extend(left.into_iter().map(canonical));
    }

    fn has_later(&self) -> bool {
        self.has_later.load(Ordering::Relaxed)
    }

    /// Whether there is a later process that serves this address, as far as known.
    pub fn has_later_at(&self, bound: SocketAddr) -> bool {
        self.has_later() && !self.left().contains(&canonical(bound))
    }

    /// Whether another process with this tag may be there. The tag of a later one is not known.
    pub(super) fn may_have(&self, tag: ProcessTag) -> bool {
        self.has_later() || self.earlier().contains(&tag)
    }

    fn left(&self) -> MutexGuard<'_, Vec<SocketAddr>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
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
    use super::*;

    #[test]
    fn an_address_that_the_later_process_leaves_is_told_from_others() {
        let [served, left] = ["192.0.2.1:443", "192.0.2.2:443"].map(|addr| addr.parse().expect("an address"));
        let others = OtherProcesses::default();
        let later = |others: &OtherProcesses| [served, left].map(|addr| others.has_later_at(addr));
        assert_eq!(later(&others), [false, false]);
        others.set_later(true);
        assert_eq!(later(&others), [true, true]);
        others.set_left([left]);
        assert_eq!(later(&others), [true, false]);
        others.set_later(true);
        assert_eq!(later(&others), [true, true], "it is another process");
    }

    #[test]
    fn a_new_tag_differs_from_those_of_others() {
        let others: Vec<ProcessTag> = (0..3).map(|_| ProcessTag::new(&[])).collect();
        assert!(!others.contains(&ProcessTag::new(&others)));
    }
}
