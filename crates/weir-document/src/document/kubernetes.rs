//! `store.kubernetes`: a cluster whose objects are the resources of a node.

use crate::text::read::NodeReader;
use weir_plugin::WrittenName;

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
    /// The addresses at which clients reach the node, for statuses: IP addresses or names.
    pub publish_addresses: Vec<Box<str>>,
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

pub(super) fn read(at: &NodeReader) -> Option<KubernetesSettings> {
    let fields = at.fields(&[
        "in_cluster",
        "kubeconfig",
        "context",
        "namespaces",
        "gateway_controller",
        "ingress_controller",
        "publish_addresses",
        "write_status",
        "leader_election",
    ])?;
    let text = |key: &str| fields.get(key).and_then(|at| at.text_of(1..=LONGEST_NAME)).map(Box::<str>::from);
    let texts = |key: &str| -> Vec<Box<str>> {
        let list = fields.get(key).map(|list| list.distinct(|item| item.text_of(1..=LONGEST_NAME).map(str::to_owned)));
        list.unwrap_or_default().into_iter().map(Box::from).collect()
    };
    if !fields.has("kubeconfig") && fields.get("in_cluster").and_then(|at| at.boolean()) != Some(true) {
        at.report_advising(
            "does not say how the cluster is reached",
            "write `in_cluster: true` in a pod, or `kubeconfig: FILE` elsewhere",
        );
    } else {
        fields.at_most_one("in_cluster", "kubeconfig");
    }
    if let Some(context) = fields.get("context").filter(|_| !fields.has("kubeconfig")) {
        context.report_advising("names a context, and there is no kubeconfig", "add `kubeconfig`, or remove `context`");
    }
    let lease = fields.get("leader_election").and_then(|at| read_lease(&at));
    Some(KubernetesSettings {
        kubeconfig: fields.get("kubeconfig").and_then(|at| at.written_name(WrittenName::File)).map(Box::from),
        context: text("context"),
        namespaces: texts("namespaces"),
        gateway_controller: text("gateway_controller"),
        ingress_controller: text("ingress_controller"),
        publish_addresses: texts("publish_addresses"),
        writes_status: fields.get("write_status").and_then(|at| at.boolean()).unwrap_or(true),
        lease: lease.unwrap_or_default(),
    })
}

fn read_lease(at: &NodeReader) -> Option<LeasePlace> {
    let fields = at.fields(&["namespace", "name"])?;
    let text = |key: &str| fields.get(key).and_then(|at| at.text_of(1..=LONGEST_NAME)).map(Box::<str>::from);
    Some(LeasePlace { namespace: text("namespace"), name: text("name") })
}
