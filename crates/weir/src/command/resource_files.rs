//! Reads resources from files in the format of `weir run`, by key.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use weir_control::document::RESOURCE_LISTS;
use weir_control::stores::resources::ResourceKey;
use weir_control::text::foreign::foreign_key;
use weir_control::text::tree::{MapEntry, NodeKind, TextPosition, TreeNode};
use weir_control::text::yaml::{self, Parsed, TextLimits};
use weir_control::{Diagnostic, process_environment};

use crate::say::say;

/// The resources of files, by key.
pub(crate) struct ResourceFiles(BTreeMap<ResourceKey, FileResource>);

struct FileResource {
    value: Value,
    source: Arc<str>,
    tree: TreeNode,
}

impl ResourceFiles {
    pub(crate) fn values(&self) -> BTreeMap<ResourceKey, Value> {
        self.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ResourceKey, &Value)> {
        self.0.iter().map(|(key, resource)| (key, &resource.value))
    }

    pub(crate) fn contains(&self, key: &ResourceKey) -> bool {
        self.0.contains_key(key)
    }

    /// A finding about a resource, whose path begins with its key as in `routes/r: uri`, with the place in the file.
    pub(crate) fn placed(&self, finding: Diagnostic) -> Diagnostic {
        match self.place_of(&finding.path) {
            Some((source, place)) => Diagnostic { source, ..finding }.placed(place),
            None => finding,
        }
    }

    /// The file and the position of a value, by a path such as `routes/r: uri`, or of the deepest part of it that is written.
    pub(crate) fn place_of(&self, path: &str) -> Option<(Arc<str>, TextPosition)> {
        let (key, rest) = path.split_once(": ").unwrap_or((path, ""));
        let resource = self.0.get(&ResourceKey::parse(key)?)?;
        Some((Arc::clone(&resource.source), resource.tree.place_of(rest)))
    }
}

/// The lists of resources, which are the only keys allowed in such a file: those that the Admin API answers for.
pub(crate) fn lists() -> impl Iterator<Item = &'static str> {
    RESOURCE_LISTS.iter().copied()
}

