//! What has been seen of the cluster: the objects, the scopes that are followed, and the versions of objects.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

use super::follower::Told;
use super::{ScopeEvent, WatchScope};
use crate::objects::meta::JsonText;
use crate::objects::{Kind, ObjectRef};
use crate::world::{ObjectName, World, WorldChanges};

/// An object whose status may be written, as it was seen last.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SeenObject {
    /// The version of the API that it was read by.
    pub(super) version: &'static str,
    pub(super) resource_version: Box<str>,
    pub(super) uid: Box<str>,
    pub(super) status: JsonText,
    /// Of all but the status; `None` if the kind does not count its changes.
    meaning: Option<ObjectMeaning>,
}

/// What of the metadata changes with what an object means.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ObjectMeaning {
    generation: i64,
    /// A hash of the uid, the labels, the annotations, and the time of deletion.
    rest: u64,
}

impl ObjectMeaning {
    fn of(metadata: &Value) -> Option<ObjectMeaning> {
        let generation = metadata["generation"].as_i64().filter(|generation| *generation > 0)?;
        let mut hash = DefaultHasher::new();
        ["uid", "labels", "annotations", "deletionTimestamp"].iter().for_each(|key| metadata[*key].hash(&mut hash));
        Some(ObjectMeaning { generation, rest: hash.finish() })
    }
}

/// What has changed by something that was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SeenChange {
    Nothing,
    /// Of this object, nothing but its status.
    Status(ObjectRef),
    /// What the objects mean, perhaps.
    Meaning,
}

impl From<bool> for SeenChange {
    fn from(has_changed: bool) -> SeenChange {
        if has_changed { SeenChange::Meaning } else { SeenChange::Nothing }
    }
}

/// The state of a scope.
#[derive(Default)]
struct ScopeState {
    /// Whether it has been listed, or cannot be since there is no such kind.
    is_known: bool,
    members: BTreeSet<ObjectName>,
    /// The objects of the list that is being read.
    listed: Option<BTreeSet<ObjectName>>,
    problem: Option<String>,
}

/// All that has been seen.
#[derive(Default)]
pub(super) struct SeenCluster {
    pub(super) world: World,
    /// Since the last translation. Statuses are noted by the controller, which knows those that it has written.
    pub(super) changes: WorldChanges,
    pub(super) objects: BTreeMap<ObjectRef, SeenObject>,
    /// Why objects cannot be read, without values of them.
    pub(super) unreadable: BTreeMap<ObjectRef, String>,
    scopes: BTreeMap<WatchScope, ScopeState>,
}

impl SeenCluster {
    /// Expects a scope. Returns whether it is new.
    pub(super) fn expect(&mut self, scope: &WatchScope) -> bool {
        if self.scopes.contains_key(scope) {
            return false;
        }
        self.scopes.insert(scope.clone(), ScopeState::default());
        true
    }

    /// Forgets a scope, with the objects that no other scope has.
    pub(super) fn forget(&mut self, scope: &WatchScope) {
        let state = self.scopes.remove(scope).unwrap_or_default();
        state.members.iter().for_each(|name| self.drop_unless_other(scope.kind, name));
    }

    /// Whether all scopes have been listed.
    pub(super) fn is_complete(&self) -> bool {
        self.scopes.values().all(|state| state.is_known)
    }

    /// Why a scope cannot be followed.
    pub(super) fn problem(&self) -> Option<&str> {
        self.scopes.values().find_map(|state| state.problem.as_deref())
    }

