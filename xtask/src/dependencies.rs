//! What the workspace is built of, held against deny.toml: licences, banned crates, where crates come from, and one version
//! of each. `cargo deny` reads the same file and checks the same; it takes minutes to build, so that only its advisories,
//! which need a database, are left to it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::{Problems, cargo, output, step, tree};

/// The file of the rules.
pub(crate) const RULES: &str = "deny.toml";
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Checks all of it, and the advisories where `cargo deny` and a database are there.
pub(crate) fn dependencies() -> Result<(), Problems> {
    let rules = tree::read(RULES)?;
    let built = built()?;
    let mut problems = banned(&strings(&rules, "deny"), &built)?;
    problems.extend(repeated(&strings(&rules, "skip"), &built));
    problems.extend(licences(&strings(&rules, "allow"), &metadata()?));
    problems.extend(advisories().err().into_iter().flatten());
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// `(name, version)` of each crate that is built. Cargo.lock alone would not do: it also holds what only features that
/// nothing turns on would bring.
fn built() -> Result<BTreeSet<(String, String)>, Problems> {
    let arguments = ["tree", "--workspace", "--all-features", "--offline", "--prefix", "none", "--format", "{p}"];
    let tree = output(cargo().args(arguments).args(["--edges", "normal,build"]))?;
    let named = |line: &str| {
        let mut words = line.split(' ');
        Some((words.next()?.to_owned(), words.next()?.trim_start_matches('v').to_owned()))
    };
    Ok(tree.lines().filter_map(named).collect())
}

/// The strings of the first list of this name: `name = ["a", "b"]`, on one line or several.
pub(crate) fn strings<'a>(rules: &'a str, name: &str) -> Vec<&'a str> {
    let begins = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with('='));
    let from = rules.lines().find(begins).map_or(rules.len(), |line| line.as_ptr().addr() - rules.as_ptr().addr());
    let list = rules[from..].split(']').next().unwrap_or_default();
    let without_comments = list.lines().map(|line| line.split('#').next().unwrap_or_default());
    without_comments.flat_map(|line| line.split('"').skip(1).step_by(2)).collect()
}

fn banned(names: &[&str], built: &BTreeSet<(String, String)>) -> Result<Problems, Problems> {
    if names.is_empty() {
        return Err(vec![format!("{RULES} bans nothing any more; was its `deny = [` moved?")]);
    }
    let found = names.iter().filter(|name| built.iter().any(|(built, _)| built == *name));
    Ok(found.map(|name| format!("{name} is built, which {RULES} bans; see `cargo tree -i {name}`")).collect())
}

/// Crates of which two versions are built, and of which `skip` does not say that it cannot be helped; and entries of
/// `skip` that are no longer needed.
fn repeated(skipped: &[&str], built: &BTreeSet<(String, String)>) -> Problems {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, version) in built {
        versions.entry(name).or_default().push(version);
    }
    let twice = versions.into_iter().filter(|(_, versions)| versions.len() > 1);
    let twice: BTreeMap<&str, String> = twice.map(|(name, versions)| (name, versions.join(" and "))).collect();
    let unexpected = twice.iter().filter(|(name, _)| !skipped.contains(*name)).map(|(name, versions)| {
        format!(
            "{name} is built in versions {versions}; see `cargo tree -d`, and use one, or add it to `skip` in {RULES}"
        )
    });
    let needless = skipped.iter().filter(|name| !twice.contains_key(*name));
    unexpected
        .chain(needless.map(|name| format!("{RULES}: `skip` names {name}, which is built in one version")))
        .collect()
}

fn metadata() -> Result<Vec<Value>, Problems> {
    let host = output(Command::new("rustc").args(["--print", "host-tuple"]))?;
    let arguments =
        ["metadata", "--offline", "--all-features", "--format-version", "1", "--filter-platform", host.trim()];
    let mut metadata: Value = serde_json::from_str(&output(cargo().args(arguments))?)
        .map_err(|error| vec![format!("cargo metadata: {error}")])?;
    match metadata["packages"].take() {
        Value::Array(packages) => Ok(packages),
        _ => Err(vec!["cargo metadata names no packages".to_owned()]),
    }
}

