use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Request};
use http_body_util::Full;
use hyper::body::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_client::{CallError, IdleConnections};
use weir_plugin::proto::authority::HostPort;
use weir_plugin::{
    Build, CollectAll, ConfigError, Definition, Exchange, Filter, Flow, Held, NoteKey, PerWorker, Phases, Plugin,
    Stage, Stop, state,
};
use weir_services::http_service::HttpService;

use crate::content::body_recorder::BodyRecorder;

/// Sends copies of requests to other services and ignores the responses.
///
/// The copy is the request as it was sent to the upstream. It is sent after the response to the client has ended, so
/// the client never waits for the copy, and a failure of the copy does not affect the client. Requests that are refused
/// before they are sent to an upstream are not copied. Each worker has at most 128 copies in flight, each with a body
/// of at most 1 MiB; further or larger copies are dropped. The metric `weir_mirrored_requests_total` counts copies by
/// outcome.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProxyMirror {
    /// The service that gets the copies, as `http://host:port` or `https://host:port`.
    #[schemars(extend("x-weir-reaches" = "server"))]
    host: Option<String>,
    /// The path of the copies. Without it, copies have the path of the request.
    path: Option<String>,
    /// `replace`: `path` replaces the path of the request. `prefix`: `path` is prepended to the path of the request.
    #[serde(default)]
    path_concat_mode: PathConcatMode,
    /// The `Host` of the copies, optionally with a port. Without it, that of the request. Not in APISIX.
    host_header: Option<String>,
    /// Whether copies have the content of the request. Not in APISIX.
    #[serde(default = "with_content")]
    body: bool,
    /// The fraction of requests that are copied, from 0.00001 to 1.
    #[serde(default = "default_sample_ratio")]
    #[schemars(range(min = 0.00001, max = 1.0))]
    sample_ratio: f64,
    /// Several services in place of `host` and the options beside it, at most 16. Each gets its own fraction of the requests.
    #[schemars(length(min = 1, max = 16))]
    targets: Option<Vec<TargetOptions>>,
}

/// One of several services.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TargetOptions {
    /// The service that gets the copies, as `http://host:port` or `https://host:port`.
    #[schemars(extend("x-weir-reaches" = "server"))]
    host: String,
    /// The path of the copies. Without it, copies have the path of the request.
    path: Option<String>,
    /// `replace`: `path` replaces the path of the request. `prefix`: `path` is prepended to the path of the request.
    #[serde(default)]
    path_concat_mode: PathConcatMode,
    /// The `Host` of the copies, optionally with a port. Without it, that of the request. Not in APISIX.
    host_header: Option<String>,
    /// Whether copies have the content of the request. Not in APISIX.
    #[serde(default = "with_content")]
    body: bool,
    /// The fraction of requests that are copied, from 0.00001 to 1.
    #[serde(default = "default_sample_ratio")]
    #[schemars(range(min = 0.00001, max = 1.0))]
    sample_ratio: f64,
}

/// What `path` is to the request's own path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum PathConcatMode {
    #[default]
    Replace,
    Prefix,
}

const fn with_content() -> bool {
    true
}

fn default_sample_ratio() -> f64 {
    1.0
}

/// The most copies in flight for each worker.
const MOST_UNDERWAY: usize = 128;
/// The most bytes of a request's content; requests with more are not mirrored.
const MOST_CONTENT: usize = 1024 * 1024;
/// The most bytes of an answer, which is discarded.
const MOST_ANSWERED: usize = 64 * 1024;
const TIMEOUT: Duration = Duration::from_secs(10);

