//! A response whose rate is limited: it is read from the upstream only as fast as it may be sent.

use std::task::{Context, Poll};

use weir_net::timer::NEVER;
use weir_plugin::Stop;

use super::Relay;
use crate::message::sides::{ClientSide, UpstreamSide};
use crate::plugins::pace::PaceStep;

impl<C: ClientSide, U: UpstreamSide> Relay<'_, C, U> {
    /// Called while no more of the response is read: it is complete, or its rate is limited. Sends what waits once its time has come.
    /// Ready with how many bytes may be read from the upstream now, at most `room`; with 0 if something has been sent.
    #[cold]
    pub(super) fn poll_pace(&mut self, context: &mut Context<'_>, room: usize) -> Poll<Result<usize, Stop>> {
        if self.response.body.is_done() {
            return Poll::Pending;
        }
        if self.response.is_paused_at_end() && self.client.call_deadline_ns() <= self.now_ns {
            let now_ns = self.now_ns;
            let rest = self.response.content.as_mut().map(|content| content.lift_pace(now_ns)).unwrap_or_default();
            return Poll::Ready(self.send_paced(context, &rest).map(|()| 0));
        }
        match self.response.content.as_mut().and_then(|content| content.next_step(self.now_ns)) {
            Some(PaceStep::Wait) => {
                // The upstream is not to blame for the time in which it is not read.
                self.renew_read_timeout();
                match self.upstream.poll_unread(context) {
                    Ok(()) => Poll::Pending,
                    Err(stop) => Poll::Ready(Err(stop)),
                }
            }
            Some(PaceStep::Send(piece)) => {
                self.renew_read_timeout();
                Poll::Ready(self.send_paced(context, &piece).map(|()| 0))
            }
            Some(PaceStep::Read { most, waited }) => {
                if waited {
                    self.renew_read_timeout();
                }
                self.response.resume();
                Poll::Ready(Ok(most.min(room)))
            }
            None => {
                self.response.resume();
                Poll::Ready(Ok(room))
            }
        }
    }

    /// Sends content that has waited, and the end of the response after the last of it.
    fn send_paced(&mut self, context: &mut Context<'_>, piece: &[u8]) -> Result<(), Stop> {
        let is_last = !self.response.content.as_ref().is_some_and(|content| content.is_waiting());
        self.worker.buffers.with_write_buffer(|out| {
            self.write_content(piece, out);
            if is_last && self.response.is_paused_at_end() {
                self.response.resume();
                self.end_response(out)?;
            }
            self.send_to_client(context, out)
        })
    }

    /// Reads no more of a response whose rate is limited until [`Relay::poll_pace`] allows it. Its end may come at any time.
    pub(super) fn pause(&mut self) {
        let body = &mut self.response.body;
        let is_read = !body.is_done() && !body.lacks_end() && body.end_deadline_ns() == NEVER;
        if is_read && self.response.content.as_ref().is_some_and(|content| content.is_paced()) {
            self.response.pause();
        }
    }
}
