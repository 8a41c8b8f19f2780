//! A definition that is read from a URL. The workers share what was read, and read it again when it is old; the last one that could be
//! compiled stays in use.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use http::header::{ACCEPT, HeaderMap, HeaderValue};
use http::{Request, StatusCode};
use http_body_util::Full;
use hyper::body::Bytes;
use tokio::sync::{Semaphore, watch};
use weir_client::IdleConnections;
use weir_plugin::{AllOf, Build, ConfigError, Exchange, NoteKey, Stop, pattern_budget};
use weir_services::http_service::HttpService;
use weir_services::receivers::header_fields;

use super::MAX_SPEC;
use super::definition::ApiDefinition;
use crate::rate_limited_log::RateLimitedLog;

/// The least time between an attempt that has failed and the next one.
const RETRY: Duration = Duration::from_secs(5);
/// How long requests wait for a definition at most, after the time-out for reading it.
const MOST_COMPILING: Duration = Duration::from_secs(10);
/// The most definitions at URLs that are compiled at a time.
const MOST_AT_A_TIME: usize = 2;
/// The most bytes that the regular expressions of a definition at a URL take together when they are compiled: as those of a configuration.
const MOST_PATTERN_BYTES: usize = 256 << 20;
/// The most bytes of the earlier definitions that exchanges still hold, in the process. The oldest ones are given up beyond it.
const MOST_EARLIER_BYTES: usize = 256 << 20;
/// The most bytes of what the log says about a failure.
const MOST_TOLD: usize = 1_000;

static COMPILATIONS: Semaphore = Semaphore::const_new(MOST_AT_A_TIME);
static EARLIER: Mutex<EarlierDefinitions> =
    Mutex::new(EarlierDefinitions { held: Vec::new(), most: MOST_EARLIER_BYTES });

/// The options of a definition at a URL.
pub(super) struct SpecUrlOptions {
    pub url: String,
    pub fields: BTreeMap<String, String>,
    pub verifies: bool,
    pub timeout: Duration,
    /// How old a definition becomes before it is read again.
    pub renewed_after: Duration,
    /// The responses of its operations are read, too.
    pub with_responses: bool,
}

/// The definition at a URL.
pub(super) struct FetchedDefinition {
    request: Arc<FetchRequest>,
    renewed_after: Duration,
    /// How long requests wait for the first one.
    most_wait: Duration,
    kept: Arc<KeptDefinition>,
    /// The definition by which an exchange is judged: all of it by the same.
    held: NoteKey,
}

/// How a definition is asked for.
struct FetchRequest {
    service: HttpService,
    fields: HeaderMap,
    with_responses: bool,
}

/// What is known of a definition at a URL.
#[derive(Default)]
struct KeptDefinition {
    known: Mutex<KnownDefinition>,
    log: RateLimitedLog,
}

#[derive(Default)]
struct KnownDefinition {
    current: Option<Arc<HeldDefinition>>,
    /// Those before the current one, by which exchanges may still be judged.
    earlier: Vec<Weak<HeldDefinition>>,
    /// When the current one was read, or found to be still the same.
    read_at: Option<Instant>,
    /// When the last attempt has failed; `None` if it succeeded.
    failed: Option<Instant>,
    /// No exchange has counted that failure.
    is_uncounted: bool,
    /// The attempt under way; its sender is dropped when it ends.
    attempt: Option<watch::Receiver<()>>,
}

/// A definition that exchanges hold; empty when it was given up.
struct HeldDefinition(Mutex<Option<Arc<ApiDefinition>>>);

impl HeldDefinition {
    fn of(definition: Arc<ApiDefinition>) -> Arc<HeldDefinition> {
        Arc::new(HeldDefinition(Mutex::new(Some(definition))))
    }

    fn definition(&self) -> MutexGuard<'_, Option<Arc<ApiDefinition>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is(&self, other: &Arc<ApiDefinition>) -> bool {
        self.definition().as_ref().is_some_and(|own| Arc::ptr_eq(own, other))
    }

    /// Whether exchanges may still be judged by the first one, which is not the second.
    fn is_other(first: &Weak<HeldDefinition>, second: &Arc<HeldDefinition>) -> bool {
        first.upgrade().is_some_and(|first| !Arc::ptr_eq(&first, second) && first.definition().is_some())
    }
}

