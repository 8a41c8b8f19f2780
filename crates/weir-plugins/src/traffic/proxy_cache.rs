use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::proto::Method;
use weir_plugin::{
    AllOf, AnswersInPlace, Build, CollectAll, ConfigError, Definition, Exchange, ExchangePhase, Flow, HasMetadata,
    Phases, Plugin, PluginMetadata, ReplyHead, Responder, Stage, Stop, Template, state,
};

mod answer;
mod directives;
mod fill;
mod freshness;
mod kept;
mod reply;
mod zone;

use crate::options::addresses::AddressSet;
use answer::CacheResponder;
use directives::CacheDirectives;
use fill::Fills;
use freshness::{ArrivalTimes, StorageRules, StoredAge};
use reply::{CacheOutcome, ReplyPart};
use zone::{CacheZone, ResourceScope, ScopeParts, ZoneMemory};

/// Keeps responses of the upstream in memory, and answers later requests with them (RFC 9111).
///
/// The `Cache-Control` and `Expires` of the upstream decide how long a response is used; without them, `cache_ttl` does.
/// Responses that are `private` or `no-store`, set a cookie, or are event streams are not kept, nor are responses to requests
/// with `Authorization` unless they are `public`. `Vary` is followed. Clients get parts of kept responses (`Range`), and 304 if
/// they have them already. A response that is too old and has an `ETag` or `Last-Modified` is kept, and the upstream is asked
/// whether it is still valid.
///
/// While a response is requested, other requests for it wait, or get it as it arrives, so that the upstream is asked once. A
/// response that has begun goes on for up to 120 s if all of its clients leave, so that impatient clients do not request it again
/// and again: at most 64 such responses for each zone, and four for each client address. Of one without `Content-Length`, up to
/// 4 MiB more are received then. The
/// other plugins of the route run for every request, as without the cache, and see the response of the upstream, not the one that
/// they have changed before. `Apisix-Cache-Status` and `Cache-Status` (RFC 9211) say where a response came from; that of a
/// request that the cache can never answer, such as a POST, has `BYPASS`.
///
/// `PURGE` with the URL of a kept response removes it: 200, or 404 if there was none. So does another request to the
/// route that changes something (POST, PUT, PATCH, DELETE) and has succeeded.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProxyCache {
    /// Where responses are kept. `disk` is not supported.
    #[serde(default)]
    cache_strategy: CacheStrategy,
    /// The zone, which is a part of the memory. Routes with the same zone share its memory, but no responses. The settings of
    /// the plugin (`plugin_metadata`) say how large zones are.
    #[serde(default = "default_zone")]
    #[schemars(length(min = 1, max = 100))]
    cache_zone: String,
    /// What requests must have in common to get the same response: texts with variables. Route, upstream and the way in which the
    /// client has addressed the gateway (scheme, port, `Host`) are always part of it.
    #[serde(default = "default_key")]
    #[schemars(length(min = 1))]
    cache_key: Vec<String>,
    /// A request is sent to the upstream, whatever is kept, if one of these texts with variables is not empty and not `0`. Its
    /// response is kept.
    #[serde(default)]
    #[schemars(length(min = 1))]
    cache_bypass: Option<Vec<String>>,
    /// The response is not kept if one of these texts with variables is not empty and not `0`. They are evaluated when the
    /// request arrives.
    #[serde(default)]
    #[schemars(length(min = 1))]
    no_cache: Option<Vec<String>>,
    /// The methods of requests that are answered from the cache. Responses to GET are kept, which also answer HEAD.
    #[serde(default = "default_methods")]
    #[schemars(length(min = 1))]
    cache_method: BTreeSet<CacheMethod>,
    /// The statuses of responses that are kept.
    #[serde(default = "default_statuses")]
    #[schemars(length(min = 1), inner(range(min = 200, max = 599)))]
    cache_http_status: BTreeSet<u16>,
    /// For so many seconds a response is used that does not say itself how long.
    #[serde(default = "default_ttl")]
    #[schemars(range(min = 1, max = MOST_SECONDS))]
    #[schemars(extend("x-weir-unit" = "s"))]
    cache_ttl: u64,
    /// Follows the `Cache-Control` of clients, too: `no-cache`, `no-store`, `max-age`, `min-fresh`, `max-stale` and
    /// `only-if-cached`. Any client can then have requests sent to the upstream.
    #[serde(default)]
    cache_control: bool,
    /// Keeps responses that set a cookie: all clients get the same cookie.
    #[serde(default)]
    cache_set_cookie: bool,
    /// Consumers do not share responses.
    #[serde(default = "default_true")]
    consumer_isolation: bool,
    /// Removes `Cache-Control` and `Expires` from what clients get.
    #[serde(default)]
    hide_cache_headers: bool,
    /// Responses with more content, in bytes, are not kept.
    #[serde(default = "default_content")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_resp_body_size: u64,
    /// For so many seconds longer, a response that is too old is used at once while a newer one is requested. Applies to
    /// responses without `stale-while-revalidate` (RFC 5861) and without `must-revalidate`.
    #[serde(default)]
    #[schemars(range(max = MOST_SECONDS))]
    #[schemars(extend("x-weir-unit" = "s"))]
    stale_while_revalidate: u64,
    /// For so many seconds longer, a response that is too old is used if the upstream fails: it cannot be reached, or answers with
    /// 500, 502, 503 or 504. Applies to responses without `stale-if-error` (RFC 5861) and without `must-revalidate`.
    #[serde(default)]
    #[schemars(range(max = MOST_SECONDS))]
    #[schemars(extend("x-weir-unit" = "s"))]
    stale_if_error: u64,
    /// The longest time, in seconds, that a request waits for the response to another one.
    #[serde(default = "default_wait")]
    #[schemars(range(min = 0, max = 3600))]
    #[schemars(extend("x-weir-unit" = "s"))]
    cache_lock_timeout: u64,
    /// Addresses and networks of clients that may use `PURGE`; others get 403.
    #[serde(default = "default_purgers")]
    purge_from: Vec<String>,
}

