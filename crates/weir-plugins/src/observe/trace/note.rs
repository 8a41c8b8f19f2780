//! What a plugin remembers of its trace between the request and the end of the exchange.

use weir_plugin::{Exchange, NoteKey};

/// The ids of the gateway's span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceNote {
    pub trace: u128,
    pub span: u64,
    /// The caller's span; zero where the trace begins here.
    pub parent: u64,
    /// Without it, only what happens later can have the spans recorded.
    pub is_sampled: bool,
    /// For Zipkin: the trace id has 16 digits; the caller wants the spans in any case.
    pub is_short: bool,
    pub is_debug: bool,
}

/// Its place in the notes of an exchange.
#[derive(Clone, Copy, Debug)]
pub struct TraceNoteKey {
    ids: NoteKey,
    rest: NoteKey,
}

impl TraceNoteKey {
    pub fn unique() -> TraceNoteKey {
        TraceNoteKey { ids: NoteKey::unique(), rest: NoteKey::unique() }
    }

    pub fn write(self, exchange: &mut Exchange, note: TraceNote) {
        let TraceNote { trace, span, parent, is_sampled, is_short, is_debug } = note;
        exchange.notes.write(self.ids, [(trace >> 64) as u64, trace as u64, span]);
        exchange.notes.write(self.rest, [parent, is_sampled.into(), u64::from(is_short) | u64::from(is_debug) << 1]);
    }

    pub fn read(self, exchange: &Exchange) -> Option<TraceNote> {
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

/// How far the ids of an exchange's spans are apart: an odd number with many ones and zeros.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The id of the span after this one. The gateway's span comes first, then one for each attempt: an attempt's id can be
/// told from the one before it.
pub fn next_id(span: u64) -> u64 {
    match span.wrapping_add(STEP) {
        // Zero is no id.
        0 => STEP,
        next => next,
    }
}
