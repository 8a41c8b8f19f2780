//! Pages under docs/reference, and definitions of kinds of Kubernetes, follow from the program: they are written from it, and compared with it
//! in CI.

mod ages;
mod book;
mod figures;
mod links;
mod metrics;
mod names;
mod statuses;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::tree::tracked;
use crate::{Problems, binary, cargo, output, schema_page, step};

pub(crate) use book::build as build_site;

const FOLDER: &str = "docs/reference";
/// Definitions of kinds of objects, with what `weir schema` calls them. The chart has them by links.
const DEFINITIONS: [(&str, &str); 2] = [
    ("deploy/kubernetes/weirpolicies.weir.dev.yaml", "WeirPolicy"),
    ("deploy/kubernetes/apisix.apache.org.yaml", "apisix.apache.org"),
];
/// Below it.
const RESULTS: &str = "results";

/// Writes every page.
pub(crate) fn write() -> Result<(), Problems> {
    fs::create_dir_all(Path::new(FOLDER).join(RESULTS)).map_err(|error| vec![format!("{FOLDER}: {error}")])?;
    let pages = pages()?;
    for path in left_over(&pages)? {
        fs::remove_file(&path).map_err(|error| vec![format!("{path}: {error}")])?;
    }
    for (name, text) in pages {
        let path = Path::new(FOLDER).join(name);
        if !stays(&path, &text) {
            fs::write(&path, text).map_err(|error| vec![format!("{}: {error}", path.display())])?;
        }
    }
    for (path, name) in DEFINITIONS {
        fs::write(path, definition(name)?).map_err(|error| vec![format!("{path}: {error}")])?;
    }
    links::check()?;
    names::check()?;
    book::check()
}

/// Says which page is not what it would be if it were written now.
pub(crate) fn compare() -> Result<(), Problems> {
    let stale = |(name, text): &(String, String)| {
        let path = Path::new(FOLDER).join(name);
        let is_same =
            fs::read_to_string(&path).is_ok_and(|written| ages::without_ages(&written) == ages::without_ages(text));
        (!is_same).then(|| format!("{} is out of date; run `cargo xtask docs`", path.display()))
    };
    let pages = pages()?;
    let mut problems: Problems = pages.iter().filter_map(stale).collect();
    for (path, name) in DEFINITIONS {
        if fs::read_to_string(path).ok() != Some(definition(name)?) {
            problems.push(format!("{path} is out of date; run `cargo xtask docs`"));
        }
    }
    let left_over = left_over(&pages)?.into_iter();
    problems.extend(left_over.map(|path| format!("{path} follows from no stored result; run `cargo xtask docs`")));
    problems.extend(statuses::compare().err().into_iter().flatten());
    problems.extend(ages::compare().err().into_iter().flatten());
    problems.extend(figures::compare().err().into_iter().flatten());
    problems.extend(links::check().err().into_iter().flatten());
    problems.extend(names::check().err().into_iter().flatten());
    problems.extend(book::check().err().into_iter().flatten());
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Whether a page says more than what would be written: its age, which is not known without a history.
fn stays(path: &Path, text: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|written| written != text && ages::without_ages(&written) == text)
}

fn pages() -> Result<Vec<(String, String)>, Problems> {
    // The command line first: it builds the program that the other pages ask.
    let command_line = command_line()?;
    let reference = |page: &str| output(Command::new(binary()?).args(["reference", page]));
    let mut pages: Vec<(String, String)> = [
        ("configuration.md", reference("configuration")?),
        ("plugins.md", reference("plugins")?),
        ("ingress-nginx.md", reference("ingress-nginx")?),
        ("metrics.md", metrics::page()?),
        ("variables.md", reference("variables")?),
        ("command-line.md", command_line),
        ("scenarios.md", scenarios()?),
    ]
    .map(|(name, text)| (name.to_owned(), text))
    .into();
    pages.push(("prices.md".to_owned(), prices()?));
    pages.extend(results()?);
    Ok(pages)
}

/// What each plugin costs, from the stored results of the scenario that measures it: the newest figures count.
fn prices() -> Result<String, Problems> {
    let mut stored = tracked()?;
    stored.retain(|path| path.starts_with("bench/results/policies-"));
    stored.sort_by(|one, other| other.cmp(one));
    output(Command::new(binary()?).args(["bench", "page", "--prices"]).args(stored))
}