/// The replaced definitions of all URLs, the oldest first.
struct EarlierDefinitions {
    held: Vec<Weak<HeldDefinition>>,
    /// The most bytes that they take.
    most: usize,
}

impl EarlierDefinitions {
    /// Takes one out that comes into use again.
    fn remove(&mut self, held: &Arc<HeldDefinition>) {
        self.held.retain(|other| HeldDefinition::is_other(other, held));
    }

    /// Adds one, and gives up the oldest ones that are too much.
    fn add(&mut self, replaced: Weak<HeldDefinition>) {
        self.held.push(replaced);
        let mut left = self.most;
        // The newest ones stay.
        for held in self.held.iter().rev().filter_map(Weak::upgrade) {
            let mut definition = held.definition();
            let bytes = definition.as_ref().map_or(0, |definition| definition.bytes);
            match left.checked_sub(bytes) {
                Some(rest) => left = rest,
                None => (left, *definition) = (0, None),
            }
        }
    }
}

/// What an exchange finds.
enum DefinitionLookup {
    /// `has_failed`: the last attempt to renew it has, which no exchange has counted.
    Known { definition: Arc<ApiDefinition>, has_failed: bool },
    /// There is none yet; the attempt under way may bring one.
    Awaited(watch::Receiver<()>),
    /// There is none, and the next attempt is not due.
    Missing,
}

impl SpecUrlOptions {
    /// # Errors
    /// The URL, or a field of the request, is not valid.
    pub(super) fn compile(&self, build: &Build) -> Result<FetchedDefinition, ConfigError> {
        // It is read rarely, so no connection is kept.
        let idle = IdleConnections { max_per_origin: 0, timeout: Duration::ZERO };
        let service = HttpService::parse(build.http(), &self.url, self.verifies, self.timeout, idle, "spec_url");
        let fields = header_fields(&self.fields, "spec_url_request_headers");
        let (service, mut fields) = (service, fields).all_of()?;
        fields.entry(ACCEPT).or_insert(HeaderValue::from_static("application/json, application/yaml, */*;q=0.5"));
        let source = format!("{} {:?} {} {}", self.url, self.fields, self.verifies, self.with_responses);
        let kept = build.shared("oas-definition", &source, KeptDefinition::default);
        let request = Arc::new(FetchRequest { service, fields, with_responses: self.with_responses });
        let most_wait = self.timeout + MOST_COMPILING;
        Ok(FetchedDefinition { request, renewed_after: self.renewed_after, most_wait, kept, held: NoteKey::unique() })
    }
}

impl FetchedDefinition {
    /// The definition for an exchange that begins, if there is one and nothing is to be said about it. If it is old, it is read again
    /// beside.
    pub(super) fn begin(&self, exchange: &mut Exchange) -> Option<Arc<ApiDefinition>> {
        match self.find(exchange) {
            DefinitionLookup::Known { definition, has_failed: false } => Some(definition),
            _ => None,
        }
    }

    /// The definition for an exchange that begins, once the attempt to read the first one has ended. An attempt that has failed is
    /// counted with this exchange.
    ///
    /// # Errors
    /// There is none.
    pub(super) async fn begin_later(&self, exchange: &mut Exchange) -> Result<Arc<ApiDefinition>, Stop> {
        let found = match self.find(exchange) {
            DefinitionLookup::Awaited(mut attempt) => {
                // An error: it has ended, or takes too long, and goes on.
                let _ = tokio::time::timeout(self.most_wait, attempt.changed()).await;
                self.find(exchange)
            }
            found => found,
        };
        match found {
            DefinitionLookup::Known { definition, has_failed } => {
                if has_failed && std::mem::take(&mut self.kept.known().is_uncounted) {
                    exchange.note_service_failure();
                }
                Ok(definition)
            }
            DefinitionLookup::Awaited(_) | DefinitionLookup::Missing => Err(unavailable(exchange)),
        }
    }

    /// The definition by which the exchange is judged since it began; `None` if it has begun without one, or this was given up.
    pub(super) fn of(&self, exchange: &Exchange) -> Option<Arc<ApiDefinition>> {
        let held: Arc<HeldDefinition> = exchange.notes.held(self.held)?;
        held.definition().clone()
    }

    /// The exchange is judged by it no more.
    pub(super) fn release(&self, exchange: &mut Exchange) {
        exchange.notes.release(self.held);
    }

