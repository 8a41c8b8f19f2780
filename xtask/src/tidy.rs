//! Rules that no compiler knows: who may know whom, and what sources must not mention.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;

use crate::tree::{read, tracked};
use crate::{Problems, cargo, output, structure, type_names};

/// Checks all of them.
pub(crate) fn tidy() -> Result<(), Problems> {
    let mut problems = Vec::new();
    problems.extend(layering()?);
    problems.extend(sources()?);
    problems.extend(structure::structure()?);
    problems.extend(type_names::type_names()?);
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Compares the manifests with the table of crates in ARCHITECTURE.md.
fn layering() -> Result<Problems, Problems> {
    let allowed = table(&read("ARCHITECTURE.md")?)?;
    let metadata = output(cargo().args(["metadata", "--no-deps", "--offline", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|error| vec![format!("cargo metadata: {error}")])?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let mut problems = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(known) = allowed.get(name) else {
            problems.push(format!("{name} does not stand in the table of crates in ARCHITECTURE.md"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let other = dependency["name"].as_str().unwrap_or_default();
            let is_ours = allowed.contains_key(other);
            let is_for_tests = dependency["kind"].as_str() == Some("dev");
            if other == "weir-testkit" && !is_for_tests {
                problems.push(format!("{name} knows weir-testkit outside its tests; make it a dev-dependency"));
            } else if is_ours && !is_for_tests && !known.contains(other) {
                problems.push(format!("{name} may not know {other} (ARCHITECTURE.md says who may know whom)"));
            }
        }
    }
    problems.extend(gateway_from_control()?);
    Ok(problems)
}

/// Rows `| crate | may know |` of the first table whose header says so.
fn table(text: &str) -> Result<BTreeMap<String, BTreeSet<String>>, Problems> {
    let rows = text.lines().skip_while(|line| !line.contains("may know")).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let mut table = BTreeMap::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, known, ..] = cells[..] else { continue };
        let names = known.split(',').map(|name| name.trim().trim_matches('`').to_owned());
        table.insert(name.trim_matches('`').to_owned(), names.filter(|name| !name.is_empty()).collect());
    }
    if table.is_empty() { Err(vec!["ARCHITECTURE.md has no table of crates".to_owned()]) } else { Ok(table) }
}

/// The modules of the data plane that a crate may name. The control plane may name what it compiles to, with the routing table in
/// it, and what it reads back; the document, values of what is compiled to. Tests may look further.
const OF_GATEWAY: [(&str, &[&str]); 2] =
    [("crates/weir-control/src/", &["snapshot", "route", "state"]), ("crates/weir-document/src/", &["snapshot"])];

fn gateway_from_control() -> Result<Problems, Problems> {
    let mut problems = Vec::new();
    for path in tracked()?.iter().filter(|path| path.ends_with(".rs")) {
        let Some((of, permitted)) = OF_GATEWAY.iter().find(|(folder, _)| path.starts_with(folder)) else { continue };
        for (number, line) in read(path)?.lines().enumerate() {
            for (at, name) in line.match_indices("weir_gateway::") {
                let module: String =
                    line[at + name.len()..].chars().take_while(|letter| letter.is_alphanumeric()).collect();
                if !permitted.contains(&module.as_str()) {
                    problems.push(format!(
                        "{path}:{}: {of} may know of weir-gateway only {}, not `{module}`",
                        number + 1,
                        permitted.join(", ")
                    ));
                }
            }
        }
    }
    Ok(problems)
}

/// Sources name no place on the machine they were written on, and nothing is left to be done later.
fn sources() -> Result<Problems, Problems> {
    // Spelled in parts, so that this file is not a finding.
    let paths = [
        concat!("/wo", "rk/main"),
        concat!("/wo", "rk/shared"),
        concat!("/ho", "me/"),
        concat!("/ro", "ot/"),
        concat!("/tm", "p/"),
    ];
    let leftovers = [concat!("to", "do!("), concat!("unimple", "mented!("), concat!("db", "g!(")];
    let mut problems = Vec::new();
    for path in tracked()? {
        let Ok(text) = fs::read_to_string(&path) else { continue }; // not text, or removed and not committed yet
        for (number, line) in text.lines().enumerate() {
            if let Some(found) = paths.iter().find(|place| names(line, place)) {
                problems.push(format!("{path}:{}: `{found}` is a place on one machine", number + 1));
            }
            if path.ends_with(".rs")
                && let Some(found) = leftovers.iter().find(|leftover| line.contains(**leftover))
            {
                problems.push(format!("{path}:{}: `{found}…` is something left to be done", number + 1));
            }
            if path.ends_with(".rs") && hides_its_subject(line) {
                let advice = "begin the name with its subject: `a_closed_route_needs_…`, not `what_is_closed_needs_…`";
                problems.push(format!("{path}:{}: {advice}", number + 1));
            }
        }
    }
    Ok(problems)
}

/// Whether a line has an absolute path that begins so, and not a path below a placeholder, such as `{installed}` in results.
fn names(line: &str, place: &str) -> bool {
    line.match_indices(place).any(|(at, _)| !line[..at].ends_with('}'))
}

/// Whether a line declares a function, of tests mostly, whose name begins with a question.
fn hides_its_subject(line: &str) -> bool {
    let name = line.split_once("fn ").map_or("", |(_, name)| name);
    !line.contains('"') && (name.starts_with("what_") || name.starts_with("who_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_begins_with_a_question_is_found() {
        assert!(hides_its_subject("    fn what_is_left() {") && hides_its_subject("async fn who_may() {"));
        assert!(!hides_its_subject("    fn a_rest_is_what_is_left() {") && !hides_its_subject("// what_is_left"));
    }

    #[test]
    fn a_path_below_a_placeholder_is_no_place_on_a_machine() {
        let place = concat!("/ro", "ot/");
        assert!(names(&format!("in {place}a"), place) && names(&format!("{{x}}{place} {place}"), place));
        assert!(!names(&format!("load {{installed}}{place}usr"), place) && !names("root/", place));
    }

    #[test]
    fn the_table_of_crates_is_read_from_its_page() {
        let page = "text\n\n| crate | may know |\n|---|---|\n| `a` | |\n| `b` | `a`, `c` |\n\nmore\n| x | y |\n";
        let table = table(page).expect("a table");
        assert_eq!(table.len(), 2);
        assert!(table["a"].is_empty());
        assert_eq!(table["b"].iter().map(String::as_str).collect::<Vec<_>>(), ["a", "c"]);
    }
}
