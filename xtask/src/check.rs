//! Everything that can be said about the sources without running them.

use std::path::Path;
use std::process::Command;

use crate::{Problems, cargo, docs, step, tidy};

/// Runs all checks, the quick ones first, and reports all that failed.
pub fn check() -> Result<(), Problems> {
    let checks: &[fn() -> Result<(), Problems>] = &[format, tidy::tidy, clippy, docs::compare, dependencies];
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

/// `cargo deny`, where it is installed. Nothing is fetched: advisories are checked only against a database that is
/// there already.
fn dependencies() -> Result<(), Problems> {
    let own = Path::new(".cache/cargo/bin/cargo-deny");
    let program = if own.exists() { own } else { Path::new("cargo-deny") };
    if Command::new(program).arg("--version").output().is_err() {
        eprintln!("xtask: cargo-deny is not installed, so licences and advisories were not checked");
        return Ok(());
    }
    let mut checks = vec!["bans", "licenses", "sources"];
    let home = std::env::var_os("CARGO_HOME").map(Into::into).or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    if home.is_some_and(|home: std::path::PathBuf| home.join("advisory-dbs").is_dir()) {
        checks.push("advisories");
    } else {
        eprintln!("xtask: there is no advisory database here, so advisories were not checked");
    }
    let arguments = ["--offline", "--all-features", "check", "--hide-inclusion-graph"];
    step("cargo deny refuses a dependency", Command::new(program).args(arguments).args(checks))
}