    fn find(&self, exchange: &mut Exchange) -> DefinitionLookup {
        let mut known = self.kept.known();
        let is_young = known.current.is_some() && known.read_at.is_some_and(|at| at.elapsed() < self.renewed_after);
        if !is_young && known.may_try() {
            known.attempt = Some(self.attempt());
        }
        let current = known.current.as_ref().and_then(|held| Some((held, held.definition().clone()?)));
        match (current, &known.attempt) {
            (Some((held, definition)), _) => {
                exchange.notes.hold(self.held, Arc::clone(held));
                DefinitionLookup::Known { definition, has_failed: known.is_uncounted }
            }
            (None, Some(attempt)) => DefinitionLookup::Awaited(attempt.clone()),
            (None, None) => DefinitionLookup::Missing,
        }
    }

    /// Reads the definition in a task of its own, which goes on when the exchange that began it ends.
    fn attempt(&self) -> watch::Receiver<()> {
        let (sender, end) = watch::channel(());
        let (request, kept) = (Arc::clone(&self.request), Arc::clone(&self.kept));
        tokio::task::spawn_local(async move {
            let _ends = sender;
            let read = request.read().await;
            kept.end_attempt(read, &request.service.name());
        });
        end
    }
}

/// How an exchange ends for which there is no definition.
pub(super) fn unavailable(exchange: &mut Exchange) -> Stop {
    exchange.note_service_failure();
    Stop::Respond(503)
}

impl FetchRequest {
    async fn read(&self) -> Result<Arc<ApiDefinition>, String> {
        let mut request = Request::new(Full::<Bytes>::default());
        *request.uri_mut() = self.service.target.parse().map_err(|_| "the URL is not valid".to_owned())?;
        *request.headers_mut() = self.fields.clone();
        let answer = self.service.ask(request, MAX_SPEC).await.map_err(|failure| failure.to_string())?;
        if answer.status() != StatusCode::OK {
            return Err(format!("the answer is {}, and has to be 200", answer.status().as_u16()));
        }
        let text = String::from_utf8(answer.into_body().into()).map_err(|_| "it is not UTF-8".to_owned())?;
        let with_responses = self.with_responses;
        let place = COMPILATIONS.acquire().await.map_err(|_| "it could not be compiled".to_owned())?;
        let compiled = tokio::task::spawn_blocking(move || {
            // Until it is compiled, also if nothing waits for it any more.
            let _place = place;
            compile(text, with_responses)
        });
        compiled.await.unwrap_or_else(|_| Err("it could not be compiled".to_owned()))
    }
}

pub(super) fn compile(text: String, with_responses: bool) -> Result<Arc<ApiDefinition>, String> {
    let (compiled, is_spent) =
        pattern_budget::within(MOST_PATTERN_BYTES, || ApiDefinition::shared(text, with_responses));
    if is_spent {
        return Err(format!(
            "its regular expressions take more than {MOST_PATTERN_BYTES} bytes when they are compiled"
        ));
    }
    compiled.map_err(|faults| {
        let mut told = format!("it {}", faults.join("; it "));
        told.truncate(told.floor_char_boundary(MOST_TOLD));
        told
    })
}

impl KeptDefinition {
    fn known(&self) -> MutexGuard<'_, KnownDefinition> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_attempt(&self, read: Result<Arc<ApiDefinition>, String>, name: &str) {
        let mut known = self.known();
        known.attempt = None;
        let kept = read.map(|definition| {
            let mut earlier = EARLIER.lock().unwrap_or_else(PoisonError::into_inner);
            known.keep(definition, &mut earlier)
        });
        match kept {
            Ok(true) => tracing::info!("oas-validator: the definition at {name} is in use"),
            Ok(false) => {}
            Err(why) => {
                let what = match &known.current {
                    Some(_) => "the last one stays in use",
                    None => "requests are answered with 503",
                };
                self.log.error(format_args!("oas-validator: the definition at {name} cannot be read: {why:?}; {what}"));
                known.failed = Some(Instant::now());
                known.is_uncounted = true;
            }
        }
    }
}

impl KnownDefinition {
    /// Whether no attempt is under way, and the last one has not just failed.
    fn may_try(&mut self) -> bool {
        // It has no sender any more if its worker has ended.
        if self.attempt.as_ref().is_some_and(|attempt| attempt.has_changed().is_err()) {
            self.attempt = None;
        }
        self.attempt.is_none() && self.failed.is_none_or(|at| at.elapsed() >= RETRY)
    }

