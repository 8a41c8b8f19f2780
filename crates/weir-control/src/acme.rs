//! Obtains and renews certificates for the gateway (RFC 8555).
//!
//! One thread runs a task for each host, which waits until its certificate is due. Certificates are written to the storage; from
//! there they are loaded like all other files of a configuration, and the watch publishes them to the workers. Only the process
//! that holds the storage's lock places orders.

mod account;
mod authority;
mod challenges;
mod failure;
mod host_tasks;
mod order;
mod report;
mod schedule;
mod storage;

use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::FutureExt;
use futures_util::future::{Either, join, select};
use tokio::sync::{Semaphore, watch};
use weir_client::HttpClient;
use weir_net::tls::TlsConnector;

use crate::document::{AcmeHost, Challenge, ExternalAccount};
use crate::text::diagnostic::Diagnostic;

pub use challenges::{Challenges, PREFIX};
use failure::OrderFailure;
use host_tasks::HostTasks;
use order::Orders;
use report::ReportStatus;
pub use report::{AcmeReport, AcmeRole, HostReport};
use schedule::{FailuresInRow, left_until};
use storage::{AcmeStorage, Failures, Validity};

/// The certificates to obtain, and the authority.
#[derive(Clone, Debug)]
pub struct AcmeTerms {
    /// The configuration file that the positions of hosts refer to.
    pub source: Arc<str>,
    pub hosts: Vec<AcmeHost>,
    pub emails: Vec<Box<str>>,
    /// The type of challenge.
    pub challenge: Challenge,
    /// The URL of the authority's directory.
    pub directory: Box<str>,
    /// The client, which resolves names as the node does.
    pub http: HttpClient,
    /// The TLS settings for the authority's server.
    pub client: TlsConnector,
    /// The folder for the files of this authority.
    pub folder: PathBuf,
    /// How long before expiry to renew; `None`: a third of the lifetime.
    pub renew_before: Option<Duration>,
    pub external_account: Option<ExternalAccount>,
}

impl AcmeTerms {
    /// Whether the terms are equal, regardless of positions in the file.
    fn are(&self, other: &AcmeTerms) -> bool {
        let names = |terms: &AcmeTerms| terms.hosts.iter().map(|host| host.name.clone()).collect::<Vec<_>>();
        names(self) == names(other) && self.differ_in_hosts_alone(other)
    }

    fn differ_in_hosts_alone(&self, other: &AcmeTerms) -> bool {
        self.http.settings() == other.http.settings()
            && (&self.emails, &self.directory, self.client.id(), &self.folder)
                == (&other.emails, &other.directory, other.client.id(), &other.folder)
            && (self.challenge, self.renew_before, &self.external_account)
                == (other.challenge, other.renew_before, &other.external_account)
    }
}

/// The most concurrent orders. Each takes some seconds, most of them waiting.
const AT_A_TIME: usize = 4;
/// How often a process without the lock tries to get it, and how often a paused one checks whether it may go on.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// The longest uninterrupted wait, since the clock may be set and the machine may be suspended.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// How often it is looked whether the record of an authority's refusals was deleted.
const LOOK_AT_RECORD: Duration = Duration::from_secs(5);
/// How long to wait after the storage could not be used.
const AFTER_STORAGE: Duration = Duration::from_secs(30);

/// How long a process that ends waits for orders to be cancelled.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Receives lines for the operator.
type OperatorLog = Box<dyn Fn(&str) + Send + Sync>;

/// Keeps the certificates of the configuration valid. Dropping it cancels all orders and releases the lock.
pub struct Acme {
    shared: Arc<AcmeShared>,
    stage: Mutex<AcmeStage>,
}

/// The state of the thread.
enum AcmeStage {
    /// There were no terms yet, so the thread has not been started.
    Idle,
    Running(RunningAcme),
    /// Ended for good; further terms are ignored.
    Ended,
}

struct RunningAcme {
    terms: watch::Sender<Option<Arc<AcmeTerms>>>,
    /// Disconnected when the thread has ended.
    ended: mpsc::Receiver<()>,
}

impl RunningAcme {
    /// Whether the thread has ended although it was not told to: there is a bug.
    fn is_gone(&self) -> bool {
        self.ended.try_recv() == Err(mpsc::TryRecvError::Disconnected)
    }
}

