//! A cache of secrets from secret managers: fetched when a configuration is loaded, and again, on a thread beside, when their time to
//! live is over or when they could not be read.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Request, StatusCode};
use serde_json::{Map, Value};
use weir_client::{CallSettings, HttpClient, ServiceUrl};

use crate::document::{Document, SecretManager, SecretReference, UnreadSecret, WrittenDocument};

/// The time limit of a request to a manager.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before a secret that could not be read is asked for again.
const RETRY: Duration = Duration::from_secs(5);
/// How long a change waits for the answer when secrets are asked for again that could not be read.
const RETRY_WAIT: Duration = Duration::from_millis(250);
/// The most requests at a time.
const MOST_AT_ONCE: usize = 32;

/// A path of one manager.
type SecretPath = (SecretManager, Box<str>);
type SecretContent = Map<String, Value>;

/// The secrets fetched so far.
#[derive(Debug, Default)]
pub(super) struct Secrets {
    kept: KnownSecrets,
    /// The client for requests to managers, with the settings of the last document.
    http: HttpClient,
    /// If set, all secrets are fetched again for the next document.
    distrusted: bool,
    /// If set, the next load asks again for secrets that could not be read.
    retries: bool,
    /// The results of the thread that fetches secrets again, and when it was started.
    renewing: Option<(Instant, Receiver<Vec<FetchedSecret>>)>,
}

/// The secrets fetched so far, which any thread may read.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownSecrets(Arc<Mutex<HashMap<SecretPath, CachedSecret>>>);

impl KnownSecrets {
    fn all(&self) -> MutexGuard<'_, HashMap<SecretPath, CachedSecret>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts secrets into a document that is only checked. Those that are not known are asked for with `http`; without it, they
    /// count as not readable. What is learnt is not kept.
    pub(super) fn put_into(&self, document: WrittenDocument, http: Option<&HttpClient>) -> Document {
        let mut values: HashMap<SecretPath, Result<SecretContent, SecretFailure>> = HashMap::new();
        let known = self.all();
        let (mut missing, mut seen) = (Vec::new(), HashSet::new());
        for place in paths(&document).filter(|place| seen.insert(place.clone())) {
            match known.get(&place) {
                Some(kept) if kept.content.is_ok() => drop(values.insert(place, kept.content.clone())),
                _ => missing.push(place),
            }
        }
        drop(known);
        match http {
            Some(http) => values.extend(fetched(http, missing)),
            None => {
                let unknown = |place| (place, Err("it is asked for when the change is made".into()));
                values.extend(missing.into_iter().map(unknown));
            }
        }
        document.with_secrets(|manager, secret| {
            let content = &values[&(manager.clone(), secret.path.clone())];
            value_of(content, secret)
        })
    }
}

/// The paths that a document refers to; some of them several times.
fn paths(document: &WrittenDocument) -> impl Iterator<Item = SecretPath> {
    document.secrets().map(|(manager, secret)| (manager.clone(), secret.path.clone()))
}

#[derive(Debug)]
struct CachedSecret {
    content: Result<SecretContent, SecretFailure>,
    /// When it was fetched, or when fetching last failed.
    at: Instant,
}

/// Why a secret could not be read.
#[derive(Clone, Debug)]
struct SecretFailure {
    problem: String,
    /// Whether the manager has not answered. To ask it again may take long.
    is_silent: bool,
    /// Whether it may be read later without a change of the configuration.
    is_away: bool,
}

impl SecretFailure {
    fn silent(problem: String) -> SecretFailure {
        SecretFailure { problem, is_silent: true, is_away: true }
    }

    fn answered(problem: String) -> SecretFailure {
        SecretFailure { problem, is_silent: false, is_away: false }
    }
}

/// A secret in what was fetched.
fn value_of(content: &Result<SecretContent, SecretFailure>, secret: &SecretReference) -> Result<String, UnreadSecret> {
    match content {
        Ok(content) => Ok(secret.of(content)?),
        Err(failure) => Err(UnreadSecret { problem: failure.problem.clone(), is_away: failure.is_away }),
    }
}

type FetchedSecret = (SecretPath, Result<SecretContent, SecretFailure>);

