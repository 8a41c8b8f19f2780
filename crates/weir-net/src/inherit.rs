//! Listening sockets that come from another process: from the service manager, or from the gateway this one replaces.
//!
//! Both pass open descriptors by number, and say in the environment which is which. The socket itself is never closed
//! on the way, so connections that wait in its queue are not lost.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// `NAME=FD,FD;NAME=FD`: what each socket was opened for, and the descriptors that are it.
const SOCKETS: &str = "WEIR_SOCKETS";
/// The descriptor through which a new process says that it is ready.
const READY: &str = "WEIR_READY_FD";
/// The descriptor from which a new process reads what the old one keeps secret.
const SECRETS: &str = "WEIR_SECRETS_FD";
/// systemd's socket activation, sd_listen_fds(3).
const SYSTEMD: [&str; 3] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];
const SYSTEMD_FIRST_FD: RawFd = 3;
/// What a pipe takes without a reader, and more than there is to keep secret.
const MOST_SECRETS: u64 = 4096;

/// Where a listening socket is needed: what for, and the address as configured. It identifies the socket in the next
/// process, also where the address has port 0.
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

/// What this process was started with.
#[derive(Debug, Default)]
pub struct Inherited {
    /// By the name of their place.
    named: Vec<(String, Vec<TcpListener>)>,
    /// Known by the address they are bound to.
    activated: Vec<TcpListener>,
    ready: Option<OwnedFd>,
    /// What the process before kept secret; empty if there is none.
    pub secrets: Vec<u8>,
}

impl Inherited {
    /// Takes over the descriptors that the environment speaks of.
    ///
    /// # Errors
    /// A description that is not understood, or that names a descriptor which is not a listening TCP socket.
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
                // SAFETY: as the caller promises.
                unsafe { adopt(fd) }.map(TcpListener::from)
            });
            inherited.named.push((name.to_owned(), listeners.collect::<io::Result<_>>()?));
        }
        if let Some(text) = variable(READY) {
            let fd = text.parse().map_err(|_| unclear(READY, &text))?;
            // SAFETY: as the caller promises.
            inherited.ready = Some(unsafe { adopt(fd) }?);
        }
        if let Some(text) = variable(SECRETS) {
            let fd = text.parse().map_err(|_| unclear(SECRETS, &text))?;
            // SAFETY: as the caller promises.
            let secrets = std::fs::File::from(unsafe { adopt(fd) }?);
            secrets.take(MOST_SECRETS).read_to_end(&mut inherited.secrets)?;
        }
        let [pid, count, _] = SYSTEMD.map(variable);
        if let (Some(pid), Some(count)) = (pid, count)
            && pid == std::process::id().to_string()
        {
            let count: RawFd = count.parse().map_err(|_| unclear(SYSTEMD[1], &count))?;
            for fd in SYSTEMD_FIRST_FD..SYSTEMD_FIRST_FD.saturating_add(count) {
                // SAFETY: as the caller promises.
                inherited.activated.push(unsafe { adopt(fd) }?.into());
            }
        }
        for listener in inherited.named.iter().flat_map(|(_, listeners)| listeners).chain(&inherited.activated) {
            if !socket2::SockRef::from(listener).is_listener()? {
                let fd = listener.as_raw_fd();
                return Err(io::Error::other(format!("the inherited file descriptor {fd} is not a listening socket")));
            }
        }
        Ok(inherited)
    }

    /// The sockets for a place; none where nobody passed any on.
    pub fn take(&mut self, place: &ListenerKey) -> Vec<TcpListener> {
        let name = place.name();
        if let Some(found) = self.named.iter().position(|(known, _)| *known == name) {
            return self.named.remove(found).1;
        }
        let matching = |listener: &mut TcpListener| listener.local_addr().is_ok_and(|addr| serves(addr, place.addr));
        self.activated.extract_if(.., matching).collect()
    }

    /// The addresses of sockets that nobody took.
    pub fn left_over(&self) -> impl Iterator<Item = SocketAddr> {
        let left = self.named.iter().flat_map(|(_, listeners)| listeners).chain(&self.activated);
        left.filter_map(|listener| listener.local_addr().ok())
    }

    /// Tells the process that started this one that it may stop accepting. `true` when there is one.
    pub fn tell_ready(&mut self) -> io::Result<bool> {
        let Some(ready) = self.ready.take() else { return Ok(false) };
        std::fs::File::from(ready).write_all(&READY_BYTE)?;
        Ok(true)
    }
}

/// What goes through the pipe when the new process serves.
pub const READY_BYTE: [u8; 1] = *b"1";

fn unclear(variable: &str, value: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("the value {value:?} of the environment variable {variable} is not valid"),
    )
}

/// Whether a socket bound to `bound` is the one that `wanted` asks for. `[::]` and `0.0.0.0` are two ways to write
/// "every address".
fn serves(bound: SocketAddr, wanted: SocketAddr) -> bool {
    let same_host = bound.ip() == wanted.ip() || (bound.ip().is_unspecified() && wanted.ip().is_unspecified());
    same_host && bound.port() == wanted.port()
}

