//! What the end of a stream costs its client: streams that are opened and left at once are an attack (CVE-2023-44487).

use weir_net::timer::NEVER;
use weir_proto::h2::credit::Credit;

/// A stream that lasted this long does not count as rapid reset, however it ended.
const LONG_NS: u64 = 1_000_000_000;
/// Nor does a gRPC call that lasted this long and was cancelled or reached its deadline: some clients call two servers and
/// cancel the slower call. Streams opened at this rate cost no more than calls that are answered.
const CALL_NS: u64 = 10_000_000;

/// How a stream ended.
pub(super) struct StreamOutcome {
    pub(super) lasted_ns: u64,
    /// The client has given it up, which has been charged.
    pub(super) was_left: bool,
    pub(super) has_response: bool,
    /// The deadline of the call; [`NEVER`] without one.
    pub(super) call_deadline_ns: u64,
    pub(super) now_ns: u64,
}

/// What is done to the credit of the client.
pub(super) enum Charge {
    Refund,
    Left,
}

impl StreamOutcome {
    pub(super) fn charge(&self) -> Option<Charge> {
        let is_over = self.call_deadline_ns <= self.now_ns;
        let is_call = self.lasted_ns >= CALL_NS && self.call_deadline_ns != NEVER && (self.was_left || is_over);
        // A stream that was reset after its response began has caused no more work than one that was not.
        if self.lasted_ns >= LONG_NS || is_call || self.was_left && self.has_response {
            Some(Charge::Refund)
        } else {
            is_over.then_some(Charge::Left)
        }
    }
}

impl Charge {
    pub(super) fn apply(self, credit: &mut Credit) {
        match self {
            Charge::Refund => credit.stream_lasted(),
            Charge::Left => credit.stream_left(),
        }
    }
}
