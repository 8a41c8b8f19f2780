//! Rules about the shape of a crate's own sources: no import circles between modules, no function that has grown too long.
//! Both read the text as rustfmt leaves it.

use std::collections::{BTreeMap, BTreeSet};

use crate::Problems;
use crate::tidy::{read, tracked};

/// Crates in which no two files of different modules import each other, directly or by way of others.
const WITHOUT_CIRCLES: [&str; 3] = ["weir-gateway", "weir-net", "weir-proto"];
/// Crates whose functions have at most [`MOST_LINES`].
const WITH_SHORT_FUNCTIONS: [&str; 3] = ["weir-gateway", "weir-net", "weir-proto"];

/// Lines of a function, from its signature to its closing brace.
const MOST_LINES: usize = 60;
/// A comment in a longer function that says why it is in one piece.
const REASON: &str = "// Long, since ";

/// The modules of a crate, by path (`endpoint::pool`; the root is empty), with the modules each one imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Checks both.
pub fn structure() -> Result<Problems, Problems> {
    let mut problems = Vec::new();
    for name in WITHOUT_CIRCLES {
        let files = sources(name)?;
        problems.extend(circles(&imports(&files)).iter().map(|circle| described(name, circle)));
    }
    for name in WITH_SHORT_FUNCTIONS {
        for (path, text) in tracked_sources(name)? {
            problems.extend(long_functions(&text).into_iter().map(|(line, function, lines)| {
                format!(
                    "{path}:{line}: `{function}` has {lines} lines; split it, or say in it why not: `{REASON}...` \
                     (at most {MOST_LINES})"
                )
            }));
        }
    }
    Ok(problems)
}

fn described(name: &str, circle: &[String]) -> String {
    let files = circle.join(" -> ");
    format!("{name}: import circle between modules: {files} -> {}; move what they share below both", circle[0])
}

/// The files of a crate that are no tests, with what comes before the tests in each.
fn tracked_sources(name: &str) -> Result<Vec<(String, String)>, Problems> {
    let root = format!("crates/{name}/src/");
    let is_source = |path: &&String| {
        let is_test = |part: &str| part == "tests" || part == "tests.rs" || part == "oracle.rs";
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

/// The same by module path.
fn sources(name: &str) -> Result<BTreeMap<String, String>, Problems> {
    let root = format!("crates/{name}/src/");
    let module = |path: &str| {
        let path = path.trim_start_matches(&root).trim_end_matches(".rs");
        let path = path.trim_end_matches("/mod");
        if path == "lib" { String::new() } else { path.replace('/', "::") }
    };
    Ok(tracked_sources(name)?.into_iter().map(|(path, text)| (module(&path), text)).collect())
}

fn imports(files: &BTreeMap<String, String>) -> Imports {
    let of = |(module, text): (&String, &String)| {
        let known = |path: String| nearest(files, module, &path).filter(|other| other != module && !other.is_empty());
        (module.clone(), paths(text).into_iter().filter_map(known).collect())
    };
    files.iter().map(of).collect()
}

/// The paths that start with `crate`, `super` or `self`, in `use` declarations and elsewhere.
fn paths(text: &str) -> Vec<String> {
    let code: String = text.lines().map(|line| line.split("//").next().unwrap_or_default().trim()).collect();
    let mut paths = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte == b':';
            if at > 0 && is_word(&code.as_bytes()[at - 1]) {
                continue; // the middle of another path
            }
            expand("", &code[at..], &mut paths);
        }
    }
    paths
}

/// Appends the paths of a use tree at the beginning of `tree`; says how long it is.
fn expand(prefix: &str, tree: &str, paths: &mut Vec<String>) -> usize {
    let is_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    let length = tree.find(|letter| !is_path(letter)).unwrap_or(tree.len());
    let path = format!("{prefix}{}", &tree[..length]);
    if !path.ends_with("::") || !tree[length..].starts_with('{') {
        paths.push(path);
        return length;
    }
    let mut at = length + 1;
    while at < tree.len() {
        match tree.as_bytes()[at] {
            b'}' => return at + 1,
            byte if is_path(char::from(byte)) => at += expand(&path, &tree[at..], paths),
            // ` as name` ends with the next comma.
            b' ' if tree[at..].starts_with(" as ") => at += tree[at..].find([',', '}']).unwrap_or(1),
            _ => at += 1,
        }
    }
    at
}

/// The file in which a path of `module` ends, or that re-exports what it names.
fn nearest(files: &BTreeMap<String, String>, module: &str, path: &str) -> Option<String> {
    let mut at: Vec<&str> = module.split("::").filter(|name| !name.is_empty()).collect();
    for name in path.split("::").filter(|name| !name.is_empty()) {
        match name {
            "crate" => at.clear(),
            "self" => {}
            "super" => {
                at.pop();
            }
            name => at.push(name),
        }
    }
    loop {
        let candidate = at.join("::");
        if files.contains_key(&candidate) {
            return Some(candidate);
        }
        at.pop()?;
    }
}

/// The shortest circle through each module that is part of one that leaves its top module; each circle once.
fn circles(imports: &Imports) -> Vec<Vec<String>> {
    let mut found: BTreeMap<BTreeSet<String>, Vec<String>> = BTreeMap::new();
    for module in imports.keys() {
        if let Some(circle) = circle_through(imports, module)
            && circle.iter().any(|other| top(other) != top(module))
        {
            found.entry(circle.iter().cloned().collect()).or_insert(circle);
        }
    }
    found.into_values().collect()
}

/// The shortest way from a module back to itself that leaves its top module if there is one that does.
fn circle_through(imports: &Imports, module: &str) -> Option<Vec<String>> {
    // Breadth first, by (module, whether the way has left the top module).
    let mut ways = vec![(vec![module.to_owned()], false)];
    let mut seen = BTreeSet::new();
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for (way, has_left) in ways {
            let last = way.last().expect("a way begins with its module");
            for next in imports.get(last).into_iter().flatten() {
                let has_left = has_left || top(next) != top(module);
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

fn top(module: &str) -> &str {
    module.split("::").next().unwrap_or_default()
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

    fn files(files: &[(&str, &str)]) -> BTreeMap<String, String> {
        files.iter().map(|(module, text)| ((*module).to_owned(), (*text).to_owned())).collect()
    }

    fn found(given: &[(&str, &str)]) -> Vec<Vec<String>> {
        circles(&imports(&files(given)))
    }

    #[test]
    fn a_circle_between_modules_is_found_whatever_way_it_takes() {
        let nested = ("a", "use crate::{\n    b::{One, Two as Other},\n    c,\n};\n");
        assert_eq!(found(&[nested, ("b", "use super::a::Thing;"), ("c", "")]), [["a", "b"]]);
        let through = [("a::x", "use crate::b;"), ("a::y", "use super::x;"), ("b", "fn f() { crate::a::y::g() }")];
        assert_eq!(found(&through), [["a::x", "b", "a::y"]]);
    }

    #[test]
    fn files_of_one_module_may_know_each_other_and_comments_know_nobody() {
        assert_eq!(found(&[("a::x", "use super::y;"), ("a::y", "use super::x;")]), [[""; 0]; 0]);
        assert_eq!(found(&[("a", "use crate::b;"), ("b", "/// See [`crate::a`].\nuse std::a;")]), [[""; 0]; 0]);
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
