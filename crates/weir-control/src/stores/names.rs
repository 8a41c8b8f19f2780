//! Name resolution for upstreams: names are looked up in advance, and again when an answer's time to live is over. Services of a
//! registry are followed in the same way.
//!
//! A request never waits for a lookup. An answer stays in use until there is a newer one: a failure of the resolver, or an empty
//! answer, does not mean that the backend is gone.

mod registries;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{JoinHandle as TaskHandle, LocalSet};

use weir_client::{DnsSettings, HttpClient, Resolver, ServiceAnswer};

use weir_discovery::{DiscoverySettings, RegistryNews};

use registries::FollowedRegistries;

use crate::document::{NameQuery, NodeSettings, ResolvedName, ResolvedNames};

/// How long a load waits for names that were never looked up. Later answers are used when they arrive.
const PATIENCE: Duration = Duration::from_secs(5);
/// The least time between lookups of a name, whatever its time to live.
const LEAST: Duration = Duration::from_secs(1);
/// The most time between lookups, unless `valid` is configured: hosts files have no time to live, and mistakes in DNS are
/// corrected.
const MOST: Duration = Duration::from_secs(30);
/// A lookup without an answer within this time is reported as failed; a later answer is still used.
const PROMPT: Duration = Duration::from_millis(750);

/// Keeps names up to date, on a separate thread. Dropping it ends the thread.
#[derive(Default)]
pub(super) struct FollowedNames {
    shared: Arc<SharedNames>,
    asking: Option<LookupThread>,
    /// The names of the document that is served.
    served: NamesWanted,
    /// Those of a document that was loaded and not accepted yet.
    candidate: Option<NamesWanted>,
}

struct LookupThread {
    wanted: UnboundedSender<NamesWanted>,
    thread: Option<JoinHandle<()>>,
}

/// The complete set of names to keep up to date from now on.
#[derive(Clone, Default)]
struct NamesWanted {
    queries: BTreeSet<NameQuery>,
    settings: DnsSettings,
    discovery: DiscoverySettings,
    /// For requests to registries.
    http: HttpClient,
}

#[derive(Default)]
pub(super) struct SharedNames {
    known: Mutex<HashMap<NameQuery, LookupState>>,
    learnt: Condvar,
    /// Whether each registry that was asked answers, by its name.
    registries: Mutex<BTreeMap<&'static str, bool>>,
    listener: Mutex<Option<Box<dyn Fn() + Send>>>,
}

/// The results of the lookups of a name.
#[derive(Default)]
struct LookupState {
    meaning: Option<ResolvedName>,
    /// Why the last lookup failed.
    failure: Option<String>,
    /// The targets of a service that have no address, each with the reason.
    left_out: Vec<String>,
}

/// A handle to the state of name lookups.
#[derive(Clone, Default)]
pub struct NameLookups(Arc<SharedNames>);

impl NameLookups {
    /// The number of names whose last lookup failed. Earlier answers stay in use.
    pub fn unresolved(&self) -> usize {
        self.0.known().values().filter(|name| name.failure.is_some()).count()
    }

    /// What is known of these names. Nothing is asked.
    pub(super) fn known(&self, queries: &BTreeSet<NameQuery>) -> ResolvedNames {
        let known = self.0.known();
        let found = |query: &NameQuery| Some((query.clone(), known.get(query)?.meaning.clone()?));
        queries.iter().filter_map(found).collect()
    }

    /// The registries that were asked, each with whether it answered the last time.
    pub fn registries(&self) -> BTreeMap<&'static str, bool> {
        self.0.registries().clone()
    }
}

