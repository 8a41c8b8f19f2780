//! Listening sockets inherited from another process: from the service manager, or from the gateway that this process replaces.
//!
//! Both pass open descriptors by number and describe them in the environment. The sockets are never closed in between, so
//! connections in their accept queues are not lost.
#![expect(unsafe_code, reason = "descriptors arrive as numbers, and are made inheritable between fork and exec")]

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::process::getppid;

use crate::listener::{ListeningSocket, Transport};

/// `NAME=FD,FD;NAME=FD`: the purpose and address of each listener, and its descriptors.
const SOCKETS: &str = "WEIR_SOCKETS";
/// The descriptor through which the new process reports that it is ready.
const READY: &str = "WEIR_READY_FD";
/// `PID FD`: the process that hands over, and the end of a pipe that can be read to its end when it cannot take the service back any more.
/// Binaries of earlier versions hand it on unchanged, so it counts only with the id of the parent.
const CERTAIN: &str = "WEIR_CERTAIN_FD";
/// The descriptor from which the new process reads the secrets of the old one.
const SECRETS: &str = "WEIR_SECRETS_FD";
/// `NAME=FD;NAME=FD`: memory that both processes use, such as that of counters.
const MEMORY: &str = "WEIR_MEMORY";
/// `1` if the process to be replaced had an identity from a SPIFFE Workload API.
pub const IDENTITY: &str = "WEIR_HAS_IDENTITY";
/// systemd's socket activation, sd_listen_fds(3).
const SYSTEMD: [&str; 3] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];
const SYSTEMD_FIRST_FD: RawFd = 3;
/// Limit of the secrets in bytes: no larger than a pipe's buffer, so that they can be written before there is a reader.
const MOST_SECRETS: u64 = 4096;

/// Purpose and configured address of a listener. It identifies the socket in the next process, also if the port is 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerKey {
    /// A word without `=`, `,` and `;`.
    pub purpose: &'static str,
    pub addr: SocketAddr,
}

impl ListenerKey {
    fn name(&self) -> String {
        format!("{} {}", self.purpose, self.addr)
    }
}

/// The descriptors and secrets this process was started with.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    /// Sockets from another gateway, by [`ListenerKey`].
    named: Vec<(String, Vec<ListeningSocket>)>,
    /// Sockets from systemd, which are found by their bound address.
    activated: Vec<ListeningSocket>,
    ready: Option<OwnedFd>,
    /// The end of a pipe that can be read to its end when the previous process cannot take the service back any more.
    pub certain: Option<OwnedFd>,
    /// The secrets of the previous process; empty if there is none.
    pub secrets: Vec<u8>,
    /// Memory that is shared with the previous process, by name.
    pub memory: Vec<(String, OwnedFd)>,
    /// Whether the previous process had an identity from a SPIFFE Workload API, without which this one must not take its place.
    pub has_identity: bool,
}

