//! Scopes: keys and tokens that give access to some resources only.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use super::answer::{Refused, json_of};
use super::keys::{Caller, may_write};
use crate::document::{AdminRole, AdminScope};
use crate::stores::live::ResourceEdit;
use crate::stores::resources::{ResourceChange, ResourceKey, ResourceView, StoredResource};
use crate::stores::writes::{Plan, PlanRefusal};

/// Lists whose resources have an effect on those of others, whatever their labels are: a scope includes them only if it names them.
const SHARED_LISTS: &[&str] = &["global_rules", "plugin_metadata", "secrets", "listeners"];

/// Whether scopes include a resource. A credential has the labels of its consumer, which `consumer` looks up.
fn covers<V: Borrow<Value>>(
    scopes: &[AdminScope],
    key: &ResourceKey,
    value: &Value,
    consumer: impl Fn(&ResourceKey) -> Option<V>,
) -> bool {
    let owner = key.consumer_of_credential().map(|name| consumer(&ResourceKey::new("consumers", name)));
    let labelled = match &owner {
        Some(owner) => owner.as_ref().map(Borrow::borrow),
        None => Some(value),
    };
    let has_label = |name: &str, text: &str| {
        let label = labelled.and_then(|value| value.get("labels")?.get(name)?.as_str());
        label == Some(text)
    };
    let is_of = |scope: &AdminScope| {
        let is_meant = scope.kinds.is_empty() && !SHARED_LISTS.contains(&key.list());
        (is_meant || scope.kinds.contains(&key.list()))
            && key.id().starts_with(&*scope.id_prefix)
            && scope.labels.iter().all(|(name, text)| has_label(name, text))
    };
    scopes.is_empty() || scopes.iter().any(is_of)
}

impl Caller {
    /// Whether the caller may see a resource of the store.
    pub(super) fn sees(&self, view: &ResourceView, key: &ResourceKey, resource: &StoredResource) -> bool {
        self.scopes.is_empty() || covers(&self.scopes, key, &resource.value(), |key| value_of(view, key))
    }

    /// Whether the caller may see a change, that is the resource before and after it. `before` and `after` look up the consumer of a
    /// credential as it was at these times.
    pub(super) fn sees_change(
        &self,
        change: &ResourceChange,
        before: impl Fn(&ResourceKey) -> Option<Value>,
        after: impl Fn(&ResourceKey) -> Option<Value>,
    ) -> bool {
        let is_covered = |resource: &StoredResource, consumer: &dyn Fn(&ResourceKey) -> Option<Value>| {
            covers(&self.scopes, &change.key, &resource.value(), consumer)
        };
        change.before.as_ref().is_none_or(|resource| is_covered(resource, &before))
            && change.after.as_ref().is_none_or(|resource| is_covered(resource, &after))
    }

    /// Refuses operations on all resources to callers with scopes.
    pub(super) fn needs_all(&self, what: &str) -> Refused<()> {
        match self.scopes.is_empty() {
            true => Ok(()),
            false => {
                let problem = format!("{what} needs a key or a token without scopes");
                Err(Box::new(json_of(StatusCode::FORBIDDEN, &json!({ "error_msg": problem }))))
            }
        }
    }
}

fn value_of(view: &ResourceView, key: &ResourceKey) -> Option<Value> {
    view.get(key).map(StoredResource::value)
}

/// Wraps a plan so that it is refused if the caller may not make it: every change of resources passes through here. The scopes have
/// to cover each resource before and after the change. `named` are the resources that the request names.
pub(super) fn within(caller: &Caller, named: Vec<ResourceKey>, plan: Box<Plan>) -> Box<Plan> {
    let role = caller.role;
    let plan = within_scopes(caller, named, plan);
    Box::new(move |view| {
        let edits = plan(view)?;
        match edits.iter().map(edited).find(|key| !may_write(role, key.list())) {
            Some(key) => Err(PlanRefusal::NotOfRole(role.name(), key.clone())),
            None => Ok(edits),
        }
    })
}