/// The settings that apply to all uses of `proxy-cache`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ProxyCacheMetadata {
    /// The memory of a zone, in bytes.
    #[schemars(range(min = LEAST_ZONE))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    zone_size: u64,
    /// The memory of single zones, in bytes, by name.
    #[schemars(extend("additionalProperties" = { "type": "integer", "minimum": LEAST_ZONE, "x-weir-unit": "bytes" }))]
    zones: BTreeMap<String, u64>,
    /// The most memory of all zones together, in bytes. The default is 1 GiB, or that of all zones in `zones` and one more if that is
    /// larger.
    #[schemars(range(min = LEAST_ZONE))]
    all_zones_size: Option<u64>,
}

impl ProxyCacheMetadata {
    fn most_memory(&self) -> u64 {
        let named = self.zones.values().fold(self.zone_size, |sum, size| sum.saturating_add(*size));
        self.all_zones_size.unwrap_or(named.max(DEFAULT_ALL_ZONES))
    }
}

impl Default for ProxyCacheMetadata {
    fn default() -> ProxyCacheMetadata {
        ProxyCacheMetadata { zone_size: 128 << 20, zones: BTreeMap::new(), all_zones_size: None }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum CacheStrategy {
    Disk,
    #[default]
    Memory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
enum CacheMethod {
    Get,
    Post,
    Head,
}

fn default_zone() -> String {
    "memory_cache".to_owned()
}

fn default_key() -> Vec<String> {
    ["$host", "$request_uri"].map(str::to_owned).into()
}

fn default_methods() -> BTreeSet<CacheMethod> {
    [CacheMethod::Get, CacheMethod::Head].into()
}

fn default_statuses() -> BTreeSet<u16> {
    [200, 301, 404].into()
}

fn default_ttl() -> u64 {
    300
}

fn default_true() -> bool {
    true
}

fn default_content() -> u64 {
    64 << 20
}

fn default_wait() -> u64 {
    5
}

fn default_purgers() -> Vec<String> {
    ["127.0.0.0/8", "::1"].map(str::to_owned).into()
}

/// The memory of all zones together, in bytes, if the settings do not say it.
const DEFAULT_ALL_ZONES: u64 = 1 << 30;
/// The smallest zone.
const LEAST_ZONE: u64 = 1 << 20;
/// The longest time, in seconds: 100 years.
const MOST_SECONDS: u64 = 100 * 366 * 86_400;

impl ProxyCache {
    fn check(&self, build: &mut Build) {
        if self.cache_strategy == CacheStrategy::Disk {
            build.fault("cache_strategy", "is `disk`; responses are kept in memory: write `memory`");
        }
        if self.cache_method.contains(&CacheMethod::Post) {
            let problem = "has `POST`, whose content is not part of the key; choose from `GET` and `HEAD`";
            build.fault("cache_method", problem);
        }
        if let Some(status) = self.cache_http_status.iter().find(|status| matches!(status, 206 | 304)) {
            build.fault("cache_http_status", format!("{status} is not a whole response"));
        }
    }
}

impl Definition for ProxyCache {
    const NAME: &'static str = "proxy-cache";
    const PRIORITY: i32 = 1085;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "proxy-cache: { cache_ttl: 60, stale_if_error: 3600, cache_bypass: [$arg_refresh] }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        self.check(build);
        let key = templates(&self.cache_key, "cache_key", build);
        let bypass = templates(self.cache_bypass.as_deref().unwrap_or_default(), "cache_bypass", build);
        let no_cache = templates(self.no_cache.as_deref().unwrap_or_default(), "no_cache", build);
        let purge_from = AddressSet::compile(&self.purge_from, "purge_from");
        let (key, bypass, no_cache, purge_from) = (key, bypass, no_cache, purge_from).all_of()?;
        let totals = build.permanent::<CacheTotals>(Self::NAME);
        let metadata = build.metadata::<Self>();
        let size = metadata.zones.get(&self.cache_zone).copied().unwrap_or(metadata.zone_size);
        let zone = build
            .shared(Self::NAME, &format!("{size} {}", self.cache_zone), || CacheZone::new(size, Arc::clone(&totals)));
        totals.list(&self.cache_zone, &zone);
        let rules = CacheRules {
            storage: StorageRules {
                statuses: self.cache_http_status.into_iter().collect(),
                default_fresh: Duration::from_secs(self.cache_ttl),
                set_cookie: self.cache_set_cookie,
                stale_while_revalidate: Duration::from_secs(self.stale_while_revalidate),
                stale_if_error: Duration::from_secs(self.stale_if_error),
            },
            most_content: self.max_resp_body_size,
            follows_clients: self.cache_control,
            hides_control: self.hide_cache_headers,
            separates_consumers: self.consumer_isolation,
            longest_wait: Duration::from_secs(self.cache_lock_timeout),
            zone,
            fills: build.shared(Self::NAME, &self.cache_zone, Fills::default),
            totals,
        };
        Ok(Arc::new(CachePlugin {
            key,
            bypass,
            no_cache,
            get: self.cache_method.contains(&CacheMethod::Get),
            head: self.cache_method.contains(&CacheMethod::Head),
            purge_from,
            most_memory: metadata.most_memory(),
            rules: Arc::new(rules),
        }))
    }
}

impl HasMetadata for ProxyCache {
    type Metadata = ProxyCacheMetadata;
}

impl PluginMetadata for ProxyCacheMetadata {}

fn templates(texts: &[String], path: &str, build: &mut Build) -> Result<Box<[Template]>, ConfigError> {
    let compile = |(index, text): (usize, &String)| {
        let place = format!("{path}[{index}]");
        if text.is_empty() {
            return Err(ConfigError::new(place, "is empty; write as `$host`"));
        }
        let template = build.template(text, &place);
        let absent = template.variables().filter_map(|variable| variable.absence(ExchangePhase::Request));
        build.warnings.extend(absent.map(|problem| ConfigError::new(place.clone(), problem)));
        Ok(template)
    };
    texts.iter().enumerate().map(compile).collect_all()
}

/// The totals of this process.
#[derive(Default)]
pub struct CacheTotals {
    /// The memory of all zones.
    memory: ZoneMemory,
    outcomes: [AtomicU64; CacheOutcome::ALL.len()],
    evictions: AtomicU64,
    zones: Mutex<BTreeMap<String, Weak<CacheZone>>>,
}

/// The use of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneUse {
    pub zone: String,
    /// Bytes of memory in use.
    pub bytes: u64,
    /// Responses that are kept.
    pub responses: u64,
}

impl CacheTotals {
    fn list(&self, name: &str, zone: &Arc<CacheZone>) {
        let mut zones = self.zones.lock().unwrap_or_else(PoisonError::into_inner);
        zones.retain(|_, zone| zone.strong_count() > 0);
        zones.insert(name.to_owned(), Arc::downgrade(zone));
    }

