//! The Secrets that objects of the APISIX ingress controller refer to.

use std::collections::BTreeSet;

use super::super::WatchScope;
use super::{SECRET_ANNOTATIONS, annotation};
use crate::objects::apisix::{ApisixPlugin, ApisixSecretReference};
use crate::objects::apisix_gateway::ExtensionPlugin;
use crate::objects::core::SECRET_OF_PLUGINS;
use crate::objects::policy::PolicyTarget;
use crate::objects::routes::RouteFilter;
use crate::objects::{Kind, KubeObject, ObjectRef};
use crate::world::{ObjectName, World};

/// All of them, each with the object that refers to it. Those of the types that are watched as a whole are left out.
pub(super) fn all(world: &World) -> Vec<(WatchScope, ObjectRef)> {
    let mut found = ReferredSecrets { world, all: Vec::new() };
    for route in world.apisix_routes.values() {
        let of_streams = route.spec.stream.iter().flat_map(|rule| &rule.plugins);
        found.of_plugins(&**route, route.spec.http.iter().flat_map(|rule| &rule.plugins).chain(of_streams));
    }
    for config in world.apisix_plugin_configs.values() {
        found.of_plugins(&**config, &config.spec.plugins);
    }
    for rule in world.apisix_global_rules.values() {
        found.of_plugins(&**rule, &rule.spec.plugins);
    }
    for consumer in world.apisix_consumers.values() {
        let ways = &consumer.spec.auth_parameter;
        let ways = [&ways.key_auth, &ways.basic_auth, &ways.jwt_auth, &ways.hmac_auth, &ways.ldap_auth];
        let references = ways.into_iter().flatten().filter_map(|way| way.secret_ref.as_ref());
        references.for_each(|reference| found.add(&**consumer, "", &reference.name));
    }
    for consumer in world.gateway_consumers.values() {
        let references = consumer.spec.credentials.iter().filter_map(|credential| credential.secret_ref.as_ref());
        references.for_each(|reference| {
            found.add(&**consumer, reference.namespace.as_deref().unwrap_or_default(), &reference.name);
        });
        found.of_plugins(&**consumer, &consumer.spec.plugins);
    }
    for plugins in world.extension_plugins.values() {
        found.of_names(&**plugins, plugins.spec.plugins.iter().filter_map(|plugin| plugin.secret_ref.as_deref()));
    }
    for policy in world.l4_route_policies.values() {
        found.of_names(&**policy, policy.spec.plugins.iter().filter_map(|plugin| plugin.secret_ref.as_deref()));
    }
    for tls in world.apisix_tls.values() {
        let authority = tls.spec.client.iter().map(|client| &client.ca_secret);
        [&tls.spec.secret].into_iter().chain(authority).for_each(|reference| found.of_reference(&**tls, reference));
    }
    for upstream in world.apisix_upstreams.values() {
        let ports = upstream.spec.port_level_settings.iter().map(|of_port| &of_port.settings);
        let secrets = ports.chain([&upstream.spec.settings]).filter_map(|settings| settings.tls_secret.as_ref());
        secrets.for_each(|reference| found.of_reference(&**upstream, reference));
    }
    found.all
}

/// Whether what a node says of the resources of an object may quote a value of a Secret. The node may tell of an older translation than the
/// last: `later` are the objects that have changed since.
pub(in super::super) fn may_quote_secret(world: &World, object: &ObjectRef, later: &[&BTreeSet<ObjectRef>]) -> bool {
    let can_have = object.kind.is_of_apisix() || object.kind.is_route() || object.kind == Kind::Ingress;
    let is_of_lists = |changed: &ObjectRef| matches!(changed.kind, Kind::PluginConfig | Kind::L4RoutePolicy);
    let is_other = |changed: &&BTreeSet<ObjectRef>| {
        changed.contains(object) || object.kind.is_route() && changed.iter().any(is_of_lists)
    };
    has_secret_options(world, object) || can_have && later.iter().any(is_other)
}

