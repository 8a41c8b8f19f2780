//! Samples processes and the machine while a load runs. The samples are evaluated elsewhere.

mod host;
mod process;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use self::process::SampledTree;
pub use self::process::{memory_kinds, open_files_limit, rss_bytes};
use crate::engine::LoadStart;
use crate::result::{HostSample, Process, ProcessRole, ProcessSample};

/// A process tree to sample.
#[derive(Clone, Debug)]
pub struct WatchedProcess {
    pub role: ProcessRole,
    pub name: String,
    pub cpus: Vec<u32>,
    /// Its first process. Descendants are found at each sample: some targets listen before they start their workers, and a
    /// reload starts new ones.
    pub root: u32,
    /// How the names of its threads begin that process requests; see [`ProcessSample::worker_cpu_s`].
    pub workers: Option<String>,
}

/// A thread that takes samples until it is stopped.
pub struct ProcessSampler {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<(Vec<Process>, Vec<HostSample>)>,
}

impl ProcessSampler {
    /// Takes the first sample `delay` (the warm-up) after the start of the load, then one every `interval`, and the last one
    /// after `length`.
    pub fn start(
        watched: Vec<WatchedProcess>,
        load: &LoadStart,
        delay: Duration,
        interval: Duration,
        length: Duration,
    ) -> ProcessSampler {
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let load = load.clone();
        let thread = thread::Builder::new()
            .name("sampler".to_owned())
            .spawn(move || {
                // Without a start there is one sample, of the end.
                let start = load.wait().unwrap_or_else(Instant::now) + delay;
                collect(watched, &told, start, interval, length)
            })
            .expect("the system has room for one more thread");
        ProcessSampler { stop, thread }
    }

    /// Returns the samples; stops sampling if it has not ended. The load has started or ended by then.
    pub fn finish(self) -> (Vec<Process>, Vec<HostSample>) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        self.thread.join().expect("sampling does not panic")
    }
}

fn collect(
    watched: Vec<WatchedProcess>,
    stop: &AtomicBool,
    start: Instant,
    interval: Duration,
    length: Duration,
) -> (Vec<Process>, Vec<HostSample>) {
    let mut processes: Vec<Process> = watched
        .iter()
        .map(|one| Process { role: one.role, name: one.name.clone(), cpus: one.cpus.clone(), samples: Vec::new() })
        .collect();
    let mut host = Vec::new();
    let mut trees: Vec<SampledTree> = watched.iter().map(|one| SampledTree::new(one.root)).collect();
    let end = start + length;
    let mut due = start;
    loop {
        while Instant::now() < due && !stop.load(Ordering::Relaxed) {
            thread::park_timeout(due.saturating_duration_since(Instant::now()));
        }
        for ((tree, process), one) in trees.iter_mut().zip(&mut processes).zip(&watched) {
            let at_s = start.elapsed().as_secs_f64();
            process.samples.push(ProcessSample { at_s, ..tree.sample(one.workers.as_deref()) });
        }
        host.push(HostSample { at_s: start.elapsed().as_secs_f64(), ..host::read() });
        if due >= end || stop.load(Ordering::Relaxed) {
            break;
        }
        due = (due + interval).min(end);
    }
    from_zero(&mut processes, &mut host);
    (processes, host)
}