    /// Makes room for one of the zones in the one that has the most; `false` if it has nothing to remove.
    fn evict(&self) -> bool {
        let largest = {
            let zones = self.zones.lock().unwrap_or_else(PoisonError::into_inner);
            zones.values().filter_map(Weak::upgrade).max_by_key(|zone| zone.used())
        };
        largest.is_some_and(|zone| zone.evict())
    }

    fn count(&self, outcome: CacheOutcome) {
        self.outcomes[outcome as usize].fetch_add(1, Relaxed);
    }

    /// The numbers of responses, by the value of `Apisix-Cache-Status` in lower case.
    pub fn outcomes(&self) -> impl Iterator<Item = (String, u64)> {
        CacheOutcome::ALL
            .into_iter()
            .map(|outcome| (outcome.name().to_ascii_lowercase(), self.outcomes[outcome as usize].load(Relaxed)))
    }

    /// Responses that were removed to make room.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Relaxed)
    }

    /// The zones of the configuration, by name.
    pub fn zones(&self) -> Vec<ZoneUse> {
        let zones = self.zones.lock().unwrap_or_else(PoisonError::into_inner);
        let usage = |(name, zone): (&String, &Weak<CacheZone>)| {
            let (bytes, responses) = zone.upgrade()?.usage();
            Some(ZoneUse { zone: name.clone(), bytes, responses })
        };
        zones.iter().filter_map(usage).collect()
    }
}

