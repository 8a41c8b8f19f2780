//! Jobs of one list, two at a time.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use std::{fs, thread};

use crate::Problems;

/// So many at a time, since the tests of one binary are never all done at once.
const LANES: usize = 2;
/// Tells tests that run side by side which ports are theirs (`weir_testkit::free_port`).
const LANE: &str = "WEIR_TEST_LANE";
/// From what property tests draw their cases.
const SEED: &str = "PROPTEST_RNG_SEED";

/// A process to run, and how to speak of it.
pub(super) struct SuiteJob {
    pub name: String,
    /// The line that stands above its output.
    title: String,
    command: Command,
    /// Whether it runs tests and counts them itself.
    has_tests: bool,
}

impl SuiteJob {
    pub(super) fn tests(name: &str, title: &str, command: Command) -> SuiteJob {
        SuiteJob { name: name.to_owned(), title: title.to_owned(), command, has_tests: true }
    }

    /// Counts as one test.
    pub(super) fn step(name: &str, command: Command) -> SuiteJob {
        SuiteJob { name: name.to_owned(), title: format!("Running {name}"), command, has_tests: false }
    }
}

/// How a job ended.
pub(super) struct JobOutcome {
    pub name: String,
    pub has_tests: bool,
    pub lines: Vec<String>,
    pub is_success: bool,
    pub seconds: f64,
    /// Seconds of processors, of the processes that it has started and waited for as well.
    pub processor_seconds: f64,
}

/// A file with all that the jobs print, one after the other.
pub(super) struct SuiteLog(Mutex<File>);

impl SuiteLog {
    pub(super) fn create(path: &Path) -> Result<SuiteLog, Problems> {
        let file = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| File::create(path));
        file.map(|file| SuiteLog(Mutex::new(file))).map_err(|error| vec![format!("{}: {error}", path.display())])
    }

    fn write(&self, title: &str, lines: &[String]) {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The log is for reading afterwards; the tests go on without it.
        let _ = file.write_all(format!("     {title}\n{}\n\n", lines.join("\n")).as_bytes());
    }
}

/// Runs all jobs, in the order of the list. What matters of their output is shown at once, and the report of a failure in one
/// piece when its job ends.
pub(super) fn run(jobs: Vec<SuiteJob>, log: &SuiteLog) -> Vec<JobOutcome> {
    let jobs = Mutex::new(VecDeque::from(jobs));
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let lane = |number: usize| {
        let mut outcomes = Vec::new();
        while let Some(job) = next() {
            outcomes.push(finish(job, number, log));
        }
        outcomes
    };
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|number| scope.spawn(move || lane(number))).collect();
        lanes.into_iter().flat_map(|lane| lane.join().expect("a lane does not panic")).collect()
    })
}

fn finish(job: SuiteJob, lane: usize, log: &SuiteLog) -> JobOutcome {
    let SuiteJob { name, title, mut command, has_tests } = job;
    let begun = Instant::now();
    command.env(LANE, format!("{lane}/{LANES}"));
    // Only a full run looks for new faults, with other cases each time; another one fails for what was changed.
    if ["WEIR_TEST_FULL", SEED].iter().all(|variable| std::env::var_os(variable).is_none()) {
        command.env(SEED, "1");
    }
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        // Twice as many as processors in all: half of what a test does is wait, for a process, a server or a time-out.
        command
            .env("RUST_TEST_THREADS", thread::available_parallelism().map_or(LANES, |count| count.get()).to_string());
    }
    let (lines, is_success, processor_seconds) = match start(&mut command) {
        Ok((mut child, output)) => {
            let lines = follow(output);
            let processor_seconds = processor_seconds(child.id());
            (lines, child.wait().is_ok_and(|status| status.success()), processor_seconds)
        }
        Err(error) => (vec![format!("{name} cannot be run: {error}")], false, 0.0),
    };
    log.write(&title, &lines);
    let report = lines.iter().position(|line| is_begin_of_report(line)).unwrap_or(lines.len());
    if !is_success {
        println!("     {title}\n{}", lines[report..].join("\n"));
    }
    JobOutcome { name, has_tests, lines, is_success, seconds: begun.elapsed().as_secs_f64(), processor_seconds }
}