impl InheritedSockets {
    /// Takes over the descriptors described in the environment.
    ///
    /// # Errors
    /// An invalid description, or a descriptor that is neither a listening TCP socket nor a UDP socket.
    ///
    /// # Safety
    /// The numbers in the environment must be descriptors that nothing else in this process owns. Call it once, before
    /// anything else is opened.
    pub unsafe fn from_environment() -> io::Result<Self> {
        let variable = |name| std::env::var(name).ok();
        let mut inherited = Self::default();
        for entry in variable(SOCKETS).iter().flat_map(|text| text.split(';')).filter(|entry| !entry.is_empty()) {
            let (name, descriptors) = entry.split_once('=').ok_or_else(|| unclear(SOCKETS, entry))?;
            let listeners = descriptors.split(',').map(|fd| {
                let fd = fd.parse().map_err(|_| unclear(SOCKETS, entry))?;
                // SAFETY: guaranteed by the caller.
                unsafe { adopt_listening(fd) }
            });
            inherited.named.push((name.to_owned(), listeners.collect::<io::Result<_>>()?));
        }
        if let Some(text) = variable(READY) {
            let fd = text.parse().map_err(|_| unclear(READY, &text))?;
            // SAFETY: guaranteed by the caller.
            inherited.ready = Some(unsafe { adopt(fd) }?);
        }
        if let Some(text) = variable(CERTAIN) {
            let (pid, fd) = text.split_once(' ').ok_or_else(|| unclear(CERTAIN, &text))?;
            let fd = fd.parse().map_err(|_| unclear(CERTAIN, &text))?;
            if getppid().is_some_and(|parent| parent.as_raw_nonzero().to_string() == pid) {
                // SAFETY: guaranteed by the caller.
                inherited.certain = Some(unsafe { adopt(fd) }?);
            }
        }
        if let Some(text) = variable(SECRETS) {
            let fd = text.parse().map_err(|_| unclear(SECRETS, &text))?;
            // SAFETY: guaranteed by the caller.
            let secrets = File::from(unsafe { adopt(fd) }?);
            secrets.take(MOST_SECRETS).read_to_end(&mut inherited.secrets)?;
        }
        for entry in variable(MEMORY).iter().flat_map(|text| text.split(';')).filter(|entry| !entry.is_empty()) {
            let (name, fd) = entry.split_once('=').ok_or_else(|| unclear(MEMORY, entry))?;
            let fd = fd.parse().map_err(|_| unclear(MEMORY, entry))?;
            // SAFETY: guaranteed by the caller.
            inherited.memory.push((name.to_owned(), unsafe { adopt(fd) }?));
        }
        inherited.has_identity = inherited.ready.is_some() && variable(IDENTITY).is_some();
        let [pid, count, _] = SYSTEMD.map(variable);
        if let (Some(pid), Some(count)) = (pid, count)
            && pid == std::process::id().to_string()
        {
            let count: RawFd = count.parse().map_err(|_| unclear(SYSTEMD[1], &count))?;
            for fd in SYSTEMD_FIRST_FD..SYSTEMD_FIRST_FD.saturating_add(count) {
                // SAFETY: guaranteed by the caller.
                inherited.activated.push(unsafe { adopt_listening(fd) }?);
            }
        }
        Ok(inherited)
    }

    /// Takes the sockets for a listener; none if none were inherited.
    pub fn take(&mut self, place: &ListenerKey, transport: Transport) -> Vec<ListeningSocket> {
        let name = place.name();
        if let Some(found) = self.named.iter().position(|(known, _)| *known == name) {
            return self.named.remove(found).1;
        }
        let matching = |socket: &mut ListeningSocket| {
            socket.transport() == transport && socket.local_addr().is_ok_and(|addr| serves(addr, place.addr))
        };
        self.activated.extract_if(.., matching).collect()
    }

    /// Takes the sockets for an address, if possible those with this purpose, otherwise those with one of `others`, which have
    /// the same transport: the previous process spoke another protocol there. None if none were inherited.
    pub fn take_any(
        &mut self,
        purpose: &'static str,
        others: impl Iterator<Item = &'static str>,
        addr: SocketAddr,
        transport: Transport,
    ) -> Vec<ListeningSocket> {
        let purposes = [purpose].into_iter().chain(others);
        let taken = purposes.map(|purpose| self.take(&ListenerKey { purpose, addr }, transport));
        taken.into_iter().find(|listeners| !listeners.is_empty()).unwrap_or_default()
    }

    /// Undoes [`InheritedSockets::take`].
    pub fn put_back(&mut self, place: &ListenerKey, listeners: Vec<ListeningSocket>) {
        self.named.push((place.name(), listeners));
    }

    /// The addresses of inherited sockets of a transport that were not taken.
    pub fn left_over(&self, transport: Transport) -> impl Iterator<Item = SocketAddr> {
        let left = self.named.iter().flat_map(|(_, listeners)| listeners).chain(&self.activated);
        left.filter(move |socket| socket.transport() == transport).filter_map(|socket| socket.local_addr().ok())
    }

    /// Reports to the parent process that it may stop accepting. `false` if this process was not started for a takeover.
    pub fn tell_ready(&mut self) -> io::Result<bool> {
        let Some(ready) = self.ready.take() else { return Ok(false) };
        File::from(ready).write_all(&READY_BYTE)?;
        Ok(true)
    }
}

/// The byte the new process writes to the pipe once it serves.
pub const READY_BYTE: [u8; 1] = *b"1";

fn unclear(variable: &str, value: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("the value {value:?} of the environment variable {variable} is not valid"),
    )
}

/// Whether a socket bound to `bound` is the one for `wanted`. `[::]` and `0.0.0.0` both mean every address.
fn serves(bound: SocketAddr, wanted: SocketAddr) -> bool {
    let same_host = bound.ip() == wanted.ip() || (bound.ip().is_unspecified() && wanted.ip().is_unspecified());
    same_host && bound.port() == wanted.port()
}

