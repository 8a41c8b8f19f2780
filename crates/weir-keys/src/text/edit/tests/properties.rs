//! Edits of the YAML and JSON files of this repository, and of generated ones.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::super::operation::{index_of, pointer};
use super::*;
use crate::text::tree::{NodeKind, TreeNode};

/// The files of a folder and below it whose names end so.
fn files(folder: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).expect("it is a folder");
    let mut entries: Vec<PathBuf> = entries.map(|entry| entry.expect("it is read").path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().expect("it has a name").to_string_lossy().into_owned();
        let is_left_out = name.starts_with('.') || ["target", "node_modules", "corpus"].contains(&name.as_str());
        if path.is_dir() && !is_left_out {
            files(&path, endings, found);
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(path);
        }
    }
}

/// The texts of the repository that are one document: files, and the blocks of its documentation.
fn texts() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut paths, mut pages) = (Vec::new(), Vec::new());
    files(&root, &[".yaml", ".yml", ".json"], &mut paths);
    files(&root, &[".md"], &mut pages);
    let read = |path: &PathBuf| std::fs::read_to_string(path).expect("it is a text");
    let mut texts: Vec<(String, String)> = paths.iter().map(|path| (path.display().to_string(), read(path))).collect();
    for path in pages {
        for (number, block) in read(&path).split("```yaml").skip(1).enumerate() {
            let block = block.split_once('\n').map_or("", |(_, rest)| rest);
            let block = block.split("```").next().unwrap_or_default();
            texts.push((format!("{} {number}", path.display()), block.to_owned()));
        }
    }
    texts.retain(|(_, text)| {
        text.len() < 200_000 && tree(text).is_some_and(|tree| matches!(tree.kind, NodeKind::Map(_)))
    });
    texts
}

fn tree(text: &str) -> Option<TreeNode> {
    let source = "f".into();
    let parsed = yaml::parse(&source, &masked(&source, text).ok()?, &|_| None, TextLimits::default()).ok()?;
    parsed.faults.is_empty().then_some(parsed.tree)
}

/// A small generator, the same in each run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// All places below a value, as steps.
fn places(node: &TreeNode, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    let below: Vec<(String, &TreeNode)> = match &node.kind {
        NodeKind::List(items) => items.iter().enumerate().map(|(at, item)| (at.to_string(), item)).collect(),
        NodeKind::Map(entries) => entries.iter().map(|entry| (entry.key.to_string(), &entry.value)).collect(),
        _ => Vec::new(),
    };
    for (step, value) in below {
        path.push(step);
        found.push(path.clone());
        places(value, path, found);
        path.pop();
    }
}

fn some_value(chance: &mut Chance) -> Value {
    let values = [
        json!("text"),
        json!(7),
        json!(true),
        json!(null),
        json!({}),
        json!([]),
        json!("a: b # c"),
        json!(["x", "y"]),
        json!({ "k": "v", "list": [1, { "deep": [] }] }),
        json!("one\ntwo\n"),
        json!([{ "id": 1, "uri": "/é" }]),
        json!(-1.5),
        json!(""),
    ];
    values[chance.below(values.len())].clone()
}

