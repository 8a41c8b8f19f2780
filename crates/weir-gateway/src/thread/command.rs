//! The commands that a worker receives.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::listener::WorkerListenerChange;
use crate::context::lifecycle::{ListenerId, WorkerPhase};
use crate::published::Published;
use crate::snapshot::ListenerSettings;

pub enum WorkerCommand {
    Publish(Arc<Published>),
    Enter(WorkerPhase),
    /// Enter the phase of draining, which lasts `patience` at most.
    Drain {
        patience: Duration,
    },
    ChangeListeners(WorkerListenerChange),
    /// A connection that another worker has accepted.
    Take {
        stream: std::net::TcpStream,
        listener: ListenerId,
        settings: ListenerSettings,
        peer: SocketAddr,
    },
}
