//! The order of sending: content waits for flow-control windows and for the socket, and is sent in turns.

use std::io;
use std::task::{Context, Poll};

use weir_proto::Trailers;

use super::state::State;
use crate::context::buffers::READ_BYTES;
use crate::message::sides::Pipe;

/// The most bytes in the output before streams have to wait with theirs.
const MOST_OUT: usize = READ_BYTES;
/// The most bytes of one stream before the next one has its turn.
const TURN: usize = 16 * 1024;
/// One turn in this many goes to the stream that has waited longest, whatever the priorities.
const FAIR: u8 = 8;

impl<P> State<P> {
    pub(super) fn wait(&mut self, key: usize) {
        if !std::mem::replace(&mut self.slots[key].is_waiting, true) {
            self.waiting.push_back(key);
        }
    }

    /// Whether a stream may send without waiting for a turn. If the client uses priorities, it may only if no stream waits
    /// and little is in the output.
    pub(super) fn may_pass_at_once(&mut self) -> bool {
        !self.protocol.has_priorities() || self.waiting.is_empty() && self.protocol.output().len() < TURN
    }

    /// Moves bytes into the output, as far as the windows, its room and `most` allow, and the end of the message after all
    /// of them. Returns how many bytes were taken.
    pub(super) fn pass(&mut self, key: usize, bytes: &[u8], most: usize) -> usize {
        self.worker.buffers.lend(self.protocol.output());
        let slot = &mut self.slots[key];
        let head = slot.head.take();
        let ends = slot.end.as_ref().is_some_and(Trailers::is_empty);
        if let (true, true, Some(head)) = (ends, bytes.is_empty(), head) {
            slot.end = None;
            self.protocol.end_with_head(slot.id, head);
            return 0;
        }
        let room = MOST_OUT.saturating_sub(self.protocol.output().len()).min(most);
        let piece = &bytes[..bytes.len().min(room)];
        let is_all = piece.len() == bytes.len();
        let mut taken = 0;
        if !bytes.is_empty() || ends {
            taken = self.protocol.send_data(slot.id, piece, ends && is_all);
        }
        if taken == bytes.len()
            && let Some(trailers) = slot.end.take()
            && !trailers.is_empty()
        {
            self.protocol.send_trailers(slot.id, &trailers);
        }
        taken
    }
}

impl<P: Pipe> State<P> {
    /// Sends what is in the output, and what waits, as far as the socket takes it: in turns, the most urgent first (RFC
    /// 9218 §10).
    pub(crate) fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let has_passed = self.pass_waiting();
            let mut sent = 0;
            let State { pipe, protocol, worker, sent: all_sent, .. } = &mut *self;
            while sent < protocol.output().len() {
                match pipe.poll_write(context, &protocol.output()[sent..]) {
                    Poll::Ready(Ok(count)) => sent += count,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => break,
                }
            }
            protocol.credit().sent(sent);
            *all_sent += sent as u64;
            worker.buffers.consume(protocol.output(), sent);
            if !protocol.output().is_empty() {
                return Poll::Pending;
            }
            // Streams that waited for room in the output may have it now.
            if self.waiting.is_empty() || !has_passed && sent == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Moves waiting content into the output; returns whether any was moved.
    fn pass_waiting(&mut self) -> bool {
        let mut has_passed = false;
        // With priorities little is moved at a time: something more urgent may come before the socket takes more.
        let most = if self.protocol.has_priorities() { TURN } else { MOST_OUT };
        while self.protocol.output().len() < most {
            let Some(key) = self.next_turn() else { break };
            let mut unsent = std::mem::take(&mut self.slots[key].unsent);
            if unsent.is_empty() {
                // The stream waited in `poll_write`, and now calls it again.
                self.slots[key].is_waiting = false;
                self.wake(key);
                continue;
            }
            let taken = self.pass(key, unsent.waiting(), TURN);
            unsent.consume(&self.worker.buffers, taken);
            self.held -= taken;
            let slot = &mut self.slots[key];
            slot.flushed += taken;
            slot.is_waiting = !unsent.is_empty();
            slot.unsent = unsent;
            has_passed |= taken > 0;
            if slot.is_waiting {
                self.waiting.push_back(key);
            }
            self.wake(key);
        }
        has_passed
    }

    /// Removes from `waiting` a stream that may send: the one that has waited longest or, if the client uses priorities,
    /// the most urgent (RFC 9218 §10). Of equally urgent ones, those that are not incremental come first, one after the
    /// other. One turn in [`FAIR`] goes to the one that has waited longest, so that none starves.
    fn next_turn(&mut self) -> Option<usize> {
        let State { waiting, slots, protocol, turns, .. } = self;
        let mut ready = waiting.iter().enumerate().filter(|(_, key)| protocol.room(slots[**key].id) > 0);
        let (at, _) = match protocol.has_priorities() && *turns > 0 {
            false => ready.next()?,
            true => ready.min_by_key(|(_, key)| {
                let id = slots[**key].id;
                let priority = protocol.priority(id);
                (priority.urgency, if priority.incremental { u32::MAX } else { id })
            })?,
        };
        *turns = (*turns + 1) % FAIR;
        waiting.remove(at)
    }
}