impl Secrets {
    /// Puts secrets into a document, and drops those without a reference. If a manager does not respond, values fetched before
    /// are used; the second result lists these failures.
    ///
    /// With `keeps_failed`, secrets that could not be read are asked for again by [`Secrets::refresh`] although the document does
    /// not refer to them: the resources that do so are set aside.
    pub(super) fn put_into(
        &mut self,
        document: WrittenDocument,
        http: HttpClient,
        keeps_failed: bool,
    ) -> (Document, Vec<String>) {
        self.http = http;
        let mut complaints = Vec::new();
        if std::mem::take(&mut self.retries) {
            self.renew_failed(&mut complaints);
        }
        let missing = self.missing(&document, keeps_failed);
        for (place, content) in fetched(&self.http, missing) {
            self.renew(place, content, &mut complaints);
        }
        let kept = self.kept.all();
        let value = |manager: &SecretManager, secret: &SecretReference| {
            let kept = kept.get(&(manager.clone(), secret.path.clone())).expect("it was fetched above");
            value_of(&kept.content, secret)
        };
        (document.with_secrets(value), complaints)
    }

    /// The paths that a document refers to and that have to be asked for. Drops what it does not refer to.
    fn missing(&mut self, document: &WrittenDocument, keeps_failed: bool) -> Vec<SecretPath> {
        let distrusted = std::mem::take(&mut self.distrusted);
        let mut kept = self.kept.all();
        let mut before = std::mem::take(&mut *kept);
        let (mut missing, mut seen) = (Vec::new(), HashSet::new());
        for place in paths(document).filter(|place| seen.insert(place.clone())) {
            match before.remove(&place) {
                Some(known) if !distrusted && known.is_usable() => drop(kept.insert(place, known)),
                Some(known) => {
                    missing.push(place.clone());
                    kept.insert(place, known);
                }
                None => missing.push(place),
            }
        }
        if keeps_failed {
            kept.extend(before.into_iter().filter(|(_, known)| known.content.is_err()));
        }
        missing
    }

    /// The secrets fetched so far, for other threads.
    pub(super) fn known(&self) -> KnownSecrets {
        self.kept.clone()
    }

    /// Why a secret cannot be read at the moment, if that may pass; `None` if there is no such secret.
    pub(super) fn away(&self) -> Option<String> {
        let kept = self.kept.all();
        let mut failed = kept.values().filter_map(|kept| kept.content.as_ref().err());
        failed.find(|failure| failure.is_away).map(|failure| failure.problem.clone())
    }

    /// Makes the next load ask again for secrets that could not be read, and wait for the answers.
    pub(super) fn forget_failed(&mut self) {
        self.kept.all().retain(|_, kept| kept.content.is_ok());
    }

    /// Makes the next load ask at once for secrets that could not be read, however short ago that was.
    pub(super) fn retry(&mut self) {
        self.retries = true;
    }

