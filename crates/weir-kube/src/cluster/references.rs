//! The objects that are watched by name, since another object refers to them.

mod apisix;

use std::collections::{BTreeMap, BTreeSet};

use super::{ScopePart, WatchScope};
use crate::objects::gateway::FrontendTlsConfig;
use crate::objects::meta::{ObjectMeta, ObjectReference};
use crate::objects::{Kind, ObjectRef};
use crate::translation::{EventKind, ObjectEvent};
use crate::world::World;

pub(super) use self::apisix::may_quote_secret;

/// The most objects that are watched by name: each is a request that stays open.
const MOST_REFERENCES: usize = 1_024;
/// The most that the objects of one namespace refer to.
const MOST_OF_NAMESPACE: usize = 128;
/// Annotations of an Ingress that name a Secret, `NAME` or `NAMESPACE/NAME`.
const SECRET_ANNOTATIONS: [&str; 3] = ["auth-secret", "auth-tls-secret", "proxy-ssl-secret"];
/// Those that name a ConfigMap.
const CONFIG_MAP_ANNOTATIONS: [&str; 1] = ["custom-headers"];
const INGRESS_NGINX: &str = "nginx.ingress.kubernetes.io/";

/// What objects refer to by name, of the kinds that are not watched as a whole.
#[derive(Debug, Default)]
pub(super) struct References {
    pub(super) watched: BTreeSet<WatchScope>,
    /// A warning for each object that refers to something for which there is no room.
    pub(super) left_out: Vec<ObjectEvent>,
}

impl References {
    /// The references of all objects. `namespaces` are those that are watched; empty stands for all.
    pub(super) fn of(world: &World, namespaces: &[String]) -> References {
        let is_watched = |(scope, _): &(WatchScope, ObjectRef)| {
            let is_named = matches!(&scope.part, ScopePart::Named(name) if !name.is_empty());
            let has = |namespace| namespaces.is_empty() || namespaces.contains(namespace);
            is_named && scope.namespace.as_ref().is_none_or(has)
        };
        // By the namespaces of the objects that refer: what they refer to may be in any other.
        let mut of_namespaces: BTreeMap<String, BTreeMap<WatchScope, BTreeSet<ObjectRef>>> = BTreeMap::new();
        for (scope, referring) in all(world).into_iter().filter(is_watched) {
            let of_namespace = of_namespaces.entry(referring.namespace.clone()).or_default();
            of_namespace.entry(scope).or_default().insert(referring);
        }
        let share = fair_share(of_namespaces.values().map(BTreeMap::len));
        let mut references = References::default();
        for of_namespace in of_namespaces.into_values() {
            for (number, (scope, referring)) in of_namespace.into_iter().enumerate() {
                if number < share && references.watched.len() < MOST_REFERENCES {
                    references.watched.insert(scope);
                } else {
                    references.left_out.extend(referring.into_iter().map(|object| no_room(object, &scope)));
                }
            }
        }
        references
    }
}

/// The most references of each namespace, so that all of them together have room: what one does not need is left to the others.
fn fair_share(counts: impl Iterator<Item = usize> + Clone) -> usize {
    let fits = |share: &usize| counts.clone().map(|count| count.min(*share)).sum::<usize>() <= MOST_REFERENCES;
    (1..=MOST_OF_NAMESPACE).rev().find(fits).unwrap_or(1)
}

fn no_room(object: ObjectRef, scope: &WatchScope) -> ObjectEvent {
    let WatchScope { kind, namespace, part } = scope;
    let (namespace, name) = match (namespace, part) {
        (Some(namespace), ScopePart::Named(name)) => (&**namespace, &**name),
        _ => ("", ""),
    };
    let message = format!(
        "refers to {kind} {namespace}/{name}, which is not read: the objects of a namespace can refer to at most \
         {MOST_OF_NAMESPACE} objects that are watched by name, and those of all namespaces to {MOST_REFERENCES}"
    );
    ObjectEvent { object, kind: EventKind::Warning, reason: "NotWatched".to_owned(), message }
}

/// What is referred to by name, and by which object.
fn all(world: &World) -> Vec<(WatchScope, ObjectRef)> {
    let mut found = Vec::new();
    for (name, policy) in &world.backend_tls_policies {
        let authorities = &policy.spec.validation.ca_certificate_refs;
        let scopes = authorities.iter().filter_map(|reference| of_reference(reference, &name.namespace));
        found.extend(scopes.map(|scope| (scope, ObjectRef::of(&**policy))));
    }
    for (name, gateway) in &world.gateways {
        let Some(frontend) = gateway.spec.tls.as_ref().and_then(|tls| tls.frontend.as_ref()) else { continue };
        let ports = frontend.per_port.iter().map(|port| &port.tls);
        let authorities = |config: &FrontendTlsConfig| {
            config.validation.iter().flat_map(|validation| validation.ca_certificate_refs.clone()).collect::<Vec<_>>()
        };
        let references = ports.chain([&frontend.default]).flat_map(authorities);
        let scopes = references.filter_map(|reference| of_reference(&reference, &name.namespace));
        found.extend(scopes.map(|scope| (scope, ObjectRef::of(&**gateway))));
    }
    for (name, ingress) in &world.ingresses {
        let mut add = |keys: &[&str], kind| {
            let values = keys.iter().filter_map(|key| annotation(&ingress.metadata, key));
            let scopes = values.filter_map(|value| of_annotation(value, kind, &name.namespace));
            found.extend(scopes.map(|scope| (scope, ObjectRef::of(&**ingress))));
        };
        add(&SECRET_ANNOTATIONS, Kind::Secret);
        add(&CONFIG_MAP_ANNOTATIONS, Kind::ConfigMap);
    }
    found.extend(apisix::all(world));
    found
}

