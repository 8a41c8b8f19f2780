//! Everything that can be said about the sources without running them.

use crate::{Problems, cargo, console, dependencies, docs, step, tidy};

/// Runs all checks, the quick ones first, and reports all that failed.
pub(crate) fn check() -> Result<(), Problems> {
    let checks: &[fn() -> Result<(), Problems>] =
        &[format, tidy::tidy, console::verify, clippy, docs::compare, dependencies::dependencies];
    let problems: Problems = checks.iter().filter_map(|check| check().err()).flatten().collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

fn format() -> Result<(), Problems> {
    step("the sources are not formatted; run `cargo fmt --all`", cargo().args(["fmt", "--all", "--check"]))
}

fn clippy() -> Result<(), Problems> {
    let arguments = ["clippy", "--quiet", "--workspace", "--all-targets", "--", "--deny", "warnings"];
    step("clippy has warnings", cargo().args(arguments))
}
