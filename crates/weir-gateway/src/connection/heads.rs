//! Limits the memory for the heads of one connection's requests: a few compressed bytes may expand to many, which are kept
//! as long as their streams wait.

use std::cell::Cell;

/// The most bytes of decoded heads of open streams that are allowed however few bytes they were received in: enough for the
/// default number of streams (128), each with a head as large as the dynamic table of HPACK (RFC 7541 §4.2: 4 KiB).
const FREE_BYTES: usize = 512 * 1024;
/// Above that, the connection must have received at least a twentieth of these bytes in compressed heads so far
/// (CVE-2016-6581), up to a fixed number of bytes for each stream that it may have.
const MAX_EXPANSION: u64 = 20;
const BYTES_PER_STREAM: usize = 8 * 1024;

/// The decoded bytes of heads and trailers of the open streams.
pub(super) struct Heads {
    most: usize,
    held: Cell<usize>,
}

impl Heads {
    pub(super) fn new(most_streams: usize) -> Heads {
        Heads { most: BYTES_PER_STREAM.saturating_mul(most_streams), held: Cell::new(0) }
    }

    /// Whether `more` bytes may be kept in addition, where all heads so far took `received` bytes on the wire.
    pub(super) fn have_room(&self, more: usize, received: u64) -> bool {
        let held = self.held.get() + more;
        held <= FREE_BYTES || (held <= self.most && held as u64 <= MAX_EXPANSION * received)
    }

    /// Called when a stream that held `before` bytes now holds `now`.
    pub(super) fn hold(&self, before: usize, now: usize) {
        self.held.set(self.held.get() - before + now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_beyond_the_free_bytes_need_received_bytes_and_are_bounded() {
        let heads = Heads::new(128);
        assert!(heads.have_room(FREE_BYTES, 0) && !heads.have_room(FREE_BYTES + 1, 0));
        heads.hold(0, FREE_BYTES);
        let enough = (FREE_BYTES as u64 + 1_000) / MAX_EXPANSION + 1;
        assert!(heads.have_room(1_000, enough) && !heads.have_room(1_000, enough - 50));
        assert!(heads.have_room(128 * BYTES_PER_STREAM - FREE_BYTES, u64::MAX / MAX_EXPANSION));
        assert!(!heads.have_room(128 * BYTES_PER_STREAM - FREE_BYTES + 1, u64::MAX / MAX_EXPANSION));
        heads.hold(FREE_BYTES, 0);
        assert!(heads.have_room(FREE_BYTES, 0));
    }
}
