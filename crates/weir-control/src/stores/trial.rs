//! A change that is tried: the resources as they would be. Beginning one copies nothing that is long, so that any thread can try a
//! change while others are made. A trial ends with [`ChangeTrial::commit`], on the thread that makes changes, or is dropped without a
//! trace.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::closed::{self, closed};
use super::live::{LiveResources, LiveState, ResourceEdit, exchanged, now_ms};
use super::read_lists::is_long;
use super::resources::{
    Author, PendingResources, ResourceChange, ResourceKey, ResourceSet, ResourceView, RevisionRecord, StoredResource,
};
use super::served_form::ServedForm;
use super::store::{CommitFailure, Substitute};
use crate::document::RESOURCE_LISTS;
use crate::document::lists::LongLists;
use crate::document::resource_access::ResourceAccess;
use crate::doubts::PutResource;
use crate::text::diagnostic::Diagnostic;
use crate::text::json;
use crate::text::tree::{MapEntry, NodeKind, TreeNode};

/// The resources of a store with a change that is not committed.
pub struct ChangeTrial {
    live: Arc<LiveResources>,
    set: Arc<ResourceSet>,
    pending: PendingResources,
    records: Vec<RevisionRecord>,
    form: ServedForm,
    /// Whether changes of other nodes are being published.
    follows: bool,
    /// The resources of the last document.
    names: ResourceNames,
}

/// The resources that the paths of a document stand for: `ssls[0]` for `ssls/a`, and `routes[r]` for `routes/r`.
#[derive(Clone, Debug, Default)]
pub(super) struct ResourceNames {
    /// The keys of the items of each short list, in order. Long lists have ids in place of indices.
    short: Arc<BTreeMap<&'static str, Vec<ResourceKey>>>,
}

impl ResourceNames {
    /// The same finding, with the key of its resource: `ssls[0].sni` of the document is `ssls/a: sni`.
    pub(super) fn name(&self, finding: Diagnostic) -> Diagnostic {
        // Other writers of a shared store may use ids with brackets, which are not told apart here.
        let found = self.resource_of(&finding.path, |_| true);
        found.map(|(key, rest)| of_resource(&finding, &key, rest)).unwrap_or(finding)
    }

    /// The resource at the start of a path of the document, and the rest of the path.
    fn resource_of<'p>(
        &self,
        path: &'p str,
        is_known: impl Fn(&ResourceKey) -> bool,
    ) -> Option<(ResourceKey, &'p str)> {
        let (list, rest) = path.split_once('[')?;
        if !is_long(list) {
            let (index, rest) = rest.split_once(']')?;
            return Some((self.short.get(list)?.get(index.parse::<usize>().ok()?)?.clone(), rest));
        }
        // Other writers of a shared store may use any id, even with brackets.
        let mut ends = rest.match_indices(']').map(|(end, _)| (ResourceKey::new(list, &rest[..end]), &rest[end + 1..]));
        ends.find(|(key, _)| is_known(key))
    }
}

/// A finding about a resource; `rest` is its path without the resource.
fn of_resource(finding: &Diagnostic, key: &ResourceKey, rest: &str) -> Diagnostic {
    let path = match rest.trim_start_matches('.') {
        "" => key.to_string(),
        rest => format!("{key}: {rest}"),
    };
    Diagnostic { path, line: None, column: None, ..finding.clone() }
}

/// The lists of resources for a document.
pub(super) struct DocumentLists {
    /// The short lists, as entries of the document's tree.
    pub(super) short: Vec<MapEntry>,
    pub(super) long: LongLists,
}

/// The faults of a candidate, by resource.
#[derive(Debug, Default)]
pub(super) struct SortedFaults {
    /// The faults of resources, by key.
    pub resources: BTreeMap<ResourceKey, Vec<Diagnostic>>,
    /// All other faults.
    pub other: Vec<Diagnostic>,
}

impl LiveResources {
    /// Begins a trial on the committed resources.
    pub(super) fn begin(self: &Arc<Self>) -> ChangeTrial {
        let state = self.state();
        ChangeTrial {
            live: Arc::clone(self),
            set: Arc::clone(&state.set),
            pending: PendingResources::new(),
            records: Vec::new(),
            form: state.form.clone(),
            follows: state.follows,
            names: ResourceNames::default(),
        }
    }
}

impl ChangeTrial {
    /// The revision that the trial would create, or the committed one if it changes nothing.
    pub(super) fn revision(&self) -> u64 {
        self.records.last().map_or(self.set.revision, |record| record.revision)
    }

