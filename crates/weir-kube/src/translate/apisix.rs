//! The kinds of the APISIX ingress controller: routes with their upstreams, plugins, consumers, certificates and global rules.
//!
//! What one of them says wrongly is named in its own status, and changes nothing about the others. A rule whose requests are known, and
//! that cannot be served as it is, answers with 503; one whose requests are not known takes none.

mod authentication;
mod backends;
mod class;
mod consumers;
mod expressions;
mod gateway_consumers;
mod global_rules;
mod matches;
mod outcomes;
mod plugin_configs;
mod plugins;
mod routes;
mod secrets;
mod streams;
mod tls;
mod upstreams;

use std::collections::BTreeSet;

pub(super) use self::class::APISIX;
use self::class::is_ours;
use self::outcomes::ApisixOutcome;
use self::plugin_configs::PluginConfigs;
use self::plugins::{CheckedPlugins, PluginChecker};
pub(super) use self::tls::demanding;
use super::backends::ServiceBackends;
use super::expressions::Expressions;
use super::grants::Grants;
use super::shared::SharedResources;
use super::together::TranslatedTogether;
use crate::objects::{Kind, KubeObject};
use crate::translation::{KubeOptions, Translation, TranslationReader};
use crate::world::{Objects, World, WorldChanges};

/// What all objects of these kinds mean.
#[derive(Default)]
pub(super) struct TranslatedApisix {
    pub made: TranslatedTogether,
    checked: CheckedPlugins,
    /// Those of the last translation.
    gateway_ports: GatewayPorts,
}

/// `TCP` or `UDP`, and the port, of the listeners of Gateways.
type GatewayPorts = BTreeSet<(&'static str, u16)>;

/// What the translation reads.
struct ApisixContext<'a> {
    world: &'a World,
    options: &'a KubeOptions,
    grants: Grants<'a>,
    /// The server names for which an Ingress brings a certificate.
    taken_names: &'a BTreeSet<String>,
    gateway_ports: &'a GatewayPorts,
}

impl TranslatedApisix {
    /// Whether changes concern any of them.
    pub(super) fn is_stale(&self, world: &World, changes: &WorldChanges, gateway_ports: &GatewayPorts) -> bool {
        const BESIDE: [Kind; 5] =
            [Kind::IngressClass, Kind::GatewayClass, Kind::Gateway, Kind::Secret, Kind::ReferenceGrant];
        changes.objects.iter().any(|object| object.kind.is_of_apisix())
            || self.gateway_ports != *gateway_ports
            || self.made.is_stale(world, changes, &BESIDE)
    }

    /// Translates all of them again.
    pub(super) fn translate(
        &mut self,
        (world, options): (&World, &KubeOptions),
        (taken_names, gateway_ports): (&BTreeSet<String>, &GatewayPorts),
        mut expressions: Expressions,
        shared: &mut SharedResources,
        reader: &mut dyn TranslationReader,
    ) {
        let mut translation = Translation::default();
        let mut backends = ServiceBackends::new(world);
        if options.adopt_apisix {
            let context = ApisixContext { world, options, grants: Grants::new(world), taken_names, gateway_ports };
            let mut checker = PluginChecker::new(&context, &mut self.checked);
            let configs = PluginConfigs::new(&context, &mut checker, &mut translation);
            routes::add(&context, (&configs, &mut checker), &mut backends, &mut expressions, &mut translation);
            upstreams::tell(&context, &backends, &mut translation);
            let mut names = consumers::add(&context, &mut translation);
            gateway_consumers::add(&context, &mut checker, &mut names, &mut translation);
            tls::add(&context, &mut expressions, &mut translation);
            global_rules::add(&context, &mut checker, &mut translation);
            checker.finish();
        }
        self.gateway_ports.clone_from(gateway_ports);
        self.made.replace(translation, backends, shared, reader);
    }
}

/// The objects of a kind that are ours, the oldest first.
fn own<'a, T: KubeObject>(
    context: &ApisixContext<'a>,
    objects: &'a Objects<T>,
    class: impl Fn(&T) -> &str,
) -> Vec<&'a T> {
    of_class((context.world, context.options), objects, class)
}

fn of_class<'a, T: KubeObject>(
    (world, options): (&World, &KubeOptions),
    objects: &'a Objects<T>,
    class: impl Fn(&T) -> &str,
) -> Vec<&'a T> {
    let is_own = |object: &&T| object.metadata().deletion_timestamp.is_none() && is_ours(class(object), world, options);
    let mut found: Vec<&T> = objects.values().map(|object| &**object).filter(is_own).collect();
    found.sort_by(|one, other| super::precedence::precedence(one.metadata(), other.metadata()));
    found
}
