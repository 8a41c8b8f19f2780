//! Whose records count in the partition of a share.
//!
//! The order of the partition decides. A node that takes a share over appends a claim with the next epoch; the first claim of an
//! epoch counts, and from there on nothing that another node writes. An owner lets nothing count as written before it has read it
//! there, so it cannot go on after it was replaced, however long it was out of touch.

use super::frame::{FrameKind, HubFrame};

/// Who has a share, as far as its partition was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareTail {
    /// 0 before the first claim.
    pub epoch: u64,
    pub owner: u64,
    pub is_released: bool,
    /// Of the last record.
    number: u64,
}

/// What a frame means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareEntry {
    /// It does not count, or came before.
    Nothing,
    Record,
    Claimed,
    Released,
}

impl ShareTail {
    pub fn read(&mut self, frame: &HubFrame<'_>) -> ShareEntry {
        match frame.kind {
            FrameKind::Claim if frame.epoch > self.epoch => {
                *self = ShareTail { epoch: frame.epoch, owner: frame.node, ..ShareTail::default() };
                return ShareEntry::Claimed;
            }
            FrameKind::Record | FrameKind::Release => {}
            _ => return ShareEntry::Nothing,
        }
        // Only a node whose claim counted writes records with its epoch: the claim was removed with what a snapshot replaced.
        if frame.epoch > self.epoch || frame.epoch == self.epoch && frame.node != self.owner {
            *self = ShareTail { epoch: frame.epoch, owner: frame.node, ..ShareTail::default() };
        }
        if frame.epoch < self.epoch || frame.number <= self.number {
            return ShareEntry::Nothing;
        }
        self.number = frame.number;
        self.is_released = frame.kind == FrameKind::Release;
        if self.is_released { ShareEntry::Released } else { ShareEntry::Record }
    }

    /// Whether a node may take the share over, once it has read all there is.
    pub fn is_free(&self, node: u64, is_live: impl Fn(u64) -> bool) -> bool {
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
        let mut tail = ShareTail::default();
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
        let mut tail = ShareTail::default();
        // Left over from an owner before, and from one whose claim came too late.
        assert_eq!(tail.read(&frame(1, 4, 9, FrameKind::Record)), ShareEntry::Record);
        assert_eq!(tail.read(&frame(3, 5, 0, FrameKind::Claim)), ShareEntry::Claimed);
        assert_eq!(tail.read(&frame(2, 5, 7, FrameKind::Record)), ShareEntry::Record);
        assert_eq!((tail.epoch, tail.owner), (5, 2));
    }

    #[test]
    fn a_share_is_free_without_an_owner_that_lives() {
        let mut tail = ShareTail::default();
        assert!(tail.is_free(1, |_| true));
        tail.read(&frame(2, 1, 0, FrameKind::Claim));
        assert!(!tail.is_free(1, |_| true));
        assert!(tail.is_free(1, |node| node != 2) && tail.is_free(2, |_| true));
        tail.read(&frame(2, 1, 1, FrameKind::Release));
        assert!(tail.is_free(1, |_| true));
    }
}