struct AcmeShared {
    challenges: Arc<Challenges>,
    board: ReportStatus,
    /// While set, no new order is started.
    paused: AtomicBool,
    /// The terms of the last configuration, for positions in messages.
    latest: Mutex<Option<Arc<AcmeTerms>>>,
    tell: OperatorLog,
}

impl Acme {
    /// `challenges` are those that snapshots respond with. `tell` receives a line for each certificate and each failure.
    pub fn new(challenges: Arc<Challenges>, tell: impl Fn(&str) + Send + Sync + 'static) -> Acme {
        let shared = AcmeShared {
            challenges,
            board: ReportStatus::default(),
            paused: AtomicBool::new(false),
            latest: Mutex::default(),
            tell: Box::new(tell),
        };
        Acme { shared: Arc::new(shared), stage: Mutex::new(AcmeStage::Idle) }
    }

    /// Loads the open challenges of the previous process: the authority's validation may reach this one. To be called before any
    /// request is accepted.
    pub fn recall(&self, terms: Option<&Arc<AcmeTerms>>) {
        if let Some(terms) = terms {
            self.shared.challenges.replace(AcmeStorage::new(&terms.folder).challenges());
        }
    }

    /// Applies the terms of a new configuration. Orders continue for hosts that are still there, if nothing else has changed. A
    /// thread that has failed is replaced.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn follow(&self, terms: Option<&Arc<AcmeTerms>>) -> io::Result<()> {
        *lock(&self.shared.latest) = terms.cloned();
        let mut stage = lock(&self.stage);
        if matches!(&*stage, AcmeStage::Running(running) if running.is_gone()) {
            *stage = AcmeStage::Idle;
        }
        match (&*stage, terms) {
            (AcmeStage::Idle, None) | (AcmeStage::Ended, _) => {}
            (AcmeStage::Running(running), _) => {
                running.terms.send_if_modified(|current| {
                    let same = match (&*current, terms) {
                        (Some(current), Some(terms)) => current.are(terms),
                        (current, terms) => current.is_none() && terms.is_none(),
                    };
                    if !same {
                        *current = terms.cloned();
                    }
                    !same
                });
            }
            (AcmeStage::Idle, Some(terms)) => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                let (sender, receiver) = watch::channel(Some(Arc::clone(terms)));
                let shared = Arc::clone(&self.shared);
                let (alive, ended) = mpsc::channel();
                let run = move || {
                    let _alive = alive;
                    runtime.block_on(shared.run(receiver));
                };
                std::thread::Builder::new().name("acme".to_owned()).spawn(run)?;
                *stage = AcmeStage::Running(RunningAcme { terms: sender, ended });
            }
        }
        Ok(())
    }

    /// While paused, no order is started: during an upgrade, another process may take over the same sockets.
    pub fn pause(&self, paused: bool) {
        self.shared.paused.store(paused, Relaxed);
    }

    /// Cancels all orders, so that another process can place its own.
    pub fn end(&self) {
        let before = std::mem::replace(&mut *lock(&self.stage), AcmeStage::Ended);
        if let AcmeStage::Running(RunningAcme { terms, ended }) = before {
            drop(terms);
            // The time limit covers a thread that is blocked by a file system.
            let _ = ended.recv_timeout(END_LIMIT);
        }
    }

    /// The state of all certificates; `None` if the configuration has no `acme`.
    pub fn report(&self) -> Option<AcmeReport> {
        let terms = lock(&self.shared.latest).clone()?;
        if matches!(&*lock(&self.stage), AcmeStage::Running(running) if running.is_gone()) {
            self.shared.board.enter(AcmeRole::Failed);
        }
        Some(self.shared.board.report(&terms))
    }
}

