//! From objects to resources and statuses.

#[allow(dead_code, reason = "the translations that use it follow")]
mod backends;
mod gateway;
mod ingress;

use self::backends::Backends;
use crate::translation::{Options, Translation};
use crate::world::World;

/// What the objects of a cluster mean: a pure function, without I/O and without a clock. A faulty object changes nothing about
/// what the others mean, except where they refer to it.
pub fn translate(world: &World, options: &Options) -> Translation {
    let mut translation = Translation::default();
    let mut backends = Backends::new(world);
    gateway::translate(world, options, &mut backends, &mut translation);
    ingress::translate(world, options, &mut backends, &mut translation);
    translation.resources.extend(backends.into_resources());
    translation.resources.sort_by(|a, b| (a.kind, &a.id).cmp(&(b.kind, &b.id)));
    translation.statuses.sort_by(|a, b| a.object.cmp(&b.object));
    translation
}
