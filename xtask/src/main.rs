//! The project's own commands: `cargo xtask check` is all that CI's static part runs, and `cargo xtask test` all that CI runs.

#![forbid(unsafe_code)]

mod check;
mod console;
mod demo;
mod dependencies;
mod docs;
mod draw;
mod imports;
mod ladder;
mod package;
mod schema_page;
mod structure;
mod suite;
mod tidy;
mod tree;
mod type_names;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use package::{CompressionEffort, Package};

const USAGE: &str = "cargo xtask COMMAND

  test    builds all tests, checks the sources, and runs the tests, two binaries at a time (with --no-run: builds alone); more
          arguments are those of `cargo test`
  check   format, lints, tidy, generated docs, dependencies (with --linted WARNINGS: without clippy, which the build of the
          tests was, and had so many)
  tidy    layering, import circles of files and folders, long functions, type names that mean two things, machine paths
  deps    licences, banned and repeated crates (deny.toml)
  docs    writes docs/reference (with --check: compares)
  site    builds the pages as a site, target/site, with mdBook; scripts/mdbook installs it
  package writes a tarball, a Debian and an RPM package, an OCI image, SBOM and checksums to target/packages, or to the
          folder named (with --binary FILE: of this binary, instead of building the profile `dist`; with --quick before it: in
          little time and large)
  console vendor
          fetches the packages that the console uses, and bundles them into console/vendor
  demo    starts the weir built beside it before a demo backend and sends a first request (with --once: on free ports,
          and stops; with --binary BINARY FILE: this binary with this file)
  draw    prints messages and names drawn at random by a seed, to be read by fresh eyes";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    std::env::set_current_dir(root()).expect("the workspace is where this was built");
    let outcome = match arguments[..] {
        ["test", "--no-run", ref selected @ ..] => suite::build(selected),
        ["test", ref selected @ ..] => suite::run(selected),
        ["check"] => check::check(None),
        ["check", "--linted", warnings] => check::check(Some(warnings)),
        ["tidy"] => tidy::tidy(),
        ["deps"] => dependencies::dependencies(),
        ["docs"] => docs::write(),
        ["docs", "--check"] => docs::compare(),
        ["site"] => docs::build_site(),
        ["draw", seed] => draw::draw(seed),
        ["console", "vendor"] => console::vendor(),
        ["demo"] => demo::demo(false),
        ["demo", "--once"] => demo::demo(true),
        ["demo", "--binary", binary, file] => demo::run(Path::new(binary), file, false),
        ["package", "--quick", "--binary", binary, out] => {
            Package { binary: Some(binary), out, effort: CompressionEffort::LITTLE }.make()
        }
        ["package", "--binary", binary, out] => {
            Package { binary: Some(binary), out, effort: CompressionEffort::MUCH }.make()
        }
        ["package", out] => Package { binary: None, out, effort: CompressionEffort::MUCH }.make(),
        ["package"] => Package { binary: None, out: "target/packages", effort: CompressionEffort::MUCH }.make(),
        _ => Err(vec![USAGE.to_owned()]),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problems) => {
            for problem in problems {
                eprintln!("xtask: {problem}");
            }
            ExitCode::FAILURE
        }
    }
}

/// What went wrong, one entry for each finding.
type Problems = Vec<String>;

/// The workspace's folder.
fn root() -> PathBuf {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    own.parent().expect("xtask is a folder in the workspace").to_owned()
}

/// The cargo that runs this.
fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs a command that speaks for itself; its failure is the problem `what`.
fn step(what: &str, command: &mut Command) -> Result<(), Problems> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(vec![what.to_owned()]),
        Err(error) => Err(vec![format!("{what}: {:?} cannot be run: {error}", command.get_program())]),
    }
}

/// Runs a command and returns what it prints.
fn output(command: &mut Command) -> Result<String, Problems> {
    let outcome = command.output();
    let problem = |what: String| vec![format!("{:?}: {what}", command.get_program())];
    match outcome {
        Ok(output) if output.status.success() => {
            String::from_utf8(output.stdout).map_err(|error| vec![error.to_string()])
        }
        Ok(output) => Err(problem(String::from_utf8_lossy(&output.stderr).into_owned())),
        Err(error) => Err(problem(error.to_string())),
    }
}

/// Where `cargo build` put the binary.
fn binary() -> Result<PathBuf, Problems> {
    Ok(target()?.join("debug/weir"))
}

/// The folder of all that is built.
fn target() -> Result<PathBuf, Problems> {
    let metadata = output(cargo().args(["metadata", "--no-deps", "--offline", "--format-version", "1"]))?;
    let metadata: serde_json::Value =
        serde_json::from_str(&metadata).map_err(|error| vec![format!("cargo metadata: {error}")])?;
    let target = metadata["target_directory"].as_str().ok_or_else(|| vec!["cargo names no target".to_owned()])?;
    Ok(PathBuf::from(target))
}
