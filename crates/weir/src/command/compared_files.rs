//! `weir diff BEFORE AFTER`: the resources and settings that two configuration files do not have in common. No node is asked.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};
use weir_control::admin::masked_members;
use weir_control::document::{CompleteDocument, Document, WrittenResource};
use weir_control::{Diagnostic, DocumentLoader, compile};

use super::change_words::changes_in_words;
use crate::exit::ExitFailure;
use crate::node::PLUGINS;
use crate::say::{self, say};

/// The name that a list and an id have together, such as `routes/orders`.
type ResourceName = (&'static str, String);

/// Prints what differs. Values of secrets are masked, and of the node's settings only the names are shown.
pub(super) fn compare_files(files: [&PathBuf; 2]) -> ExitCode {
    let [before, after] = files.map(read);
    let (before, after) = match (before, after) {
        (Ok(before), Ok(after)) => (before, after),
        (before, after) => {
            let faults = [before.err(), after.err()].into_iter().flatten().flatten();
            faults.for_each(|fault| say!("{fault}"));
            return ExitFailure::Configuration.into();
        }
    };
    let mut changes = differences(before.written_resources(), after.written_resources());
    changes.extend(changed_settings(&before, &after));
    let printed = say::print(changes_in_words(&changes).as_bytes());
    if changes.is_empty() { printed } else { ExitFailure::Configuration.into() }
}

/// A document that a node could serve.
fn read(file: &PathBuf) -> Result<CompleteDocument, Vec<Diagnostic>> {
    let document = DocumentLoader::of_file_directly(file).read()?.document;
    compile(&document, &PLUGINS, None)?;
    Ok(document)
}

/// The changes that make the first resources the second ones, as the Admin API shows them.
fn differences(before: Vec<WrittenResource>, after: Vec<WrittenResource>) -> Vec<Value> {
    let (mut before, mut after) = (before, after);
    let mut moved = reordered(&before, &after);
    // The id of a resource without one is its position, which an item that is inserted above changes.
    before.retain(|old| {
        let same = |new: &WrittenResource| !has_id(new) && new.list == old.list && new.value == old.value;
        let found = (!has_id(old)).then(|| after.iter().position(same)).flatten();
        found.map(|index| after.remove(index)).is_none()
    });
    let mut pairs: BTreeMap<ResourceName, [Option<WrittenResource>; 2]> = BTreeMap::new();
    for (side, resources) in [before, after].into_iter().enumerate() {
        for resource in resources {
            let name = (resource.list, resource.id.clone());
            pairs.entry(name).or_default()[side] = Some(resource);
        }
    }
    let changed = |((list, id), [before, after]): (ResourceName, [Option<WrittenResource>; 2])| {
        let action = match (&before, &after) {
            (None, _) => "created",
            (_, None) => "deleted",
            _ => "changed",
        };
        let members = masked_members(list, before.as_ref(), after.as_ref());
        (!members.is_empty()).then(|| json!({ "key": format!("{list}/{id}"), "action": action, "members": members }))
    };
    let mut changes: Vec<Value> = pairs.into_iter().filter_map(changed).collect();
    changes.append(&mut moved);
    changes
}

fn has_id(resource: &WrittenResource) -> bool {
    ["id", "username"].iter().any(|name| resource.value.get(name).is_some())
}

/// The lists in which the order counts and is another one: of two routes for the same requests, the first takes them.
fn reordered(before: &[WrittenResource], after: &[WrittenResource]) -> Vec<Value> {
    let name = |one: &WrittenResource| if has_id(one) { one.id.clone() } else { one.value.to_string() };
    let names = |all: &[WrittenResource], list: &str| -> Vec<String> {
        all.iter().filter(|one| one.list == list).map(name).collect()
    };
    let is_reordered = |list: &&str| {
        let (before, after) = (names(before, list), names(after, list));
        let kept = |one: &[String], other: &[String]| -> Vec<String> {
            let other: HashSet<&String> = other.iter().collect();
            one.iter().filter(|name| other.contains(name)).cloned().collect()
        };
        kept(&before, &after) != kept(&after, &before)
    };
    let lists = ["routes", "stream_routes"].into_iter().filter(is_reordered);
    lists.map(|list| json!({ "key": format!("the order of {list}"), "action": "changed" })).collect()
}

/// One change for each setting of the node that differs, without its values: some are secret.
fn changed_settings(before: &Document, after: &Document) -> Vec<Value> {
    let settings = |document: &Document| document.written_settings().map(|tree| tree.to_json()).unwrap_or_default();
    let (before, after) = (settings(before), settings(after));
    let maps = [&before, &after].map(|settings| settings.as_object().cloned().unwrap_or_default());
    let mut names: Vec<&String> = maps.iter().flat_map(|map| map.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let differs = |name: &&String| before.get(name) != after.get(name);
    names
        .into_iter()
        .filter(differs)
        .map(|name| json!({ "key": format!("setting {name}"), "action": "changed" }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(text: &str) -> Vec<WrittenResource> {
        let head = "listen: [\"127.0.0.1:0\"]\n";
        let document = weir_control::document::WrittenDocument::parse(
            "weir.yaml",
            &format!("{head}{text}"),
            &|_| None,
            weir_control::text::yaml::TextLimits::default(),
        );
        document.expect("YAML").written_resources()
    }

    #[test]
    fn differences_do_not_come_from_positions() {
        let before = "routes: [{ uri: /a }, { uri: /b }, { id: c, uri: /c }]";
        let after = "routes: [{ uri: /new }, { uri: /a }, { uri: /b }, { id: c, uri: /d }]";
        let told = changes_in_words(&differences(resources(before), resources(after)));
        assert_eq!(told, "created routes/arr_1\nchanged routes/c\n  uri: \"/c\" -> \"/d\"\n");
        assert_eq!(changes_in_words(&differences(resources(after), resources(after))), "no changes\n");
        let turned = "routes: [{ id: c, uri: /d }, { uri: /new }, { uri: /a }, { uri: /b }]";
        let told = changes_in_words(&differences(resources(after), resources(turned)));
        assert_eq!(told, "changed the order of routes\n");
    }

    #[test]
    fn differences_do_not_show_values_of_the_environment() {
        let of = |text: &str| {
            let text =
                format!("listen: [\"127.0.0.1:0\"]\nroutes: [{{ id: a, uri: /a, desc: '{text} ${{{{TOKEN}}}}' }}]\n");
            let document = weir_control::document::WrittenDocument::parse(
                "weir.yaml",
                &text,
                &|name| (name == "TOKEN").then(|| "sesame".to_owned()),
                weir_control::text::yaml::TextLimits::default(),
            );
            document.expect("YAML").written_resources()
        };
        let told = changes_in_words(&differences(of("one"), of("two")));
        assert_eq!(told, "changed routes/a\n  desc: \"***\" -> \"***\"\n");
    }
}