/// Starts it with one pipe for both outputs, so that their lines keep their order.
fn start(command: &mut Command) -> std::io::Result<(Child, impl BufRead)> {
    let (output, input) = std::io::pipe()?;
    let child = command.stdin(Stdio::null()).stdout(input.try_clone()?).stderr(input).spawn()?;
    // It holds the ends for writing, too.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Ok((child, BufReader::new(output)))
}

/// Reads all lines, and shows those that matter, up to the report of failures.
fn follow(mut output: impl BufRead) -> Vec<String> {
    let (mut lines, mut line, mut is_report) = (Vec::new(), Vec::new(), false);
    while output.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        is_report |= is_begin_of_report(&text);
        if !is_report && is_shown(&text) {
            println!("{text}");
        }
        lines.push(text);
        line.clear();
    }
    lines
}

/// Whether the test runner begins here to say why tests have failed.
fn is_begin_of_report(line: &str) -> bool {
    line == "failures:"
}

/// Whether a line says more than that all is well.
fn is_shown(line: &str) -> bool {
    let is_usual = line.starts_with("test ") && line.ends_with(" ok");
    let is_frame =
        ["running ", "test result: ok", "   Doc-tests ", "    Finished "].iter().any(|begin| line.starts_with(begin));
    !line.is_empty() && !is_usual && !is_frame
}

/// The processor time of a process that is ending, from proc(5): its own and that of the children it has waited for, fields 14 to
/// 17 after the name in parentheses, in ticks of 1/100 s.
fn processor_seconds(process: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields).split_ascii_whitespace();
    fields.skip(11).take(4).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> SuiteJob {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        SuiteJob::tests(script, script, command)
    }

    #[test]
    fn both_outputs_of_a_job_are_read_in_their_order_and_kept_in_the_log() {
        let path = std::env::temp_dir().join(format!("weir-queue-{}", std::process::id()));
        let log = SuiteLog::create(&path).expect("a file");
        let script = "echo test a ... ok; echo skipped: b >&2; echo $WEIR_TEST_LANE; exit 3";
        let outcomes = run(vec![shell(script)], &log);
        let text = fs::read_to_string(&path).expect("it was written");
        let _ = fs::remove_file(&path);
        assert_eq!(outcomes[0].lines[..2], ["test a ... ok", "skipped: b"]);
        assert!(["0/2", "1/2"].contains(&&*outcomes[0].lines[2]) && !outcomes[0].is_success);
        assert!(text.starts_with(&format!("     {script}\ntest a ... ok\n")), "{text}");
    }

    #[test]
    fn two_jobs_run_at_a_time() {
        let folder = std::env::temp_dir().join(format!("weir-queue-pair-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let (log, pipe) = (SuiteLog::create(&folder.join("log")).expect("a file"), folder.join("pipe"));
        assert!(Command::new("mkfifo").arg(&pipe).status().expect("a program").success());
        // Each end of the pipe waits for the other: one job alone would not end.
        let pipe = pipe.display();
        let outcomes = run(vec![shell(&format!("cat {pipe}")), shell(&format!("echo hello >{pipe}"))], &log);
        let _ = fs::remove_dir_all(&folder);
        assert!(outcomes.iter().all(|outcome| outcome.is_success));
        assert!(outcomes.iter().any(|outcome| outcome.lines == ["hello"]));
    }

    #[test]
    fn lines_that_say_that_all_is_well_are_not_shown() {
        for line in ["running 3 tests", "", "test a::b ... ok", "test result: ok. 3 passed"] {
            assert!(!is_shown(line), "{line}");
        }
        for line in ["test a ... FAILED", "skipped: a: why; run scripts/setup", "test a ... ignored, why", "a panic ok"]
        {
            assert!(is_shown(line), "{line}");
        }
    }
}
