//! Changes of resources, as commands print them.

use serde_json::Value;

/// One line for each change, and below it one for each member of a resource that stays.
pub(super) fn changes_in_words(changes: &[Value]) -> String {
    let mut text = String::new();
    for change in changes {
        let action = change["action"].as_str().unwrap_or_default();
        text.push_str(&format!("{action} {}\n", change["key"].as_str().unwrap_or_default()));
        for member in change["members"].as_array().into_iter().flatten() {
            let path = member["path"].as_str().unwrap_or_default();
            if action != "changed" || matches!(path, "update_time" | "create_time") {
                continue;
            }
            text.push_str(&format!("  {path}: {} -> {}\n", member["before"], member["after"]));
        }
    }
    if changes.is_empty() {
        text.push_str("no changes\n");
    }
    text
}
