//! The hosts of callbacks: their turns, and what is known of each.
//!
//! Ready hosts take turns, so that a host with many subscriptions does not hold up the others, and among them the owners of what they
//! have next: one that has callbacks at many hosts, all of them silent, does not hold up the others either. What a callback answers says something
//! about its subscription alone, and decides by which [lane](super::lanes) it is delivered to. Only deliveries that do not reach the host
//! say something about the host: after several in a row it gets one delivery at a time, after a pause that grows, and first to the
//! subscription that worked last.

use std::time::Duration;

use slab::Slab;
use weir_net::backoff::Backoff;

use super::host_requests::{HostRequest, HostRequests, HostTurn, RequestLimits, Requester};
use super::lanes::{Lanes, Standing};
use super::names::Names;
use super::numbers::{HostNumber, OwnerNumber, Slot};
use super::turns::TurnQueue;
use crate::attempt::DeliveryOutcome;

/// Deliveries in a row that did not reach a host, after which it gets a pause.
const DOWN_AFTER: u32 = 5;
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

#[derive(Default)]
pub(super) struct CallbackHosts {
    /// Indexed by the number of the host's name.
    hosts: Slab<CallbackHost>,
    /// Host names, each counted once per subscription, request or denial with a callback there.
    names: Names<HostNumber>,
    /// Hosts that have something to deliver and are below their limit, by the owners of what they have next, and in the order in which
    /// they became ready.
    ready: TurnQueue<OwnerNumber, (u64, HostNumber)>,
    /// Hosts that have verifications or denials to send, by those who caused the next one.
    asking: TurnQueue<Requester, (u64, HostNumber)>,
    /// The number of the next host that becomes ready, or asks.
    listed: u64,
}

struct CallbackHost {
    lanes: Lanes,
    is_ready: bool,
    /// Deliveries in a row that did not reach it.
    unreached: u32,
    /// The end of its pause; 0 if it has none.
    paused_until_ms: u64,
    /// The slot of the subscription that took the last delivery, for the next probe.
    worked_last: Option<Slot>,
    requests: HostRequests,
}

/// A delivery that begins, if the subscription in the slot still waits there with this standing.
pub(super) struct DeliveryTurn {
    pub(super) host: HostNumber,
    pub(super) slot: Slot,
    pub(super) standing: Standing,
}

/// The end of a delivery.
pub(super) struct DeliveryEnd {
    pub(super) host: HostNumber,
    pub(super) slot: Slot,
    pub(super) outcome: DeliveryOutcome,
    /// The standing of the subscription before and after.
    pub(super) before: Standing,
    pub(super) after: Standing,
}

pub(super) enum NextRequest {
    Now { host: HostNumber, request: HostRequest },
    Later { host: HostNumber, at_ms: u64 },
    None,
}

impl CallbackHost {
    fn is_down(&self) -> bool {
        self.unreached >= DOWN_AFTER
    }

    /// The standing of the next delivery. A host that is down has one delivery at a time.
    fn next_standing(&self, most: u32) -> Option<Standing> {
        match self.is_down() {
            true if self.paused_until_ms > 0 || self.lanes.in_flight() > 0 => None,
            true => self.lanes.best(),
            false => self.lanes.next(most),
        }
    }

    /// Returns the end of the pause, if one begins.
    fn unreached(&mut self, now_ms: u64) -> Option<u64> {
        if self.paused_until_ms > 0 {
            // It was sent before the pause began.
            return None;
        }
        self.unreached = self.unreached.saturating_add(1);
        self.lanes.unreached();
        let failures = self.unreached.checked_sub(DOWN_AFTER)?.saturating_add(1);
        self.paused_until_ms = now_ms + PAUSES.after(failures).as_millis() as u64;
        Some(self.paused_until_ms)
    }
}

impl CallbackHosts {
    pub(super) fn add(&mut self, name: &str) -> HostNumber {
        let host = self.names.add(name);
        if self.names.uses(host) > 1 || self.hosts.contains(host.index()) {
            return host;
        }
        let same = self.hosts.insert(CallbackHost {
            lanes: Lanes::new(),
            is_ready: false,
            unreached: 0,
            paused_until_ms: 0,
            worked_last: None,
            requests: HostRequests::default(),
        });
        assert_eq!(same, host.index(), "both slabs grow and shrink together");
        host
    }

    pub(super) fn release(&mut self, host: HostNumber) {
        self.names.release(host);
        self.forget_unused(host);
    }