/// Reads the resources of files, and of all .yaml, .yml and .json files in directories and below.
///
/// # Errors
/// The faults of all files, one per line.
pub(crate) fn read(paths: &[PathBuf]) -> Result<ResourceFiles, String> {
    let mut files = Vec::new();
    for path in paths {
        super::check::add_files(path, &mut files)
            .map_err(|error| format!("{}: cannot be read: {error}", path.display()))?;
    }
    if files.is_empty() {
        return Err("no file: the directories contain no .yaml, .yml or .json file".to_owned());
    }
    let (mut resources, mut problems) = (BTreeMap::new(), Vec::new());
    for file in &files {
        match parsed(file) {
            Ok(parsed) => add_file(file, parsed.tree, &mut resources, &mut problems),
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() { Ok(ResourceFiles(resources)) } else { Err(problems.join("\n")) }
}

/// Reads a file that contains a single resource.
///
/// # Errors
/// Like [`read`].
pub(crate) fn one(file: &Path) -> Result<Value, String> {
    match parsed(file)?.tree.to_json() {
        value @ Value::Object(_) => Ok(value),
        _ => Err(format!("{}: is not a map; write the keys of the resource, such as `uri: /a`", file.display())),
    }
}

/// What a file of resources that is none should be.
const NO_MAP: &str = "resources stand in lists, such as `routes:`; `weir convert nginx FILE`, or `caddy`, converts the configuration of \
                      another gateway";

/// Adds the resources of a file, and says what is wrong with it.
fn add_file(
    file: &Path,
    tree: TreeNode,
    resources: &mut BTreeMap<ResourceKey, FileResource>,
    problems: &mut Vec<String>,
) {
    let source: Arc<str> = source_of(file).into();
    let mut fault = |place, problem: String, advice: &str| {
        problems.push(Diagnostic::at_place(&source, place, problem).advise(advice).to_string());
    };
    let NodeKind::Map(lists_of_file) = tree.kind else {
        return fault(tree.place, "is not a map".to_owned(), NO_MAP);
    };
    for MapEntry { key: list, key_place, value, .. } in lists_of_file {
        if !lists().any(|known| known == &*list) {
            let known: Vec<&str> = lists().chain(["listen"]).collect();
            let converted = foreign_key(&list, &known).filter(|advice| advice.contains("weir convert"));
            let advice = converted.as_deref().unwrap_or("write settings of a node in its own file");
            fault(key_place, format!("`{list}` is not a list of resources"), advice);
            continue;
        }
        let items = match value.kind {
            NodeKind::List(items) => items,
            NodeKind::Null => continue,
            _ => {
                fault(value.place, format!("`{list}` is not a list"), "begin each item with `- `");
                continue;
            }
        };
        for (index, item) in items.into_iter().enumerate() {
            let value = item.to_json();
            let Some(key) = key_of(&list, &value) else {
                let member = if &*list == "consumers" { "username" } else { "id" };
                let problem = format!("{list}[{index}] has no `{member}`, which identifies the resource");
                fault(item.place, problem, &format!("add one that stays: `{member}: NAME`"));
                continue;
            };
            if resources.contains_key(&key) {
                fault(item.place, format!("`{key}` is defined twice"), "remove or rename one of the two");
            }
            resources.insert(key, FileResource { value, source: Arc::clone(&source), tree: item });
        }
    }
}

fn source_of(file: &Path) -> String {
    file.display().to_string()
}

fn parsed(file: &Path) -> Result<Parsed, String> {
    let name = if file == Path::new("-") { Path::new("/dev/stdin") } else { file };
    let text = fs::read_to_string(name).map_err(|error| match name.is_dir() {
        true => format!("{}: is a directory; give the path of a file", file.display()),
        false => format!("{}: cannot be read: {error}", file.display()),
    })?;
    let source = source_of(file).into();
    let lines = |faults: &[Diagnostic]| faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let replaced = RefCell::new(BTreeSet::new());
    let lookup = |name: &str| {
        replaced.borrow_mut().insert(name.to_owned());
        process_environment(name)
    };
    let parsed = yaml::parse(&source, &text, &lookup, TextLimits::default());
    let parsed = parsed.map_err(|faults| lines(&faults))?;
    for name in replaced.take() {
        say!(
            "{source}: `${{{{{name}}}}}` is replaced by its value, which is what gets stored; `$env://{name}` stays a reference"
        );
    }
    match parsed.faults.is_empty() {
        true => Ok(parsed),
        false => Err(lines(&parsed.faults)),
    }
}

fn key_of(list: &str, item: &Value) -> Option<ResourceKey> {
    let text = |member: &str| match item.get(member)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let id = match list {
        "consumers" => text("username").or_else(|| text("id").filter(|id| id.contains("/credentials/")))?,
        _ => text("id")?,
    };
    ResourceKey::parse(&format!("{list}/{id}"))
}

#[cfg(test)]
mod tests {
    use weir_testkit::TempDir;

    use super::*;

    #[test]
    fn resources_are_found_by_their_keys() {
        let directory = TempDir::new();
        directory.write(
            "a.yaml",
            "routes: [{ id: 7, uri: /a }]\nconsumers:\n- username: jack\n- id: jack/credentials/one\n",
        );
        directory.write("b.json", "{\"secrets\": [{\"id\": \"vault/1\"}], \"upstreams\": null}");
        let found = read(&[directory.path().to_owned()]).expect("good files");
        let keys: Vec<&str> = found.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["consumers/jack", "consumers/jack/credentials/one", "routes/7", "secrets/vault/1"]);
        for (text, expected) in [
            ("listen: [\":80\"]\n", "`listen` is not a list of resources"),
            ("routes: [{ uri: /a }]\n", "c.yaml:1:10: routes[0] has no `id`, which identifies the resource; add one"),
            ("routes: [{ id: a }, {}]\nconsumers: [{}]\n", "c.yaml:1:21: routes[1] has no `id`"),
            ("routes: [{ id: a }, {}]\nconsumers: [{}]\n", "c.yaml:2:13: consumers[0] has no `username`"),
            ("routes: [{ id: a }, { id: a }]\n", "c.yaml:1:21: `routes/a` is defined twice"),
            ("routes: 1\n", "`routes` is not a list"),
            ("routes: [\n", "c.yaml:"),
            (
                "http { server { listen 80; } }\n",
                "c.yaml:1:1: is not a map; resources stand in lists, such as `routes:`",
            ),
            ("- a\n", "c.yaml:1:1: is not a map"),
            ("# nothing\n", "c.yaml: contains no configuration; write `routes: []` if this is intended"),
            (
                "_format_version: \"3.0\"\n",
                "c.yaml:1:1: `_format_version` is not a list of resources; `weir convert kong FILE`",
            ),
        ] {
            let file = directory.write("c.yaml", text);
            let problem = read(&[file]).err().expect("it is refused");
            assert!(problem.contains(expected), "{problem}");
        }
        for text in ["{}\n", "routes: []\n"] {
            let file = directory.write("c.yaml", text);
            assert!(read(&[file]).is_ok_and(|none| none.0.is_empty()), "{text}");
        }
    }
}