/// The totals, for `/metrics`.
pub fn totals() -> Arc<CacheTotals> {
    state::permanent(ProxyCache::NAME)
}

/// What a cache reads from a response and a request, for fuzzing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheReading {
    /// How long the response is fresh, in seconds; `None` if it is not stored.
    pub fresh: Option<u64>,
    /// The bytes of a content of ten bytes that the request asks for.
    pub bytes: Option<Range<u64>>,
}

/// Reads these fields of a response with status 200, and `Range` of a request.
pub fn read_response(fields: &[(&[u8], &[u8])], range: &[u8]) -> CacheReading {
    let fields = fields.iter().map(|(name, value)| (name.to_ascii_lowercase().into(), (*value).into())).collect();
    let head = ReplyHead { status: 200, fields }.end_to_end();
    let rules = StorageRules {
        statuses: [200].into(),
        default_fresh: Duration::from_secs(300),
        set_cookie: false,
        stale_while_revalidate: Duration::from_secs(5),
        stale_if_error: Duration::from_secs(5),
    };
    let lifetime = rules.lifetime(&head, false);
    let age = StoredAge::of(&head, ArrivalTimes::of_request(crate::clock::now())).at(crate::clock::now());
    let _ = lifetime.map(|lifetime| (lifetime.covers_errors(age), lifetime.use_at(age, &CacheDirectives::default())));
    let bytes = match reply::range_of(range, 10) {
        ReplyPart::Bytes(bytes) => Some(bytes),
        _ => None,
    };
    CacheReading { fresh: lifetime.map(|lifetime| lifetime.fresh.as_secs()), bytes }
}

