//! The UDP sockets of listeners for HTTP/3. During an upgrade, several processes share them: see `weir_net::quic`.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use weir_gateway::QuicShare;
use weir_net::quic::{InheritedQuic, OtherProcesses, ProcessLife, ProcessTag, QuicHandOver, QuicSecrets, SocketGroup};

use super::key_file;
use crate::say::say_error;

/// The key by which clients of HTTP/3 learn that the process they were connected with has ended.
const RESET_KEY_FILE: &str = "http3-reset.key";
const RESET_KEY_BYTES: usize = 32;

/// The UDP sockets of a listener.
#[derive(Debug)]
pub(super) enum Http3 {
    /// None, by its settings.
    Off,
    /// They are open, and no worker serves them yet.
    Opened(SocketGroup),
    /// A process that does not share them, or the former listener of the address, still has them.
    Pending(Http3Plan),
    /// The same, and a thread waits for them.
    Awaited,
    /// The workers have them.
    Served(SocketGroup),
}

/// How the UDP sockets of a listener are opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Http3Plan {
    pub bound: SocketAddr,
    pub workers: usize,
    /// A former owner of the address may still have the sockets, and gives them up soon.
    pub may_wait: bool,
}

impl Http3 {
    pub(super) fn is_on(&self) -> bool {
        !matches!(self, Http3::Off)
    }

    pub(super) fn served(&self) -> Option<&SocketGroup> {
        match self {
            Http3::Served(group) => Some(group),
            _ => None,
        }
    }

    /// The sockets that are open, whether workers serve them already or not.
    pub(super) fn group(&self) -> Option<&SocketGroup> {
        match self {
            Http3::Opened(group) | Http3::Served(group) => Some(group),
            Http3::Off | Http3::Pending(_) | Http3::Awaited => None,
        }
    }

    /// A process with connections has ended. `true` if it had some of the sockets.
    pub(super) fn forget(&mut self, tag: ProcessTag) -> bool {
        let (Http3::Opened(group) | Http3::Served(group)) = self else { return false };
        let before = group.others.len();
        group.others.retain(|block| block.tag != tag);
        group.others.len() < before
    }
}

/// What all listeners with HTTP/3 have in common.
pub(super) struct Http3Sockets {
    tag: ProcessTag,
    secrets: QuicSecrets,
    /// The directory that the node has been given for its files, until the key for resets has been read from it.
    reset_key_in: Option<PathBuf>,
    /// The sockets that the process was started with, until it is ready.
    pub inherited: InheritedQuic,
    /// Earlier processes that have not ended.
    pub earlier: Vec<ProcessLife>,
    pub others: Arc<OtherProcesses>,
    /// Lets later processes learn that this one has ended.
    life: Option<(ProcessLife, OwnedFd)>,
    /// New connections begin in this process.
    pub is_newest: bool,
}

impl Http3Sockets {
    /// `directory`: that which the node has been given for its files.
    pub(super) fn new(mut inherited: InheritedQuic, directory: Option<PathBuf>) -> Http3Sockets {
        let earlier = std::mem::take(&mut inherited.lives);
        let tags: Vec<ProcessTag> = earlier.iter().map(|life| life.tag).collect();
        Http3Sockets {
            tag: ProcessTag::new(&tags),
            secrets: inherited.secrets.take().unwrap_or_default(),
            reset_key_in: directory,
            inherited,
            earlier,
            others: Arc::new(OtherProcesses::new(tags)),
            life: None,
            is_newest: false,
        }
    }

    /// Uses the key for resets that is in the node's directory, if it has one.
    pub(super) fn keep_reset_key(&mut self) {
        let Some(directory) = self.reset_key_in.take() else { return };
        match key_file::generated(&directory, RESET_KEY_FILE, RESET_KEY_BYTES) {
            Ok((key, _)) if key.len() == 2 * RESET_KEY_BYTES => {
                self.secrets = self.secrets.with_reset_key(key.as_bytes());
            }
            Ok((key, path)) => say_error!(
                "{} has {} characters and not {}: remove it, so that a new one is made; it is not used",
                path.display(),
                key.len(),
                2 * RESET_KEY_BYTES
            ),
            Err(error) => say_error!(
                "{}: {error}; after a restart, clients of HTTP/3 will wait for their time-out",
                directory.join(RESET_KEY_FILE).display()
            ),
        }
    }

    /// Opens the UDP sockets of an address, among those of earlier processes if these have handed theirs over.
    pub(super) fn open(&mut self, plan: Http3Plan) -> io::Result<Http3> {
        let opened = match self.inherited.take(plan.bound) {
            Some(group) => SocketGroup::join(group.sockets, group.blocks, plan.workers, self.tag),
            None => SocketGroup::bind(plan.bound, plan.workers, self.tag),
        };
        match opened {
            Ok(group) => Ok(Http3::Opened(group)),
            Err(error) if plan.may_wait && error.kind() == io::ErrorKind::AddrInUse => Ok(Http3::Pending(plan)),
            Err(error) => Err(io::Error::new(error.kind(), format!("UDP, for `http3`: {error}"))),
        }
    }

    /// Another attempt is to serve the address, after one that failed.
    pub(super) fn put_back(&mut self, bound: SocketAddr, http3: &Http3) {
        if let Some(group) = http3.group().filter(|group| !group.others.is_empty() && !self.is_newest) {
            self.inherited.put_back(bound, group);
        }
    }

    /// Leaves out the blocks of processes that have ended since the sockets were opened. `true` if there are others.
    pub(super) fn has_others(&self, group: &mut SocketGroup) -> bool {
        group.others.retain(|block| self.earlier.iter().any(|life| life.tag == block.tag));
        !group.others.is_empty()
    }

    /// What the workers need to serve the sockets.
    pub(super) fn share(&self, bound: SocketAddr, group: &SocketGroup) -> QuicShare {
        QuicShare::new(group.clone(), Arc::clone(&self.others), self.secrets.of_address(bound))
    }

    /// What another process is to get.
    pub(super) fn hand_over<'g>(
        &mut self,
        groups: impl Iterator<Item = (SocketAddr, &'g SocketGroup)>,
    ) -> io::Result<QuicHandOver> {
        let (own, _) = match &mut self.life {
            Some(life) => life,
            none => none.insert(ProcessLife::of_this_process(self.tag)?),
        };
        let lives = [&*own].into_iter().chain(&self.earlier).cloned().collect();
        QuicHandOver::new(groups, lives, self.inherited.kept(), &self.secrets)
    }
}
