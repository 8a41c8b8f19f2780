//! Builds the tests by cargo, with clippy as the compiler of our own crates: it says what it finds while it compiles, where a
//! `cargo clippy` of its own would read all crates, and those of others, a second time.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::selection::SelectedTests;
use crate::{Problems, cargo, output};

/// What was built.
pub(super) struct BuiltTests {
    pub binaries: Vec<TestBinary>,
    /// How many warnings the compiler and clippy have for our crates; `None` without clippy.
    pub warnings: Option<usize>,
}

/// A binary with tests.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TestBinary {
    /// The name of its target, such as `plugins`.
    pub name: String,
    pub path: PathBuf,
    /// The folder of its package, in which it runs.
    pub package: PathBuf,
    /// What `cargo test` calls it: `unittests src/lib.rs`.
    pub source: String,
}

/// Builds the tests that are selected. The compiler's words go to stderr.
pub(super) fn build(selection: &SelectedTests) -> Result<BuiltTests, Problems> {
    if selection.is_documentation() {
        return Ok(BuiltTests { binaries: Vec::new(), warnings: None });
    }
    let mut command = cargo();
    command.args(["test", "--workspace", "--no-run", "--message-format", "json"]).args(&selection.of_cargo);
    let is_linted = clippy().is_some();
    let failed = |error: std::io::Error| vec![format!("cargo cannot be run: {error}")];
    let mut cargo = with_lints(&mut command).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let (mut binaries, mut warnings) = (Vec::new(), 0);
    for line in BufReader::new(cargo.stdout.take().expect("it is piped")).lines().map_while(Result::ok) {
        let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
        if let Some(text) = message["message"]["rendered"].as_str() {
            eprint!("{text}");
            warnings += 1;
        }
        binaries.extend(test_binary(&message));
    }
    let status = cargo.wait().map_err(failed)?;
    let built = BuiltTests { binaries, warnings: is_linted.then_some(warnings) };
    if status.success() { Ok(built) } else { Err(vec!["the tests do not build".to_owned()]) }
}

/// Sets what makes cargo compile our crates with clippy, where it is installed. Every cargo that is to find the tests built needs
/// the same. A lint is never more than a warning here, so that the tests can run whatever it says.
pub(super) fn with_lints(command: &mut Command) -> &mut Command {
    match clippy() {
        Some(driver) => {
            command.env("RUSTC_WORKSPACE_WRAPPER", driver).env("CLIPPY_ARGS", "--cap-lints__CLIPPY_HACKERY__warn")
        }
        None => command,
    }
}

/// The compiler that clippy is.
fn clippy() -> Option<PathBuf> {
    let sysroot = output(Command::new("rustc").args(["--print", "sysroot"])).ok()?;
    Some(Path::new(sysroot.trim()).join("bin/clippy-driver")).filter(|driver| driver.is_file())
}

/// The binary that a message of cargo is about, if it has tests.
fn test_binary(message: &Value) -> Option<TestBinary> {
    let path = PathBuf::from(message["executable"].as_str().filter(|_| message["profile"]["test"] == true)?);
    let package = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let target = &message["target"];
    let source = target["src_path"].as_str()?;
    let source = Path::new(source).strip_prefix(&package).map_or(source.into(), |inside| inside.to_string_lossy());
    let is_of_tests = target["kind"].as_array()?.iter().any(|kind| kind == "test");
    let source = if is_of_tests { source.into_owned() } else { format!("unittests {source}") };
    Some(TestBinary { name: target["name"].as_str()?.to_owned(), path, package, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binaries_with_tests_are_found_among_the_messages_of_cargo() {
        let message = |kind: &str, is_test: bool, executable: Value| {
            serde_json::json!({
                "reason": "compiler-artifact", "manifest_path": "/w/crates/a/Cargo.toml", "executable": executable,
                "target": {"kind": [kind], "name": "a", "src_path": "/w/crates/a/src/lib.rs"},
                "profile": {"test": is_test},
            })
        };
        let built = test_binary(&message("lib", true, "/w/target/a-1".into())).expect("it has tests");
        assert_eq!(
            (built.source.as_str(), built.package.as_path()),
            ("unittests src/lib.rs", Path::new("/w/crates/a"))
        );
        assert_eq!(test_binary(&message("test", true, "/x".into())).expect("it has tests").source, "src/lib.rs");
        assert_eq!(test_binary(&message("bin", false, "/w/target/a".into())), None);
        assert_eq!(test_binary(&message("lib", true, Value::Null)), None);
    }
}