/// Like [`within`], for a check: a viewer may check what only others may change.
pub(super) fn within_for_check(caller: &Caller, named: Vec<ResourceKey>, plan: Box<Plan>) -> Box<Plan> {
    match caller.role {
        AdminRole::Viewer => within_scopes(caller, named, plan),
        _ => within(caller, named, plan),
    }
}

fn within_scopes(caller: &Caller, named: Vec<ResourceKey>, plan: Box<Plan>) -> Box<Plan> {
    if caller.scopes.is_empty() {
        return plan;
    }
    let scopes = Arc::clone(&caller.scopes);
    Box::new(move |view| {
        // Before the plan is made, since the reason why it cannot be made can depend on the resources.
        let now = ConsumersNow::of(view);
        named.iter().try_for_each(|key| is_covered_now(&scopes, &now, key))?;
        let edits = plan(view)?;
        are_covered(&scopes, &now, &edits)?;
        have_own_names(&scopes, view, &edits)?;
        have_own_groups(&scopes, view, &edits)?;
        Ok(edits)
    })
}

/// Refuses a resource that exists outside of the scopes.
fn is_covered_now(scopes: &[AdminScope], now: &ConsumersNow, key: &ResourceKey) -> Result<(), PlanRefusal> {
    match value_of(now.view, key) {
        Some(value) if !covers(scopes, key, &value, |consumer| now.get(consumer)) => {
            Err(PlanRefusal::OutOfScope(key.clone()))
        }
        _ => Ok(()),
    }
}

/// Refuses edits of a resource that is outside of the scopes, or would be.
fn are_covered(scopes: &[AdminScope], now: &ConsumersNow, edits: &[ResourceEdit]) -> Result<(), PlanRefusal> {
    // The consumer of a credential may be created by the same plan.
    let made: HashMap<&ResourceKey, Rc<Value>> = edits
        .iter()
        .filter_map(|edit| match edit {
            ResourceEdit::Put { key, value, .. } if is_consumer(key) => Some((key, Rc::new(value.clone()))),
            _ => None,
        })
        .collect();
    let consumer = |wanted: &ResourceKey| made.get(wanted).cloned().or_else(|| now.get(wanted));
    for edit in edits {
        let key = edited(edit);
        is_covered_now(scopes, now, key)?;
        let ResourceEdit::Put { value, .. } = edit else { continue };
        if !covers(scopes, key, value, consumer) {
            return Err(PlanRefusal::OutOfScope(key.clone()));
        }
        if now.view.get(key).is_none() {
            // A consumer that expired in a shared store has left its credentials, which a new one of its name would take over.
            now.view.credentials(key).iter().try_for_each(|key| is_covered_now(scopes, now, key))?;
        }
    }
    Ok(())
}

fn is_consumer(key: &ResourceKey) -> bool {
    key.list() == "consumers" && key.consumer_of_credential().is_none()
}

/// The consumers as they are now, each read once however many credentials it has.
struct ConsumersNow<'v> {
    view: &'v ResourceView<'v>,
    read: RefCell<HashMap<ResourceKey, Option<Rc<Value>>>>,
}

impl<'v> ConsumersNow<'v> {
    fn of(view: &'v ResourceView<'v>) -> ConsumersNow<'v> {
        ConsumersNow { view, read: RefCell::default() }
    }

    fn get(&self, key: &ResourceKey) -> Option<Rc<Value>> {
        let read = || value_of(self.view, key).map(Rc::new);
        self.read.borrow_mut().entry(key.clone()).or_insert_with(read).clone()
    }
}

/// Refuses `ssls` for the hosts of others: the certificate of the nearest name decides whether clients need one.
fn have_own_names(scopes: &[AdminScope], view: &ResourceView, edits: &[ResourceEdit]) -> Result<(), PlanRefusal> {
    let puts = edits.iter().filter_map(|edit| match edit {
        ResourceEdit::Put { key, value, .. } if key.list() == "ssls" => Some((key, value)),
        _ => None,
    });
    let mut others = None;
    for (key, value) in puts {
        let others = others.get_or_insert_with(|| NamesOfOthers::of(scopes, view));
        if let Some(name) = server_names(value).into_iter().find(|name| others.meet(name)) {
            return Err(PlanRefusal::NameOutOfScope(key.clone(), name));
        }
    }
    Ok(())
}

