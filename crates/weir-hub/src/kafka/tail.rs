//! The rules by which records in the partition of a share are valid.
//!
//! The order of the partition decides. A node that takes over a share appends a claim with the next epoch. The first claim of an
//! epoch is valid, and makes all later records of other nodes invalid. An owner treats a record as written only after reading it
//! back, so a replaced owner cannot continue, even after a long network partition.

use super::frame::{FrameKind, HubFrame};

/// The owner of a share, as far as its partition was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ShareOwnership {
    /// 0 before the first claim.
    pub epoch: u64,
    pub owner: u64,
    pub is_released: bool,
    /// The number of the last record.
    number: u64,
}

/// The meaning of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShareEntry {
    /// The frame is invalid, or a repetition.
    Nothing,
    Record,
    Claimed,
    Released,
}

impl ShareOwnership {
    pub(super) fn read(&mut self, frame: &HubFrame<'_>) -> ShareEntry {
        match frame.kind {
            FrameKind::Claim if frame.epoch > self.epoch => {
                *self = ShareOwnership { epoch: frame.epoch, owner: frame.node, ..ShareOwnership::default() };
                return ShareEntry::Claimed;
            }
            FrameKind::Record | FrameKind::Release => {}
            _ => return ShareEntry::Nothing,
        }
        // Only a node with a valid claim writes records with its epoch. The claim itself may have been removed, when a snapshot
        // replaced the records before it.
        if frame.epoch > self.epoch || frame.epoch == self.epoch && frame.node != self.owner {
            *self = ShareOwnership { epoch: frame.epoch, owner: frame.node, ..ShareOwnership::default() };
        }
        if frame.epoch < self.epoch || frame.number <= self.number {
            return ShareEntry::Nothing;
        }
        self.number = frame.number;
        self.is_released = frame.kind == FrameKind::Release;
        if self.is_released { ShareEntry::Released } else { ShareEntry::Record }
    }

    /// Whether a node may take over the share, once it has read the whole partition.
    pub(super) fn is_free(&self, node: u64, is_live: impl Fn(u64) -> bool) -> bool {
        self.epoch == 0 || self.is_released || self.owner == node || !is_live(self.owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(node: u64, epoch: u64, number: u64, kind: FrameKind) -> HubFrame<'static> {
        HubFrame { node, epoch, number, kind, payload: b"" }
    }

    #[test]
    fn the_first_claim_counts_and_then_nothing_of_the_owner_before() {
        let mut tail = ShareOwnership::default();
        let mut read = |node, epoch, number, kind| tail.read(&frame(node, epoch, number, kind));
        assert_eq!(read(1, 1, 0, FrameKind::Claim), ShareEntry::Claimed);
        assert_eq!(read(1, 1, 1, FrameKind::Record), ShareEntry::Record);
        assert_eq!(read(1, 1, 2, FrameKind::Record), ShareEntry::Record);
        assert_eq!(read(1, 1, 2, FrameKind::Record), ShareEntry::Nothing, "it was sent again");
        assert_eq!(read(2, 2, 0, FrameKind::Claim), ShareEntry::Claimed);
        assert_eq!(read(3, 2, 0, FrameKind::Claim), ShareEntry::Nothing, "another node was faster");
        assert_eq!(read(1, 1, 3, FrameKind::Record), ShareEntry::Nothing, "it was replaced");
        assert_eq!(read(1, 1, 4, FrameKind::Release), ShareEntry::Nothing);
        assert_eq!(read(2, 2, 1, FrameKind::Record), ShareEntry::Record);
        assert_eq!(read(2, 2, 2, FrameKind::Release), ShareEntry::Released);
        assert_eq!((tail.owner, tail.is_released), (2, true));
    }

    #[test]
    fn a_claim_that_was_removed_is_known_by_the_records_after_it() {
        let mut tail = ShareOwnership::default();
        // A record of an earlier owner whose claim was removed; then two claims of one epoch, of which the second one is too
        // late.
        assert_eq!(tail.read(&frame(1, 4, 9, FrameKind::Record)), ShareEntry::Record);
        assert_eq!(tail.read(&frame(3, 5, 0, FrameKind::Claim)), ShareEntry::Claimed);
        assert_eq!(tail.read(&frame(2, 5, 7, FrameKind::Record)), ShareEntry::Record);
        assert_eq!((tail.epoch, tail.owner), (5, 2));
    }

    #[test]
    fn a_share_is_free_without_an_owner_that_lives() {
        let mut tail = ShareOwnership::default();
        assert!(tail.is_free(1, |_| true));
        tail.read(&frame(2, 1, 0, FrameKind::Claim));
        assert!(!tail.is_free(1, |_| true));
        assert!(tail.is_free(1, |node| node != 2) && tail.is_free(2, |_| true));
        tail.read(&frame(2, 1, 1, FrameKind::Release));
        assert!(tail.is_free(1, |_| true));
    }
}
