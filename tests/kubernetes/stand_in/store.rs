//! The objects, their versions and the history that watches read.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

/// Group with version, name in URLs, kind and whether in a namespace.
const KINDS: [(&str, &str, &str, bool); 32] = [
    ("v1", "namespaces", "Namespace", false),
    ("v1", "services", "Service", true),
    ("v1", "secrets", "Secret", true),
    ("v1", "configmaps", "ConfigMap", true),
    ("v1", "events", "Event", true),
    ("coordination.k8s.io/v1", "leases", "Lease", true),
    ("discovery.k8s.io/v1", "endpointslices", "EndpointSlice", true),
    ("networking.k8s.io/v1", "ingresses", "Ingress", true),
    ("networking.k8s.io/v1", "ingressclasses", "IngressClass", false),
    ("gateway.networking.k8s.io/v1", "gatewayclasses", "GatewayClass", false),
    ("gateway.networking.k8s.io/v1", "gateways", "Gateway", true),
    ("gateway.networking.k8s.io/v1", "listenersets", "ListenerSet", true),
    ("gateway.networking.k8s.io/v1", "httproutes", "HTTPRoute", true),
    ("gateway.networking.k8s.io/v1", "grpcroutes", "GRPCRoute", true),
    ("gateway.networking.k8s.io/v1alpha2", "tcproutes", "TCPRoute", true),
    ("gateway.networking.k8s.io/v1", "tlsroutes", "TLSRoute", true),
    ("gateway.networking.k8s.io/v1alpha2", "udproutes", "UDPRoute", true),
    ("gateway.networking.k8s.io/v1beta1", "referencegrants", "ReferenceGrant", true),
    ("gateway.networking.k8s.io/v1", "backendtlspolicies", "BackendTLSPolicy", true),
    ("weir.dev/v1alpha1", "weirpolicies", "WeirPolicy", true),
    ("apisix.apache.org/v2", "apisixroutes", "ApisixRoute", true),
    ("apisix.apache.org/v2", "apisixupstreams", "ApisixUpstream", true),
    ("apisix.apache.org/v2", "apisixtlses", "ApisixTls", true),
    ("apisix.apache.org/v2", "apisixconsumers", "ApisixConsumer", true),
    ("apisix.apache.org/v2", "apisixpluginconfigs", "ApisixPluginConfig", true),
    ("apisix.apache.org/v2", "apisixglobalrules", "ApisixGlobalRule", true),
    ("apisix.apache.org/v1alpha1", "gatewayproxies", "GatewayProxy", true),
    ("apisix.apache.org/v1alpha1", "pluginconfigs", "PluginConfig", true),
    ("apisix.apache.org/v1alpha1", "backendtrafficpolicies", "BackendTrafficPolicy", true),
    ("apisix.apache.org/v1alpha1", "httproutepolicies", "HTTPRoutePolicy", true),
    ("apisix.apache.org/v1alpha1", "l4routepolicies", "L4RoutePolicy", true),
    ("apisix.apache.org/v1alpha1", "consumers", "Consumer", true),
];

/// Names an object, or a collection if `name` is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectPath {
    pub plural: String,
    pub namespace: Option<String>,
    pub name: Option<String>,
}

/// A change that watches see.
pub(crate) struct Change {
    pub revision: u64,
    /// `ADDED`, `MODIFIED` or `DELETED`.
    pub verb: &'static str,
    pub plural: String,
    pub object: Value,
}

#[derive(Default)]
struct Content {
    revision: u64,
    objects: BTreeMap<ObjectPath, Value>,
    /// Shared by all watches: each of them looks at every change.
    history: Vec<Arc<Change>>,
    /// Versions up to this one are unknown to watches.
    forgotten: u64,
    /// Counts requests to end all watches.
    ended: u64,
    missing: Vec<String>,
    writes: Vec<ObjectPath>,
}

#[derive(Default)]
pub(crate) struct ObjectStore {
    content: Mutex<Content>,
    changed: Condvar,
}

impl ObjectStore {
    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kinds of a group and version.
    pub(crate) fn kinds(&self, version: &str) -> Vec<Value> {
        let missing = self.content().missing.clone();
        let known =
            KINDS.iter().filter(|(of, plural, ..)| *of == version && !missing.iter().any(|name| name == plural));
        known
            .map(|(_, plural, kind, namespaced)| {
                json!({ "name": plural, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["list", "watch"] })
            })
            .collect()
    }

    /// Whether a kind is there (`true` by default). Without it, its objects are gone and watches of it end.
    pub(crate) fn install(&self, plural: &str, is_there: bool) {
        let mut content = self.content();
        content.missing.retain(|missing| missing != plural);
        if !is_there {
            content.missing.push(plural.to_owned());
            content.objects.retain(|path, _| path.plural != plural);
            content.ended += 1;
        }
        self.changed.notify_all();
    }

    pub(crate) fn is_missing(&self, plural: &str) -> bool {
        self.content().missing.iter().any(|missing| missing == plural)
    }

    pub(crate) fn apply(&self, object: Value) {
        let kind = object["kind"].as_str().expect("the object of a test has a kind");
        let known = KINDS.iter().find(|(_, _, name, _)| *name == kind);
        let (_, plural, _, namespaced) = known.unwrap_or_else(|| panic!("{kind} is not known here"));
        let text = |key: &str| object["metadata"][key].as_str().map(str::to_owned);
        let path = ObjectPath {
            plural: (*plural).to_owned(),
            namespace: namespaced.then(|| text("namespace").unwrap_or_else(|| "default".to_owned())),
            name: text("name"),
        };
        self.put(&path, object, false);
    }

