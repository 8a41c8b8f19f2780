//! State, as opposed to configuration: keyed by endpoint, shared by all workers and routes, and kept across snapshots.

use std::collections::HashMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use weir_plugin::Stop;
use weir_proto::h1::BadResponse;

use crate::endpoint::persistence::StickySessions;
use crate::snapshot::{ActiveChecks, PassiveChecks, Upstream};

#[cfg(test)]
mod tests;

/// An endpoint that has just come into rotation gets this part of its share at once, so that it is tried at all.
const FIRST_SHARE: f64 = 0.05;
/// An endpoint that leaves the rotation again within this time after its return has relapsed: its next pause is twice as
/// long.
const CALM_NS: u64 = 60_000_000_000;
/// How often a pause is doubled at most.
const MAX_DOUBLINGS: u32 = 5;
/// The longest pause before it is doubled.
const LONGEST_NS: u64 = u64::MAX >> (MAX_DOUBLINGS + 1);
/// The status after which the endpoint carries bytes without HTTP.
const SWITCHED: u16 = 101;
/// The value of `out_until_ns` for an endpoint that stays out until checks succeed, and not for a time.
const UNTIL_CHECKED: u64 = u64::MAX;

/// The state that all workers share. It is kept across snapshots.
#[derive(Debug, Default)]
pub(crate) struct SharedState {
    pub health: Arc<HealthTable>,
    pub sessions: Arc<StickySessions>,
}

/// The health of all endpoints, one table for the process.
#[derive(Debug, Default)]
pub(crate) struct HealthTable {
    endpoints: Mutex<EndpointsByAddress>,
    /// Traffic has begun: endpoints added from now on get a slow start, if one is configured.
    begun: AtomicBool,
    /// The number of active checks, by outcome.
    pub checks: Checks,
}

/// Upstreams with equal checks share the health of an address. With different ones they may come to different results, and have
/// a health each.
type EndpointsByAddress = HashMap<SocketAddr, Vec<(CheckTerms, Arc<Health>)>>;

/// How health is determined: everything that is configured about it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CheckTerms {
    active: Option<Arc<ActiveChecks>>,
    passive: Arc<PassiveChecks>,
}

/// Active checks made since the process began.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    pub healthy: AtomicU64,
    pub unhealthy: AtomicU64,
}

/// The health of one endpoint. Read for every exchange; written when it gets worse or better. Each change is logged.
#[derive(Debug)]
pub(crate) struct Health {
    /// The endpoint in log messages.
    addr: SocketAddr,
    tcp_failures: AtomicU32,
    timeouts: AtomicU32,
    http_failures: AtomicU32,
    successes: AtomicU32,
    /// Out of rotation until this time, on the clock that all workers share; 0 while in rotation.
    out_until_ns: AtomicU64,
    /// When its last pause ended or will end; 0 if it was never out. Attempts that began before say nothing about it any
    /// more.
    pause_end_ns: AtomicU64,
    /// How often in a row it left the rotation soon after its return, or instead of returning.
    relapses: AtomicU32,
    /// When it left the rotation last; 0 if it never did. Responses to attempts that began before say nothing about it any
    /// more.
    left_ns: AtomicU64,
    /// The log says that it is out of rotation, and not yet that it is back.
    is_told_out: AtomicBool,
    /// When it came into rotation; 0 if it was there from the start.
    joined_ns: AtomicU64,
}

impl HealthTable {
    /// The health of an upstream's endpoints, in their order.
    pub(crate) fn of(&self, upstream: &Upstream, now_ns: u64) -> Arc<[Arc<Health>]> {
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        let known = |endpoint: &crate::snapshot::Endpoint| {
            let terms = CheckTerms { active: endpoint.checks.clone(), passive: Arc::clone(&upstream.passive) };
            self.known(endpoints.entry(endpoint.addr).or_default(), endpoint.addr, terms, now_ns)
        };
        upstream.endpoints.iter().map(known).collect()
    }

    fn known(
        &self,
        of_address: &mut Vec<(CheckTerms, Arc<Health>)>,
        addr: SocketAddr,
        terms: CheckTerms,
        now_ns: u64,
    ) -> Arc<Health> {
        if let Some((_, known)) = of_address.iter().find(|(known, _)| *known == terms) {
            return Arc::clone(known);
        }
        // Other checks have watched the machine already: to it this is no new beginning.
        let known_since_ns = of_address.iter().map(|(_, other)| other.joined_ns.load(Relaxed)).min();
        let joined_ns = if self.begun.load(Relaxed) { known_since_ns.unwrap_or(now_ns) } else { 0 };
        let new = Arc::new(Health { joined_ns: joined_ns.into(), ..Health::new(addr) });
        // A check that was edited is a new one: an endpoint that another check has taken out of rotation proves itself first.
        if of_address.iter().any(|(_, other)| !other.is_proven()) {
            new.doubt(terms.active.is_some(), now_ns);
        }
        of_address.push((terms, Arc::clone(&new)));
        new
    }