/// One operation on a place, and the lines, from 1, that it may change: those from the first to before the second.
fn some_edit(tree: &TreeNode, path: &[String], chance: &mut Chance) -> (EditOperation, (u32, u32)) {
    let (last, above) = path.split_last().expect("it is below the root");
    let (mut parent, mut begin) = (tree, 1);
    for step in above {
        (parent, begin) = match &parent.kind {
            NodeKind::List(items) => {
                let index = index_of(step).expect("it is a list");
                (&items[index], index.checked_sub(1).map_or(begin, |before| items[before].end.line))
            }
            _ => {
                let entry = parent.entry(step).expect("it is there");
                (&entry.value, entry.key_place.line)
            }
        };
    }
    let whole = (begin, parent.end.line + 1);
    let (own, own_lines) = match &parent.kind {
        NodeKind::List(items) => {
            let index = index_of(last).expect("it is a list");
            // The dash may stand in a line above the value.
            let from = index.checked_sub(1).map_or(begin, |before| items[before].end.line);
            (&items[index], (from, items[index].end.line + 1))
        }
        _ => {
            let entry = parent.entry(last).expect("it is there");
            (&entry.value, (entry.key_place.line, entry.value.end.line.max(entry.key_end.line) + 1))
        }
    };
    let value = some_value(chance);
    let (all, list) = (pointer(path), pointer(above));
    let is_only = match &parent.kind {
        NodeKind::List(items) => items.len() == 1,
        NodeKind::Map(entries) => entries.len() == 1,
        _ => false,
    };
    let count = if let NodeKind::List(items) = &parent.kind { items.len() } else { 0 };
    match (chance.below(5), &own.kind) {
        (0, _) if is_only => (remove(&all), whole),
        // The comma before, in brackets; and what follows the first key behind a dash takes its place there.
        (0, _) => (remove(&all), (own_lines.0.max(2) - 1, own_lines.1 + u32::from(own_lines.0 == parent.place.line))),
        (1, _) if count > 0 => (add(&format!("{list}/{}", chance.below(count + 1)), value), whole),
        (2, _) if count > 1 => (shift(&all, &format!("{list}/{}", chance.below(count))), whole),
        (1 | 2, _) if count == 0 => (add(&format!("{list}/new key"), value), whole),
        (3, NodeKind::Map(_)) => (add(&format!("{all}/new"), value), own_lines),
        (3, NodeKind::List(_)) => (add(&format!("{all}/-"), value), own_lines),
        _ => (operation(json!({ "op": "replace", "path": all, "value": value })), own_lines),
    }
}

/// Whether two texts are the same before a line and from another line on.
fn is_same_around(old: &str, new: &str, (from, to): (u32, u32)) -> bool {
    let lines: Vec<&str> = old.split_inclusive('\n').collect();
    let (from, to) = ((from.max(1) as usize - 1).min(lines.len()), (to as usize - 1).min(lines.len()));
    new.starts_with(lines[..from].concat().trim_end()) && new.ends_with(&lines[to..].concat())
}

/// Refusals that are as they should be: of values that others share, or that are not written where they are.
const REFUSALS: [&str; 4] = ["alias", "anchor", "<<", "in the line of another"];

fn check(name: &str, text: &str, seed: usize) -> bool {
    let chance = &mut Chance(seed as u64);
    let before = tree(text).expect("it is YAML");
    let mut all = Vec::new();
    places(&before, &mut Vec::new(), &mut all);
    if all.is_empty() {
        return false;
    }
    let path = all[chance.below(all.len())].clone();
    let (operation, (from, to)) = some_edit(&before, &path, chance);
    let result = match edit(&"f".into(), text, std::slice::from_ref(&operation), &mut EditBudget::default()) {
        Ok(result) => result,
        Err(faults) => {
            let told = faults.iter().map(Diagnostic::to_string).collect::<String>();
            assert!(REFUSALS.iter().any(|known| told.contains(known)), "{name}: {operation:?}: {told}\n{text}");
            return false;
        }
    };
    let mut expected = before.to_json();
    let steps = operation.steps(&expected).expect("it has been done");
    steps.iter().for_each(|step| step.apply(&mut expected));
    let is_same = tree(&result).map(|tree| tree.to_json()) == Some(expected);
    assert!(is_same, "{name}: {operation:?} gives\n{result}");
    // An alias has the places of its anchor.
    let is_within = text.contains(" *") || is_same_around(text, &result, (from, to));
    assert!(is_within, "{name}: {operation:?} may change {from} to {to}:\n{result}");
    // A text that ends with a line end needs one behind it, also at the end of the file.
    let needs_end = matches!(&operation, EditOperation::Add { value: Value::String(text), .. }
        | EditOperation::Replace { value: Value::String(text), .. } if text.ends_with('\n'));
    let has_end = result.ends_with('\n');
    assert!(has_end == text.ends_with('\n') || has_end && needs_end, "{name}: {operation:?}: the last line end");
    assert_eq!(text.contains("\r\n"), result.contains("\r\n"), "{name}: {operation:?}: line ends");
    true
}

