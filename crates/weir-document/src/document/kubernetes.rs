//! `store.kubernetes`: a cluster whose objects are the resources of a node.

use ipnet::IpNet;
use weir_plugin::WrittenName;

use super::network::network;
use crate::keys;
use crate::keys::KeyRule;
use crate::keys::kinds::{
    DistinctList, Flag, Or, ParsedText, SubMap, Text, WrittenPath, any_text, flag, section, set, text, written,
};
use crate::text::read::MapReader;

/// How a cluster is reached, and what of it is served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubernetesSettings {
    /// The path of a kubeconfig file; `None` stands for the service account of the pod that the node runs in.
    pub kubeconfig: Option<Box<str>>,
    /// A context of the kubeconfig file; `None` stands for its current one.
    pub context: Option<Box<str>>,
    /// The namespaces that are watched; empty stands for all.
    pub namespaces: Vec<Box<str>>,
    /// The `controllerName` of the GatewayClasses that are served.
    pub gateway_controller: Option<Box<str>>,
    /// The `controller` of the IngressClasses that are served.
    pub ingress_controller: Option<Box<str>>,
    /// Whether Ingresses of ingress-nginx are served as well.
    pub adopts_ingress_nginx: bool,
    /// Whether objects of the APISIX ingress controller are served as well.
    pub adopts_apisix: bool,
    /// The addresses at which clients reach the node, for statuses: IP addresses or names.
    pub publish_addresses: Vec<Box<str>>,
    /// Each Gateway gets an address of its own from this network; `None`: all share the addresses of the node.
    pub gateway_addresses: Option<IpNet>,
    /// Whether each Gateway gets a Service.
    pub makes_gateway_services: bool,
    /// Whether statuses and Events are written.
    pub writes_status: bool,
    /// The Lease of the node that writes statuses.
    pub lease: LeasePlace,
}

/// Where a Lease is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeasePlace {
    /// `None` stands for the namespace of the credentials.
    pub namespace: Option<Box<str>>,
    pub name: Option<Box<str>>,
}

/// The longest name of an object, in bytes.
const LONGEST_NAME: usize = 253;
const NAMES: DistinctList<Text> = set(text(1, LONGEST_NAME));

keys! {
    /// A cluster of Kubernetes whose objects are the resources.
    pub(super) static KUBERNETES: KubernetesKeys = "kubernetes", rules &[
        KeyRule::ExactlyOne("kubeconfig", "in_cluster"), KeyRule::AtMostOne("in_cluster", "context"),
    ];

    /// `true`: the service account of the pod that the node runs in is used.
    in_cluster: Flag = flag(), own(), example("true");
    /// A kubeconfig file.
    kubeconfig: WrittenPath = written(WrittenName::File), own(), absent("none"), example("/etc/weir/kubeconfig");
    /// A context of the kubeconfig file.
    context: Text = text(1, LONGEST_NAME), own(), absent("its current one"), example("production");
    /// The namespaces whose objects are watched.
    namespaces: DistinctList<Text> = NAMES, own(), absent("all"), example("[shop]");
    /// The `controllerName` of the GatewayClasses that are served.
    gateway_controller: Text = text(1, LONGEST_NAME), own(), absent("`weir.dev/gateway-controller`"),
        example("weir.dev/gateway-controller");
    /// The `controller` of the IngressClasses that are served.
    ingress_controller: Text = text(1, LONGEST_NAME), own(), absent("`weir.dev/ingress-controller`"),
        example("weir.dev/ingress-controller");
    /// Whether the Ingresses of ingress-nginx (`k8s.io/ingress-nginx`) are served as well, with its annotations and defaults.
    adopt_ingress_nginx: Or<Flag> = flag().or(false), own();
    /// Whether the kinds of the APISIX ingress controller are served as well: those whose class is of
    /// `apisix.apache.org/apisix-ingress-controller`, or of the `ingress_controller` here, and those beside served Gateways.
    adopt_apisix: Or<Flag> = flag().or(false), own(), guide("apisix-ingress-controller.md");
    /// The addresses at which clients reach the node, for statuses: IP addresses or names.
    publish_addresses: DistinctList<Text> = NAMES, own(), absent("none"), example("[203.0.113.7]");
    /// A network whose addresses belong to the node. Each Gateway gets one of them for its own, and its listeners may have any port there.
    gateway_addresses: ParsedText<IpNet> = any_text().parsed(network), own(),
        absent("Gateways share the addresses of the node"), example("203.0.113.64/28");
    /// Whether a Service is made for each Gateway, in its namespace, with its addresses and the labels and annotations of its `infrastructure`.
    gateway_services: Or<Flag> = flag().or(false), own();
    /// Whether statuses and Events are written.
    write_status: Or<Flag> = flag().or(true), own();
    /// The Lease of the node that writes statuses.
    leader_election: SubMap<LeasePlace> = section(&LEASE, lease), own(), absent("one in the namespace of the credentials");
}

keys! {
    /// Where a Lease is.
    static LEASE: LeaseKeys = "kubernetes_lease", rules &[];

    /// Its namespace.
    namespace: Text = text(1, LONGEST_NAME), own(), absent("that of the credentials"), example("weir");
    /// Its name.
    name: Text = text(1, LONGEST_NAME), own(), absent("`weir-status-writer`"), example("weir-edge");
}

pub(super) fn read(fields: &MapReader) -> Option<KubernetesSettings> {
    if fields.read(&KUBERNETES.in_cluster) == Some(false)
        && let Some(in_cluster) = fields.get(&KUBERNETES.in_cluster)
    {
        in_cluster.report_advising("must be `true`", "or write `kubeconfig: FILE` in its place");
    }
    Some(KubernetesSettings {
        kubeconfig: fields.read(&KUBERNETES.kubeconfig),
        context: fields.read(&KUBERNETES.context),
        namespaces: fields.read(&KUBERNETES.namespaces).unwrap_or_default(),
        gateway_controller: fields.read(&KUBERNETES.gateway_controller),
        ingress_controller: fields.read(&KUBERNETES.ingress_controller),
        adopts_ingress_nginx: fields.value(&KUBERNETES.adopt_ingress_nginx),
        adopts_apisix: fields.value(&KUBERNETES.adopt_apisix),
        publish_addresses: fields.read(&KUBERNETES.publish_addresses).unwrap_or_default(),
        gateway_addresses: fields.read(&KUBERNETES.gateway_addresses),
        makes_gateway_services: fields.value(&KUBERNETES.gateway_services),
        writes_status: fields.value(&KUBERNETES.write_status),
        lease: fields.read(&KUBERNETES.leader_election).unwrap_or_default(),
    })
}

fn lease(fields: &MapReader) -> Option<LeasePlace> {
    Some(LeasePlace { namespace: fields.read(&LEASE.namespace), name: fields.read(&LEASE.name) })
}