/// Refuses plugins that would join a group that is used outside of the scopes, or change their options in it: all plugins of a group
/// share counters, and need the same options.
fn have_own_groups(scopes: &[AdminScope], view: &ResourceView, edits: &[ResourceEdit]) -> Result<(), PlanRefusal> {
    let mut others = None;
    for edit in edits {
        let ResourceEdit::Put { key, value, .. } = edit else { continue };
        let mut groups = Groups::default();
        groups.add_all(value);
        if groups.0.is_empty() {
            continue;
        }
        let mut before = Groups::default();
        if let Some(stored) = value_of(view, key) {
            before.add_all(&stored);
        }
        let others: &Groups = others.get_or_insert_with(|| Groups::of_others(scopes, view));
        let joined = groups.0.difference(&before.0).map(|(group, _)| group);
        let mut met = joined.filter(|group| others.0.iter().any(|(other, _)| other == *group));
        if let Some(group) = met.next() {
            return Err(PlanRefusal::GroupOutOfScope(key.clone(), group.clone()));
        }
    }
    Ok(())
}

/// The groups of `limit-count` and `graphql-limit-count` in resources, each with the options of a plugin in it.
#[derive(Default)]
struct Groups(BTreeSet<(String, String)>);

impl Groups {
    fn of_others(scopes: &[AdminScope], view: &ResourceView) -> Groups {
        let mut groups = Groups::default();
        for list in ["routes", "services", "plugin_configs", "consumers", "consumer_groups", "global_rules"] {
            for (key, resource) in view.list(list).into_iter().filter(|(_, found)| found.json.contains("limit-count")) {
                let value = resource.value();
                if !covers(scopes, key, &value, |consumer| value_of(view, consumer)) {
                    groups.add_all(&value);
                }
            }
        }
        groups
    }

    /// Adds the groups of a value, those in actions of `workflow` included: `["limit-count", {…}]`.
    fn add_all(&mut self, value: &Value) {
        match value {
            Value::Object(members) => members.iter().for_each(|(name, member)| {
                self.add(name, member);
                self.add_all(member);
            }),
            Value::Array(items) => {
                if let [Value::String(name), options, ..] = &items[..] {
                    self.add(name, options);
                }
                items.iter().for_each(|item| self.add_all(item));
            }
            _ => {}
        }
    }

    fn add(&mut self, plugin: &str, options: &Value) {
        if matches!(plugin, "limit-count" | "graphql-limit-count")
            && let Some(group) = options.get("group").and_then(Value::as_str)
        {
            self.0.insert((group.to_owned(), options.to_string()));
        }
    }
}

/// The server names of the `ssls` outside of scopes.
#[derive(Default)]
struct NamesOfOthers {
    names: HashSet<String>,
    /// The names above them.
    parents: HashSet<String>,
}

impl NamesOfOthers {
    fn of(scopes: &[AdminScope], view: &ResourceView) -> NamesOfOthers {
        let mut others = NamesOfOthers::default();
        for (key, resource) in view.list("ssls") {
            let value = resource.value();
            if !covers(scopes, key, &value, |_| None::<Value>) {
                server_names(&value).into_iter().for_each(|name| others.add(name));
            }
        }
        others
    }

    fn add(&mut self, name: String) {
        self.parents.extend(parents(&name).map(str::to_owned));
        self.names.insert(name);
    }

    /// Whether a name covers one of these, or is covered by one. A wildcard counts for any number of labels, since the client
    /// certificates that it requires are required of all hosts below it.
    fn meet(&self, name: &str) -> bool {
        let is_below = || parents(name).any(|parent| self.names.contains(&format!("*.{parent}")));
        let is_above = || name.strip_prefix("*.").is_some_and(|parent| self.parents.contains(parent));
        let is_any = name == "*" && !self.names.is_empty();
        is_any || self.names.contains("*") || self.names.contains(name) || is_below() || is_above()
    }
}

