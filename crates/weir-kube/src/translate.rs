//! From objects to resources and statuses.

mod apisix;
mod backends;
mod closed;
mod conditions;
mod endpoints;
mod expressions;
mod extensions;
mod gateway;
mod grants;
mod ingress;
mod node_references;
mod pem;
mod plugin_lists;
mod policies;
mod policy_statuses;
mod policy_targets;
mod precedence;
mod proxies;
pub mod reach;
mod secret_options;
mod shared;
mod stream_policies;
mod together;
mod traffic_policies;
mod translator;
mod upstream_settings;
mod upstreams;

pub use self::closed::{SubstituteResource, substitute};
pub use self::ingress::{NO_CERTIFICATE, SERVED, annotations as ingress_nginx};
pub use self::translator::Translator;
use crate::translation::{KubeOptions, ResourceList, Translation};
use crate::world::{World, WorldChanges};

/// What the objects of a cluster mean: a pure function, without I/O and without a clock. A faulty object changes nothing about
/// what the others mean, except where they refer to it.
pub fn translate(world: &World, options: &KubeOptions) -> Translation {
    let mut translation = Translation::default();
    let mut translator = Translator::new(options.clone());
    translator.translate(world, &WorldChanges::default(), &mut translation);
    translation.events.extend(translator.events().cloned());
    translation.owned.extend(translator.owned().iter().cloned());
    // Stable: routes stay in the order in which conflicts are decided. That of upstreams does not matter.
    translation.resources.sort_by(|one, other| {
        let of_upstreams = || match one.kind {
            ResourceList::Upstreams => one.id.cmp(&other.id),
            _ => std::cmp::Ordering::Equal,
        };
        one.kind.cmp(&other.kind).then_with(of_upstreams)
    });
    translation.statuses.sort_by(|a, b| a.object.cmp(&b.object));
    translation
}