    /// Whether resources are changed, by this node or by others.
    pub(super) fn is_change(&self) -> bool {
        self.follows || !self.records.is_empty()
    }

    /// Whether a resource is among those changed.
    pub(super) fn touches(&self, key: &ResourceKey) -> bool {
        self.pending.contains_key(key)
    }

    /// The resources, including the changes of the trial.
    pub(super) fn view(&self) -> ResourceView<'_> {
        ResourceView { set: &self.set, pending: &self.pending, revision: self.revision() }
    }

    pub(super) fn set_aside(&self) -> &BTreeMap<ResourceKey, Diagnostic> {
        &self.form.set_aside
    }

    /// Adds a revision. Edits that change nothing except times count as well, since they were requested.
    pub(super) fn stage(&mut self, edits: Vec<ResourceEdit>, author: Author) -> RevisionRecord {
        let revision = self.revision() + 1;
        let mut changes = Vec::new();
        for edit in edits {
            let (ResourceEdit::Put { key, .. } | ResourceEdit::Delete { key }) = &edit;
            let before = self.view().get(key).cloned();
            let after = match &edit {
                ResourceEdit::Put { value, expires_ms, .. } => Some(StoredResource {
                    json: value.to_string().into(),
                    // 0 if the store has lost it.
                    created: before.as_ref().map(|before| before.created).filter(|at| *at > 0).unwrap_or(revision),
                    modified: revision,
                    expires_ms: *expires_ms,
                }),
                ResourceEdit::Delete { .. } => None,
            };
            self.form.note_last_good(key, before.as_ref());
            self.pending.insert(key.clone(), after.clone());
            self.form.unread.insert(key.clone());
            changes.push(ResourceChange { key: key.clone(), before, after });
        }
        let record = RevisionRecord { revision, at_ms: now_ms(), author, changes };
        self.records.push(record.clone());
        record
    }

    /// Tries resources again that are set aside: the change, or something outside, may have added what they lacked.
    pub(super) fn retry_set_aside(&mut self) {
        let ServedForm { set_aside, instead, unread, last_good, .. } = &mut self.form;
        for key in std::mem::take(set_aside).into_keys() {
            if let Some(instead) = instead.remove(&key) {
                last_good.entry(key.clone()).or_insert(instead);
            }
            unread.insert(key);
        }
    }

    /// Sets these resources aside: what takes their places is served instead, or what comes next if that is faulty as well.
    pub(super) fn leave_out(&mut self, faulty: BTreeMap<ResourceKey, Diagnostic>) {
        for (key, fault) in faulty {
            let text = self.view().get(&key).map(|resource| Arc::clone(&resource.json)).unwrap_or_default();
            let mut substitutes = self.substitutes(&key, &text).into_iter();
            let ServedForm { set_aside, instead, unread, .. } = &mut self.form;
            unread.insert(key.clone());
            let next = match (set_aside.contains_key(&key), instead.remove(&key)) {
                (false, _) => substitutes.next(),
                (true, None) => None,
                (true, Some(faulty)) => substitutes.skip_while(|other| *other != faulty).find(|other| *other != faulty),
            };
            if let Some(next) = next {
                instead.insert(key.clone(), next);
            }
            set_aside.entry(key).or_insert_with_key(|key| self.live.store().told(key, &text, fault));
        }
    }

    /// What may be served in place of a resource with this text, the best first: its last good text or what the store says, and then a
    /// form that refuses what it is for.
    fn substitutes(&self, key: &ResourceKey, text: &str) -> Vec<Arc<str>> {
        let store = self.live.store();
        let good = self.form.last_good.get(key).filter(|_| self.set.all.contains_key(key));
        match store.substitute(key, text) {
            Substitute::Nothing => Vec::new(),
            Substitute::Text(substitute) => {
                let of_good = good.and_then(|good| match store.substitute(key, good) {
                    Substitute::Text(substitute) => Some(substitute),
                    Substitute::Last | Substitute::Nothing => None,
                });
                [Some(substitute), of_good].into_iter().flatten().collect()
            }
            Substitute::Last => {
                let closed = |text: &str| closed(key.list(), text, |service| self.hosts_of(service));
                let all =
                    [good.cloned(), closed(text).map(Arc::from), good.and_then(|good| closed(good)).map(Arc::from)];
                all.into_iter().flatten().collect()
            }
        }
    }

    /// What is served in place of a resource that is set aside, for messages.
    pub(super) fn stand_in(&self, key: &ResourceKey) -> &'static str {
        let store = self.live.store();
        let text = self.view().get(key).map(|resource| Arc::clone(&resource.json)).unwrap_or_default();
        let Some(instead) = self.form.instead.get(key) else { return closed::nothing(key.list()) };
        let is_of_store = matches!(store.substitute(key, &text), Substitute::Text(_));
        // A closed form of a closed form is the same.
        let is_closed = closed(key.list(), instead, |_| None).is_some_and(|closed| closed == **instead);
        match (is_of_store, is_closed) {
            (true, _) => "a form of it that does no more than refuse takes its place",
            (false, true) => closed::told(key.list()),
            (false, false) => "its last good version stays in use",
        }
    }

    /// The `hosts` of a service.
    fn hosts_of(&self, service: &str) -> Option<Value> {
        self.view().get(&ResourceKey::new("services", service))?.value().get("hosts").cloned()
    }

    /// Commits the changes to the store, if there are any, and what is served and set aside to the live resources. Returns the
    /// revision that the store has given the change. Only the thread that makes changes calls this.
    pub(super) fn commit(&mut self) -> Result<Option<u64>, CommitFailure> {
        let revision = match self.records.last().map(|record| record.revision) {
            None => None,
            Some(last) => Some((last, self.live.store().commit(&self.records)?)),
        };
        self.records.clear();
        // Otherwise the write below would copy the set.
        self.set = Arc::default();
        let mut state = self.live.state_mut();
        let before = std::mem::take(&mut state.form.set_aside);
        if let Some((last, revision)) = revision {
            state.take_committed(
                std::mem::take(&mut self.pending),
                last,
                revision,
                self.live.store().shared().is_some(),
            );
        }
        self.form.last_good.clear();
        state.form = std::mem::take(&mut self.form);
        state.follows = false;
        self.set = Arc::clone(&state.set);
        let is_repaired =
            |key: &&ResourceKey| !state.form.set_aside.contains_key(*key) && state.set.all.contains_key(*key);
        let repaired: Vec<_> = before.keys().filter(is_repaired).cloned().collect();
        drop(state);
        for resource in repaired {
            tracing::warn!(%resource, "a resource that was set aside can be served again");
        }
        Ok(revision.map(|(_, revision)| revision))
    }

    /// The lists for a document, without the resources that are set aside. Of long lists, only resources that may have changed
    /// are read again.
    pub(super) fn lists(&mut self, source: &Arc<str>, access: &Arc<ResourceAccess>) -> DocumentLists {
        let ServedForm { set_aside, instead, read, unread, .. } = &mut self.form;
        if read.set_access(access) {
            unread.extend(self.set.all.keys().chain(self.pending.keys()).cloned());
        }
        let view = ResourceView { set: &self.set, pending: &self.pending, revision: self.set.revision };
        for key in std::mem::take(unread).iter().filter(|key| is_long(key.list())) {
            let json = if set_aside.contains_key(key) {
                instead.get(key)
            } else {
                view.get(key).map(|resource| &resource.json)
            };
            read.set(source, key, json.map(|json| item(key, json)));
        }
        let (mut short, mut keys) = (Vec::new(), BTreeMap::new());
        for list in RESOURCE_LISTS.iter().copied().filter(|list| !is_long(list)) {
            let all = view.list(list).into_iter();
            let served: Vec<_> = all
                .filter_map(|(key, resource)| match set_aside.contains_key(key) {
                    true => Some((key, instead.get(key)?)),
                    false => Some((key, &resource.json)),
                })
                .collect();
            if served.is_empty() {
                continue;
            }
            let items = served.iter().map(|(key, json)| item(key, json)).collect();
            keys.insert(list, served.into_iter().map(|(key, _)| key.clone()).collect());
            let value = TreeNode::unplaced(NodeKind::List(items));
            short.push(MapEntry::unplaced(list, value));
        }
        self.names = ResourceNames { short: Arc::new(keys) };
        DocumentLists { short, long: read.lists() }
    }

    /// Assigns faults to resources: `routes[r1].uri` of the document is `uri` of `routes/r1`.
    pub(super) fn sort(&self, faults: &[Diagnostic]) -> SortedFaults {
        let mut sorted = SortedFaults::default();
        // Whether a text is JSON is looked at once for each resource: it may be long, and have many faults.
        let mut unreadable: BTreeMap<ResourceKey, Option<String>> = BTreeMap::new();
        for fault in faults {
            match self.names.resource_of(&fault.path, |key| self.view().get(key).is_some()) {
                Some((key, rest)) => {
                    let fault = of_resource(fault, &key, rest);
                    let known = sorted.resources.entry(key.clone()).or_default();
                    let of_text = || self.view().get(&key).and_then(StoredResource::fault);
                    match unreadable.entry(key.clone()).or_insert_with(of_text).clone() {
                        // This is the reason for all other faults of the resource.
                        Some(problem) => {
                            let advice = Some("write the resource as a JSON object".to_owned());
                            *known = vec![Diagnostic { path: key.to_string(), problem, advice, ..fault }];
                        }
                        None => known.push(fault),
                    }
                }
                None => sorted.other.push(fault.clone()),
            }
        }
        sorted
    }

    /// The resources of the last document.
    pub(super) fn names(&self) -> ResourceNames {
        self.names.clone()
    }

    /// The resources that are put there, by this change and those made together with it. What stands in for one that is set aside is
    /// not what its author has written.
    pub(super) fn put(&self) -> Vec<PutResource<'_>> {
        let served = self.pending.iter().filter(|(key, _)| !self.form.set_aside.contains_key(*key));
        let put = served.filter_map(|(key, resource)| Some((key, resource.as_ref()?)));
        put.map(|(key, resource)| PutResource { list: key.list(), id: key.id(), json: &resource.json }).collect()
    }
}

