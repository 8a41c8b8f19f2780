use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::proto::{Method, RequestHead};
use weir_plugin::{
    Build, ConfigError, Content, Definition, Exchange, Flow, PerWorker, Plugin, Reply, ReplyField, ReplyHead,
    Responder, ResponderRequest, Responding, RouteUpstream, Stage, Stop, state,
};

mod blocks;
mod delays;
mod feed;
mod source;
mod window;

use delays::EventDelays;
use feed::{FeedClient, FeedItem, FeedStage, FeedWake, Feeds, JoinRequest, OtherAnswer, WorkerFeeds};
use source::{FeedSource, SourceTimes, shared_fields};
use window::WindowLimits;

/// Shares one event stream of the upstream (server-sent events) among all clients that request the same stream.
///
/// The gateway opens the stream once for all workers, keeps its newest events, and sends each event to every client. A client
/// that reconnects with `Last-Event-ID` first gets the events that it has missed, as far as they are kept. If the stream of
/// the upstream breaks, the gateway opens it again with the id of the last event. The clients stay connected meanwhile, and
/// get comments that keep their connections alive.
///
/// This applies to GET requests whose `Accept` contains `text/event-stream`; other requests are forwarded as without the
/// plugin. Requests share a stream if their host, path, query and the fields in `headers` are equal. Only these header fields
/// are sent to the upstream. Comments of the upstream and its `Set-Cookie` are not forwarded to clients. A response of the
/// upstream that is not an event stream is sent to all clients that wait for it.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SseFanout {
    /// The header fields of requests that are sent to the upstream. Requests that differ in one of them do not share a
    /// stream.
    #[serde(default = "default_headers")]
    headers: Vec<String>,
    /// The maximum number of events that are kept for clients that reconnect or read slowly.
    #[serde(default = "default_events")]
    #[schemars(range(min = 1, max = 1_000_000))]
    window_events: usize,
    /// The maximum size of these events, in bytes. The newest event is always kept. An event may have at most 1 MiB.
    #[serde(default = "default_bytes")]
    #[schemars(range(min = 1024, max = 1_073_741_824))]
    window_bytes: usize,
    /// The number of kept events that a new client gets first. Clients with `Last-Event-ID` get the events that they have
    /// missed instead.
    #[serde(default)]
    replay_to_new: usize,
    /// What a client gets if its `Last-Event-ID` is not among the kept events. `forward` (default): a separate stream of the
    /// upstream, which may have older events. `join`: the shared stream, from now on.
    #[serde(default)]
    unknown_event_id: UnknownEventId,
    /// What happens to a client that reads so slowly that its next event is no longer kept. `close` (default): its response
    /// ends, so that it can reconnect. `skip`: the missing events are left out, and a comment states their number.
    #[serde(default)]
    slow_client: SlowClient,
    /// The interval in which clients get a comment while there are no events, in seconds.
    #[serde(default = "default_heartbeat")]
    #[schemars(range(min = 1, max = 3600))]
    heartbeat: u64,
    /// How long the stream of the upstream stays open after the last client has left, in seconds.
    #[serde(default = "default_keep_open")]
    #[schemars(range(min = 0, max = 3600))]
    keep_open: u64,
    /// How long the gateway tries to reopen a broken stream, in seconds. Then the responses of its clients end.
    #[serde(default = "default_reconnect")]
    #[schemars(range(min = 1, max = 86400))]
    reconnect_timeout: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum UnknownEventId {
    #[default]
    Forward,
    Join,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum SlowClient {
    #[default]
    Close,
    Skip,
}

fn default_headers() -> Vec<String> {
    ["Authorization", "Cookie"].map(str::to_owned).into()
}

fn default_events() -> usize {
    1000
}

fn default_bytes() -> usize {
    1 << 20
}

fn default_heartbeat() -> u64 {
    15
}

fn default_keep_open() -> u64 {
    10
}

fn default_reconnect() -> u64 {
    60
}

/// Fields that the gateway sets itself, or that differ between the clients of a stream: they cannot select a stream.
const NOT_TO_DEPEND_ON: [&str; 8] =
    ["accept", "connection", "content-length", "host", "last-event-id", "te", "transfer-encoding", "upgrade"];

impl Definition for SseFanout {
    const NAME: &'static str = "sse-fanout";
    const PRIORITY: i32 = 500;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "sse-fanout: { window_events: 500, replay_to_new: 10 }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        for (index, name) in self.headers.iter().enumerate() {
            let place = format!("headers[{index}]");
            if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
                return Err(ConfigError::new(place, format!("`{name}` is not the name of a header field")));
            }
            if NOT_TO_DEPEND_ON.iter().any(|own| own.eq_ignore_ascii_case(name)) {
                return Err(ConfigError::new(place, format!("`{name}` cannot be chosen: the gateway sets it itself")));
            }
        }
        let ranges = [
            ("window_events", self.window_events as u64, 1, 1_000_000),
            ("window_bytes", self.window_bytes as u64, 1024, 1 << 30),
            ("heartbeat", self.heartbeat, 1, 3600),
            ("keep_open", self.keep_open, 0, 3600),
            ("reconnect_timeout", self.reconnect_timeout, 1, 86_400),
        ];
        for (path, value, least, most) in ranges {
            if !(least..=most).contains(&value) {
                return Err(ConfigError::new(path, format!("must be from {least} to {most}")));
            }
        }
        if self.replay_to_new > self.window_events {
            let problem = format!("is more than `window_events` ({}) keeps", self.window_events);
            return Err(ConfigError::new("replay_to_new", problem));
        }
        let totals: Arc<FanoutTotals> = build.permanent(Self::NAME);
        let sharing = StreamSharing {
            headers: self.headers.into_iter().map(|name| name.to_ascii_lowercase().into_bytes().into()).collect(),
            limits: WindowLimits { events: self.window_events, bytes: self.window_bytes },
            replay_to_new: self.replay_to_new,
            unknown_event_id: self.unknown_event_id,
            slow_client: self.slow_client,
            heartbeat: Duration::from_secs(self.heartbeat),
            times: SourceTimes {
                keep_open: Duration::from_secs(self.keep_open),
                reconnect: Duration::from_secs(self.reconnect_timeout),
            },
            feeds: build.shared(Self::NAME, build.identity(), Feeds::default),
            worker_feeds: build.per_worker(Self::NAME, build.identity(), {
                let totals = Arc::clone(&totals);
                move || WorkerFeeds::new(totals.delays.begin())
            }),
            totals,
        };
        Ok(Arc::new(FanoutPlugin(Arc::new(sharing))))
    }
}

