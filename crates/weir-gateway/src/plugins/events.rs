//! The events of an event stream, as they pass the plugins that look at them.

use std::rc::Rc;
use std::time::Duration;

use weir_plugin::{
    EarlyEnd, Filter, MessageHead, MessageKind, MessageProtocol, MessageSource, MessageVerdict, Stop, StreamClose,
};
use weir_proto::event_stream::{EventPart, EventReader};

use super::chain::Plugins;
use super::messages::{self, MessagePolicies};
use crate::context::WorkerContext;
use crate::context::identity_watch::IdentityGuard;
use crate::context::served_exchange::ServedExchange;

const EVENT_STREAM: &[u8] = b"text/event-stream";
const EVENT: MessageHead = MessageHead { source: MessageSource::Upstream, kind: MessageKind::Event };

/// The most bytes of lines that are held until it is clear whether they belong to an event. Longer lines are passed on at
/// once.
const MOST_KEPT: usize = 16 << 10;

/// Whether the response in the exchange is an event stream.
pub(crate) fn is_event_stream(exchange: &ServedExchange) -> bool {
    let kind = exchange.response.head.value(b"content-type").unwrap_or_default();
    kind.get(..EVENT_STREAM.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(EVENT_STREAM))
}

/// The filter for the events of a response; `None` if no plugin wants them, or if the content is compressed.
pub(crate) fn filter(plugins: Plugins<'_>, exchange: &mut ServedExchange) -> Result<Option<Box<dyn Filter>>, Stop> {
    let is_coded = exchange.response.head.value(b"content-encoding").is_some_and(|coding| coding != b"identity");
    if is_coded || !is_event_stream(exchange) {
        return Ok(None);
    }
    let Some(worker) = plugins.pricing.worker() else { return Ok(None) };
    let policies = MessagePolicies::ask(plugins, exchange, MessageProtocol::EventStream)?;
    Ok(policies.map(|policies| {
        let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let heartbeat_ns = policies.terms.heartbeat.map(ns);
        let identity = policies.watch_identity(worker, exchange);
        let ends_ns = policies.time_left().map_or(u64::MAX, |left| worker.now_ns().saturating_add(ns(left)));
        Box::new(EventFilter {
            worker: Rc::clone(worker),
            policies,
            reader: EventReader::default(),
            kept: Vec::new(),
            event: EventState::None,
            ends_ns,
            identity,
            heartbeat_ns,
            sent_ns: worker.now_ns(),
            is_cut: false,
            is_over: false,
            early_end: EarlyEnd::default(),
        }) as Box<dyn Filter>
    }))
}

/// What happens to the lines of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventState {
    /// No event has begun.
    None,
    Passes,
    Dropped,
    /// The event has ended; a line feed that still belongs to it is treated like it.
    Ended {
        was_dropped: bool,
    },
}

struct EventFilter {
    worker: Rc<WorkerContext>,
    policies: MessagePolicies,
    reader: EventReader,
    /// Lines that may be the beginning of an event.
    kept: Vec<u8>,
    event: EventState,
    /// When the stream has to end because a plugin limits its duration.
    ends_ns: u64,
    /// Set if the stream has to end when its client's identity is revoked.
    identity: Option<IdentityGuard>,
    /// Comments are sent when nothing was sent for this time; `None` for no comments.
    heartbeat_ns: Option<u64>,
    /// When something was last sent, or a comment could not be inserted.
    sent_ns: u64,
    /// Part of a line may have been passed on, so no comment can be inserted here.
    is_cut: bool,
    is_over: bool,
    /// Why it is over.
    early_end: EarlyEnd,
}

impl EventFilter {
    fn begin(&mut self, out: &mut Vec<u8>) -> Result<(), StreamClose> {
        let counters = &self.worker.metrics.server_sent_events;
        counters.seen.increment();
        match self.policies.begin(EVENT) {
            MessageVerdict::Pass => {
                self.event = EventState::Passes;
                let kept = std::mem::take(&mut self.kept);
                self.grow(&kept, out)
            }
            MessageVerdict::Drop(loss) => {
                messages::count_lost(counters, loss);
                self.kept.clear();
                self.event = EventState::Dropped;
                Ok(())
            }
            MessageVerdict::Close(close) => {
                messages::count_lost(counters, close.loss);
                Err(close)
            }
        }
    }

