//! Consumers, and the credentials that identify them.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

/// A known caller (APISIX `consumer`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Consumer {
    pub username: Box<str>,
    /// APISIX `labels.custom_id`; empty is none.
    pub custom_id: Box<str>,
    /// Names and values.
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// The id of the consumer's group; empty is none.
    pub group_id: Box<str>,
    /// Number, in the snapshot, of the overlay with the plugins that the consumer or its group adds to those of routes.
    pub overlay: Option<u32>,
}

impl Consumer {
    /// The value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| **label == *name).map(|(_, value)| &**value)
    }
}

/// A credential in the form in which [`Consumers::add`] takes it.
pub struct Proof {
    /// The name of the auth plugin.
    pub plugin: Box<str>,
    /// The id of a credential that is a resource of its own; empty if it is part of the consumer.
    pub id: Box<str>,
    /// The plugin's options under the consumer.
    pub options: Value,
}

/// A credential of a consumer: the options of one auth plugin, as configured under the consumer.
#[derive(Clone)]
pub struct Credential {
    pub consumer: Arc<Consumer>,
    /// The id of a credential that is a resource of its own; empty if it is part of the consumer.
    pub id: Box<str>,
    pub options: Value,
}

/// Without the options, which are secrets.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("consumer", &self.consumer).field("id", &self.id).finish_non_exhaustive()
    }
}

/// The consumers of one document.
#[derive(Default)]
pub struct Consumers {
    by_name: HashMap<Box<str>, Arc<Consumer>>,
    /// By the name of the auth plugin.
    credentials: HashMap<Box<str>, Vec<Arc<Credential>>>,
    indexes: RefCell<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

impl Consumers {
    /// Adds a consumer with its credentials. A consumer of the same name is replaced.
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

    /// All consumers, in no order.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Consumer>> {
        self.by_name.values()
    }

    /// The credentials for an auth plugin.
    pub fn credentials(&self, plugin: &str) -> &[Arc<Credential>] {
        self.credentials.get(plugin).map_or(&[], Vec::as_slice)
    }

    /// All consumers with their credentials.
    pub fn identities(&self) -> Identities {
        let mut all: HashMap<Box<str>, Vec<Arc<Credential>>> =
            self.by_name.keys().map(|username| (username.clone(), Vec::new())).collect();
        for credential in self.credentials.values().flatten() {
            all.entry(credential.consumer.username.clone()).or_default().push(Arc::clone(credential));
        }
        Identities(all)
    }

    /// A lookup table that a plugin derives from the credentials. It is built once per document, however many routes use the
    /// plugin.
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

/// The consumers of one document with their credentials, to determine whether an identity is still valid.
#[derive(Debug, Default)]
pub struct Identities(HashMap<Box<str>, Vec<Arc<Credential>>>);

impl Identities {
    /// Whether the document has the consumer, with the same credential. An identity without a credential, such as that of an
    /// anonymous consumer, needs only the consumer.
    pub fn include(&self, identity: &Credential) -> bool {
        let Some(credentials) = self.0.get(&identity.consumer.username) else { return false };
        let is_bare = identity.id.is_empty() && identity.options.as_object().is_some_and(serde_json::Map::is_empty);
        is_bare || credentials.iter().any(|known| known.id == identity.id && known.options == identity.options)
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

    #[test]
    fn an_identity_lasts_as_long_as_its_credential() {
        let document = |username: &str, id: &str, key: &str| {
            let mut consumers = Consumers::default();
            let jack = Consumer { username: username.into(), ..Consumer::default() };
            consumers.add(jack, [Proof { plugin: "key-auth".into(), id: id.into(), options: json!({ "key": key }) }]);
            consumers
        };
        let identity = Arc::clone(&document("jack", "1", "secret").credentials("key-auth")[0]);
        for (username, id, key, is_included) in [
            ("jack", "1", "secret", true),
            ("jack", "1", "another", false),
            ("jack", "2", "secret", false),
            ("rose", "1", "secret", false),
        ] {
            let identities = document(username, id, key).identities();
            assert_eq!(identities.include(&identity), is_included, "{username} {id} {key}");
            let anonymous = Credential { id: Box::default(), options: json!({}), ..(*identity).clone() };
            assert_eq!(identities.include(&anonymous), username == "jack");
        }
    }
}
