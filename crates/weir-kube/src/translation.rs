//! The result of a translation, and how parts of it are named.

mod id;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::objects::ObjectRef;

pub(crate) use id::resource_id;

/// What the translation depends on besides the objects.
#[derive(Clone, Debug)]
pub struct KubeOptions {
    /// A GatewayClass with this `controllerName` is ours.
    pub controller_name: String,
    /// An IngressClass with this `controller` is ours.
    pub ingress_controller: String,
    /// The addresses at which clients reach the gateway by its Ingresses, for statuses. IP addresses or names.
    pub publish_addresses: Vec<String>,
    /// Ingresses of the class of ingress-nginx are ours as well, with its annotations and defaults.
    pub adopt_ingress_nginx: bool,
    /// Objects of the kinds of the APISIX ingress controller are ours, if their class is that of this controller or ours.
    pub adopt_apisix: bool,
    /// The objects are manifests and not all that a cluster has: an IngressClass that is missing is that of ingress-nginx, and
    /// Services without EndpointSlices are reached by their names. Hints of zones are left out.
    pub offline: bool,
    pub addresses: GatewayAddresses,
    /// A Service is made for each Gateway.
    pub makes_services: bool,
    /// The plugins that a WeirPolicy may name.
    pub plugins: Arc<dyn PolicyPlugins>,
}

/// What users of a namespace may configure of the plugins of a node.
pub trait PolicyPlugins: fmt::Debug + Send + Sync {
    /// Whether a policy may have a plugin with these options; returns the most bytes that its regular expressions take when they are
    /// compiled. `written` are the options with references in place of the values of Secrets.
    ///
    /// # Errors
    /// The reason, with the place in the options. It tells nothing about values of Secrets.
    fn check(&self, plugin: &str, written: &Value, options: &Value) -> Result<usize, String>;

    /// Whether an object of the APISIX ingress controller may have a plugin with these options. Consumers are there, and any option
    /// may have the value of a Secret; the result is the same otherwise.
    ///
    /// # Errors
    /// As above.
    fn check_of_apisix(&self, plugin: &str, written: &Value, options: &Value) -> Result<usize, String>;

    /// What identifies a consumer with these options of an auth plugin: two cannot have the same. It is a secret.
    ///
    /// # Errors
    /// If no consumer can have them. The reason tells no value.
    fn credential(&self, plugin: &str, options: &Value) -> Result<String, String>;

    /// Whether users of a namespace may give these settings to the upstreams of its Services.
    ///
    /// # Errors
    /// The reason, with the place.
    fn check_upstream(&self, settings: &Map<String, Value>) -> Result<(), String>;

    /// Checks that the node may run the plugin.
    ///
    /// # Errors
    /// The reason why it does not.
    fn check_enabled(&self, plugin: &str) -> Result<(), String>;

    /// Whether requests must not be answered without the plugin: it may decide which are answered. One that is unknown may, too.
    fn protects(&self, plugin: &str) -> bool;

    /// Whether the plugin works without HTTP.
    fn works_on_streams(&self, plugin: &str) -> bool;

    /// Whether the plugin works with HTTP. Few work on streams alone.
    fn works_on_requests(&self, _plugin: &str) -> bool {
        true
    }
}

/// A node without plugins.
#[derive(Debug)]
struct NoPlugins;

impl PolicyPlugins for NoPlugins {
    fn check(&self, _: &str, _: &Value, _: &Value) -> Result<usize, String> {
        Err("there is no such plugin".to_owned())
    }

    fn check_of_apisix(&self, _: &str, _: &Value, _: &Value) -> Result<usize, String> {
        Err("there is no such plugin".to_owned())
    }

    fn credential(&self, _: &str, _: &Value) -> Result<String, String> {
        Err("there is no such plugin".to_owned())
    }

    fn check_upstream(&self, _: &Map<String, Value>) -> Result<(), String> {
        Ok(())
    }

    fn check_enabled(&self, _: &str) -> Result<(), String> {
        Err("there is no such plugin".to_owned())
    }

    fn protects(&self, _: &str) -> bool {
        true
    }

    fn works_on_streams(&self, _: &str) -> bool {
        false
    }
}

/// Which addresses Gateways have.
#[derive(Clone, Debug)]
pub enum GatewayAddresses {
    /// Those of the nodes: all Gateways share their ports, told apart by host names. `published` stand in their statuses.
    Node { published: Vec<String> },
    /// Each Gateway has an IP address of its own, from the first to the last of these. Its listeners have the ports as stated.
    Pool { first: IpAddr, last: IpAddr },
}

impl Default for KubeOptions {
    fn default() -> Self {
        KubeOptions {
            controller_name: "weir.dev/gateway-controller".to_owned(),
            ingress_controller: "weir.dev/ingress-controller".to_owned(),
            publish_addresses: Vec::new(),
            adopt_ingress_nginx: false,
            adopt_apisix: false,
            offline: false,
            addresses: GatewayAddresses::Node { published: Vec::new() },
            makes_services: false,
            plugins: Arc::new(NoPlugins),
        }
    }
}