impl Drop for Acme {
    fn drop(&mut self) {
        self.end();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AcmeShared {
    /// Runs until `Acme` is dropped or ended.
    async fn run(self: Arc<Self>, mut terms: watch::Receiver<Option<Arc<AcmeTerms>>>) {
        loop {
            let wanted = terms.borrow_and_update().clone();
            let goes_on = match wanted {
                None => terms.changed().await.is_ok(),
                Some(wanted) => self.keep(&wanted, &mut terms).await,
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Keeps the certificates of one authority valid, until more than the hosts change. `false` if there will be no other terms.
    async fn keep(&self, terms: &Arc<AcmeTerms>, changes: &mut watch::Receiver<Option<Arc<AcmeTerms>>>) -> bool {
        let storage = AcmeStorage::new(&terms.folder);
        self.board.begin(&terms.hosts, |host| storage.validity(host));
        let _lock = match select(pin!(changes.changed()), pin!(self.lock_of(&storage, terms))).await {
            Either::Left((changed, _)) => return changed.is_ok(),
            Either::Right((lock, _)) => lock,
        };
        self.board.enter(AcmeRole::Ordering);
        let orders = Orders::new(Arc::clone(terms), storage.clone(), Arc::clone(&self.challenges));
        let permits = Semaphore::new(AT_A_TIME);
        let (storage, orders, permits) = (&storage, &orders, &permits);
        let mut tasks = HostTasks::default();
        let mut current = Arc::clone(terms);
        // If the authority cannot be told now, it is with the next order.
        let telling = pin!(orders.tell_registration());
        let mut telling = telling.fuse();
        loop {
            tasks.keep_only(&current.hosts, |host| async move {
                self.keep_host(terms, &host, storage, orders, permits).await;
            });
            let running = async {
                let ((), never) = join(&mut telling, tasks.run()).await;
                never
            };
            match select(pin!(changes.changed()), pin!(running)).await {
                Either::Left((Ok(()), _)) => {}
                Either::Left((Err(_), _)) => return false,
                Either::Right((never, _)) => match never {},
            }
            current = match changes.borrow_and_update().clone() {
                Some(newer) if newer.differ_in_hosts_alone(terms) => newer,
                _ => return true,
            };
            self.board.follow(&current.hosts, |host| storage.validity(host));
        }
    }

    /// Waits until this process holds the storage's lock.
    async fn lock_of(&self, storage: &AcmeStorage, terms: &AcmeTerms) -> storage::Lock {
        let mut said = None;
        let mut tries = 0_u32;
        loop {
            let lock = storage.prepare().and_then(|()| storage.lock());
            match lock.and_then(|lock| match lock {
                // Challenges that are still open belong to orders that have been abandoned.
                Some(lock) => storage.close_all_challenges().map(|()| Some(lock)),
                None => Ok(None),
            }) {
                Ok(Some(lock)) => {
                    self.challenges.replace(storage.challenges());
                    return lock;
                }
                Ok(None) => {
                    self.board.enter(AcmeRole::Waiting);
                    self.challenges.replace(storage.challenges());
                    if tries.is_multiple_of(60) {
                        self.board.begin(&terms.hosts, |host| storage.validity(host));
                    }
                    tries = tries.wrapping_add(1);
                    tokio::time::sleep(TRY_AGAIN).await;
                }
                Err(error) => {
                    let problem = format!("`{}` cannot be used: {error}", terms.folder.display());
                    self.board.storage_failed(&problem);
                    if said.as_ref() != Some(&problem) {
                        self.tell(
                            terms,
                            "acme.storage",
                            None,
                            &problem,
                            "no certificate is ordered until the storage can be used",
                        );
                        said = Some(problem);
                    }
                    tokio::time::sleep(AFTER_STORAGE).await;
                }
            }
        }
    }

    /// Keeps the certificate of one host valid, for ever.
    async fn keep_host(
        &self,
        terms: &AcmeTerms,
        host: &str,
        storage: &AcmeStorage,
        orders: &Orders,
        permits: &Semaphore,
    ) {
        let mut failures = storage.failures(host);
        let mut in_row = FailuresInRow::of_refusals(failures.as_ref().map_or(0, |failures| failures.count));
        let mut not_before = failures.as_ref().map(|failures| {
            // The shortest of its spread: a restart moves no attempt to a later time.
            let pause = schedule::pause(in_row.refusals, true, None, 0.0);
            failures.last_at(SystemTime::now()) + pause.min(schedule::AFTER_START)
        });
        // A file that exists may be deleted, so that the host is ordered at once.
        let (mut told_end, mut is_recorded) = (None, failures.is_some());
        loop {
            let validity = storage.validity(host);
            let renewal = validity.map(|validity| schedule::renewal(validity, terms.renew_before, rand::random()));
            let due = renewal.max(not_before);
            self.board.waits(host, validity, due, failures.as_ref());
            let end = validity.map(|validity| validity.until);
            if let Some(due) = due
                && self.wait_for_order(host, (storage, is_recorded), (due, end), &mut told_end).await
                    == OrderWait::RecordDeleted
            {
                (failures, not_before, in_row) = (None, None, FailuresInRow::default());
                is_recorded = false;
                continue;
            }
            let permit = permits.acquire().await;
            while self.paused.load(Relaxed) {
                tokio::time::sleep(TRY_AGAIN).await;
            }
            self.board.orders(host);
            let obtained = orders.obtain(host).await;
            drop(permit);
            match obtained {
                Ok(validity) => {
                    (failures, not_before, in_row) = (None, None, FailuresInRow::default());
                    self.board.succeeded();
                    (self.tell)(&format!("acme: new certificate for {host}, valid for {}", left_until(validity.until)));
                }
                Err(failure) => {
                    let count = in_row.add(failure.refused);
                    not_before = Some(self.failed(terms, host, &failure, (count, validity)));
                    let last = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                    failures = Some(Failures { count: in_row.all(), last, reason: failure.reason });
                    if !failure.refused {
                        continue; // the authority has not counted it
                    }
                }
            }
            match storage.save_failures(host, failures.as_ref()) {
                Ok(()) => is_recorded = failures.is_some(),
                Err(error) => self.board.storage_failed(&error.to_string()),
            }
        }
    }

    /// Waits until an order is `due`, or the record of the authority's refusals is deleted. Reports the `end` of the present
    /// certificate if that comes first, once.
    async fn wait_for_order(
        &self,
        host: &str,
        (storage, is_recorded): (&AcmeStorage, bool),
        (due, end): (SystemTime, Option<SystemTime>),
        told_end: &mut Option<SystemTime>,
    ) -> OrderWait {
        loop {
            let now = SystemTime::now();
            if end.is_some_and(|end| end <= now) && *told_end != end {
                *told_end = end;
                (self.tell)(&format!("acme: the certificate of {host} has expired, and there is no new one yet"));
            }
            if is_recorded && storage.failures(host).is_none() {
                return OrderWait::RecordDeleted;
            }
            let Some(left) = due.duration_since(now).ok().filter(|left| !left.is_zero()) else {
                return OrderWait::Over;
            };
            let until_end = end.and_then(|end| end.duration_since(now).ok()).filter(|left| !left.is_zero());
            let look_again = if is_recorded { LOOK_AT_RECORD } else { LOOK_AGAIN };
            tokio::time::sleep(left.min(look_again).min(until_end.unwrap_or(LOOK_AGAIN))).await;
        }
    }

    /// Reports a failed order, and returns when the next one starts. It is the last of `count` of its
    /// kind in a row.
    fn failed(
        &self,
        terms: &AcmeTerms,
        host: &str,
        failure: &OrderFailure,
        (count, present): (u32, Option<Validity>),
    ) -> SystemTime {
        let lifetime = present.and_then(|validity| validity.until.duration_since(validity.since).ok());
        let pause = schedule::pause(count, failure.refused, lifetime, rand::random());
        let again = (SystemTime::now() + pause).max(failure.wait_until.unwrap_or(UNIX_EPOCH));
        self.board.failed();
        let (missing, in_use) = match present.filter(|present| present.until > SystemTime::now()) {
            Some(present) => {
                let left = left_until(present.until);
                ("no new certificate", format!("; the present one stays in use and is valid for {left}"))
            }
            None => ("no certificate", String::new()),
        };
        let problem = format!("{missing} for `{host}`: {}", failure.reason);
        let advice = format!("the next attempt is in {}{in_use}", left_until(again));
        self.tell(terms, "acme.hosts", Some(host), &problem, &advice);
        again
    }

    /// Logs a line with the host's position in the current file.
    fn tell(&self, terms: &AcmeTerms, path: &str, host: Option<&str>, problem: &str, advice: &str) {
        let latest = lock(&self.latest).clone();
        let hosts = latest.as_ref().map_or(&terms.hosts, |latest| &latest.hosts);
        let written = hosts.iter().find(|written| Some(&*written.name) == host).map(|written| &written.origin);
        let line = Diagnostic {
            path: written.map_or(path, |origin| &origin.path).to_owned(),
            ..Diagnostic::of_source(&terms.source, problem)
        };
        let line = written.map_or_else(|| line.clone(), |origin| line.clone().placed(origin.place));
        (self.tell)(&line.advise(advice).to_string());
    }
}

/// Why a wait for an order has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OrderWait {
    Over,
    /// The operator wants another attempt.
    RecordDeleted,
}