    /// Forgets a host without users; not while it is in a list, has a delivery in flight, or is known to be down.
    fn forget_unused(&mut self, host: HostNumber) {
        let at = &self.hosts[host.index()];
        let is_idle = at.lanes.in_flight() == 0 && !at.is_ready && at.paused_until_ms == 0 && at.requests.is_unused();
        if self.names.uses(host) == 0 && is_idle {
            self.hosts.remove(host.index());
            self.names.forget(host);
        }
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn queue(&mut self, host: HostNumber, standing: Standing, owner: OwnerNumber, slot: Slot) {
        self.hosts[host.index()].lanes.queue(standing, owner, slot);
        self.make_ready(host, u32::MAX);
    }

    fn make_ready(&mut self, host: HostNumber, most: u32) {
        let at = &mut self.hosts[host.index()];
        if !at.is_ready
            && let Some(owner) = at.next_standing(most).and_then(|standing| at.lanes.next_owner(standing))
        {
            at.is_ready = true;
            self.ready.push(owner, (self.listed, host));
            self.listed += 1;
        }
    }

    /// The next delivery, which counts as in flight.
    pub(super) fn next(&mut self, most: u32) -> Option<DeliveryTurn> {
        loop {
            let (_, host) = self.ready.pop()?;
            let at = &mut self.hosts[host.index()];
            at.is_ready = false;
            let Some(standing) = at.next_standing(most) else {
                self.forget_unused(host);
                continue;
            };
            let turn = match at.worked_last.take_if(|_| at.unreached >= DOWN_AFTER && standing == Standing::Working) {
                Some(slot) => {
                    at.lanes.begin_out_of_turn(Standing::Working);
                    DeliveryTurn { host, slot, standing: Standing::Working }
                }
                None => {
                    let slot = at.lanes.begin(standing).expect("this standing has something to deliver");
                    DeliveryTurn { host, slot, standing }
                }
            };
            self.make_ready(host, most);
            return Some(turn);
        }
    }

    /// Ends a delivery that was not sent, without an effect on the host's limits.
    pub(super) fn release_unsent(&mut self, host: HostNumber, standing: Standing) {
        self.hosts[host.index()].lanes.end(standing);
        self.make_ready(host, u32::MAX);
        self.forget_unused(host);
    }

    /// Reports the end of a delivery. Returns the end of the host's pause, if it gets one.
    pub(super) fn ended(&mut self, end: &DeliveryEnd, most: u32, now_ms: u64) -> Option<u64> {
        let at = &mut self.hosts[end.host.index()];
        at.lanes.end(end.before);
        let mut pause = None;
        match end.outcome {
            DeliveryOutcome::Delivered | DeliveryOutcome::Gone | DeliveryOutcome::Refused { .. } => {
                (at.unreached, at.paused_until_ms) = (0, 0);
                at.lanes.answered(end.before, end.after, most);
            }
            DeliveryOutcome::NoAnswer(reason) if reason.is_of_host() => pause = at.unreached(now_ms),
            DeliveryOutcome::NoAnswer(_) => at.lanes.unanswered(end.before),
            DeliveryOutcome::ContentGone => {}
        }
        match end.after {
            Standing::Working if end.outcome == DeliveryOutcome::Delivered => at.worked_last = Some(end.slot),
            Standing::Working => {}
            _ => drop(at.worked_last.take_if(|slot| *slot == end.slot)),
        }
        self.make_ready(end.host, most);
        pause
    }

    /// Called when a host's pause may be over.
    pub(super) fn probe(&mut self, host: HostNumber, now_ms: u64) {
        let Some(at) = self.hosts.get_mut(host.index()) else { return };
        if at.paused_until_ms <= now_ms {
            at.paused_until_ms = 0;
        }
        self.make_ready(host, u32::MAX);
        self.forget_unused(host);
    }

    /// Called when limits may have changed.
    pub(super) fn wake_all(&mut self) {
        let all: Vec<HostNumber> = self.hosts.iter().map(|(host, _)| HostNumber::at(host)).collect();
        for host in all {
            self.make_ready(host, u32::MAX);
            self.list_request(host);
        }
    }

    pub(super) fn queue_request(&mut self, host: HostNumber, requester: Requester, request: HostRequest) {
        self.hosts[host.index()].requests.queue(requester, request);
        self.list_request(host);
    }

    /// Gives a host a place in the list of those that ask, if something waits there.
    fn list_request(&mut self, host: HostNumber) {
        let requests = &mut self.hosts[host.index()].requests;
        if let Some(requester) = requests.next_requester()
            && !std::mem::replace(&mut requests.is_listed, true)
        {
            self.asking.push(requester, (self.listed, host));
            self.listed += 1;
        }
    }

    pub(super) fn wake_request(&mut self, host: HostNumber) {
        if let Some(at) = self.hosts.get_mut(host.index()) {
            at.requests.is_listed = false;
            self.list_request(host);
            self.forget_unused(host);
        }
    }

    /// Reports the end of a verification or denial.
    pub(super) fn request_ended(&mut self, host: HostNumber) {
        self.hosts[host.index()].requests.ended();
        self.list_request(host);
        self.forget_unused(host);
    }

    /// The milliseconds until all requests that wait for this host have had their turn.
    pub(super) fn request_wait_ms(&self, host: HostNumber, per_second: u32, now_ms: u64) -> u64 {
        self.hosts[host.index()].requests.wait_ms(per_second, now_ms)
    }

    /// The next verification or denial that may be sent now. For a host without tokens, returns the time at which the caller has to
    /// call [`CallbackHosts::wake_request`].
    pub(super) fn next_request(&mut self, limits: RequestLimits, now_ms: u64) -> NextRequest {
        while let Some((_, host)) = self.asking.pop() {
            let requests = &mut self.hosts[host.index()].requests;
            let turn = requests.next(limits, now_ms);
            if let HostTurn::At(at_ms) = turn {
                return NextRequest::Later { host, at_ms };
            }
            requests.is_listed = false;
            match turn {
                HostTurn::Now(request) => {
                    self.list_request(host);
                    return NextRequest::Now { host, request };
                }
                // The end of a request lists it again.
                _ => self.forget_unused(host),
            }
        }
        NextRequest::None
    }
}