    /// Takes what a follower tells.
    pub(super) fn take(&mut self, scope: &WatchScope, told: Told) -> SeenChange {
        // A follower that was ended may have told something just before.
        let Some(state) = self.scopes.get_mut(scope) else { return SeenChange::Nothing };
        match told {
            Told::Problem(problem) => {
                state.problem = problem;
                SeenChange::Nothing
            }
            Told::NoSuchKind if scope.kind.is_protection() && !state.members.is_empty() => {
                // A definition goes after its objects: it was replaced, or the server's list is not whole. Without their policies,
                // routes would be open.
                let (kind, version) = (scope.kind, scope.kind.versions()[0]);
                let problem = format!(
                    "the cluster does not serve {version} of {kind} any more; the objects that were read last stay in force"
                );
                if state.problem.is_none() {
                    tracing::warn!("{problem}");
                }
                state.problem = Some(problem);
                SeenChange::Nothing
            }
            Told::NoSuchKind => {
                if !state.is_known {
                    tracing::info!(kind = %scope.kind, "the cluster does not have this kind of object, which is looked for again");
                }
                let gone = std::mem::take(&mut state.members);
                let is_new = !std::mem::replace(&mut state.is_known, true);
                gone.iter().for_each(|name| self.drop_unless_other(scope.kind, name));
                (is_new || !gone.is_empty()).into()
            }
            Told::Event(version, event) => self.take_event(scope, version, event),
        }
    }

    fn take_event(&mut self, scope: &WatchScope, version: &'static str, event: ScopeEvent) -> SeenChange {
        let Some(state) = self.scopes.get_mut(scope) else { return SeenChange::Nothing };
        match event {
            ScopeEvent::ListBegins => {
                state.listed = Some(BTreeSet::new());
                SeenChange::Nothing
            }
            ScopeEvent::ListEnds => {
                let is_new = !std::mem::replace(&mut state.is_known, true);
                let listed = state.listed.take().unwrap_or_default();
                let gone: Vec<ObjectName> = state.members.difference(&listed).cloned().collect();
                state.members = listed;
                gone.iter().for_each(|name| self.drop_unless_other(scope.kind, name));
                (is_new || !gone.is_empty()).into()
            }
            ScopeEvent::Gone(namespace, name) => {
                let name = ObjectName::new(namespace, name);
                state.members.remove(&name);
                self.drop_unless_other(scope.kind, &name);
                SeenChange::Meaning
            }
            ScopeEvent::Is(value) => self.put(scope, version, value),
        }
    }

    fn put(&mut self, scope: &WatchScope, version: &'static str, mut value: Value) -> SeenChange {
        let Some(state) = self.scopes.get_mut(scope) else { return SeenChange::Nothing };
        let text = |key: &str| value["metadata"][key].as_str().unwrap_or_default();
        let name = ObjectName::new(text("namespace"), text("name"));
        let (resource_version, uid) = (Box::from(text("resourceVersion")), Box::from(text("uid")));
        state.members.insert(name.clone());
        if let Some(listed) = &mut state.listed {
            listed.insert(name.clone());
        }
        let object = reference(scope.kind, &name);
        if self.objects.get(&object).is_some_and(|seen| seen.resource_version == resource_version) {
            return SeenChange::Nothing;
        }
        let status = kept(scope.kind, &value["status"]);
        let meaning = ObjectMeaning::of(&value["metadata"]);
        let seen = SeenObject { version, resource_version, uid, status, meaning };
        let before = self.objects.insert(object.clone(), seen).and_then(|before| before.meaning);
        let is_same = before.is_some() && before == meaning;
        value["apiVersion"] = version.into();
        let read = scope.kind.read(value);
        if read.is_ok() {
            self.unreadable.remove(&object);
        }
        match read {
            Ok(read) if is_same => self.world.put(read),
            Ok(read) => self.changes.put(&mut self.world, read),
            // What was read before stays: the server has accepted the object, so the mistake is Weir's.
            Err(error) => {
                let error = without_value(&error.to_string());
                tracing::warn!(%object, %error, "an object cannot be read, its last state stays in use");
                self.unreadable.insert(object.clone(), error);
            }
        }
        if is_same { SeenChange::Status(object) } else { SeenChange::Meaning }
    }

    fn drop_unless_other(&mut self, kind: Kind, name: &ObjectName) {
        let has = |(scope, state): (&WatchScope, &ScopeState)| scope.kind == kind && state.members.contains(name);
        if !self.scopes.iter().any(has) {
            let object = reference(kind, name);
            self.changes.remove(&mut self.world, &object);
            self.objects.remove(&object);
            self.unreadable.remove(&object);
        }
    }
}

