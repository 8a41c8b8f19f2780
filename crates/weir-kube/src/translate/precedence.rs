//! Which of several objects comes first.

use std::cmp::Ordering;

use crate::objects::meta::ObjectMeta;

/// The order in which conflicts are decided: the oldest first, then by namespace and name.
pub(super) fn precedence(one: &ObjectMeta, other: &ObjectMeta) -> Ordering {
    fn key(metadata: &ObjectMeta) -> (&str, &str, &str) {
        (&metadata.creation_timestamp, &metadata.namespace, &metadata.name)
    }
    key(one).cmp(&key(other))
}