impl FollowedNames {
    /// Registers `listener`, which is called when a name resolves differently.
    pub(super) fn listen(&self, listener: impl Fn() + Send + 'static) {
        *self.shared.listener.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(listener));
    }

    pub(super) fn lookups(&self) -> NameLookups {
        NameLookups(Arc::clone(&self.shared))
    }

    /// Keeps the names of a candidate up to date, and waits for the first answers of new ones. What is known of the names of the
    /// served document is kept until the candidate is accepted.
    pub(super) fn follow(
        &mut self,
        queries: BTreeSet<NameQuery>,
        settings: &NodeSettings,
        http: HttpClient,
    ) -> io::Result<()> {
        let (dns, discovery) = (settings.dns.clone(), settings.discovery.clone());
        let wanted = NamesWanted { queries, settings: dns, discovery, http };
        self.candidate = Some(wanted.clone());
        if wanted.queries.is_empty() && self.asking.is_none() {
            return Ok(());
        }
        if self.asking.is_none() {
            self.asking = Some(LookupThread::start(Arc::clone(&self.shared))?);
        }
        let served = &self.served.queries;
        self.shared.known().retain(|query, _| wanted.queries.contains(query) || served.contains(query));
        self.ask_for(wanted.clone());
        let deadline = Instant::now() + PATIENCE;
        let mut known = self.shared.known();
        while !wanted.queries.iter().all(|query| known.contains_key(query)) {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { break };
            known = self.shared.learnt.wait_timeout(known, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// The candidate is served from now on: only its names are kept up to date.
    pub(super) fn accept(&mut self) {
        if let Some(candidate) = self.candidate.take() {
            self.shared.known().retain(|query, _| candidate.queries.contains(query));
            self.served = candidate;
        }
    }

    /// If the last candidate was not accepted, keeps the names of the served document up to date again.
    pub(super) fn return_to_served(&mut self) {
        if self.candidate.take().is_some() {
            let served = self.served.clone();
            self.shared.known().retain(|query, _| served.queries.contains(query));
            self.ask_for(served);
        }
    }

    fn ask_for(&self, wanted: NamesWanted) {
        if let Some(asking) = &self.asking {
            // Fails only if the thread has panicked, which has been logged; the known answers stay in use.
            let _ = asking.wanted.send(wanted);
        }
    }

    /// The results for these names, and the names without one, with the reason.
    pub(super) fn current(&self, queries: &BTreeSet<NameQuery>) -> (ResolvedNames, Vec<(NameQuery, String)>) {
        let known = self.shared.known();
        let (mut found, mut missing) = (ResolvedNames::default(), Vec::new());
        for query in queries {
            match known.get(query) {
                Some(LookupState { meaning: Some(meaning), .. }) => {
                    found.insert(query.clone(), meaning.clone());
                }
                Some(LookupState { failure, .. }) => missing.push((query.clone(), failure.clone().unwrap_or_default())),
                None => missing.push((query.clone(), "the resolver did not answer in time".to_owned())),
            }
        }
        (found, missing)
    }

    /// The services with targets that have no address, and these targets, each with the reason.
    pub(super) fn left_out(&self, queries: &BTreeSet<NameQuery>) -> Vec<(NameQuery, String)> {
        let known = self.shared.known();
        let of = |query: &NameQuery| Some((query.clone(), known.get(query)?.left_out.join("; ")));
        queries.iter().filter_map(of).filter(|(_, targets)| !targets.is_empty()).collect()
    }
}

impl fmt::Debug for FollowedNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.shared.known().keys()).finish()
    }
}

impl SharedNames {
    fn known(&self) -> MutexGuard<'_, HashMap<NameQuery, LookupState>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports a slow lookup as failed. Callers waiting for a first answer go on waiting.
    fn wait_longer(&self, query: &NameQuery) {
        if let Some(known) = self.known().get_mut(query) {
            let failure = format!("no answer within {} ms", PROMPT.as_millis());
            known.log_failure(query, &failure);
            known.failure = Some(failure);
        }
    }

