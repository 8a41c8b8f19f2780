//! Plans: functions from the current resources to edits, for each kind of request. They run when the change is made.

use std::time::{SystemTime, UNIX_EPOCH};

use http::header::{HeaderMap, IF_MATCH, IF_NONE_MATCH};
use serde_json::Value;

use super::kinds::{IdRule, ResourceKind};
use super::patch;
use super::redact::unmask;
use super::references;
use crate::stores::live::ResourceEdit;
use crate::stores::resources::{ResourceKey, ResourceView, StoredResource};
use crate::stores::writes::PlanRefusal;

type Planned = Result<Vec<ResourceEdit>, PlanRefusal>;

/// The required state of a resource (`If-Match`, `If-None-Match`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Precondition {
    matches: Option<Vec<String>>,
    /// It must not exist.
    is_new: bool,
}

impl Precondition {
    pub(super) fn of(headers: &HeaderMap) -> Precondition {
        let texts = |name| {
            // A condition that cannot be read holds for nothing; leaving it out would make the change unconditional.
            let values = headers.get_all(name).iter().map(|value| value.to_str().unwrap_or_default());
            values
                .flat_map(|value| value.split(','))
                .map(|tag| tag.trim().trim_matches('"').to_owned())
                .collect::<Vec<_>>()
        };
        let matches = Some(texts(IF_MATCH)).filter(|tags| !tags.is_empty());
        Precondition { matches, is_new: texts(IF_NONE_MATCH).iter().any(|tag| tag == "*") }
    }

    fn check(&self, found: Option<&StoredResource>) -> Result<(), PlanRefusal> {
        let current = found.map(|resource| resource.modified);
        let is_one = |tag: &String| tag == "*" || current.is_some_and(|current| *tag == current.to_string());
        let holds = match &self.matches {
            Some(tags) => current.is_some() && tags.iter().any(is_one),
            None => true,
        };
        match current {
            Some(current) if self.is_new => Err(PlanRefusal::Exists(current)),
            _ if holds => Ok(()),
            _ => Err(PlanRefusal::MovedOn(current)),
        }
    }
}

/// A resource that PUT or POST writes.
#[derive(Clone, Debug)]
pub(super) struct NewResource {
    pub(super) kind: &'static ResourceKind,
    pub(super) value: Value,
    pub(super) expires_ms: Option<u64>,
    pub(super) condition: Precondition,
}

impl NewResource {
    pub(super) fn put(&self, view: &ResourceView, key: &ResourceKey) -> Planned {
        let before = view.get(key);
        self.condition.check(before)?;
        let mut value = self.value.clone();
        let old = before.map(StoredResource::value);
        unmask(self.kind.list, &mut value, old.as_ref())?;
        complete(self.kind, key, &mut value, old.as_ref());
        admit(view, key, &value)?;
        Ok(vec![ResourceEdit::Put { key: key.clone(), value, expires_ms: self.expires_ms }])
    }

    /// The id is the number of the revision that creates the resource, or the next one that is free: resources that were imported
    /// have ids from the revisions of another store.
    pub(super) fn post(&self, view: &ResourceView) -> Planned {
        let numbered = |number: u64| ResourceKey::new(self.kind.list, &format!("{number:020}"));
        let key = (view.revision + 1..).map(numbered).find(|key| view.get(key).is_none());
        self.put(view, &key.expect("a store has fewer resources than there are numbers"))
    }
}

/// A PATCH of a resource.
#[derive(Clone, Debug)]
pub(super) struct PatchOf {
    pub(super) kind: &'static ResourceKind,
    pub(super) key: ResourceKey,
    /// The path of the part to replace; without one, the patch is a map and is merged.
    pub(super) path: Option<String>,
    pub(super) patch: Value,
    pub(super) expires_ms: Option<u64>,
    pub(super) condition: Precondition,
}

impl PatchOf {
    pub(super) fn plan(&self, view: &ResourceView) -> Planned {
        let found = view.get(&self.key).ok_or(PlanRefusal::Missing)?;
        self.condition.check(Some(found))?;
        if let Some(fault) = found.fault() {
            return Err(PlanRefusal::Wrong(format!("{fault}; replace the resource as a whole with PUT")));
        }
        let old = found.value();
        let mut value = old.clone();
        match &self.path {
            Some(path) => patch::set(&mut value, path, self.patch.clone()).map_err(PlanRefusal::Wrong)?,
            None => patch::merge(&mut value, &self.patch),
        }
        patch::check_size(&value).map_err(PlanRefusal::Wrong)?;
        unmask(self.kind.list, &mut value, Some(&old))?;
        if value.get("id") != old.get("id") {
            return Err(PlanRefusal::Wrong(format!("wrong {} id: it cannot be changed", self.kind.name)));
        }
        if self.kind.timed && self.patch.get("update_time").is_none() {
            value["update_time"] = now_seconds().into();
        }
        admit(view, &self.key, &value)?;
        Ok(vec![ResourceEdit::Put { key: self.key.clone(), value, expires_ms: self.expires_ms }])
    }
}