/// # Safety
/// Nothing else may own the descriptor.
pub(crate) unsafe fn adopt(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < SYSTEMD_FIRST_FD {
        return Err(io::Error::other(format!("the inherited file descriptor {fd} is a standard stream")));
    }
    // SAFETY: the descriptor is only queried, and a closed one gives an error.
    let flags = fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) });
    let flags = flags.map_err(|_| io::Error::other(format!("the inherited file descriptor {fd} is not open")))?;
    // SAFETY: it is open, and the caller promises that nothing else owns it.
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    // Child processes must not inherit it by accident.
    fcntl_setfd(&owned, flags | FdFlags::CLOEXEC)?;
    Ok(owned)
}

/// # Safety
/// Nothing else may own the descriptor.
unsafe fn adopt_listening(fd: RawFd) -> io::Result<ListeningSocket> {
    // SAFETY: guaranteed by the caller.
    let owned = unsafe { adopt(fd) }?;
    ListeningSocket::from_descriptor(owned)
        .map_err(|error| io::Error::other(format!("the inherited file descriptor {fd} cannot be listened on: {error}")))
}

/// A descriptor from which `secrets` can be read once; they are in no file and in no environment variable.
pub fn held(secrets: &[u8]) -> io::Result<OwnedFd> {
    assert!(secrets.len() as u64 <= MOST_SECRETS, "a pipe takes them whole");
    let (read, mut write) = io::pipe()?;
    write.write_all(secrets)?;
    Ok(read.into())
}

