//! What the operations of a transaction make of each resource. A resource is read once, changed in place, and checked once at the
//! end, so that the work grows with the operations and not with their product with the size of resources.

use std::collections::BTreeMap;

use serde_json::Value;

use super::super::kinds::ResourceKind;
use super::super::patch;
use super::super::plans;
use super::super::redact::unmask;
use super::{Action, Operation, fault_of_name};
use crate::stores::live::ResourceEdit;
use crate::stores::resources::{ResourceKey, ResourceView, StoredResource};
use crate::stores::writes::PlanRefusal;

/// The most bytes of resources that are changed once more after an earlier operation. A change in place can still take a step for
/// each member of a map.
const MOST_BYTES_AGAIN: usize = 256 << 20;
/// What a change counts at least.
const LEAST_BYTES: usize = 1 << 10;

/// The resources that operations have named so far.
#[derive(Default)]
pub(super) struct Drafts<'v> {
    places: BTreeMap<ResourceKey, usize>,
    /// In the order of the first operation on each.
    all: Vec<Draft<'v>>,
    /// The bytes of resources that were changed once more.
    again: usize,
}

/// A resource while operations change it.
struct Draft<'v> {
    kind: &'static ResourceKind,
    key: ResourceKey,
    /// The resource before the transaction, whose secrets a mask stands for; `None` also after it was deleted.
    stored: Option<&'v StoredResource>,
    content: DraftContent,
    /// About the bytes that the content has as text.
    bytes: usize,
    is_patched: bool,
    /// The last operation that changed it.
    operation: usize,
}

enum DraftContent {
    /// As it is stored.
    Stored,
    Changed(Value),
    Deleted,
}

impl<'v> Drafts<'v> {
    /// Applies the operation with this index.
    pub(super) fn apply(
        &mut self,
        view: &ResourceView<'v>,
        index: usize,
        operation: &Operation,
    ) -> Result<(), PlanRefusal> {
        let Operation { kind, key, action, bytes } = operation;
        let draft = self.draft(view, kind, key, index)?;
        match action {
            Action::Put(value) => {
                draft.content = DraftContent::Changed(value.clone());
                draft.bytes = *bytes;
            }
            Action::Patch(changes) => {
                patch::merge(draft.value_mut().ok_or_else(|| missing(index, key))?, changes);
                draft.bytes += bytes;
                draft.is_patched = true;
            }
            Action::Delete if !draft.exists() => return Err(missing(index, key)),
            Action::Delete => {
                draft.delete();
                self.delete_credentials(view, operation, index)?;
            }
        }
        Ok(())
    }

    /// The draft of a resource, which is begun with the first operation on it.
    fn draft(
        &mut self,
        view: &ResourceView<'v>,
        kind: &'static ResourceKind,
        key: &ResourceKey,
        operation: usize,
    ) -> Result<&mut Draft<'v>, PlanRefusal> {
        let place = match self.places.get(key) {
            Some(place) => {
                self.again += self.all[*place].bytes.max(LEAST_BYTES);
                *place
            }
            None => {
                let stored = view.get(key);
                let bytes = stored.map_or(0, |stored| stored.json.len());
                let content = if stored.is_some() { DraftContent::Stored } else { DraftContent::Deleted };
                self.places.insert(key.clone(), self.all.len());
                self.all.push(Draft { kind, key: key.clone(), stored, content, bytes, is_patched: false, operation });
                self.all.len() - 1
            }
        };
        if self.again > MOST_BYTES_AGAIN {
            return Err(PlanRefusal::TooMuchWork(format!(
                "operations[{operation}]: the operations change the same resources again and again, together more than \
                 {} MiB of them: write one operation for each resource",
                MOST_BYTES_AGAIN >> 20
            )));
        }
        let draft = &mut self.all[place];
        draft.operation = operation;
        Ok(draft)
    }

    /// Credentials are deleted with their consumer, also those that the transaction has created before.
    fn delete_credentials(
        &mut self,
        view: &ResourceView<'v>,
        Operation { kind, key, .. }: &Operation,
        operation: usize,
    ) -> Result<(), PlanRefusal> {
        if key.list() != "consumers" || key.consumer_of_credential().is_some() {
            return Ok(());
        }
        let prefix = ResourceKey::new(key.as_str(), "");
        let named =
            self.places.range(prefix.clone()..).take_while(|(key, _)| key.as_str().starts_with(prefix.as_str()));
        let made = named.filter(|(_, place)| self.all[**place].exists()).map(|(key, _)| key.clone());
        let of_view = view.credentials(key).into_iter();
        let all: Vec<ResourceKey> = made.chain(of_view).collect();
        all.iter().try_for_each(|key| {
            self.draft(view, kind, key, operation)?.delete();
            Ok(())
        })
    }

    /// The edits, in the order of the first operation on each resource.
    pub(super) fn into_edits(self) -> Result<Vec<ResourceEdit>, PlanRefusal> {
        self.all.into_iter().map(Draft::into_edit).collect()
    }
}

