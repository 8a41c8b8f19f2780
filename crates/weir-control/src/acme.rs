//! Certificates that the gateway gets, and renews, for itself (RFC 8555).
//!
//! One thread, and on it a task for each host that waits until its certificate is due. What it gets it writes to the
//! storage: from there certificates go the way of every file that a configuration names, and a watch brings them to the
//! workers. Only who holds the storage's lock orders, so of two processes one does.

mod authority;
mod challenges;
mod order;
mod report;
mod schedule;
mod storage;

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::{Either, join_all, select};
use tokio::sync::{Semaphore, watch};
use weir_client::HttpClient;
use weir_net::tls::TlsConnector;

use crate::document::{AcmeHost, Challenge, ExternalAccount};
use crate::text::diagnostic::Diagnostic;

pub use challenges::{Challenges, PREFIX};
use order::{OrderFailure, Orders};
use report::ReportStatus;
pub use report::{AcmeReport, AcmeRole, HostReport};
use storage::{AcmeStorage, Failures};

/// What is to be got, and from whom.
#[derive(Clone, Debug)]
pub struct AcmeTerms {
    /// What the places of hosts are places in.
    pub source: Arc<str>,
    pub hosts: Vec<AcmeHost>,
    pub emails: Vec<Box<str>>,
    /// How the authority is to ask.
    pub challenge: Challenge,
    /// The URL of the authority's directory.
    pub directory: Box<str>,
    /// Resolves its name as the node does.
    pub http: HttpClient,
    /// How its server proves who it is.
    pub client: TlsConnector,
    /// The folder for this authority.
    pub folder: PathBuf,
    /// `None` is a third of the lifetime.
    pub renew_before: Option<Duration>,
    pub external_account: Option<ExternalAccount>,
}

impl AcmeTerms {
    /// Whether the same is to be got from the same authority, wherever in the file that stands.
    fn are(&self, other: &AcmeTerms) -> bool {
        let names = |terms: &AcmeTerms| terms.hosts.iter().map(|host| host.name.clone()).collect::<Vec<_>>();
        names(self) == names(other)
            && (&self.emails, &self.directory, self.client.id(), &self.folder)
                == (&other.emails, &other.directory, other.client.id(), &other.folder)
            && self.http.settings() == other.http.settings()
            && (self.challenge, self.renew_before, &self.external_account)
                == (other.challenge, other.renew_before, &other.external_account)
    }
}

/// Orders at a time. Each takes some seconds, most of them waiting.
const AT_A_TIME: usize = 4;
/// How often a process without the lock tries to get it.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// The clock may be set, and the machine may sleep: no wait is trusted for longer.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// How long to leave a storage alone that cannot be used.
const AFTER_STORAGE: Duration = Duration::from_secs(30);

/// How long a process that ends waits for orders to be let go.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Says a line to the operator.
type OperatorLog = Box<dyn Fn(&str) + Send + Sync>;

/// Keeps certificates as the configuration wants. Dropping it ends all orders, and lets go of the lock.
pub struct Acme {
    shared: Arc<AcmeShared>,
    stage: Mutex<AcmeStage>,
}

/// Where it is in its life.
enum AcmeStage {
    /// Nothing was ever wanted.
    Idle,
    Running(RunningAcme),
    /// Nothing is done any more, whatever is wanted.
    Ended,
}

struct RunningAcme {
    terms: watch::Sender<Option<Arc<AcmeTerms>>>,
    /// Closed when the thread has ended.
    ended: mpsc::Receiver<()>,
}

struct AcmeShared {
    challenges: Arc<Challenges>,
    board: ReportStatus,
    /// No order begins.
    paused: AtomicBool,
    /// The last configuration's, for the places.
    latest: Mutex<Option<Arc<AcmeTerms>>>,
    tell: OperatorLog,
}

impl Acme {
    /// `challenges` are those that snapshots answer. `tell` gets a line for each certificate and each failure.
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

    /// Answers what a process before this one has open: the authority's question may come here. To be called before
    /// anybody can ask.
    pub fn recall(&self, terms: Option<&Arc<AcmeTerms>>) {
        if let Some(terms) = terms {
            self.shared.challenges.replace(AcmeStorage::new(&terms.folder).challenges());
        }
    }

