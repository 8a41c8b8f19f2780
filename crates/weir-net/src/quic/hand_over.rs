//! What a process hands over to the one that takes its service over, so that QUIC goes on: the sockets, the keys, and how to learn that
//! a process has ended.
#![expect(unsafe_code, reason = "descriptors are made inheritable between fork and exec")]

use std::fs::File;
use std::io::{self, Read};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};

use super::config::QuicSecrets;
use super::group::SocketGroup;
use super::processes::{ProcessTag, SuccessorWatch};
use super::steering::SocketBlock;
use crate::inherit::{adopt, held};

/// Entries with `;` between them: `process TAG FD`, `keys FD`, and for each address `address ADDRESS FD,FD TAG:BASE:COUNT,TAG:BASE:COUNT`.
const VARIABLE: &str = "WEIR_HTTP3";
/// The tag of the process that hands over, and ` ADDRESS=FD` for each pipe by which an earlier process watches an address: the new process
/// closes that end when it does not serve the address. It is a variable of its own, since a binary of an earlier version rejects unknown
/// entries in the other one. Such a binary hands it on unchanged, so it counts only if its tag is that of the parent.
const KEPT_VARIABLE: &str = "WEIR_HTTP3_KEPT";
/// Limit of the keys in bytes.
const MOST_KEYS: u64 = 4096;

/// The end of a pipe by which other processes learn that the one with this tag has ended: it can be read to its end then.
#[derive(Clone, Debug)]
pub struct ProcessLife {
    pub tag: ProcessTag,
    end: Arc<OwnedFd>,
}

impl ProcessLife {
    /// That of this process, with the end of the pipe that it has to keep until it ends.
    pub fn of_this_process(tag: ProcessTag) -> io::Result<(ProcessLife, OwnedFd)> {
        let (end, kept) = io::pipe()?;
        Ok((ProcessLife { tag, end: Arc::new(end.into()) }, kept.into()))
    }

    /// Returns when the process has ended.
    pub fn wait(&self) {
        // Nothing is ever written.
        while rustix::io::read(&*self.end, &mut [0; 1]) == Err(Errno::INTR) {}
    }
}

/// What a process hands over.
pub struct QuicHandOver {
    text: String,
    kept: String,
    descriptors: Vec<RawFd>,
    watches: Vec<SuccessorWatch>,
    /// Open until the other process has been started.
    _keys: OwnedFd,
    _lives: Vec<ProcessLife>,
    _kept: Vec<Arc<OwnedFd>>,
    _groups: Vec<Arc<[UdpSocket]>>,
}

