//! Reads resources from files in the format of `weir run`, by key.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use weir_control::document::RESOURCE_LISTS;
use weir_control::stores::resources::ResourceKey;
use weir_control::text::yaml::{self, TextLimits};
use weir_control::{Diagnostic, process_environment};

/// The lists of resources, which are the only keys allowed in such a file: those that the Admin API answers for.
pub fn lists() -> impl Iterator<Item = &'static str> {
    RESOURCE_LISTS.iter().copied()
}

/// Reads the resources of files, and of all .yaml, .yml and .json files in directories and below.
///
/// # Errors
/// The faults of a file, one per line.
pub fn read(paths: &[PathBuf]) -> Result<BTreeMap<ResourceKey, Value>, String> {
    let mut files = Vec::new();
    for path in paths {
        super::check::add_files(path, &mut files)
            .map_err(|error| format!("{}: cannot be read: {error}", path.display()))?;
    }
    if files.is_empty() {
        return Err("no file: the directories contain no .yaml, .yml or .json file".to_owned());
    }
    let mut resources = BTreeMap::new();
    for file in &files {
        add_file(file, &mut resources)?;
    }
    Ok(resources)
}

/// Reads a file that contains a single resource.
///
/// # Errors
/// Like [`read`].
pub fn one(file: &Path) -> Result<Value, String> {
    match parsed(file)? {
        value @ Value::Object(_) => Ok(value),
        _ => Err(format!("{}: is not a map", file.display())),
    }
}

fn add_file(file: &Path, resources: &mut BTreeMap<ResourceKey, Value>) -> Result<(), String> {
    let told = |problem: String| format!("{}: {problem}", file.display());
    let Value::Object(members) = parsed(file)? else { return Ok(()) };
    if let Some(other) = members.keys().find(|key| !lists().any(|list| list == key.as_str())) {
        return Err(told(format!(
            "`{other}` is not a list of resources; settings of a node belong in the node's own file"
        )));
    }
    for (key, value) in of_lists(members).map_err(told)? {
        if resources.insert(key.clone(), value).is_some() {
            return Err(told(format!("`{key}` is defined twice")));
        }
    }
    Ok(())
}

fn parsed(file: &Path) -> Result<Value, String> {
    let name = if file == Path::new("-") { Path::new("/dev/stdin") } else { file };
    let text = fs::read_to_string(name).map_err(|error| format!("{}: cannot be read: {error}", file.display()))?;
    let source = file.display().to_string().into();
    let lines = |faults: &[Diagnostic]| faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let parsed = yaml::parse(&source, &text, &process_environment, TextLimits::default());
    let parsed = parsed.map_err(|faults| lines(&faults))?;
    match parsed.faults.is_empty() {
        true => Ok(parsed.tree.to_json()),
        false => Err(lines(&parsed.faults)),
    }
}

/// # Errors
/// If an item has no id.
fn of_lists(members: Map<String, Value>) -> Result<Vec<(ResourceKey, Value)>, String> {
    let mut found = Vec::new();
    for (list, items) in members {
        let Value::Array(items) = items else {
            match items {
                Value::Null => continue,
                _ => return Err(format!("`{list}` is not a list")),
            }
        };
        for (index, item) in items.into_iter().enumerate() {
            let key = key_of(&list, &item).ok_or_else(|| {
                let member = if list == "consumers" { "username" } else { "id" };
                format!("{list}[{index}] has no `{member}`, which identifies the resource")
            })?;
            found.push((key, item));
        }
    }
    Ok(found)
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
        let keys: Vec<&str> = found.keys().map(ResourceKey::as_str).collect();
        assert_eq!(keys, ["consumers/jack", "consumers/jack/credentials/one", "routes/7", "secrets/vault/1"]);
        for (text, expected) in [
            ("listen: [\":80\"]\n", "`listen` is not a list of resources"),
            ("routes: [{ uri: /a }]\n", "routes[0] has no `id`"),
            ("routes: 1\n", "`routes` is not a list"),
            ("routes: [\n", "c.yaml:"),
        ] {
            let file = directory.write("c.yaml", text);
            let problem = read(&[file]).expect_err("it is refused");
            assert!(problem.contains(expected), "{problem}");
        }
    }
}
