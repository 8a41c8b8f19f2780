//! Which nodes there are, and which of them has which share of the subscriptions.
//!
//! Every node writes to one partition twice a second. How long another one has been silent is counted in one's own messages, as they
//! stand in the partition: while the brokers do not answer, no node is taken for dead.

use std::collections::{BTreeMap, BTreeSet};

use super::frame::{FrameKind, HubFrame};

/// Own messages without one of another node, after which that is taken for dead: five seconds.
const SILENCE: u64 = 10;
/// Own messages after which a node has heard all others.
const SETTLED: u64 = 4;

/// What a node knows of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    pub live: BTreeSet<u64>,
    /// The shares that this node is to have.
    pub own: BTreeSet<u32>,
}

pub struct Membership {
    node: u64,
    shares: u32,
    /// Own messages that were read.
    beats: u64,
    /// How many there were when another node was heard last.
    heard: BTreeMap<u64, u64>,
}

impl Membership {
    pub fn new(node: u64, shares: u32) -> Membership {
        Membership { node, shares, beats: 0, heard: BTreeMap::new() }
    }

    pub fn read(&mut self, frame: &HubFrame<'_>) {
        self.beats += u64::from(frame.node == self.node && frame.kind == FrameKind::Alive);
        match frame.kind {
            FrameKind::Leaving => drop(self.heard.remove(&frame.node)),
            _ => drop(self.heard.insert(frame.node, self.beats)),
        }
        self.heard.retain(|_, heard| *heard + SILENCE > self.beats);
    }

    /// Nobody and nothing until the others were heard.
    pub fn view(&self) -> ClusterView {
        if self.beats < SETTLED || !self.heard.contains_key(&self.node) {
            return ClusterView::default();
        }
        let live: BTreeSet<u64> = self.heard.keys().copied().collect();
        let owners = owners(&live, self.shares);
        let own = (0..self.shares).filter(|share| owners[*share as usize] == self.node).collect();
        ClusterView { live, own }
    }

    /// Whether this node tidies up for all.
    pub fn is_first(&self) -> bool {
        self.heard.keys().next() == Some(&self.node)
    }
}

/// The node that is to have each share: the one that a hash ranks first among those with room (rendezvous hashing with bounded
/// loads), so that few shares change hands when a node comes or goes, and no node has many more than another.
fn owners(live: &BTreeSet<u64>, shares: u32) -> Vec<u64> {
    let most = (shares as usize).div_ceil(live.len().max(1));
    let mut loads: BTreeMap<u64, usize> = BTreeMap::new();
    let mut choose = |share: u32| {
        let has_room = |node: &&u64| loads.get(node).copied().unwrap_or(0) < most;
        let best = live.iter().filter(has_room).max_by_key(|node| mixed(**node ^ mixed(u64::from(share) + 1)));
        let best = *best.expect("all together have room for all");
        *loads.entry(best).or_default() += 1;
        best
    };
    (0..shares).map(&mut choose).collect()
}

/// Every bit of the number decides about every bit of the result (the finalizer of SplitMix64).
fn mixed(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(node: u64, kind: FrameKind) -> HubFrame<'static> {
        HubFrame { node, epoch: 0, number: 0, kind, payload: b"" }
    }

    /// So many times every one of these nodes.
    fn beat(membership: &mut Membership, nodes: &[u64], times: u64) {
        for _ in 0..times {
            nodes.iter().for_each(|node| membership.read(&frame(*node, FrameKind::Alive)));
        }
    }

    #[test]
    fn shares_are_divided_evenly_and_few_change_hands() {
        let owners_of = |nodes: &[u64]| owners(&nodes.iter().copied().collect(), 12);
        let before = owners_of(&[10, 20, 30]);
        for node in [10, 20, 30] {
            assert_eq!(before.iter().filter(|owner| **owner == node).count(), 4);
        }
        let after = owners_of(&[10, 30]);
        let moved = before.iter().zip(&after).filter(|(before, after)| before != after).count();
        assert!((4..=7).contains(&moved), "{before:?} {after:?}");
    }

    #[test]
    fn nothing_is_taken_before_the_others_were_heard() {
        let mut membership = Membership::new(1, 4);
        beat(&mut membership, &[1, 2], SETTLED - 1);
        assert_eq!(membership.view(), ClusterView::default());
        beat(&mut membership, &[1, 2], 1);
        let view = membership.view();
        assert_eq!((view.live, view.own.len()), ([1, 2].into(), 2));
    }

    #[test]
    fn who_is_silent_or_leaves_is_gone() {
        let mut membership = Membership::new(1, 4);
        beat(&mut membership, &[1, 2, 3], SETTLED);
        membership.read(&frame(3, FrameKind::Leaving));
        assert_eq!(membership.view().live, [1, 2].into());
        beat(&mut membership, &[1], SILENCE - 1);
        assert_eq!(membership.view().live, [1, 2].into());
        beat(&mut membership, &[1], 1);
        assert_eq!((membership.view().live, membership.view().own.len()), ([1].into(), 4));
        // A process that was taken for dead is heard again.
        beat(&mut membership, &[2], 1);
        assert_eq!(membership.view().live, [1, 2].into());
    }
}
