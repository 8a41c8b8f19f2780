//! Rules about the shape of all crates' own sources: no import circles between files or folders, no function that has grown too
//! long. They read the text as rustfmt leaves it.

use std::collections::{BTreeMap, BTreeSet};

use crate::imports::{Imports, Module, imports, part};
use crate::tree::{read, tracked};
use crate::{Problems, ladder};

/// Lines of a function, from its signature to its closing brace.
const MOST_LINES: usize = 60;
/// A comment in a longer function that says why it is in one piece.
const REASON: &str = "// Long, since ";

/// Checks them in every crate of the workspace.
pub(crate) fn structure() -> Result<Problems, Problems> {
    let mut problems = Vec::new();
    let page = read("ARCHITECTURE.md")?;
    for name in crates()? {
        let sources = sources(&name)?;
        for (path, text) in &sources {
            problems.extend(long_functions(text).into_iter().map(|(line, function, lines)| {
                format!(
                    "{path}:{line}: `{function}` has {lines} lines; split it, or say in it why not: `{REASON}...` \
                     (at most {MOST_LINES})"
                )
            }));
        }
        let modules = sources.into_iter().map(|(path, text)| (module(&name, &path), Module::new(text))).collect();
        let imports = imports(&modules);
        problems.extend(circles(&imports).iter().map(|circle| described(&name, circle)));
        let of_folders = ladder::circles_of_folders(&imports).into_iter();
        problems.extend(of_folders.map(|circle| format!("{name}: {circle}; move what they share below both")));
        problems.extend(ladder::against_page(&page, &name, &imports));
    }
    Ok(problems)
}

fn described(name: &str, circle: &[String]) -> String {
    let files = circle.join(" -> ");
    format!("{name}: import circle between files: {files} -> {}; move what they share below both", circle[0])
}

/// The folders of the crates that have sources.
pub(crate) fn crates() -> Result<Vec<String>, Problems> {
    let mut crates = BTreeSet::new();
    for path in tracked()? {
        if let Some((folder, _)) = path.split_once("/src/").filter(|_| path.ends_with(".rs")) {
            crates.insert(folder.to_owned());
        }
    }
    Ok(crates.into_iter().collect())
}

/// The files of a crate that are no tests, with what comes before the tests in each.
pub(crate) fn sources(folder: &str) -> Result<Vec<(String, String)>, Problems> {
    let root = format!("{folder}/src/");
    let is_source = |path: &&String| {
        let is_test = |part: &str| matches!(part, "tests" | "oracle.rs" | "testing.rs") || part.ends_with("tests.rs");
        path.starts_with(&root) && path.ends_with(".rs") && !path.split('/').any(is_test)
    };
    let mut files = Vec::new();
    for path in tracked()?.iter().filter(is_source) {
        let text = read(path)?;
        let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
        files.push((path.clone(), text[..end].to_owned()));
    }
    Ok(files)
}

/// The module of a file. A binary beside a library is a crate of its own.
fn module(folder: &str, path: &str) -> String {
    let path = path.trim_start_matches(&format!("{folder}/src/")).trim_end_matches(".rs").trim_end_matches("/mod");
    if path == "lib" { String::new() } else { path.replace('/', "::") }
}

/// The shortest circle through each module that is part of one; each circle once. A file and those in its folder may know each
/// other: a circle is one that does not pass the file of the folder that all of it is in.
fn circles(imports: &Imports) -> Vec<Vec<String>> {
    let above = |module: &String| module.match_indices("::").map(|(at, _)| module[..at].to_owned()).collect::<Vec<_>>();
    let rooms: BTreeSet<String> = imports.keys().flat_map(above).chain([String::new()]).collect();
    let mut found: BTreeMap<BTreeSet<String>, Vec<String>> = BTreeMap::new();
    for room in &rooms {
        for module in imports.keys().filter(|module| part(room, module).is_some()) {
            if let Some(circle) = circle_through(imports, room, module) {
                found.entry(circle.iter().cloned().collect()).or_insert(circle);
            }
        }
    }
    found.into_values().collect()
}

/// The shortest way from a module back to itself within a room that passes more than one part of the room.
fn circle_through(imports: &Imports, room: &str, module: &str) -> Option<Vec<String>> {
    // Breadth first, by (module, whether the way has left the part).
    let mut ways = vec![(vec![module.to_owned()], false)];
    let mut seen = BTreeSet::new();
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for (way, has_left) in ways {
            let last = way.last().expect("a way begins with its module");
            for next in imports.get(last).into_iter().flatten().filter(|next| part(room, next).is_some()) {
                let has_left = has_left || part(room, next) != part(room, module);
                if next == module && has_left {
                    return Some(way);
                }
                if next != module && seen.insert((next.clone(), has_left)) {
                    longer.push(([way.as_slice(), std::slice::from_ref(next)].concat(), has_left));
                }
            }
        }
        ways = longer;
    }
    None
}