    /// Passes lines of an event on.
    fn grow(&mut self, lines: &[u8], out: &mut Vec<u8>) -> Result<(), StreamClose> {
        let grown = self.policies.grow(EVENT, lines.len() as u64);
        if let Err(close) = &grown {
            messages::count_lost(&self.worker.metrics.server_sent_events, close.loss);
            self.event = EventState::None;
            self.is_cut = true;
        }
        grown.map(|()| out.extend_from_slice(lines))
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if self.event == EventState::Passes {
            self.worker.metrics.server_sent_events.passed.increment();
        }
        out.append(&mut self.kept);
        self.event = EventState::Ended { was_dropped: self.event == EventState::Dropped };
    }

    fn part(&mut self, part: EventPart, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), StreamClose> {
        match part {
            EventPart::Begins => self.begin(out)?,
            EventPart::Event(_) if self.event == EventState::Passes => self.grow(bytes, out)?,
            EventPart::Event(_) => {}
            EventPart::Lines(_) => {
                self.event = EventState::None;
                self.kept.extend_from_slice(bytes);
                if self.kept.len() > MOST_KEPT {
                    out.append(&mut self.kept);
                    self.is_cut = true;
                }
            }
            EventPart::Comment(_) => out.extend_from_slice(bytes),
            EventPart::Ends { .. } => self.end(out),
            EventPart::LineFeed if self.event == (EventState::Ended { was_dropped: true }) => {}
            EventPart::LineFeed => out.extend_from_slice(bytes),
        }
        Ok(())
    }

    /// The reason to end the stream, if its client may not receive it any longer.
    fn end_of_identity(&self) -> Option<StreamClose> {
        if self.ends_ns <= self.worker.now_ns() {
            return Some(messages::expired());
        }
        self.identity.as_ref().is_some_and(IdentityGuard::is_revoked).then(messages::revoked)
    }

    fn parts(&mut self, mut piece: &[u8], out: &mut Vec<u8>) -> Result<(), StreamClose> {
        if let Some(close) = self.end_of_identity() {
            self.is_cut |= !self.reader.is_between_lines();
            return Err(close);
        }
        while let Some(part) = self.reader.next(piece) {
            let (bytes, rest) = piece.split_at(part.bytes());
            piece = rest;
            self.part(part, bytes, out)?;
        }
        Ok(())
    }

    /// Ends the stream, with the reason as a comment where one can stand.
    fn finish(&mut self, close: &StreamClose, out: &mut Vec<u8>) {
        self.is_over = true;
        self.early_end = self.policies.early_end(close, &self.worker);
        self.lose_open_event();
        if !self.is_cut {
            let reason = close.reason.replace(['\r', '\n'], " ");
            out.extend_from_slice(format!(": {reason}\n\n").as_bytes());
        }
    }

    /// Counts an event that was cut off: a client does not dispatch an incomplete event.
    fn lose_open_event(&mut self) {
        if std::mem::replace(&mut self.event, EventState::None) == EventState::Passes {
            self.worker.metrics.server_sent_events.failed.increment();
        }
    }
}

impl Filter for EventFilter {
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), Stop> {
        if self.is_over {
            return Ok(());
        }
        let before = out.len();
        if let Err(close) = self.parts(piece, out) {
            self.finish(&close, out);
        }
        if out.len() > before {
            self.sent_ns = self.worker.now_ns();
        }
        Ok(())
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        let now_ns = self.worker.now_ns();
        if self.is_over || now_ns < self.flush_due_ns() {
            return Ok(());
        }
        if let Some(close) = self.end_of_identity() {
            self.is_cut |= !self.reader.is_between_lines();
            self.finish(&close, out);
        } else if self.reader.can_insert_comment() && !self.is_cut {
            out.extend_from_slice(b":\n\n");
        }
        self.sent_ns = now_ns;
        Ok(())
    }

    fn flush_due_ns(&self) -> u64 {
        if self.is_over {
            return u64::MAX;
        }
        if self.identity.as_ref().is_some_and(IdentityGuard::is_revoked) {
            return 0;
        }
        let heartbeat_ns = self.heartbeat_ns.map_or(u64::MAX, |heartbeat_ns| self.sent_ns.saturating_add(heartbeat_ns));
        heartbeat_ns.min(self.ends_ns)
    }

    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        if !self.is_over {
            out.append(&mut self.kept);
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.is_over
    }

    fn early_end(&self) -> Option<EarlyEnd> {
        self.is_over.then_some(self.early_end)
    }
}

impl Drop for EventFilter {
    fn drop(&mut self) {
        self.lose_open_event();
    }
}