/// A gauge.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    fn sub(&self, count: u64) {
        self.0.fetch_sub(count, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The totals of this process.
#[derive(Debug, Default)]
pub struct FanoutTotals {
    /// Clients that currently follow a shared stream.
    pub clients: Count,
    /// Streams that have been opened.
    pub streams: Count,
    /// Streams that have ended or failed, and were requested again.
    pub reconnects: Count,
    /// Blocks received from upstreams: events, and lines that set an id or retry time.
    pub events: Count,
    /// Blocks that slow clients have missed.
    pub missed: Count,
    /// The time from when an event was received until it was given to a client's connection: once for each client, without events
    /// that a client gets from the kept ones when it connects.
    pub delays: EventDelays,
}

/// The totals, for `/metrics`.
pub fn totals() -> Arc<FanoutTotals> {
    state::permanent(SseFanout::NAME)
}

/// The options and state that the responders share.
struct StreamSharing {
    /// The fields that select a stream, in lower case.
    headers: Box<[Box<[u8]>]>,
    limits: WindowLimits,
    replay_to_new: usize,
    unknown_event_id: UnknownEventId,
    slow_client: SlowClient,
    heartbeat: Duration,
    times: SourceTimes,
    feeds: Arc<Feeds>,
    worker_feeds: PerWorker<WorkerFeeds>,
    totals: Arc<FanoutTotals>,
}

struct FanoutPlugin(Arc<StreamSharing>);

impl Plugin for FanoutPlugin {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        if wants_events(&exchange.request) {
            let route = exchange.route.as_ref().map_or("", |route| &*route.route_id);
            let scope = format!("{route} {:?}", exchange.diverted_to()).into();
            let responder: Arc<dyn Responder> = Arc::new(FanoutResponder { scope, sharing: Arc::clone(&self.0) });
            exchange.answer_by(&responder);
        }
        Ok(Flow::Continue)
    }
}

