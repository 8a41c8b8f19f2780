//! What `svid` and `spiffe_ids` stand for: the identity of the node and the trust bundles, as the Workload API has given them.

use std::net::IpAddr;
use std::sync::Arc;

use weir_net::tls::{CertifiedKey, SpiffeId, SpiffePeers};

use super::Compiler;
use crate::document::{ResourceOrigin, SpiffeSettings, SvidChoice, WorkloadEndpoint, WorkloadIdentity};

/// An X.509-SVID of the node.
pub(super) enum FoundSvid {
    Present(Arc<CertifiedKey>),
    /// The Workload API has not given it: what needs it is closed until then.
    Absent,
}

impl Compiler<'_> {
    /// `None` if a fault has been reported: the node has no Workload API.
    pub(super) fn svid(&self, choice: &SvidChoice) -> Option<FoundSvid> {
        self.has_workload_api(&choice.origin)?;
        if let Some(svid) = self.document.svid(&choice.name) {
            return Some(FoundSvid::Present(Arc::clone(&svid.certified)));
        }
        // Without any identity there is one warning about the Workload API.
        if self.answered().is_some() {
            let problem = format!("the Workload API does not give the node {}", choice.name);
            let advice =
                "handshakes and connections that need it fail until then; see `spiffe` in `/status`".to_owned();
            self.warnings.report_text(&choice.origin.path, choice.origin.place, problem, Some(advice));
        }
        Some(FoundSvid::Absent)
    }

    /// The peers that are accepted; none until the Workload API has answered.
    pub(super) fn peers(&self, ids: &[SpiffeId], origin: &ResourceOrigin) -> Option<SpiffePeers> {
        self.has_workload_api(origin)?;
        let Some(identity) = self.answered() else { return Some(SpiffePeers::default()) };
        if let Some(unknown) = ids.iter().find(|id| !identity.bundles.has(id.trust_domain())) {
            let problem =
                format!("there is no trust bundle for `{unknown}`, so no certificate of its trust domain is accepted");
            let advice =
                "federate the trust domains where the identities are registered, or correct the name".to_owned();
            self.warnings.report_text(&origin.path, origin.place, problem, Some(advice));
        }
        Some(SpiffePeers { bundles: Arc::clone(&identity.bundles), ids: ids.into() })
    }

    /// Warns of a Workload API that sends keys over a network (SPIFFE Workload Endpoint §3).
    pub(super) fn warn_of_open_workload_api(&self) {
        let Some(SpiffeSettings { endpoint: WorkloadEndpoint::Tcp(address) }) = &self.document.settings.spiffe else {
            return;
        };
        let is_near = match address.ip().to_canonical() {
            IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local(),
        };
        if !is_near {
            let path = "spiffe.socket";
            let problem = format!("{address} is on a network, on which the keys of the node travel in the clear");
            let advice = "use a Unix socket: `unix:///run/spire/agent/public/api.sock`".to_owned();
            self.warnings.report_text(path, self.document.place_at(path), problem, Some(advice));
        }
    }

    /// What the Workload API has given, if the node has an identity.
    fn answered(&self) -> Option<&WorkloadIdentity> {
        self.document.workload.as_deref().filter(|identity| !identity.svids.is_empty())
    }

    fn has_workload_api(&self, origin: &ResourceOrigin) -> Option<()> {
        if self.document.settings.spiffe.is_some() {
            return Some(());
        }
        let advice =
            "add it to the settings of the node: `spiffe: { socket: \"unix:///run/spire/agent/public/api.sock\" }`";
        let problem = "needs a SPIFFE Workload API, and the node has no `spiffe`";
        self.report(&origin.path, origin.place, problem, Some(advice.to_owned()));
        None
    }
}
