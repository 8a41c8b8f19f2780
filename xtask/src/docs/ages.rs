//! The age of stored results of the lab, in changes of the code that they measured.
//!
//! Pages of results say it in lines of their own. These follow from the history of the sources, which not every checkout has, and change
//! with it: so pages are compared without them, and without a history they stay as they are.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::tree::tracked;
use crate::{Problems, output};

/// What every request passes through.
const HOT_PATH: [&str; 8] = [
    "crates/weir-proto/src",
    "crates/weir-gateway/src/answer",
    "crates/weir-gateway/src/connection",
    "crates/weir-gateway/src/endpoint",
    "crates/weir-gateway/src/http2",
    "crates/weir-gateway/src/message",
    "crates/weir-gateway/src/serve",
    "crates/weir-gateway/src/worker",
];
/// A result that is older than so many changes of it is measured again.
const MOST_CHANGES: usize = 400;
/// RFC 3339. Without its punctuation it is how the names of result files tell their time. These texts have the order of the times.
const TIME: &str = "%Y-%m-%dT%H:%M:%SZ";
/// Begins the lines about age.
const OLDER_BUILD: &str = "> Older build";

/// The times of the changes, one a line. `None` without the whole history of the sources: a part of it would make results younger.
fn changes() -> Option<String> {
    let is_shallow = output(Command::new("git").args(["rev-parse", "--is-shallow-repository"])).ok()?;
    let mut log = Command::new("git");
    log.env("TZ", "UTC").args(["log", "--format=%ad", &format!("--date=format-local:{TIME}"), "--"]).args(HOT_PATH);
    if is_shallow.trim() == "false" { output(&mut log).ok() } else { None }
}

/// The file that `weir bench page` reads the changes from, written here, if there is a history.
pub(super) fn write_changes(path: &Path) -> Result<bool, Problems> {
    let Some(changes) = changes() else { return Ok(false) };
    fs::write(path, changes).map_err(|error| vec![format!("{}: {error}", path.display())])?;
    Ok(true)
}

/// A page without its lines about age, and the empty lines above them.
pub(super) fn without_ages(page: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    for line in page.split_inclusive('\n') {
        if !line.starts_with(OLDER_BUILD) {
            lines.push(line);
        } else if lines.last() == Some(&"\n") {
            lines.pop();
        }
    }
    lines.concat()
}

/// Reports each scenario whose newest result is too old. Without the history of the sources, there is nothing to report.
pub(super) fn compare() -> Result<(), Problems> {
    let changes = changes().unwrap_or_default().replace(['-', ':'], "");
    let changes: Vec<&str> = changes.lines().collect();
    let stored = tracked()?;
    let problems = too_old(&newest(&stored), &changes, MOST_CHANGES);
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// The time of the newest result of each scenario.
fn newest(stored: &[String]) -> BTreeMap<&str, &str> {
    let mut newest = BTreeMap::new();
    let names = stored.iter().filter_map(|path| path.strip_prefix("bench/results/")?.strip_suffix(".json"));
    for (scenario, time) in names.filter_map(|name| name.rsplit_once('-')) {
        let have = newest.entry(scenario).or_insert(time);
        *have = (*have).max(time);
    }
    newest
}

fn too_old(newest: &BTreeMap<&str, &str>, changes: &[&str], most: usize) -> Problems {
    let age = |time: &str| changes.iter().filter(|change| **change > time).count();
    let too_old = newest.iter().map(|(scenario, time)| (scenario, age(time))).filter(|(_, changes)| *changes > most);
    let problem = |(scenario, changes): (&&str, usize)| {
        format!(
            "bench/results: {changes} changes of the hot path are younger than the result of {scenario}, and at most {most} may \
             be; measure it again on a quiet machine: `weir bench run {scenario}`"
        )
    };
    too_old.map(problem).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_result_of_a_scenario_counts() {
        let stored = ["gwlb-20261101T000000Z", "gwlb-20261103T000000Z", "api7-20261102T000000Z"]
            .map(|name| format!("bench/results/{name}.json"));
        let changes = ["20261104T000000Z", "20261102T120000Z", "20261101T120000Z"];
        let newest = newest(&stored);
        assert!(too_old(&newest, &changes, 2).is_empty());
        let problems = too_old(&newest, &changes, 1);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].contains("2 changes") && problems[0].contains("of api7"), "{problems:?}");
        assert!(too_old(&newest, &[], 0).is_empty());
    }

    #[test]
    fn pages_are_compared_without_their_age() {
        assert_eq!(OLDER_BUILD, weir_bench::report::OLDER_BUILD);
        let page = |age: &str| format!("# A\n\nMeasured.\n{age}\n> 4 of 5 are invalid.\n\n| a |\n");
        let aged = page("\n> Older build: changed at least 50 times since.\n");
        assert_ne!(aged, page(""));
        assert_eq!(without_ages(&aged), page(""));
        assert_eq!(without_ages(&page("")), page(""));
    }
}
