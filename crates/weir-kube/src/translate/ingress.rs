//! Ingress: the rules of the Kubernetes API, and on demand the annotations and defaults of ingress-nginx.

pub mod annotations;
mod apisix_annotations;
mod canaries;
mod certificates;
mod claimed;
mod class;
mod matcher;
mod routes;
mod settings;
mod sites;
mod targets;

use std::collections::BTreeSet;

use serde_json::json;

use self::claimed::Claimed;
pub use self::claimed::{NO_CERTIFICATE, SERVED};
use self::class::IngressDialect;
use self::routes::RouteWriter;
use self::settings::IngressSettings;
use super::backends::ServiceBackends;
use super::expressions::Expressions;
use super::policies::PluginPolicies;
use super::shared::SharedResources;
use super::together::TranslatedTogether;
use crate::objects::Kind;
use crate::objects::ingress::Ingress;
use crate::translation::{KubeOptions, ObjectStatus, Translation, TranslationReader};
use crate::world::{World, WorldChanges};

/// What all Ingresses of our classes mean.
#[derive(Default)]
pub(super) struct TranslatedIngresses {
    pub made: TranslatedTogether,
    /// What the regular expressions of namespaces have taken, with those of Ingresses.
    pub expressions: Expressions,
}

impl TranslatedIngresses {
    /// Whether changes concern any of them.
    pub(super) fn is_stale(&self, world: &World, changes: &WorldChanges) -> bool {
        const KINDS: [Kind; 7] = [
            Kind::Ingress,
            Kind::IngressClass,
            Kind::Secret,
            Kind::ConfigMap,
            Kind::WeirPolicy,
            Kind::HTTPRoutePolicy,
            Kind::ApisixTls,
        ];
        self.made.is_stale(world, changes, &KINDS)
    }

    /// Translates all of them again.
    pub(super) fn translate(
        &mut self,
        input: (&World, &KubeOptions, &PluginPolicies),
        expressions: Expressions,
        shared: &mut SharedResources,
        reader: &mut dyn TranslationReader,
    ) {
        let mut translation = Translation::default();
        let mut backends = ServiceBackends::new(input.0);
        self.expressions = expressions;
        translate(input, &mut backends, &mut self.expressions, &mut translation);
        self.made.replace(translation, backends, shared, reader);
    }
}

/// Whether a policy can be about an Ingress.
pub(super) enum PolicyTargetState {
    Ours,
    /// Another controller's.
    Theirs,
    /// A part of another one.
    Canary,
}

pub(super) fn as_target(ingress: &Ingress, world: &World, options: &KubeOptions) -> PolicyTargetState {
    let Some(dialect) = class::dialect(ingress, world, options) else { return PolicyTargetState::Theirs };
    let mut settings = IngressSettings::default();
    if dialect == IngressDialect::IngressNginx {
        annotations::read(&annotations::Annotations::new(ingress, world), &mut settings);
    }
    if settings.canary.is_some() { PolicyTargetState::Canary } else { PolicyTargetState::Ours }
}

fn translate(
    (world, options, policies): (&World, &KubeOptions, &PluginPolicies),
    backends: &mut ServiceBackends,
    expressions: &mut Expressions,
    translation: &mut Translation,
) {
    let all = claimed::all(world, options, translation);
    let sites = sites::collect(&all, translation);
    let tls = certificates::add(&all, &sites, (world, options), translation);
    let policy_sets = &mut BTreeSet::new();
    let default = all.iter().filter(|claimed| has_default(claimed));
    let default = default.filter_map(|claimed| Some((claimed, claimed.ingress.spec.default_backend.as_ref()?))).next();
    let has_default = default.is_some();
    let mut writer =
        RouteWriter { backends, options, policies, policy_sets, tls: &tls, has_default, translation, expressions };
    for (host, site) in &sites {
        writer.site(host, site, &sites);
    }
    if let Some((claimed, backend)) = default {
        writer.default_backend(claimed, backend);
    }
    translation.statuses.extend(all.iter().map(|claimed| status(claimed, options)));
}

/// Whether its default backend is that of all hosts; with ingress-nginx it is that of the hosts of its rules, if it has rules.
fn has_default(claimed: &Claimed) -> bool {
    claimed.dialect != IngressDialect::IngressNginx || claimed.ingress.spec.rules.is_empty()
}

/// The addresses, unless the Ingress is not served.
fn status(claimed: &Claimed, options: &KubeOptions) -> ObjectStatus {
    let entry = |address: &String| match address.parse::<std::net::IpAddr>() {
        Ok(_) => json!({ "ip": address }),
        Err(_) => json!({ "hostname": address }),
    };
    let addresses: Vec<_> = options.publish_addresses.iter().filter(|_| !claimed.is_refused).map(entry).collect();
    let balancer = if addresses.is_empty() { json!({}) } else { json!({ "ingress": addresses }) };
    ObjectStatus {
        object: claimed.object(),
        generation: claimed.ingress.metadata.generation,
        status: json!({ "loadBalancer": balancer }),
    }
}
