//! Individual resources as a store keeps them: a key, the JSON as written, and the revisions that created and changed it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The end of a text that stands for a value that is not UTF-8. No JSON ends like this.
const NOT_UTF8: char = char::REPLACEMENT_CHARACTER;

/// The unique key of a resource: `routes/r1`, `consumers/jack/credentials/one`, `secrets/vault/1`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ResourceKey(Arc<str>);

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
    /// A JSON object, unless another writer of a shared store has written something else.
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
    /// The JSON as a value; null if the text is not JSON (see [`StoredResource::fault`]).
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.json).unwrap_or_default()
    }

    /// Why the text is not JSON, with line and column. Only writers other than Weir store such texts. The text itself is not quoted,
    /// since secrets in it cannot be told from the rest.
    pub fn fault(&self) -> Option<String> {
        if let Some(text) = self.json.strip_suffix(NOT_UTF8) {
            let line = text.split('\n').count();
            let column = text.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
            return Some(format!("the value in the store is not UTF-8 text, at line {line} column {column}"));
        }
        let fault = serde_json::from_str::<IgnoredAny>(&self.json).err()?;
        Some(format!("the value in the store is not JSON: {fault}"))
    }

    /// The text of a resource. Of a value that is not UTF-8, the part before the fault is kept, with a mark at its end.
    pub fn text_of(value: Vec<u8>) -> String {
        String::from_utf8(value).unwrap_or_else(|error| {
            let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            format!("{}{NOT_UTF8}", String::from_utf8_lossy(valid))
        })
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

    /// The credentials of a consumer; none if the key is not that of a consumer.
    pub fn credentials(&self, key: &ResourceKey) -> Vec<ResourceKey> {
        if key.list() != "consumers" || key.consumer_of_credential().is_some() {
            return Vec::new();
        }
        self.below(&format!("{key}/credentials/")).into_iter().map(|(key, _)| key.clone()).collect()
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
    /// About the bytes that it takes.
    pub(super) fn bytes(&self) -> u64 {
        let of = |change: &ResourceChange| {
            let both = [&change.before, &change.after].into_iter().flatten();
            both.map(|resource| resource.json.len()).sum::<usize>() + change.key.as_str().len()
        };
        self.changes.iter().map(of).sum::<usize>() as u64
    }

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
    fn a_text_that_is_no_json_says_where() {
        let fault = |value: &[u8]| {
            let json = StoredResource::text_of(value.to_vec()).into();
            StoredResource { json, created: 1, modified: 1, expires_ms: None }.fault()
        };
        assert_eq!(fault(br#"{"uri": "/"}"#), None);
        let of = |value: &[u8]| fault(value).expect("it is no JSON");
        assert_eq!(of(b"no JSON"), "the value in the store is not JSON: expected ident at line 1 column 2");
        assert_eq!(of(b"{\n  \"uri\": /a }"), "the value in the store is not JSON: expected value at line 2 column 10");
        assert_eq!(of(b""), "the value in the store is not JSON: EOF while parsing a value at line 1 column 0");
        assert_eq!(of(b"{\n\"a\": \"\xff\"}"), "the value in the store is not UTF-8 text, at line 2 column 7");
        assert_eq!(of(b"{}\xff"), "the value in the store is not UTF-8 text, at line 1 column 3");
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