    /// Asks again for secrets that could not be read, and waits a moment. What arrives later is taken by [`Secrets::refresh`].
    fn renew_failed(&mut self, complaints: &mut Vec<String>) {
        let failed = |(place, kept): (&SecretPath, &CachedSecret)| kept.content.is_err().then(|| place.clone());
        let failed: Vec<SecretPath> = self.kept.all().iter().filter_map(failed).collect();
        if failed.is_empty() {
            return;
        }
        if self.renewing.is_none() {
            self.start_renewing(failed);
        }
        if let Some((since, renewing)) = self.renewing.take() {
            match renewing.recv_timeout(RETRY_WAIT) {
                Ok(fetched) => drop(self.take_renewed(since, fetched, complaints)),
                Err(RecvTimeoutError::Timeout) => self.renewing = Some((since, renewing)),
                Err(RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    fn start_renewing(&mut self, places: Vec<SecretPath>) {
        let (http, (send, renewing)) = (self.http.clone(), channel());
        let asking = move || drop(send.send(fetched(&http, places)));
        let thread = thread::Builder::new().name("weir-secrets".to_owned()).spawn(asking);
        // If there is no thread to be had, the next call tries it again.
        self.renewing = thread.ok().map(|_| (Instant::now(), renewing));
    }

    /// Takes what was asked for at `since`. Returns whether any secret has changed.
    fn take_renewed(&mut self, since: Instant, fetched: Vec<FetchedSecret>, complaints: &mut Vec<String>) -> bool {
        let mut changed = false;
        for (place, content) in fetched {
            // It may have been dropped or fetched meanwhile.
            let is_wanted = self.kept.all().get(&place).is_some_and(|kept| kept.at <= since);
            if is_wanted {
                changed |= self.renew(place, content, complaints);
            }
        }
        changed
    }

    /// Makes the next load fetch all secrets again, on the operator's request.
    pub(super) fn distrust(&mut self) {
        self.distrusted = true;
    }

    /// Fetches secrets again whose time to live is over, and those that could not be read. Does not wait for them: a later call
    /// has the results. Returns whether any has changed, and the failures.
    pub(super) fn refresh(&mut self) -> (bool, Vec<String>) {
        let (mut changed, mut complaints) = (false, Vec::new());
        if let Some((since, renewing)) = self.renewing.take() {
            match renewing.try_recv() {
                Ok(fetched) => changed = self.take_renewed(since, fetched, &mut complaints),
                Err(TryRecvError::Empty) => self.renewing = Some((since, renewing)),
                // A panic of the thread is like no answer: it is asked again.
                Err(TryRecvError::Disconnected) => {}
            }
        }
        if self.renewing.is_none() {
            let is_due = |(place, kept): &(&SecretPath, &CachedSecret)| kept.at.elapsed() >= kept.lifetime(place.0.ttl);
            let due: Vec<SecretPath> = self.kept.all().iter().filter(is_due).map(|(place, _)| place.clone()).collect();
            if !due.is_empty() {
                self.start_renewing(due);
            }
        }
        (changed, complaints)
    }

    /// Keeps what was fetched, or what is known if nothing could be fetched. Returns whether there is another value.
    fn renew(
        &mut self,
        place: SecretPath,
        content: Result<SecretContent, SecretFailure>,
        complaints: &mut Vec<String>,
    ) -> bool {
        let at = Instant::now();
        let mut kept = self.kept.all();
        let known = kept.get_mut(&place).map(|kept| {
            kept.at = at;
            &mut kept.content
        });
        match (content, known) {
            (Err(failure), Some(Ok(_))) => {
                let (manager, path) = (&place.0.id, &place.1);
                complaints.push(format!(
                    "secrets of `{manager}` under `{path}` could not be refreshed and may be out of date: {}",
                    failure.problem
                ));
                false
            }
            (content, Some(known)) => {
                let is_new = content.is_ok() && content.as_ref().ok() != known.as_ref().ok();
                *known = content;
                is_new
            }
            (content, None) => {
                kept.insert(place, CachedSecret { content, at });
                true
            }
        }
    }
}

impl CachedSecret {
    /// Whether a load uses it without asking the manager. What is old is renewed beside, and so is what a silent manager has.
    fn is_usable(&self) -> bool {
        self.content.as_ref().map_or_else(|failure| failure.is_silent, |_| true)
    }

    fn lifetime(&self, ttl: Duration) -> Duration {
        if self.content.is_ok() { ttl } else { ttl.min(RETRY) }
    }
}

/// Fetches secrets, several at a time. Once a manager has not answered, it is not asked for its other secrets.
///
/// Runs on a separate thread, since the caller may be inside an async runtime, where blocking is not allowed.
fn fetched(http: &HttpClient, places: Vec<SecretPath>) -> Vec<FetchedSecret> {
    if places.is_empty() {
        return Vec::new();
    }
    let failed = |problem: String| {
        let failure = SecretFailure::silent(problem);
        places.iter().map(|place| (place.clone(), Err(failure.clone()))).collect()
    };
    let asking = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_or_else(|error| failed(error.to_string()), |runtime| runtime.block_on(fetch_all(http, &places)))
    };
    thread::scope(|scope| scope.spawn(asking).join()).unwrap_or_else(|_| failed("the request failed".to_owned()))
}

/// The managers that have not answered.
type SilentManagers<'p> = RefCell<HashMap<&'p SecretManager, SecretFailure>>;

async fn fetch_all(http: &HttpClient, places: &[SecretPath]) -> Vec<FetchedSecret> {
    let silent = SilentManagers::default();
    stream::iter(places).map(|place| fetch_one(http, place, &silent)).buffer_unordered(MOST_AT_ONCE).collect().await
}

async fn fetch_one<'p>(http: &HttpClient, place: &'p SecretPath, silent: &SilentManagers<'p>) -> FetchedSecret {
    let known = silent.borrow().get(&place.0).cloned();
    let content = match known {
        Some(failure) => Err(failure),
        None => read(http, place).await,
    };
    if let Err(failure) = &content
        && failure.is_silent
    {
        silent.borrow_mut().insert(&place.0, failure.clone());
    }
    (place.clone(), content)
}

impl From<&str> for SecretFailure {
    fn from(problem: &str) -> SecretFailure {
        SecretFailure::answered(problem.to_owned())
    }
}

/// Reads a path of a key/value engine, version 1 or 2 (Vault's HTTP API).
async fn read(http: &HttpClient, (manager, path): &SecretPath) -> Result<SecretContent, SecretFailure> {
    let answered = SecretFailure::answered;
    let SecretManager { uri, prefix, token, namespace, .. } = manager;
    let url = ServiceUrl::parse(&format!("{uri}/v1/{prefix}/{path}")).map_err(|error| answered(error.to_string()))?;
    let mut request = Request::get(url.target().as_str()).header("X-Vault-Token", &**token);
    if let Some(namespace) = namespace {
        request = request.header("X-Vault-Namespace", &**namespace);
    }
    let request = request.body(Bytes::new()).map_err(|error| answered(error.to_string()))?;
    let settings = CallSettings { connect_timeout: TIMEOUT, timeout: TIMEOUT, ..CallSettings::default() };
    let answer = http.call(&url, request, &settings).await.map_err(|error| SecretFailure::silent(error.to_string()))?;
    match answer.status() {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Err("there is no secret under this path".into()),
        StatusCode::FORBIDDEN => return Err("the token is not allowed to read this path".into()),
        status => {
            // 5xx: sealed, starting, or without a leader; 429: too many requests, or a standby.
            let is_away = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
            let problem = format!("the secrets manager answered with {status}");
            return Err(SecretFailure { is_away, ..answered(problem) });
        }
    }
    let Ok(Value::Object(mut answer)) = serde_json::from_slice(answer.body()) else {
        return Err("the answer of the secrets manager is not JSON".into());
    };
    match answer.remove("data") {
        // Version 2 nests the content one level deeper, beside its metadata.
        Some(Value::Object(mut data)) if data.get("metadata").is_some_and(Value::is_object) => {
            match data.remove("data") {
                Some(Value::Object(content)) => Ok(content),
                _ => Err("the secret has been deleted".into()),
            }
        }
        Some(Value::Object(content)) => Ok(content),
        _ => Err("the answer of the secrets manager has no `data`".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::text::yaml::TextLimits;

    fn document(text: &str) -> WrittenDocument {
        WrittenDocument::parse("weir.yaml", text, &|_| None, TextLimits::default()).expect("YAML")
    }

    /// The number of connections since the last call.
    fn connections(listener: &TcpListener) -> usize {
        std::iter::from_fn(|| listener.accept().ok()).count()
    }

    #[test]
    fn a_manager_that_does_not_answer_is_waited_for_once() {
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        silent.set_nonblocking(true).expect("a socket");
        let address = silent.local_addr().expect("an address");
        let mut text =
            format!("secrets: [{{ id: vault/1, uri: 'http://{address}', prefix: kv, token: t }}]\nconsumers:\n");
        for number in 0..100 {
            text += &format!(
                "  - {{ username: u{number}, plugins: {{ key-auth: {{ key: $secret://vault/1/p{number}/key }} }} }}\n"
            );
        }
        let mut secrets = Secrets::default();
        let (first, _) = secrets.put_into(document(&text), HttpClient::default(), false);
        assert_eq!(first.faults.len(), 100, "{:?}", first.faults);
        let asked = connections(&silent);
        assert!((1..=2 * MOST_AT_ONCE).contains(&asked), "not once for each secret: {asked}");
        let (second, _) = secrets.put_into(document(&text), HttpClient::default(), false);
        assert_eq!(second.faults, first.faults);
        assert_eq!(connections(&silent), 0, "another load does not wait for it");
        let (none, _) = secrets.put_into(document("routes: []"), HttpClient::default(), true);
        assert!(none.faults.is_empty());
        assert_eq!(
            secrets.kept.all().len(),
            100,
            "they are asked for again, since the resources that need them are set aside"
        );
        secrets.put_into(document("routes: []"), HttpClient::default(), false);
        assert!(secrets.kept.all().is_empty());
    }
}