fn reference(kind: Kind, name: &ObjectName) -> ObjectRef {
    ObjectRef { kind, namespace: name.namespace.clone(), name: name.name.clone() }
}

/// What is wrong with an object, without the value that is wrong: others than those who see the object may read it, and it may be a secret.
/// Names of fields stay.
fn without_value(problem: &str) -> String {
    let (found, expected) = match problem.rfind(", expected ") {
        Some(end) => problem.split_at(end),
        None => (problem, ""),
    };
    let kind = &found[..found.find(['"', '`']).unwrap_or(found.len())];
    match ["missing field ", "duplicate field ", "unknown field "].iter().any(|named| kind.ends_with(named)) {
        true => problem.to_owned(),
        false => format!("{}{expected}", kind.trim_end()),
    }
}

/// The status of a kind whose status may be written.
fn kept(kind: Kind, status: &Value) -> JsonText {
    match kind {
        Kind::Namespace | Kind::Service | Kind::EndpointSlice | Kind::Secret | Kind::ConfigMap => JsonText::default(),
        _ => JsonText::from(status),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::ScopePart;
    use super::*;

    fn scope(name: Option<&str>) -> WatchScope {
        let all = WatchScope { kind: Kind::Secret, namespace: None, part: ScopePart::All };
        name.map_or(all, |name| WatchScope::of_object(Kind::Secret, "a", name))
    }

    fn is(name: &str, version: &str) -> Told {
        let metadata = json!({ "name": name, "namespace": "a", "resourceVersion": version });
        Told::Event("v1", ScopeEvent::Is(json!({ "metadata": metadata })))
    }

    fn list(seen: &mut SeenCluster, scope: &WatchScope, names: &[&str]) {
        seen.take(scope, Told::Event("v1", ScopeEvent::ListBegins));
        for name in names {
            seen.take(scope, is(name, "1"));
        }
        seen.take(scope, Told::Event("v1", ScopeEvent::ListEnds));
    }

    #[test]
    fn problems_of_objects_name_the_place_and_not_the_value() {
        let consumer =
            json!({ "metadata": { "name": "a" }, "spec": { "authParameter": { "keyAuth": "hunter2, expected" } } });
        let read = |kind: Kind, value: Value| without_value(&kind.read(value).expect_err("it is faulty").to_string());
        let told = read(Kind::ApisixConsumer, consumer);
        assert!(
            told.starts_with("ApisixConsumer a: spec.authParameter.keyAuth: invalid type: string, expected "),
            "{told}"
        );
        let told = read(Kind::Service, json!({ "metadata": { "name": "a" }, "spec": { "ports": 17 } }));
        assert_eq!(told, "Service a: spec.ports: invalid type: integer, expected a sequence");
        let missing = "Service a: spec.ports[0]: missing field `port`";
        assert_eq!(without_value(missing), missing);
    }

    #[test]
    fn objects_that_a_second_list_lacks_are_gone() {
        let mut seen = SeenCluster::default();
        let all = scope(None);
        assert!(seen.expect(&all) && !seen.expect(&all) && !seen.is_complete());
        list(&mut seen, &all, &["one", "two"]);
        assert!(seen.is_complete());
        assert_eq!(seen.world.names(Kind::Secret).len(), 2);
        list(&mut seen, &all, &["two"]);
        assert_eq!(seen.world.names(Kind::Secret), [ObjectName::new("a", "two")]);
    }

    #[test]
    fn an_object_that_another_scope_has_stays() {
        let mut seen = SeenCluster::default();
        let (all, one) = (scope(None), scope(Some("users")));
        assert!(seen.expect(&all) && seen.expect(&one));
        list(&mut seen, &one, &["users"]);
        list(&mut seen, &all, &["tls"]);
        list(&mut seen, &all, &[]);
        assert_eq!(seen.world.names(Kind::Secret), [ObjectName::new("a", "users")]);
        seen.forget(&one);
        assert_eq!(seen.world.names(Kind::Secret), []);
    }

    #[test]
    fn an_object_in_the_same_version_changes_nothing() {
        let mut seen = SeenCluster::default();
        let all = scope(None);
        seen.expect(&all);
        assert_eq!(seen.take(&all, is("one", "1")), SeenChange::Meaning);
        assert_eq!(seen.take(&all, is("one", "1")), SeenChange::Nothing);
        assert_eq!(seen.take(&all, is("one", "2")), SeenChange::Meaning);
    }

    #[test]
    fn a_status_changes_nothing_that_the_object_means() {
        let mut seen = SeenCluster::default();
        let all = WatchScope { kind: Kind::Gateway, ..scope(None) };
        seen.expect(&all);
        let is = |version: &str, generation: i64, labels: Value, status: Value| {
            let metadata = json!({
                "name": "g", "namespace": "a", "uid": "1", "resourceVersion": version, "generation": generation,
                "labels": labels,
            });
            Told::Event("v1", ScopeEvent::Is(json!({ "metadata": metadata, "status": status })))
        };
        let status = SeenChange::Status(reference(Kind::Gateway, &ObjectName::new("a", "g")));
        assert_eq!(seen.take(&all, is("1", 1, json!({}), json!({}))), SeenChange::Meaning);
        assert_eq!(seen.take(&all, is("2", 1, json!({}), json!({ "conditions": [] }))), status);
        assert_eq!(seen.take(&all, is("3", 1, json!({ "a": "b" }), json!({}))), SeenChange::Meaning);
        assert_eq!(seen.take(&all, is("4", 2, json!({ "a": "b" }), json!({}))), SeenChange::Meaning);
    }

    #[test]
    fn a_kind_that_disappears_takes_its_objects_along() {
        let mut seen = SeenCluster::default();
        let all = scope(None);
        seen.expect(&all);
        list(&mut seen, &all, &["one"]);
        assert_eq!(seen.take(&all, Told::NoSuchKind), SeenChange::Meaning);
        assert_eq!(seen.world.names(Kind::Secret), []);
        assert_eq!(seen.take(&all, Told::NoSuchKind), SeenChange::Nothing);
    }

    #[test]
    fn objects_that_cannot_be_read_are_named_without_their_values_until_they_can() {
        let mut seen = SeenCluster::default();
        let all = WatchScope { kind: Kind::ApisixConsumer, ..scope(None) };
        seen.expect(&all);
        let is = |version: &str, spec: Value| {
            let metadata = json!({ "name": "jack", "namespace": "a", "resourceVersion": version });
            Told::Event("v2", ScopeEvent::Is(json!({ "metadata": metadata, "spec": spec })))
        };
        seen.take(&all, is("1", json!({ "authParameter": { "keyAuth": { "value": "hunter2" } } })));
        let told: Vec<String> = seen.unreadable.iter().map(|(object, why)| format!("{object}: {why}")).collect();
        assert_eq!(told.len(), 1);
        assert!(told[0].starts_with("ApisixConsumer a/jack: ") && told[0].contains("expected a map"), "{told:?}");
        assert!(!told[0].contains("hunter2"), "{told:?}");
        seen.take(&all, is("2", json!({ "authParameter": { "keyAuth": { "value": { "key": "hunter2" } } } })));
        assert!(seen.unreadable.is_empty());
    }

    #[test]
    fn policies_stay_when_their_kind_disappears() {
        let mut seen = SeenCluster::default();
        let all = WatchScope { kind: Kind::WeirPolicy, ..scope(None) };
        seen.expect(&all);
        list(&mut seen, &all, &["one"]);
        assert_eq!(seen.take(&all, Told::NoSuchKind), SeenChange::Nothing);
        assert_eq!(seen.world.names(Kind::WeirPolicy).len(), 1);
        assert!(seen.problem().is_some_and(|problem| problem.contains("stay in force")));
        // A definition that is deleted takes its objects along, one by one.
        let gone = ScopeEvent::Gone("a".to_owned(), "one".to_owned());
        assert_eq!(seen.take(&all, Told::Event("v1alpha1", gone)), SeenChange::Meaning);
        assert_eq!(seen.take(&all, Told::NoSuchKind), SeenChange::Nothing);
        assert_eq!(seen.world.names(Kind::WeirPolicy), []);
    }
}