impl QuicHandOver {
    /// `lives`: of this process, which is the first, and of those that `groups` name. `kept`: what this process has inherited of it.
    pub fn new<'g>(
        groups: impl Iterator<Item = (SocketAddr, &'g SocketGroup)>,
        lives: Vec<ProcessLife>,
        kept: &[KeptEnd],
        secrets: &QuicSecrets,
    ) -> io::Result<QuicHandOver> {
        let keys = held(&secrets.hand_over())?;
        let mut entries = vec![format!("keys {}", keys.as_raw_fd())];
        let mut descriptors = vec![keys.as_raw_fd()];
        for life in &lives {
            entries.push(format!("process {} {}", life.tag.0, life.end.as_raw_fd()));
            descriptors.push(life.end.as_raw_fd());
        }
        let (mut sockets, mut watches, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for (addr, group) in groups {
            let (end, other) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
            watches.push(SuccessorWatch { bound: addr, end });
            ends.push((addr, Arc::new(other)));
            ends.extend(kept.iter().filter(|(known, _)| *known == addr).cloned());
            let fds: Vec<RawFd> = group.sockets.iter().map(AsRawFd::as_raw_fd).collect();
            let written: Vec<String> = fds.iter().map(RawFd::to_string).collect();
            let block = |block: &SocketBlock| format!("{}:{}:{}", block.tag.0, block.base, block.count);
            let blocks: Vec<String> = group.blocks().map(block).collect();
            entries.push(format!("address {addr} {} {}", written.join(","), blocks.join(",")));
            descriptors.extend(fds);
            sockets.push(Arc::clone(&group.sockets));
        }
        let mut kept = lives.first().map(|own| own.tag.0.to_string()).unwrap_or_default();
        for (addr, end) in &ends {
            kept.push_str(&format!(" {addr}={}", end.as_raw_fd()));
            descriptors.push(end.as_raw_fd());
        }
        let _kept = ends.into_iter().map(|(_, end)| end).collect();
        let (text, _keys, _lives, _groups) = (entries.join(";"), keys, lives, sockets);
        Ok(QuicHandOver { text, kept, descriptors, watches, _keys, _lives, _kept, _groups })
    }

    /// What tells which addresses the other process serves.
    pub fn take_watches(&mut self) -> Vec<SuccessorWatch> {
        std::mem::take(&mut self.watches)
    }

    /// Lets `command` inherit it, and nothing that this process itself was started with. It must exist until the command was started.
    pub fn pass_on(&self, command: &mut Command) {
        command.env(VARIABLE, &self.text).env(KEPT_VARIABLE, &self.kept);
        let descriptors = self.descriptors.clone();
        // SAFETY: between fork and exec this only calls fcntl, which is async-signal-safe, and allocates nothing.
        unsafe {
            command.pre_exec(move || {
                for &fd in &descriptors {
                    // SAFETY: the caller keeps the descriptor open, and the forked process has a copy.
                    fcntl_setfd(BorrowedFd::borrow_raw(fd), FdFlags::empty())?;
                }
                Ok(())
            });
        }
    }
}

/// The sockets of an address as they were handed over.
#[derive(Debug)]
pub struct InheritedGroup {
    pub sockets: Vec<UdpSocket>,
    /// The blocks of processes, first that of the one which handed them over.
    pub blocks: Vec<SocketBlock>,
}

/// The end of a pipe that this process closes when it does not serve the address any more.
type KeptEnd = (SocketAddr, Arc<OwnedFd>);

/// What this process was started with.
#[derive(Default)]
pub struct InheritedQuic {
    groups: Vec<(SocketAddr, InheritedGroup)>,
    /// Closed for addresses that this process does not serve.
    kept: Vec<KeptEnd>,
    /// The processes that may have connections.
    pub lives: Vec<ProcessLife>,
    /// The keys, if there are any.
    pub secrets: Option<QuicSecrets>,
}

impl InheritedQuic {
    /// Takes over what the environment describes.
    ///
    /// # Errors
    /// An invalid description, or a descriptor that is not open.
    ///
    /// # Safety
    /// The numbers in the environment must be descriptors that nothing else in this process owns. Call it once, before
    /// anything else is opened.
    pub unsafe fn from_environment() -> io::Result<InheritedQuic> {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        let mut inherited = InheritedQuic::default();
        for entry in text.split(';').filter(|entry| !entry.is_empty()) {
            let unclear = || {
                let what = format!("the entry {entry:?} of the environment variable {VARIABLE} is not valid");
                io::Error::new(io::ErrorKind::InvalidInput, what)
            };
            // SAFETY: guaranteed by the caller.
            let take = |fd: &str| fd.parse().map_err(|_| unclear()).and_then(|fd| unsafe { adopt(fd) });
            match entry.split(' ').collect::<Vec<_>>()[..] {
                ["keys", fd] => {
                    let mut keys = Vec::new();
                    File::from(take(fd)?).take(MOST_KEYS).read_to_end(&mut keys)?;
                    inherited.secrets = Some(QuicSecrets::take_over(&keys).ok_or_else(unclear)?);
                }
                ["process", tag, fd] => {
                    let tag = ProcessTag(tag.parse().map_err(|_| unclear())?);
                    inherited.lives.push(ProcessLife { tag, end: Arc::new(take(fd)?) });
                }
                ["address", addr, fds, blocks] => {
                    let sockets = fds.split(',').map(|fd| take(fd).map(UdpSocket::from)).collect::<io::Result<_>>()?;
                    let blocks = blocks.split(',').map(block).collect::<Option<_>>().ok_or_else(unclear)?;
                    let addr = addr.parse().map_err(|_| unclear())?;
                    inherited.groups.push((addr, InheritedGroup { sockets, blocks }));
                }
                _ => return Err(unclear()),
            }
        }
        let kept = std::env::var(KEPT_VARIABLE).unwrap_or_default();
        let (tag, kept) = kept.split_once(' ').unwrap_or_default();
        if inherited.lives.first().is_some_and(|life| life.tag.0.to_string() == tag) {
            for entry in kept.split(' ') {
                let parsed = entry.split_once('=').and_then(|(addr, fd)| Some((addr.parse().ok()?, fd.parse().ok()?)));
                let Some((addr, fd)) = parsed else {
                    let what = format!("the entry {entry:?} of the environment variable {KEPT_VARIABLE} is not valid");
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
                };
                // SAFETY: guaranteed by the caller.
                inherited.kept.push((addr, Arc::new(unsafe { adopt(fd) }?)));
            }
        }
        Ok(inherited)
    }

