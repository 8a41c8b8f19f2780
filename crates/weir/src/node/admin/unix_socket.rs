//! The Unix socket of the Admin API, which only the user of this process can connect to.

use std::fmt;
use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use rustix::process::getppid;

/// A listening socket, and its file.
pub(super) struct UnixSocket {
    pub listener: UnixListener,
    pub file: SocketFile,
}

/// The file of a socket. It has a temporary name until `show` is called. Dropping it removes the file.
pub(super) struct SocketFile {
    path: PathBuf,
    hidden: PathBuf,
    device: u64,
    inode: u64,
}

impl UnixSocket {
    /// Creates the socket under a temporary name; [`SocketFile::show`] renames it, and thereby replaces the socket of a process
    /// that has ended or that this one is to replace.
    pub(super) fn open(path: &Path, backlog: i32) -> io::Result<UnixSocket> {
        match fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => {
                return Err(io::Error::other("the file exists and is not a socket; remove it, or choose another path"));
            }
            Ok(_) if is_of_another(path) => {
                return Err(io::Error::other(
                    "another process listens there; stop that process, or choose another path",
                ));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut hidden = path.as_os_str().to_owned();
        hidden.push(".new");
        let hidden = PathBuf::from(hidden);
        match fs::remove_file(&hidden) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        bind(&socket, &SocketAddrUnix::new(&hidden)?)?;
        // No client can connect before `listen`.
        fs::set_permissions(&hidden, Permissions::from_mode(0o600))?;
        listen(&socket, backlog)?;
        let made = fs::symlink_metadata(&hidden)?;
        let file = SocketFile { path: path.to_owned(), hidden, device: made.dev(), inode: made.ino() };
        Ok(UnixSocket { listener: socket.into(), file })
    }
}

/// Whether another process than the parent listens there: in an upgrade, the parent is the previous process.
fn is_of_another(path: &Path) -> bool {
    match UnixStream::connect(path) {
        Ok(stream) => socket_peercred(&stream).map_or(true, |listens| Some(listens.pid) != getppid()),
        // Without permission to connect, assume that it is another process.
        Err(error) => !matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound),
    }
}

impl SocketFile {
    /// Renames the socket to its final name, replacing the previous socket.
    pub(super) fn show(&self) -> io::Result<()> {
        fs::rename(&self.hidden, &self.path)
    }

    fn is_own(&self, there: &Metadata) -> bool {
        (there.dev(), there.ino()) == (self.device, self.inode)
    }
}

impl fmt::Display for SocketFile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "unix:{}", self.path.display())
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        for name in [&self.hidden, &self.path] {
            // The path may belong to the next process already.
            if fs::symlink_metadata(name).is_ok_and(|there| self.is_own(&there)) {
                // A remaining file is replaced by the next process.
                let _ = fs::remove_file(name);
            }
        }
    }
}
