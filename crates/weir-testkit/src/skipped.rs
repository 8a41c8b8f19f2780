//! Tests that need a program which is not installed.

use std::collections::HashSet;
use std::io::Write;
use std::sync::Mutex;
use std::thread;

static REPORTED: Mutex<Option<HashSet<String>>> = Mutex::new(None);

/// Reports on stderr that the running test is skipped, and why: `skipped: TEST: WHY; run scripts/setup`, one line for
/// each test. `scripts/test` counts these lines. They are written directly, because the test runner would suppress the
/// output of a test that passes.
pub fn skipped(why: &str) {
    let test = thread::current().name().unwrap_or("a test").to_owned();
    let mut reported = REPORTED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if reported.get_or_insert_default().insert(test.clone()) {
        // A single write, so that the lines of concurrent tests do not mix.
        let _ = std::io::stderr().write_all(format!("skipped: {test}: {why}; run scripts/setup\n").as_bytes());
    }
}
