//! What has happened, as opposed to what was asked for: keyed by address, shared by all workers and routes, and older
//! than any snapshot.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use weir_plugin::Stop;

use crate::snapshot::PassiveChecks;

/// An endpoint that has just come into rotation gets this part of its share at once, so that it is tried at all.
const FIRST_SHARE: f64 = 0.05;

/// One health view for the whole process.
#[derive(Debug, Default)]
pub struct HealthTable {
    endpoints: Mutex<HashMap<SocketAddr, Arc<Health>>>,
    /// Traffic has begun: endpoints that come from here on join others.
    begun: AtomicBool,
}

/// What is known of one endpoint. Read on the path; written when something goes wrong, or right again.
#[derive(Debug, Default)]
pub struct Health {
    tcp_failures: AtomicU32,
    timeouts: AtomicU32,
    http_failures: AtomicU32,
    successes: AtomicU32,
    /// Out of rotation until then, on the clock all workers share; 0 while in rotation.
    out_until_ns: AtomicU64,
    /// When it came into rotation, or is to come; 0 if it was there from the beginning.
    joined_ns: AtomicU64,
}

impl HealthTable {
    pub fn endpoint(&self, addr: SocketAddr, now_ns: u64) -> Arc<Health> {
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        let joined_ns = if self.begun.load(Ordering::Relaxed) { now_ns } else { 0 };
        let new = || Arc::new(Health { joined_ns: joined_ns.into(), ..Health::default() });
        Arc::clone(endpoints.entry(addr).or_insert_with(new))
    }

    /// The endpoints known so far are those of the beginning.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// Every endpoint that is known, and whether it is in rotation.
    pub fn list(&self, now_ns: u64) -> Vec<(SocketAddr, bool)> {
        let endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        let mut list: Vec<_> = endpoints.iter().map(|(addr, health)| (*addr, health.is_up(now_ns))).collect();
        list.sort_unstable();
        list
    }

    /// Drops endpoints nobody refers to any more.
    pub fn forget_unused(&self) {
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        endpoints.retain(|_, health| Arc::strong_count(health) > 1);
    }
}

impl Health {
    pub fn is_up(&self, now_ns: u64) -> bool {
        self.out_until_ns.load(Ordering::Relaxed) <= now_ns
    }

    /// The part of its share an endpoint gets, which grows evenly to the whole for `ramp` after it has come into rotation.
    pub fn share(&self, ramp: Duration, now_ns: u64) -> f64 {
        match self.joined_ns.load(Ordering::Relaxed) {
            0 => 1.0,
            joined_ns => (now_ns.saturating_sub(joined_ns) as f64 / ramp.as_nanos() as f64).clamp(FIRST_SHARE, 1.0),
        }
    }

    /// A complete exchange. Touches shared memory only if something was wrong before, or the status is a failure.
    pub fn answered(&self, status: u16, checks: &PassiveChecks, now_ns: u64) {
        if status >= 400 && checks.unhealthy_statuses.contains(&status) {
            return self.count(&self.http_failures, checks.http_failures, checks, now_ns);
        }
        for failures in [&self.tcp_failures, &self.timeouts, &self.http_failures] {
            if failures.load(Ordering::Relaxed) != 0 {
                failures.store(0, Ordering::Relaxed);
            }
        }
        if self.out_until_ns.load(Ordering::Relaxed) != 0 && checks.healthy_statuses.contains(&status) {
            let successes = self.successes.fetch_add(1, Ordering::Relaxed) + 1;
            if successes >= checks.healthy_successes {
                self.out_until_ns.store(0, Ordering::Relaxed);
                self.successes.store(0, Ordering::Relaxed);
            }
        }
    }

    /// An attempt that failed.
    pub fn failed(&self, stop: Stop, checks: &PassiveChecks, now_ns: u64) {
        match stop {
            Stop::ConnectFailed | Stop::UpstreamClosed | Stop::UpstreamAborted => {
                self.count(&self.tcp_failures, checks.tcp_failures, checks, now_ns);
            }
            Stop::ConnectTimeout | Stop::ReadTimeout | Stop::SendTimeout => {
                self.count(&self.timeouts, checks.timeouts, checks, now_ns);
            }
            Stop::BadResponse(_) | Stop::BadResponseBody | Stop::BadInterim => {
                self.count(&self.http_failures, checks.http_failures, checks, now_ns);
            }
            _ => {}
        }
    }

