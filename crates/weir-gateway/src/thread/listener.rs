//! A worker's part of a listener.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use weir_net::listener::ListeningSocket;

use crate::context::lifecycle::{ListenerId, ServicePhase};
use crate::snapshot::ListenerSettings;

/// A worker's part of a listener.
#[derive(Debug)]
pub struct Listener {
    pub id: ListenerId,
    /// Usually one; more if the sockets were inherited from a process with more workers.
    pub sockets: Vec<ListeningSocket>,
    pub settings: ListenerSettings,
}

/// A change of a worker's listeners.
#[derive(Debug)]
pub(crate) struct WorkerListenerChange {
    pub open: Vec<Listener>,
    /// New settings, for the connections that are accepted from now on.
    pub set: Vec<(ListenerId, ListenerSettings)>,
    pub close: Vec<ListenerId>,
    /// How long connections of a closed listener may take to end.
    pub patience: Duration,
}

/// What accepting needs of a listener.
pub(crate) struct AcceptingListener {
    pub service: Rc<ServicePhase>,
    pub settings: Cell<ListenerSettings>,
}
