//! What becomes of a translation: the changes from the one before it.

use std::sync::Arc;

use tokio::sync::mpsc::UnboundedSender;
use weir_kube::DerivedResource;
use weir_kube::cluster::ResourceSink;

use super::CopiedChanges;
use crate::stores::mailbox::Mailbox;
use crate::stores::resources::{ResourceKey, ResourceSet, StoredResource};
use crate::stores::shared::OutsideChange;

/// Compares each translation with the last one, and leaves the changes in the mailbox.
pub(super) struct StoreSink {
    mailbox: Arc<Mailbox>,
    server: String,
    set: ResourceSet,
    copied: UnboundedSender<CopiedChanges>,
    has_published: bool,
}

impl StoreSink {
    /// `set` has the resources that the node knows already.
    pub(super) fn new(
        mailbox: Arc<Mailbox>,
        server: &str,
        set: ResourceSet,
        copied: UnboundedSender<CopiedChanges>,
    ) -> StoreSink {
        StoreSink { mailbox, server: server.to_owned(), set, copied, has_published: false }
    }

    /// What differs from the last translation, with the next revision.
    fn changes(&mut self, resources: &[DerivedResource]) -> Vec<(ResourceKey, Option<StoredResource>)> {
        let revision = self.set.revision + 1;
        let mut gone = std::mem::take(&mut self.set.all);
        let mut changes = Vec::new();
        for DerivedResource { kind, id, value, .. } in resources {
            let key = ResourceKey::new(kind.list(), id);
            let json = value.to_string();
            let resource = match gone.remove(&key) {
                Some(known) if *known.json == *json => known,
                known => {
                    let created = known.map_or(revision, |known| known.created);
                    let new = StoredResource { json: json.into(), created, modified: revision, expires_ms: None };
                    changes.push((key.clone(), Some(new.clone())));
                    new
                }
            };
            self.set.all.insert(key, resource);
        }
        changes.extend(gone.into_keys().map(|key| (key, None)));
        changes
    }
}

impl ResourceSink for StoreSink {
    fn publish(&mut self, resources: &[DerivedResource]) -> u64 {
        let changes = self.changes(resources);
        let is_first = !std::mem::replace(&mut self.has_published, true);
        if is_first {
            self.mailbox.state(true, &self.server, None);
        }
        if !changes.is_empty() || is_first {
            self.set.revision += 1;
            let revision = self.set.revision;
            // It fails if the node ends.
            let _ = self.copied.send((revision, changes.clone()));
            self.mailbox.put(OutsideChange::Some { revision, resources: changes });
        }
        self.set.revision
    }

    fn tell(&mut self, problem: Option<&str>) {
        self.mailbox.state(problem.is_none() && self.has_published, &self.server, problem.map(str::to_owned));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::sync::mpsc::unbounded_channel;
    use weir_kube::ResourceList;
    use weir_kube::objects::{Kind, ObjectRef};

    use super::*;

    fn route(id: &str, value: Value) -> DerivedResource {
        let origin = ObjectRef { kind: Kind::HTTPRoute, namespace: "a".to_owned(), name: id.to_owned() };
        DerivedResource { kind: ResourceList::Routes, id: id.to_owned(), value, origin }
    }

    #[test]
    fn only_what_differs_is_a_change() {
        let (copied, _kept) = unbounded_channel();
        let mailbox = Arc::new(Mailbox::default());
        let mut sink = StoreSink::new(Arc::clone(&mailbox), "https://api", ResourceSet::default(), copied);
        let first = [route("one", json!({ "uri": "/1" })), route("two", json!({ "uri": "/2" }))];
        assert_eq!(sink.publish(&first), 1);
        assert_eq!(sink.publish(&first), 1, "nothing has changed");
        assert_eq!(sink.publish(&[route("two", json!({ "uri": "/3" }))]), 2);
        let changes = std::mem::take(&mut mailbox.content().changes);
        let [_, OutsideChange::Some { revision: 2, resources }] = &changes[..] else { panic!("{changes:?}") };
        let told: Vec<_> =
            resources.iter().map(|(key, it)| (key.as_str(), it.as_ref().map(|it| (it.created, it.modified)))).collect();
        assert_eq!(told, [("routes/two", Some((1, 2))), ("routes/one", None)]);
    }

    #[test]
    fn an_empty_cluster_is_published_once() {
        let (copied, _kept) = unbounded_channel();
        let mailbox = Arc::new(Mailbox::default());
        let mut sink = StoreSink::new(Arc::clone(&mailbox), "https://api", ResourceSet::default(), copied);
        assert_eq!((sink.publish(&[]), sink.publish(&[])), (1, 1));
        assert_eq!(mailbox.content().changes.len(), 1);
    }
}
