//! Texts that stand for a value kept elsewhere.

use crate::text::read::NodeReader;

/// Whether a text is a reference to a value kept elsewhere.
pub(super) fn is_reference(text: &str) -> bool {
    ["$secret://", "$env://"]
        .iter()
        .any(|scheme| text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)))
}

/// A secret of the node's settings. They are read as they are written: a reference would itself be the secret.
pub(super) fn literal_secret<'t>(at: &NodeReader, text: &'t str) -> Option<&'t str> {
    if is_reference(text) {
        at.report_advising(
            "is a reference, and settings of the node have none",
            "write `${{NAME}}` for the value of the environment variable `NAME`",
        );
        return None;
    }
    Some(text)
}
