//! What sends: the attributes of the resource, and the instrumentation scope.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::state;

use crate::messages::{ResourceValue, resource_attribute};

/// The instrumentation scope: the name and version of this gateway.
pub const SCOPE: (&str, &str) = ("weir", env!("CARGO_PKG_VERSION"));

/// A value of a resource's attribute.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ResourceSpec {
    Flag(bool),
    Number(f64),
    Text(String),
}

/// `service.instance.id`: identifies this process, so a new one begins with a start or binary upgrade.
struct InstanceId(String);

impl Default for InstanceId {
    fn default() -> InstanceId {
        InstanceId(uuid::Builder::from_random_bytes(rand::random()).into_uuid().to_string())
    }
}

/// The attributes of the resource: those from the settings, and defaults that describe this process. All signals have the same,
/// but for the name of the service unless it is set.
pub fn resource(attributes: &BTreeMap<String, ResourceSpec>, service: &str) -> Vec<u8> {
    let mut resource = Vec::new();
    let instance = state::permanent::<InstanceId>("service-instance");
    let hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
    for (name, value) in [
        ("service.name", service),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("service.instance.id", &*instance.0),
        ("host.name", &*hostname),
        ("telemetry.sdk.name", "weir"),
        ("telemetry.sdk.language", "rust"),
        ("telemetry.sdk.version", env!("CARGO_PKG_VERSION")),
    ] {
        if !attributes.contains_key(name) {
            resource_attribute(&mut resource, name, &ResourceValue::Text(value));
        }
    }
    for (name, value) in attributes {
        let value = match value {
            ResourceSpec::Text(text) => ResourceValue::Text(text),
            ResourceSpec::Flag(flag) => ResourceValue::Flag(*flag),
            ResourceSpec::Number(number) => ResourceValue::Number(*number),
        };
        resource_attribute(&mut resource, name, &value);
    }
    resource
}
