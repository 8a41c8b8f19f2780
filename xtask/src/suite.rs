//! `cargo xtask test`: builds all tests once, with the lints of clippy, and runs what was built from one list, two binaries at a
//! time, so that no processor waits for the last slow test of a binary.

mod build;
mod queue;
mod selection;
mod tally;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::{Problems, cargo, target};
use build::{BuiltTests, with_lints};
use queue::{SuiteJob, SuiteLog};
use selection::SelectedTests;
use tally::SuiteTally;

/// What takes longest, so that it is begun first and nothing long is left at the end. What is not named follows.
const LONGEST: [&str; 20] = [
    "check",
    "admin",
    "plugins",
    "plugins over HTTP/2",
    "operations",
    "console",
    "records",
    "behaviour",
    "package",
    "hub",
    "run",
    "kubernetes",
    "fuzz",
    "translator",
    "conformance",
    "balancing",
    "values_of_references",
    "http3",
    "worlds",
    "weir_plugins",
];
/// The plugins' tests that use every protocol already, and have no second pass.
const OVER_EVERY_PROTOCOL: &str = "beside::";

/// Builds the tests that are selected, as [`run`] does.
pub(crate) fn build(arguments: &[&str]) -> Result<(), Problems> {
    build::build(&SelectedTests::of(arguments)).map(|_| ())
}

/// Builds and runs the tests that are selected, checks the sources, and tries `make run`, whatever the others say.
pub(crate) fn run(arguments: &[&str]) -> Result<(), Problems> {
    let selection = SelectedTests::of(arguments);
    let folder = target()?;
    let log = SuiteLog::create(&folder.join("test.log"))?;
    let summary = folder.join("test-summary");
    // That of an earlier run; what does not build has none.
    let _ = fs::remove_file(&summary);
    let mut tally = SuiteTally::default();
    // What `make run` builds by itself has fewer features, and is a second build: only `make test-full` makes it. Otherwise what
    // the tests need is run.
    let is_full = std::env::var_os("WEIR_TEST_FULL").is_some();
    if is_full {
        tally.step("make run", demo(&[]));
    }
    let begun = Instant::now();
    let built = build::build(&selection)?;
    let build_seconds = begun.elapsed().as_secs();
    if !is_full {
        tally.step("make run", demo(&["BUILD=true"]));
    }
    let begun = Instant::now();
    for outcome in queue::run(jobs(&selection, &built, &folder), &log) {
        tally.add(outcome);
    }
    let minutes = |seconds: u64| format!("{}:{:02}", seconds / 60, seconds % 60);
    println!(
        "minutes by part: build {} check and tests {}",
        minutes(build_seconds),
        minutes(begun.elapsed().as_secs())
    );
    tally.report(&summary)
}

/// Everything that is run, the longest first.
fn jobs(selection: &SelectedTests, built: &BuiltTests, target: &Path) -> Vec<SuiteJob> {
    let mut jobs = vec![check_of_sources(selection, built, target)];
    for binary in &built.binaries {
        let mut command = Command::new(&binary.path);
        command.current_dir(&binary.package).args(&selection.of_tests);
        let path = binary.path.strip_prefix(target.parent().unwrap_or(target)).unwrap_or(&binary.path);
        let title = format!("Running {} ({})", binary.source, path.display());
        jobs.push(SuiteJob::tests(&binary.name, &title, command));
        if binary.name == "plugins" {
            // What plugins do must not depend on who carries it.
            let mut command = Command::new(&binary.path);
            command.current_dir(&binary.package).args(&selection.of_tests);
            command.env("WEIR_TEST_HTTP2", "1").args(["--skip", OVER_EVERY_PROTOCOL]);
            jobs.push(SuiteJob::tests("plugins over HTTP/2", &format!("{title} over HTTP/2"), command));
        }
    }
    if selection.has_documentation() {
        let mut command = cargo();
        command.args(["test", "--workspace"]).args(selection.of_documentation());
        with_lints(&mut command).arg("--").args(&selection.of_tests);
        jobs.push(SuiteJob::tests("documentation", "Doc-tests", command));
    }
    let place = |job: &SuiteJob| LONGEST.iter().position(|name| *name == job.name).unwrap_or(LONGEST.len());
    jobs.sort_by_key(place);
    jobs
}

/// `cargo xtask check`, without clippy where the build has looked for its lints everywhere.
fn check_of_sources(selection: &SelectedTests, built: &BuiltTests, target: &Path) -> SuiteJob {
    // Built with the tests, in place of the one that runs here.
    let mut command = Command::new(target.join("debug/xtask"));
    command.arg("check");
    if selection.is_everything()
        && let Some(warnings) = built.warnings
    {
        with_lints(&mut command).args(["--linted", &warnings.to_string()]);
    }
    SuiteJob::step("check", command)
}

/// Whether `make run` answers its first request.
fn demo(more: &[&str]) -> bool {
    let mut make = Command::new("make");
    make.args(["--no-print-directory", "run", "ONCE=yes"]).args(more);
    make.status().is_ok_and(|status| status.success())
}
