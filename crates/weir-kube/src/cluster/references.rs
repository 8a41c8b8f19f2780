//! The objects that are watched by name, since another object refers to them.

use std::collections::{BTreeMap, BTreeSet};

use super::WatchScope;
use crate::objects::Kind;
use crate::objects::gateway::FrontendTlsConfig;
use crate::objects::meta::ObjectReference;
use crate::translate::secrets_of_policy;
use crate::world::World;

/// The most objects that are watched by name: each is a request that stays open.
const MOST_REFERENCES: usize = 1_024;
/// The most of them in one namespace, so that one does not take the room of the others.
const MOST_OF_NAMESPACE: usize = 128;
/// Annotations of an Ingress that name a Secret, `NAME` or `NAMESPACE/NAME`.
const SECRET_ANNOTATIONS: [&str; 3] = ["auth-secret", "auth-tls-secret", "proxy-ssl-secret"];
/// Those that name a ConfigMap.
const CONFIG_MAP_ANNOTATIONS: [&str; 1] = ["custom-headers"];
const INGRESS_NGINX: &str = "nginx.ingress.kubernetes.io/";

/// What the objects refer to by name, of the kinds that are not watched as a whole. `namespaces` are those that are watched; empty
/// stands for all.
pub(super) fn references(world: &World, namespaces: &[String]) -> BTreeSet<WatchScope> {
    let mut found = BTreeSet::new();
    for (name, policy) in &world.backend_tls_policies {
        let authorities = &policy.spec.validation.ca_certificate_refs;
        found.extend(authorities.iter().filter_map(|reference| of_reference(reference, &name.namespace)));
    }
    for (name, gateway) in &world.gateways {
        let Some(frontend) = gateway.spec.tls.as_ref().and_then(|tls| tls.frontend.as_ref()) else { continue };
        let ports = frontend.per_port.iter().map(|port| &port.tls);
        let authorities = |config: &FrontendTlsConfig| {
            config.validation.iter().flat_map(|validation| validation.ca_certificate_refs.clone()).collect::<Vec<_>>()
        };
        let all = ports.chain([&frontend.default]).flat_map(authorities);
        found.extend(all.filter_map(|reference| of_reference(&reference, &name.namespace)));
    }
    for (name, policy) in &world.weir_policies {
        let scope =
            |secret| WatchScope { kind: Kind::Secret, namespace: Some(name.namespace.clone()), name: Some(secret) };
        found.extend(secrets_of_policy(policy).into_iter().map(scope));
    }
    for (name, ingress) in &world.ingresses {
        let annotations = &ingress.metadata.annotations;
        let mut add = |keys: &[&str], kind| {
            let values = keys.iter().filter_map(|key| annotations.get(&format!("{INGRESS_NGINX}{key}")));
            found.extend(values.map(|value| of_annotation(value, kind, &name.namespace)));
        };
        add(&SECRET_ANNOTATIONS, Kind::Secret);
        add(&CONFIG_MAP_ANNOTATIONS, Kind::ConfigMap);
    }
    let is_watched = |scope: &WatchScope| {
        namespaces.is_empty() || scope.namespace.as_ref().is_none_or(|namespace| namespaces.contains(namespace))
    };
    let named = |scope: &WatchScope| scope.name.as_ref().is_some_and(|name| !name.is_empty());
    let mut of_namespace: BTreeMap<Option<String>, usize> = BTreeMap::new();
    let has_room = |scope: &WatchScope| {
        let count = of_namespace.entry(scope.namespace.clone()).or_default();
        *count += 1;
        *count <= MOST_OF_NAMESPACE
    };
    let wanted = found.into_iter().filter(|scope| is_watched(scope) && named(scope));
    wanted.filter(has_room).take(MOST_REFERENCES).collect()
}

fn of_reference(reference: &ObjectReference, beside: &str) -> Option<WatchScope> {
    let kind = match reference.kind.as_deref() {
        Some("ConfigMap") => Kind::ConfigMap,
        Some("Secret") => Kind::Secret,
        _ => return None,
    };
    let namespace = Some(reference.namespace.clone().unwrap_or_else(|| beside.to_owned()));
    Some(WatchScope { kind, namespace, name: Some(reference.name.clone()) })
}

fn of_annotation(value: &str, kind: Kind, beside: &str) -> WatchScope {
    let (namespace, name) = value.split_once('/').unwrap_or((beside, value));
    WatchScope { kind, namespace: Some(namespace.to_owned()), name: Some(name.to_owned()) }
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
                    "annotations": { "nginx.ingress.kubernetes.io/auth-secret": "c/users" },
                },
            }),
        );
        let options = json!({ "client_secret": "$secret://kubernetes/login/secret", "scope": "openid $secret://kubernetes/no/no" });
        put(
            Kind::WeirPolicy,
            json!({ "metadata": { "name": "p", "namespace": "d" }, "spec": { "plugins": { "openid-connect": options } } }),
        );
        let scope = |kind, namespace: &str, name: &str| WatchScope {
            kind,
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
        };
        let all = references(&world, &[]);
        let wanted =
            [scope(Kind::Secret, "c", "users"), scope(Kind::Secret, "d", "login"), scope(Kind::ConfigMap, "a", "ca")];
        assert_eq!(all.into_iter().collect::<Vec<_>>(), wanted);
        let limited = references(&world, &["a".to_owned()]);
        assert_eq!(limited.into_iter().collect::<Vec<_>>(), [scope(Kind::ConfigMap, "a", "ca")]);
    }

    #[test]
    fn references_of_a_namespace_leave_room_for_others() {
        let mut world = World::default();
        for (number, namespace) in (0..100).map(|number| (number, "a")).chain([(0, "b")]) {
            let keys: Vec<String> = (0..32).map(|key| format!("$secret://kubernetes/s{number}-{key}/k")).collect();
            let policy = json!({
                "metadata": { "name": format!("p{number}"), "namespace": namespace },
                "spec": { "plugins": { "csrf": { "keys": keys } } },
            });
            world.put(Kind::WeirPolicy.read(policy).expect("an object"));
        }
        let all = references(&world, &[]);
        let of = |namespace: &str| all.iter().filter(|scope| scope.namespace.as_deref() == Some(namespace)).count();
        assert_eq!((of("a"), of("b")), (MOST_OF_NAMESPACE, 32));
    }
}
