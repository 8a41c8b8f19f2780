//! Which certificate a client gets.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use weir_net::quic::ChooseServer;
use weir_net::tls::Server;

use crate::snapshot::Snapshot;

/// Chooses by the configuration that was current when the connection began, once: the connection outlives that configuration.
pub(super) struct CurrentServer {
    pub snapshot: Mutex<Option<Arc<Snapshot>>>,
    /// The address of this end.
    pub local: SocketAddr,
}

impl ChooseServer for CurrentServer {
    fn choose(&self, name: Option<&str>) -> Option<Server> {
        let snapshot = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        snapshot.certificate_of(Some(self.local), name).map(|certificate| certificate.server.clone())
    }
}
