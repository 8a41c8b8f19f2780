//! Individual resources as a store keeps them: a key, the JSON as written, and the revisions that created and changed it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The unique key of a resource: `routes/r1`, `consumers/jack/credentials/one`, `secrets/vault/1`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ResourceKey(Box<str>);

impl ResourceKey {
    pub fn new(list: &str, id: &str) -> ResourceKey {
        ResourceKey(format!("{list}/{id}").into())
    }

    /// `None` if the text has no id.
    pub fn parse(text: &str) -> Option<ResourceKey> {
        let (list, id) = text.split_once('/')?;
        (!list.is_empty() && !id.is_empty()).then(|| ResourceKey(text.into()))
    }

    /// The list it belongs to: `routes`; also `consumers` for a credential.
    pub fn list(&self) -> &str {
        self.0.split_once('/').map_or(&*self.0, |(list, _)| list)
    }

    /// The part after the list.
    pub fn id(&self) -> &str {
        self.0.split_once('/').map_or("", |(_, id)| id)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The consumer that a credential belongs to.
    pub fn consumer_of_credential(&self) -> Option<&str> {
        match self.list() {
            "consumers" => self.id().split_once("/credentials/").map(|(consumer, _)| consumer),
            _ => None,
        }
    }
}

impl fmt::Display for ResourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A resource as a store keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredResource {
    /// A JSON object.
    pub json: Arc<str>,
    /// The revision that created it.
    pub created: u64,
    /// The last revision that changed it.
    pub modified: u64,
    /// When it expires, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}

impl StoredResource {
    /// The JSON as a value; null if the text is not JSON, which does not occur in texts of a store.
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.json).unwrap_or_default()
    }
}

/// All resources of a store at a revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceSet {
    /// The revision of the last change; 0 before the first.
    pub revision: u64,
    pub all: BTreeMap<ResourceKey, StoredResource>,
}

/// Changes that are not in the set yet: the new resource, or `None` if it is deleted.
pub type PendingResources = BTreeMap<ResourceKey, Option<StoredResource>>;

/// The resources with the candidate's changes applied.
#[derive(Clone, Copy)]
pub struct ResourceView<'a> {
    pub set: &'a ResourceSet,
    pub pending: &'a PendingResources,
    /// The last revision, including the candidate's.
    pub revision: u64,
}

impl<'a> ResourceView<'a> {
    pub fn get(&self, key: &ResourceKey) -> Option<&'a StoredResource> {
        match self.pending.get(key) {
            Some(pending) => pending.as_ref(),
            None => self.set.all.get(key),
        }
    }

    /// The resources of a list, in the order of keys.
    pub fn list(&self, list: &str) -> Vec<(&'a ResourceKey, &'a StoredResource)> {
        self.below(&format!("{list}/"))
    }

    /// The resources whose keys have this prefix, in the order of keys.
    pub fn below(&self, prefix: &str) -> Vec<(&'a ResourceKey, &'a StoredResource)> {
        let from = ResourceKey(prefix.into());
        let of_set = self.set.all.range(from.clone()..).take_while(|(key, _)| key.0.starts_with(prefix));
        let mut found: Vec<_> = of_set.filter(|(key, _)| !self.pending.contains_key(key)).collect();
        let of_pending = self.pending.range(from..).take_while(|(key, _)| key.0.starts_with(prefix));
        let before = found.len();
        found.extend(of_pending.filter_map(|(key, pending)| Some((key, pending.as_ref()?))));
        if found.len() > before {
            found.sort_by_key(|(key, _)| *key);
        }
        found
    }
}

/// The author of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Author {
    /// The name of the key, or of the component that made the change.
    pub name: String,
    /// The client's address.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub address: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user_agent: String,
    /// The reason, in the author's words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// The effect of a revision on a resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceChange {
    pub key: ResourceKey,
    /// `None` if it was created.
    pub before: Option<StoredResource>,
    /// `None` if it was deleted.
    pub after: Option<StoredResource>,
}

/// An entry in the history of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevisionRecord {
    pub revision: u64,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    pub author: Author,
    pub changes: Vec<ResourceChange>,
}

impl RevisionRecord {
    /// Sets the revision that the store has assigned, in the record and its changes.
    pub(super) fn renumber(&mut self, revision: u64) {
        self.revision = revision;
        for change in &mut self.changes {
            if let Some(after) = &mut change.after {
                after.modified = revision;
                after.created = change.before.as_ref().map_or(revision, |before| before.created);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(json: &str) -> StoredResource {
        StoredResource { json: json.into(), created: 1, modified: 1, expires_ms: None }
    }

    #[test]
    fn keys_name_a_list_and_an_id() {
        let key = ResourceKey::parse("consumers/jack/credentials/one").expect("a key");
        assert_eq!((key.list(), key.id()), ("consumers", "jack/credentials/one"));
        assert_eq!(key.consumer_of_credential(), Some("jack"));
        assert_eq!(ResourceKey::new("secrets", "vault/1").as_str(), "secrets/vault/1");
        assert_eq!(ResourceKey::parse("routes"), None);
        assert_eq!(ResourceKey::parse("routes/"), None);
    }

    #[test]
    fn a_view_shows_what_is_being_tried() {
        let key = |text: &str| ResourceKey::parse(text).expect("a key");
        let all = ["routes/a", "routes/c", "services/s"].map(|text| (key(text), stored("{}"))).into();
        let set = ResourceSet { revision: 7, all };
        let pending = [(key("routes/b"), Some(stored("{\"b\":1}"))), (key("routes/c"), None)].into();
        let view = ResourceView { set: &set, pending: &pending, revision: 8 };
        let names: Vec<&str> = view.list("routes").iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(names, ["routes/a", "routes/b"]);
        assert_eq!(view.get(&key("routes/c")), None);
        assert_eq!(view.get(&key("routes/b")).map(|found| &*found.json), Some("{\"b\":1}"));
        assert_eq!(view.list("rout"), []);
    }
}
