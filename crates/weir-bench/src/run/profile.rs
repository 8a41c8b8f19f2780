//! Where a target spends its processor time in a run, by samples of perf.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::process::ExitStatusExt as _,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    stacks::FoldedStacks,
    target::{COMMAND_LIMIT, output_within, read_within},
};

const PERF: &str = "perf";
/// Samples of a run: enough to see a share of a hundredth, few enough not to change the figure.
const SAMPLES: f64 = 400.0;
/// The lowest that perf takes: 3,600 samples of an hour, for each processor that is busy.
const LOWEST_FREQUENCY: f64 = 1.0;
const HIGHEST_FREQUENCY: f64 = 99.0;
/// The bytes of a stack that are copied with each sample, to find the callers in programs without frame pointers.
const STACK_BYTES: u32 = 32_768;
/// The most that perf writes: more than 8,000 samples. It ends with what it has.
const LARGEST_FILE: &str = "256M";
/// How long perf may take to write its file.
const END_LIMIT: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(5);
/// The most bytes that are read of what perf says of a failure.
const LONGEST_WORDS: u64 = 4_096;
/// Who may sample: the higher, the fewer.
const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";
/// What perf says if the kernel refuses to let it sample.
const REFUSALS: [&str; 3] = ["perf_event_paranoid", "ermission", "not permitted"];
/// The setting that perf names if a user has no room left for what is sampled. It calls that an error of permission, too.
const NO_ROOM: &str = "mlock_kb";

/// Whether perf is there.
pub(super) fn is_available() -> bool {
    let mut command = Command::new(PERF);
    command.arg("--version");
    output_within(command, COMMAND_LIMIT, &|_| {}).is_ok_and(|output| output.status.success())
}

/// Why a run has no samples of stacks.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoStacks {
    #[error("perf does not start: {0}")]
    Start(io::Error),
    #[error("perf may not sample{}: {words}; root may, or a user where kernel.perf_event_paranoid is at most 1", value(.paranoid))]
    NotAllowed { paranoid: Option<String>, words: String },
    #[error("perf record failed with {status}: {words}")]
    Record { status: ExitStatus, words: String },
    #[error("perf record did not end within {} s", END_LIMIT.as_secs())]
    Late,
    #[error("perf script: {0}")]
    Script(io::Error),
    #[error("perf script failed with {status}: {words}")]
    Unreadable { status: ExitStatus, words: String },
    #[error("perf took no sample: the processes that were there when the run began used hardly any processor time")]
    NoSample,
}

fn value(paranoid: &Option<String>) -> String {
    paranoid.as_ref().map_or(String::new(), |value| format!(" (kernel.perf_event_paranoid is {value})"))
}

impl NoStacks {
    /// Why perf itself has ended, by what it said.
    fn of_record(status: ExitStatus, said: &str) -> NoStacks {
        let words = first_words(said);
        let is_refusal = !said.contains(NO_ROOM) && REFUSALS.iter().any(|refusal| said.contains(refusal));
        match is_refusal {
            true => {
                let paranoid = fs::read_to_string(PARANOID).ok().map(|text| text.trim().to_owned());
                NoStacks::NotAllowed { paranoid, words }
            }
            false => NoStacks::Record { status, words },
        }
    }
}

/// The first line that says something: perf writes a title above it, and advice below.
fn first_words(said: &str) -> String {
    let mut lines = said.lines().map(str::trim).filter(|line| !line.is_empty() && !line.ends_with("rror:"));
    let words = lines.next().unwrap_or("it says nothing");
    words.chars().filter(|one| !one.is_control()).collect::<String>().trim_end_matches('.').to_owned()
}

/// A running perf.
pub(super) struct StackSampler {
    perf: Child,
    file: PathBuf,
    /// What it says.
    words: PathBuf,
}

impl StackSampler {
    /// Samples processes, and those that they start, over about this time.
    pub(super) fn start(pids: &[u32], file: PathBuf, length: Duration) -> Result<StackSampler, NoStacks> {
        let frequency = (SAMPLES / length.as_secs_f64()).clamp(LOWEST_FREQUENCY, HIGHEST_FREQUENCY);
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        let words = file.with_extension("words");
        let mut command = Command::new(PERF);
        command
            .args(["record", "--freq", &format!("{frequency:.0}"), "--max-size", LARGEST_FILE])
            .args(["--call-graph", &format!("dwarf,{STACK_BYTES}")])
            .args(["--pid", &pids.join(","), "--output"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&words).map_err(NoStacks::Start)?);
        Ok(StackSampler { perf: command.spawn().map_err(NoStacks::Start)?, file, words })
    }

