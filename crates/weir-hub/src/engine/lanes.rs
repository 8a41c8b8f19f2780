//! The subscriptions of a host, apart by their standing, so that those whose callbacks fail or are slow do not hold up the others.
//!
//! Each standing has a lane: a queue in which the owners take turns, and a limit of concurrent deliveries of its own. The limit follows
//! the answers: it grows by one after as many answers as the limit, and is halved if none comes, for failing subscriptions down to one.
//! (Others are without an answer once, and are failing then.) Some of the permits of the host are kept for working subscriptions, and half
//! are kept from slow and failing ones, which are *restricted*.

use super::numbers::{OwnerNumber, Slot};
use super::turns::TurnQueue;
use crate::attempt::DeliveryOutcome;
use crate::record::MarkOutcome;

/// What a subscription's own callback has shown. That its host was not reached says nothing about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The last delivery that reached the host was taken in time.
    Working,
    /// None has reached the host yet.
    New,
    /// The last delivery that reached the host was taken, after more than [`SLOW_AFTER_MS`].
    Slow,
    /// The last delivery that reached the host was refused, or not answered.
    Failing,
}

/// All of them, best first.
const STANDINGS: [Standing; 4] = [Standing::Working, Standing::New, Standing::Slow, Standing::Failing];
/// A callback that takes a delivery after more than this time is slow. It has a permit of its host for that long.
pub(super) const SLOW_AFTER_MS: u64 = 2_000;
/// The concurrent deliveries of a lane before there was an answer.
const FIRST_LIMIT: u32 = 4;

impl Standing {
    /// The standing after a delivery that took so long.
    pub(super) fn after(self, outcome: DeliveryOutcome, took_ms: u64) -> Standing {
        match outcome {
            DeliveryOutcome::Delivered if took_ms > SLOW_AFTER_MS => Standing::Slow,
            DeliveryOutcome::Delivered => Standing::Working,
            DeliveryOutcome::NoAnswer(reason) if reason.is_of_host() => self,
            DeliveryOutcome::NoAnswer(_) | DeliveryOutcome::Refused { .. } => Standing::Failing,
            // The subscription ends, or nothing was sent.
            DeliveryOutcome::Gone | DeliveryOutcome::ContentGone => self,
        }
    }

    /// The standing after an outcome that is read from the state log, which does not have its duration.
    pub(super) fn after_mark(self, outcome: MarkOutcome) -> Standing {
        match outcome {
            MarkOutcome::Delivered => Standing::Working,
            MarkOutcome::Dead(given_up) if !given_up.failure.is_of_host() => Standing::Failing,
            MarkOutcome::Dead(_) | MarkOutcome::Expired(_) | MarkOutcome::Throttled => self,
        }
    }

    fn is_restricted(self) -> bool {
        matches!(self, Standing::Slow | Standing::Failing)
    }
}

/// The slot of a queued subscription, after its arrival and before its owner.
type QueuedSlot = (u64, Slot, OwnerNumber);

/// Deliveries to the subscriptions of one standing.
struct Lane {
    /// Queued subscriptions. One may have ended meanwhile. Boxed, since most lanes have none.
    waiting: Option<Box<TurnQueue<OwnerNumber, QueuedSlot>>>,
    in_flight: u32,
    limit: u32,
    /// Answers since the last change of the limit.
    answers: u32,
}

pub(super) struct Lanes {
    lanes: [Lane; STANDINGS.len()],
    /// The number of the next subscription that is queued.
    arrivals: u64,
    /// The last turn was that of a restricted subscription.
    restricted_had_turn: bool,
    /// The last turn of a restricted subscription was that of a slow one.
    slow_had_turn: bool,
}

impl Lane {
    const fn new() -> Lane {
        Lane { waiting: None, in_flight: 0, limit: FIRST_LIMIT, answers: 0 }
    }

    fn head_arrival(&self) -> Option<u64> {
        self.waiting.as_ref()?.peek().map(|(arrival, ..)| *arrival)
    }