/// The options and state that requests for responses need.
pub(crate) struct CacheRules {
    storage: StorageRules,
    most_content: u64,
    /// The `Cache-Control` of clients counts.
    follows_clients: bool,
    hides_control: bool,
    separates_consumers: bool,
    longest_wait: Duration,
    zone: Arc<CacheZone>,
    fills: Arc<Fills>,
    totals: Arc<CacheTotals>,
}

impl CacheRules {
    /// Removes all responses for a resource; `false` if there were none. Responses that are on their way are not stored, and go
    /// only to those who wait for them already.
    fn purge(&self, key: &[u8]) -> bool {
        self.fills.forget(key);
        self.zone.purge(key)
    }
}

struct CachePlugin {
    key: Box<[Template]>,
    bypass: Box<[Template]>,
    no_cache: Box<[Template]>,
    get: bool,
    head: bool,
    purge_from: AddressSet,
    /// Of all zones, in bytes.
    most_memory: u64,
    rules: Arc<CacheRules>,
}

/// The fields of trusted clients that say how they were addressed, besides `Forwarded`.
const FORWARDED: [&[u8]; 6] = [
    b"x-forwarded-proto",
    b"x-forwarded-host",
    b"x-forwarded-port",
    b"x-forwarded-prefix",
    b"x-original-url",
    b"x-rewrite-url",
];

/// The parameters of a `Forwarded` field (RFC 7239) without the addresses of clients and proxies. A parameter within a quoted
/// string counts, too: what an upstream may read as one is never left out.
fn forwarded_parameters(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let name = |parameter: &[u8]| {
        parameter.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii().to_ascii_lowercase()
    };
    let parameters = value.split(|byte| matches!(byte, b',' | b';')).map(<[u8]>::trim_ascii);
    parameters.filter(move |parameter| !parameter.is_empty() && !matches!(&*name(parameter), b"for" | b"by"))
}

impl CachePlugin {
    /// The key of the resource that a request is for: `PURGE` removes all responses with it. A route's responses are its own: other routes may change them.
    fn key(&self, exchange: &Exchange) -> ResourceScope {
        let mut key = ScopeParts::default();
        key.add(exchange.route.as_ref().map_or("", |route| &*route.route_id).as_bytes());
        let mut part = Vec::new();
        for template in &self.key {
            part.clear();
            template.render(exchange, &mut part);
            key.add(&part);
        }
        key.finished()
    }

    /// How the client has addressed the gateway: the upstream is told in forwarding fields, and may put it into links.
    fn addressed(&self, exchange: &Exchange) -> ResourceScope {
        let (client, head) = (&exchange.client, &exchange.request);
        let mut scope = ScopeParts::default();
        scope.add(exchange.scheme().as_bytes());
        scope.add(&client.local.port().to_le_bytes());
        scope.add(&head.client_authority().to_ascii_lowercase());
        for name in FORWARDED.iter().filter(|_| client.trusted) {
            scope.add_values(head, name);
        }
        for value in head.head.values(b"forwarded").filter(|_| client.trusted) {
            forwarded_parameters(value).for_each(|parameter| scope.add(parameter));
        }
        scope.finished()
    }

    /// A response can be found in, or written to, the cache by this request.
    fn handles(&self, exchange: &Exchange) -> bool {
        let request = &exchange.request;
        let method = match request.client_method() {
            Method::Get => self.get,
            Method::Head => self.head,
            _ => false,
        };
        let is_conditional_change =
            [&b"if-match"[..], b"if-unmodified-since"].iter().any(|name| request.head.value(name).is_some());
        method
            && request.method == request.client_method()
            && !request.upgrade
            && !request.framing.has_body()
            && !is_conditional_change
    }
}

