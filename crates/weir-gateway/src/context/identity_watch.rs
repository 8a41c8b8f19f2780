//! Long streams that end when the identity of their client is revoked.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use slab::Slab;
use weir_plugin::{Credential, Identities};

/// The watched streams of a worker, and the identities that are valid now.
#[derive(Default)]
pub(crate) struct IdentityWatch {
    valid: RefCell<Arc<Identities>>,
    streams: Rc<RefCell<Slab<WatchedStream>>>,
}

struct WatchedStream {
    identity: Arc<Credential>,
    is_revoked: Rc<Cell<bool>>,
}

/// A watched stream, until it is dropped.
pub(crate) struct IdentityGuard {
    is_revoked: Rc<Cell<bool>>,
    place: usize,
    streams: Rc<RefCell<Slab<WatchedStream>>>,
}

impl IdentityWatch {
    /// Begins to watch a stream of this client. The identity may have been revoked already.
    pub(crate) fn watch(&self, identity: &Arc<Credential>) -> IdentityGuard {
        let is_revoked = Rc::new(Cell::new(!self.valid.borrow().include(identity)));
        let stream = WatchedStream { identity: Arc::clone(identity), is_revoked: Rc::clone(&is_revoked) };
        let place = self.streams.borrow_mut().insert(stream);
        IdentityGuard { is_revoked, place, streams: Rc::clone(&self.streams) }
    }

    /// Replaces the valid identities; returns whether a watched stream has to end.
    pub(crate) fn replace(&self, valid: &Arc<Identities>) -> bool {
        if Arc::ptr_eq(&*self.valid.borrow(), valid) {
            return false;
        }
        self.valid.replace(Arc::clone(valid));
        let mut is_any = false;
        for (_, stream) in self.streams.borrow().iter().filter(|(_, stream)| !valid.include(&stream.identity)) {
            stream.is_revoked.set(true);
            is_any = true;
        }
        is_any
    }
}

impl IdentityGuard {
    pub(crate) fn is_revoked(&self) -> bool {
        self.is_revoked.get()
    }
}

impl Drop for IdentityGuard {
    fn drop(&mut self) {
        self.streams.borrow_mut().remove(self.place);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_plugin::{Consumer, Consumers, Proof};

    use super::*;

    fn known(names: &[&str]) -> (Vec<Arc<Credential>>, Arc<Identities>) {
        let mut consumers = Consumers::default();
        for name in names {
            let consumer = Consumer { username: (*name).into(), ..Consumer::default() };
            consumers
                .add(consumer, [Proof { plugin: "key-auth".into(), id: "".into(), options: json!({"key": name}) }]);
        }
        (consumers.credentials("key-auth").to_vec(), Arc::new(consumers.identities()))
    }

    #[test]
    fn streams_of_removed_consumers_end() {
        let (credentials, both) = known(&["jack", "rose"]);
        let watch = IdentityWatch::default();
        assert!(!watch.replace(&both));
        let guards: Vec<_> = credentials.iter().map(|identity| watch.watch(identity)).collect();
        let (_, one) = known(&["rose"]);
        assert!(watch.replace(&one));
        assert_eq!(guards.iter().map(IdentityGuard::is_revoked).collect::<Vec<_>>(), [true, false]);
        assert!(watch.watch(&credentials[0]).is_revoked(), "revoked while the stream was being opened");
        drop(guards);
        assert!(!watch.replace(&known(&[]).1) && watch.streams.borrow().is_empty());
    }
}
