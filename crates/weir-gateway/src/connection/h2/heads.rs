//! The heads of one connection's requests: compression makes much of little, and streams that wait keep it.

use std::cell::Cell;

/// Decoded heads of open streams that one connection may have however few bytes they came in: by default as many as there
/// may be streams, each with what its compression can remember for a client that says nothing twice (RFC 7541 §4.2: 4 KiB).
const FOR_LITTLE: usize = 512 * 1024;
/// For what is more, the connection must have brought a twentieth of it in heads so far (CVE-2016-6581); and it has an end,
/// too: so much for each stream that a client may have.
const FOR_BYTE: u64 = 20;
const FOR_STREAM: usize = 8 * 1024;

/// Heads and trailers together, in bytes as they are kept.
pub(super) struct Heads {
    most: usize,
    held: Cell<usize>,
}

impl Heads {
    pub(super) fn new(most_streams: usize) -> Heads {
        Heads { most: FOR_STREAM.saturating_mul(most_streams), held: Cell::new(0) }
    }

    /// Whether so many more may be kept beside those that are there, where all that have come took `received` on the wire.
    pub(super) fn have_room(&self, more: usize, received: u64) -> bool {
        let held = self.held.get() + more;
        held <= FOR_LITTLE || (held <= self.most && held as u64 <= FOR_BYTE * received)
    }

    /// A stream held so many, and now holds others.
    pub(super) fn hold(&self, before: usize, now: usize) {
        self.held.set(self.held.get() - before + now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_more_than_little_is_paid_for_and_has_an_end() {
        let heads = Heads::new(128);
        assert!(heads.have_room(FOR_LITTLE, 0) && !heads.have_room(FOR_LITTLE + 1, 0));
        heads.hold(0, FOR_LITTLE);
        let enough = (FOR_LITTLE as u64 + 1_000) / FOR_BYTE + 1;
        assert!(heads.have_room(1_000, enough) && !heads.have_room(1_000, enough - 50));
        assert!(heads.have_room(128 * FOR_STREAM - FOR_LITTLE, u64::MAX / FOR_BYTE));
        assert!(!heads.have_room(128 * FOR_STREAM - FOR_LITTLE + 1, u64::MAX / FOR_BYTE));
        heads.hold(FOR_LITTLE, 0);
        assert!(heads.have_room(FOR_LITTLE, 0));
    }
}
