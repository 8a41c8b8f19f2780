//! Membership: which nodes are alive, and which node owns which share of the subscriptions.
//!
//! Every node writes a heartbeat to one partition twice a second. The silence of another node is measured in own heartbeats read
//! from the partition, not in time: while the brokers do not answer, no node is considered dead.

use std::collections::{BTreeMap, BTreeSet};

use super::frame::{FrameKind, HubFrame};

/// Own heartbeats without one of another node, after which that node is considered dead: five seconds.
const SILENCE: u64 = 10;
/// Own heartbeats after which a node has seen those of all others.
const SETTLED: u64 = 4;

/// A node's view of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClusterView {
    pub live: BTreeSet<u64>,
    /// The shares that this node should own.
    pub own: BTreeSet<u32>,
}

pub(super) struct Membership {
    node: u64,
    shares: u32,
    /// The number of own heartbeats read.
    beats: u64,
    /// The value of `beats` at the last heartbeat of each node.
    heard: BTreeMap<u64, u64>,
}

impl Membership {
    pub(super) fn new(node: u64, shares: u32) -> Membership {
        Membership { node, shares, beats: 0, heard: BTreeMap::new() }
    }

    pub(super) fn read(&mut self, frame: &HubFrame<'_>) {
        self.beats += u64::from(frame.node == self.node && frame.kind == FrameKind::Alive);
        match frame.kind {
            FrameKind::Leaving => drop(self.heard.remove(&frame.node)),
            _ => drop(self.heard.insert(frame.node, self.beats)),
        }
        self.heard.retain(|_, heard| *heard + SILENCE > self.beats);
    }

    /// Empty until the heartbeats of other nodes have had time to arrive.
    pub(super) fn view(&self) -> ClusterView {
        if self.beats < SETTLED || !self.heard.contains_key(&self.node) {
            return ClusterView::default();
        }
        let live: BTreeSet<u64> = self.heard.keys().copied().collect();
        let owners = owners(&live, self.shares);
        let own = (0..self.shares).filter(|share| owners[*share as usize] == self.node).collect();
        ClusterView { live, own }
    }

    /// Whether this node trims the partition for all.
    pub(super) fn is_trimmer(&self) -> bool {
        self.heard.keys().next() == Some(&self.node)
    }
}

/// The node that should own each share: the one with the highest hash among those with room (rendezvous hashing with bounded
/// loads), so that few shares change their owner when a node joins or leaves, and all nodes own about as many.
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

/// Mixes a number so that every bit of it affects every bit of the result (the finalizer of SplitMix64).
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

    /// Reads this number of heartbeats of each of these nodes.
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
    fn membership_takes_no_share_before_it_has_heard_the_others() {
        let mut membership = Membership::new(1, 4);
        beat(&mut membership, &[1, 2], SETTLED - 1);
        assert_eq!(membership.view(), ClusterView::default());
        beat(&mut membership, &[1, 2], 1);
        let view = membership.view();
        assert_eq!((view.live, view.own.len()), ([1, 2].into(), 2));
    }

    #[test]
    fn membership_drops_nodes_that_are_silent_or_leave() {
        let mut membership = Membership::new(1, 4);
        beat(&mut membership, &[1, 2, 3], SETTLED);
        membership.read(&frame(3, FrameKind::Leaving));
        assert_eq!(membership.view().live, [1, 2].into());
        beat(&mut membership, &[1], SILENCE - 1);
        assert_eq!(membership.view().live, [1, 2].into());
        beat(&mut membership, &[1], 1);
        assert_eq!((membership.view().live, membership.view().own.len()), ([1].into(), 4));
        // A heartbeat of a process that was considered dead.
        beat(&mut membership, &[2], 1);
        assert_eq!(membership.view().live, [1, 2].into());
    }
}
