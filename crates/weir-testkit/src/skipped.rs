//! Tests that need a program which is not installed, or minutes.

use std::collections::HashSet;
use std::io::Write;
use std::sync::Mutex;
use std::thread;

use crate::scale::is_full;

/// What `scripts/setup` installs only for the full counts, as it is built for minutes.
const FOR_FULL_COUNTS: [&str; 3] = ["consul", "kube-apiserver", "kube-controller-manager"];

static REPORTED: Mutex<Option<HashSet<String>>> = Mutex::new(None);

/// Reports that the running test is skipped, since something is not installed: `skipped: TEST: WHY; run scripts/setup`.
pub fn skipped(why: &str) {
    report(why, "run scripts/setup");
}

/// Reports that the running test is skipped, since there is no such program, and what installs it.
pub(crate) fn skipped_without(program: &str) {
    let why = format!("there is no {program}");
    if FOR_FULL_COUNTS.contains(&program) { report(&why, "run make test-full") } else { skipped(&why) }
}

/// Whether the running test, which takes minutes, is to run; reports otherwise that it is skipped.
pub fn runs_for_minutes(why: &str) -> bool {
    let runs = is_full();
    if !runs {
        report(why, "run make test-full");
    }
    runs
}

/// Writes one line for each test to stderr. `scripts/test` counts these lines. They are written directly, because the test runner
/// would suppress the output of a test that passes.
fn report(why: &str, what_to_do: &str) {
    let test = thread::current().name().unwrap_or("a test").to_owned();
    let mut reported = REPORTED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if reported.get_or_insert_default().insert(test.clone()) {
        // A single write, so that the lines of concurrent tests do not mix.
        let _ = std::io::stderr().write_all(format!("skipped: {test}: {why}; {what_to_do}\n").as_bytes());
    }
}
