//! Directories and ports for a test.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, process};

use socket2::{Domain, Socket, Type};

/// The file system in memory that Linux distributions mount.
const MEMORY: &str = "/dev/shm";
/// Free bytes that [`TempDir::in_memory`] wants: etcd reserves 64 MB for each log file.
const IN_MEMORY_FREE: u64 = 2 << 30;

/// A temporary directory, removed with its content when dropped.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
}

impl TempDir {
    /// Creates the directory in the system's directory for temporary files.
    #[allow(clippy::new_without_default)]
    pub fn new() -> TempDir {
        TempDir::within(std::env::temp_dir())
    }

    /// Creates the directory in memory where there is room for it, for a server that syncs each write: the disk of a
    /// busy machine can take seconds for that.
    pub fn in_memory() -> TempDir {
        let free = rustix::fs::statvfs(MEMORY).map_or(0, |system| system.f_bavail * system.f_frsize);
        if free >= IN_MEMORY_FREE { TempDir::within(MEMORY.into()) } else { TempDir::new() }
    }

    fn within(parent: PathBuf) -> TempDir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("weir-test-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = parent.join(name);
        // A directory of this name can only be left over from an earlier process with the same id.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("cannot make {}: {error}", path.display()));
        TempDir { path }
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of `name` in the directory.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file in the directory, creates missing subdirectories, and returns its path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        let folder = path.parent().expect("a name inside has a parent");
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, content))
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A free loopback port, for addresses that must refuse connections, and for servers that need a port number in
/// advance. Each call returns another port.
///
/// It is below the kernel's range for port 0 and for outgoing connections (`net.ipv4.ip_local_port_range`) where that
/// leaves room: then no other test is given it, and a client that polls it until a server listens can't connect to
/// itself.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").expect("Linux has this file");
    let above: u32 =
        range.split_whitespace().next().and_then(|low| low.parse().ok()).expect("the range is two numbers");
    let lane = std::env::var("WEIR_TEST_LANE").ok();
    let (lane, lanes) = lane.as_deref().and_then(lane_of).unwrap_or((0, 1));
    let count = above.saturating_sub(FIRST_PORT) / lanes;
    let first = FIRST_PORT + lane * count;
    // Other processes that run side by side begin at different ports.
    let start = process::id().wrapping_mul(997);
    let bind = |port| bound_alone(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).ok();
    let below = (0..count).find_map(|_| {
        let number = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        bind((first + number % count) as u16)
    });
    let socket = below.or_else(|| bind(0)).expect("loopback has free ports");
    let address = socket.local_addr().expect("a bound socket has an address");
    address.as_socket().expect("it is one of IP").port()
}

/// A socket of TCP that does not listen: a process that is just being started has a copy of it for a moment, which takes no connections.
fn bound_alone(address: SocketAddr) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// `cargo xtask test` runs binaries side by side, and tells each by `WEIR_TEST_LANE=LANE/LANES` which part of the ports is its own.
fn lane_of(text: &str) -> Option<(u32, u32)> {
    let (lane, lanes) = text.split_once('/')?;
    Some((lane.parse().ok()?, lanes.parse().ok()?)).filter(|(lane, lanes)| lane < lanes)
}

/// Servers of the machine usually listen below this port.
const FIRST_PORT: u32 = 10_000;

/// Makes the accept queue as short as the kernel allows.
pub fn shrink_backlog(listener: &TcpListener) {
    rustix::net::listen(listener, 0).expect("it listens already");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_out_twice() {
        let ports: std::collections::HashSet<u16> = (0..50).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 50);
    }

    #[test]
    fn a_lane_is_one_of_several() {
        assert_eq!((lane_of("1/2"), lane_of("2/2"), lane_of("1"), lane_of("")), (Some((1, 2)), None, None, None));
    }

    #[test]
    fn a_directory_goes_away_with_its_content() {
        let directory = TempDir::new();
        let file = directory.write("weir.yaml", "routes: []");
        assert!(file.exists());
        let path = directory.path().to_owned();
        drop(directory);
        assert!(!path.exists());
    }
}
