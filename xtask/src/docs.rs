//! Pages under docs/reference that follow from the program: they are written from it, and compared with it in CI.

mod book;
mod links;
mod metrics;
mod statuses;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::{Problems, binary, cargo, output, schema_page, step};

pub use book::build as build_site;

const FOLDER: &str = "docs/reference";

/// Writes every page.
pub fn write() -> Result<(), Problems> {
    fs::create_dir_all(FOLDER).map_err(|error| vec![format!("{FOLDER}: {error}")])?;
    for (name, text) in pages()? {
        let path = Path::new(FOLDER).join(name);
        fs::write(&path, text).map_err(|error| vec![format!("{}: {error}", path.display())])?;
    }
    links::check()?;
    book::check()
}

/// Says which page is not what it would be if it were written now.
pub fn compare() -> Result<(), Problems> {
    let stale = |(name, text): (&str, String)| {
        let path = Path::new(FOLDER).join(name);
        let is_same = fs::read_to_string(&path).is_ok_and(|written| written == text);
        (!is_same).then(|| format!("{} is out of date; run `cargo xtask docs`", path.display()))
    };
    let mut problems: Problems = pages()?.into_iter().filter_map(stale).collect();
    problems.extend(statuses::compare().err().into_iter().flatten());
    problems.extend(links::check().err().into_iter().flatten());
    problems.extend(book::check().err().into_iter().flatten());
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

fn pages() -> Result<Vec<(&'static str, String)>, Problems> {
    // The command line first: it builds the program that the other pages ask.
    let command_line = command_line()?;
    let reference = |page: &str| output(Command::new(binary()?).args(["reference", page]));
    Ok(vec![
        ("plugins.md", reference("plugins")?),
        ("metrics.md", metrics::page()?),
        ("variables.md", reference("variables")?),
        ("command-line.md", command_line),
        ("scenarios.md", scenarios()?),
    ])
}

/// What the files of the lab may say.
fn scenarios() -> Result<String, Problems> {
    let schema = |kind: &str| {
        let text = output(Command::new(binary()?).args(["bench", "schema", kind]))?;
        serde_json::from_str::<Value>(&text).map_err(|error| vec![format!("weir bench schema {kind}: {error}")])
    };
    let mut page = String::from(
        "# Files of the lab\n\nWritten by `cargo xtask docs` from `weir bench schema`, which prints the same for editors. \
         [The guide](../guide/lab.md) has examples, and `bench/scenarios` has those that come along.\n",
    );
    schema_page::sections("Scenarios", &schema("scenario")?, &mut page);
    schema_page::sections("Publications", &schema("publication")?, &mut page);
    Ok(page)
}

/// What `weir --help` and the help of each command say, and of the commands within it.
fn command_line() -> Result<String, Problems> {
    let mut page = String::from("# The command line\n\nWritten by `cargo xtask docs` from `weir --help`.\n");
    // Built as the tests are, so that `make test` builds everything once.
    step("the tests do not build", cargo().args(["test", "--quiet", "--workspace", "--no-run"]))?;
    command(&binary()?, &[], &mut page)?;
    Ok(page)
}

/// A section for a command, and one for each below it.
fn command(binary: &Path, path: &[&str], page: &mut String) -> Result<(), Problems> {
    let help = output(Command::new(binary).args(path).arg("--help"))?;
    let _ = write!(page, "\n## {}\n\n```text\n{}\n```\n", [&["weir"], path].concat().join(" "), help.trim_end());
    let below = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    for name in below.filter_map(|line| line.strip_prefix("  ")?.split(' ').next()) {
        if !name.is_empty() && name != "help" {
            command(binary, &[path, &[name]].concat(), page)?;
        }
    }
    Ok(())
}