/// Subtracts the first sample from the counters, so that they start at zero.
fn from_zero(processes: &mut [Process], host: &mut [HostSample]) {
    for process in processes {
        let Some(first) = process.samples.first().copied() else { continue };
        for sample in &mut process.samples {
            sample.cpu_user_s -= first.cpu_user_s;
            sample.cpu_system_s -= first.cpu_system_s;
            sample.run_delay_s -= first.run_delay_s;
            sample.worker_cpu_s = sample.worker_cpu_s.zip(first.worker_cpu_s).map(|(now, first)| now - first);
            // The counters of a thread are lost when it ends, so sums may decrease.
            sample.switches_voluntary = sample.switches_voluntary.saturating_sub(first.switches_voluntary);
            sample.switches_involuntary = sample.switches_involuntary.saturating_sub(first.switches_involuntary);
        }
    }
    let Some(first) = host.first().copied() else { return };
    for sample in host {
        sample.cpu_busy_s -= first.cpu_busy_s;
        sample.cpu_interrupts_s -= first.cpu_interrupts_s;
        sample.cpu_idle_s -= first.cpu_idle_s;
        sample.cpu_steal_s -= first.cpu_steal_s;
        sample.retransmits -= first.retransmits;
        sample.listen_overflows -= first.listen_overflows;
        sample.active_opens -= first.active_opens;
        sample.passive_opens -= first.passive_opens;
        sample.oom_kills -= first.oom_kills;
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// The counters of this process.
    fn own(workers: Option<&str>) -> ProcessSample {
        process::read(std::process::id(), workers).expect("it runs").sample
    }

    /// A shell that uses a fifth of a second of processor time, then reports it and waits for a line.
    fn busy_worker(parent: &mut std::process::ChildStdin, report: &mut impl std::io::BufRead) {
        use std::io::Write as _;
        // The 14th field of the file is user time in ticks of 10 ms.
        let busy = "while read -r a b c d e f g h i j k l m user rest </proc/$$/stat; [ $user -lt 20 ]; do :; done";
        let line = format!("sh -c '{busy}; echo done; read line' <&3 &");
        writeln!(parent, "{line}").expect("the shell reads");
        let mut said = String::new();
        report.read_line(&mut said).expect("the worker reports");
        assert_eq!(said, "done\n");
    }

    #[test]
    fn workers_that_a_reload_starts_are_sampled_and_ended_ones_stay_counted() {
        use std::io::{BufReader, Write as _};
        use std::process::{Command, Stdio};
        let mut shell = Command::new("sh").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("there is sh");
        let (mut tell, mut said) =
            (shell.stdin.take().expect("piped"), BufReader::new(shell.stdout.take().expect("piped")));
        let pipe = std::env::temp_dir().join(format!("weir-bench-workers-{}", std::process::id()));
        // A worker waits for a line from a pipe that is never written to, until it is killed.
        writeln!(tell, "mkfifo {0} && exec 3<>{0} && rm {0}", pipe.display()).expect("the shell reads");
        let mut tree = SampledTree::new(shell.id());
        let used = |sample: ProcessSample| sample.cpu_user_s + sample.cpu_system_s;
        let before = tree.sample(None);
        busy_worker(&mut tell, &mut said);
        let first = tree.sample(None);
        assert!(used(first) - used(before) > 0.1, "{} and {}", used(before), used(first));
        assert!(first.rss_bytes > before.rss_bytes && first.threads == 2);
        writeln!(tell, "kill $!; wait $!; echo gone").expect("the shell reads");
        let mut line = String::new();
        std::io::BufRead::read_line(&mut said, &mut line).expect("the shell reports");
        busy_worker(&mut tell, &mut said);
        let second = tree.sample(None);
        assert!(used(second) - used(first) > 0.1, "{} and {}", used(first), used(second));
        assert_eq!((second.threads, first.ended, second.ended), (2, 0, 1));
        writeln!(tell, "kill $!; exit").expect("the shell reads");
        shell.wait().expect("it ends");
        assert!(used(tree.sample(None)) >= used(second));
    }

    #[test]
    fn samples_this_process_while_it_works() {
        let watched = WatchedProcess {
            role: ProcessRole::Target,
            name: "own".to_owned(),
            cpus: vec![0],
            root: std::process::id(),
            workers: None,
        };
        let load = LoadStart::default();
        load.set(Instant::now());
        let sampler = ProcessSampler::start(
            vec![watched],
            &load,
            Duration::ZERO,
            Duration::from_millis(10),
            Duration::from_secs(3600),
        );
        let used = || {
            let sample = own(None);
            sample.cpu_user_s + sample.cpu_system_s
        };
        let (before, deadline) = (used(), Instant::now() + Duration::from_secs(30));
        while used() - before < 0.1 && Instant::now() < deadline {
            std::hint::black_box((0..100_000u64).sum::<u64>());
        }
        let (processes, host) = sampler.finish();
        let samples = &processes[0].samples;
        assert!(samples.len() >= 2 && host.len() == samples.len());
        assert!(processes[0].cpu_s() > 0.02, "{}", processes[0].cpu_s());
        assert!(samples[0].rss_bytes > 0 && samples[0].fds > 0 && samples[0].threads > 0);
        assert_eq!(host[0].passive_opens, 0);
    }

    #[test]
    fn work_before_the_start_of_the_load_is_not_counted() {
        let watched = WatchedProcess {
            role: ProcessRole::Target,
            name: "own".to_owned(),
            cpus: vec![0],
            root: std::process::id(),
            workers: None,
        };
        let load = LoadStart::default();
        let length = Duration::from_secs(3600);
        let sampler = ProcessSampler::start(vec![watched], &load, Duration::ZERO, Duration::from_millis(10), length);
        let used = || {
            let sample = own(None);
            sample.cpu_user_s + sample.cpu_system_s
        };
        let before = used();
        while used() - before < 0.2 {
            std::hint::black_box((0..100_000u64).sum::<u64>());
        }
        let used_before_start = used();
        load.set(Instant::now());
        let (processes, _) = sampler.finish();
        let counted = processes[0].cpu_s();
        let since = used() - used_before_start;
        assert!(counted <= since + 0.02, "{counted} s counted, {since} s used since the start");
    }

    #[test]
    fn threads_are_told_apart_by_name() {
        let (told, tell) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let worker = thread::Builder::new().name("busy-worker-0".to_owned()).spawn(move || {
            let own = PathBuf::from("/proc/thread-self/schedstat");
            let used_ns = || -> u64 {
                let text = std::fs::read_to_string(&own).expect("the kernel counts");
                text.split_whitespace().next().and_then(|field| field.parse().ok()).expect("a number")
            };
            while used_ns() < 50_000_000 {
                std::hint::black_box((0..100_000u64).sum::<u64>());
            }
            told.send(()).expect("heard");
            let _ = ended.recv();
        });
        tell.recv().expect("it works");
        let used = |prefix| own(Some(prefix)).worker_cpu_s.expect("asked for");
        assert!(used("busy-worker-") >= 0.05, "{}", used("busy-worker-"));
        assert_eq!(used("no-such-thread"), 0.0);
        assert!(own(None).worker_cpu_s.is_none());
        drop(end);
        worker.expect("a thread").join().expect("it ends");
    }
}
