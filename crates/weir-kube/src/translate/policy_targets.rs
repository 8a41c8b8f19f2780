//! What policies are about.

use crate::objects::ObjectRef;

/// An object, and a part of it.
pub(super) type PolicyTargetPart = (ObjectRef, Option<String>);
