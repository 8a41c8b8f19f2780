//! The state of certificates, for operators.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::AcmeTerms;
use super::storage::{Failures, Validity};
use crate::document::AcmeHost;

/// The state of all certificates, as in `/status`.
#[derive(Clone, Debug, Serialize)]
pub struct AcmeReport {
    pub directory: Box<str>,
    pub role: AcmeRole,
    /// Why the storage cannot be used.
    pub storage_error: Option<String>,
    pub hosts: Vec<HostReport>,
    /// The number of successful and failed orders since the process started.
    pub orders_ok: u64,
    pub orders_failed: u64,
}

/// The role of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AcmeRole {
    /// Another process holds the lock.
    #[default]
    Waiting,
    Ordering,
    /// The thread has ended by a bug. It is started again with the next configuration.
    Failed,
}

/// The state of one host. Times are in seconds since 1970.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HostReport {
    pub host: Box<str>,
    /// When its certificate expires; absent if there is none.
    pub expires: Option<u64>,
    /// Whether an order is in progress.
    pub ordering: bool,
    /// When the next order starts; absent if it is in progress, or not scheduled.
    pub next_order: Option<u64>,
    /// The number of consecutive failures.
    pub failures: u32,
    pub last_error: Option<String>,
}

/// The shared state that reports are made from.
#[derive(Debug, Default)]
pub(super) struct ReportStatus {
    changing: Mutex<BoardState>,
    orders_ok: AtomicU64,
    orders_failed: AtomicU64,
}

#[derive(Debug, Default)]
struct BoardState {
    role: AcmeRole,
    storage_error: Option<String>,
    hosts: BTreeMap<Box<str>, HostReport>,
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The state of a host for which nothing has been done yet.
fn begun(host: &AcmeHost, validity: impl Fn(&str) -> Option<Validity>) -> HostReport {
    let expires = validity(&host.name).map(|validity| seconds(validity.until));
    HostReport { host: host.name.clone(), expires, ..HostReport::default() }
}

impl ReportStatus {
    /// Sets the hosts, with the expiry of their certificates.
    pub(super) fn begin(&self, hosts: &[AcmeHost], validity: impl Fn(&str) -> Option<Validity>) {
        self.changing().hosts = hosts.iter().map(|host| (host.name.clone(), begun(host, &validity))).collect();
    }

    /// The hosts have changed: those that stay keep their state.
    pub(super) fn follow(&self, hosts: &[AcmeHost], validity: impl Fn(&str) -> Option<Validity>) {
        let mut changing = self.changing();
        let mut before = std::mem::take(&mut changing.hosts);
        changing.hosts = hosts
            .iter()
            .map(|host| (host.name.clone(), before.remove(&host.name).unwrap_or_else(|| begun(host, &validity))))
            .collect();
    }

    pub(super) fn enter(&self, role: AcmeRole) {
        let mut changing = self.changing();
        (changing.role, changing.storage_error) = (role, None);
    }

    pub(super) fn storage_failed(&self, problem: &str) {
        self.changing().storage_error = Some(problem.to_owned());
    }

    pub(super) fn waits(
        &self,
        host: &str,
        validity: Option<Validity>,
        due: Option<SystemTime>,
        failures: Option<&Failures>,
    ) {
        let report = HostReport {
            host: host.into(),
            expires: validity.map(|validity| seconds(validity.until)),
            ordering: false,
            next_order: due.map(seconds),
            failures: failures.map_or(0, |failures| failures.count),
            last_error: failures.map(|failures| failures.reason.clone()),
        };
        self.changing().hosts.insert(host.into(), report);
    }

    pub(super) fn orders(&self, host: &str) {
        if let Some(report) = self.changing().hosts.get_mut(host) {
            (report.ordering, report.next_order) = (true, None);
        }
    }

    pub(super) fn succeeded(&self) {
        self.orders_ok.fetch_add(1, Relaxed);
    }

    pub(super) fn failed(&self) {
        self.orders_failed.fetch_add(1, Relaxed);
    }

    pub(super) fn report(&self, terms: &AcmeTerms) -> AcmeReport {
        let changing = self.changing();
        AcmeReport {
            directory: terms.directory.clone(),
            role: changing.role,
            storage_error: changing.storage_error.clone(),
            hosts: changing.hosts.values().cloned().collect(),
            orders_ok: self.orders_ok.load(Relaxed),
            orders_failed: self.orders_failed.load(Relaxed),
        }
    }

    fn changing(&self) -> MutexGuard<'_, BoardState> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
