//! How much older than the present program a stored result is.

use jiff::Timestamp;

use crate::{result::ResultFile, scenario::Scenario};

/// A result is an older build from so many changes on, and its age is told in steps of so many: a page then stays as it is for a while.
const STEP: usize = 50;
/// Begins each line about older builds. `cargo xtask docs` compares pages without these lines, since they follow from the history of the
/// sources, which not every checkout has.
pub const OLDER_BUILD: &str = "> Older build";

/// The times of changes of the measured program.
#[derive(Clone, Debug, Default)]
pub struct ProgramChanges(Vec<Timestamp>);

impl ProgramChanges {
    /// Reads a time in RFC 3339 from each line.
    pub fn read(text: &str) -> Result<ProgramChanges, jiff::Error> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.map(str::parse).collect::<Result<_, _>>().map(ProgramChanges)
    }

    /// How many changes came after the result at least, in steps; `None` for a result of the present build, or nearly.
    fn since(&self, result: &ResultFile) -> Option<usize> {
        let measured: Timestamp = result.started_at.parse().ok()?;
        let count = self.0.iter().filter(|change| **change > measured).count();
        Some(count / STEP * STEP).filter(|count| *count > 0)
    }

    /// The line for the page of a result.
    pub fn line(&self, result: &ResultFile) -> String {
        self.since(result).map_or(String::new(), |count| {
            format!("\n{OLDER_BUILD}: what every request passes through has changed at least {count} times since.\n")
        })
    }

    /// The line for the index, which has a link to the page of each result.
    pub fn index_line<'a>(&self, results: impl Iterator<Item = (&'a ResultFile, &'a str)>) -> String {
        let older = results.filter_map(|(result, link)| {
            let count = self.since(result)?;
            Some(format!("[{}]({link}) {count}", result.scenario.name))
        });
        let older: Vec<String> = older.collect();
        if older.is_empty() {
            return String::new();
        }
        format!("\n{OLDER_BUILD}s, with how often at least that code has changed since: {}.\n", older.join(", "))
    }
}

/// The names of rows that the scenario has now, and did not have when it was measured. A run of chosen rows lacks the others because
/// they were not asked for.
pub(super) fn newer_rows<'a>(result: &ResultFile, now: &'a Scenario) -> Vec<&'a str> {
    if now.title != result.scenario.title || result.command.iter().any(|word| word.starts_with("--row")) {
        return Vec::new();
    }
    let quick = now.quick.rows.as_ref().filter(|_| result.quick);
    let asked = now.rows.iter().filter(|row| quick.is_none_or(|rows| rows.contains(&row.name)));
    asked.map(|row| row.name.as_str()).filter(|name| result.scenario.row(name).is_none()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{manifest::Manifest, result::SCHEMA};

    fn stored(started_at: &str, rows: &[&str], command: &str) -> ResultFile {
        let rows: Vec<_> = rows.iter().map(|name| json!({ "name": name })).collect();
        let result = json!({
            "schema": SCHEMA, "id": "s", "started_at": started_at, "finished_at": started_at, "quick": false, "seed": 1,
            "command": command.split(' ').collect::<Vec<_>>(), "targets": [], "cells": [], "manifest": Manifest::default(),
            "scenario": {
                "name": "s", "title": "S", "about": "", "targets": ["none"], "baseline": "none", "connections": [1], "rows": rows,
            },
        });
        serde_json::from_value(result).expect("it has what a result has to have")
    }

    #[test]
    fn a_result_is_an_older_build_after_fifty_changes() {
        let changes = (0..60).map(|number| format!("2026-11-02T00:{number:02}:00Z\n")).collect::<String>();
        let changes = ProgramChanges::read(&changes).unwrap();
        let line = |at: &str| changes.line(&stored(at, &["a"], "weir bench run s"));
        assert!(line("2026-11-01T00:00:00Z").contains("at least 50 times since"), "{}", line("2026-11-01T00:00:00Z"));
        assert!(line("2026-11-02T00:09:30Z").contains("at least 50 times since"));
        assert_eq!(line("2026-11-02T00:10:30Z"), "", "only 49 came after it");
        let [old, new] = ["2026-11-01T00:00:00Z", "2026-11-03T00:00:00Z"].map(|at| stored(at, &["a"], ""));
        let index = changes.index_line([(&new, "new.md"), (&old, "old.md")].into_iter());
        assert!(index.contains("[s](old.md) 50.") && !index.contains("new.md"), "{index}");
        assert_eq!(ProgramChanges::default().index_line([(&old, "old.md")].into_iter()), "");
        assert!(ProgramChanges::read("2026-11-02 yesterday").is_err());
    }

    #[test]
    fn rows_that_were_not_asked_for_are_not_newer() {
        let now = stored("", &["a", "b", "c"], "").scenario;
        let of = |command: &str| newer_rows(&stored("", &["a"], command), &now).join(" ");
        assert_eq!(of("weir bench run s"), "b c");
        assert_eq!((of("weir bench run s --row a"), of("weir bench run s --row=a")), (String::new(), String::new()));
        let mut quick = now.clone();
        quick.quick.rows = Some(vec!["a".to_owned(), "b".to_owned()]);
        let result = ResultFile { quick: true, ..stored("", &["a"], "weir bench run s --quick") };
        assert_eq!(newer_rows(&result, &quick), ["b"]);
        let other = Scenario { title: "Another".to_owned(), ..now.clone() };
        assert!(newer_rows(&result, &other).is_empty(), "a scenario of the same name");
    }
}
