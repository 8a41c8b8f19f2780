//! The hosts of callbacks: their turns, their limits of concurrent deliveries, and their failures.
//!
//! Ready hosts take turns, so that a host with many subscriptions does not hold up the others. The limit of concurrent deliveries
//! follows a host's answers: it grows by one after as many successes as the limit, and is halved by a failure. A host that failed
//! several times in a row gets one delivery at a time, after a pause that grows.

use std::collections::VecDeque;

use slab::Slab;

use super::names::Names;
use crate::attempt::DeliveryOutcome;

/// Failures in a row after which a host gets a pause.
const TRIPS_AFTER: u32 = 5;
const FIRST_PAUSE_MS: u64 = 1_000;
const LONGEST_PAUSE_MS: u64 = 60_000;
/// The burst of verifications and denials to a host, in seconds of their rate.
const REQUEST_BURST_S: u64 = 10;

#[derive(Default)]
pub(super) struct CallbackHosts {
    /// Indexed by the number of the host's name.
    hosts: Slab<CallbackHost>,
    /// Host names, each counted once per subscription, request or denial with a callback there.
    names: Names,
    /// Hosts that have something to deliver and are below their limit.
    ready: VecDeque<u32>,
    /// Hosts that have verifications or denials to send.
    asking: VecDeque<u32>,
}

struct CallbackHost {
    /// Slots of queued subscriptions, in turn. A subscription may have ended meanwhile.
    queue: VecDeque<u32>,
    is_ready: bool,
    in_flight: u32,
    limit: u32,
    /// Successes since the last change of the limit.
    successes: u32,
    failures: u32,
    /// The host failed, and its pause is not over.
    is_pausing: bool,
    /// Verifications and denials in the queue. Boxed, since most hosts have none.
    requests: Option<Box<WaitingRequests>>,
    is_asking: bool,
    /// Tokens for verifications and denials, in thousandths.
    tokens: u64,
    filled_ms: u64,
}

#[derive(Default)]
struct WaitingRequests(VecDeque<HostRequest>);

/// A request to a callback beside deliveries, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostRequest {
    Verification(u64),
    Denial(u32),
}

pub(super) enum NextRequest {
    Now(HostRequest),
    Later { host: u32, at_ms: u64 },
    None,
}

impl CallbackHost {
    fn limit(&self, most: u32) -> u32 {
        match self.failures {
            TRIPS_AFTER.. => 1,
            _ => self.limit.min(most).max(1),
        }
    }

    fn may_send(&self, most: u32) -> bool {
        !self.is_pausing && !self.queue.is_empty() && self.in_flight < self.limit(most)
    }
}

impl CallbackHosts {
    pub(super) fn add(&mut self, name: &str) -> u32 {
        let host = self.names.add(name);
        if self.names.uses(host) > 1 || self.hosts.contains(host as usize) {
            return host;
        }
        let same = self.hosts.insert(CallbackHost {
            queue: VecDeque::new(),
            is_ready: false,
            in_flight: 0,
            limit: 4,
            successes: 0,
            failures: 0,
            is_pausing: false,
            requests: None,
            is_asking: false,
            tokens: u64::MAX,
            filled_ms: 0,
        });
        assert_eq!(same, host as usize, "both slabs grow and shrink together");
        host
    }

    pub(super) fn release(&mut self, host: u32) {
        self.names.release(host);
        self.forget_unused(host);
    }