#[test]
fn an_edit_of_a_file_changes_only_the_lines_concerned() {
    let texts = texts();
    let rounds: usize = std::env::var("WEIR_EDIT_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let mut edits = 0;
    for (index, (name, text)) in texts.iter().enumerate() {
        for round in 0..rounds {
            edits += usize::from(check(name, text, index * 1_000 + round));
        }
        let windows = text.replace("\r\n", "\n").replace('\n', "\r\n");
        edits += usize::from(check(name, &windows, index * 1_000 + 500));
        edits += usize::from(check(name, text.trim_end(), index * 1_000 + 501));
    }
    assert!(texts.len() >= 300 && edits > texts.len() * 2, "{edits} edits of {} files", texts.len());
}

/// A value in another style of YAML.
fn written(value: &Value, column: usize, chance: &mut Chance) -> String {
    let comment = if chance.below(4) == 0 { "  # a comment: {" } else { "" };
    let indent = " ".repeat(column);
    match value {
        Value::Object(members) if !members.is_empty() && chance.below(4) > 0 => {
            let pairs = members.iter().map(|(key, value)| {
                let above = if chance.below(5) == 0 { format!("{indent}# about - it\n") } else { String::new() };
                format!(
                    "{above}{indent}{}:{}",
                    json!(key),
                    behind(value, column + 1 + chance.below(3), comment, chance)
                )
            });
            pairs.collect()
        }
        Value::Array(items) if !items.is_empty() && chance.below(4) > 0 => {
            let lines = items.iter().map(|item| format!("{indent}-{}", behind(item, column + 2, comment, chance)));
            lines.collect()
        }
        value => format!("{indent}{value}{comment}\n"),
    }
}

fn behind(value: &Value, column: usize, comment: &str, chance: &mut Chance) -> String {
    match value {
        Value::Object(members) if !members.is_empty() => format!("{comment}\n{}", written(value, column, chance)),
        Value::Array(items) if !items.is_empty() => format!("{comment}\n{}", written(value, column, chance)),
        Value::String(text) if !text.contains('\'') && !text.chars().any(char::is_control) && chance.below(2) == 0 => {
            format!(" '{text}'{comment}\n")
        }
        value => format!(" {value}{comment}\n"),
    }
}

fn generated(depth: usize, chance: &mut Chance) -> Value {
    let keys = ["a", "b c", "é", "key-auth", "80", "h:1", "x/y", "~"];
    match chance.below(if depth == 0 { 3 } else { 6 }) {
        0 => json!(chance.below(100)),
        1 => some_value(chance),
        2 => json!(["", "plain", "# no", "- x", "a\nb", "ünï"][chance.below(6)]),
        3 => Value::Array((0..chance.below(5)).map(|_| generated(depth - 1, chance)).collect()),
        _ => Value::Object(
            (0..chance.below(6)).map(|_| (keys[chance.below(8)].to_owned(), generated(depth - 1, chance))).collect(),
        ),
    }
}

#[test]
fn an_edit_of_a_generated_text_changes_only_the_lines_concerned() {
    let mut edits = 0;
    for seed in 0..2_000 {
        let chance = &mut Chance(seed);
        let value = json!({ "top": generated(4, chance), "next": generated(3, chance) });
        let text = written(&value, 0, chance);
        assert_eq!(tree(&text).map(|tree| tree.to_json()), Some(value), "{text}");
        edits += usize::from(check(&format!("generated {seed}"), &text, seed as usize));
    }
    assert!(edits > 1_900, "{edits}");
}

/// The values of a text without parts, with their places.
fn singles<'t>(node: &'t TreeNode, found: &mut Vec<&'t TreeNode>) {
    match &node.kind {
        NodeKind::List(items) => items.iter().for_each(|item| singles(item, found)),
        NodeKind::Map(entries) => entries.iter().for_each(|entry| singles(&entry.value, found)),
        NodeKind::Null => {}
        _ => found.push(node),
    }
}

#[test]
fn each_scalar_of_a_file_is_found_at_its_place() {
    let mut count = 0;
    for (name, text) in texts() {
        let tree = tree(&text).expect("it is YAML");
        let Ok(scalars) = WrittenScalars::of(&"f".into(), &text) else { panic!("{name}") };
        let masked = masked(&"f".into(), &text).expect("it has no faults");
        let mut all = Vec::new();
        singles(&tree, &mut all);
        for one in all {
            let range = scalars.at(&text, one.place).unwrap_or_else(|| panic!("{name}: {one:?}"));
            let own = format!("a: {}\n", &masked[range]);
            let Some(again) = self::tree(&own) else { continue };
            // The lines of a text over several lines have the indentation of the file.
            if !own.trim_end().contains('\n') {
                assert_eq!(again.entry("a").map(|entry| entry.value.to_json()), Some(one.to_json()), "{name}");
                count += 1;
            }
        }
    }
    assert!(count > 10_000, "{count}");
}
