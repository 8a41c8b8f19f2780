//! What a stream waits beside, until an endpoint is reached: its client may leave, and may have to send what a plugin decides by.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use weir_plugin::{FirstBytes, Stop};

use super::{StreamClient, poll_stopped};
use crate::context::lifecycle::WaitsFor;
use crate::worker::Worker;

/// The client of a stream that is being opened.
pub(super) trait OpeningClient {
    /// Ready when nothing is worth waiting for any more.
    fn poll_leave(&mut self, context: &mut Context<'_>) -> Poll<Stop>;

    /// Called when a plugin of the stream route reads the first bytes of its clients; `None` for datagrams.
    fn first_bytes(&mut self) -> Option<Rc<FirstBytes>> {
        None
    }
}

/// A connection of which a stream is opened.
pub(super) struct OpeningConnection<'c, C> {
    worker: &'c Rc<Worker>,
    client: &'c mut C,
    first_bytes: Option<Rc<FirstBytes>>,
    /// When a plugin began to wait for them; 0 if none has.
    since_ns: u64,
    /// How long one may.
    timeout_ns: u64,
}

impl<'c, C: StreamClient> OpeningConnection<'c, C> {
    pub(super) fn new(worker: &'c Rc<Worker>, client: &'c mut C, timeout_ns: u64) -> OpeningConnection<'c, C> {
        OpeningConnection { worker, client, first_bytes: None, since_ns: 0, timeout_ns }
    }

    /// Receives bytes that a plugin waits for.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Stop> {
        let OpeningConnection { worker, client, first_bytes, since_ns, timeout_ns } = self;
        let Some(first_bytes) = first_bytes.as_deref().filter(|first_bytes| first_bytes.wanted() > 0) else {
            return Poll::Pending;
        };
        let received = worker.buffers.with_read_buffer(|buffer| {
            let most = first_bytes.wanted().min(buffer.len());
            let count = ready!(client.poll_read(context, &mut buffer[..most]))?;
            first_bytes.append(&buffer[..count]);
            Poll::Ready(std::io::Result::Ok(count))
        });
        match received {
            Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Stop::ClientGone),
            Poll::Ready(Ok(_)) => {
                // The plugin looks at them before more are received.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Pending => {}
        }
        let now_ns = worker.wake_up();
        if *since_ns == 0 {
            *since_ns = now_ns;
        }
        let waits_for = if first_bytes.count() == 0 { WaitsFor::FirstByte } else { WaitsFor::RestOfHead };
        match worker.wait_until_ns(waits_for, *since_ns, since_ns.saturating_add(*timeout_ns)) {
            Some(until_ns) => {
                client.set_deadline(until_ns);
                Poll::Pending
            }
            None => Poll::Ready(Stop::HeadTimeout),
        }
    }
}

impl<C: StreamClient> OpeningClient for OpeningConnection<'_, C> {
    fn poll_leave(&mut self, context: &mut Context<'_>) -> Poll<Stop> {
        match poll_stopped(self.client.service()) {
            Poll::Pending => self.poll_receive(context),
            stopped => stopped,
        }
    }

    fn first_bytes(&mut self) -> Option<Rc<FirstBytes>> {
        let first_bytes = Rc::new(FirstBytes::new(self.client.take_received()));
        self.first_bytes = Some(Rc::clone(&first_bytes));
        Some(first_bytes)
    }
}
