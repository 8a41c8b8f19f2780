//! HTTP/2 connections to one endpoint that are being opened, and the exchanges that wait for them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tokio::sync::Notify;

use super::MOST_STREAMS;

/// The openings to one endpoint.
#[derive(Default)]
pub(crate) struct Openings(Rc<OpeningList>);

#[derive(Default)]
struct OpeningList {
    /// The SETTINGS_MAX_CONCURRENT_STREAMS of the last connection that has begun (RFC 9113 §6.5.2); `None` before the first.
    streams: Cell<Option<usize>>,
    pending: RefCell<Vec<Rc<PendingOpening>>>,
}

struct PendingOpening {
    /// The TLS server, where the host of a request chooses it.
    server: Box<[u8]>,
    /// How many exchanges may still wait for it.
    places: Cell<usize>,
    is_over: Notify,
}

impl Openings {
    /// Waits for a connection that is being opened, with the TLS server `server`, if one has a stream left for this exchange.
    /// Otherwise returns the opening of one more, which the caller has to make.
    pub(crate) async fn wait(&self, server: &[u8]) -> Option<ConnectionOpening> {
        let has_place = |pending: &&Rc<PendingOpening>| *pending.server == *server && pending.places.get() > 0;
        let coming = self.0.pending.borrow().iter().find(has_place).cloned();
        match coming {
            Some(pending) => {
                pending.places.set(pending.places.get() - 1);
                pending.is_over.notified().await;
                None
            }
            None => Some(self.begin(server)),
        }
    }

    fn begin(&self, server: &[u8]) -> ConnectionOpening {
        let streams = self.0.streams.get();
        let pending = Rc::new(PendingOpening {
            server: server.into(),
            places: Cell::new(streams.map_or(usize::MAX, |streams| streams - 1)),
            is_over: Notify::new(),
        });
        self.0.pending.borrow_mut().push(Rc::clone(&pending));
        ConnectionOpening { list: Rc::clone(&self.0), pending, streams }
    }
}

/// One connection that is being opened: from the attempt to connect until other exchanges know whether they can use it. That is
/// when it is connected if the endpoint's limit of streams is known, and otherwise when its SETTINGS have been received.
pub(crate) struct ConnectionOpening {
    list: Rc<OpeningList>,
    pending: Rc<PendingOpening>,
    /// The limit of streams that is assumed; `None` if nothing is known.
    streams: Option<usize>,
}

impl ConnectionOpening {
    /// The most streams until the endpoint's SETTINGS have been received. Without knowledge only the exchange that opens the
    /// connection goes ahead: an endpoint refuses streams beyond its limit.
    pub(crate) fn streams_at_first(&self) -> usize {
        self.streams.unwrap_or(1)
    }

    /// Called when the connection is established.
    pub(crate) fn connected(&self) {
        if self.streams.is_some() {
            self.end();
        }
    }

    /// Called when the endpoint's SETTINGS have been received, with its limit of streams.
    pub(crate) fn begun(self, streams: u32) {
        self.list.streams.set(Some((streams as usize).clamp(1, MOST_STREAMS)));
    }

    fn end(&self) {
        self.list.pending.borrow_mut().retain(|pending| !Rc::ptr_eq(pending, &self.pending));
        self.pending.is_over.notify_waiters();
    }
}

impl Drop for ConnectionOpening {
    fn drop(&mut self) {
        self.end();
    }
}
