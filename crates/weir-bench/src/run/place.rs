use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use rustix::{
    process::{Resource, Rlimit, getrlimit, setrlimit},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};

use super::{RunOptions, SetupError};
use crate::{
    errors::FileError,
    manifest::{Cpu, LogicalCpu},
    target::RunCertificate,
};

/// The directory of a run, for configurations, logs and a certificate. Removed at the end.
pub struct RunDirectory {
    directory: PathBuf,
    next: AtomicU32,
    /// The directory of installed peers and backends.
    pub cache: PathBuf,
    pub certificate: RunCertificate,
    /// The limit of open files for every process of the run.
    pub open_files: u64,
}

/// Enough for 100,000 clients through a proxy, if the machine allows the lab to raise its limit.
const WANTED_FILES: u64 = 262_144;

impl RunDirectory {
    pub fn new(options: &RunOptions) -> Result<RunDirectory, SetupError> {
        let made = rcgen::generate_simple_self_signed(NAMES.map(str::to_owned)).map_err(SetupError::Certificate)?;
        RunDirectory::with_certificate(&options.cache, made.cert.pem(), made.signing_key.serialize_pem())
    }

    /// A directory with the certificate of a run that another machine controls.
    pub(super) fn with_certificate(
        cache: &Path,
        cert_pem: String,
        key_pem: String,
    ) -> Result<RunDirectory, SetupError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = match COUNT.fetch_add(1, Ordering::Relaxed) {
            0 => String::new(),
            count => format!("-{count}"),
        };
        let directory = cache.join(format!("run-{}{count}", std::process::id()));
        fs::create_dir_all(&directory).map_err(FileError::at(&directory))?;
        let directory = directory.canonicalize().map_err(FileError::at(&directory))?;
        let certificate = certificate(&directory, cert_pem, key_pem)?;
        Ok(RunDirectory {
            directory,
            next: AtomicU32::new(0),
            cache: cache.to_owned(),
            certificate,
            open_files: raise_open_files(),
        })
    }

    /// A text for publication, without private keys and without the paths of this machine.
    pub fn redacted(&self, text: &str) -> String {
        without_private_keys(&text.replace(&self.directory.display().to_string(), ".."))
    }

    /// A new directory for one process.
    pub fn directory(&self, name: &str) -> Result<PathBuf, SetupError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let directory = self.directory.join(format!("{number}-{name}"));
        fs::create_dir_all(&directory).map_err(FileError::at(&directory))?;
        Ok(directory)
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        // If this fails, the directory remains in the cache, which does no harm.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The text with a note instead of each PEM private key (RFC 7468 §10 and §13), also if its line ends are escaped.
fn without_private_keys(text: &str) -> String {
    const NOTE: &str = "(a key made for this run)";
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("-----BEGIN ") {
        let label = rest[start + 11..].split("-----").next().unwrap_or_default();
        let after_label = start + 11 + label.len();
        if !label.ends_with("PRIVATE KEY") {
            kept.push_str(&rest[..after_label]);
            rest = &rest[after_label..];
            continue;
        }
        kept.push_str(&rest[..start]);
        kept.push_str(NOTE);
        let end = format!("-----END {label}-----");
        // After a key without an end marker, everything is removed.
        rest = rest[after_label..].split_once(&end).map_or("", |(_, after)| after);
    }
    kept + rest
}

/// The names of the certificate of a run.
const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

/// Writes the certificate of a run.
fn certificate(directory: &Path, cert_pem: String, key_pem: String) -> Result<RunCertificate, SetupError> {
    let write = |name: &str, text: &str| {
        let path = directory.join(name);
        fs::write(&path, text).map_err(FileError::at(&path))?;
        Ok::<String, FileError>(path.display().to_string())
    };
    let (cert_file, key_file) = (write("cert.pem", &cert_pem)?, write("key.pem", &key_pem)?);
    Ok(RunCertificate { cert_pem, key_pem, cert_file, key_file })
}

/// Raises the soft limit of open files, and the hard limit if that is allowed; returns the resulting soft limit.
pub(super) fn raise_open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(u64::MAX);
    let wanted = WANTED_FILES.max(hard.min(1 << 20));
    for value in [wanted, hard] {
        let new = Rlimit { current: Some(value), maximum: Some(value.max(hard)) };
        if setrlimit(Resource::Nofile, new).is_ok() {
            return value;
        }
    }
    limit.current.unwrap_or(1024)
}

/// A free port of this address of the machine. Each call returns another one.
///
/// It is below the kernel's range for outgoing connections (`net.ipv4.ip_local_port_range`) where that leaves room:
/// otherwise a connection of a load generator could take it before the server listens.
pub(super) fn free_port(host: Ipv4Addr) -> Result<u16, SetupError> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let above: u32 = range.split_whitespace().next().and_then(|low| low.parse().ok()).unwrap_or(0);
    let count = above.saturating_sub(FIRST_PORT);
    // Runs side by side begin at different ports.
    let start = std::process::id().wrapping_mul(997);
    let bind = |port| TcpListener::bind((host, port));
    let below = (0..count).find_map(|_| {
        let number = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        bind((FIRST_PORT + number % count) as u16).ok()
    });
    let address = below.map_or_else(|| bind(0), Ok).and_then(|listener| listener.local_addr());
    Ok(address.map_err(SetupError::NoPort)?.port())
}

/// Servers of the machine usually listen below this port.
const FIRST_PORT: u32 = 10_000;

/// The processors that this process may use, with their cores.
pub fn usable_cpus(cpu: &Cpu) -> Vec<LogicalCpu> {
    let Ok(set) = sched_getaffinity(None) else { return cpu.topology.clone() };
    cpu.topology.iter().copied().filter(|cpu| set.is_set(cpu.id as usize)).collect()
}

/// Pins this thread, and threads that it starts, to these processors.
pub(super) fn keep_to(cpus: &[u32]) {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu as usize));
    // If that is not allowed, the threads are not pinned.
    let _ = sched_setaffinity(None, &set);
}

/// Writes a file, and creates its directory.
pub(super) fn write(path: &Path, text: &str) -> Result<(), FileError> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(FileError::at(parent))?;
    }
    fs::write(path, text).map_err(FileError::at(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_files_hold_no_private_key() {
        let names = ["localhost".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        // Line ends depend on the platform.
        let unix = |text: String| text.replace('\r', "");
        let (certificate, key) = (unix(made.cert.pem()), unix(made.signing_key.serialize_pem()));
        let escaped = serde_json::to_string(&key).unwrap();
        let published = without_private_keys(&format!("{certificate}{key}key: {escaped}\ncert: x"));
        let note = "(a key made for this run)";
        assert_eq!(published, format!("{certificate}{note}\nkey: \"{note}\\n\"\ncert: x"));
        assert!(!published.contains("PRIVATE"));
        assert_eq!(without_private_keys("-----BEGIN EC PRIVATE KEY-----\nMHc"), note);
        assert_eq!(without_private_keys("a: -----BEGIN"), "a: -----BEGIN");
    }
}
