//! How a thread makes its requests and looks at the answers: in one way for plans whose requests are always the same, and in
//! another for all others. The engine is compiled once for each, so the first way costs nothing for the second.

use super::response::AnswerSink;
use crate::engine::flow::{AnswerVerdict, CapturedAnswer, JudgedAnswer, LoadFlow};
use crate::engine::plan::Think;
use crate::engine::prepare::PreparedLoad;
use crate::engine::result::FlowTally;

/// A way to make requests. `slot` is that of an exchange, `request` the index of a request of the plan.
pub(super) trait RequestMaker {
    type Sink: AnswerSink;

    /// Draws the values of a request that is due; false if the client has to end.
    fn draw(&mut self, slot: usize, request: usize, due: u64) -> bool;

    /// Begins an exchange.
    fn begin(&mut self, slot: usize, request: usize);

    /// The bytes to send next.
    fn wire<'a>(&'a self, prepared: &'a PreparedLoad, slot: usize, request: usize) -> &'a [u8];

    /// The bytes that an exchange has sent before those.
    fn sent_before(&self, slot: usize) -> u64;

    /// Bytes of an answer have come.
    fn received(&mut self, slot: usize, now: u64);

    fn sink(&mut self, slot: usize) -> &mut Self::Sink;

    /// Looks at a complete answer. After [`AnswerVerdict::Again`], the bytes to send are those of another request.
    fn answered(
        &mut self,
        prepared: &PreparedLoad,
        slot: usize,
        request: usize,
        status: u16,
        due: u64,
        now: u64,
    ) -> AnswerVerdict;

    /// When the first byte of the answer came.
    fn first_byte(&self, slot: usize) -> Option<u64>;

    /// An exchange has failed. Returns whether the client begins again with the first request.
    fn failed(&mut self, slot: usize, request: usize) -> bool;

    /// The pause after a request, if it has its own.
    fn think(&self, request: usize) -> Option<Think>;

    fn tally(&mut self) -> Option<FlowTally>;
}

/// Requests that have been rendered before the run.
pub(super) struct FixedRequests {
    /// Nothing is received here, but a sink needs a place.
    pub(super) dropped: (),
}

impl RequestMaker for FixedRequests {
    type Sink = ();

    #[inline]
    fn draw(&mut self, _: usize, _: usize, _: u64) -> bool {
        true
    }

    #[inline]
    fn begin(&mut self, _: usize, _: usize) {}

    #[inline]
    fn wire<'a>(&'a self, prepared: &'a PreparedLoad, _: usize, request: usize) -> &'a [u8] {
        &prepared.requests[request].wire
    }

    #[inline]
    fn sent_before(&self, _: usize) -> u64 {
        0
    }

    #[inline]
    fn received(&mut self, _: usize, _: u64) {}

    #[inline]
    fn sink(&mut self, _: usize) -> &mut () {
        &mut self.dropped
    }

    #[inline]
    fn answered(
        &mut self,
        prepared: &PreparedLoad,
        _: usize,
        request: usize,
        status: u16,
        _: u64,
        _: u64,
    ) -> AnswerVerdict {
        let is_expected = prepared.requests[request].expects(status);
        AnswerVerdict::Done(JudgedAnswer { is_expected, failed_check: false, ends_pass: false })
    }

    #[inline]
    fn first_byte(&self, _: usize) -> Option<u64> {
        None
    }

    #[inline]
    fn failed(&mut self, _: usize, _: usize) -> bool {
        false
    }

    #[inline]
    fn think(&self, _: usize) -> Option<Think> {
        None
    }

    fn tally(&mut self) -> Option<FlowTally> {
        None
    }
}

/// Requests that are rendered for each exchange.
pub(super) struct FlowRequests {
    flow: LoadFlow,
    /// Of each slot the bytes to send next, and the number of those sent before in the same exchange.
    wires: Vec<(Vec<u8>, u64)>,
}

impl FlowRequests {
    pub(super) fn new(flow: LoadFlow, slots: usize) -> Self {
        Self { flow, wires: vec![(Vec::new(), 0); slots] }
    }

    fn render(&mut self, slot: usize, request: usize) {
        let (wire, _) = &mut self.wires[slot];
        wire.clear();
        if self.flow.is_fixed(slot, request) {
            return;
        }
        self.flow.render(slot, request).write_http1(wire);
    }
}

impl RequestMaker for FlowRequests {
    type Sink = CapturedAnswer;

    fn draw(&mut self, slot: usize, request: usize, due: u64) -> bool {
        self.flow.draw(slot, request, due)
    }

    fn begin(&mut self, slot: usize, request: usize) {
        self.wires[slot].1 = 0;
        self.flow.begin(slot, request);
        self.render(slot, request);
    }

    fn wire<'a>(&'a self, prepared: &'a PreparedLoad, slot: usize, request: usize) -> &'a [u8] {
        match self.wires[slot].0.as_slice() {
            // It is always the same, and has been rendered before the run.
            [] => &prepared.requests[request].wire,
            wire => wire,
        }
    }

    fn sent_before(&self, slot: usize) -> u64 {
        self.wires[slot].1
    }

    fn received(&mut self, slot: usize, now: u64) {
        self.flow.received(slot, now);
    }

    fn sink(&mut self, slot: usize) -> &mut CapturedAnswer {
        self.flow.answer(slot)
    }

    fn answered(
        &mut self,
        prepared: &PreparedLoad,
        slot: usize,
        request: usize,
        status: u16,
        due: u64,
        now: u64,
    ) -> AnswerVerdict {
        let verdict = self.flow.answered(slot, request, status, due, now);
        if verdict == AnswerVerdict::Again {
            self.wires[slot].1 += self.wire(prepared, slot, request).len() as u64;
            self.render(slot, request);
        }
        verdict
    }

    fn first_byte(&self, slot: usize) -> Option<u64> {
        self.flow.first_byte(slot)
    }

    fn failed(&mut self, slot: usize, request: usize) -> bool {
        self.flow.failed(slot, request)
    }

    fn think(&self, request: usize) -> Option<Think> {
        self.flow.think(request)
    }

    fn tally(&mut self) -> Option<FlowTally> {
        Some(self.flow.take_tally())
    }
}

impl AnswerSink for CapturedAnswer {
    fn head(&mut self, status: u16, fields: &[httparse::Header<'_>]) {
        self.restart(status);
        fields.iter().for_each(|field| self.field(field.name, field.value));
    }

    fn content(&mut self, data: &[u8]) {
        CapturedAnswer::content(self, data);
    }
}