    /// Takes the sockets of an address.
    pub fn take(&mut self, addr: SocketAddr) -> Option<InheritedGroup> {
        let found = self.groups.iter().position(|(known, _)| *known == addr)?;
        Some(self.groups.swap_remove(found).1)
    }

    /// Gives back the sockets of an address that were taken, for another attempt to serve it. Only if descriptors are short, the address is
    /// then as if it had not been handed over.
    pub fn put_back(&mut self, addr: SocketAddr, group: &SocketGroup) {
        let copies = group.sockets.iter().map(UdpSocket::try_clone).collect::<io::Result<Vec<UdpSocket>>>();
        if let Ok(sockets) = copies {
            self.groups.push((addr, InheritedGroup { sockets, blocks: group.others.clone() }));
        }
    }

    /// Closes the sockets that were not taken: what comes to an address that this process does not serve is for others alone.
    pub fn close_left_over(&mut self) {
        self.groups.clear();
    }

    /// Lets earlier processes learn which addresses this one does not serve.
    pub fn tell_served(&mut self, is_served: impl Fn(SocketAddr) -> bool) {
        self.kept.retain(|(addr, _)| is_served(*addr));
    }

    /// What a later process is to get of the pipes by which earlier processes watch addresses.
    pub fn kept(&mut self) -> &[KeptEnd] {
        // Those of processes that have ended would add up over many upgrades.
        self.kept.retain(|(_, end)| has_reader(end));
        &self.kept
    }
}

/// Whether a process has the other end of a pipe.
fn has_reader(end: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(end, PollFlags::empty())];
    match poll(&mut polled, Some(&Timespec::default())) {
        Ok(_) => !polled[0].revents().contains(PollFlags::ERR),
        Err(_) => true,
    }
}

