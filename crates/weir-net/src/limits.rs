//! Limits the system sets for this process: open files, accept backlog, ports.

use std::fmt;
use std::fs;
use std::ops::RangeInclusive;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limits determined at start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessLimits {
    /// Limit of open files now, and before it was raised. `None` is no limit.
    pub open_files: Option<u64>,
    pub open_files_before: Option<u64>,
    /// Connections in the accept queue of each socket (`net.core.somaxconn`).
    pub backlog: i32,
    /// Local ports for connections to one upstream address (`net.ipv4.ip_local_port_range`).
    pub ports: u32,
}

/// The kernel's defaults, used if /proc is not readable.
const DEFAULT_SOMAXCONN: i32 = 4096;
const DEFAULT_PORTS: RangeInclusive<u32> = 32768..=60999;

impl ProcessLimits {
    /// Raises the soft limit of open files to the hard limit, and looks up the rest.
    pub fn raise() -> Self {
        let before = getrlimit(Resource::Nofile);
        // This fails only under external restrictions; then the limit stays and is reported as it is.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, maximum: before.maximum });
        let somaxconn = fs::read_to_string("/proc/sys/net/core/somaxconn").ok();
        let ports = local_ports().unwrap_or(DEFAULT_PORTS);
        Self {
            open_files: getrlimit(Resource::Nofile).current,
            open_files_before: before.current,
            backlog: somaxconn.and_then(|text| text.trim().parse().ok()).unwrap_or(DEFAULT_SOMAXCONN),
            ports: (ports.end() + 1).saturating_sub(*ports.start()),
        }
    }
}

/// The ports from which the kernel takes that of a socket which connects without one.
pub(crate) fn local_ports() -> Option<RangeInclusive<u32>> {
    port_range(&fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?)
}

fn port_range(text: &str) -> Option<RangeInclusive<u32>> {
    let mut numbers = text.split_whitespace().map(str::parse);
    Some(numbers.next()?.ok()?..=numbers.next()?.ok()?)
}

impl fmt::Display for ProcessLimits {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let files = |limit: Option<u64>| limit.map_or("no limit of".to_owned(), |limit| limit.to_string());
        write!(out, "{} open files", files(self.open_files))?;
        if self.open_files != self.open_files_before {
            write!(out, " (raised from {})", files(self.open_files_before))?;
        }
        write!(out, ", backlog {}, {} ports for each upstream address", self.backlog, self.ports)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_is_the_hard_one_afterwards() {
        let limits = ProcessLimits::raise();
        let now = getrlimit(Resource::Nofile);
        assert_eq!(now.current, now.maximum);
        assert_eq!(limits.open_files, now.current);
        assert!(limits.backlog > 0 && limits.ports > 0, "{limits:?}");
    }

    #[test]
    fn limits_read_as_a_sentence() {
        let mut limits =
            ProcessLimits { open_files: Some(20_000), open_files_before: Some(1_024), backlog: 4_096, ports: 28_232 };
        let tail = ", backlog 4096, 28232 ports for each upstream address";
        assert_eq!(limits.to_string(), format!("20000 open files (raised from 1024){tail}"));
        limits.open_files_before = limits.open_files;
        assert_eq!(limits.to_string(), format!("20000 open files{tail}"));
    }

    #[test]
    fn a_port_range_has_two_ends() {
        assert_eq!(port_range("32768\t60999\n"), Some(32768..=60999));
        assert_eq!(port_range("32768"), None);
        assert_eq!(port_range(""), None);
    }
}
