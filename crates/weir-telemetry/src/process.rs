//! Metrics of the process from the kernel, under the names common to Prometheus clients.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use procfs::process::{LimitValue, Process};

use crate::page::Page;

static STARTED: LazyLock<(Instant, SystemTime)> = LazyLock::new(|| (Instant::now(), SystemTime::now()));

/// Records the start of the process. To be called first in `main`; otherwise the first use counts as the start.
pub fn started() {
    LazyLock::force(&STARTED);
}

/// When the process started.
pub fn start_time() -> SystemTime {
    STARTED.1
}

/// Seconds since the start.
pub fn uptime_seconds() -> u64 {
    STARTED.0.elapsed().as_secs()
}

/// The number of open file descriptors and its limit. `None` if the kernel does not provide them.
pub fn open_files() -> Option<(u64, u64)> {
    let process = Process::myself().ok()?;
    let open = process.fd_count().ok()? as u64;
    let limit = match process.limits().ok()?.max_open_files.soft_limit {
        LimitValue::Value(limit) => limit,
        LimitValue::Unlimited => u64::MAX,
    };
    Some((open, limit))
}

/// What the process uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessUse {
    /// Processor time since the start, in seconds.
    pub cpu_seconds: f64,
    pub resident_bytes: u64,
}

/// What the process uses now. `None` if the kernel does not tell.
pub fn in_use() -> Option<ProcessUse> {
    let stat = Process::myself().ok()?.stat().ok()?;
    let cpu_seconds = (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64;
    Some(ProcessUse { cpu_seconds, resident_bytes: stat.rss * procfs::page_size() })
}

pub(crate) fn metrics(page: &mut Page) {
    let since = STARTED.1.duration_since(UNIX_EPOCH).unwrap_or_default();
    page.gauge("process_start_time_seconds", "When the process started, in seconds since 1970.");
    page.value(&[], since.as_secs_f64());
    if let Some((open, limit)) = open_files() {
        page.gauge("process_open_fds", "Open file descriptors.").value(&[], open);
        page.gauge("process_max_fds", "Maximum number of open file descriptors.").value(&[], limit);
    }
    if let Ok(stat) = Process::myself().and_then(|process| process.stat()) {
        let seconds = (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64;
        page.counter("process_cpu_seconds", "Processor time, in seconds.").total(&[], seconds);
        page.gauge("process_resident_memory_bytes", "Resident memory, in bytes.")
            .value(&[], stat.rss * procfs::page_size());
        page.gauge("process_virtual_memory_bytes", "Virtual memory, in bytes.").value(&[], stat.vsize);
        page.gauge("process_threads", "Threads.").value(&[], stat.num_threads);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_knows_this_process() {
        let (open, limit) = open_files().expect("/proc is there");
        assert!(open >= 3 && limit >= open, "{open} of {limit}");
    }
}