    fn registries(&self) -> MutexGuard<'_, BTreeMap<&'static str, bool>> {
        self.registries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn learn(&self, query: &NameQuery, outcome: Result<ResolvedName, String>) {
        match (&outcome, self.known().get(query)) {
            (Ok(_), Some(known)) if known.failure.is_some() => {
                tracing::warn!(name = %query.name(), "a name can be resolved again");
            }
            (Err(failure), Some(known)) => known.log_failure(query, failure),
            (Ok(_) | Err(_), _) => {}
        }
        self.learn_silently(query, outcome);
    }

    /// Like `learn`, without a line in the log.
    fn learn_silently(&self, query: &NameQuery, outcome: Result<ResolvedName, String>) {
        let mut all = self.known();
        let known = all.entry(query.clone()).or_default();
        known.failure = outcome.as_ref().err().cloned();
        let changed = outcome.is_ok_and(|meaning| {
            known.meaning.as_ref() != Some(&meaning) && {
                known.meaning = Some(meaning);
                true
            }
        });
        drop(all);
        self.learnt.notify_all();
        if changed && let Some(listener) = &*self.listener.lock().unwrap_or_else(PoisonError::into_inner) {
            listener();
        }
    }

    /// Notes what a registry tells.
    pub(super) fn hear(&self, registry: &'static str, news: RegistryNews) {
        match news {
            RegistryNews::Answered(answers) => drop(self.registries().insert(registry, answers)),
            RegistryNews::Service(name, instances) => {
                let query = NameQuery::Registered { registry, service: name.into() };
                self.learn_silently(&query, instances.map(ResolvedName::Instances));
            }
        }
    }

    /// Forgets a registry that is asked no more. Its services have no instances.
    pub(super) fn forget(&self, registry: &'static str, services: &BTreeSet<Box<str>>) {
        for service in services {
            let query = NameQuery::Registered { registry, service: service.clone() };
            // The document is refused, so no other part waits for these names.
            self.learn_silently(&query, Err(format!("the node has no registry of the kind {registry}")));
        }
        self.registries().remove(registry);
    }
}

impl LookupState {
    /// Only if the name was resolved before; a name that never was is a warning of the document.
    fn log_failure(&self, query: &NameQuery, failure: &str) {
        if self.meaning.is_some() && self.failure.is_none() {
            tracing::warn!(name = %query.name(), "a name cannot be resolved, its last answer stays in use: {failure}");
        }
    }
}

impl LookupThread {
    fn start(shared: Arc<SharedNames>) -> io::Result<LookupThread> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (wanted, inbox) = unbounded_channel();
        let work = move || LocalSet::new().block_on(&runtime, supervise(inbox, shared));
        let thread = thread::Builder::new().name("names".to_owned()).spawn(work)?;
        Ok(LookupThread { wanted, thread: Some(thread) })
    }
}

impl Drop for FollowedNames {
    fn drop(&mut self) {
        if let Some(LookupThread { wanted, thread }) = self.asking.take() {
            drop(wanted);
            if let Some(thread) = thread {
                // A panic of the thread has been logged already.
                let _ = thread.join();
            }
        }
    }
}

/// Runs a task for each name that is to be kept up to date.
async fn supervise(mut inbox: UnboundedReceiver<NamesWanted>, shared: Arc<SharedNames>) {
    let mut tasks: HashMap<NameQuery, TaskHandle<()>> = HashMap::new();
    let mut serving: Option<DnsSettings> = None;
    let mut resolver = None;
    let mut registries = FollowedRegistries::default();
    while let Some(NamesWanted { queries, settings, discovery, http }) = inbox.recv().await {
        let (registered, queries): (BTreeSet<_>, BTreeSet<_>) =
            queries.into_iter().partition(|query| matches!(query, NameQuery::Registered { .. }));
        registries.follow(&registered, &discovery, &http, &shared);
        if serving.as_ref() != Some(&settings) {
            tasks.drain().for_each(|(_, task)| task.abort());
            resolver = Some(Resolver::new(settings.clone()));
            serving = Some(settings.clone());
        }
        tasks.retain(|query, task| {
            let stays = queries.contains(query);
            if !stays {
                task.abort();
            }
            stays
        });
        for query in queries {
            let resolver = resolver.clone().expect("it was made with the settings");
            let keep = keep(query.clone(), resolver, settings.valid, Arc::clone(&shared));
            tasks.entry(query).or_insert_with(|| tokio::task::spawn_local(keep));
        }
    }
}

/// The result of a lookup.
struct LookedUp {
    meaning: ResolvedName,
    ttl: Duration,
    /// The targets of a service that have no address, each with the reason.
    unresolved: Vec<String>,
}

/// Looks up a name.
async fn ask(resolver: &Resolver, query: &NameQuery) -> Result<LookedUp, String> {
    match query {
        NameQuery::Host(name) => {
            let (addresses, ttl) = resolver.lookup_addresses(name).await?;
            Ok(LookedUp { meaning: ResolvedName::Addresses(addresses), ttl, unresolved: Vec::new() })
        }
        NameQuery::Service(name) => {
            let ServiceAnswer { targets, unresolved, ttl } = resolver.lookup_service(name).await?;
            Ok(LookedUp { meaning: ResolvedName::Targets(targets), ttl, unresolved })
        }
        // `supervise` sends these to the registries.
        NameQuery::Registered { .. } => Err("it is not a name in DNS".to_owned()),
    }
}

