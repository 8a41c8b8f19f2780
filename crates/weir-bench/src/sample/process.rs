use std::{collections::BTreeMap, fs, path::PathBuf};

use crate::process_tree::{children, numbers, process_tree, stat};
use crate::result::{MemoryKinds, ProcessSample};

/// The sum of the resident bytes of the processes. Pages that they share are counted for each.
pub fn rss_bytes(pids: &[u32]) -> u64 {
    pids.iter().filter_map(|pid| stat(&PathBuf::from(format!("/proc/{pid}/stat")))).map(|stat| stat.rss_bytes).sum()
}

/// The memory of processes by its kinds; `None` if the kernel does not tell all of them.
pub fn memory_kinds(pids: &[u32]) -> Option<MemoryKinds> {
    let mut sum = MemoryKinds::default();
    for pid in pids {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        sum.add(&text);
    }
    (!pids.is_empty()).then_some(sum)
}

impl MemoryKinds {
    /// Adds a process, by its `smaps_rollup`.
    fn add(&mut self, text: &str) {
        let bytes = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            value.trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) * 1024
        };
        self.proportional_bytes += bytes("Pss:");
        self.anonymous_bytes += bytes("Anonymous:");
        self.given_back_bytes += bytes("LazyFree:");
        self.swapped_bytes += bytes("Swap:");
    }
}

/// The processes of a target over time. A reload replaces workers: new ones are found at each sample, and what ended ones have
/// used stays in the sums.
pub(super) struct SampledTree {
    root: u32,
    /// The processes that were alive at the last sample, each with its last counters.
    alive: BTreeMap<u32, ProcessReading>,
    /// The last counters of the processes that have ended, and their number.
    ended: ProcessSample,
}

impl SampledTree {
    pub(super) fn new(root: u32) -> SampledTree {
        // With a count of 0 for workers, which is added only where it is asked for.
        let ended = ProcessSample { worker_cpu_s: Some(0.0), ..ProcessSample::default() };
        SampledTree { root, alive: BTreeMap::new(), ended }
    }

    /// The sums over all processes: counters of those that are alive or were at an earlier sample, gauges of those alive.
    /// `workers` is how the names of threads begin that process requests.
    pub(super) fn sample(&mut self, workers: Option<&str>) -> ProcessSample {
        let mut sum = ProcessSample { worker_cpu_s: workers.map(|_| 0.0), ..ProcessSample::default() };
        let mut alive = BTreeMap::new();
        for pid in self.processes() {
            if let Some(reading) = read(pid, workers) {
                alive.insert(pid, reading);
            }
        }
        for (pid, last) in std::mem::take(&mut self.alive) {
            if alive.get(&pid).is_none_or(|now| now.started_ticks != last.started_ticks) {
                self.ended.add_counters(&last.sample);
                self.ended.ended += 1;
            }
        }
        sum.add_counters(&self.ended);
        for ProcessReading { sample, .. } in alive.values() {
            sum.add_counters(sample);
            sum.rss_bytes += sample.rss_bytes;
            sum.threads += sample.threads;
            sum.fds += sample.fds;
            sum.fds_most = sum.fds_most.max(sample.fds);
        }
        self.alive = alive;
        sum
    }

    /// The processes known so far, and what these have started since.
    fn processes(&self) -> Vec<u32> {
        if self.alive.is_empty() {
            return process_tree(self.root);
        }
        let mut tree: Vec<u32> = self.alive.keys().copied().collect();
        let mut next = 0;
        while next < tree.len() {
            match children(tree[next]) {
                Some(found) => {
                    let new: Vec<u32> = found.into_iter().filter(|child| !tree.contains(child)).collect();
                    tree.extend(new);
                }
                // The process has ended, or the kernel does not list children.
                None if stat(&PathBuf::from(format!("/proc/{}/stat", tree[next]))).is_none() => {}
                None => {
                    let all = process_tree(self.root);
                    tree.extend(all.into_iter().filter(|pid| !self.alive.contains_key(pid)));
                    tree.sort_unstable();
                    tree.dedup();
                    return tree;
                }
            }
            next += 1;
        }
        tree
    }
}

/// One process at one moment.
pub(super) struct ProcessReading {
    pub started_ticks: u64,
    pub sample: ProcessSample,
}

/// The counters and gauges of a process; `None` if it has ended.
pub(super) fn read(pid: u32, workers: Option<&str>) -> Option<ProcessReading> {
    let mut sum = ProcessSample { worker_cpu_s: workers.map(|_| 0.0), ..ProcessSample::default() };
    let directory = PathBuf::from(format!("/proc/{pid}"));
    let stat = stat(&directory.join("stat"))?;
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
    sum.cpu_user_s = stat.user_s * scale;
    sum.cpu_system_s = stat.system_s * scale;
    sum.rss_bytes = stat.rss_bytes;
    sum.threads = stat.threads;
    sum.fds = fs::read_dir(directory.join("fd")).map_or(0, |entries| entries.count() as u64);
    sum.fds_most = sum.fds;
    Some(ProcessReading { started_ticks: stat.started_ticks, sample: sum })
}

impl ProcessSample {
    /// Adds what another process has used.
    fn add_counters(&mut self, other: &ProcessSample) {
        self.cpu_user_s += other.cpu_user_s;
        self.cpu_system_s += other.cpu_system_s;
        self.run_delay_s += other.run_delay_s;
        self.switches_voluntary += other.switches_voluntary;
        self.switches_involuntary += other.switches_involuntary;
        self.ended += other.ended;
        if let (Some(ours), Some(theirs)) = (&mut self.worker_cpu_s, other.worker_cpu_s) {
            *ours += theirs;
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_several_processes_adds_up_by_its_kinds() {
        let text = "00400000-7fff r--p 0 00:00 0 [rollup]\nRss:   900 kB\nPss:   300 kB\nPss_Anon:  1 kB\n\
                    Anonymous:   200 kB\nLazyFree:  50 kB\nSwap:   4 kB\nSwapPss:   2 kB\n";
        let mut sum = MemoryKinds::default();
        sum.add(text);
        sum.add(text);
        let kib = |count: u64| count * 1024;
        assert_eq!((sum.proportional_bytes, sum.swapped_bytes, sum.held_bytes()), (kib(600), kib(8), kib(300)));
        let written = std::hint::black_box(vec![1u8; 8 << 20]);
        let own = memory_kinds(&[std::process::id()]).expect("a process may read this of itself");
        assert!(own.anonymous_bytes + own.swapped_bytes >= 8 << 20, "{own:?}");
        drop(written);
        assert_eq!(memory_kinds(&[]), None);
    }
}
