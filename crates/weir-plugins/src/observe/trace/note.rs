//! The ids of a trace, stored in an exchange from the request phase until its end.

use weir_plugin::{Exchange, NoteKey};

/// The ids of the gateway's server span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceNote {
    pub trace: u128,
    pub span: u64,
    /// The caller's span; zero if the trace begins here.
    pub parent: u64,
    /// If false, the spans are recorded only if the exchange fails or is slow, and such exchanges are to be kept.
    pub is_sampled: bool,
    /// For Zipkin: whether the trace id has 16 digits, and whether the caller wants the spans recorded in any case.
    pub is_short: bool,
    pub is_debug: bool,
}

/// The keys of the two notes that store a `TraceNote`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceNoteKey {
    ids: NoteKey,
    rest: NoteKey,
}

impl TraceNoteKey {
    pub(crate) fn unique() -> TraceNoteKey {
        TraceNoteKey { ids: NoteKey::unique(), rest: NoteKey::unique() }
    }

    pub(crate) fn write(self, exchange: &mut Exchange, note: TraceNote) {
        self.write_unshown(exchange, note);
        if note.is_sampled {
            exchange.set_sampled_trace(note.trace, note.span);
        }
    }

    /// The same for a trace that the collector knows by another id: the exchange's variables do not show this one.
    pub(crate) fn write_unshown(self, exchange: &mut Exchange, note: TraceNote) {
        let TraceNote { trace, span, parent, is_sampled, is_short, is_debug } = note;
        exchange.notes.write(self.ids, [(trace >> 64) as u64, trace as u64, span]);
        exchange.notes.write(self.rest, [parent, is_sampled.into(), u64::from(is_short) | u64::from(is_debug) << 1]);
    }

    pub(crate) fn read(self, exchange: &Exchange) -> Option<TraceNote> {
        let [high, low, span] = exchange.notes.read(self.ids)?;
        let [parent, is_sampled, flags] = exchange.notes.read(self.rest)?;
        Some(TraceNote {
            trace: u128::from(high) << 64 | u128::from(low),
            span,
            parent,
            is_sampled: is_sampled != 0,
            is_short: flags & 1 != 0,
            is_debug: flags & 2 != 0,
        })
    }
}

/// The distance between the ids of an exchange's spans: an odd number whose bits are well mixed.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The id of the span after this one. The gateway's span comes first, then one for each attempt, so the id of an attempt
/// can be calculated from the one before.
pub(crate) fn next_id(span: u64) -> u64 {
    match span.wrapping_add(STEP) {
        // Zero is not a valid id.
        0 => STEP,
        next => next,
    }
}
