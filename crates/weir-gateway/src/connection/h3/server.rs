//! Which certificate a client gets.

use std::net::SocketAddr;
use std::sync::Arc;

use weir_net::quic::ChooseServer;
use weir_net::tls::Server;

use crate::snapshot::Snapshot;

/// Chooses by the configuration that was current when the connection began.
pub struct CurrentServer {
    pub snapshot: Arc<Snapshot>,
    /// The address of this end.
    pub local: SocketAddr,
}

impl ChooseServer for CurrentServer {
    fn choose(&self, name: Option<&str>) -> Option<Server> {
        self.snapshot.certificate_of(Some(self.local), name).map(|certificate| certificate.server.clone())
    }
}
