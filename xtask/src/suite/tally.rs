//! Counts what passed, failed and was skipped, and which binaries took how long.

use std::fs;
use std::path::Path;

use super::queue::JobOutcome;
use crate::Problems;

/// Lines of the summary about binaries.
const SHOWN: usize = 20;
/// The ends of a line `skipped: TEST: WHY; …` that a test writes which needs a program that is not installed, or minutes.
const SKIPPED: [&str; 2] = ["; run scripts/setup", "; run make test-full"];

#[derive(Default)]
pub(super) struct SuiteTally {
    counts: TestCounts,
    failed: Vec<String>,
    /// By job: seconds, seconds of processors, name.
    durations: Vec<(f64, f64, String)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TestCounts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl SuiteTally {
    /// What counts as one test.
    pub(super) fn step(&mut self, name: &str, is_success: bool) {
        if is_success {
            self.counts.passed += 1;
        } else {
            self.counts.failed += 1;
            self.failed.push(name.to_owned());
        }
    }

    pub(super) fn add(&mut self, outcome: JobOutcome) {
        let JobOutcome { name, has_tests, lines, is_success, seconds, processor_seconds } = outcome;
        self.durations.push((seconds, processor_seconds, name.clone()));
        if !has_tests {
            return self.step(&name, is_success);
        }
        let counts = counted(&lines, is_success);
        self.counts.passed += counts.passed;
        self.counts.failed += counts.failed;
        self.counts.skipped += counts.skipped;
        if counts.failed > 0 {
            self.failed.push(name);
        }
    }

    /// Prints all of it, the counts last and alone on their line, and writes these to a file.
    pub(super) fn report(mut self, file: &Path) -> Result<(), Problems> {
        self.durations.sort_by(|one, other| other.0.total_cmp(&one.0));
        let processors: f64 = self.durations.iter().map(|(_, seconds, _)| seconds).sum();
        println!("seconds, and of these processors ({processors:.0} in all), the longest first:");
        for (seconds, processor_seconds, name) in self.durations.iter().take(SHOWN) {
            println!("{seconds:8.1} {processor_seconds:8.1} {name}");
        }
        if !self.failed.is_empty() {
            println!("failed: {}", self.failed.join(", "));
        }
        let TestCounts { passed, failed, skipped } = self.counts;
        let summary = format!("{passed} passed, {failed} failed, {skipped} skipped\n");
        print!("{summary}");
        fs::write(file, summary).map_err(|error| vec![format!("{}: {error}", file.display())])?;
        if self.failed.is_empty() { Ok(()) } else { Err(Problems::new()) }
    }
}

/// The counts of a binary. One that dies has no result line of its own, and counts as one failure.
fn counted(lines: &[String], is_success: bool) -> TestCounts {
    let mut counts = TestCounts::default();
    for line in lines {
        let Some(result) = line.strip_prefix("test result: ") else { continue };
        let mut numbers = result.split(['.', ';']).filter_map(|part| part.trim().split_once(' '));
        let mut number = |name: &str| {
            numbers.find(|(_, of)| *of == name).and_then(|(number, _)| number.parse::<usize>().ok()).unwrap_or(0)
        };
        counts.passed += number("passed");
        counts.failed += number("failed");
        counts.skipped += number("ignored");
    }
    // They count as passed for the test runner.
    let skipped = lines.iter().filter(|line| says_skipped(line)).count();
    counts.passed = counts.passed.saturating_sub(skipped);
    counts.skipped += skipped;
    if !is_success && counts.failed == 0 {
        counts.failed = 1;
    }
    counts
}

fn says_skipped(line: &str) -> bool {
    line.contains("skipped: ") && SKIPPED.iter().any(|end| line.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &str, is_success: bool) -> (usize, usize, usize) {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let TestCounts { passed, failed, skipped } = counted(&lines, is_success);
        (passed, failed, skipped)
    }

    #[test]
    fn tests_that_did_not_run_count_as_skipped() {
        let result = "test result: ok. 7 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 2.41s";
        assert_eq!(counts(result, true), (7, 0, 1));
        let skipped = "skipped: a::b: there is no etcd; run scripts/setup\nskipped: c: minutes; run make test-full";
        assert_eq!(counts(&format!("{skipped}\n{result}"), true), (5, 0, 3));
        assert_eq!(counts("test skipped: but not of this form", true), (0, 0, 0));
    }

    #[test]
    fn a_binary_that_dies_counts_as_one_failure() {
        assert_eq!(counts("running 3 tests\ntest a ... ok", false), (0, 1, 0));
        let failed = "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s";
        assert_eq!(counts(failed, false), (1, 2, 0));
    }
}