    /// Does from now on what this configuration wants. Orders that it wants as well go on.
    ///
    /// # Errors
    /// Where no thread can be made.
    pub fn follow(&self, terms: Option<&Arc<AcmeTerms>>) -> io::Result<()> {
        *lock(&self.shared.latest) = terms.cloned();
        let mut stage = lock(&self.stage);
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

    /// While paused, no order begins: another process may be about to carry on, on the same sockets.
    pub fn pause(&self, paused: bool) {
        self.shared.paused.store(paused, Relaxed);
    }

    /// Ends all orders, and lets another process begin its own.
    pub fn end(&self) {
        let before = std::mem::replace(&mut *lock(&self.stage), AcmeStage::Ended);
        if let AcmeStage::Running(RunningAcme { terms, ended }) = before {
            drop(terms);
            // A thread that waits for a file system does not keep the process, nor one that has panicked.
            let _ = ended.recv_timeout(END_LIMIT);
        }
    }

    /// How it stands; nothing where the configuration wants nothing.
    pub fn report(&self) -> Option<AcmeReport> {
        let terms = lock(&self.shared.latest).clone()?;
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
    /// Until nobody wants anything any more.
    async fn run(self: Arc<Self>, mut terms: watch::Receiver<Option<Arc<AcmeTerms>>>) {
        loop {
            let wanted = terms.borrow_and_update().clone();
            let changed = pin!(terms.changed());
            let ended = match wanted {
                None => changed.await.is_err(),
                Some(wanted) => match select(changed, pin!(self.keep(&wanted))).await {
                    Either::Left((changed, _)) => changed.is_err(),
                    Either::Right((never, _)) => match never {},
                },
            };
            if ended {
                return;
            }
        }
    }

    /// Keeps the certificates of one configuration.
    async fn keep(&self, terms: &Arc<AcmeTerms>) -> Infallible {
        let storage = AcmeStorage::new(&terms.folder);
        self.board.begin(&terms.hosts, |host| storage.validity(host));
        let _lock = self.lock_of(&storage, terms).await;
        self.board.enter(AcmeRole::Ordering);
        let orders = Orders::new(Arc::clone(terms), storage.clone(), Arc::clone(&self.challenges));
        let permits = Semaphore::new(AT_A_TIME);
        join_all(terms.hosts.iter().map(|host| self.keep_host(terms, &host.name, &storage, &orders, &permits))).await;
        std::future::pending().await
    }

    /// Waits until no other process orders.
    async fn lock_of(&self, storage: &AcmeStorage, terms: &AcmeTerms) -> storage::Lock {
        let mut said = None;
        let mut tries = 0_u32;
        loop {
            let lock = storage.prepare().and_then(|()| storage.lock());
            match lock.and_then(|lock| match lock {
                // What is still open there belongs to orders that nobody carries on.
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

    /// Keeps the certificate of one host, for ever.
    async fn keep_host(
        &self,
        terms: &AcmeTerms,
        host: &str,
        storage: &AcmeStorage,
        orders: &Orders,
        permits: &Semaphore,
    ) {
        let mut failures = storage.failures(host);
        let mut not_before = failures.as_ref().map(|failures| {
            let pause = schedule::pause(failures.count, true, None, rand::random());
            UNIX_EPOCH + Duration::from_secs(failures.last) + pause.min(schedule::AFTER_START)
        });
        loop {
            let validity = storage.validity(host);
            let renewal = validity.map(|validity| schedule::renewal(validity, terms.renew_before, rand::random()));
            let due = renewal.max(not_before);
            self.board.waits(host, validity, due, failures.as_ref());
            if let Some(due) = due {
                wait_until(due).await;
            }
            let permit = permits.acquire().await;
            while self.paused.load(Relaxed) {
                tokio::time::sleep(TRY_AGAIN).await;
            }
            self.board.orders(host);
            let obtained = orders.obtain(host).await;
            drop(permit);
            let lifetime = validity.and_then(|validity| validity.until.duration_since(validity.since).ok());
            match obtained {
                Ok(validity) => {
                    (failures, not_before) = (None, None);
                    self.board.succeeded();
                    let days = validity.until.duration_since(SystemTime::now()).unwrap_or_default().as_secs() / 86_400;
                    (self.tell)(&format!("acme: new certificate for {host}, valid for {days} days"));
                }
                Err(failure) => {
                    let count = failures.as_ref().map_or(1, |failures| failures.count.saturating_add(1));
                    let again = self.failed(terms, host, &failure, count, lifetime);
                    not_before = Some(again);
                    let last = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                    failures = Some(Failures { count, last, reason: failure.reason });
                    if !failure.refused {
                        continue; // nobody has counted it
                    }
                }
            }
            if let Err(error) = storage.save_failures(host, failures.as_ref()) {
                self.board.storage_failed(&error.to_string());
            }
        }
    }

    /// Says that an order came to nothing, and when the next one begins.
    fn failed(
        &self,
        terms: &AcmeTerms,
        host: &str,
        failure: &OrderFailure,
        count: u32,
        lifetime: Option<Duration>,
    ) -> SystemTime {
        let pause = schedule::pause(count, failure.refused, lifetime, rand::random());
        let again = (SystemTime::now() + pause).max(failure.wait_until.unwrap_or(UNIX_EPOCH));
        let wait = again.duration_since(SystemTime::now()).unwrap_or_default();
        let wait = match wait.as_secs() {
            seconds @ 0..120 => format!("{seconds} s"),
            seconds => format!("{} min", seconds / 60),
        };
        self.board.failed();
        let problem = format!("no certificate for `{host}`: {}", failure.reason);
        self.tell(terms, "acme.hosts", Some(host), &problem, &format!("the next attempt is in {wait}"));
        again
    }

    /// Says a line with the place in the file, as it is by now.
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

async fn wait_until(due: SystemTime) {
    while let Ok(left) = due.duration_since(SystemTime::now()) {
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(LOOK_AGAIN)).await;
    }
}