    /// Returns whether it is another one than before.
    fn keep(&mut self, definition: Arc<ApiDefinition>, earlier: &mut EarlierDefinitions) -> bool {
        let is_other = !self.current.as_ref().is_some_and(|current| current.is(&definition));
        if is_other {
            let known = self.earlier.iter().filter_map(Weak::upgrade).find(|held| held.is(&definition));
            let next = known.unwrap_or_else(|| HeldDefinition::of(definition));
            earlier.remove(&next);
            self.earlier.retain(|held| HeldDefinition::is_other(held, &next));
            if let Some(replaced) = self.current.replace(next) {
                self.earlier.push(Arc::downgrade(&replaced));
                let weak = Arc::downgrade(&replaced);
                // Without exchanges that hold it, it takes no memory.
                drop(replaced);
                earlier.add(weak);
            }
        }
        (self.read_at, self.failed, self.is_uncounted) = (Some(Instant::now()), None, false);
        is_other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_expressions_of_a_fetched_definition_have_a_budget() {
        // Each counts as a mebibyte, since it repeats a part.
        let parameters = |count: usize| {
            let of = |index| format!("{{ name: p{index}, in: query, schema: {{ pattern: '^[a-z]{{1,{index}}}$' }} }}");
            (1..=count).map(of).collect::<Vec<_>>().join(", ")
        };
        let definition = |of_a: usize, of_b: usize| {
            let path = |count| format!("{{ get: {{ parameters: [{}] }} }}", parameters(count));
            format!("openapi: 3.1.0\npaths: {{ /a: {}, /b: {} }}", path(of_a), path(of_b))
        };
        let compiled = |text: String| compile(text, false).map(|_| ());
        assert_eq!(compiled(definition(5, 5)), Ok(()));
        let told = compiled(definition(200, 57)).expect_err("one too many");
        assert!(told.starts_with("its regular expressions take more than 268435456 bytes"), "{told}");
    }

    fn definition(path: &str) -> Arc<ApiDefinition> {
        compile(format!("openapi: 3.1.0\npaths: {{ /{path}: {{ get: {{}} }} }}"), false).expect("it is valid")
    }

    #[test]
    fn earlier_definitions_are_given_up_beyond_a_number_of_bytes() {
        let definitions = ["a", "b", "c", "d"].map(definition);
        let mut known = KnownDefinition::default();
        let mut earlier = EarlierDefinitions { held: Vec::new(), most: 2 * definitions[0].bytes };
        // As an exchange that lasts.
        let held = definitions.each_ref().map(|definition| {
            assert!(known.keep(Arc::clone(definition), &mut earlier));
            known.current.clone().expect("it is in use")
        });
        let are_there = || held.each_ref().map(|held| held.definition().is_some());
        assert_eq!(are_there(), [false, true, true, true], "two earlier ones, and the current one");
        assert!(!known.keep(Arc::clone(&definitions[3]), &mut earlier), "it is the current one");
        let next = definition("e");
        assert!(known.keep(Arc::clone(&next), &mut earlier), "the newest one is always used");
        assert_eq!(are_there(), [false, false, true, true]);
        // One that comes back is the same for all, and no earlier one any more.
        assert!(known.keep(Arc::clone(&definitions[2]), &mut earlier));
        assert!(known.current.as_ref().is_some_and(|current| Arc::ptr_eq(current, &held[2])));
        assert_eq!((known.earlier.len(), earlier.held.len()), (2, 2));
        assert_eq!(are_there(), [false, false, true, true], "that which no exchange holds counts not");
    }

    #[test]
    fn definitions_count_with_their_texts_and_expressions() {
        let text = "openapi: 3.1.0\npaths: { /e: { get: { parameters: [{ name: p, in: query, schema: { pattern: '^[a-y]{1,9}$' } }] } } }";
        let with_pattern = compile(text.to_owned(), false).expect("it is valid");
        let plain = definition("a-path-that-no-other-test-has");
        assert!(plain.bytes >= 40, "{}", plain.bytes);
        assert!(with_pattern.bytes >= (1 << 20), "{}", with_pattern.bytes);
    }
}
