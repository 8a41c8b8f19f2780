//! Consumers as they were at earlier revisions: their labels decide who may see old changes of their credentials.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};

use super::keys::Caller;
use crate::stores::resources::{ResourceChange, ResourceKey, ResourceView, RevisionRecord, StoredResource};

/// Goes back in the history, from its latest revision on.
pub(super) struct PastConsumers<'a> {
    view: ResourceView<'a>,
    /// The consumers that have changed since the revision that was reached, as they were before; `None` if they did not exist.
    changed: BTreeMap<ResourceKey, Option<PastConsumer>>,
}

struct PastConsumer {
    /// The revision since which it was like this.
    since: u64,
    /// Of its members, only the labels.
    value: Value,
}

impl PastConsumer {
    fn of(resource: &StoredResource) -> PastConsumer {
        let labels = resource.value().get("labels").cloned().unwrap_or_default();
        PastConsumer { since: resource.modified, value: json!({ "labels": labels }) }
    }
}

impl<'a> PastConsumers<'a> {
    pub(super) fn of(view: ResourceView<'a>) -> PastConsumers<'a> {
        PastConsumers { view, changed: BTreeMap::new() }
    }

    /// Where to begin to read the history before revision `end`: for a caller with scopes at the latest revision.
    pub(super) fn first_before(&self, caller: &Caller, end: u64) -> u64 {
        if caller.scopes.is_empty() { end } else { u64::MAX }
    }

    /// The part of the next revision back that a caller may see; `None` if that is nothing.
    pub(super) fn seen(&mut self, caller: &Caller, mut record: RevisionRecord) -> Option<RevisionRecord> {
        if caller.scopes.is_empty() {
            return Some(record);
        }
        let is_consumer = |change: &&ResourceChange| {
            change.key.list() == "consumers" && change.key.consumer_of_credential().is_none()
        };
        let of_record = record.changes.iter().filter(is_consumer).map(|change| {
            let past = |resource: &Option<StoredResource>| resource.as_ref().map(PastConsumer::of);
            (change.key.clone(), (past(&change.before), past(&change.after)))
        });
        let of_record: HashMap<_, _> = of_record.collect();
        let value = |past: &Option<PastConsumer>| past.as_ref().map(|past| past.value.clone());
        let unchanged = |key: &ResourceKey| self.unchanged(key, record.revision);
        let before = |key: &ResourceKey| of_record.get(key).map_or_else(|| unchanged(key), |(before, _)| value(before));
        let after = |key: &ResourceKey| of_record.get(key).map_or_else(|| unchanged(key), |(_, after)| value(after));
        record.changes.retain(|change| caller.sees_change(change, before, after));
        self.changed.extend(of_record.into_iter().map(|(key, (before, _))| (key, before)));
        (!record.changes.is_empty()).then_some(record)
    }

    /// A consumer at a revision that did not change it. `None` if that is not known: other programs that write to a shared store
    /// leave no history.
    fn unchanged(&self, key: &ResourceKey, revision: u64) -> Option<Value> {
        let of_now = || self.view.get(key).map(PastConsumer::of);
        let known = |past: &PastConsumer| (past.since <= revision).then(|| past.value.clone());
        match self.changed.get(key) {
            Some(past) => past.as_ref().and_then(known),
            None => of_now().as_ref().and_then(known),
        }
    }
}
