//! Where a target spends its processor time in a run, by samples of perf.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::result::DEEPEST_STACK;
use crate::target::{COMMAND_LIMIT, output_within};

const PERF: &str = "perf";
/// Samples of a run: enough to see a share of a hundredth, few enough not to change the figure.
const SAMPLES: f64 = 400.0;
const LOWEST_FREQUENCY: f64 = 9.0;
const HIGHEST_FREQUENCY: f64 = 99.0;
/// The bytes of a stack that are copied with each sample, to find the callers in programs without frame pointers.
const STACK_BYTES: u32 = 32_768;
/// How long perf may take to write its file.
const END_LIMIT: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(5);

/// Stacks, each as its frames from the outermost, separated by `;`, and the number of samples.
pub(super) type FoldedStacks = BTreeMap<String, u64>;

/// Whether perf is there.
pub(super) fn is_available() -> bool {
    let mut command = Command::new(PERF);
    command.arg("--version");
    output_within(command, COMMAND_LIMIT, &|_| {}).is_ok_and(|output| output.status.success())
}

/// A running perf.
pub(super) struct StackSampler {
    perf: Child,
    file: PathBuf,
}

impl StackSampler {
    /// Samples processes, and those that they start, over about this time. `None` if perf does not start.
    pub(super) fn start(pids: &[u32], file: PathBuf, length: Duration) -> Option<StackSampler> {
        let frequency = (SAMPLES / length.as_secs_f64()).clamp(LOWEST_FREQUENCY, HIGHEST_FREQUENCY);
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        let mut command = Command::new(PERF);
        command
            .args(["record", "--quiet", "--freq", &format!("{frequency:.0}")])
            .args(["--call-graph", &format!("dwarf,{STACK_BYTES}")])
            .args(["--pid", &pids.join(","), "--output"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Some(StackSampler { perf: command.spawn().ok()?, file })
    }

    /// Ends perf, and reads what it has sampled. Nothing if that fails: the run is valid without.
    pub(super) fn finish(mut self) -> FoldedStacks {
        if let Some(pid) = Pid::from_raw(self.perf.id() as i32) {
            let _ = kill_process(pid, Signal::INT);
        }
        let deadline = Instant::now() + END_LIMIT;
        while matches!(self.perf.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        let mut command = Command::new(PERF);
        command.args(["script", "--no-inline", "--fields", "comm,ip,sym", "--input"]).arg(&self.file);
        let output = output_within(command, COMMAND_LIMIT, &|_| {});
        output.map(|output| fold(&String::from_utf8_lossy(&output.stdout))).unwrap_or_default()
    }
}

impl Drop for StackSampler {
    fn drop(&mut self) {
        // Without effect if it has ended.
        let _ = self.perf.kill();
        let _ = self.perf.wait();
        let _ = fs::remove_file(&self.file);
    }
}

/// Adds up the samples that `perf script` prints: a line with the name of the thread, its frames from the innermost, an empty line.
fn fold(text: &str) -> FoldedStacks {
    let mut stacks = FoldedStacks::new();
    for sample in text.split("\n\n") {
        let mut lines = sample.lines().filter(|line| !line.trim().is_empty());
        let Some(thread) = lines.next() else { continue };
        let mut frames: Vec<String> = lines.map(frame).collect();
        if frames.is_empty() {
            continue;
        }
        frames.push(thread.trim().replace(';', ","));
        frames.reverse();
        frames.truncate(DEEPEST_STACK);
        *stacks.entry(frames.join(";")).or_default() += 1;
    }
    stacks
}

/// The name in a line such as `    5581d0 weir::serve+0x10`.
fn frame(line: &str) -> String {
    let name = line.trim().split_once(' ').map_or("[unknown]", |(_, name)| name);
    let name = name.rsplit_once("+0x").map_or(name, |(name, _)| name);
    name.replace(';', ",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_with_the_same_stack_add_up() {
        let text = "worker-0 \n\t  55 inner+0x1\n\t  66 outer\n\nworker-0 \n\t  57 inner+0x3\n\t  66 outer\n\n\
                    worker-1 \n\t  77 core::ptr::drop<[u8; 4]>\n\nmain \n\n";
        let expected = [("worker-0;outer;inner", 2), ("worker-1;core::ptr::drop<[u8, 4]>", 1)];
        assert_eq!(fold(text), expected.map(|(stack, count)| (stack.to_owned(), count)).into());
        assert!(fold("").is_empty());
    }

    #[test]
    fn perf_sees_what_a_process_does() {
        if !is_available() {
            return;
        }
        let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("there is sh");
        let file = std::env::temp_dir().join(format!("weir-bench-perf-{}", std::process::id()));
        let sampler = StackSampler::start(&[busy.id()], file.clone(), Duration::from_secs(2)).expect("it starts");
        // As long as the process has used a second of processor time, of which perf sees a part.
        let stat = PathBuf::from(format!("/proc/{}/stat", busy.id()));
        while crate::process_tree::stat(&stat).is_some_and(|stat| stat.user_s + stat.system_s < 1.0) {
            std::thread::sleep(LOOK);
        }
        let stacks = sampler.finish();
        let _ = busy.kill();
        let _ = busy.wait();
        // Where a user may not sample, perf says so and ends.
        assert!(stacks.keys().all(|stack| stack.starts_with("sh;")), "{stacks:?}");
        assert!(!file.exists(), "its file is gone");
    }
}
