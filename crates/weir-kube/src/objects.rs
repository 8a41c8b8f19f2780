//! The objects of a cluster, trimmed to the fields that are read. Unknown fields are skipped.
//!
//! Names of types and fields are those of the Kubernetes API and the Gateway API.

pub mod apisix;
pub mod apisix_gateway;
pub mod core;
pub mod gateway;
pub mod ingress;
pub mod meta;
pub mod policy;
pub mod routes;
pub mod streams;

use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;

use meta::ObjectMeta;

/// An object that has metadata.
pub trait KubeObject {
    const KIND: Kind;
    fn metadata(&self) -> &ObjectMeta;
}

/// Declares the kinds: name, type, API group, versions from the preferred one on, name in URLs, and whether in a namespace.
macro_rules! kinds {
    ($($name:ident($object:ty): $group:literal $versions:expr, $plural:literal, $namespaced:literal;)+) => {
        /// The kinds of objects that are read.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind { $($name),+ }

        /// An object of any of the kinds.
        #[derive(Clone, Debug)]
        pub enum Object { $($name(Arc<$object>)),+ }

        impl Kind {
            pub const ALL: &[Kind] = &[$(Kind::$name),+];

            /// As in `kind` of a manifest.
            pub const fn name(self) -> &'static str {
                match self { $(Kind::$name => stringify!($name)),+ }
            }

            /// The API group; empty for the core kinds.
            pub const fn group(self) -> &'static str {
                match self { $(Kind::$name => $group),+ }
            }

            /// The versions that are read, the preferred one first.
            pub const fn versions(self) -> &'static [&'static str] {
                match self { $(Kind::$name => &$versions),+ }
            }

            /// The name in URLs: `httproutes`.
            pub const fn plural(self) -> &'static str {
                match self { $(Kind::$name => $plural),+ }
            }

            pub const fn is_namespaced(self) -> bool {
                match self { $(Kind::$name => $namespaced),+ }
            }

            /// `apiVersion` of a manifest, for a version of the group.
            pub fn api_version(self, version: &str) -> String {
                match self.group() {
                    "" => version.to_owned(),
                    group => format!("{group}/{version}"),
                }
            }

            /// Reads an object of this kind.
            ///
            /// # Errors
            /// If a field does not have the type of the API, or there is no name.
            pub fn read(self, value: Value) -> Result<Object, ObjectError> {
                match self { $(Kind::$name => read::<$object>(value).map(|object| Object::$name(Arc::new(object)))),+ }
            }
        }

        impl Object {
            pub fn kind(&self) -> Kind {
                match self { $(Object::$name(_) => Kind::$name),+ }
            }

            pub fn metadata(&self) -> &ObjectMeta {
                match self { $(Object::$name(object) => object.metadata()),+ }
            }

            pub fn reference(&self) -> ObjectRef {
                match self { $(Object::$name(object) => ObjectRef::of(&**object)),+ }
            }
        }

        $(impl KubeObject for $object {
            const KIND: Kind = Kind::$name;
            fn metadata(&self) -> &ObjectMeta { &self.metadata }
        })+
    };
}

kinds! {
    Namespace(core::KubeNamespace): "" ["v1"], "namespaces", false;
    Service(core::Service): "" ["v1"], "services", true;
    EndpointSlice(core::EndpointSlice): "discovery.k8s.io" ["v1"], "endpointslices", true;
    Secret(core::Secret): "" ["v1"], "secrets", true;
    ConfigMap(core::ConfigMap): "" ["v1"], "configmaps", true;
    GatewayClass(gateway::GatewayClass): "gateway.networking.k8s.io" ["v1", "v1beta1"], "gatewayclasses", false;
    Gateway(gateway::KubeGateway): "gateway.networking.k8s.io" ["v1", "v1beta1"], "gateways", true;
    ListenerSet(gateway::ListenerSet): "gateway.networking.k8s.io" ["v1"], "listenersets", true;
    HTTPRoute(routes::HttpRoute): "gateway.networking.k8s.io" ["v1", "v1beta1"], "httproutes", true;
    GRPCRoute(routes::GrpcRoute): "gateway.networking.k8s.io" ["v1"], "grpcroutes", true;
    TCPRoute(streams::TcpRoute): "gateway.networking.k8s.io" ["v1", "v1alpha2"], "tcproutes", true;
    TLSRoute(streams::TlsRoute): "gateway.networking.k8s.io" ["v1", "v1alpha3", "v1alpha2"], "tlsroutes", true;
    UDPRoute(streams::UdpRoute): "gateway.networking.k8s.io" ["v1", "v1alpha2"], "udproutes", true;
    ReferenceGrant(policy::ReferenceGrant): "gateway.networking.k8s.io" ["v1", "v1beta1"], "referencegrants", true;
    BackendTLSPolicy(policy::BackendTlsPolicy): "gateway.networking.k8s.io" ["v1"], "backendtlspolicies", true;
    WeirPolicy(policy::WeirPolicy): "weir.dev" ["v1alpha1"], "weirpolicies", true;
    Ingress(ingress::Ingress): "networking.k8s.io" ["v1"], "ingresses", true;
    IngressClass(ingress::IngressClass): "networking.k8s.io" ["v1"], "ingressclasses", false;
    ApisixRoute(apisix::ApisixRoute): "apisix.apache.org" ["v2"], "apisixroutes", true;
    ApisixUpstream(apisix::ApisixUpstream): "apisix.apache.org" ["v2"], "apisixupstreams", true;
    ApisixTls(apisix::ApisixTls): "apisix.apache.org" ["v2"], "apisixtlses", true;
    ApisixConsumer(apisix::ApisixConsumer): "apisix.apache.org" ["v2"], "apisixconsumers", true;
    ApisixPluginConfig(apisix::ApisixPluginConfig): "apisix.apache.org" ["v2"], "apisixpluginconfigs", true;
    ApisixGlobalRule(apisix::ApisixGlobalRule): "apisix.apache.org" ["v2"], "apisixglobalrules", true;
    GatewayProxy(apisix_gateway::GatewayProxy): "apisix.apache.org" ["v1alpha1"], "gatewayproxies", true;
    PluginConfig(apisix_gateway::ExtensionPlugins): "apisix.apache.org" ["v1alpha1"], "pluginconfigs", true;
    BackendTrafficPolicy(apisix_gateway::BackendTrafficPolicy): "apisix.apache.org" ["v1alpha1"], "backendtrafficpolicies", true;
    HTTPRoutePolicy(apisix_gateway::HttpRoutePolicy): "apisix.apache.org" ["v1alpha1"], "httproutepolicies", true;
    L4RoutePolicy(apisix_gateway::L4RoutePolicy): "apisix.apache.org" ["v1alpha1"], "l4routepolicies", true;
    Consumer(apisix_gateway::GatewayConsumer): "apisix.apache.org" ["v1alpha1"], "consumers", true;
}