/// # Safety
/// Nothing else may own the descriptor.
unsafe fn adopt(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < SYSTEMD_FIRST_FD {
        return Err(io::Error::other(format!("the inherited file descriptor {fd} is a standard stream")));
    }
    // SAFETY: the descriptor is only looked at, and that it is open is what we look for.
    let flags = fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) });
    let flags = flags.map_err(|_| io::Error::other(format!("the inherited file descriptor {fd} is not open")))?;
    // SAFETY: it is open, and the caller promises that nothing else owns it.
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    // Processes that this one starts must not hold it by accident.
    fcntl_setfd(&owned, flags | FdFlags::CLOEXEC)?;
    Ok(owned)
}

/// Something to read `secrets` from that stands in no file and in no environment.
pub fn held(secrets: &[u8]) -> io::Result<OwnedFd> {
    assert!(secrets.len() as u64 <= MOST_SECRETS, "a pipe takes them whole");
    let (read, mut write) = io::pipe()?;
    write.write_all(secrets)?;
    Ok(read.into())
}

/// Lets `command` inherit these sockets, `ready` as the pipe to report through, and `secrets` to read. The descriptors
/// must stay open until the command was started.
pub fn pass_on(command: &mut Command, sockets: &[(ListenerKey, Vec<TcpListener>)], ready: &OwnedFd, secrets: &OwnedFd) {
    let entries = sockets.iter().map(|(place, listeners)| {
        let descriptors: Vec<String> = listeners.iter().map(|listener| listener.as_raw_fd().to_string()).collect();
        format!("{}={}", place.name(), descriptors.join(","))
    });
    command.env(SOCKETS, entries.collect::<Vec<_>>().join(";"));
    command.env(READY, ready.as_raw_fd().to_string());
    command.env(SECRETS, secrets.as_raw_fd().to_string());
    for name in SYSTEMD {
        command.env_remove(name);
    }
    let listeners = sockets.iter().flat_map(|(_, listeners)| listeners);
    let descriptors: Vec<RawFd> =
        listeners.map(AsRawFd::as_raw_fd).chain([ready.as_raw_fd(), secrets.as_raw_fd()]).collect();
    // SAFETY: between fork and exec this only calls fcntl, which is async-signal-safe, and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            for &fd in &descriptors {
                // SAFETY: the caller keeps it open, and the forked process has a copy.
                fcntl_setfd(BorrowedFd::borrow_raw(fd), FdFlags::empty())?;
            }
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    fn place(purpose: &'static str, addr: &str) -> ListenerKey {
        ListenerKey { purpose, addr: addr.parse().expect("an address") }
    }

    #[test]
    fn a_started_process_holds_the_sockets_under_the_numbers_it_was_told() {
        let sockets = vec![
            (place("http", "127.0.0.1:0"), crate::listener::bind(place("", "127.0.0.1:0").addr, 2, 16).expect("free")),
            (place("status", "127.0.0.1:0"), crate::listener::bind(place("", "[::1]:0").addr, 1, 16).expect("free")),
        ];
        let (read, write) = std::io::pipe().expect("a pipe");
        let write = OwnedFd::from(write);
        let mut command = Command::new("sh");
        command.stdout(Stdio::piped()).args([
            "-c",
            "for fd in $(echo $WEIR_SOCKETS | tr -c 0-9 ' ') $WEIR_READY_FD; do readlink /proc/$$/fd/$fd; done; \
             printf 1 > /proc/self/fd/$WEIR_READY_FD; cat /proc/self/fd/$WEIR_SECRETS_FD",
        ]);
        let secrets = held(b"a secret").expect("a pipe");
        pass_on(&mut command, &sockets, &write, &secrets);
        let output = command.output().expect("there is a shell");
        drop(write);
        let mut said = Vec::new();
        { read }.read_to_end(&mut said).expect("a pipe");
        assert_eq!(said, READY_BYTE);

        let text = String::from_utf8(output.stdout).expect("text");
        let inode = |listener: &TcpListener| rustix::fs::fstat(listener).expect("it is open").st_ino;
        for listener in sockets.iter().flat_map(|(_, listeners)| listeners) {
            assert!(text.contains(&format!("socket:[{}]", inode(listener))), "{text}");
        }
        assert!(text.contains("pipe:["), "{text}");
        assert!(text.ends_with("a secret"), "{text}");
    }

    #[test]
    fn sockets_are_found_by_place_and_activated_ones_by_address() {
        let bind = |addr: &str| crate::listener::bind(place("", addr).addr, 1, 16).expect("a free port");
        let activated = bind("0.0.0.0:0").remove(0);
        let port = activated.local_addr().expect("it is bound").port();
        let mut inherited = Inherited {
            named: vec![
                ("http 127.0.0.1:0".into(), bind("127.0.0.1:0")),
                ("http 127.0.0.1:0".into(), bind("127.0.0.1:0")),
                ("status 127.0.0.1:0".into(), bind("127.0.0.1:0")),
            ],
            activated: vec![activated],
            ready: None,
            secrets: Vec::new(),
        };
        assert_eq!(inherited.take(&place("http", "127.0.0.1:0")).len(), 1);
        assert_eq!(inherited.take(&place("http", "127.0.0.1:0")).len(), 1);
        assert!(inherited.take(&place("http", "127.0.0.1:0")).is_empty(), "each socket is taken once");
        assert!(inherited.take(&place("http", &format!("127.0.0.1:{port}"))).is_empty());
        assert_eq!(inherited.take(&place("http", &format!("[::]:{port}"))).len(), 1);
        assert_eq!(inherited.left_over().count(), 1);
        assert!(!inherited.tell_ready().expect("there is nobody to tell"));
    }
}
