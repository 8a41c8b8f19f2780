//! Ingress.

use super::backends::ServiceBackends;
use crate::translation::{KubeOptions, Translation};
use crate::world::World;

pub(super) fn translate(
    _world: &World,
    _options: &KubeOptions,
    _backends: &mut ServiceBackends,
    _translation: &mut Translation,
) {
}
