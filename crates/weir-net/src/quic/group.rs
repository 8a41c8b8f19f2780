//! The sockets of an address, which several processes may share during upgrades of the binary.
//!
//! Each process has a block of them, one socket for each worker. A process holds all sockets that were there when it took its block, also
//! those of others: the kernel gives the number of a closed socket to the last one. Since a later process holds all that an earlier one
//! holds, the end of any process closes at most sockets behind those of all others.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use super::processes::ProcessTag;
use super::steering::{MAX_WORKERS, SocketBlock, steer};
use crate::listener::{self, ListeningSocket, SocketPlan, Transport};

/// The most earlier processes that share an address with one. With more of them, it has to wait until the port is free.
const MAX_EARLIER: usize = 8;
/// The most sockets that share an address. Fewer than that are needed, unless each process has more workers than the one before.
const MAX_SOCKETS: usize = 4 * MAX_WORKERS;

/// The sockets of an address.
#[derive(Clone, Debug)]
pub struct SocketGroup {
    /// As the kernel numbers them.
    pub sockets: Arc<[UdpSocket]>,
    /// Those of this process.
    pub own: SocketBlock,
    /// Those of earlier processes that may have connections.
    pub others: Vec<SocketBlock>,
}

impl SocketGroup {
    /// Opens a socket for each worker.
    ///
    /// # Errors
    /// As for TCP, an address that another process uses is an error, even if that process would share it.
    pub fn bind(addr: SocketAddr, workers: usize, tag: ProcessTag) -> io::Result<SocketGroup> {
        let sockets = udp(listener::bind(addr, plan(workers))?);
        let group = SocketGroup {
            sockets: sockets.into(),
            own: SocketBlock { tag, base: 0, count: workers },
            others: Vec::new(),
        };
        if workers > 1 {
            group.steer()?;
        }
        Ok(group)
    }

    /// Takes a block among sockets of other processes. `blocks`: theirs, first that of the process which handed the sockets over. Nothing
    /// comes to the new block before [`SocketGroup::steer`].
    ///
    /// # Errors
    /// Of the kind `AddrInUse` if too many share the address.
    pub fn join(
        mut sockets: Vec<UdpSocket>,
        others: Vec<SocketBlock>,
        workers: usize,
        tag: ProcessTag,
    ) -> io::Result<SocketGroup> {
        let own = SocketBlock { tag, base: free_base(&others, workers), count: workers };
        if others.len() > MAX_EARLIER || own.end() > MAX_SOCKETS {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "too many processes share the address"));
        }
        let (Some(first), Some((former, rest))) = (sockets.first(), others.split_first()) else {
            return Err(io::Error::other("no process has sockets of the address"));
        };
        // A process with one worker needs no program, and without one a hash would choose the new sockets, too.
        steer(first, *former, rest)?;
        let missing = own.end().saturating_sub(sockets.len());
        if missing > 0 {
            let addr = first.local_addr()?;
            sockets.extend(udp(listener::bind_beside(addr, plan(missing))?));
        }
        Ok(SocketGroup { sockets: sockets.into(), own, others })
    }

    /// Lets new connections begin in this process. Packets of connections that others have still go there.
    pub fn steer(&self) -> io::Result<()> {
        match self.sockets.first() {
            Some(socket) => steer(socket, self.own, &self.others),
            None => Ok(()),
        }
    }

    /// The blocks of all processes, first that of this one.
    pub fn blocks(&self) -> impl Iterator<Item = &SocketBlock> {
        [&self.own].into_iter().chain(&self.others)
    }
}

fn plan(count: usize) -> SocketPlan {
    SocketPlan { transport: Transport::Udp, count, backlog: 0 }
}

fn udp(sockets: Vec<ListeningSocket>) -> Vec<UdpSocket> {
    let udp = |socket| if let ListeningSocket::Udp(socket) = socket { Some(socket) } else { None };
    sockets.into_iter().filter_map(udp).collect()
}

