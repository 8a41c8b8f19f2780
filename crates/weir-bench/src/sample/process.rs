use std::{fs, path::PathBuf};

use super::tree::{numbers, stat};
use crate::result::ProcessSample;

/// The sum of the resident bytes of the processes. Pages that they share are counted for each.
pub fn rss_bytes(pids: &[u32]) -> u64 {
    pids.iter().filter_map(|pid| stat(&PathBuf::from(format!("/proc/{pid}/stat")))).map(|stat| stat.rss_bytes).sum()
}

/// The sums of counters and gauges of the processes. `workers` is how the names of threads begin that process requests.
pub fn read(pids: &[u32], workers: Option<&str>) -> ProcessSample {
    let mut sum = ProcessSample { worker_cpu_s: workers.map(|_| 0.0), ..ProcessSample::default() };
    for pid in pids {
        let directory = PathBuf::from(format!("/proc/{pid}"));
        let Some(stat) = stat(&directory.join("stat")) else { continue };
        let mut run_ns = 0;
        for thread in numbers(&directory.join("task")) {
            let task = directory.join("task").join(thread.to_string());
            let schedule = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
            let mut fields = schedule.split_whitespace().map(|field| field.parse::<u64>().unwrap_or(0));
            let thread_ns = fields.next().unwrap_or(0);
            run_ns += thread_ns;
            if let (Some(worker_s), Some(workers)) = (&mut sum.worker_cpu_s, workers) {
                let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
                *worker_s += if name.starts_with(workers) { thread_ns as f64 / 1e9 } else { 0.0 };
            }
            sum.run_delay_s += fields.next().unwrap_or(0) as f64 / 1e9;
            let status = fs::read_to_string(task.join("status")).unwrap_or_default();
            sum.switches_voluntary += field(&status, "voluntary_ctxt_switches:");
            sum.switches_involuntary += field(&status, "nonvoluntary_ctxt_switches:");
        }
        // Ticks are 10 ms. The scheduler's count is in ns, but does not distinguish user and system time, and does not
        // include threads that have ended; if the ticks are clearly more, they are used.
        let ticks_s = stat.user_s + stat.system_s;
        let precise_s = (run_ns as f64 / 1e9).max(ticks_s - TICK_ERROR_S);
        let scale = if ticks_s > 0.0 { precise_s / ticks_s } else { 1.0 };
        sum.cpu_user_s += stat.user_s * scale;
        sum.cpu_system_s += stat.system_s * scale;
        sum.rss_bytes += stat.rss_bytes;
        sum.threads += stat.threads;
        let fds = fs::read_dir(directory.join("fd")).map_or(0, |entries| entries.count() as u64);
        sum.fds += fds;
        sum.fds_most = sum.fds_most.max(fds);
    }
    sum
}

/// The limit of open files of the process with the lowest one.
pub fn open_files_limit(pids: &[u32]) -> Option<u64> {
    let soft = |pid: &u32| {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
        limits.lines().find_map(|line| line.strip_prefix("Max open files"))?.split_whitespace().next()?.parse().ok()
    };
    pids.iter().filter_map(soft).min()
}

/// How far ticks may exceed the precise count without a thread having ended, in seconds.
const TICK_ERROR_S: f64 = 0.05;

fn field(text: &str, name: &str) -> u64 {
    text.lines().find_map(|line| line.strip_prefix(name)).and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}