/// Whether the options of an object have values of Secrets, at any place.
fn has_secret_options(world: &World, object: &ObjectRef) -> bool {
    let name = ObjectName::new(&object.namespace, &object.name);
    match object.kind {
        Kind::ApisixConsumer | Kind::Consumer => true,
        Kind::ApisixRoute => world.apisix_routes.get(&name).is_some_and(|route| {
            let http = &route.spec.http;
            let own = http.iter().flat_map(|rule| &rule.plugins);
            let of_streams = route.spec.stream.iter().flat_map(|rule| &rule.plugins);
            // The plugins of an ApisixPluginConfig are a part of the routes that name it.
            refers(own.chain(of_streams)) || http.iter().any(|rule| !rule.plugin_config_name.is_empty())
        }),
        Kind::ApisixPluginConfig => {
            world.apisix_plugin_configs.get(&name).is_some_and(|config| refers(&config.spec.plugins))
        }
        Kind::ApisixGlobalRule => world.apisix_global_rules.get(&name).is_some_and(|rule| refers(&rule.spec.plugins)),
        Kind::Ingress => world
            .ingresses
            .get(&name)
            .is_some_and(|ingress| SECRET_ANNOTATIONS.iter().any(|key| annotation(&ingress.metadata, key).is_some())),
        Kind::HTTPRoute | Kind::GRPCRoute => names_secret_list(world, object.kind, &name),
        Kind::TCPRoute | Kind::TLSRoute | Kind::UDPRoute => {
            let policies = world.l4_route_policies.values();
            let mut secretive = policies.filter(|policy| names_secret(&policy.spec.plugins));
            secretive.any(|policy| {
                let is_own = |target: &PolicyTarget| target.kind == object.kind.name() && target.name == name.name;
                policy.metadata.namespace == name.namespace && policy.spec.target_refs.iter().any(is_own)
            })
        }
        _ => false,
    }
}

fn refers<'p>(plugins: impl IntoIterator<Item = &'p ApisixPlugin>) -> bool {
    plugins.into_iter().any(|plugin| plugin.enable && plugin.secret_ref.is_some())
}

fn names_secret(plugins: &[ExtensionPlugin]) -> bool {
    plugins.iter().any(|plugin| plugin.secret_ref.is_some())
}

/// Whether a filter of a route names a PluginConfig with values of Secrets.
fn names_secret_list(world: &World, kind: Kind, name: &ObjectName) -> bool {
    let is_secretive = |filter: &RouteFilter| {
        let list = filter.extension_ref.as_ref().map(|list| ObjectName::new(&name.namespace, &list.name));
        let list = list.and_then(|list| world.extension_plugins.get(&list));
        list.is_some_and(|list| names_secret(&list.spec.plugins))
    };
    match kind {
        Kind::HTTPRoute => world
            .http_routes
            .get(name)
            .is_some_and(|route| route.spec.rules.iter().any(|rule| rule.filters.iter().any(is_secretive))),
        _ => world
            .grpc_routes
            .get(name)
            .is_some_and(|route| route.spec.rules.iter().any(|rule| rule.filters.iter().any(is_secretive))),
    }
}

struct ReferredSecrets<'w> {
    world: &'w World,
    all: Vec<(WatchScope, ObjectRef)>,
}

impl ReferredSecrets<'_> {
    fn of_plugins<'p, T: KubeObject>(&mut self, object: &T, plugins: impl IntoIterator<Item = &'p ApisixPlugin>) {
        let enabled = plugins.into_iter().filter(|plugin| plugin.enable);
        self.of_names(object, enabled.filter_map(|plugin| plugin.secret_ref.as_deref()));
    }

    /// Secrets of the namespace of the object. An empty name stands for none.
    fn of_names<'p, T: KubeObject>(&mut self, object: &T, names: impl Iterator<Item = &'p str>) {
        names.filter(|name| !name.is_empty()).for_each(|name| self.add(object, "", name));
    }

    fn of_reference<T: KubeObject>(&mut self, object: &T, reference: &ApisixSecretReference) {
        self.add(object, &reference.namespace, &reference.name);
    }

    fn add<T: KubeObject>(&mut self, object: &T, namespace: &str, name: &str) {
        let namespace = if namespace.is_empty() { &*object.metadata().namespace } else { namespace };
        let known = self.world.secrets.get(&ObjectName::new(namespace, name));
        let is_watched = known.is_some_and(|secret| ["kubernetes.io/tls", SECRET_OF_PLUGINS].contains(&&*secret.kind));
        if !is_watched {
            self.all.push((WatchScope::of_object(Kind::Secret, namespace, name), ObjectRef::of(object)));
        }
    }
}
