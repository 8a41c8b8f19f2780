//! The objects of a Kubernetes cluster as resources. A node follows the cluster itself and translates each change (`weir-kube`), or pulls
//! the translation from a controller.

mod cluster_store;
mod feed;
mod followed;
mod issuing;
mod lines;
mod policy_plugins;
mod pulled;
mod served_cluster;
mod sink;
mod told_faults;
mod zones;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_kube::cluster::{ApiServer, ClusterAccess, Controller, ControllerSettings, ElectionSettings};
use weir_kube::{GatewayAddresses, KubeOptions};

use super::store::StoreFailure;
use crate::document::KubernetesSettings;
pub(super) use cluster_store::ClusterStore;
use cluster_store::OpeningStore;
pub use feed::{MOST_NODE_NAME, MOST_REPORT, NodeIntroduction, StateFeed, StateStream};
pub use issuing::{CertificateIssuer, EnrolmentRefusal, MOST_SIGNING_REQUEST, ServingCertificate};
pub(super) use policy_plugins::NodePlugins;
pub(super) use pulled::pull;
pub use served_cluster::ServedCluster;
use sink::StoreSink;

/// The name of the Lease without one in the settings.
const LEASE: &str = "weir-status-writer";

/// Reads the objects of the cluster, or the copy if the API server cannot be reached. `node` is the name of this node and the directory
/// of its copy; without it nothing is kept, and nothing is written to the cluster. `zone` is that of the node, if it is known.
///
/// # Errors
/// If neither the cluster nor a copy can be read.
pub(super) fn follow(
    settings: &KubernetesSettings,
    zone: Option<&str>,
    node: Option<(String, PathBuf)>,
    beside: &Path,
    (plugins, told): (NodePlugins, &dyn Fn(&str)),
) -> Result<ClusterStore, StoreFailure> {
    let (opening, followed) = OpeningStore::new("kubernetes", node, zone)?;
    let (runtime, server) = connect(settings, beside)?;
    let name = format!("kubernetes {}", server.address());
    let sink = StoreSink::new(Arc::clone(&opening.mailbox), server.address(), followed);
    let settings = controller_settings(settings, &opening.node, plugins);
    let entered = runtime.enter();
    let controller = Controller::start(Arc::new(server), settings, Box::new(sink));
    drop(entered);
    let reporting = move |state| controller.served(state);
    opening.start(name, (Box::new(reporting), None), (told, ADVICE), move |copy| runtime.block_on(copy.keep()))
}

const ADVICE: &str = "check the settings below `kubernetes` and the rights of the credentials, then start the node again; a node that has read the \
                      objects once starts without the API server, from the copy in its data directory (`data_dir`)";

/// The runtime of the thread, and the API server.
fn connect(settings: &KubernetesSettings, beside: &Path) -> Result<(tokio::runtime::Runtime, ApiServer), StoreFailure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| StoreFailure::new(format!("a runtime cannot be started: {error}"), ""))?;
    let access = match &settings.kubeconfig {
        None => ClusterAccess::InCluster,
        Some(path) => ClusterAccess::Kubeconfig {
            path: beside.join(&**path),
            context: settings.context.as_deref().map(str::to_owned),
        },
    };
    let server = runtime.block_on(ApiServer::new(&access)).map_err(|error| {
        StoreFailure::new(format!("the cluster cannot be used: {error}"), "check the settings below `kubernetes`")
    })?;
    Ok((runtime, server))
}

fn controller_settings(settings: &KubernetesSettings, node: &str, plugins: NodePlugins) -> ControllerSettings {
    let mut options = KubeOptions { plugins: Arc::new(plugins), ..KubeOptions::default() };
    let text = |value: &Option<Box<str>>, default: String| value.as_deref().map_or(default, str::to_owned);
    options.controller_name = text(&settings.gateway_controller, options.controller_name);
    options.adopt_ingress_nginx = settings.adopts_ingress_nginx;
    options.adopt_apisix = settings.adopts_apisix;
    options.ingress_controller = text(&settings.ingress_controller, options.ingress_controller);
    options.publish_addresses = settings.publish_addresses.iter().map(|address| address.to_string()).collect();
    options.addresses = match settings.gateway_addresses {
        Some(network) => {
            let mut hosts = network.hosts();
            let first = hosts.next().unwrap_or(network.addr());
            GatewayAddresses::Pool { first, last: hosts.next_back().unwrap_or(first) }
        }
        None => GatewayAddresses::Node { published: options.publish_addresses.clone() },
    };
    options.makes_services = settings.makes_gateway_services;
    let election = ElectionSettings {
        namespace: text(&settings.lease.namespace, String::new()),
        name: text(&settings.lease.name, LEASE.to_owned()),
        holder: node.to_owned(),
    };
    ControllerSettings {
        namespaces: settings.namespaces.iter().map(|namespace| namespace.to_string()).collect(),
        options,
        election: Some(election).filter(|_| settings.writes_status && !node.is_empty()),
    }
}