/// `b.example` and `example` for `a.b.example`.
fn parents(name: &str) -> impl Iterator<Item = &str> {
    name.match_indices('.').map(|(dot, _)| &name[dot + 1..])
}

/// The names that an entry of `ssls` is for, in lower case; none if it is for upstreams.
fn server_names(value: &Value) -> Vec<String> {
    if value.get("type").is_some_and(|kind| kind == "client") {
        return Vec::new();
    }
    let listed = value.get("snis").and_then(Value::as_array).into_iter().flatten();
    let all = value.get("sni").into_iter().chain(listed).filter_map(Value::as_str);
    all.map(str::to_ascii_lowercase).collect()
}

fn edited(edit: &ResourceEdit) -> &ResourceKey {
    match edit {
        ResourceEdit::Put { key, .. } | ResourceEdit::Delete { key } => key,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::resources::{PendingResources, ResourceSet};

    fn scope(kinds: &[&'static str], id_prefix: &str, labels: &[(&str, &str)]) -> AdminScope {
        let labels = labels.iter().map(|(name, text)| ((*name).into(), (*text).into())).collect();
        AdminScope { kinds: kinds.to_vec(), id_prefix: id_prefix.into(), labels }
    }

    #[test]
    fn all_of_a_scope_must_hold_and_one_scope_is_enough() {
        let scopes = [scope(&["routes"], "a-", &[]), scope(&[], "", &[("team", "a")])];
        let none = |_: &ResourceKey| None::<Value>;
        let of = |key: &str, value: Value| covers(&scopes, &ResourceKey::parse(key).expect("a key"), &value, none);
        assert!(of("routes/a-1", json!({})));
        assert!(!of("routes/b-1", json!({})));
        for list in ["global_rules", "plugin_metadata", "secrets"] {
            let key = format!("{list}/a-1");
            assert!(!of(&key, json!({"labels": {"team": "a"}})), "{list} concern others, so they have to be named");
        }
        assert!(!of("services/a-1", json!({"labels": {"team": "b"}})));
        assert!(of("services/b-1", json!({"labels": {"team": "a", "x": "y"}})));
        assert!(!of("consumers/jack/credentials/1", json!({"labels": {"team": "a"}})), "the consumer decides");
        let jack = |_: &ResourceKey| Some(json!({"labels": {"team": "a"}}));
        let key = ResourceKey::parse("consumers/jack/credentials/1").expect("a key");
        assert!(covers(&scopes, &key, &json!({}), jack));
    }

    #[test]
    fn groups_of_others_are_not_joined() {
        let scopes: Arc<[AdminScope]> = [scope(&[], "a-", &[])].into();
        let caller = Caller { name: "ed".into(), role: AdminRole::Editor, scopes };
        let limit = |group: &str, count: u32| json!({"count": count, "time_window": 60, "group": group});
        let plain = |group: &str, count: u32| json!({"uri": "/", "plugins": {"limit-count": limit(group, count)}});
        let stored =
            |value: Value| StoredResource { json: value.to_string().into(), created: 1, modified: 1, expires_ms: None };
        let set = ResourceSet {
            revision: 1,
            all: [
                ("b-1", plain("theirs", 1)),
                ("a-1", plain("shared", 1)),
                ("b-2", plain("shared", 1)),
                ("a-2", plain("mine", 1)),
            ]
            .map(|(id, value)| (ResourceKey::new("routes", id), stored(value)))
            .into(),
        };
        let planned = |id: &str, value: Value| {
            let nothing = PendingResources::new();
            let view = ResourceView { set: &set, pending: &nothing, revision: 1 };
            let key = ResourceKey::new("routes", id);
            let edit = ResourceEdit::Put { key: key.clone(), value, expires_ms: None };
            within(&caller, vec![key], Box::new(move |_| Ok(vec![edit.clone()])))(&view)
        };
        let is_refused = |id: &str, value: Value| matches!(planned(id, value), Err(PlanRefusal::GroupOutOfScope(..)));
        assert!(is_refused("a-3", plain("theirs", 1)));
        let action = json!({"plugins": {"workflow": {"rules": [{"actions": [["limit-count", limit("theirs", 1)]]}]}}});
        assert!(is_refused("a-3", action));
        let of_queries = json!({"plugins": {"graphql-limit-count": limit("theirs", 1)}});
        assert!(is_refused("a-3", of_queries));
        assert!(is_refused("a-1", plain("shared", 2)), "its options would differ");
        assert!(planned("a-1", plain("shared", 1)).is_ok(), "it is in it already");
        assert!(planned("a-2", plain("mine", 2)).is_ok() && planned("a-3", plain("mine", 1)).is_ok());
    }

    #[test]
    fn scope_allows_no_change_of_labels_into_or_out_of_it() {
        let scopes: Arc<[AdminScope]> = [scope(&[], "", &[("team", "a")])].into();
        let caller = Caller { name: "ed".into(), role: AdminRole::Editor, scopes };
        let key = ResourceKey::new("routes", "r");
        let value = |team: &str| json!({"labels": {"team": team}});
        let planned = |before: &str, after: &str| {
            let stored =
                StoredResource { json: value(before).to_string().into(), created: 1, modified: 1, expires_ms: None };
            let set = ResourceSet { revision: 1, all: [(key.clone(), stored)].into() };
            let view = ResourceView { set: &set, pending: &PendingResources::new(), revision: 1 };
            let edit = ResourceEdit::Put { key: key.clone(), value: value(after), expires_ms: None };
            within(&caller, Vec::new(), Box::new(move |_| Ok(vec![edit.clone()])))(&view).is_ok()
        };
        assert!(planned("a", "a"));
        assert!(!planned("b", "a"));
        assert!(!planned("a", "b"));
    }

    #[test]
    fn credentials_without_a_consumer_are_not_taken_over_with_its_name() {
        let scopes: Arc<[AdminScope]> = [scope(&[], "", &[("team", "a")])].into();
        let caller = Caller { name: "ed".into(), role: AdminRole::Editor, scopes };
        let left = StoredResource { json: "{}".into(), created: 1, modified: 1, expires_ms: None };
        let credential = ResourceKey::parse("consumers/jack/credentials/c1").expect("a key");
        let set = ResourceSet { revision: 1, all: [(credential.clone(), left)].into() };
        let view = ResourceView { set: &set, pending: &PendingResources::new(), revision: 1 };
        let created = |name: &str| {
            let (key, value) = (ResourceKey::new("consumers", name), json!({"labels": {"team": "a"}}));
            let edit = ResourceEdit::Put { key, value, expires_ms: None };
            within(&caller, Vec::new(), Box::new(move |_| Ok(vec![edit.clone()])))(&view)
        };
        assert!(created("jill").is_ok());
        assert_eq!(created("jack").err(), Some(PlanRefusal::OutOfScope(credential)));
    }

    #[test]
    fn server_names_of_others_are_those_that_cover_or_are_covered() {
        let meet = |other: &str, name: &str| {
            let mut others = NamesOfOthers::default();
            others.add(other.to_owned());
            others.meet(name)
        };
        for (one, two, expected) in [
            ("b.example", "b.example", true),
            ("*.b.example", "*.b.example", true),
            ("*.b.example", "api.b.example", true),
            ("*.b.example", "x.api.b.example", true),
            ("*.b.example", "*.api.b.example", true),
            ("*", "b.example", true),
            ("*", "*.b.example", true),
            ("*", "*", true),
            ("*.b.example", "b.example", false),
            ("*.b.example", "api.ab.example", false),
            ("b.example", "api.b.example", false),
            ("*.b.example", "*.a.example", false),
        ] {
            assert_eq!((meet(one, two), meet(two, one)), (expected, expected), "{one} and {two}");
        }
        assert!(!NamesOfOthers::default().meet("*"), "there are no others");
        let names = |value: Value| server_names(&value);
        assert_eq!(names(json!({"sni": "A.Example", "snis": ["*.B.example"]})), ["a.example", "*.b.example"]);
        assert!(names(json!({"type": "client", "sni": "a.example"})).is_empty(), "a certificate for upstreams");
    }
}
