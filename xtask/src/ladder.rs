//! The order of the folders of a crate: in each folder, and at the top, the parts (a file, or a folder with the file of its name)
//! know each other in one direction only.

use std::collections::{BTreeMap, BTreeSet};

use crate::imports::{Imports, part};

/// For each part of a room, the parts that it imports from, each with one import that shows it: `(importing, imported)` modules.
type Steps<'a> = BTreeMap<&'a str, BTreeMap<&'a str, (&'a str, &'a str)>>;

/// The circles between the parts of all rooms of a crate, one for each part that is in one and not in a circle named before.
pub(crate) fn circles_of_folders(imports: &Imports) -> Vec<String> {
    let mut found = Vec::new();
    for room in rooms(imports) {
        let steps = steps(imports, &room);
        let mut named = BTreeSet::new();
        for part in steps.keys() {
            let Some(circle) = circle_through(&steps, part).filter(|_| !named.contains(part)) else { continue };
            let place = if room.is_empty() { "the top" } else { &room };
            let ways = circle.iter().zip(circle.iter().cycle().skip(1)).map(|(from, to)| {
                let (importing, imported) = steps[from][to];
                format!("{from} -> {to} ({importing} imports {imported})")
            });
            found.push(format!("circle between folders in {place}: {}", ways.collect::<Vec<_>>().join(", ")));
            named.extend(circle);
        }
    }
    found
}

/// Compares the order of a crate's top with the table that ARCHITECTURE.md has for it, if it has one: after a heading that names the
/// crate's folder, rows `| parts | ... |` from bottom to top.
pub(crate) fn against_page(page: &str, name: &str, imports: &Imports) -> Vec<String> {
    let heading = format!("{}/src`, from bottom to top", name.trim_start_matches("crates/"));
    let mut lines = page.lines().skip_while(|line| !line.contains(&heading));
    if lines.next().is_none() {
        return Vec::new();
    }
    let table = lines.skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|')).skip(2);
    let stated: Vec<Vec<&str>> = table.filter_map(|row| row.split('|').nth(1)).map(names).collect();
    let measured = ladder(imports);
    match stated == measured {
        true => Vec::new(),
        false => {
            let rows = measured.iter().map(|row| row.join(", ")).collect::<Vec<_>>();
            vec![format!("ARCHITECTURE.md states another order for {name} than the measured one: {}", rows.join(" < "))]
        }
    }
}

/// The names in backticks.
fn names(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// The parts of the top of a crate in rows: each stands in the lowest row that is above all parts that it knows.
fn ladder(imports: &Imports) -> Vec<Vec<&str>> {
    let steps = steps(imports, "");
    let mut left: BTreeSet<&str> = imports.keys().filter_map(|module| part("", module)).collect();
    let mut rows = Vec::new();
    while !left.is_empty() {
        let is_free =
            |part: &&str| !steps.get(part).is_some_and(|known| known.keys().any(|other| left.contains(other)));
        let row: Vec<&str> = left.iter().copied().filter(is_free).collect();
        if row.is_empty() {
            break; // a circle, which is a problem of its own
        }
        left.retain(|part| !row.contains(part));
        rows.push(row);
    }
    rows
}

/// Every folder of a crate by its module path; the top is empty.
fn rooms(imports: &Imports) -> BTreeSet<String> {
    let above = |module: &String| module.match_indices("::").map(|(at, _)| module[..at].to_owned()).collect::<Vec<_>>();
    imports.keys().flat_map(above).chain([String::new()]).collect()
}

fn steps<'a>(imports: &'a Imports, room: &str) -> Steps<'a> {
    let mut steps = Steps::new();
    for (importing, known) in imports {
        let Some(from) = part(room, importing) else { continue };
        for imported in known {
            if let Some(to) = part(room, imported).filter(|to| *to != from) {
                steps.entry(from).or_default().entry(to).or_insert((importing, imported));
            }
        }
    }
    steps
}

/// The shortest circle through a part.
fn circle_through<'a>(steps: &Steps<'a>, part: &'a str) -> Option<Vec<&'a str>> {
    let mut ways = vec![vec![part]];
    let mut seen = BTreeSet::new();
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            let last = way.last().expect("a way begins with its part");
            for next in steps.get(last).into_iter().flat_map(BTreeMap::keys) {
                if *next == part {
                    return Some(way);
                }
                if seen.insert(*next) {
                    longer.push([way.as_slice(), &[*next]].concat());
                }
            }
        }
        ways = longer;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(of: &[(&str, &[&str])]) -> Imports {
        let owned = |(module, known): &(&str, &[&str])| {
            ((*module).to_owned(), known.iter().map(|module| (*module).to_owned()).collect())
        };
        of.iter().map(owned).collect()
    }

    #[test]
    fn a_circle_of_folders_is_found_where_their_files_form_none() {
        let of = imports(&[("a", &[]), ("a::low", &[]), ("a::high", &["b::x"]), ("b", &[]), ("b::x", &["a::low"])]);
        assert_eq!(
            circles_of_folders(&of),
            ["circle between folders in the top: a -> b (a::high imports b::x), b -> a (b::x imports a::low)"]
        );
        let within = imports(&[("r", &[]), ("r::a::x", &["r::b"]), ("r::b", &["r::a::y"]), ("r::a::y", &[])]);
        assert_eq!(
            circles_of_folders(&within),
            ["circle between folders in r: a -> b (r::a::x imports r::b), b -> a (r::b imports r::a::y)"]
        );
    }

    #[test]
    fn a_folder_and_its_own_file_are_one_part_and_a_long_circle_is_named_once() {
        let one = imports(&[("a", &["a::x"]), ("a::x", &["a"])]);
        assert_eq!(circles_of_folders(&one), [""; 0]);
        let long = imports(&[("a", &["b"]), ("b", &["c"]), ("c", &["a"]), ("d", &["a"])]);
        assert_eq!(
            circles_of_folders(&long),
            ["circle between folders in the top: a -> b (a imports b), b -> c (b imports c), c -> a (c imports a)"]
        );
    }

    #[test]
    fn the_stated_order_is_compared_with_the_measured_one() {
        let of = imports(&[("a::x", &["b"]), ("b", &["c"]), ("c", &[]), ("d", &["c"])]);
        let page = "In `weir-x/src`, from bottom to top:\n\n| parts | what |\n|---|---|\n| `c` | |\n| `b`, `d` | |\n| `a` | |\n";
        assert_eq!(against_page(page, "crates/weir-x", &of), [""; 0]);
        assert_eq!(against_page(page, "crates/weir-y", &of), [""; 0], "nothing is stated of it");
        let upside_down = page.replace("| `c` | |\n| `b`, `d` | |", "| `b`, `d` | |\n| `c` | |");
        assert_eq!(
            against_page(&upside_down, "crates/weir-x", &of),
            ["ARCHITECTURE.md states another order for crates/weir-x than the measured one: c < b, d < a"]
        );
    }
}