    /// Creates or replaces an object. An update of the status leaves the generation as it is.
    pub(crate) fn put(&self, path: &ObjectPath, object: Value, is_status: bool) -> Value {
        self.put_over(path, None, object, is_status).expect("there is no condition")
    }

    /// The same; with a version, which only clients state, `None` if the object has another one, since it was changed meanwhile.
    pub(crate) fn put_over(
        &self,
        path: &ObjectPath,
        version: Option<&Value>,
        mut object: Value,
        is_status: bool,
    ) -> Option<Value> {
        let mut content = self.content();
        let before = content.objects.get(path).cloned();
        let is_other =
            |version: &Value| before.as_ref().map(|before| &before["metadata"]["resourceVersion"]) != Some(version);
        if version.is_some_and(is_other) {
            return None;
        }
        // Noted together with the change, so that a test that sees the one sees the other.
        content.writes.extend(version.map(|_| path.clone()));
        content.revision += 1;
        let revision = content.revision;
        let known = before.as_ref().map_or(Value::Null, |before| before["metadata"].clone());
        let generation = known["generation"].as_i64().unwrap_or(0) + i64::from(!is_status);
        if let (false, Some(before)) = (is_status, &before)
            && object.get("status").is_none()
            && let Some(status) = before.get("status")
        {
            object["status"] = status.clone();
        }
        let metadata = &mut object["metadata"];
        metadata["resourceVersion"] = revision.to_string().into();
        metadata["generation"] = generation.into();
        metadata["namespace"] = path.namespace.clone().into();
        metadata["uid"] = known.get("uid").cloned().unwrap_or_else(|| format!("uid-{revision}").into());
        metadata["creationTimestamp"] =
            known.get("creationTimestamp").cloned().unwrap_or_else(|| "2026-01-01T00:00:00Z".into());
        let verb = if before.is_some() { "MODIFIED" } else { "ADDED" };
        let change = Change { revision, verb, plural: path.plural.clone(), object: object.clone() };
        content.history.push(Arc::new(change));
        content.objects.insert(path.clone(), object.clone());
        self.changed.notify_all();
        Some(object)
    }

    pub(crate) fn delete(&self, plural: &str, namespace: &str, name: &str) {
        let mut content = self.content();
        let namespace = Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty());
        let path = ObjectPath { plural: plural.to_owned(), namespace, name: Some(name.to_owned()) };
        content.revision += 1;
        let revision = content.revision;
        let mut object = content.objects.remove(&path).unwrap_or_else(|| panic!("there is no {path:?}"));
        object["metadata"]["resourceVersion"] = revision.to_string().into();
        let change = Change { revision, verb: "DELETED", plural: plural.to_owned(), object };
        content.history.push(Arc::new(change));
        self.changed.notify_all();
    }

    pub(crate) fn get(&self, path: &ObjectPath) -> Option<Value> {
        self.content().objects.get(path).cloned()
    }

    /// The objects of a kind, by namespace and name.
    pub(crate) fn all(&self, plural: &str) -> Vec<Value> {
        self.find(plural, |_| true)
    }

    /// Those of them that are wanted: others, which may be large, are not copied.
    pub(crate) fn find(&self, plural: &str, is_wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        let content = self.content();
        let of_kind = content.objects.iter().filter(|(path, object)| path.plural == plural && is_wanted(object));
        of_kind.map(|(_, object)| object.clone()).collect()
    }

    pub(crate) fn revision(&self) -> u64 {
        self.content().revision
    }

    /// Notes a write of a client.
    pub(crate) fn wrote(&self, path: &ObjectPath) {
        self.content().writes.push(path.clone());
    }

    /// The objects that clients wrote, in order; Leases are left out.
    pub(crate) fn writes(&self) -> Vec<ObjectPath> {
        self.content().writes.iter().filter(|path| path.plural != "leases").cloned().collect()
    }

    /// The number of these.
    pub(crate) fn write_count(&self) -> usize {
        self.content().writes.iter().filter(|path| path.plural != "leases").count()
    }

    /// All changes that are not forgotten, from the first to the last.
    pub(crate) fn changes(&self) -> Vec<Arc<Change>> {
        self.content().history.clone()
    }

    /// Forgets all versions before now: watches that go on from one of them get 410.
    pub(crate) fn forget_history(&self) {
        let mut content = self.content();
        content.forgotten = content.revision;
        content.history.clear();
    }

    pub(crate) fn end_watches(&self) {
        self.content().ended += 1;
        self.changed.notify_all();
    }

    /// A mark for [`ObjectStore::next`].
    pub(crate) fn ends(&self) -> u64 {
        self.content().ended
    }

    /// Waits for changes after a revision. `Err` ends the watch: with `true` since the revision is forgotten.
    pub(crate) fn next(&self, after: u64, ends: u64, patience: Duration) -> Result<Vec<Arc<Change>>, bool> {
        let mut content = self.content();
        loop {
            if content.ended != ends {
                return Err(false);
            }
            if after < content.forgotten {
                return Err(true);
            }
            // In the order of revisions.
            let first = content.history.partition_point(|change| change.revision <= after);
            if first < content.history.len() {
                return Ok(content.history[first..].to_vec());
            }
            let (next, waited) = self.changed.wait_timeout(content, patience).unwrap_or_else(PoisonError::into_inner);
            if waited.timed_out() {
                return Ok(Vec::new());
            }
            content = next;
        }
    }
}