impl Kind {
    /// Whether it is a route of the Gateway API.
    pub const fn is_route(self) -> bool {
        matches!(self, Kind::HTTPRoute | Kind::GRPCRoute) || self.is_stream_route()
    }

    /// Whether it is a route for what is not HTTP.
    pub const fn is_stream_route(self) -> bool {
        matches!(self, Kind::TCPRoute | Kind::TLSRoute | Kind::UDPRoute)
    }

    /// Whether it is a kind of the APISIX ingress controller.
    pub fn is_of_apisix(self) -> bool {
        self.group() == Kind::ApisixRoute.group()
    }

    /// Whether its objects protect what others serve: as long as the cluster has them, nothing is served without them.
    pub const fn is_protection(self) -> bool {
        matches!(
            self,
            Kind::WeirPolicy
                | Kind::ApisixRoute
                | Kind::ApisixUpstream
                | Kind::ApisixTls
                | Kind::ApisixConsumer
                | Kind::ApisixPluginConfig
                | Kind::ApisixGlobalRule
                | Kind::GatewayProxy
                | Kind::HTTPRoutePolicy
                | Kind::L4RoutePolicy
        )
    }

    /// The kind with this `apiVersion` and `kind`, if it is read.
    pub fn find(api_version: &str, kind: &str) -> Option<Kind> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let mut kinds = Kind::ALL.iter().copied();
        kinds.find(|known| known.name() == kind && known.group() == group && known.versions().contains(&version))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// Names an object. In messages: `HTTPRoute shop/orders`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    pub kind: Kind,
    /// Empty if objects of this kind are in no namespace.
    pub namespace: String,
    pub name: String,
}

impl ObjectRef {
    pub fn of<T: KubeObject>(object: &T) -> ObjectRef {
        let metadata = object.metadata();
        ObjectRef { kind: T::KIND, namespace: metadata.namespace.clone(), name: metadata.name.clone() }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ", self.kind)?;
        if !self.namespace.is_empty() {
            write!(out, "{}/", self.namespace)?;
        }
        out.write_str(&self.name)
    }
}

/// An object does not have the form of its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectError(pub String);

impl fmt::Display for ObjectError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for ObjectError {}

fn read<T: DeserializeOwned + KubeObject>(mut value: Value) -> Result<T, ObjectError> {
    drop_nulls(&mut value);
    let place = format!("{} {}", T::KIND, value["metadata"]["name"].as_str().unwrap_or_default());
    let object: T = serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let path = if path == "." { String::new() } else { format!("{path}: ") };
        ObjectError(format!("{place}: {path}{}", error.into_inner()))
    })?;
    if object.metadata().name.is_empty() {
        return Err(ObjectError(format!("{place}: `metadata.name` is missing")));
    }
    Ok(object)
}

/// In the Kubernetes API, a field with `null` is a field that is not there.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_kind_is_found_by_group_version_and_name() {
        assert_eq!(Kind::find("v1", "Service"), Some(Kind::Service));
        assert_eq!(Kind::find("gateway.networking.k8s.io/v1beta1", "ReferenceGrant"), Some(Kind::ReferenceGrant));
        assert_eq!(Kind::find("serving.knative.dev/v1", "Service"), None);
        assert_eq!(Kind::find("networking.k8s.io/v1beta1", "Ingress"), None);
    }

    #[test]
    fn a_field_with_null_is_not_there_and_an_unknown_field_is_skipped() {
        let value = json!({ "metadata": { "name": "a", "labels": null, "managedFields": [1] }, "spec": null, "x": 1 });
        let object = Kind::Service.read(value).unwrap();
        assert_eq!(object.metadata().name, "a");
    }

    #[test]
    fn an_error_names_the_object() {
        let error = Kind::Service.read(json!({ "metadata": { "name": "a" }, "spec": { "ports": 1 } })).unwrap_err();
        assert!(error.to_string().starts_with("Service a: spec.ports: invalid type: "), "{error}");
        assert!(Kind::Service.read(json!({})).unwrap_err().to_string().contains("metadata.name"));
    }
}
