//! Who may use routes: consumers, and the credentials that prove who somebody is.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

/// Somebody the gateway knows (APISIX `consumer`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Consumer {
    pub username: Box<str>,
    /// APISIX `labels.custom_id`; empty is none.
    pub custom_id: Box<str>,
    /// Of the consumer group it belongs to; empty is none.
    pub group_id: Box<str>,
    /// What the consumer, or its group, adds to the plugins of routes: a number of the snapshot's overlays.
    pub overlay: Option<u32>,
}

/// What proves that somebody is a consumer, as it is added.
pub struct Proof {
    /// The plugin it is for.
    pub plugin: Box<str>,
    /// The id of a credential that is a resource of its own; empty where it stands in the consumer itself.
    pub id: Box<str>,
    /// The options of the plugin under the consumer.
    pub options: Value,
}

/// What proves that somebody is a consumer: the options of one auth plugin, as they stand under the consumer.
#[derive(Clone)]
pub struct Credential {
    pub consumer: Arc<Consumer>,
    /// The id of a credential that is a resource of its own; empty where it stands in the consumer itself.
    pub id: Box<str>,
    pub options: Value,
}

/// Options are secrets, so they are not shown.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("consumer", &self.consumer).field("id", &self.id).finish_non_exhaustive()
    }
}

/// The consumers of one document.
#[derive(Default)]
pub struct Consumers {
    by_name: HashMap<Box<str>, Arc<Consumer>>,
    /// By the name of the plugin they are for.
    credentials: HashMap<Box<str>, Vec<Arc<Credential>>>,
    indexes: RefCell<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

impl Consumers {
    /// Adds a consumer with what proves who it is. A name that is there already is replaced.
    pub fn add(&mut self, consumer: Consumer, proofs: impl IntoIterator<Item = Proof>) {
        let consumer = Arc::new(consumer);
        self.by_name.insert(consumer.username.clone(), Arc::clone(&consumer));
        for Proof { plugin, id, options } in proofs {
            let credential = Credential { consumer: Arc::clone(&consumer), id, options };
            self.credentials.entry(plugin).or_default().push(Arc::new(credential));
        }
        self.indexes.get_mut().clear();
    }

    pub fn consumer(&self, username: &str) -> Option<&Arc<Consumer>> {
        self.by_name.get(username)
    }

    /// The credentials for a plugin.
    pub fn credentials(&self, plugin: &str) -> &[Arc<Credential>] {
        self.credentials.get(plugin).map_or(&[], Vec::as_slice)
    }

    /// What a plugin has made of the credentials to find them by. It is made once per document, however many routes have
    /// the plugin.
    pub fn index<T: Send + Sync + 'static>(&self, make: impl FnOnce(&Consumers) -> T) -> Arc<T> {
        let known = self.indexes.borrow().get(&TypeId::of::<T>()).cloned();
        let index = known.unwrap_or_else(|| {
            let made: Arc<dyn Any + Send + Sync> = Arc::new(make(self));
            self.indexes.borrow_mut().insert(TypeId::of::<T>(), Arc::clone(&made));
            made
        });
        index.downcast().unwrap_or_else(|_| unreachable!("kept under its own type"))
    }
}

impl fmt::Debug for Consumers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumers").field("count", &self.by_name.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_index_is_made_once() {
        let mut consumers = Consumers::default();
        let jack = Consumer { username: "jack".into(), ..Consumer::default() };
        let key = Proof { plugin: "key-auth".into(), id: Box::default(), options: json!({"key": "secret"}) };
        consumers.add(jack, [key]);
        let index = || consumers.index(|consumers| consumers.credentials("key-auth").len());
        assert_eq!((*index(), *index()), (1, 1));
        assert!(Arc::ptr_eq(&index(), &index()));
        assert_eq!(consumers.credentials("basic-auth").len(), 0);
        assert_eq!(consumers.consumer("jack").map(|jack| &*jack.username), Some("jack"));
        assert!(!format!("{consumers:?} {:?}", consumers.credentials("key-auth")).contains("secret"));
    }
}