/// What the objects of a cluster mean.
#[derive(Clone, Debug, Default)]
pub struct Translation {
    /// Sorted by kind; ids are unique among a kind. The first of two routes that match the same requests takes them.
    pub resources: Vec<DerivedResource>,
    /// The statuses of all objects that are ours, whether they differ from what the cluster has or not.
    pub statuses: Vec<ObjectStatus>,
    /// What users should learn about their objects in addition.
    pub events: Vec<ObjectEvent>,
    /// What is made in the cluster for them.
    pub owned: Vec<OwnedObject>,
}

/// Reads a translation as it is made: resources and statuses that may be others than the last time.
pub trait TranslationReader {
    /// A resource that is there, in place of the one with its id.
    fn put(&mut self, resource: DerivedResource);

    /// There is no such resource any more, or there never was.
    fn remove(&mut self, kind: ResourceList, id: &str);

    fn status(&mut self, status: ObjectStatus);

    /// The object gets no status any more, or never got one.
    fn no_status(&mut self, object: &ObjectRef);
}

/// Reads the first translation of a world.
impl TranslationReader for Translation {
    fn put(&mut self, resource: DerivedResource) {
        self.resources.push(resource);
    }

    fn remove(&mut self, _: ResourceList, _: &str) {}

    fn status(&mut self, status: ObjectStatus) {
        self.statuses.push(status);
    }

    fn no_status(&mut self, _: &ObjectRef) {}
}

/// A resource as the Admin API takes it.
#[derive(Clone, Debug, PartialEq)]
pub struct DerivedResource {
    pub kind: ResourceList,
    /// At most 64 characters of `[a-zA-Z0-9_.-]`; of a consumer its name, and of its credential `NAME/credentials/CREDENTIAL`. It depends
    /// only on the names of the objects.
    pub id: String,
    /// Without `id`.
    pub value: Value,
    /// The object that it comes from; of several, the one that a user would change.
    pub origin: ObjectRef,
    /// The others.
    pub beside: Vec<ObjectRef>,
}

/// The lists of resources that a translation fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceList {
    Listeners,
    Ssls,
    Consumers,
    PluginConfigs,
    GlobalRules,
    Upstreams,
    Services,
    Routes,
    StreamRoutes,
}

impl ResourceList {
    const ALL: [ResourceList; 9] = [
        ResourceList::Listeners,
        ResourceList::Ssls,
        ResourceList::Consumers,
        ResourceList::PluginConfigs,
        ResourceList::GlobalRules,
        ResourceList::Upstreams,
        ResourceList::Services,
        ResourceList::Routes,
        ResourceList::StreamRoutes,
    ];

    /// The name of the list in a file and in the Admin API.
    pub const fn list(self) -> &'static str {
        match self {
            ResourceList::Listeners => "listeners",
            ResourceList::Ssls => "ssls",
            ResourceList::Consumers => "consumers",
            ResourceList::PluginConfigs => "plugin_configs",
            ResourceList::GlobalRules => "global_rules",
            ResourceList::Upstreams => "upstreams",
            ResourceList::Services => "services",
            ResourceList::Routes => "routes",
            ResourceList::StreamRoutes => "stream_routes",
        }
    }

    /// The list with this name.
    pub fn find(list: &str) -> Option<ResourceList> {
        ResourceList::ALL.into_iter().find(|known| known.list() == list)
    }

    /// The list and the id of `LIST/ID`.
    pub(crate) fn split(resource: &str) -> Option<(ResourceList, &str)> {
        let (list, id) = resource.split_once('/')?;
        Some((ResourceList::find(list)?, id))
    }
}

impl fmt::Display for ResourceList {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.list())
    }
}

/// The `status` of an object as it should be: entries and conditions of other controllers are in it, as the object has them.
///
/// A condition has no `lastTransitionTime` if its status differs from that in the object; the writer sets it.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectStatus {
    pub object: ObjectRef,
    /// The generation that the status is about.
    pub generation: i64,
    pub status: Value,
}

/// An object that is made for another one, and removed with it by the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnedObject {
    pub object: ObjectRef,
    pub owner: ObjectRef,
    /// Whether the cluster has it, in whatever state.
    pub exists: bool,
    /// The fields to write. The name, and what says whose it is, are left to the writer.
    pub value: Value,
}

/// An Event of Kubernetes about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectEvent {
    pub object: ObjectRef,
    pub kind: EventKind,
    /// In CamelCase.
    pub reason: String,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Normal,
    Warning,
}

impl Translation {
    /// All as a document of Weir: a list for each kind that has resources.
    pub fn document(&self) -> Value {
        let mut document = serde_json::Map::new();
        for resource in &self.resources {
            let list = document.entry(resource.kind.list()).or_insert_with(|| Value::Array(Vec::new()));
            let mut value = resource.value.clone();
            let is_credential = resource.id.contains("/credentials/");
            let is_consumer = resource.kind == ResourceList::Consumers && !is_credential;
            let id_key = if is_consumer { "username" } else { "id" };
            value[id_key] = resource.id.clone().into();
            if let Value::Array(items) = list {
                items.push(value);
            }
        }
        Value::Object(document)
    }
}
