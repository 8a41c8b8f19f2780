//! The layout of keys: those of Apache APISIX below the prefix, those of Weir beside it, so that watches of resources are not
//! woken by keys of other purposes.
//!
//! ```text
//! /apisix/routes/r1              a resource, as the Admin API shows its value
//! /apisix.weir/history/TIME-NODE-RANDOM.BYTES a revision written by Weir
//! /apisix.weir/nodes/ID          a node that is alive, under a lease
//! /apisix.weir/puts, deletes     written with every change, to detect conflicting changes
//! ```

use crate::document::RESOURCE_LISTS;
use crate::stores::resources::{ResourceKey, RevisionRecord, StoredResource};

use super::wire::KeyValue;

/// The keys of one group of gateways.
#[derive(Clone, Debug)]
pub(super) struct KeyLayout {
    /// The prefix of the keys of resources, with a final slash.
    resources: String,
    own: String,
}

/// The end of the range of all keys with this prefix.
pub(super) fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    // The end of the range of all keys.
    vec![0]
}

impl KeyLayout {
    pub(super) fn new(prefix: &str) -> KeyLayout {
        let prefix = prefix.trim_end_matches('/');
        KeyLayout { resources: format!("{prefix}/"), own: format!("{prefix}.weir/") }
    }

    pub(super) fn resources(&self) -> &[u8] {
        self.resources.as_bytes()
    }

    pub(super) fn key(&self, key: &ResourceKey) -> Vec<u8> {
        format!("{}{key}", self.resources).into_bytes()
    }

    pub(super) fn history(&self) -> Vec<u8> {
        format!("{}history/", self.own).into_bytes()
    }

    /// Sorted by time, and unique to the node. It has the bytes of its value, so that a history is measured by its keys.
    pub(super) fn history_entry(&self, at_ms: u64, node: &str, bytes: u64) -> Vec<u8> {
        format!("{}history/{at_ms:016}-{node}-{:08x}.{bytes}", self.own, rand::random::<u32>()).into_bytes()
    }

    pub(super) fn nodes(&self) -> Vec<u8> {
        format!("{}nodes/", self.own).into_bytes()
    }

    pub(super) fn node(&self, id: &str) -> Vec<u8> {
        format!("{}nodes/{id}", self.own).into_bytes()
    }

    pub(super) fn puts(&self) -> Vec<u8> {
        format!("{}puts", self.own).into_bytes()
    }

    pub(super) fn deletes(&self) -> Vec<u8> {
        format!("{}deletes", self.own).into_bytes()
    }

    /// The resource that a key holds; `None` for other keys: APISIX's directory placeholders, its list of plugins, and what later
    /// versions may add.
    pub(super) fn resource_key(&self, key: &[u8]) -> Option<ResourceKey> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.resources)?;
        let key = ResourceKey::parse(rest)?;
        let has_depth = match (key.list(), key.id().split('/').count()) {
            ("consumers", parts) => parts == 1 || parts == 3 && key.consumer_of_credential().is_some(),
            ("secrets", parts) => parts == 2,
            (_, parts) => parts == 1,
        };
        (RESOURCE_LISTS.contains(&key.list()) && has_depth && !key.id().ends_with('/')).then_some(key)
    }

    /// A resource with its key. A value that is not JSON is refused when it is compiled.
    pub(super) fn resource(&self, entry: KeyValue) -> Option<(ResourceKey, StoredResource)> {
        let key = self.resource_key(&entry.key)?;
        let resource = StoredResource {
            json: StoredResource::text_of(entry.value).into(),
            created: entry.create_revision as u64,
            modified: entry.mod_revision as u64,
            expires_ms: None,
        };
        Some((key, resource))
    }
}

/// The bytes of the value of a history entry, as its key says; 0 for keys of Weir 0.1, which do not say it.
pub(super) fn entry_bytes(key: &[u8]) -> u64 {
    let bytes = |key: &[u8]| std::str::from_utf8(key).ok()?.rsplit_once('-')?.1.split_once('.')?.1.parse().ok();
    bytes(key).unwrap_or(0)
}

/// How many of these history entries, the oldest first, exceed the number or the bytes to keep. The latest one never does.
pub(super) fn surplus(entries: &[KeyValue], kept: u64, kept_bytes: u64) -> usize {
    let mut bytes = 0_u64;
    let fits = |(number, entry): &(usize, &KeyValue)| {
        bytes = bytes.saturating_add(entry_bytes(&entry.key));
        *number == 0 || (*number as u64) < kept && bytes <= kept_bytes
    };
    entries.len() - entries.iter().rev().enumerate().take_while(fits).count()
}

/// A record of the history, with the revision that etcd gave it.
pub(super) fn record(entry: &KeyValue) -> Option<RevisionRecord> {
    let mut record: RevisionRecord = serde_json::from_slice(&entry.value).ok()?;
    record.renumber(entry.create_revision as u64);
    Some(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_apisix() {
        let layout = KeyLayout::new("/apisix");
        let of = |key: &str| layout.resource_key(key.as_bytes()).map(|key| key.to_string());
        for (key, wanted) in [
            ("/apisix/routes/r1", Some("routes/r1")),
            ("/apisix/consumers/jack", Some("consumers/jack")),
            ("/apisix/consumers/jack/credentials/c1", Some("consumers/jack/credentials/c1")),
            ("/apisix/secrets/vault/1", Some("secrets/vault/1")),
            ("/apisix/plugin_metadata/http-logger", Some("plugin_metadata/http-logger")),
            ("/apisix/routes/", None),
            ("/apisix/plugins", None),
            ("/apisix/gen_id", None),
            ("/apisix/services/s1/graphql_cost_decorations/d1", None),
            ("/apisix.weir/nodes/a", None),
            ("/other/routes/r1", None),
        ] {
            assert_eq!(of(key).as_deref(), wanted, "{key}");
        }
        assert_eq!(layout.key(&ResourceKey::new("routes", "r1")), b"/apisix/routes/r1");
    }

    #[test]
    fn a_history_is_measured_by_its_keys() {
        let layout = KeyLayout::new("/apisix");
        let of = |key: Vec<u8>| KeyValue { key, ..KeyValue::default() };
        let sized = |bytes| of(layout.history_entry(5, "gateway-1.example-0000002a", bytes));
        assert_eq!(entry_bytes(&sized(1234).key), 1234);
        let unsized_key = b"/apisix.weir/history/0000000000000005-gateway-1.example-0000002a-01234567";
        assert_eq!(entry_bytes(unsized_key), 0, "a key of Weir 0.1");
        let all = [of(unsized_key.to_vec()), sized(10), sized(20), sized(30)];
        for (kept, kept_bytes, left) in
            [(10, 60, 4), (10, 59, 2), (10, 50, 2), (10, 49, 1), (10, 1, 1), (3, 60, 3), (1, 60, 1)]
        {
            assert_eq!(all.len() - surplus(&all, kept, kept_bytes), left, "{kept} {kept_bytes}");
        }
        assert_eq!(surplus(&[], 1, 1), 0);
    }

    #[test]
    fn a_range_ends_after_all_that_begin_so() {
        assert_eq!(end_of(b"/a/"), b"/a0");
        assert_eq!(end_of(&[b'a', 0xff]), b"b");
        assert_eq!(end_of(&[0xff]), [0]);
    }
}