/// The lowest number from which on so many sockets belong to no process. Those of processes that have ended are used again.
fn free_base(taken: &[SocketBlock], count: usize) -> usize {
    let is_free = |base: &usize| taken.iter().all(|block| block.end() <= *base || base + count <= block.base);
    let bases = [0].into_iter().chain(taken.iter().map(SocketBlock::end));
    bases.filter(is_free).min().expect("behind the last block all are free")
}

#[cfg(test)]
mod tests {
    use super::*;

    use weir_testkit::{DEADLINE, eventually};

    fn block(base: usize, count: usize) -> SocketBlock {
        SocketBlock { tag: ProcessTag(base as u32), base, count }
    }

    #[test]
    fn a_block_is_the_first_that_fits_between_those_of_others() {
        for (taken, count, base) in [
            (&[][..], 4, 0),
            (&[block(0, 2)], 2, 2),
            (&[block(2, 2)], 2, 0),
            (&[block(2, 2)], 3, 4),
            (&[block(4, 2), block(0, 2)], 2, 2),
            (&[block(4, 2), block(0, 2)], 3, 6),
        ] {
            assert_eq!(free_base(taken, count), base, "{count} beside {taken:?}");
        }
    }

    fn copies(group: &SocketGroup) -> Vec<UdpSocket> {
        group.sockets.iter().map(|socket| socket.try_clone().expect("a descriptor")).collect()
    }

    /// A datagram with an id that a client has chosen comes to this socket.
    #[track_caller]
    fn takes_new(group: &SocketGroup, number: usize, why: &str) {
        let addr = group.sockets[0].local_addr().expect("it is bound");
        let client = UdpSocket::bind("127.0.0.1:0").expect("a port");
        client.send_to(&[0xc0, 0, 0, 0, 1, 8, 0, 0, 0, 0, 0, 0, 0, 0], addr).expect("it is sent");
        eventually(why, DEADLINE, || group.sockets[number].recv(&mut [0; 32]).is_ok());
    }

    #[test]
    fn a_process_that_joins_gets_nothing_before_it_steers_and_its_end_changes_nothing() {
        let addr = "127.0.0.1:0".parse().expect("an address");
        let first = SocketGroup::bind(addr, 1, ProcessTag(1)).expect("a free port");
        for _ in 0..2 {
            let blocks: Vec<SocketBlock> = first.blocks().copied().collect();
            let second = SocketGroup::join(copies(&first), blocks, 2, ProcessTag(2)).expect("there is room");
            assert_eq!((second.own.base, second.sockets.len()), (1, 3));
            (0..8).for_each(|_| takes_new(&first, 0, "the first goes on"));
            second.steer().expect("no privilege is needed");
            takes_new(&second, 1, "the second has taken over");
            drop(second);
            first.steer().expect("no privilege is needed");
            (0..8).for_each(|_| takes_new(&first, 0, "the second has failed"));
        }
    }

    #[test]
    fn sockets_of_a_process_that_has_ended_are_used_again() {
        let addr = "127.0.0.1:0".parse().expect("an address");
        let mut group = SocketGroup::bind(addr, 2, ProcessTag(0)).expect("a free port");
        for tag in 1..6 {
            let blocks = group.blocks().copied().take(1).collect();
            group = SocketGroup::join(copies(&group), blocks, 2, ProcessTag(tag)).expect("there is room");
            group.steer().expect("no privilege is needed");
            takes_new(&group, group.own.base, "those of the last process");
        }
        assert_eq!(group.sockets.len(), 4);
    }

    #[test]
    fn more_processes_than_the_limit_do_not_share_an_address() {
        let addr = "127.0.0.1:0".parse().expect("an address");
        let group = SocketGroup::bind(addr, 1, ProcessTag(0)).expect("a free port");
        let others = (0..=MAX_EARLIER).map(|base| block(base, 1)).collect();
        let error = SocketGroup::join(copies(&group), others, 1, ProcessTag(99)).expect_err("there are enough");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