impl Definition for ProxyMirror {
    const NAME: &'static str = "proxy-mirror";
    const PRIORITY: i32 = 1010;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = "proxy-mirror: { host: \"http://127.0.0.1:9797\", sample_ratio: 0.1 }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let ProxyMirror { host, path, path_concat_mode, host_header, body, sample_ratio, targets } = self;
        let targets = match (host, targets) {
            (Some(host), None) => {
                let only = TargetOptions { host, path, path_concat_mode, host_header, body, sample_ratio };
                Box::new([only.compile("", build)?]) as Box<[MirrorTarget]>
            }
            (None, Some(targets)) if path.is_none() && host_header.is_none() && body => {
                let compile = |(index, one): (usize, TargetOptions)| one.compile(&format!("targets[{index}]."), build);
                targets.into_iter().enumerate().map(compile).collect_all()?
            }
            (None, Some(_)) => {
                let option = match (path, host_header) {
                    (Some(_), _) => "path",
                    (None, Some(_)) => "host_header",
                    (None, None) => "body",
                };
                return Err(ConfigError::new(option, "belongs to `host`; write it into each entry of `targets`"));
            }
            (host, targets) => {
                return Err(ConfigError::one_of(&[("host", host.is_some()), ("targets", targets.is_some())]));
            }
        };
        Ok(Arc::new(RequestMirror {
            targets,
            content: NoteKey::unique(),
            picked: NoteKey::unique(),
            underway: build.per_worker("proxy-mirror", "", Cell::default),
        }))
    }
}

impl TargetOptions {
    /// `prefix` stands before the names of the options in faults.
    fn compile(self, prefix: &str, build: &mut Build) -> Result<MirrorTarget, ConfigError> {
        let wrong = |option: &str, problem: &str| Err(ConfigError::new(format!("{prefix}{option}"), problem));
        let is_path = |path: &String| path.len() > 1 && path.starts_with('/') && !path.contains(['?', '&']);
        if self.path.as_ref().is_some_and(|path| !is_path(path)) {
            let problem = "must begin with `/`, be longer than `/`, and contain neither `?` nor `&`";
            build.fault(format!("{prefix}path"), problem);
        }
        let is_host = |text: &String| HostPort::parse(text.as_bytes()).is_ok();
        if self.host_header.as_ref().is_some_and(|text| !is_host(text)) {
            build.fault(format!("{prefix}host_header"), "is not a host with an optional port, as api.example:8080");
        }
        let host_header = self.host_header.as_ref().and_then(|text| HeaderValue::from_str(text).ok());
        if self.host.starts_with("grpc") {
            return wrong("host", "must begin with `http://` or `https://`; gRPC is not copied");
        }
        let idle = IdleConnections { max_per_origin: 8, timeout: Duration::from_secs(60) };
        let place = format!("{prefix}host");
        let service = HttpService::parse(build.http(), &self.host, true, TIMEOUT, idle, &place)?;
        if &*service.target != "/" {
            return wrong("host", "has a path; use the option `path` instead");
        }
        let tally = tally_of(&service.name());
        let TargetOptions { path, path_concat_mode: mode, body: with_content, sample_ratio, .. } = self;
        Ok(MirrorTarget { tally, service, path, mode, host_header, with_content, sample_ratio })
    }
}

