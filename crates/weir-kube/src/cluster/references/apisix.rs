//! The Secrets that objects of the APISIX ingress controller refer to.

use std::collections::BTreeSet;

use super::super::WatchScope;
use crate::objects::apisix::{ApisixPlugin, ApisixSecretReference};
use crate::objects::core::SECRET_OF_PLUGINS;
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
        found.of_names(&**plugins, plugins.spec.plugins.iter().map(|plugin| &plugin.secret_ref));
    }
    for policy in world.l4_route_policies.values() {
        found.of_names(&**policy, policy.spec.plugins.iter().map(|plugin| &plugin.secret_ref));
    }
    for proxy in world.gateway_proxies.values() {
        let enabled = proxy.spec.plugins.iter().filter(|plugin| plugin.enabled);
        found.of_names(&**proxy, enabled.map(|plugin| &plugin.secret_ref));
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

/// The objects whose options may have values of Secrets, at any place: what a node says of them may quote one.
pub(in super::super) fn with_secret_options(world: &World) -> BTreeSet<ObjectRef> {
    fn refers<'p>(plugins: impl IntoIterator<Item = &'p ApisixPlugin>) -> bool {
        plugins.into_iter().any(|plugin| plugin.enable && !plugin.secret_ref.is_empty())
    }
    let mut found = BTreeSet::new();
    for route in world.apisix_routes.values() {
        let http = &route.spec.http;
        let own = http.iter().flat_map(|rule| &rule.plugins);
        let of_streams = route.spec.stream.iter().flat_map(|rule| &rule.plugins);
        // The plugins of an ApisixPluginConfig are a part of the routes that name it.
        if refers(own.chain(of_streams)) || http.iter().any(|rule| !rule.plugin_config_name.is_empty()) {
            found.insert(ObjectRef::of(&**route));
        }
    }
    let configs = world.apisix_plugin_configs.values().filter(|config| refers(&config.spec.plugins));
    found.extend(configs.map(|config| ObjectRef::of(&**config)));
    let rules = world.apisix_global_rules.values().filter(|rule| refers(&rule.spec.plugins));
    found.extend(rules.map(|rule| ObjectRef::of(&**rule)));
    found.extend(world.apisix_consumers.values().map(|consumer| ObjectRef::of(&**consumer)));
    found.extend(world.gateway_consumers.values().map(|consumer| ObjectRef::of(&**consumer)));
    let proxies = world.gateway_proxies.values();
    let proxies = proxies.filter(|proxy| proxy.spec.plugins.iter().any(|plugin| !plugin.secret_ref.is_empty()));
    found.extend(proxies.map(|proxy| ObjectRef::of(&**proxy)));
    // The plugins of others become those of routes.
    let lists = world.extension_plugins.iter().map(|(name, object)| (name, &object.spec.plugins));
    let lists = lists.chain(world.l4_route_policies.iter().map(|(name, object)| (name, &object.spec.plugins)));
    let secretive = lists.filter(|(_, plugins)| plugins.iter().any(|plugin| !plugin.secret_ref.is_empty()));
    let namespaces: BTreeSet<&str> = secretive.map(|(name, _)| &*name.namespace).collect();
    for &kind in Kind::ALL.iter().filter(|kind| kind.is_route() && !namespaces.is_empty()) {
        let names = world.names(kind).into_iter().filter(|name| namespaces.contains(&*name.namespace));
        found.extend(names.map(|ObjectName { namespace, name }| ObjectRef { kind, namespace, name }));
    }
    found
}

struct ReferredSecrets<'w> {
    world: &'w World,
    all: Vec<(WatchScope, ObjectRef)>,
}

impl ReferredSecrets<'_> {
    fn of_plugins<'p, T: KubeObject>(&mut self, object: &T, plugins: impl IntoIterator<Item = &'p ApisixPlugin>) {
        let enabled = plugins.into_iter().filter(|plugin| plugin.enable);
        self.of_names(object, enabled.map(|plugin| &plugin.secret_ref));
    }

    /// Secrets of the namespace of the object. An empty name stands for none.
    fn of_names<'p, T: KubeObject>(&mut self, object: &T, names: impl Iterator<Item = &'p String>) {
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