/// Says that the cache has no part in a response.
fn note_passed_by(exchange: &mut Exchange) -> Result<(), Stop> {
    let is_cacheable = matches!(exchange.request.client_method(), Method::Get | Method::Head);
    let reason = if is_cacheable { &b"Weir; fwd=request"[..] } else { b"Weir; fwd=method" };
    let head = &mut exchange.response.head;
    let set = head.set(b"Apisix-Cache-Status", b"BYPASS").and_then(|()| head.set(b"Cache-Status", reason));
    set.map_err(|_| Stop::Internal)
}

fn any_set(templates: &[Template], exchange: &Exchange) -> bool {
    let mut text = Vec::new();
    templates.iter().any(|template| {
        text.clear();
        template.render(exchange, &mut text);
        !text.is_empty() && text != b"0"
    })
}

impl Plugin for CachePlugin {
    fn answers_in_place(&self) -> AnswersInPlace {
        AnswersInPlace::SomeRequests
    }

    fn phases(&self) -> Phases {
        Phases::REQUEST.and(Phases::RESPONSE).and(Phases::START)
    }

    fn start(&self) -> Result<(), String> {
        self.rules.totals.memory.limit_to(self.most_memory);
        Ok(())
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        if exchange.request.method == Method::Purge {
            if !self.purge_from.contains(exchange.client.addr) {
                return Err(Stop::Respond(403));
            }
            let found = self.rules.purge(&self.key(exchange));
            return Err(Stop::Respond(if found { 200 } else { 404 }));
        }
        if self.handles(exchange) {
            let responder: Arc<dyn Responder> = Arc::new(CacheResponder {
                key: self.key(exchange),
                addressed: self.addressed(exchange),
                bypasses: any_set(&self.bypass, exchange),
                keeps: !any_set(&self.no_cache, exchange),
                rules: Arc::clone(&self.rules),
            });
            exchange.answer_by(&responder);
        }
        Ok(Flow::Continue)
    }

