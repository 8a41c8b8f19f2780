//! Events in memory for those who listen to a hub and read from it: held content of the node, and of the clients that get them.
//!
//! An event counts once for the node, and once for each client, however many listeners it waits for.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_hub::{EventHolding, Refusal};
use weir_plugin::Held;
use weir_plugin::held::Exhausted;
use weir_plugin::proto::address::client_network;

/// What `Retry-After` says to a client for whose event there is no room, in seconds.
const RETRY_AFTER_S: u64 = 1;

/// The events of a hub that are in memory for clients.
#[derive(Default)]
pub(super) struct ClientEvents {
    /// By number.
    events: Mutex<HashMap<u64, ClientEvent>>,
}

struct ClientEvent {
    bytes: u64,
    /// What the node counts.
    _of_node: Held,
    clients: HashMap<IpAddr, ClientHold>,
}

struct ClientHold {
    /// For how many calls of the client.
    calls: usize,
    /// What the client is counted for.
    _share: Held,
}

/// The events that are in memory for one call of a client.
pub(super) struct CallHold {
    all: Arc<ClientEvents>,
    client: IpAddr,
    seqs: Vec<u64>,
}

/// The refusal of a client for whose content there is no room.
pub(super) fn no_room(exhausted: Exhausted) -> Refusal {
    let (status, reason) = match exhausted {
        Exhausted::Client => (429, "as much content as may be held for one client waits for this one"),
        Exhausted::Node => (503, "the node holds as much content as it may"),
    };
    Refusal { retry_after_s: Some(RETRY_AFTER_S), ..Refusal::new(status, reason) }
}

impl ClientEvents {
    fn events(&self) -> MutexGuard<'_, HashMap<u64, ClientEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An empty hold of a client.
    pub(super) fn of(self: &Arc<Self>, client: IpAddr) -> CallHold {
        CallHold { all: Arc::clone(self), client: client_network(client), seqs: Vec::new() }
    }

    fn hold(&self, client: IpAddr, seq: u64, bytes: u64) -> Result<(), Exhausted> {
        let mut events = self.events();
        let known = events.get_mut(&seq);
        if let Some(event) = known {
            if let Some(hold) = event.clients.get_mut(&client) {
                hold.calls += 1;
                return Ok(());
            }
            event.clients.insert(client, ClientHold::new(client, event.bytes)?);
            return Ok(());
        }
        let hold = ClientHold::new(client, bytes)?;
        let mut of_node = Held::default();
        of_node.set(bytes)?;
        events.insert(seq, ClientEvent { bytes, _of_node: of_node, clients: HashMap::from([(client, hold)]) });
        Ok(())
    }

    fn release(&self, client: IpAddr, seqs: &[u64]) {
        let mut events = self.events();
        for seq in seqs {
            let Some(event) = events.get_mut(seq) else { continue };
            if let Some(hold) = event.clients.get_mut(&client) {
                hold.calls -= 1;
                if hold.calls == 0 {
                    event.clients.remove(&client);
                }
            }
            if event.clients.is_empty() {
                events.remove(seq);
            }
        }
        if events.is_empty() {
            events.shrink_to_fit();
        }
    }
}

impl ClientHold {
    fn new(client: IpAddr, bytes: u64) -> Result<ClientHold, Exhausted> {
        let mut share = Held::shared_by(client);
        share.set(bytes)?;
        Ok(ClientHold { calls: 1, _share: share })
    }
}

impl EventHolding for CallHold {
    fn hold(&mut self, seq: u64, bytes: usize) -> Result<(), Refusal> {
        self.all.hold(self.client, seq, bytes as u64).map_err(no_room)?;
        self.seqs.push(seq);
        Ok(())
    }

    fn release(&mut self) {
        if !self.seqs.is_empty() {
            self.all.release(self.client, &std::mem::take(&mut self.seqs));
        }
    }
}

impl Drop for CallHold {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use weir_plugin::held::HeldBudget;

    use super::*;

    #[test]
    fn an_event_is_counted_once_and_until_the_last_call_has_it() {
        let events = Arc::<ClientEvents>::default();
        let client = |last: u8| IpAddr::from([10, 0, 0, last]);
        let most = 64 << 20;
        let mut calls: Vec<CallHold> = (0..20).map(|number| events.of(client(number / 10))).collect();
        // As much as a client may have: other events do not fit, and the same ones do.
        for call in &mut calls {
            assert!(call.hold(1, most).is_ok());
            let refusal = call.hold(2, 1).expect_err("the client has no room");
            assert_eq!((refusal.status, refusal.retry_after_s), (429, Some(RETRY_AFTER_S)));
        }
        assert!(events.of(client(2)).hold(2, most).is_ok(), "another client has room");
        let in_use = HeldBudget::of_process().in_use().bytes;
        assert!((most as u64..2 * most as u64).contains(&in_use), "{in_use} bytes are counted");
        calls.truncate(1);
        assert!(calls[0].hold(2, 1).is_err());
        calls[0].release();
        assert!(calls[0].hold(2, 1).is_ok());
        calls.clear();
        assert!(events.events().is_empty());
    }
}