/// The numbers of copies by outcome.
#[derive(Debug, Default)]
struct MirrorTally {
    sent: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

type MirrorTallies = Mutex<BTreeMap<String, Arc<MirrorTally>>>;

fn all_tallies() -> Arc<MirrorTallies> {
    state::permanent("proxy-mirror")
}

fn tally_of(name: &str) -> Arc<MirrorTally> {
    let all = all_tallies();
    let mut tallies = all.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(tallies.entry(name.to_owned()).or_default())
}

/// The numbers of all copies since the start, by destination and outcome.
pub fn tallies() -> Vec<(String, [(&'static str, u64); 3])> {
    let all = all_tallies();
    let tallies = all.lock().unwrap_or_else(PoisonError::into_inner);
    let tally = |(name, tally): (&String, &Arc<MirrorTally>)| {
        let MirrorTally { sent, failed, dropped } = &**tally;
        let counts = [("sent", sent), ("failed", failed), ("dropped", dropped)];
        (name.clone(), counts.map(|(outcome, count)| (outcome, count.load(Relaxed))))
    };
    tallies.iter().map(tally).collect()
}

struct RequestMirror {
    /// At most 64, the bits of the note `picked`.
    targets: Box<[MirrorTarget]>,
    content: NoteKey,
    /// The note of a request that is copied: a bit for each target that gets it.
    picked: NoteKey,
    /// The copies in flight on this worker, of all mirrors together.
    underway: PerWorker<Cell<usize>>,
}

struct MirrorTarget {
    service: HttpService,
    path: Option<String>,
    mode: PathConcatMode,
    host_header: Option<HeaderValue>,
    with_content: bool,
    sample_ratio: f64,
    tally: Arc<MirrorTally>,
}

/// The content of a request, with its share of the budget.
type MirroredContent = (Bytes, Rc<Held>);

/// A permit for one copy in flight.
struct MirrorPermit(Rc<Cell<usize>>);

impl MirrorPermit {
    fn take(underway: Rc<Cell<usize>>) -> Option<MirrorPermit> {
        let taken = underway.get();
        (taken < MOST_UNDERWAY).then(|| {
            underway.set(taken + 1);
            MirrorPermit(underway)
        })
    }
}

impl Drop for MirrorPermit {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Plugin for RequestMirror {
    fn phases(&self) -> Phases {
        Phases::REQUEST.and(Phases::REQUEST_BODY).and(Phases::LOG)
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        let is_picked =
            |target: &MirrorTarget| target.sample_ratio >= 1.0 || rand::random::<f64>() < target.sample_ratio;
        let bit = |(index, target): (usize, &MirrorTarget)| u64::from(is_picked(target)) << index;
        let picked = self.targets.iter().enumerate().map(bit).sum();
        if picked != 0 {
            exchange.notes.write(self.picked, [picked, 0, 0]);
        }
        Ok(Flow::Continue)
    }

    fn request_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        let Some([picked, ..]) = exchange.notes.read(self.picked) else { return Ok(None) };
        if !self.targets_of(picked).any(|target| target.with_content) {
            return Ok(None);
        }
        let kept = exchange.notes.keep(self.content, exchange.client.addr);
        Ok(Some(BodyRecorder::filter(kept, MOST_CONTENT, exchange.request.framing)))
    }

    fn kept_bytes(&self, exchange: &Exchange) -> usize {
        exchange.notes.kept_bytes(self.content)
    }

    fn on_log(&self, exchange: &Exchange) {
        let Some([picked, ..]) = exchange.notes.read(self.picked) else { return };
        if exchange.upstream.attempts == 0 {
            return;
        }
        let content = self.recorded(exchange);
        let nothing = MirroredContent::default();
        for target in self.targets_of(picked) {
            let content = if target.with_content { content.as_ref() } else { Some(&nothing) };
            let copy = content.and_then(|content| target.copy(exchange, content));
            match copy.and_then(|copy| Some((copy, MirrorPermit::take(self.underway.get())?))) {
                Some(((copy, held), permit)) => target.send(copy, (permit, held)),
                None => _ = target.tally.dropped.fetch_add(1, Relaxed),
            }
        }
    }
}

impl RequestMirror {
    /// The targets of a request, by its note `picked`.
    fn targets_of(&self, bits: u64) -> impl Iterator<Item = &MirrorTarget> {
        let is_picked = move |(index, _): &(usize, &MirrorTarget)| bits >> index & 1 == 1;
        self.targets.iter().enumerate().filter(is_picked).map(|(_, target)| target)
    }

    /// `None` if the content was not recorded completely.
    fn recorded(&self, exchange: &Exchange) -> Option<MirroredContent> {
        let kept = exchange.notes.kept(self.content);
        if kept.is_some_and(|kept| kept.borrow().is_cut() || kept.borrow().len() > MOST_CONTENT) {
            return None;
        }
        let (content, held) = kept.map(|kept| kept.borrow_mut().take()).unwrap_or_default();
        Some((Bytes::from_owner(content), Rc::new(held)))
    }
}

impl MirrorTarget {
    /// Sends a copy in a task of its own, which holds `until_sent`.
    fn send(&self, copy: Request<Full<Bytes>>, until_sent: (MirrorPermit, Rc<Held>)) {
        let (service, tally) = (self.service.clone(), Arc::clone(&self.tally));
        tokio::task::spawn_local(async move {
            let _until_sent = until_sent;
            let count = match service.ask(copy, MOST_ANSWERED).await {
                Ok(_) | Err(CallError::AnswerTooLarge { .. }) => &tally.sent,
                Err(_) => &tally.failed,
            };
            count.fetch_add(1, Relaxed);
        });
    }

    /// The request as it was sent to the upstream; `None` if it is not valid for the HTTP client.
    fn copy(&self, exchange: &Exchange, content: &MirroredContent) -> Option<(Request<Full<Bytes>>, Rc<Held>)> {
        let request = &exchange.request;
        let mut fields = HeaderMap::new();
        for (name, value) in request.head.fields() {
            let name = HeaderName::from_bytes(name).ok()?;
            if ![HOST, CONTENT_LENGTH, TRANSFER_ENCODING].contains(&name) {
                fields.append(name, HeaderValue::from_bytes(value).ok()?);
            }
        }
        if let Some(host) = &self.host_header {
            fields.insert(HOST, host.clone());
        } else if !request.authority().is_empty() {
            fields.insert(HOST, HeaderValue::from_bytes(request.authority()).ok()?);
        }
        let (content, held) = content.clone();
        let mut copy = Request::new(Full::new(content));
        *copy.method_mut() = Method::from_bytes(request.method_name()).ok()?;
        *copy.uri_mut() = self.target(request.unmerged_path(), request.query()).try_into().ok()?;
        *copy.headers_mut() = fields;
        Some((copy, held))
    }

    fn target(&self, path: &[u8], query: Option<&[u8]>) -> Vec<u8> {
        let mut target = match (&self.path, self.mode) {
            (None, _) => path.to_vec(),
            (Some(own), PathConcatMode::Replace) => own.as_bytes().to_vec(),
            (Some(own), PathConcatMode::Prefix) => [own.as_bytes(), path].concat(),
        };
        if let Some(query) = query {
            target.push(b'?');
            target.extend_from_slice(query);
        }
        target
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::refused;

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "needs one of `host` and `targets`"),
            (
                json!({"host": "http://a", "targets": [{"host": "http://b"}]}),
                "has `host` and `targets`; keep one of them",
            ),
            (json!({"targets": [{"host": "http://a"}, {"host": "a:1"}]}), "targets[1].host: `a:1` is not a URL"),
            (json!({"targets": [{"host": "http://a"}], "path": "/b"}), "path: belongs to `host`"),
            (json!({"targets": [{"host": "http://a"}], "host_header": "b"}), "host_header: belongs to `host`"),
            (json!({"targets": [{"host": "http://a"}], "body": false}), "body: belongs to `host`"),
            (json!({"host": "http://a", "host_header": "b/c"}), "host_header: is not a host"),
            (json!({"targets": [{"host": "http://a", "host_header": ""}]}), "targets[0].host_header: is not a host"),
            (json!({"host": "a:1"}), "host: `a:1` is not a URL"),
            (json!({"host": "grpc://a:1"}), "host: must begin with"),
            (json!({"host": "http://a/b"}), "host: has a path"),
            (json!({"host": "http://a", "path": "b"}), "path: must begin with"),
            (json!({"host": "http://a", "path": "/b?c"}), "path: must begin with"),
            (json!({"host": "http://a", "path_concat_mode": "x"}), "path_concat_mode: `x` is not an allowed value"),
        ] {
            let error = refused::<ProxyMirror>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