    /// Called when traffic begins: endpoints known by then get their whole share at once.
    pub(crate) fn begin(&self) {
        self.begun.store(true, Relaxed);
    }

    /// Drops endpoints that no snapshot refers to any more.
    pub(crate) fn forget_unused(&self) {
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        endpoints.retain(|_, of_address| {
            of_address.retain(|(_, health)| Arc::strong_count(health) > 1);
            !of_address.is_empty()
        });
    }
}

impl Health {
    pub(crate) fn new(addr: SocketAddr) -> Self {
        Self {
            addr,
            tcp_failures: AtomicU32::default(),
            timeouts: AtomicU32::default(),
            http_failures: AtomicU32::default(),
            successes: AtomicU32::default(),
            out_until_ns: AtomicU64::default(),
            pause_end_ns: AtomicU64::default(),
            relapses: AtomicU32::default(),
            left_ns: AtomicU64::default(),
            is_told_out: AtomicBool::default(),
            joined_ns: AtomicU64::default(),
        }
    }

    /// Starts out of rotation: until active checks succeed, or without them on trial.
    fn doubt(&self, has_checks: bool, now_ns: u64) {
        self.pause_end_ns.store(now_ns, Relaxed);
        self.left_ns.store(now_ns, Relaxed);
        self.out_until_ns.store(if has_checks { UNTIL_CHECKED } else { now_ns.max(1) }, Release);
    }

    pub(crate) fn is_up(&self, now_ns: u64) -> bool {
        self.out_until_ns.load(Relaxed) <= now_ns
    }

    /// Whether it is in rotation, and not on trial.
    pub(crate) fn is_proven(&self) -> bool {
        self.out_until_ns.load(Relaxed) == 0
    }

    /// Whether an exchange may go to an endpoint that was found up. One that is on trial after a pause gets one exchange at
    /// a time: the next may go when that one has ended, or `patience` later. One that another thread has taken out of
    /// rotation meanwhile stays out.
    pub(crate) fn admits(&self, patience: Duration, now_ns: u64) -> bool {
        let out_until_ns = self.out_until_ns.load(Relaxed);
        out_until_ns == 0
            || out_until_ns <= now_ns && {
                let next_ns = now_ns.saturating_add(ns(patience)).min(UNTIL_CHECKED - 1);
                self.out_until_ns.compare_exchange(out_until_ns, next_ns, Relaxed, Relaxed).is_ok()
            }
    }

    /// The part of its share that an endpoint gets: for `ramp` after it has come into rotation, the part grows linearly to
    /// the whole.
    pub(crate) fn share(&self, ramp: Duration, now_ns: u64) -> f64 {
        match self.joined_ns.load(Relaxed) {
            0 => 1.0,
            joined_ns => (now_ns.saturating_sub(joined_ns) as f64 / ramp.as_nanos() as f64).clamp(FIRST_SHARE, 1.0),
        }
    }

    /// Called when the endpoint has answered, with this status, an attempt that began at `began_ns`. Writes to shared memory
    /// only if there was a failure before, or the status is one.
    pub(crate) fn answered(&self, status: u16, checks: &PassiveChecks, began_ns: u64, now_ns: u64) {
        let out_until_ns = self.out_until_ns.load(Acquire);
        if out_until_ns != 0 && began_ns < self.left_ns.load(Relaxed) {
            return; // what it was when the attempt began is known to be over
        }
        if status >= 400 && checks.unhealthy_statuses.contains(&status) {
            let what = format_args!("was answered with status {status}");
            return self.count(&self.http_failures, checks.http_failures, (checks, &what), now_ns);
        }
        for failures in [&self.tcp_failures, &self.timeouts, &self.http_failures] {
            if failures.load(Relaxed) != 0 {
                failures.store(0, Relaxed);
            }
        }
        // A 101 is a success that no list can name: it holds statuses from 200 on.
        if out_until_ns != 0 && (status == SWITCHED || checks.healthy_statuses.contains(&status)) {
            let successes = self.successes.fetch_add(1, Relaxed) + 1;
            if successes >= checks.healthy_successes {
                self.join(now_ns);
            } else if out_until_ns != UNTIL_CHECKED {
                self.out_until_ns.store(now_ns, Relaxed);
            }
        }
    }

    /// Called when a stream's attempt, which began at `began_ns`, has connected: there is no response to judge it by.
    pub(crate) fn connected(&self, checks: &PassiveChecks, began_ns: u64, now_ns: u64) {
        self.answered(SWITCHED, checks, began_ns, now_ns);
    }

