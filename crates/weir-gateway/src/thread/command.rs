//! The commands that a worker receives.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::listener::WorkerListenerChange;
use crate::connection::h3::QuicShare;
use crate::context::lifecycle::{ListenerId, WorkerPhase};
use crate::published::Published;
use crate::snapshot::ListenerSettings;

pub(crate) enum WorkerCommand {
    Publish(Arc<Published>),
    Enter(WorkerPhase),
    /// Enter the phase of draining, which lasts `patience` at most.
    Drain {
        patience: Duration,
    },
    ChangeListeners(WorkerListenerChange),
    /// Serve HTTP/3 on a socket of the listener's address.
    ServeHttp3 {
        listener: ListenerId,
        share: QuicShare,
    },
    /// A connection that another worker has accepted.
    Take {
        stream: std::net::TcpStream,
        listener: ListenerId,
        settings: ListenerSettings,
        peer: SocketAddr,
    },
}