fn wants_events(request: &RequestHead) -> bool {
    let accepts = request.head.values(b"accept").any(|value| {
        let types = value.split(|byte| *byte == b',').map(|kind| kind.split(|byte| *byte == b';').next());
        types.flatten().any(|kind| kind.trim_ascii().eq_ignore_ascii_case(b"text/event-stream"))
    });
    request.method == Method::Get && request.client_method() == Method::Get && !request.upgrade && accepts
}

/// Answers requests of one route from shared streams.
struct FanoutResponder {
    /// The route, and the upstream if a plugin has chosen one: different routes may have the same path.
    scope: Box<str>,
    sharing: Arc<StreamSharing>,
}

impl Responder for FanoutResponder {
    fn respond(self: Arc<Self>, request: ResponderRequest, _: Content, mut reply: Reply) -> Responding {
        Box::pin(async move {
            let ResponderRequest { head, upstream, .. } = request;
            let upstream = upstream.ok_or(Stop::NoUpstream)?;
            let id = head.head.value(b"last-event-id").map(<[u8]>::to_vec);
            match self.sharing.join(&self.scope, &head, id.as_deref(), &upstream) {
                Some((client, position)) => self.sharing.send(client, position, &mut reply).await,
                None => forward(&self.sharing.upstream_request(&head, id.as_deref()), &upstream, &mut reply).await,
            }
        })
    }
}

impl StreamSharing {
    /// The key of the stream for a request; requests with equal keys share a stream.
    fn key(&self, scope: &str, head: &RequestHead) -> Vec<u8> {
        let query = head.query();
        let fields = self.headers.iter().flat_map(|name| head.head.values(name).chain([&b""[..]]));
        let parts = [scope.as_bytes(), head.authority(), head.path(), query.unwrap_or_default()];
        let mut key = vec![u8::from(query.is_some())];
        for part in parts.into_iter().chain(fields) {
            key.extend_from_slice(&(part.len() as u64).to_le_bytes());
            key.extend_from_slice(part);
        }
        key
    }

    /// The request to the upstream: it contains only what is the same for all requests with this key.
    fn upstream_request(&self, head: &RequestHead, last_event_id: Option<&[u8]>) -> RequestHead {
        let mut request = head.clone();
        let names: Vec<Box<[u8]>> = request.head.fields().map(|(name, _)| name.into()).collect();
        for name in names {
            let stays = name.eq_ignore_ascii_case(b"host")
                || self.headers.iter().any(|shared| shared.eq_ignore_ascii_case(&name));
            if !stays {
                request.head.remove(&name);
            }
        }
        for (name, value) in [(&b"Accept"[..], Some(&b"text/event-stream"[..])), (b"Last-Event-ID", last_event_id)] {
            if let Some(value) = value {
                // Cannot fail: the value comes from a field of the request.
                let _ = request.head.set(name, value);
            }
        }
        request
    }

    /// Joins the stream for the request, which is opened if there is none. `None` if the stream does not know the
    /// client's last event id, and so cannot send what it has missed.
    fn join(
        &self,
        scope: &str,
        head: &RequestHead,
        last_event_id: Option<&[u8]>,
        upstream: &std::rc::Rc<dyn RouteUpstream>,
    ) -> Option<(FeedClient, u64)> {
        let key = self.key(scope, head);
        let (limits, heartbeat, totals) = (self.limits, self.heartbeat, &self.totals);
        let joining = JoinRequest { key: &key, last_event_id, upstream, limits, heartbeat, totals };
        let joined = self.worker_feeds.get().join(&self.feeds, &joining);
        let worker_feed = joined.worker_feed;
        if let Some(feed) = joined.new_feed {
            let source = FeedSource {
                feeds: Arc::clone(&self.feeds),
                key: key.into(),
                feed,
                upstream: std::rc::Rc::clone(&worker_feed.upstream),
                request: self.upstream_request(head, None),
                times: self.times,
            };
            tokio::task::spawn_local(source.run());
        }
        let position = worker_feed
            .position(last_event_id, self.replay_to_new)
            .or_else(|| (self.unknown_event_id == UnknownEventId::Join).then(|| worker_feed.end()))?;
        Some((worker_feed.client(), position))
    }