/// Functions with more than [`MOST_LINES`] and no reason for it: line, name, length.
fn long_functions(text: &str) -> Vec<(usize, String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(name) = function(line) else { continue };
        let closing = format!("{}}}", &line[..line.len() - line.trim_start().len()]);
        let Some(length) = lines[start..].iter().position(|line| *line == closing || ends_at_once(line)) else {
            continue;
        };
        let body = &lines[start..=start + length];
        if body.len() > MOST_LINES && !body.iter().any(|line| line.trim_start().starts_with(REASON)) {
            found.push((start + 1, name.to_owned(), body.len()));
        }
    }
    found
}

/// The name of the function whose signature begins on this line.
fn function(line: &str) -> Option<&str> {
    let mut words = line.trim_start();
    loop {
        words = match words.split_once(' ') {
            Some(("fn", rest)) => {
                return rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next();
            }
            Some((word, rest)) if matches!(word, "pub" | "const" | "async" | "unsafe") || word.starts_with("pub(") => {
                rest
            }
            _ => return None,
        };
    }
}

/// A function on one line, or without a body.
fn ends_at_once(line: &str) -> bool {
    function(line).is_some() && (line.ends_with('}') || line.ends_with(';'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let module = |(name, text): &(&str, &str)| ((*name).to_owned(), Module::new((*text).to_owned()));
        circles(&imports(&files.iter().map(module).collect()))
    }

    #[test]
    fn a_circle_between_modules_is_found_whatever_way_it_takes() {
        let nested = ("a", "use crate::{\n    b::{One, Two as Other},\n    c,\n};\n");
        assert_eq!(found(&[nested, ("b", "use super::a::Thing;"), ("c", "")]), [["a", "b"]]);
        let through = [
            ("a", "mod x;\nmod y;"),
            ("a::x", "use crate::b;"),
            ("a::y", "use super::x;"),
            ("b", "fn f() { crate::a::y::g() }"),
        ];
        assert_eq!(found(&through), [["a::x", "b", "a::y"]]);
    }

    #[test]
    fn a_file_and_those_in_its_folder_may_know_each_other_and_comments_know_nothing() {
        let head = ("a", "mod x;\nmod y;\nuse x::X;\npub struct Shared;");
        assert_eq!(found(&[head, ("a::x", "use super::Shared;\nuse super::y::Y;"), ("a::y", "")]), [[""; 0]; 0]);
        assert_eq!(found(&[("a", "use crate::b;"), ("b", "/// See [`crate::a`].\nuse std::a;")]), [[""; 0]; 0]);
        let siblings = [("a", ""), ("a::x", "use super::y;"), ("a::y", "use super::x;")];
        assert_eq!(found(&siblings), [["a::x", "a::y"]]);
        let around_the_head = [("a", "mod x;"), ("a::x", "use crate::b;"), ("b", "use crate::a::x::X;")];
        assert_eq!(found(&around_the_head), [["a::x", "b"]]);
    }

    #[test]
    fn a_name_that_is_passed_on_counts_where_it_is_defined() {
        let root = ("", "mod a;\nmod b;\npub use a::{A, other as Renamed};");
        assert_eq!(found(&[root, ("a", "use crate::b::B;"), ("b", "use crate::Renamed;")]), [["a", "b"]]);
        assert_eq!(
            found(&[("", "pub use elsewhere::A;"), ("a", "use crate::b;"), ("b", "use crate::A;")]),
            [[""; 0]; 0]
        );
    }

    #[test]
    fn a_long_function_needs_a_reason() {
        let body = "    step();\n".repeat(MOST_LINES);
        let long = format!("impl A {{\n}}\n\npub(crate) async fn long(\n    a: u8,\n) {{\n{body}}}\n");
        assert_eq!(long_functions(&long), [(4, "long".to_owned(), MOST_LINES + 4)]);
        let reasoned = long.replacen("    step();", "    // Long, since it is a table.", 1);
        assert_eq!(long_functions(&reasoned), []);
        let short = format!("fn first() {{}}\nfn second() {{\n}}\n{body}");
        assert_eq!(long_functions(&short), []);
    }
}
