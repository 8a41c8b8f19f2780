//! The connections that the driver has to look after.

use std::cell::{Cell, RefCell};
use std::task::Waker;

use weir_net::quic::ConnectionHandle;

/// The connections that have something to send or to read, for the driver.
#[derive(Debug)]
pub(super) struct WakeList {
    touched: RefCell<Vec<ConnectionHandle>>,
    driver: RefCell<Waker>,
    /// The driver runs, or has been woken.
    is_awake: Cell<bool>,
}

impl Default for WakeList {
    fn default() -> WakeList {
        WakeList { touched: RefCell::default(), driver: RefCell::new(Waker::noop().clone()), is_awake: Cell::new(true) }
    }
}

impl WakeList {
    /// Adds a connection that is not in the list.
    pub(super) fn add(&self, handle: ConnectionHandle) {
        self.touched.borrow_mut().push(handle);
        if !self.is_awake.replace(true) {
            self.driver.borrow().wake_by_ref();
        }
    }

    /// The driver begins its turn; `true` if it has another waker than before.
    pub(super) fn begin(&self, driver: &Waker) -> bool {
        self.is_awake.set(true);
        let is_new = !self.driver.borrow().will_wake(driver);
        if is_new {
            self.driver.replace(driver.clone());
        }
        is_new
    }

    /// The driver ends its turn. `is_due`: it has been woken again already.
    pub(super) fn rest(&self, is_due: bool) {
        self.is_awake.set(is_due);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.touched.borrow().is_empty()
    }

    /// Takes all connections of the list.
    pub(super) fn take(&self) -> Vec<ConnectionHandle> {
        self.touched.take()
    }
}