    /// Called when an attempt that began at `began_ns` has failed.
    pub(crate) fn failed(&self, stop: Stop, checks: &PassiveChecks, began_ns: u64, now_ns: u64) {
        if began_ns < self.pause_end_ns.load(Relaxed) && self.out_until_ns.load(Relaxed) != 0 {
            return; // the endpoint was out of rotation already
        }
        let (failures, most) = match stop {
            Stop::ConnectFailed
            | Stop::UpstreamTls
            | Stop::UpstreamClosed
            | Stop::UpstreamHeadAborted
            | Stop::UpstreamReset(_)
            | Stop::UpstreamAborted => (&self.tcp_failures, checks.tcp_failures),
            // An endpoint that does not speak HTTP is as unusable as one that does not answer.
            Stop::BadResponse(BadResponse::NotHttp) => (&self.tcp_failures, checks.tcp_failures),
            Stop::ConnectTimeout | Stop::ReadTimeout | Stop::SendTimeout => (&self.timeouts, checks.timeouts),
            // A response that is malformed or too large (`BadResponse`, `BadResponseBody`, `BadInterim`) is the fault of one
            // resource. If it counted, a client that may request that resource could take the endpoint out of rotation for all.
            _ => return,
        };
        self.count(failures, most, (checks, &format_args!("failed: {}", stop.ending().name)), now_ns);
    }

    /// Counts a failure, and logs the first of several in a row.
    fn count(&self, failures: &AtomicU32, most: u32, (checks, what): (&PassiveChecks, &dyn Display), now_ns: u64) {
        self.successes.store(0, Relaxed);
        // Requests reach it only because no endpoint is in rotation. That it is down is known, and active checks tell when it is back.
        if self.out_until_ns.load(Relaxed) == UNTIL_CHECKED {
            return;
        }
        let count = failures.fetch_add(1, Relaxed) + 1;
        let endpoint = self.addr;
        if most != 0 && count >= most {
            let cause = format_args!("{count} exchanges in a row failed, the last one {what}");
            self.leave(checks.retry_after, checks.until_checked, &cause, now_ns);
        } else if count == 1 && most != 0 {
            tracing::info!(
                %endpoint,
                "an exchange with an endpoint {what}; after {most} in a row the endpoint leaves the rotation"
            );
        } else if count == 1 {
            tracing::info!(%endpoint, "an exchange with an endpoint {what}; passive checks ignore this kind of failure");
        }
    }

    /// Called when enough active checks in a row have failed: the endpoint stays out until enough have succeeded.
    pub(crate) fn checked_down(&self, pause: Duration, cause: &dyn Display, now_ns: u64) {
        if self.out_until_ns.load(Relaxed) != UNTIL_CHECKED {
            self.leave(pause, true, cause, now_ns);
        }
    }

    /// Called when enough active checks in a row have succeeded.
    pub(crate) fn checked_up(&self, now_ns: u64) {
        if self.out_until_ns.load(Relaxed) != 0 && self.pause_end_ns.load(Relaxed) <= now_ns {
            self.join(now_ns);
        }
    }

    fn leave(&self, pause: Duration, until_checked: bool, cause: &dyn Display, now_ns: u64) {
        let out_until_ns = self.out_until_ns.load(Relaxed);
        let is_back = out_until_ns == 0;
        let was_calm = is_back
            && (self.pause_end_ns.load(Relaxed) == 0 || now_ns >= self.joined_ns.load(Relaxed).saturating_add(CALM_NS));
        let relapses = if was_calm { 0 } else { self.relapses.load(Relaxed) + 1 };
        self.relapses.store(relapses, Relaxed);
        // After a calm time active checks need no pause: they bring back an endpoint that has recovered.
        let pause_ns = if until_checked && was_calm { 0 } else { ns(pause) << relapses.min(MAX_DOUBLINGS) };
        let end_ns = now_ns.saturating_add(pause_ns).clamp(1, UNTIL_CHECKED - 1);
        self.pause_end_ns.store(end_ns, Relaxed);
        self.left_ns.store(now_ns, Relaxed);
        // Released after `left_ns`: a response that sees that the endpoint is out also sees since when.
        self.out_until_ns.store(if until_checked { UNTIL_CHECKED } else { end_ns }, Release);
        let endpoint = self.addr;
        self.is_told_out.store(true, Relaxed);
        if !until_checked {
            let pause_s = pause_ns as f64 / 1e9;
            tracing::warn!(%endpoint, "an endpoint is out of rotation for {pause_s} s: {cause}");
        } else if out_until_ns != UNTIL_CHECKED {
            tracing::warn!(%endpoint, "an endpoint is out of rotation until health checks succeed: {cause}");
        }
    }

    fn join(&self, now_ns: u64) {
        for count in [&self.tcp_failures, &self.timeouts, &self.http_failures, &self.successes] {
            count.store(0, Relaxed);
        }
        self.joined_ns.store(now_ns, Relaxed);
        self.out_until_ns.store(0, Relaxed);
        let endpoint = self.addr;
        if self.is_told_out.swap(false, Relaxed) {
            tracing::warn!(%endpoint, "an endpoint is back in rotation");
        } else {
            tracing::info!(%endpoint, "a new endpoint is in rotation");
        }
    }
}

/// Nanoseconds, limited so that they can be doubled [`MAX_DOUBLINGS`] times.
fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).map_or(LONGEST_NS, |ns| ns.min(LONGEST_NS))
}