/// Memory to be passed on: a word without `=` and `;`, and the descriptor.
pub type NamedMemory = (&'static str, Arc<File>);

/// The pipes between a process that hands over and the new one.
#[derive(Debug)]
pub struct HandOverPipes {
    /// For the report of the new process.
    pub ready: OwnedFd,
    /// Can be read to its end when the old process cannot take the service back any more.
    pub certain: OwnedFd,
}

/// Lets `command` inherit the sockets, the pipes, `secrets`, and memory. The sockets, the pipes and `secrets` must stay open until the
/// command was started.
pub fn pass_on<'s>(
    command: &mut Command,
    sockets: impl Iterator<Item = (ListenerKey, &'s [ListeningSocket])>,
    pipes: &HandOverPipes,
    secrets: &OwnedFd,
    memory: &[NamedMemory],
) {
    let sockets: Vec<(ListenerKey, &[ListeningSocket])> = sockets.collect();
    let entries = sockets.iter().map(|(place, listeners)| {
        let descriptors: Vec<String> = listeners.iter().map(|listener| listener.as_raw_fd().to_string()).collect();
        format!("{}={}", place.name(), descriptors.join(","))
    });
    command.env(SOCKETS, entries.collect::<Vec<_>>().join(";"));
    command.env(READY, pipes.ready.as_raw_fd().to_string());
    command.env(CERTAIN, format!("{} {}", std::process::id(), pipes.certain.as_raw_fd()));
    command.env(SECRETS, secrets.as_raw_fd().to_string());
    let entries = memory.iter().map(|(name, file)| format!("{name}={}", file.as_raw_fd()));
    command.env(MEMORY, entries.collect::<Vec<_>>().join(";"));
    for name in SYSTEMD {
        command.env_remove(name);
    }
    let listeners = sockets.iter().flat_map(|(_, listeners)| *listeners);
    let others = [&pipes.ready, &pipes.certain, secrets].map(AsRawFd::as_raw_fd);
    let descriptors: Vec<RawFd> = listeners.map(AsRawFd::as_raw_fd).chain(others).collect();
    // Held by the command, since its callers share it with others that may let go of it.
    let memory = memory.to_vec();
    // SAFETY: between fork and exec this only calls fcntl, which is async-signal-safe, and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            for &fd in &descriptors {
                // SAFETY: the caller keeps the descriptor open, and the forked process has a copy.
                fcntl_setfd(BorrowedFd::borrow_raw(fd), FdFlags::empty())?;
            }
            for (_, file) in &memory {
                fcntl_setfd(file, FdFlags::empty())?;
            }
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::SocketPlan;
    use std::process::Stdio;

    fn bind(addr: &str, count: usize, transport: Transport) -> Vec<ListeningSocket> {
        let addr = addr.parse().expect("an address");
        crate::listener::bind(addr, SocketPlan { transport, count, backlog: 16 }).expect("a free port")
    }

    fn place(purpose: &'static str, addr: &str) -> ListenerKey {
        ListenerKey { purpose, addr: addr.parse().expect("an address") }
    }

    #[test]
    fn a_started_process_holds_the_sockets_under_the_numbers_it_was_told() {
        let sockets = [
            (place("http", "127.0.0.1:0"), bind("127.0.0.1:0", 2, Transport::Tcp)),
            (place("status", "127.0.0.1:0"), bind("[::1]:0", 1, Transport::Tcp)),
            (place("udp", "127.0.0.1:0"), bind("127.0.0.1:0", 2, Transport::Udp)),
        ];
        let (read, write) = std::io::pipe().expect("a pipe");
        let pipes = HandOverPipes { ready: write.into(), certain: std::io::pipe().expect("a pipe").0.into() };
        let mut command = Command::new("sh");
        command.stdout(Stdio::piped()).args([
            "-c",
            "for fd in $(echo $WEIR_SOCKETS $WEIR_MEMORY | tr -c 0-9 ' ') $WEIR_READY_FD ${WEIR_CERTAIN_FD#$PPID }; do \
             readlink /proc/$$/fd/$fd; done; \
             printf 1 > /proc/self/fd/$WEIR_READY_FD; cat /proc/self/fd/$WEIR_SECRETS_FD",
        ]);
        let secrets = held(b"a secret").expect("a pipe");
        let passed = sockets.iter().map(|(place, listeners)| (place.clone(), &**listeners));
        let memory = Arc::new(File::open("/dev/null").expect("it is there"));
        pass_on(&mut command, passed, &pipes, &secrets, &[("m", memory)]);
        let output = command.output().expect("there is a shell");
        let certain = rustix::fs::fstat(&pipes.certain).expect("it is open").st_ino;
        drop(pipes);
        let mut said = Vec::new();
        { read }.read_to_end(&mut said).expect("a pipe");
        assert_eq!(said, READY_BYTE);

        let text = String::from_utf8(output.stdout).expect("text");
        let inode = |listener: &ListeningSocket| rustix::fs::fstat(listener).expect("it is open").st_ino;
        for listener in sockets.iter().flat_map(|(_, listeners)| listeners) {
            assert!(text.contains(&format!("socket:[{}]", inode(listener))), "{text}");
        }
        assert!(
            text.contains(&format!("pipe:[{certain}]")) && text.contains("pipe:[") && text.contains("/dev/null"),
            "{text}"
        );
        assert!(text.ends_with("a secret"), "{text}");
    }

    #[test]
    fn sockets_are_found_by_place_and_activated_ones_by_address() {
        let bind = |addr: &str| bind(addr, 1, Transport::Tcp);
        let activated = bind("0.0.0.0:0").remove(0);
        let port = activated.local_addr().expect("it is bound").port();
        let mut inherited = InheritedSockets {
            named: vec![
                ("http 127.0.0.1:0".into(), bind("127.0.0.1:0")),
                ("http 127.0.0.1:0".into(), bind("127.0.0.1:0")),
                ("status 127.0.0.1:0".into(), bind("127.0.0.1:0")),
            ],
            activated: vec![activated],
            ready: None,
            certain: None,
            secrets: Vec::new(),
            memory: Vec::new(),
            has_identity: false,
        };
        assert_eq!(inherited.take(&place("http", "127.0.0.1:0"), Transport::Tcp).len(), 1);
        assert_eq!(inherited.take(&place("http", "127.0.0.1:0"), Transport::Tcp).len(), 1);
        assert!(inherited.take(&place("http", "127.0.0.1:0"), Transport::Tcp).is_empty(), "each socket is taken once");
        assert!(inherited.take(&place("http", &format!("127.0.0.1:{port}")), Transport::Tcp).is_empty());
        let everywhere = place("http", &format!("[::]:{port}"));
        assert!(inherited.take(&everywhere, Transport::Udp).is_empty(), "it is one of TCP");
        assert_eq!(inherited.take(&everywhere, Transport::Tcp).len(), 1);
        assert_eq!(inherited.left_over(Transport::Tcp).count(), 1);
        assert!(!inherited.tell_ready().expect("there is nobody to tell"));
    }
}