    fn answered(&mut self, most: u32) {
        self.answers += 1;
        if self.answers >= self.limit && self.limit < most {
            self.limit += 1;
            self.answers = 0;
        }
    }

    fn halve_limit(&mut self, least: u32) {
        self.limit = (self.limit / 2).max(least.min(self.limit));
        self.answers = 0;
    }
}

impl Lanes {
    pub(super) fn new() -> Lanes {
        Lanes {
            lanes: [const { Lane::new() }; STANDINGS.len()],
            arrivals: 0,
            restricted_had_turn: false,
            slow_had_turn: false,
        }
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.lanes.iter().map(|lane| lane.in_flight).sum()
    }

    pub(super) fn queue(&mut self, standing: Standing, owner: OwnerNumber, slot: Slot) {
        self.lanes[standing as usize].waiting.get_or_insert_default().push(owner, (self.arrivals, slot, owner));
        self.arrivals += 1;
    }

    /// The best standing that has something to deliver, whatever the limits.
    pub(super) fn best(&self) -> Option<Standing> {
        STANDINGS.into_iter().find(|standing| self.lanes[*standing as usize].waiting.is_some())
    }

    /// The standing that may have the next delivery, of which the host may have `most` at a time. Working and new subscriptions go by
    /// their arrival. Slow and failing ones take turns, and have at most every second turn together.
    pub(super) fn next(&self, most: u32) -> Option<Standing> {
        let with_room = |standing: &Standing| self.has_room(*standing, most.max(1));
        let others = [Standing::Working, Standing::New].into_iter().filter(with_room);
        let first = others.min_by_key(|standing| self.lanes[*standing as usize].head_arrival());
        let mut restricted = [Standing::Slow, Standing::Failing];
        if self.slow_had_turn {
            restricted.reverse();
        }
        let restricted = restricted.into_iter().find(with_room);
        if self.restricted_had_turn { first.or(restricted) } else { restricted.or(first) }
    }

    /// The owner of the next subscription of a standing.
    pub(super) fn next_owner(&self, standing: Standing) -> Option<OwnerNumber> {
        self.lanes[standing as usize].waiting.as_ref()?.peek().map(|(.., owner)| *owner)
    }

    fn has_room(&self, standing: Standing, most: u32) -> bool {
        let lane = &self.lanes[standing as usize];
        let [_, new, slow, failing] = STANDINGS.map(|standing| self.lanes[standing as usize].in_flight);
        let is_in_reserve = || new + slow + failing >= (most - most / 4).max(1);
        lane.waiting.is_some()
            && lane.in_flight < lane.limit
            && self.in_flight() < most
            && match standing {
                Standing::Working => true,
                Standing::New => !is_in_reserve(),
                Standing::Slow | Standing::Failing => !is_in_reserve() && slow + failing < (most / 2).max(1),
            }
    }

    /// Begins a delivery to the next subscription of a standing.
    pub(super) fn begin(&mut self, standing: Standing) -> Option<Slot> {
        let lane = &mut self.lanes[standing as usize];
        let (_, slot, _) = lane.waiting.as_mut()?.pop()?;
        lane.waiting.take_if(|waiting| waiting.is_empty());
        self.begin_out_of_turn(standing);
        Some(slot)
    }

    /// Counts a delivery to a subscription that is not taken from its lane.
    pub(super) fn begin_out_of_turn(&mut self, standing: Standing) {
        self.lanes[standing as usize].in_flight += 1;
        self.restricted_had_turn = standing.is_restricted();
        if self.restricted_had_turn {
            self.slow_had_turn = standing == Standing::Slow;
        }
    }

    pub(super) fn end(&mut self, standing: Standing) {
        self.lanes[standing as usize].in_flight -= 1;
    }

    /// An answer came to a subscription, which gave it the standing `after`.
    pub(super) fn answered(&mut self, before: Standing, after: Standing, most: u32) {
        self.lanes[before as usize].answered(most);
        if after != before {
            self.lanes[after as usize].answered(most);
        }
    }

    /// A subscription of this standing was not answered.
    pub(super) fn unanswered(&mut self, standing: Standing) {
        let least = if standing == Standing::Failing { 1 } else { FIRST_LIMIT };
        self.lanes[standing as usize].halve_limit(least);
    }

