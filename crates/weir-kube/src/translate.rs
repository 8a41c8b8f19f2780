//! From objects to resources and statuses.

mod backends;
mod expressions;
mod gateway;
mod ingress;

use self::backends::ServiceBackends;
use self::expressions::Expressions;
pub use self::ingress::{SERVED, annotations as ingress_nginx};
use crate::translation::{KubeOptions, Translation};
use crate::world::World;

/// What the objects of a cluster mean: a pure function, without I/O and without a clock. A faulty object changes nothing about
/// what the others mean, except where they refer to it.
pub fn translate(world: &World, options: &KubeOptions) -> Translation {
    let mut translation = Translation::default();
    let mut backends = ServiceBackends::new(world);
    let mut expressions = Expressions::default();
    gateway::translate(world, options, &mut backends, &mut expressions, &mut translation);
    ingress::translate(world, options, &mut backends, &mut expressions, &mut translation);
    translation.resources.extend(backends.into_resources());
    // Stable: routes stay in the order in which conflicts are decided.
    translation.resources.sort_by_key(|resource| resource.kind);
    translation.statuses.sort_by(|a, b| a.object.cmp(&b.object));
    translation
}