/// `TAG:BASE:COUNT`. The limits keep a program that is made of it valid.
fn block(text: &str) -> Option<SocketBlock> {
    let [tag, base, count] = text.split(':').collect::<Vec<_>>()[..] else { return None };
    let block =
        SocketBlock { tag: ProcessTag(tag.parse().ok()?), base: base.parse().ok()?, count: count.parse().ok()? };
    (1..=super::steering::MAX_WORKERS).contains(&block.count).then_some(block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    use weir_testkit::{DEADLINE, eventually};

    #[test]
    fn a_started_process_holds_what_the_text_says() {
        let group = SocketGroup::bind("127.0.0.1:0".parse().expect("an address"), 2, ProcessTag(7)).expect("a port");
        let addr = group.sockets[0].local_addr().expect("it is bound");
        let (life, kept_life) = ProcessLife::of_this_process(ProcessTag(7)).expect("a pipe");
        let secrets = QuicSecrets::new();
        let mut handed =
            QuicHandOver::new([(addr, &group)].into_iter(), vec![life.clone()], &[], &secrets).expect("a pipe");
        let mut command = Command::new("sh");
        command.stdout(Stdio::piped()).args([
            "-c",
            "echo $WEIR_HTTP3; set -- $(echo $WEIR_HTTP3 | tr ';,' '  '); readlink /proc/$$/fd/$8 /proc/$$/fd/$9; \
             wc -c < /proc/self/fd/$2; echo $WEIR_HTTP3_KEPT; readlink /proc/$$/fd/${WEIR_HTTP3_KEPT##*=}",
        ]);
        handed.pass_on(&mut command);
        let output = String::from_utf8(command.output().expect("there is a shell").stdout).expect("text");
        assert!(output.contains(&format!("address {addr} ")) && output.contains(" 7:0:2\n"), "{output}");
        assert_eq!(output.matches("socket:[").count(), 2, "{output}");
        let (_, kept) = output.split_once("\n64\n").expect("the keys");
        assert!(kept.starts_with(&format!("7 {addr}=")) && kept.contains("\npipe:["), "{kept}");
        let watches = handed.take_watches();
        assert_eq!(watches.iter().map(|watch| (watch.bound, watch.is_left())).collect::<Vec<_>>(), [(addr, false)]);
        drop(handed);
        // Processes that other tests start have copies of all descriptors for a moment.
        eventually("the process has ended, and this one has no copy", DEADLINE, || watches[0].is_left());
        drop(kept_life);
        life.wait();
    }

    #[test]
    fn an_address_is_watched_through_two_upgrades() {
        let group = SocketGroup::bind("127.0.0.1:0".parse().expect("an address"), 1, ProcessTag(1)).expect("a port");
        let addr = group.sockets[0].local_addr().expect("it is bound");
        let (end, other) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).expect("a pipe");
        let watch = SuccessorWatch { bound: addr, end };
        let (_, of_ended) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).expect("a pipe");
        let kept = vec![(addr, Arc::new(other)), (addr, Arc::new(of_ended))];
        let mut inherited = InheritedQuic { kept, ..InheritedQuic::default() };
        // Processes that other tests start have copies of all descriptors for a moment.
        eventually("another has ended", DEADLINE, || inherited.kept().len() == 1);
        let groups = [(addr, &group)].into_iter();
        let handed = QuicHandOver::new(groups, Vec::new(), inherited.kept(), &QuicSecrets::new()).expect("a pipe");
        assert_eq!(
            handed.kept.matches('=').count(),
            2,
            "the first process is there, and another has ended: {}",
            handed.kept
        );
        inherited.tell_served(|_| false);
        assert!(!watch.is_left(), "the third process has it");
        drop(handed);
        eventually("it is left", DEADLINE, || watch.is_left());
    }

    #[test]
    fn sockets_that_are_given_back_are_taken_as_before() {
        let former = SocketGroup::bind("127.0.0.1:0".parse().expect("an address"), 2, ProcessTag(1)).expect("a port");
        let addr = former.sockets[0].local_addr().expect("it is bound");
        let copies = former.sockets.iter().map(|socket| socket.try_clone().expect("a descriptor")).collect();
        let group = InheritedGroup { sockets: copies, blocks: vec![former.own] };
        let mut inherited = InheritedQuic { groups: vec![(addr, group)], ..InheritedQuic::default() };
        let mut joined = Vec::new();
        for _ in 0..3 {
            let InheritedGroup { sockets, blocks } = inherited.take(addr).expect("it is there");
            let group = SocketGroup::join(sockets, blocks, 3, ProcessTag(2)).expect("there is room");
            inherited.put_back(addr, &group);
            joined.push((group.own, group.others.clone(), group.sockets.len()));
        }
        assert_eq!(joined, vec![(SocketBlock { tag: ProcessTag(2), base: 2, count: 3 }, vec![former.own], 5); 3]);
    }

    #[test]
    fn a_block_without_a_worker_is_refused() {
        assert_eq!(block("1:2:3"), Some(SocketBlock { tag: ProcessTag(1), base: 2, count: 3 }));
        for text in ["1:2", "1:2:0", "1:2:257", "1:-2:1", "4294967296:0:1", "1:2:3:4", ""] {
            assert_eq!(block(text), None, "{text}");
        }
    }
}