    fn count(&self, failures: &AtomicU32, most: u32, checks: &PassiveChecks, now_ns: u64) {
        self.successes.store(0, Ordering::Relaxed);
        let count = failures.fetch_add(1, Ordering::Relaxed) + 1;
        if most != 0 && count >= most {
            let retry_after_ns = u64::try_from(checks.retry_after.as_nanos()).unwrap_or(u64::MAX);
            let until_ns = now_ns.saturating_add(retry_after_ns);
            self.out_until_ns.store(until_ns, Ordering::Relaxed);
            self.joined_ns.store(until_ns, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks() -> PassiveChecks {
        PassiveChecks {
            healthy_successes: 2,
            healthy_statuses: vec![200],
            unhealthy_statuses: vec![500],
            http_failures: 3,
            tcp_failures: 2,
            timeouts: 1,
            retry_after: Duration::from_nanos(100),
        }
    }

    #[test]
    fn failures_in_a_row_take_an_endpoint_out() {
        let (health, checks) = (Health::default(), checks());
        health.failed(Stop::ConnectFailed, &checks, 10);
        health.answered(200, &checks, 10);
        health.failed(Stop::ConnectFailed, &checks, 10);
        assert!(health.is_up(10));
        health.failed(Stop::ConnectFailed, &checks, 10);
        assert!(!health.is_up(10) && !health.is_up(109) && health.is_up(110));
    }

    #[test]
    fn one_failure_after_the_pause_takes_it_out_again_until_it_has_proved_itself() {
        let (health, checks) = (Health::default(), checks());
        health.failed(Stop::ReadTimeout, &checks, 10);
        assert!(!health.is_up(50));
        health.failed(Stop::ReadTimeout, &checks, 120);
        assert!(!health.is_up(150));
        health.answered(200, &checks, 230);
        health.answered(200, &checks, 230);
        assert!(health.is_up(0), "in rotation without a deadline");
    }

    #[test]
    fn statuses_count_as_configured() {
        let (health, checks) = (Health::default(), checks());
        for _ in 0..5 {
            health.answered(404, &checks, 10);
            health.answered(503, &checks, 10);
        }
        assert!(health.is_up(10));
        for _ in 0..3 {
            health.answered(500, &checks, 10);
        }
        assert!(!health.is_up(10));
    }

    #[test]
    fn f25_the_share_of_an_endpoint_that_comes_back_grows() {
        let (health, checks) = (Health::default(), checks());
        let ramp = Duration::from_nanos(1_000);
        assert_eq!(health.share(ramp, 0), 1.0, "it was there from the beginning");
        health.failed(Stop::ReadTimeout, &checks, 10);
        let shares = [110, 410, 610, 1_110, 9_999].map(|now_ns| health.share(ramp, now_ns));
        assert_eq!(shares, [FIRST_SHARE, 0.3, 0.5, 1.0, 1.0]);
    }

    #[test]
    fn f25_so_does_the_share_of_one_that_joins_others() {
        let table = HealthTable::default();
        let ramp = Duration::from_nanos(1_000);
        let first = table.endpoint(([127, 0, 0, 1], 1).into(), 50);
        table.begin();
        let second = table.endpoint(([127, 0, 0, 1], 2).into(), 50);
        assert_eq!((first.share(ramp, 550), second.share(ramp, 550)), (1.0, 0.5));
        assert_eq!(table.endpoint(([127, 0, 0, 1], 2).into(), 500).share(ramp, 550), 0.5, "known already");
    }

    #[test]
    fn what_is_not_the_endpoints_fault_is_not_counted() {
        let (health, checks) = (Health::default(), checks());
        for stop in [Stop::ClientGone, Stop::Internal, Stop::Shutdown, Stop::BodyTooLarge] {
            health.failed(stop, &checks, 10);
        }
        assert!(health.is_up(10));
    }
}
