//! What becomes of a translation: the changes from the one before it.

use std::sync::Arc;

use weir_kube::cluster::ResourceSink;
use weir_kube::{DerivedResource, ResourceList};

use super::followed::FollowedSet;
use crate::stores::mailbox::Mailbox;
use crate::stores::resources::ResourceKey;

/// Compares each translation with the last one, and leaves the changes in the mailbox.
pub(super) struct StoreSink {
    mailbox: Arc<Mailbox>,
    server: String,
    followed: FollowedSet,
}

impl StoreSink {
    pub(super) fn new(mailbox: Arc<Mailbox>, server: &str, followed: FollowedSet) -> StoreSink {
        StoreSink { mailbox, server: server.to_owned(), followed }
    }
}

impl ResourceSink for StoreSink {
    fn put(&mut self, resource: DerivedResource) {
        let DerivedResource { kind, id, value, .. } = resource;
        self.followed.put(ResourceKey::new(kind.list(), &id), value);
    }

    fn remove(&mut self, kind: ResourceList, id: &str) {
        self.followed.remove(ResourceKey::new(kind.list(), id));
    }

    fn publish(&mut self) -> u64 {
        if !self.followed.has_published() {
            self.mailbox.state(true, &self.server, None);
        }
        self.followed.publish()
    }

    fn tell(&mut self, problem: Option<&str>) {
        let is_connected = problem.is_none() && self.followed.has_published();
        self.mailbox.state(is_connected, &self.server, problem.map(str::to_owned));
    }
}

impl Drop for StoreSink {
    /// What follows the cluster has ended, and before the node does so only by a fault of the program.
    fn drop(&mut self) {
        self.mailbox.state(false, &self.server, Some(ENDED.to_owned()));
    }
}

const ENDED: &str =
    "the cluster is not followed any more, after a fault of the program that the log tells; restart the node";

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::sync::mpsc::unbounded_channel;
    use weir_kube::objects::{Kind, ObjectRef};

    use super::*;
    use crate::stores::resources::{ResourceSet, StoredResource};
    use crate::stores::shared::OutsideChange;

    fn sink(set: ResourceSet) -> (StoreSink, Arc<Mailbox>) {
        let mailbox = Arc::new(Mailbox::default());
        let followed = FollowedSet::new(Arc::clone(&mailbox), set, unbounded_channel().0);
        (StoreSink::new(Arc::clone(&mailbox), "https://api", followed), mailbox)
    }

    fn put(sink: &mut StoreSink, id: &str, value: Value) {
        let origin = ObjectRef { kind: Kind::HTTPRoute, namespace: "a".to_owned(), name: id.to_owned() };
        sink.put(DerivedResource { kind: ResourceList::Routes, id: id.to_owned(), value, origin, beside: Vec::new() });
    }

    /// The keys of the last change with the revisions that created and changed them.
    fn told(mailbox: &Mailbox) -> Vec<(String, Option<(u64, u64)>)> {
        let mut changes = std::mem::take(&mut mailbox.content().changes);
        let Some(OutsideChange::Some { resources, .. }) = changes.pop() else { return Vec::new() };
        let revisions = |it: StoredResource| (it.created, it.modified);
        resources.into_iter().map(|(key, it)| (key.as_str().to_owned(), it.map(revisions))).collect()
    }

    #[test]
    fn only_what_differs_is_a_change() {
        let (mut sink, mailbox) = sink(ResourceSet::default());
        let first = |sink: &mut StoreSink| {
            put(sink, "one", json!({ "uri": "/1" }));
            put(sink, "two", json!({ "uri": "/2" }));
        };
        first(&mut sink);
        assert_eq!(sink.publish(), 1);
        first(&mut sink);
        assert_eq!(sink.publish(), 1, "nothing has changed");
        put(&mut sink, "two", json!({ "uri": "/3" }));
        sink.remove(ResourceList::Routes, "one");
        sink.remove(ResourceList::Routes, "none");
        assert_eq!(sink.publish(), 2);
        assert_eq!(told(&mailbox), [("routes/one".to_owned(), None), ("routes/two".to_owned(), Some((1, 2)))]);
    }

    #[test]
    fn resources_of_the_copy_that_the_first_translation_lacks_are_gone() {
        let known = StoredResource { json: "{}".into(), created: 3, modified: 4, expires_ms: None };
        let keys = ["one", "two"].map(|id| (ResourceKey::new("routes", id), known.clone()));
        let (mut sink, mailbox) = sink(ResourceSet { revision: 7, all: keys.into_iter().collect() });
        put(&mut sink, "one", json!({}));
        assert_eq!(sink.publish(), 8);
        assert_eq!(told(&mailbox), [("routes/two".to_owned(), None)]);
    }

    #[test]
    fn a_node_tells_that_its_cluster_is_not_followed_any_more() {
        let (mut sink, mailbox) = sink(ResourceSet::default());
        sink.publish();
        assert_eq!(mailbox.content().state.problem, None);
        drop(sink);
        assert_eq!(mailbox.content().state.problem.as_deref(), Some(ENDED));
    }

    #[test]
    fn an_empty_cluster_is_published_once() {
        let (mut sink, mailbox) = sink(ResourceSet::default());
        assert_eq!((sink.publish(), sink.publish()), (1, 1));
        assert_eq!(mailbox.content().changes.len(), 1);
    }
}