/// Deletes a resource; with a consumer also its credentials.
pub(super) fn delete(view: &ResourceView, key: &ResourceKey, condition: &Precondition, forced: bool) -> Planned {
    let found = view.get(key);
    condition.check(found)?;
    if found.is_none() {
        return Err(PlanRefusal::Missing);
    }
    if !forced {
        references::refuse_if_used(view, key)?;
    }
    let mut edits = vec![ResourceEdit::Delete { key: key.clone() }];
    edits.extend(view.credentials(key).into_iter().map(|key| ResourceEdit::Delete { key }));
    Ok(edits)
}

/// Adds the members that every resource has: its id and its times.
pub(super) fn complete(kind: &ResourceKind, key: &ResourceKey, value: &mut Value, old: Option<&Value>) {
    let Value::Object(members) = value else { return };
    match kind.id {
        IdRule::Username => drop(members.shift_remove("id")),
        // An id that was sent as a number stays a number.
        _ if members.get("id").and_then(references::id_text).as_deref() == Some(last_of(key)) => {}
        _ => drop(members.insert("id".to_owned(), id_of(key).into())),
    }
    if kind.id == IdRule::Manager {
        members.insert("id".to_owned(), key.id().into());
    }
    if kind.timed {
        let now = now_seconds();
        let created = old.and_then(|old| old.get("create_time")).cloned().unwrap_or_else(|| now.into());
        members.insert("create_time".to_owned(), created);
        members.insert("update_time".to_owned(), now.into());
    }
}

/// The credential's own id, or the whole id of other resources.
fn id_of(key: &ResourceKey) -> &str {
    match key.consumer_of_credential() {
        Some(_) => last_of(key),
        None => key.id(),
    }
}

fn last_of(key: &ResourceKey) -> &str {
    key.id().rsplit('/').next().unwrap_or_default()
}

/// Checks that need no compilation, with the messages of Apache APISIX.
fn admit(view: &ResourceView, key: &ResourceKey, value: &Value) -> Result<(), PlanRefusal> {
    if value.get("host").is_some() && value.get("hosts").is_some() {
        return Err(PlanRefusal::Wrong("only one of host or hosts is allowed".to_owned()));
    }
    if let Some(consumer) = key.consumer_of_credential()
        && view.get(&ResourceKey::new("consumers", consumer)).is_none()
    {
        return Err(PlanRefusal::NoConsumer);
    }
    Ok(())
}

pub(super) fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::super::kinds;
    use super::*;

    fn stored(modified: u64) -> StoredResource {
        StoredResource { json: "{}".into(), created: 1, modified, expires_ms: None }
    }

    #[test]
    fn conditions_hold_for_what_the_author_has_seen() {
        let of = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().expect("a value"));
            Precondition::of(&headers)
        };
        assert_eq!(of("if-match", "\"7\"").check(Some(&stored(7))), Ok(()));
        assert_eq!(of("if-match", "\"6\", \"7\"").check(Some(&stored(7))), Ok(()));
        assert_eq!(of("if-match", "\"6\"").check(Some(&stored(7))), Err(PlanRefusal::MovedOn(Some(7))));
        assert_eq!(of("if-match", "*").check(None), Err(PlanRefusal::MovedOn(None)));
        assert_eq!(of("if-none-match", "*").check(None), Ok(()));
        assert_eq!(of("if-none-match", "*").check(Some(&stored(7))), Err(PlanRefusal::Exists(7)));
        assert_eq!(Precondition::default().check(None), Ok(()));
        let mut headers = HeaderMap::new();
        headers.insert(IF_MATCH, http::HeaderValue::from_bytes(b"\"\xff\"").expect("a value"));
        let unreadable = Precondition::of(&headers).check(Some(&stored(7)));
        assert_eq!(unreadable, Err(PlanRefusal::MovedOn(Some(7))), "it is not ignored");
    }

    #[test]
    fn a_generated_id_takes_the_place_of_no_resource() {
        let kind = kinds::find("routes").expect("a kind");
        let route = |number: u64| ResourceKey::new("routes", &format!("{number:020}"));
        let all = [(route(3), stored(1)), (route(4), stored(1))].into();
        let set = crate::stores::resources::ResourceSet { revision: 2, all };
        let nothing = crate::stores::resources::PendingResources::new();
        let view = ResourceView { set: &set, pending: &nothing, revision: 2 };
        let new = NewResource {
            kind,
            value: serde_json::json!({"uri": "/"}),
            expires_ms: None,
            condition: Precondition::default(),
        };
        let edits = new.post(&view).expect("it can be made");
        assert!(matches!(&edits[..], [ResourceEdit::Put { key, .. }] if *key == route(5)), "{edits:?}");
    }
}