fn annotation<'m>(metadata: &'m ObjectMeta, key: &str) -> Option<&'m String> {
    metadata.annotations.get(&format!("{INGRESS_NGINX}{key}"))
}

fn of_reference(reference: &ObjectReference, beside: &str) -> Option<WatchScope> {
    let kind = match reference.kind.as_deref() {
        Some("ConfigMap") => Kind::ConfigMap,
        Some("Secret") => Kind::Secret,
        _ => return None,
    };
    Some(WatchScope::of_object(kind, reference.namespace.as_deref().unwrap_or(beside), &*reference.name))
}

/// `None` if it is in another namespace than the Ingress, which is refused.
fn of_annotation(value: &str, kind: Kind, beside: &str) -> Option<WatchScope> {
    let (namespace, name) = value.split_once('/').unwrap_or((beside, value));
    (namespace == beside).then(|| WatchScope::of_object(kind, namespace, name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_of_policies_and_annotations_are_found() {
        let mut world = World::default();
        let mut put = |kind: Kind, value| world.put(kind.read(value).expect("an object"));
        put(
            Kind::BackendTLSPolicy,
            json!({
                "metadata": { "name": "p", "namespace": "a" },
                "spec": { "validation": { "caCertificateRefs": [{ "group": "", "kind": "ConfigMap", "name": "ca" }] } },
            }),
        );
        put(
            Kind::Ingress,
            json!({
                "metadata": {
                    "name": "i",
                    "namespace": "b",
                    "annotations": {
                        "nginx.ingress.kubernetes.io/auth-secret": "b/users",
                        // Of another namespace: it is refused, and takes no room there.
                        "nginx.ingress.kubernetes.io/proxy-ssl-secret": "c/users",
                    },
                },
            }),
        );
        let all = References::of(&world, &[]);
        let scope = WatchScope::of_object;
        let wanted = [scope(Kind::Secret, "b", "users"), scope(Kind::ConfigMap, "a", "ca")];
        assert_eq!(all.watched, wanted.into());
        assert!(all.left_out.is_empty());
        let limited = References::of(&world, &["a".to_owned()]);
        assert_eq!(limited.watched, [scope(Kind::ConfigMap, "a", "ca")].into());
    }

    #[test]
    fn objects_with_options_from_secrets_are_known() {
        let mut world = World::default();
        let mut put = |kind: Kind, name: &str, namespace: &str, spec| {
            let object = json!({ "metadata": { "name": name, "namespace": namespace }, "spec": spec });
            world.put(kind.read(object).expect("an object"));
        };
        let rule = |plugin| json!({ "http": [{ "name": "a", "plugins": [plugin] }] });
        put(Kind::ApisixRoute, "secret", "shop", rule(json!({ "name": "cors", "secretRef": "s" })));
        put(Kind::ApisixRoute, "plain", "shop", rule(json!({ "name": "cors" })));
        put(Kind::ApisixRoute, "shared", "shop", json!({ "http": [{ "plugin_config_name": "c" }] }));
        let plugins = json!({ "plugins": [{ "name": "cors", "secretRef": { "name": "s" } }] });
        let mut policy = plugins.clone();
        policy["targetRefs"] =
            json!([{ "group": "gateway.networking.k8s.io", "kind": "TCPRoute", "name": "database" }]);
        put(Kind::L4RoutePolicy, "policy", "lines", policy);
        put(Kind::PluginConfig, "secretive", "shop", plugins);
        for (name, list) in [("filtered", "secretive"), ("unfiltered", "plain")] {
            let filter = json!({ "type": "ExtensionRef", "extensionRef": { "name": list } });
            put(Kind::HTTPRoute, name, "shop", json!({ "rules": [{ "filters": [filter] }] }));
        }
        put(Kind::PluginConfig, "plain", "shop", json!({ "plugins": [{ "name": "cors" }] }));
        for namespace in ["lines", "shop"] {
            put(Kind::TCPRoute, "database", namespace, json!({}));
        }
        put(Kind::TCPRoute, "other", "lines", json!({}));
        let annotations = json!({ "nginx.ingress.kubernetes.io/auth-secret": "s" });
        let metadata = json!({ "name": "users", "namespace": "shop", "annotations": annotations });
        world.put(Kind::Ingress.read(json!({ "metadata": metadata })).expect("an object"));
        let all = Kind::ALL.iter().flat_map(|&kind| {
            let names = world.names(kind).into_iter();
            names.map(move |name| ObjectRef { kind, namespace: name.namespace, name: name.name })
        });
        let found: Vec<String> =
            all.filter(|object| may_quote_secret(&world, object, &[])).map(|object| object.to_string()).collect();
        let wanted = [
            "HTTPRoute shop/filtered",
            "TCPRoute lines/database",
            "Ingress shop/users",
            "ApisixRoute shop/secret",
            "ApisixRoute shop/shared",
        ];
        assert_eq!(BTreeSet::from_iter(found.iter().map(|found| &**found)), BTreeSet::from(wanted));
        // What has changed since the translation of which the node tells may have had values of Secrets in it.
        let object = |kind, name: &str| ObjectRef { kind, namespace: "shop".to_owned(), name: name.to_owned() };
        let plain = object(Kind::ApisixRoute, "plain");
        assert!(may_quote_secret(&world, &plain, &[&BTreeSet::from([plain.clone()])]));
        assert!(!may_quote_secret(&world, &plain, &[&BTreeSet::from([object(Kind::ApisixRoute, "secret")])]));
        let database = object(Kind::TCPRoute, "database");
        assert!(may_quote_secret(&world, &database, &[&BTreeSet::from([object(Kind::L4RoutePolicy, "gone")])]));
        let gateway = object(Kind::Gateway, "edge");
        assert!(!may_quote_secret(&world, &gateway, &[&BTreeSet::from([gateway.clone()])]));
        let watched = References::of(&world, &[]).watched;
        let scope = WatchScope::of_object;
        assert_eq!(watched, [scope(Kind::Secret, "shop", "s"), scope(Kind::Secret, "lines", "s")].into());
    }

    /// As many Ingresses as are stated for each namespace, each with a Secret of its own.
    fn referring(counts: &[(&str, usize)]) -> World {
        let mut world = World::default();
        for (namespace, count) in counts {
            for number in 0..*count {
                let annotations = json!({ "nginx.ingress.kubernetes.io/auth-secret": format!("s{number:04}") });
                let metadata =
                    json!({ "name": format!("i{number:04}"), "namespace": namespace, "annotations": annotations });
                world.put(Kind::Ingress.read(json!({ "metadata": metadata })).expect("an object"));
            }
        }
        world
    }

    fn watched(references: &References, namespace: &str) -> usize {
        references.watched.iter().filter(|scope| scope.namespace.as_deref() == Some(namespace)).count()
    }

    #[test]
    fn references_of_a_namespace_leave_room_for_others() {
        let names: Vec<String> = (0..20).map(|number| format!("n{number:02}")).collect();
        let mut counts: Vec<(&str, usize)> = names.iter().map(|name| (&**name, 500)).collect();
        counts.push(("small", 3));
        let references = References::of(&referring(&counts), &[]);
        // (1,024 - 3) / 20
        assert!(names.iter().all(|name| watched(&references, name) == 51));
        assert_eq!(watched(&references, "small"), 3);
        let alone = References::of(&referring(&[("a", 500), ("b", 100)]), &[]);
        assert_eq!((watched(&alone, "a"), watched(&alone, "b")), (MOST_OF_NAMESPACE, 100));
    }

    #[test]
    fn references_to_other_namespaces_take_the_room_of_the_own() {
        let mut world = referring(&[("shop", 3)]);
        for number in 0..MOST_REFERENCES {
            let authority = json!({ "kind": "ConfigMap", "name": "ca", "namespace": format!("a{number:04}") });
            let validation = json!({ "validation": { "caCertificateRefs": [authority] } });
            let gateway = json!({
                "metadata": { "name": format!("g{number:04}"), "namespace": "evil" },
                "spec": { "gatewayClassName": "weir", "listeners": [], "tls": { "frontend": { "default": validation } } },
            });
            world.put(Kind::Gateway.read(gateway).expect("an object"));
        }
        let references = References::of(&world, &[]);
        assert_eq!(watched(&references, "shop"), 3);
        assert_eq!(references.watched.len(), 3 + MOST_OF_NAMESPACE);
        assert!(references.left_out.iter().all(|event| event.object.namespace == "evil"));
    }

    #[test]
    fn references_without_room_are_told_to_the_object_that_has_them() {
        let references = References::of(&referring(&[("a", MOST_OF_NAMESPACE + 1)]), &[]);
        let told: Vec<String> =
            references.left_out.iter().map(|event| format!("{}: {}", event.object, event.message)).collect();
        assert_eq!(told.len(), 1);
        assert!(told[0].starts_with("Ingress a/i0128: refers to Secret a/s0128, which is not read"), "{told:?}");
    }

    #[test]
    fn references_of_many_namespaces_stay_within_the_limit() {
        let names: Vec<String> = (0..MOST_REFERENCES + 10).map(|number| format!("n{number:04}")).collect();
        let counts: Vec<(&str, usize)> = names.iter().map(|name| (&**name, 2)).collect();
        let references = References::of(&referring(&counts), &[]);
        assert_eq!(references.watched.len(), MOST_REFERENCES);
        assert_eq!(references.left_out.len(), names.len() * 2 - MOST_REFERENCES);
    }
}