/// Crates from elsewhere than crates.io, and crates whose licences are not all allowed.
fn licences(allowed: &[&str], packages: &[Value]) -> Problems {
    let mut problems = Vec::new();
    for package in packages {
        let (name, version) =
            (package["name"].as_str().unwrap_or_default(), package["version"].as_str().unwrap_or_default());
        match package["source"].as_str() {
            None => continue, // one of ours
            Some(REGISTRY) => {}
            Some(other) => problems.push(format!("{name} {version} comes from {other}; only crates.io is allowed")),
        }
        match package["license"].as_str() {
            None => problems.push(format!("{name} {version} names no licence")),
            Some(licence) if is_allowed(licence, allowed) => {}
            Some(licence) => problems.push(format!("{name} {version}: {RULES} does not allow the licence `{licence}`")),
        }
    }
    problems
}

/// Whether an SPDX expression can be met with these licences. `/` is how `OR` was written once.
fn is_allowed(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    any(&words, &mut at, allowed) && at == words.len()
}

fn any(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let mut met = all(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= all(words, at, allowed);
    }
    met
}

fn all(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let mut met = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at, allowed);
    }
    met
}

fn one(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let Some(&first) = words.get(*at) else { return false };
    *at += 1;
    if first == "(" {
        let met = any(words, at, allowed);
        *at += 1; // the closing one
        return met;
    }
    if let (Some(&"WITH"), Some(exception)) = (words.get(*at), words.get(*at + 1)) {
        *at += 2;
        return allowed.contains(&&*format!("{first} WITH {exception}")) || allowed.contains(&first);
    }
    allowed.contains(&first)
}

/// `cargo deny check advisories`, where it is installed. Nothing is fetched: advisories are checked only against a database
/// that is there already.
fn advisories() -> Result<(), Problems> {
    let own = Path::new(".cache/cargo/bin/cargo-deny");
    let program = if own.exists() { own } else { Path::new("cargo-deny") };
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let has_database = home.is_some_and(|home| home.join("advisory-dbs").is_dir());
    if !has_database || Command::new(program).arg("--version").output().is_err() {
        eprintln!("xtask: no cargo-deny with an advisory database is installed, so advisories were not checked");
        return Ok(());
    }
    let arguments = ["--offline", "--all-features", "check", "--hide-inclusion-graph", "advisories"];
    step("cargo deny knows an advisory against a dependency", Command::new(program).args(arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_of_licences_is_met_or_not() {
        let allowed = ["MIT", "Apache-2.0", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"];
        let met = ["MIT", "GPL-3.0 OR MIT", "MIT/Apache-2.0", "(MIT OR GPL-2.0) AND Unicode-3.0"];
        assert!(met.iter().all(|expression| is_allowed(expression, &allowed)));
        assert!(is_allowed("GPL-3.0 OR Apache-2.0 WITH LLVM-exception", &allowed));
        let unmet = ["GPL-3.0", "MIT AND GPL-3.0", "(MIT OR GPL-2.0) AND GPL-3.0", "", "MIT MIT", "(MIT"];
        for expression in unmet {
            assert!(!is_allowed(expression, &allowed), "{expression}");
        }
    }

    #[test]
    fn lists_of_the_rules_are_read_on_one_line_and_on_several() {
        let rules = "[a]\nallow = [\n  \"MIT\", # \"not\"\n  \"ISC\",\n]\nallow-more = [\"x\"]\ndeny = [\"ring\"]\n";
        assert_eq!(strings(rules, "allow"), ["MIT", "ISC"]);
        assert_eq!(strings(rules, "deny"), ["ring"]);
        assert!(strings(rules, "skip").is_empty());
    }

    #[test]
    fn two_versions_are_a_problem_unless_they_are_known() {
        let built = [("a", "1"), ("a", "2"), ("b", "1")].map(|(name, version)| (name.to_owned(), version.to_owned()));
        let built = BTreeSet::from(built);
        assert_eq!(repeated(&["a"], &built), Problems::new());
        assert_eq!(repeated(&[], &built).len(), 1);
        assert_eq!(repeated(&["a", "b"], &built).len(), 1);
    }
}