fn definition(name: &str) -> Result<String, Problems> {
    output(Command::new(binary()?).args(["schema", name]))
}

/// A page for each stored result of the lab, with its figures, and an index.
fn results() -> Result<Vec<(String, String)>, Problems> {
    let stored = tracked()?.into_iter().filter(|path| path.starts_with("bench/results/") && path.ends_with(".json"));
    // Written by another process, so that it is exactly what `make results` writes.
    let folder = Path::new("target/result-pages");
    let _ = fs::remove_dir_all(folder);
    let mut page = Command::new(binary()?);
    page.args(["bench", "page"]).args(stored).arg("--folder").arg(folder);
    let changes = Path::new("target/changes-of-the-hot-path");
    if ages::write_changes(changes)? {
        page.arg("--changes").arg(changes);
    }
    output(&mut page)?;
    let fault = |error: std::io::Error| vec![format!("{}: {error}", folder.display())];
    let mut pages = Vec::new();
    for entry in fs::read_dir(folder).map_err(fault)?.flatten() {
        let text = fs::read_to_string(entry.path()).map_err(fault)?;
        pages.push((format!("{RESULTS}/{}", entry.file_name().to_string_lossy()), text));
    }
    pages.sort();
    Ok(pages)
}

/// Files beside the pages of results that are none of them.
fn left_over(pages: &[(String, String)]) -> Result<Vec<String>, Problems> {
    let folder = format!("{FOLDER}/{RESULTS}");
    let is_page = |path: &String| pages.iter().any(|(name, _)| *path == format!("{FOLDER}/{name}"));
    let entries = fs::read_dir(&folder).map_err(|error| vec![format!("{folder}: {error}")])?.flatten();
    let paths = entries.map(|entry| entry.path().display().to_string());
    Ok(paths.filter(|path| !is_page(path)).collect())
}

/// What the files of the lab may say.
fn scenarios() -> Result<String, Problems> {
    let schema = |kind: &str| {
        let text = output(Command::new(binary()?).args(["bench", "schema", kind]))?;
        serde_json::from_str::<Value>(&text).map_err(|error| vec![format!("weir bench schema {kind}: {error}")])
    };
    let mut page = String::from(
        "# Files of the lab\n\nGenerated by `cargo xtask docs` from the JSON Schemas that `weir bench schema` prints for editors. \
         [The guide](../guide/lab.md) has examples; `bench/scenarios` contains the scenarios of the lab, and `bench/publications` \
         the publications.\n\n- [Scenarios](#scenarios): the input of `weir bench run`\n- [Publications](#publications): the \
         input of `weir bench judge`\n",
    );
    schema_page::sections("Scenarios", &schema("scenario")?, &mut page);
    schema_page::sections("Publications", &schema("publication")?, &mut page);
    Ok(page)
}

/// What `weir --help` and the help of each command say, and of the commands within it.
fn command_line() -> Result<String, Problems> {
    let mut page = String::from("# The command line\n\nGenerated by `cargo xtask docs` from `weir --help`.\n");
    // Built as the tests are, so that `make test` builds everything once.
    step("the tests do not build", cargo().args(["test", "--quiet", "--workspace", "--no-run"]))?;
    command(&binary()?, &[], &mut page)?;
    Ok(page)
}

/// A section for a command, and one for each below it.
fn command(binary: &Path, path: &[&str], page: &mut String) -> Result<(), Problems> {
    let help = output(Command::new(binary).args(path).arg("--help"))?;
    let _ = write!(page, "\n## {}\n\n```text\n{}\n```\n", [&["weir"], path].concat().join(" "), help.trim_end());
    for name in commands_in(&help) {
        command(binary, &[path, &[name]].concat(), page)?;
    }
    Ok(())
}

/// The commands that a help lists, in one section or several: between the usage and arguments or options.
fn commands_in(help: &str) -> impl Iterator<Item = &str> {
    let after_usage = help.lines().skip_while(|line| !line.starts_with("Usage:"));
    let listed = after_usage.take_while(|line| !matches!(*line, "Arguments:" | "Options:"));
    let names = listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !name.is_empty() && *name != "help")
}