    /// A request that has changed the resource makes what is kept of it invalid (RFC 9111 §4.4).
    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        if exchange.responder().is_none() && !exchange.is_answered_here() {
            note_passed_by(exchange)?;
        }
        let changes = matches!(
            exchange.request.client_method(),
            Method::Post | Method::Put | Method::Patch | Method::Delete | Method::Other
        );
        if changes && !exchange.is_answered_here() && (200..400).contains(&exchange.response.status) {
            self.rules.purge(&self.key(exchange));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_plugin::Entry;

    use super::*;
    use crate::testing::{build, exchange, on_request, refused, sent};

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"cache_strategy": "disk"}), "cache_strategy: is `disk`; responses are kept in memory"),
            (json!({"cache_method": ["GET", "POST"]}), "cache_method: has `POST`"),
            (json!({"cache_http_status": [200, 304]}), "cache_http_status: 304 is not a whole response"),
            (json!({"cache_key": ["$host", ""]}), "cache_key[1]: is empty"),
            (json!({"purge_from": ["here"]}), "purge_from[0]"),
        ] {
            let error = refused::<ProxyCache>(options);
            assert!(error.starts_with(want), "{error}");
        }
        let metadata = Entry::described::<ProxyCache>().metadata.expect("it has settings");
        let error = (metadata.check)(&json!({"zones": {"a": 5}})).expect_err("too small").to_string();
        assert_eq!(error, "zones.a: expected a whole number of bytes, 1048576 or more, found the number 5");
        (metadata.check)(&json!({"zones": {"a": "2MiB"}})).expect("it is a size");
    }

    #[test]
    fn only_requests_that_a_kept_response_can_answer_go_to_the_cache() {
        let plugin = build::<ProxyCache>(json!({}));
        for (is_handled, head) in [
            (true, "GET / HTTP/1.1\nHost: a"),
            (true, "HEAD / HTTP/1.1\nHost: a"),
            (false, "POST / HTTP/1.1\nHost: a\nContent-Length: 0"),
            (false, "GET / HTTP/1.1\nHost: a\nContent-Length: 5"),
            (false, "GET / HTTP/1.1\nHost: a\nIf-Match: \"x\""),
            (false, "GET / HTTP/1.1\nHost: a\nConnection: upgrade\nUpgrade: websocket"),
        ] {
            let mut exchange = exchange(head);
            on_request(&plugin, &mut exchange).expect("it passes");
            assert_eq!(exchange.responder().is_some(), is_handled, "{head}");
        }
    }

    #[test]
    fn a_response_that_the_cache_has_no_part_in_says_so() {
        let plugin = build::<ProxyCache>(json!({}));
        for (head, want) in [
            ("POST / HTTP/1.1\nHost: a\nContent-Length: 0", Some("Weir; fwd=method")),
            ("GET / HTTP/1.1\nHost: a\nIf-Match: \"x\"", Some("Weir; fwd=request")),
            ("GET / HTTP/1.1\nHost: a", None),
        ] {
            let mut exchange = exchange(head);
            on_request(&plugin, &mut exchange).expect("it passes");
            exchange.upstream.status = 200;
            exchange.response.set_status(200);
            plugin.on_response(&mut exchange).expect("it passes");
            assert_eq!(sent(&exchange, "cache-status"), want, "{head}");
            assert_eq!(sent(&exchange, "apisix-cache-status"), want.map(|_| "BYPASS"), "{head}");
        }
    }

    #[test]
    fn only_some_clients_may_purge() {
        let plugin = build::<ProxyCache>(json!({}));
        let mut exchange = exchange("PURGE / HTTP/1.1\nHost: a");
        assert_eq!(on_request(&plugin, &mut exchange), Err(Stop::Respond(403)));
        exchange.client.addr = [127, 0, 0, 1].into();
        assert_eq!(on_request(&plugin, &mut exchange), Err(Stop::Respond(404)));
    }

    #[test]
    fn addresses_in_forwarded_keep_no_responses_apart() {
        for (value, want) in [
            ("for=192.0.2.1;proto=https;by=_x, For=\"[::1]:4\"; Host=a", &["proto=https", "Host=a"][..]),
            ("for=192.0.2.1, for=_y;;", &[]),
            ("for=\"x;host=evil", &["host=evil"]),
            ("FOR = 1; forx=2", &["forx=2"]),
        ] {
            let got: Vec<_> = forwarded_parameters(value.as_bytes()).map(String::from_utf8_lossy).collect();
            assert_eq!(got, want, "{value}");
        }
    }

    #[test]
    fn keys_of_different_parts_differ() {
        let plugin = |key: &[&str]| CachePlugin {
            key: key.iter().map(|text| Template::compile(text)).collect(),
            bypass: Box::default(),
            no_cache: Box::default(),
            get: true,
            head: true,
            purge_from: AddressSet::compile(&[], "").expect("valid"),
            most_memory: 0,
            rules: Arc::new(CacheRules {
                storage: StorageRules {
                    statuses: Box::default(),
                    default_fresh: Duration::ZERO,
                    set_cookie: false,
                    stale_while_revalidate: Duration::ZERO,
                    stale_if_error: Duration::ZERO,
                },
                most_content: 1,
                follows_clients: false,
                hides_control: false,
                separates_consumers: true,
                longest_wait: Duration::ZERO,
                zone: Arc::new(CacheZone::new(LEAST_ZONE, Arc::default())),
                fills: Arc::default(),
                totals: Arc::default(),
            }),
        };
        let asked = exchange("GET /ab?c HTTP/1.1\nHost: d");
        assert_ne!(plugin(&["$host", "$request_uri"]).key(&asked), plugin(&["$host$request_uri"]).key(&asked));
        assert!(any_set(&[Template::compile("$arg_x"), Template::compile("1")], &asked));
        assert!(!any_set(&[Template::compile("$arg_x"), Template::compile("0")], &asked));
    }
}
