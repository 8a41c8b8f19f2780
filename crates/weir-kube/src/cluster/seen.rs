//! What has been seen of the cluster: the objects, the scopes that are followed, and the versions of objects.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::follower::Told;
use super::{ScopeEvent, WatchScope};
use crate::objects::{Kind, ObjectRef};
use crate::world::{ObjectName, World};

/// An object whose status may be written, as it was seen last.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SeenObject {
    /// The version of the API that it was read by.
    pub(super) version: &'static str,
    pub(super) resource_version: String,
    pub(super) uid: String,
    pub(super) status: Value,
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
    pub(super) objects: BTreeMap<ObjectRef, SeenObject>,
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

    /// Takes what a follower tells. Returns whether what the objects mean may have changed.
    pub(super) fn take(&mut self, scope: &WatchScope, told: Told) -> bool {
        // A follower that was ended may have told something just before.
        let Some(state) = self.scopes.get_mut(scope) else { return false };
        match told {
            Told::Problem(problem) => {
                state.problem = problem;
                false
            }
            Told::NoSuchKind => {
                if !state.is_known {
                    tracing::info!(kind = %scope.kind, "the cluster does not have this kind of object, which is looked for again");
                }
                let gone = std::mem::take(&mut state.members);
                let is_new = !std::mem::replace(&mut state.is_known, true);
                gone.iter().for_each(|name| self.drop_unless_other(scope.kind, name));
                is_new || !gone.is_empty()
            }
            Told::Event(version, event) => self.take_event(scope, version, event),
        }
    }

    fn take_event(&mut self, scope: &WatchScope, version: &'static str, event: ScopeEvent) -> bool {
        let Some(state) = self.scopes.get_mut(scope) else { return false };
        match event {
            ScopeEvent::ListBegins => {
                state.listed = Some(BTreeSet::new());
                false
            }
            ScopeEvent::ListEnds => {
                let is_new = !std::mem::replace(&mut state.is_known, true);
                let listed = state.listed.take().unwrap_or_default();
                let gone: Vec<ObjectName> = state.members.difference(&listed).cloned().collect();
                state.members = listed;
                gone.iter().for_each(|name| self.drop_unless_other(scope.kind, name));
                is_new || !gone.is_empty()
            }
            ScopeEvent::Gone(namespace, name) => {
                let name = ObjectName::new(namespace, name);
                state.members.remove(&name);
                self.drop_unless_other(scope.kind, &name);
                true
            }
            ScopeEvent::Is(value) => self.put(scope, version, value),
        }
    }

    fn put(&mut self, scope: &WatchScope, version: &'static str, mut value: Value) -> bool {
        let Some(state) = self.scopes.get_mut(scope) else { return false };
        let text = |key: &str| value["metadata"][key].as_str().unwrap_or_default().to_owned();
        let name = ObjectName::new(text("namespace"), text("name"));
        let (resource_version, uid) = (text("resourceVersion"), text("uid"));
        state.members.insert(name.clone());
        if let Some(listed) = &mut state.listed {
            listed.insert(name.clone());
        }
        let object = reference(scope.kind, &name);
        if self.objects.get(&object).is_some_and(|seen| seen.resource_version == resource_version) {
            return false;
        }
        let status = value.get("status").cloned().unwrap_or(Value::Null);
        self.objects
            .insert(object.clone(), SeenObject { version, resource_version, uid, status: kept(scope.kind, status) });
        value["apiVersion"] = version.into();
        match scope.kind.read(value) {
            Ok(read) => self.world.put(read),
            // What was read before stays: the server has accepted the object, so the mistake is Weir's.
            Err(error) => tracing::warn!(%object, %error, "an object cannot be read, its last state stays in use"),
        }
        true
    }

    fn drop_unless_other(&mut self, kind: Kind, name: &ObjectName) {
        let has = |(scope, state): (&WatchScope, &ScopeState)| scope.kind == kind && state.members.contains(name);
        if !self.scopes.iter().any(has) {
            let object = reference(kind, name);
            self.world.remove(&object);
            self.objects.remove(&object);
        }
    }
}

fn reference(kind: Kind, name: &ObjectName) -> ObjectRef {
    ObjectRef { kind, namespace: name.namespace.clone(), name: name.name.clone() }
}

/// The status of a kind whose status may be written.
fn kept(kind: Kind, status: Value) -> Value {
    match kind {
        Kind::Namespace | Kind::Service | Kind::EndpointSlice | Kind::Secret | Kind::ConfigMap => Value::Null,
        _ => status,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn scope(name: Option<&str>) -> WatchScope {
        WatchScope { kind: Kind::Secret, namespace: name.map(|_| "a".to_owned()), name: name.map(str::to_owned) }
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
    fn what_a_second_list_does_not_have_is_gone() {
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
        assert!(seen.take(&all, is("one", "1")));
        assert!(!seen.take(&all, is("one", "1")));
        assert!(seen.take(&all, is("one", "2")));
    }

    #[test]
    fn a_kind_that_disappears_takes_its_objects_along() {
        let mut seen = SeenCluster::default();
        let all = scope(None);
        seen.expect(&all);
        list(&mut seen, &all, &["one"]);
        assert!(seen.take(&all, Told::NoSuchKind));
        assert_eq!(seen.world.names(Kind::Secret), []);
        assert!(!seen.take(&all, Told::NoSuchKind));
    }
}
