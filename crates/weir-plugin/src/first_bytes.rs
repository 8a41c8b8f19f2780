//! The first bytes of a stream's client, for plugins that decide by them.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::Poll;

/// The first bytes of a stream's client. A plugin reads them before an endpoint is chosen, which gets them unchanged.
///
/// The gateway receives from the client while the plugin waits, and polls it again after [`FirstBytes::append`]. It ends the stream if the
/// client leaves, or takes too long (`client_header_timeout`).
#[derive(Debug, Default)]
pub struct FirstBytes {
    received: RefCell<Vec<u8>>,
    /// The most bytes that a plugin waits for; 0 if none does.
    most: Cell<usize>,
}

impl FirstBytes {
    /// `received`: those that have been received before.
    pub fn new(received: Vec<u8>) -> FirstBytes {
        FirstBytes { received: RefCell::new(received), most: Cell::new(0) }
    }

    /// Waits until `judge` returns something. It is called with all bytes received so far, first at once, and then whenever more have
    /// come. `None` if it returns nothing of `most` bytes.
    pub async fn read<T>(&self, most: usize, mut judge: impl FnMut(&[u8]) -> Option<T>) -> Option<T> {
        let judged = poll_fn(|_| {
            let received = self.received.borrow();
            let judged = judge(&received);
            if judged.is_none() && received.len() < most {
                self.most.set(most);
                return Poll::Pending;
            }
            Poll::Ready(judged)
        });
        let judged = judged.await;
        self.most.set(0);
        judged
    }

    /// The most bytes that a plugin waits for beyond those received; 0 if none waits.
    pub fn wanted(&self) -> usize {
        self.most.get().saturating_sub(self.count())
    }

    /// The number of bytes received.
    pub fn count(&self) -> usize {
        self.received.borrow().len()
    }

    /// Adds bytes of the client.
    pub fn append(&self, bytes: &[u8]) {
        self.received.borrow_mut().extend_from_slice(bytes);
    }

    /// Takes all bytes, to send them to the endpoint.
    pub fn take(&self) -> Vec<u8> {
        self.received.take()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn bytes_are_wanted_until_they_are_judged_and_stay() {
        let first_bytes = FirstBytes::new(b"a".to_vec());
        assert_eq!(first_bytes.wanted(), 0, "nothing waits");
        let mut reading = pin!(first_bytes.read(4, |bytes| bytes.strip_suffix(b"\n").map(<[u8]>::len)));
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(reading.as_mut().poll(&mut context), Poll::Pending);
        assert_eq!(first_bytes.wanted(), 3);
        first_bytes.append(b"b\n");
        assert_eq!(reading.as_mut().poll(&mut context), Poll::Ready(Some(2)));
        assert_eq!((first_bytes.wanted(), first_bytes.take()), (0, b"ab\n".to_vec()));
    }

    #[test]
    fn no_more_are_received_than_the_plugin_has_said() {
        let first_bytes = FirstBytes::default();
        let mut reading = pin!(first_bytes.read(2, |_| None::<()>));
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(reading.as_mut().poll(&mut context), Poll::Pending);
        first_bytes.append(b"ab");
        assert_eq!(reading.as_mut().poll(&mut context), Poll::Ready(None));
        assert_eq!(first_bytes.count(), 2);
    }
}
