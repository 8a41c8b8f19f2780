//! GatewayProxies: what Gateways and classes of the APISIX ingress controller say by `parametersRef`.

use std::collections::BTreeSet;

use super::conditions::Problem;
use crate::objects::Kind;
use crate::objects::apisix_gateway::GatewayProxy;
use crate::objects::meta::ObjectReference;
use crate::translation::KubeOptions;
use crate::world::{ObjectName, World};

/// The GatewayProxy that an object names by its parameters, if these are adopted. `own` is the namespace of the object.
pub(super) fn find<'w>(
    world: &'w World,
    options: &KubeOptions,
    reference: &ObjectReference,
    own: &str,
) -> Option<&'w GatewayProxy> {
    let is_meant = options.adopt_apisix
        && reference.group.as_deref() == Some(Kind::GatewayProxy.group())
        && reference.kind.as_deref() == Some(Kind::GatewayProxy.name());
    // A Gateway names one of its own namespace.
    let namespace = if own.is_empty() { reference.namespace.as_deref().unwrap_or_default() } else { own };
    let found = world.gateway_proxies.get(&ObjectName::new(namespace, &*reference.name));
    found.filter(|_| is_meant).map(|proxy| &**proxy)
}

/// Why the parameters of an object cannot be followed.
pub(super) fn refusal(world: &World, options: &KubeOptions, reference: &ObjectReference, own: &str) -> Option<Problem> {
    if find(world, options, reference, own).is_some() {
        return None;
    }
    let message = match options.adopt_apisix {
        true => "parametersRef: there is no such object; only a GatewayProxy of apisix.apache.org is supported",
        false => "parametersRef is not supported: leave it out",
    };
    Some(Problem::new("InvalidParameters", message))
}

/// The GatewayProxies of our Gateways and classes. `is_class` says which IngressClasses, by their controller, are ours.
pub(super) fn used<'w>(
    world: &'w World,
    options: &KubeOptions,
    is_class: impl Fn(&str) -> bool,
) -> Vec<&'w GatewayProxy> {
    let classes: BTreeSet<&str> = world
        .gateway_classes
        .values()
        .filter(|class| class.spec.controller_name == options.controller_name)
        .map(|class| &*class.metadata.name)
        .collect();
    let of_classes = world.gateway_classes.values().filter(|class| classes.contains(&*class.metadata.name));
    let of_classes = of_classes.filter_map(|class| Some((class.spec.parameters_ref.as_ref()?, "")));
    let gateways = world.gateways.values().filter(|gateway| classes.contains(&*gateway.spec.gateway_class_name));
    let of_gateways = gateways.filter_map(|gateway| {
        Some((gateway.spec.infrastructure.as_ref()?.parameters_ref.as_ref()?, &*gateway.metadata.namespace))
    });
    let ingresses = world.ingress_classes.values().filter(|class| is_class(&class.spec.controller));
    let of_ingresses = ingresses.filter_map(|class| Some((class.spec.parameters.as_ref()?, "")));
    let mut seen = BTreeSet::new();
    let mut found: Vec<&GatewayProxy> = of_classes
        .chain(of_gateways)
        .chain(of_ingresses)
        .filter_map(|(reference, own)| find(world, options, reference, own))
        .filter(|proxy| seen.insert((&proxy.metadata.namespace, &proxy.metadata.name)))
        .collect();
    found.sort_by(|one, other| super::precedence::precedence(&one.metadata, &other.metadata));
    found
}
