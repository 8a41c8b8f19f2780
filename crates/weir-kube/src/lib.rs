//! Kubernetes: what its objects mean as resources of Weir.
//!
//! [`translate`] is a pure function from the objects of a cluster, the [`World`], to resources and statuses; [`Translator`] is the same
//! function for a world that changes again and again. Where the objects come from, and who writes the statuses, is known elsewhere: a
//! cluster that is watched, or manifests in a file.

#![forbid(unsafe_code)]

#[cfg(feature = "client")]
pub mod cluster;
pub mod objects;
mod translate;
mod translation;
mod world;

pub use translate::{
    NO_CERTIFICATE, SERVED, SubstituteResource, Translator, ingress_nginx, reach, substitute, translate,
};
pub use translation::{
    DerivedResource, EventKind, GatewayAddresses, KubeOptions, ObjectEvent, ObjectStatus, OwnedObject, PolicyPlugins,
    ResourceList, Translation, TranslationReader,
};
pub use world::{Manifests, ObjectName, Objects, World, WorldChanges};