    /// Ends perf, and reads what it has sampled. The run is valid without.
    pub(super) fn finish(mut self) -> Result<FoldedStacks, NoStacks> {
        if let Some(pid) = Pid::from_raw(self.perf.id() as i32) {
            let _ = kill_process(pid, Signal::INT);
        }
        let status = self.ended()?;
        // Having written its file, it ends by the signal.
        if !status.success() && status.signal() != Some(Signal::INT.as_raw()) {
            return Err(NoStacks::of_record(status, &self.said()));
        }
        let mut command = Command::new(PERF);
        command.args(["script", "--no-inline", "--fields", "comm,ip,sym", "--input"]).arg(&self.file);
        let script = read_within(command, COMMAND_LIMIT, &|_| {}, |output| FoldedStacks::read(output));
        let script = script.map_err(NoStacks::Script)?;
        match script.read {
            stacks if !stacks.is_empty() => Ok(stacks),
            _ if script.status.success() => Err(NoStacks::NoSample),
            _ => {
                let words = first_words(&String::from_utf8_lossy(&script.stderr));
                Err(NoStacks::Unreadable { status: script.status, words })
            }
        }
    }

    fn ended(&mut self) -> Result<ExitStatus, NoStacks> {
        let deadline = Instant::now() + END_LIMIT;
        loop {
            match self.perf.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK),
                _ => return Err(NoStacks::Late),
            }
        }
    }

    fn said(&self) -> String {
        let mut bytes = Vec::new();
        // What can be read of it is enough.
        if let Ok(file) = File::open(&self.words) {
            let _ = file.take(LONGEST_WORDS).read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for StackSampler {
    fn drop(&mut self) {
        // Without effect if it has ended.
        let _ = self.perf.kill();
        let _ = self.perf.wait();
        let _ = fs::remove_file(&self.file);
        let _ = fs::remove_file(&self.words);
    }
}

#[cfg(test)]
mod tests {
    use weir_testkit::{DEADLINE, skipped};

    use super::*;

    fn file(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("weir-bench-perf-{name}-{}.data", std::process::id()))
    }

    #[test]
    fn perf_sees_what_a_process_does() {
        if !is_available() {
            skipped("there is no perf");
            return;
        }
        let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("there is sh");
        let file = file("busy");
        let stat = PathBuf::from(format!("/proc/{}/stat", busy.id()));
        let used_s = || crate::process_tree::stat(&stat).map(|stat| stat.user_s + stat.system_s);
        let deadline = Instant::now() + DEADLINE;
        let stacks = loop {
            let sampler = StackSampler::start(&[busy.id()], file.clone(), Duration::from_secs(2)).expect("it starts");
            // A second of the process's processor time, of which perf sees a part.
            let enough_s = used_s().unwrap_or(0.0) + 1.0;
            while used_s().is_some_and(|used_s| used_s < enough_s) {
                std::thread::sleep(LOOK);
            }
            match sampler.finish() {
                // On a machine with much to do, perf may not yet have begun to look.
                Err(NoStacks::NoSample | NoStacks::Unreadable { .. }) if Instant::now() < deadline => {}
                stacks => break stacks,
            }
        };
        let _ = busy.kill();
        let _ = busy.wait();
        match stacks {
            Ok(stacks) => assert!(stacks.counts().keys().all(|stack| stack.starts_with("sh;")), "{stacks:?}"),
            Err(reason) => assert!(matches!(reason, NoStacks::NotAllowed { .. }), "{reason}"),
        }
        assert!(!file.exists() && !file.with_extension("words").exists(), "its files are gone");
    }

    #[test]
    fn a_failure_of_perf_is_told_with_its_words() {
        if !is_available() {
            skipped("there is no perf");
            return;
        }
        // A process that has ended, so that there is nothing to sample.
        let mut gone = Command::new("true").spawn().expect("there is true");
        gone.wait().expect("it ends");
        let mut sampler = StackSampler::start(&[gone.id()], file("gone"), Duration::from_secs(1)).expect("it starts");
        sampler.ended().expect("it ends by itself");
        let reason = sampler.finish().expect_err("there is no such process");
        assert!(matches!(reason, NoStacks::Record { .. } | NoStacks::NotAllowed { .. }), "{reason:?}");
        assert!(!reason.to_string().contains("says nothing"), "{reason}");
    }

    #[test]
    fn a_refusal_of_the_kernel_names_its_setting_and_another_failure_does_not() {
        let failed = ExitStatus::from_raw(255 << 8);
        let said = "Error:\nAccess to performance monitoring and observability operations is limited.\n\
                    Consider adjusting /proc/sys/kernel/perf_event_paranoid setting to open\n";
        let reason = NoStacks::of_record(failed, said).to_string();
        assert!(reason.starts_with("perf may not sample"), "{reason}");
        assert!(
            reason.contains(": Access to performance monitoring and observability operations is limited;"),
            "{reason}"
        );
        assert!(reason.ends_with("where kernel.perf_event_paranoid is at most 1"), "{reason}");
        let other = NoStacks::of_record(failed, "failed to mmap with 12 (Cannot allocate memory)\n").to_string();
        assert_eq!(other, "perf record failed with exit status: 255: failed to mmap with 12 (Cannot allocate memory)");
        let said = "Permission error mapping pages.\n\
                    Consider increasing /proc/sys/kernel/perf_event_mlock_kb,\n\
                    or try again with a smaller value of -m/--mmap_pages.\n";
        let no_room = NoStacks::of_record(failed, said).to_string();
        assert_eq!(no_room, "perf record failed with exit status: 255: Permission error mapping pages");
        assert!(NoStacks::of_record(failed, "").to_string().ends_with("it says nothing"));
    }
}
