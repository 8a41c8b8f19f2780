//! How it stands with each certificate, for operators.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::AcmeTerms;
use super::storage::{Failures, Validity};
use crate::document::AcmeHost;

/// All certificates, as `/status` shows them.
#[derive(Clone, Debug, Serialize)]
pub struct AcmeReport {
    pub directory: Box<str>,
    pub role: AcmeRole,
    /// Why nothing can be kept.
    pub storage_error: Option<String>,
    pub hosts: Vec<HostReport>,
    /// Orders since the process began, by what became of them.
    pub orders_ok: u64,
    pub orders_failed: u64,
}

/// What this process does about certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AcmeRole {
    /// Another process orders.
    #[default]
    Waiting,
    Ordering,
}

/// One host. Times are seconds since 1970.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HostReport {
    pub host: Box<str>,
    /// When its certificate expires; absent while there is none.
    pub expires: Option<u64>,
    /// An order is going on.
    pub ordering: bool,
    /// When the next one begins; absent where none is needed to know, or one is going on.
    pub next_order: Option<u64>,
    /// In a row.
    pub failures: u32,
    pub last_error: Option<String>,
}

/// Where it is written down.
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

impl ReportStatus {
    /// These hosts, and what certificates there are.
    pub(super) fn begin(&self, hosts: &[AcmeHost], validity: impl Fn(&str) -> Option<Validity>) {
        let report = |host: &AcmeHost| HostReport {
            host: host.name.clone(),
            expires: validity(&host.name).map(|validity| seconds(validity.until)),
            ..HostReport::default()
        };
        self.changing().hosts = hosts.iter().map(|host| (host.name.clone(), report(host))).collect();
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
