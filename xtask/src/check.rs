//! Everything that can be said about the sources without running them.

use crate::{Problems, cargo, console, dependencies, docs, step, tidy};

/// Runs all checks, the quick ones first, and reports all that failed. If the tests were built by clippy, it is not run again:
/// `warnings` is how many it had.
pub(crate) fn check(warnings: Option<&str>) -> Result<(), Problems> {
    let lints = || match warnings {
        None => clippy(),
        Some("0") => Ok(()),
        Some(warnings) => Err(vec![format!("the build of the tests had {warnings} warnings")]),
    };
    let checks: &[&dyn Fn() -> Result<(), Problems>] =
        &[&format, &tidy::tidy, &console::verify, &lints, &docs::compare, &dependencies::dependencies];
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