impl Draft<'_> {
    fn exists(&self) -> bool {
        !matches!(self.content, DraftContent::Deleted)
    }

    fn delete(&mut self) {
        (self.content, self.stored, self.bytes) = (DraftContent::Deleted, None, 0);
    }

    /// The content, to change it; `None` if there is none.
    fn value_mut(&mut self) -> Option<&mut Value> {
        if let (DraftContent::Stored, Some(stored)) = (&self.content, self.stored) {
            self.content = DraftContent::Changed(stored.value());
        }
        match &mut self.content {
            DraftContent::Changed(value) => Some(value),
            DraftContent::Stored | DraftContent::Deleted => None,
        }
    }

    fn into_edit(self) -> Result<ResourceEdit, PlanRefusal> {
        let Draft { kind, key, stored, content, is_patched, operation, .. } = self;
        let DraftContent::Changed(mut value) = content else { return Ok(ResourceEdit::Delete { key }) };
        let completed = |value: &mut Value| {
            if is_patched {
                patch::check_size(value).map_err(PlanRefusal::Wrong)?;
            }
            let old = stored.map(StoredResource::value);
            unmask(kind.list, value, old.as_ref())?;
            plans::complete(kind, &key, value, old.as_ref());
            fault_of_name(kind, &key, value).map_or(Ok(()), |problem| Err(PlanRefusal::Wrong(problem)))
        };
        completed(&mut value).map_err(|refusal| match refusal {
            PlanRefusal::Wrong(problem) => PlanRefusal::Wrong(format!("operations[{operation}]: {problem}")),
            other => other,
        })?;
        Ok(ResourceEdit::Put { key, value, expires_ms: None })
    }
}

fn missing(index: usize, key: &ResourceKey) -> PlanRefusal {
    PlanRefusal::Wrong(format!("operations[{index}]: `{key}` does not exist"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::kinds;
    use super::super::Transaction;
    use super::*;
    use crate::stores::resources::{PendingResources, ResourceSet};

    fn operation(action: Action, key: &str) -> Operation {
        let key = ResourceKey::parse(key).expect("a key");
        let bytes = match &action {
            Action::Put(value) | Action::Patch(value) => value.to_string().len(),
            Action::Delete => 0,
        };
        Operation { kind: kinds::find(key.list()).expect("a kind"), key, action, bytes }
    }

    fn planned(stored: &[(&str, Value)], operations: Vec<Operation>) -> Result<Vec<ResourceEdit>, PlanRefusal> {
        let resource = |value: &Value| StoredResource {
            json: value.to_string().into(),
            created: 1,
            modified: 1,
            expires_ms: None,
        };
        let all =
            stored.iter().map(|(key, value)| (ResourceKey::parse(key).expect("a key"), resource(value))).collect();
        let (set, nothing) = (ResourceSet { revision: 1, all }, PendingResources::new());
        let view = ResourceView { set: &set, pending: &nothing, revision: 1 };
        Transaction { operations, if_revision: None, message: None }.plan(&view)
    }

    #[test]
    fn operations_on_one_large_resource_are_bounded_together() {
        let labels: Value = (0..90_000).map(|number| (format!("l{number}"), Value::from("x"))).collect();
        let large = json!({"uri": "/", "labels": labels});
        let bytes = large.to_string().len();
        let patches = |count: usize| {
            let patches = (0..count).map(|number| operation(Action::Patch(json!({"desc": number})), "routes/r"));
            planned(&[("routes/r", large.clone())], patches.collect())
        };
        assert_eq!(patches(MOST_BYTES_AGAIN / bytes).map(|edits| edits.len()), Ok(1));
        let refused = patches(MOST_BYTES_AGAIN / bytes + 2);
        assert!(matches!(&refused, Err(PlanRefusal::TooMuchWork(told)) if told.contains("256 MiB")), "{refused:?}");
    }

    #[test]
    fn credentials_that_are_deleted_with_their_consumer_again_and_again_are_bounded() {
        let stored: Vec<(String, Value)> =
            (0..2_000).map(|number| (format!("consumers/jack/credentials/{number}"), json!({}))).collect();
        let mut stored: Vec<(&str, Value)> = stored.iter().map(|(key, value)| (&**key, value.clone())).collect();
        stored.push(("consumers/jack", json!({"username": "jack"})));
        let both = || {
            [
                operation(Action::Delete, "consumers/jack"),
                operation(Action::Put(json!({"username": "jack"})), "consumers/jack"),
            ]
        };
        assert_eq!(planned(&stored, both().into()).map(|edits| edits.len()), Ok(2_001));
        let refused = planned(&stored, (0..5_000).flat_map(|_| both()).collect());
        assert!(matches!(refused, Err(PlanRefusal::TooMuchWork(_))));
    }

    #[test]
    fn a_mask_stands_for_the_secret_from_before_the_transaction() {
        let jack = |key: &str| json!({"username": "jack", "plugins": {"key-auth": {"key": key}}});
        let stored = [("consumers/jack", jack("k1"))];
        let key = |edits: &[ResourceEdit]| match edits {
            [ResourceEdit::Put { value, .. }] => value["plugins"]["key-auth"]["key"].clone(),
            other => panic!("{other:?}"),
        };
        let patch = || operation(Action::Patch(json!({"desc": "d"})), "consumers/jack");
        let put = || operation(Action::Put(jack("***")), "consumers/jack");
        assert_eq!(key(&planned(&stored, vec![patch(), put(), patch()]).expect("a plan")), "k1");
        let delete = operation(Action::Delete, "consumers/jack");
        let gone = planned(&stored, vec![delete, put()]);
        assert!(matches!(&gone, Err(PlanRefusal::Wrong(told)) if told.starts_with("operations[1]: ")), "{gone:?}");
    }
}
