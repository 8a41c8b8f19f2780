//! The Gateway API.

use super::backends::Backends;
use crate::translation::{Options, Translation};
use crate::world::World;

pub(super) fn translate(_world: &World, _options: &Options, _backends: &mut Backends, _translation: &mut Translation) {}