    /// Forgets a host without users; not while it is in a list or has a delivery in flight.
    fn forget_unused(&mut self, host: u32) {
        let at = &self.hosts[host as usize];
        if self.names.uses(host) == 0 && at.in_flight == 0 && !at.is_ready && !at.is_asking && !at.is_pausing {
            self.hosts.remove(host as usize);
            self.names.forget(host);
        }
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn queue(&mut self, host: u32, slot: u32) {
        self.hosts[host as usize].queue.push_back(slot);
        self.make_ready(host, u32::MAX);
    }

    fn make_ready(&mut self, host: u32, most: u32) {
        let at = &mut self.hosts[host as usize];
        if !at.is_ready && at.may_send(most) {
            at.is_ready = true;
            self.ready.push_back(host);
        }
    }

    /// The next host and slot to deliver to; the delivery counts as in flight.
    pub(super) fn next(&mut self, most: u32) -> Option<(u32, u32)> {
        loop {
            let host = self.ready.pop_front()?;
            let at = &mut self.hosts[host as usize];
            at.is_ready = false;
            if !at.may_send(most) {
                self.forget_unused(host);
                continue;
            }
            let slot = at.queue.pop_front().expect("it has something to send");
            if at.queue.is_empty() {
                at.queue = VecDeque::new();
            }
            at.in_flight += 1;
            self.make_ready(host, most);
            return Some((host, slot));
        }
    }

    /// Ends a delivery that was not sent, without an effect on the host's limit.
    pub(super) fn release_unsent(&mut self, host: u32) {
        self.hosts[host as usize].in_flight -= 1;
        self.make_ready(host, u32::MAX);
        self.forget_unused(host);
    }

    /// Reports the end of a delivery. Returns the end of the host's pause, if it gets one.
    pub(super) fn ended(&mut self, host: u32, outcome: DeliveryOutcome, most: u32, now_ms: u64) -> Option<u64> {
        let at = &mut self.hosts[host as usize];
        at.in_flight -= 1;
        let failed = match outcome {
            DeliveryOutcome::NoAnswer(_) => true,
            DeliveryOutcome::Refused { status, .. } => status >= 500 || status == 429,
            DeliveryOutcome::Delivered | DeliveryOutcome::Gone | DeliveryOutcome::ContentGone => false,
        };
        let mut pause = None;
        if failed {
            at.failures = at.failures.saturating_add(1);
            at.limit = (at.limit / 2).max(1);
            at.successes = 0;
            if at.failures >= TRIPS_AFTER && !at.is_pausing {
                let doublings = (at.failures - TRIPS_AFTER).min(16);
                at.is_pausing = true;
                pause = Some(now_ms + (FIRST_PAUSE_MS << doublings).min(LONGEST_PAUSE_MS));
            }
        } else {
            at.failures = 0;
            at.successes += 1;
            if at.successes >= at.limit && at.limit < most {
                at.limit += 1;
                at.successes = 0;
            }
        }
        self.make_ready(host, most);
        pause
    }

    /// Called when a host's pause is over.
    pub(super) fn probe(&mut self, host: u32) {
        let Some(at) = self.hosts.get_mut(host as usize) else { return };
        at.is_pausing = false;
        self.make_ready(host, u32::MAX);
        self.forget_unused(host);
    }

    /// Called when limits may have changed.
    pub(super) fn wake_all(&mut self) {
        let all: Vec<u32> = self.hosts.iter().map(|(host, _)| host as u32).collect();
        all.into_iter().for_each(|host| self.make_ready(host, u32::MAX));
    }

    pub(super) fn queue_request(&mut self, host: u32, request: HostRequest) {
        let at = &mut self.hosts[host as usize];
        at.requests.get_or_insert_default().0.push_back(request);
        // If others wait, the host already has a place in the list.
        if !std::mem::replace(&mut at.is_asking, true) {
            self.asking.push_back(host);
        }
    }

    pub(super) fn wake_request(&mut self, host: u32) {
        if self.hosts.contains(host as usize) {
            self.asking.push_back(host);
        }
    }

    /// The next verification or denial that may be sent now. For a host without tokens, returns the time at which the caller has to
    /// call [`CallbackHosts::wake_request`].
    pub(super) fn next_request(&mut self, rate: u32, now_ms: u64) -> NextRequest {
        let rate = u64::from(rate.max(1));
        while let Some(host) = self.asking.pop_front() {
            let at = &mut self.hosts[host as usize];
            let elapsed_ms = now_ms.saturating_sub(at.filled_ms);
            let burst = rate * REQUEST_BURST_S * 1_000;
            at.tokens = at.tokens.saturating_add(elapsed_ms.saturating_mul(rate)).min(burst);
            at.filled_ms = now_ms;
            if at.tokens < 1_000 {
                return NextRequest::Later { host, at_ms: now_ms + (1_000 - at.tokens).div_ceil(rate).max(1) };
            }
            let request = at.requests.as_mut().and_then(|waiting| waiting.0.pop_front());
            at.requests.take_if(|waiting| waiting.0.is_empty());
            at.is_asking = at.requests.is_some();
            if at.is_asking {
                self.asking.push_back(host);
            }
            match request {
                Some(request) => {
                    self.hosts[host as usize].tokens -= 1_000;
                    return NextRequest::Now(request);
                }
                None => self.forget_unused(host),
            }
        }
        NextRequest::None
    }
}