    /// The host was not reached.
    pub(super) fn unreached(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.halve_limit(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many deliveries of each standing begin, if that many of each wait.
    fn begun(lanes: &mut Lanes, each: u32, most: u32) -> [u32; 4] {
        for standing in STANDINGS.into_iter().rev() {
            (0..each).for_each(|number| lanes.queue(standing, number.into(), number.into()));
        }
        while let Some(standing) = lanes.next(most) {
            lanes.begin(standing);
        }
        STANDINGS.map(|standing| lanes.lanes[standing as usize].in_flight)
    }

    fn with_limits(limit: u32) -> Lanes {
        let mut lanes = Lanes::new();
        lanes.lanes.iter_mut().for_each(|lane| lane.limit = limit);
        lanes
    }

    #[test]
    fn permits_are_kept_for_working_subscriptions_and_from_restricted_ones() {
        assert_eq!(begun(&mut Lanes::new(), 100, 32), [4, 4, 4, 4]);
        assert_eq!(begun(&mut with_limits(1), 100, 32), [1, 1, 1, 1]);
        for restricted in [&[Standing::Slow][..], &[Standing::Failing], &[Standing::Slow, Standing::Failing]] {
            let mut lanes = with_limits(100);
            for slot in 0..100 {
                restricted.iter().for_each(|standing| lanes.queue(*standing, 0.into(), slot.into()));
            }
            while let Some(standing) = lanes.next(32) {
                lanes.begin(standing);
            }
            assert_eq!(lanes.in_flight(), 16, "half are kept from them");
            let [working, new, slow, failing] = begun(&mut lanes, 100, 32);
            assert_eq!((working, new, slow + failing), (8, 8, 16), "a quarter is kept for working ones");
        }
    }

    #[test]
    fn slow_subscriptions_that_have_all_their_permits_share_them_with_failing_ones() {
        let mut lanes = with_limits(100);
        for slot in 0..100 {
            lanes.queue(Standing::Slow, 0.into(), slot.into());
        }
        while let Some(standing) = lanes.next(32) {
            lanes.begin(standing);
        }
        (0..100).for_each(|slot| lanes.queue(Standing::Failing, 0.into(), slot.into()));
        let mut turns = Vec::new();
        for _ in 0..4 {
            lanes.end(Standing::Slow);
            let next = lanes.next(32).expect("one may begin");
            lanes.begin(next);
            turns.push(next);
        }
        assert_eq!(turns, [Standing::Failing, Standing::Slow, Standing::Failing, Standing::Slow]);
    }

    #[test]
    fn of_a_single_permit_restricted_subscriptions_have_every_second_turn() {
        let mut lanes = Lanes::new();
        for slot in 0..2 {
            STANDINGS.into_iter().for_each(|standing| lanes.queue(standing, 0.into(), slot.into()));
        }
        let mut turns = Vec::new();
        while let Some(standing) = lanes.next(1) {
            lanes.begin(standing);
            assert_eq!(lanes.next(1), None);
            lanes.end(standing);
            turns.push(standing);
        }
        let [working, new, slow, failing] = STANDINGS;
        assert_eq!(turns, [slow, working, failing, new, slow, working, failing, new]);
    }

    #[test]
    fn the_limit_of_one_standing_follows_its_own_answers() {
        let mut lanes = Lanes::new();
        (0..3).for_each(|_| lanes.unanswered(Standing::Failing));
        assert_eq!(begun(&mut lanes, 100, 32), [4, 4, 4, 1]);
        let mut lanes = Lanes::new();
        (0..3).for_each(|_| lanes.unanswered(Standing::New));
        assert_eq!(begun(&mut lanes, 100, 32), [4, 4, 4, 4], "none of them comes again");
        let mut lanes = Lanes::new();
        (0..4).for_each(|_| lanes.answered(Standing::New, Standing::Working, 32));
        assert_eq!(begun(&mut lanes, 100, 32), [5, 5, 4, 4]);
    }
}
