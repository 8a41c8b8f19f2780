//! The hosts of callbacks: whose turn it is, how many deliveries each takes at a time, and which of them fail.
//!
//! Ready hosts take turns, so that one with many subscriptions does not hold up the others. The limit of a host follows its
//! answers: up by one after as many successes as it allows at a time, halved by a failure. A host that has failed several times
//! in a row gets one delivery at a time, after a pause that grows.

use std::collections::VecDeque;

use slab::Slab;

use super::names::Names;
use crate::attempt::DeliveryOutcome;

/// A host is given up for the moment after so many failures in a row.
const TRIPS_AFTER: u32 = 5;
const FIRST_PAUSE_MS: u64 = 1_000;
const LONGEST_PAUSE_MS: u64 = 60_000;
/// So many seconds' worth of verifications may go to a host at once.
const VERIFICATION_BURST_S: u64 = 10;

#[derive(Default)]
pub(super) struct CallbackHosts {
    /// By the numbers of their names.
    hosts: Slab<CallbackHost>,
    /// Each in use by the subscriptions and requests with callbacks there.
    names: Names,
    /// Hosts with something to deliver that may take it.
    ready: VecDeque<u32>,
    /// The same for verifications.
    verifying: VecDeque<u32>,
}

struct CallbackHost {
    /// Slots of subscriptions whose turn comes. They may have ended by then.
    queue: VecDeque<u32>,
    is_ready: bool,
    in_flight: u32,
    limit: u32,
    /// Successes since the limit was last changed.
    successes: u32,
    failures: u32,
    /// It failed and has its pause.
    is_pausing: bool,
    /// Those that wait for their turn. Most of the time there are none.
    verifications: Option<Box<WaitingVerifications>>,
    is_verifying: bool,
    /// Thousandths of a verification.
    tokens: u64,
    filled_ms: u64,
}

#[derive(Default)]
struct WaitingVerifications {
    /// Of requests.
    numbers: VecDeque<u64>,
}

pub(super) enum NextVerification {
    Now(u64),
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
            verifications: None,
            is_verifying: false,
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

    /// A host that is in a list, or has something under way, is forgotten later.
    fn forget_unused(&mut self, host: u32) {
        let at = &self.hosts[host as usize];
        if self.names.uses(host) == 0 && at.in_flight == 0 && !at.is_ready && !at.is_verifying && !at.is_pausing {
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

    /// Who may be sent something now; it counts as under way.
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

    /// What was under way came to nothing, for no fault of the host.
    pub(super) fn abandon(&mut self, host: u32) {
        self.hosts[host as usize].in_flight -= 1;
        self.make_ready(host, u32::MAX);
        self.forget_unused(host);
    }

    /// A delivery has ended. Returns when the host should be tried again, if it gets a pause.
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

    /// A host's pause is over.
    pub(super) fn probe(&mut self, host: u32) {
        let Some(at) = self.hosts.get_mut(host as usize) else { return };
        at.is_pausing = false;
        self.make_ready(host, u32::MAX);
        self.forget_unused(host);
    }

    /// Limits may have changed.
    pub(super) fn wake_all(&mut self) {
        let all: Vec<u32> = self.hosts.iter().map(|(host, _)| host as u32).collect();
        all.into_iter().for_each(|host| self.make_ready(host, u32::MAX));
    }

    pub(super) fn queue_verification(&mut self, host: u32, number: u64) {
        let at = &mut self.hosts[host as usize];
        at.verifications.get_or_insert_default().numbers.push_back(number);
        // With others waiting, the host has its turn when its tokens allow.
        if !std::mem::replace(&mut at.is_verifying, true) {
            self.verifying.push_back(host);
        }
    }

    pub(super) fn wake_verification(&mut self, host: u32) {
        if self.hosts.contains(host as usize) {
            self.verifying.push_back(host);
        }
    }

    /// A verification that may be sent now. A host that has had its share comes later: the caller calls
    /// [`CallbackHosts::wake_verification`] at that time.
    pub(super) fn next_verification(&mut self, rate: u32, now_ms: u64) -> NextVerification {
        let rate = u64::from(rate.max(1));
        while let Some(host) = self.verifying.pop_front() {
            let at = &mut self.hosts[host as usize];
            let elapsed_ms = now_ms.saturating_sub(at.filled_ms);
            let burst = rate * VERIFICATION_BURST_S * 1_000;
            at.tokens = at.tokens.saturating_add(elapsed_ms.saturating_mul(rate)).min(burst);
            at.filled_ms = now_ms;
            if at.tokens < 1_000 {
                return NextVerification::Later { host, at_ms: now_ms + (1_000 - at.tokens).div_ceil(rate).max(1) };
            }
            let number = at.verifications.as_mut().and_then(|waiting| waiting.numbers.pop_front());
            at.verifications.take_if(|waiting| waiting.numbers.is_empty());
            at.is_verifying = at.verifications.is_some();
            if at.is_verifying {
                self.verifying.push_back(host);
            }
            match number {
                Some(number) => {
                    self.hosts[host as usize].tokens -= 1_000;
                    return NextVerification::Now(number);
                }
                None => self.forget_unused(host),
            }
        }
        NextVerification::None
    }
}
