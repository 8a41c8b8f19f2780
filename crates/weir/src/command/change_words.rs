//! Changes of resources, as commands print them.

use serde_json::Value;

/// One line for each change, and below it one for each member of a resource that stays.
pub(super) fn changes_in_words(changes: &[Value]) -> String {
    in_words(changes, &["changed"])
}

/// The same, with the members of all resources.
pub(super) fn members_in_words(changes: &[Value]) -> String {
    in_words(changes, &["changed", "created", "deleted"])
}

/// `with_members`: the actions whose members are told.
fn in_words(changes: &[Value], with_members: &[&str]) -> String {
    let mut text = String::new();
    for change in changes {
        let action = change["action"].as_str().unwrap_or_default();
        text.push_str(&format!("{action} {}\n", change["key"].as_str().unwrap_or_default()));
        for member in change["members"].as_array().into_iter().flatten() {
            let path = member["path"].as_str().unwrap_or_default();
            if !with_members.contains(&action) || matches!(path, "update_time" | "create_time") {
                continue;
            }
            let (before, after) = (&member["before"], &member["after"]);
            let value = match action {
                "created" => after.to_string(),
                "deleted" => before.to_string(),
                _ => format!("{before} -> {after}"),
            };
            text.push_str(&format!("  {path}: {value}\n"));
        }
    }
    if changes.is_empty() {
        text.push_str("no changes\n");
    }
    text
}
