//! Which modules of a crate import from which, read from the text as rustfmt leaves it.

use std::collections::{BTreeMap, BTreeSet};

/// The modules of a crate, by path (`endpoint::pool`; the root is empty), with the modules each one imports.
pub(crate) type Imports = BTreeMap<String, BTreeSet<String>>;

/// What one file says of others.
pub(crate) struct Module {
    /// Without comments and ends of lines.
    code: String,
    /// What its `use` declarations bring into it, by name.
    uses: BTreeMap<String, String>,
}

impl Module {
    pub(crate) fn new(text: String) -> Module {
        let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default().trim());
        let code = lines.fold(String::new(), |code, line| code + line + " ");
        let mut imported = Vec::new();
        for (at, _) in code.match_indices("use ").filter(|(at, _)| !is_in_word(&code, *at)) {
            let tree = &code[at + "use ".len()..];
            expand("", &tree[..tree.find(';').unwrap_or_default()], &mut imported);
        }
        Module { code, uses: imported.into_iter().map(|(path, name)| (name, path)).collect() }
    }
}

/// The imports of all modules of a crate.
pub(crate) fn imports(modules: &BTreeMap<String, Module>) -> Imports {
    let of = |(name, module): (&String, &Module)| {
        let known = |path: &String| home(modules, name, path, 0).filter(|home| home != name && !home.is_empty());
        (name.clone(), paths(modules, name, module).iter().filter_map(known).collect())
    };
    modules.iter().map(of).collect()
}

/// The paths that lead to other modules, in `use` declarations and elsewhere.
fn paths(modules: &BTreeMap<String, Module>, name: &str, module: &Module) -> Vec<String> {
    let below = if name.is_empty() { String::new() } else { format!("{name}::") };
    let children = modules.keys().filter_map(|other| other.strip_prefix(&below)).filter(|rest| !rest.contains("::"));
    let mut found = Vec::new();
    for (start, prefix) in
        [("crate", ""), ("super", ""), ("self", "")].into_iter().chain(children.map(|child| (child, "self::")))
    {
        for (at, _) in module.code.match_indices(&format!("{start}::")).filter(|(at, _)| !is_in_word(&module.code, *at))
        {
            expand(prefix, &module.code[at..], &mut found);
        }
    }
    found.into_iter().map(|(path, _)| path).collect()
}

/// Whether the byte before belongs to the same word or path.
fn is_in_word(code: &str, at: usize) -> bool {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte == b':';
    code.as_bytes()[..at].last().is_some_and(is_word)
}

/// Appends the paths of a use tree at the beginning of `tree`, each with the name it gets; says how long it is.
fn expand(prefix: &str, tree: &str, found: &mut Vec<(String, String)>) -> usize {
    let is_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    let length = tree.find(|letter| !is_path(letter)).unwrap_or(tree.len());
    let path = format!("{prefix}{}", &tree[..length]);
    if !path.ends_with("::") || !tree[length..].starts_with('{') {
        let path = path.strip_suffix("::self").unwrap_or(&path).to_owned();
        let other_name = tree[length..].strip_prefix(" as ").and_then(|rest| rest.split([',', '}', ' ', ';']).next());
        let name = other_name.or(path.rsplit("::").next()).unwrap_or_default().to_owned();
        found.push((path, name));
        return length;
    }
    let mut at = length + 1;
    while at < tree.len() {
        match tree.as_bytes()[at] {
            b'}' => return at + 1,
            byte if is_path(char::from(byte)) => at += expand(&path, &tree[at..], found),
            // ` as name` ends with the next comma.
            b' ' if tree[at..].starts_with(" as ") => at += tree[at..].find([',', '}']).unwrap_or(1),
            _ => at += 1,
        }
    }
    at
}

/// The module in which what a path names is defined, seen from `module`: what a file only passes on (`pub use`) stands elsewhere.
fn home(modules: &BTreeMap<String, Module>, module: &str, path: &str, passed_on: usize) -> Option<String> {
    let mut at: Vec<&str> = module.split("::").filter(|name| !name.is_empty()).collect();
    let names: Vec<&str> = path.split("::").filter(|name| !name.is_empty()).collect();
    for (index, name) in names.iter().enumerate() {
        match *name {
            "crate" => at.clear(),
            "self" => {}
            "super" => {
                at.pop();
            }
            name if modules.contains_key(&[&at[..], &[name]].concat().join("::")) => at.push(name),
            name => {
                let here = at.join("::");
                let Some(target) = modules.get(&here)?.uses.get(name).filter(|_| passed_on < MOST_PASSES) else {
                    return Some(here);
                };
                let first = target.split("::").next().unwrap_or_default();
                let is_child = modules.contains_key(&[&at[..], &[first]].concat().join("::"));
                let prefix = match first {
                    "crate" | "self" | "super" => "",
                    _ if is_child => "self::",
                    _ => return None, // from another crate
                };
                let rest = [&[format!("{prefix}{target}").as_str()], &names[index + 1..]].concat().join("::");
                return home(modules, &here, &rest, passed_on + 1);
            }
        }
    }
    Some(at.join("::")).filter(|home| modules.contains_key(home))
}

/// Files that pass a name on to each other, at most.
const MOST_PASSES: usize = 8;

/// The part of a room that a module belongs to; nothing if it is not in the room, or is the room's own file.
pub(crate) fn part<'a>(room: &str, module: &'a str) -> Option<&'a str> {
    let inside = if room.is_empty() { module } else { module.strip_prefix(room)?.strip_prefix("::")? };
    inside.split("::").next().filter(|part| !part.is_empty())
}
