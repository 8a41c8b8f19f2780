//! Discovery of services: the registries that upstreams with `service_name` take their endpoints from.
//!
//! A kind of registry is one file: the keys of its settings, their reader, and the client that follows services. Its line is in
//! [`REGISTRIES`]. The answers leave through [`Tell`]; what becomes of them, `weir-control` decides.

#![forbid(unsafe_code)]

mod registry;
mod settings;

use weir_keys::keys::AnyKey;

pub use registry::{
    ComparedRegistry, FollowingTask, RegistryKind, RegistryNews, ServiceInstance, ServiceRegistry, Tell, WantedServices,
};
pub use settings::{DISCOVERY, DiscoveryKeys, DiscoverySettings, DiscoveryType, discovery_types, one_of, read};

macro_rules! registries {
    ($($module:ident),+) => {
        $(mod $module;)+

        /// All kinds of registries.
        pub static REGISTRIES: &[&RegistryKind] = &[$(&$module::KIND),+];

        /// The keys of `discovery`.
        static KEYS: &[&dyn AnyKey] = &[$(&$module::KIND.key),+];
    };
}

registries!(eureka, consul);