impl std::fmt::Debug for ChangeTrial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.pending.keys()).finish()
    }
}

impl LiveState {
    /// Takes changes over that were committed as `revision`; `last` is the number that the trial gave it.
    fn take_committed(&mut self, pending: PendingResources, last: u64, revision: u64, is_shared: bool) {
        let set = Arc::make_mut(&mut self.set);
        set.revision = revision;
        let number = |of_trial: &mut u64| {
            if *of_trial == last {
                *of_trial = revision;
            }
        };
        for (key, mut pending) in pending {
            if let Some(resource) = &mut pending {
                number(&mut resource.created);
                number(&mut resource.modified);
                // A shared store deletes expired resources itself.
                resource.expires_ms = resource.expires_ms.filter(|_| !is_shared);
            }
            let before = set.all.get(&key).map(|resource| resource.modified);
            self.content = exchanged(self.content, &key, before, pending.as_ref().map(|resource| resource.modified));
            match pending.as_ref().and_then(|resource| resource.expires_ms) {
                Some(at) => drop(self.expiring.insert(key.clone(), at)),
                None => drop(self.expiring.remove(&key)),
            }
            match pending {
                Some(resource) => drop(set.all.insert(key, resource)),
                None => drop(set.all.remove(&key)),
            }
        }
    }
}