/// Keeps one name up to date.
async fn keep(query: NameQuery, resolver: Resolver, valid: Option<Duration>, shared: Arc<SharedNames>) {
    let mut failures = 0;
    let mut left_out: Option<Vec<String>> = None;
    loop {
        let mut asking = pin!(ask(&resolver, &query));
        let outcome = match tokio::time::timeout(PROMPT, &mut asking).await {
            Ok(outcome) => outcome,
            Err(_) => {
                shared.wait_longer(&query);
                asking.await
            }
        };
        let pause = match outcome {
            Ok(LookedUp { meaning, ttl, unresolved }) => {
                failures = 0;
                // What the first lookup finds is a warning of the document.
                if left_out.as_ref().is_some_and(|before| *before != unresolved) {
                    log_left_out(&query, &unresolved);
                }
                shared.known().entry(query.clone()).or_default().left_out.clone_from(&unresolved);
                left_out = Some(unresolved);
                shared.learn(&query, Ok(meaning));
                valid.unwrap_or_else(|| ttl.min(MOST)).max(LEAST)
            }
            Err(reason) => {
                shared.learn(&query, Err(reason));
                failures += 1;
                (LEAST * 2_u32.pow(failures.min(5) - 1)).min(MOST)
            }
        };
        tokio::time::sleep(pause).await;
    }
}

fn log_left_out(query: &NameQuery, unresolved: &[String]) {
    match unresolved {
        [] => tracing::warn!(name = %query.name(), "all targets of the service have addresses again"),
        targets => tracing::warn!(
            name = %query.name(),
            "targets of the service are left out, since they have no address: {}", targets.join("; ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_has_an_address_and_an_invalid_name_none() {
        // RFC 6761 §6.4: `invalid` never resolves. No server is queried: none listens at this address.
        let nobody = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        let dns = DnsSettings { servers: vec![nobody], valid: None };
        let settings = NodeSettings { dns, ..NodeSettings::default() };
        let queries = BTreeSet::from([NameQuery::Host("localhost".into()), NameQuery::Host("gone.invalid".into())]);
        let mut names = FollowedNames::default();
        names.follow(queries.clone(), &settings, HttpClient::default()).expect("a thread");
        let (found, missing) = names.current(&queries);
        let Some(ResolvedName::Addresses(addresses)) = found.get(&NameQuery::Host("localhost".into())) else {
            panic!("localhost is nowhere: {missing:?}")
        };
        assert!(!addresses.is_empty() && addresses.iter().all(|address| address.is_loopback()));
        assert_eq!(missing.len(), 1);
        assert_eq!(missing[0].0, NameQuery::Host("gone.invalid".into()));
    }

    #[test]
    fn names_of_the_served_document_survive_a_candidate_that_is_not_accepted() {
        let nobody = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        let dns = DnsSettings { servers: vec![nobody], valid: None };
        let settings = NodeSettings { dns, ..NodeSettings::default() };
        let of = |name: &str| BTreeSet::from([NameQuery::Host(name.into())]);
        let mut names = FollowedNames::default();
        names.follow(of("localhost"), &settings, HttpClient::default()).expect("a thread");
        names.accept();
        names.follow(of("gone.invalid"), &settings, HttpClient::default()).expect("a thread");
        assert_eq!(names.current(&of("localhost")).0.len(), 1, "while the candidate is compiled");
        names.return_to_served();
        assert_eq!(names.current(&of("localhost")).0.len(), 1, "when it was refused");
        assert_eq!(names.lookups().unresolved(), 0, "the names of the candidate are forgotten");
        names.follow(of("gone.invalid"), &settings, HttpClient::default()).expect("a thread");
        names.accept();
        assert!(names.current(&of("localhost")).0.is_empty(), "nothing refers to it any more");
    }

    #[test]
    fn f06_a_failure_keeps_the_last_answer() {
        let names = FollowedNames::default();
        let query = NameQuery::Host("a".into());
        let meaning = ResolvedName::Addresses(vec![[10, 0, 0, 1].into()]);
        names.shared.learn(&query, Ok(meaning.clone()));
        names.shared.learn(&query, Err("no such name".to_owned()));
        let (found, missing) = names.current(&BTreeSet::from([query.clone()]));
        assert_eq!(found.get(&query), Some(&meaning));
        assert!(missing.is_empty());
        assert_eq!(names.lookups().unresolved(), 1);
        names.shared.learn(&query, Ok(meaning));
        assert_eq!(names.lookups().unresolved(), 0);
    }
}