    async fn send(&self, mut client: FeedClient, position: u64, reply: &mut Reply) -> Result<(), Stop> {
        match client.opened().await {
            FeedStage::Open(fields) => {
                reply.begin_with(ReplyHead { status: 200, fields: fields.to_vec() });
                self.follow(client, position, reply).await
            }
            FeedStage::Refused(other) => {
                let OtherAnswer { status, fields, content } = &*other;
                let length = content.len().to_string().into_bytes().into();
                let length: ReplyField = (b"content-length"[..].into(), length);
                let fields = fields.iter().cloned().chain((*status != 204).then_some(length)).collect();
                reply.begin_with(ReplyHead { status: *status, fields });
                reply.send(content).await;
                Ok(())
            }
            FeedStage::Failed(stop) => Err(stop),
            FeedStage::Opening | FeedStage::Ended => Err(Stop::UpstreamAborted),
        }
    }

    /// Sends events as fast as the client reads them.
    async fn follow(&self, mut client: FeedClient, mut position: u64, reply: &mut Reply) -> Result<(), Stop> {
        let joined_at = client.feed.end();
        loop {
            match client.feed.next(position) {
                FeedItem::Block(block) => {
                    reply.send(&block.bytes).await;
                    if position >= joined_at {
                        client.feed.delivered(&block);
                    }
                    position += 1;
                }
                FeedItem::Gone(first) => {
                    let missed = first - position;
                    self.totals.missed.add(missed);
                    if self.slow_client == SlowClient::Close {
                        return Ok(());
                    }
                    reply.send(format!(": {missed} events left out\n\n").as_bytes()).await;
                    position = first;
                }
                FeedItem::End if matches!(client.feed.stage(), FeedStage::Ended) => return Ok(()),
                FeedItem::End => {
                    if client.beyond(position).await == FeedWake::Heartbeat {
                        reply.send(b":\n\n").await;
                    }
                }
            }
        }
    }
}

/// Forwards a separate stream for one client, without sharing.
async fn forward(
    request: &RequestHead,
    upstream: &std::rc::Rc<dyn RouteUpstream>,
    reply: &mut Reply,
) -> Result<(), Stop> {
    let mut answer = upstream.send(request.clone());
    let ReplyHead { status, fields } = answer.head().await?;
    reply.begin_with(ReplyHead { status, fields: shared_fields(fields) });
    while let Some(piece) = answer.next().await? {
        reply.send(&piece).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{build, exchange, on_request, refused};

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"headers": ["a b"]}), "headers[0]: `a b` is not the name"),
            (json!({"headers": ["X-A", "Last-Event-ID"]}), "headers[1]: `Last-Event-ID` cannot be chosen"),
            (json!({"window_events": 0}), "window_events: must be from 1 to 1000000"),
            (json!({"window_bytes": 10}), "window_bytes: must be from 1024"),
            (json!({"heartbeat": 0}), "heartbeat: must be from 1 to 3600"),
            (json!({"window_events": 5, "replay_to_new": 6}), "replay_to_new: is more than `window_events` (5)"),
            (json!({"slow_client": "wait"}), "slow_client: `wait` is not an allowed value"),
        ] {
            let error = refused::<SseFanout>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }

    #[test]
    fn only_requests_for_event_streams_are_shared() {
        let plugin = build::<SseFanout>(json!({}));
        for (is_shared, head) in [
            (true, "GET / HTTP/1.1\nHost: a\nAccept: text/event-stream"),
            (true, "GET / HTTP/1.1\nHost: a\nAccept: text/html, text/Event-Stream;q=0.5"),
            (false, "GET / HTTP/1.1\nHost: a\nAccept: */*"),
            (false, "GET / HTTP/1.1\nHost: a"),
            (false, "POST / HTTP/1.1\nHost: a\nAccept: text/event-stream\nContent-Length: 0"),
            (false, "HEAD / HTTP/1.1\nHost: a\nAccept: text/event-stream"),
        ] {
            let mut exchange = exchange(head);
            on_request(&plugin, &mut exchange).expect("it passes");
            assert_eq!(exchange.responder().is_some(), is_shared, "{head}");
        }
    }
}