impl SortedFaults {
    /// All faults, those of resources first.
    pub(super) fn into_all(self) -> Vec<Diagnostic> {
        self.resources.into_values().flatten().chain(self.other).collect()
    }

    /// Whether there are no faults but those of these resources.
    pub(super) fn are_only(&self, resources: &BTreeMap<ResourceKey, Diagnostic>) -> bool {
        self.other.is_empty() && self.resources.keys().all(|key| resources.contains_key(key))
    }

    /// All faults except those of these resources; all faults if there are no others.
    pub(super) fn into_all_but(mut self, resources: &BTreeMap<ResourceKey, Diagnostic>) -> Vec<Diagnostic> {
        if !self.are_only(resources) {
            self.resources.retain(|key, _| !resources.contains_key(key));
        }
        self.into_all()
    }
}

/// A resource as an item of a document, with its id.
fn item(key: &ResourceKey, text: &str) -> TreeNode {
    // A text that is not JSON is refused as a resource that is no map, and [`ChangeTrial::sort`] says why.
    let mut tree = json::tree(text).unwrap_or(TreeNode::unplaced(NodeKind::Null));
    let has_id = key.list() != "consumers" || key.consumer_of_credential().is_some();
    if let NodeKind::Map(entries) = &mut tree.kind
        && has_id
    {
        let value = TreeNode::unplaced(NodeKind::Text(key.id().into()));
        match entries.iter_mut().find(|entry| &*entry.key == "id") {
            Some(entry) => entry.value = value,
            None => entries.push(MapEntry::unplaced("id", value)),
        }
    }
    tree
}

#[cfg(test)]
mod tests;
