//! The resources of a cluster as a controller (`weir controller`) serves them: a store for nodes without rights in the cluster.
//!
//! A thread pulls the state. Revisions of different controllers are not comparable, so each connection begins with all resources; they
//! are compared with those that are known, and have revisions of this node alone.

mod calls;
mod enrolment;
mod nodes;
mod session;
mod terms;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::watch;
use weir_client::DnsSettings;
use weir_kube::cluster::ControllerState;

use super::cluster_store::{ClusterStore, OpeningStore};
use crate::document::{NodeCertificates, PullSettings};
use crate::stores::store::StoreFailure;
use enrolment::NodeEnrolment;
use session::Puller;

/// The most revisions of which it is kept which one of the controller they are.
const MOST_PAIRS: usize = 1_024;

/// Which revision of the controller each of the node's own is.
#[derive(Debug, Default)]
struct RevisionPairs(VecDeque<(u64, u64)>);

impl RevisionPairs {
    fn add(&mut self, own: u64, of_controller: u64) {
        self.0.push_back((own, of_controller));
        if self.0.len() > MOST_PAIRS {
            self.0.pop_front();
        }
    }

    /// The newest revision of the controller that a node serves with its own revision.
    fn served(&self, own: u64) -> Option<u64> {
        self.0.iter().take_while(|(published, _)| *published <= own).last().map(|(_, of_controller)| *of_controller)
    }
}

/// Pulls the resources, or reads the copy if no controller answers. `node` is the name of this node and the directory of its copy; without
/// it nothing is kept. `zone` is that of the node, if it is known.
///
/// # Errors
/// If there is neither a controller nor a copy.
pub(in crate::stores) fn pull(
    (settings, zone): (&PullSettings, Option<&str>),
    dns: &DnsSettings,
    node: Option<(String, PathBuf)>,
    beside: &Path,
    told: &dyn Fn(&str),
) -> Result<ClusterStore, StoreFailure> {
    let (opening, followed) = OpeningStore::new("controller", node, zone)?;
    let (serves, served) = watch::channel(ControllerState::default());
    let enrolment = match &settings.certificates {
        NodeCertificates::Files(_) => None,
        NodeCertificates::Enrolment(files) => Some(Arc::new(NodeEnrolment::new(files.clone(), beside.to_owned()))),
    };
    let files = PullFiles { settings: settings.clone(), beside: beside.to_owned(), dns: dns.clone(), enrolment };
    let (query, questions) = nodes::query();
    let told_to = (Arc::clone(&opening.mailbox), followed);
    let puller = Puller::new(files, opening.node.clone(), told_to, (served, questions));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| StoreFailure::new(format!("a runtime cannot be started: {error}"), ""))?;
    let name = format!("controller {}", settings.hosts.join(","));
    let reporting = move |state| drop(serves.send_replace(state));
    opening.start(name, (Box::new(reporting), Some(query)), (told, ADVICE), move |copy| {
        runtime.block_on(async {
            let copying = tokio::spawn(copy.keep());
            puller.run().await;
            // An error is a panic, which has been reported.
            let _ = copying.await;
        });
    })
}

/// The settings of the connections, and what their files are relative to.
#[derive(Clone)]
struct PullFiles {
    settings: PullSettings,
    beside: PathBuf,
    dns: DnsSettings,
    /// If the controllers issue the certificate.
    enrolment: Option<Arc<NodeEnrolment>>,
}

const ADVICE: &str = "check `store.controller` and that a controller runs (`weir controller`), then start the node again; a node that \
                      has pulled the resources once starts without a controller, from the copy in its data directory (`data_dir`)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_of_the_controller_are_those_that_the_node_has_published() {
        let mut pairs = RevisionPairs::default();
        assert_eq!(pairs.served(9), None);
        for (own, of_controller) in [(4, 17), (4, 18), (6, 19)] {
            pairs.add(own, of_controller);
        }
        let served = [3, 4, 5, 6, 7].map(|own| pairs.served(own));
        assert_eq!(served, [None, Some(18), Some(18), Some(19), Some(19)]);
        (0..2 * MOST_PAIRS as u64).for_each(|number| pairs.add(number, number));
        assert_eq!(pairs.0.len(), MOST_PAIRS);
    }
}
