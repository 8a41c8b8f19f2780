//! A store whose secrets are encrypted at rest, and in plain text on this side.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::resources::{ResourceKey, ResourceSet, RevisionRecord, StoredResource};
use super::secret_cipher::{CipherForm, OpenedResource, SecretCipher};
use super::shared::{KnownNodes, OutsideChange, ServedContent, SharedStore};
use super::source::Wake;
use super::store::{CommitFailure, RenewedText, ResourceStore, StoreFailure};
use crate::document::all_unreadable;
use crate::store_state::StoreState;
use crate::text::diagnostic::Diagnostic;

/// A store, with the cipher for its secrets.
pub(super) struct EncryptedStore<S> {
    store: S,
    cipher: SecretCipher,
    /// The resources whose stored form differs from how they would be encrypted now.
    outdated: Mutex<BTreeSet<ResourceKey>>,
}

impl<S: ResourceStore> EncryptedStore<S> {
    pub(super) fn new(store: S, cipher: SecretCipher) -> EncryptedStore<S> {
        EncryptedStore { store, cipher, outdated: Mutex::default() }
    }

    fn outdated_now(&self) -> MutexGuard<'_, BTreeSet<ResourceKey>> {
        self.outdated.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decrypts a resource in place. Adds the secrets that no key decrypts to `unreadable`.
    fn open(&self, key: &ResourceKey, resource: &mut StoredResource, unreadable: &mut Vec<String>) {
        let opened = self.cipher.opened(key, &resource.json);
        resource.json = opened.json;
        unreadable.extend(opened.unreadable);
        let mut outdated = self.outdated_now();
        match opened.is_current {
            true => outdated.remove(key),
            false => outdated.insert(key.clone()),
        };
    }

    fn open_set(&self, set: &mut ResourceSet) -> Vec<String> {
        let mut unreadable = Vec::new();
        set.all.iter_mut().for_each(|(key, resource)| self.open(key, resource, &mut unreadable));
        unreadable
    }

    fn seal(&self, record: &mut RevisionRecord) {
        for change in &mut record.changes {
            for resource in [&mut change.before, &mut change.after].into_iter().flatten() {
                resource.json = self.cipher.sealed(&change.key, &resource.json);
            }
        }
    }

    /// Refuses to write a secret that could not be decrypted, which still has the form of an encrypted text.
    fn refuse_unreadable(&self, record: &RevisionRecord) -> Result<(), StoreFailure> {
        let written = record.changes.iter().filter_map(|change| Some((&change.key, change.after.as_ref()?)));
        let unreadable = |(key, resource): (&ResourceKey, &StoredResource)| {
            SecretCipher::new(CipherForm::Weir, None).opened(key, &resource.json).unreadable
        };
        let found: Vec<String> = written.flat_map(unreadable).collect();
        match found.is_empty() {
            true => Ok(()),
            false => Err(refusal(&found)),
        }
    }
}

fn refusal(unreadable: &[String]) -> StoreFailure {
    let (problem, advice) = all_unreadable(unreadable);
    StoreFailure::new(problem, advice)
}

impl<S: ResourceStore> ResourceStore for EncryptedStore<S> {
    fn name(&self) -> String {
        self.store.name()
    }

    fn load(&self) -> Result<ResourceSet, StoreFailure> {
        let mut set = self.store.load()?;
        let unreadable = self.open_set(&mut set);
        // If other nodes write to the store as well, the other resources are served. In a store of this node alone, it means that
        // the keys of the configuration file are not those that the store was written with.
        if self.store.shared().is_none() && !unreadable.is_empty() {
            let StoreFailure { problem, advice, .. } = refusal(&unreadable);
            return Err(StoreFailure::new(format!("the store {}: {problem}", self.name()), advice));
        }
        if self.store.shared().is_none() && self.cipher.has_keys() {
            // The history is encrypted again as well, so that a replaced key is not needed any more.
            self.store.rewrite(&|key, json| {
                let OpenedResource { json, is_current, .. } = self.cipher.opened(key, json);
                (!is_current).then(|| self.cipher.sealed(key, &json))
            })?;
            self.outdated_now().clear();
        }
        Ok(set)
    }

    fn commit(&self, revisions: &[RevisionRecord]) -> Result<u64, CommitFailure> {
        let mut sealed = revisions.to_vec();
        for record in &mut sealed {
            if self.cipher.form() == CipherForm::Weir {
                self.refuse_unreadable(record)?;
            }
            self.seal(record);
        }
        let revision = self.store.commit(&sealed)?;
        let mut outdated = self.outdated_now();
        revisions.iter().flat_map(|record| &record.changes).for_each(|change| {
            outdated.remove(&change.key);
        });
        Ok(revision)
    }

    fn history(&self, before: u64, count: usize) -> Result<Vec<RevisionRecord>, StoreFailure> {
        let mut records = self.store.history(before, count)?;
        for change in records.iter_mut().flat_map(|record| &mut record.changes) {
            for resource in [&mut change.before, &mut change.after].into_iter().flatten() {
                resource.json = self.cipher.opened(&change.key, &resource.json).json;
            }
        }
        Ok(records)
    }

    fn is_writable(&self) -> Option<bool> {
        self.store.is_writable()
    }

    fn shared(&self) -> Option<&dyn SharedStore> {
        self.store.shared().map(|_| self as &dyn SharedStore)
    }

    fn rewrite(&self, renew: &RenewedText) -> Result<(), StoreFailure> {
        self.store.rewrite(renew)
    }

    fn outdated(&self) -> BTreeSet<ResourceKey> {
        self.outdated_now().clone()
    }

    fn lend(&self, lent: bool) -> Result<(), StoreFailure> {
        self.store.lend(lent)
    }
}

impl<S: ResourceStore> EncryptedStore<S> {
    fn beneath(&self) -> &dyn SharedStore {
        self.store.shared().expect("it is handed out as shared where the store beneath is")
    }
}

impl<S: ResourceStore> SharedStore for EncryptedStore<S> {
    fn notify(&self, wake: Wake) {
        self.beneath().notify(wake);
    }

    fn take_changes(&self) -> Vec<OutsideChange> {
        let mut changes = self.beneath().take_changes();
        for change in &mut changes {
            // A secret that cannot be decrypted is reported when the resource is compiled.
            match change {
                OutsideChange::Some { resources, .. } => {
                    for (key, resource) in resources {
                        if let Some(resource) = resource {
                            self.open(key, resource, &mut Vec::new());
                        }
                    }
                }
                OutsideChange::All { set, .. } => drop(self.open_set(set)),
            }
        }
        changes
    }

    fn catch_up(&self) -> bool {
        self.beneath().catch_up()
    }

    fn fits(&self, record: &RevisionRecord) -> Result<(), StoreFailure> {
        let mut sealed = record.clone();
        self.seal(&mut sealed);
        self.beneath().fits(&sealed)
    }

    fn serves(&self, served: ServedContent, set_aside: &BTreeMap<ResourceKey, Diagnostic>) {
        self.beneath().serves(served, set_aside);
    }

    fn nodes(&self) -> Result<KnownNodes, StoreFailure> {
        self.beneath().nodes()
    }

    fn state(&self) -> StoreState {
        self.beneath().state()
    }
}
