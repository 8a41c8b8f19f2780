use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::proto::address::client_network;
use weir_plugin::proto::{Method, RequestHead};
use weir_plugin::{
    AnswersInPlace, Build, ConfigError, Content, Definition, Exchange, Flow, HasMetadata, Held, PerWorker, Plugin,
    PluginMetadata, Reply, ReplyField, ReplyHead, Responder, ResponderRequest, Responding, RouteUpstream, Stage, Stop,
};

mod blocks;
mod delays;
mod feed;
mod source;
mod streams;
mod totals;
mod window;

use crate::content::content_type;
use feed::{FeedClient, FeedItem, FeedStage, FeedWake, Feeds, JoinRequest, NewStream, OtherAnswer, WorkerFeeds};
use source::{FeedSource, RESERVED_BYTES, SourceTimes, shared_fields};
pub use streams::StreamLimit;
use streams::{OpenStreams, StreamLimits, StreamOwner, UpstreamStreamPermit};
use totals::FanoutTotals;
pub use totals::totals;
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
///
/// The kept events are held content (`held_content_max`), and count for the client whose request opened the stream. When it leaves,
/// or has no room for them, they and the stream count for another client of the stream. If a limit is reached, fewer events are
/// kept. The number of streams is limited by `max_streams` and by the options in `plugin_metadata`:
/// a request for one more stream gets 503, or 429 if its client has too many, and the streams that are open go on.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SseFanout {
    /// The header fields of requests that are sent to the upstream. Requests that differ in one of them do not share a
    /// stream.
    #[serde(default = "default_headers")]
    headers: Vec<String>,
    /// The maximum number of events that are kept for clients that reconnect or read slowly.
    #[serde(default = "default_events")]
    #[schemars(range(min = 1, max = 1_000_000))]
    window_events: usize,
    /// The maximum size of these events, in bytes. The newest event is always kept. An event may have at most 1 MiB. A client
    /// that has not got all of an event of more than 32 KiB when it is no longer kept is disconnected.
    #[serde(default = "default_bytes")]
    #[schemars(range(min = 1024, max = 1_073_741_824))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
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
    #[schemars(extend("x-weir-unit" = "s"))]
    heartbeat: u64,
    /// How long the stream of the upstream stays open after the last client has left, in seconds. At most four such streams
    /// stay open for one client address; they are closed early when a limit of streams is reached.
    #[serde(default = "default_keep_open")]
    #[schemars(range(min = 0, max = 3600))]
    #[schemars(extend("x-weir-unit" = "s"))]
    keep_open: u64,
    /// How long the gateway tries to reopen a broken stream, in seconds. Then the responses of its clients end.
    #[serde(default = "default_reconnect")]
    #[schemars(range(min = 1, max = 86400))]
    #[schemars(extend("x-weir-unit" = "s"))]
    reconnect_timeout: u64,
    /// The maximum number of streams of the upstream that are open at a time, shared and separate.
    #[serde(default = "default_streams")]
    #[schemars(range(min = 1, max = 1_000_000))]
    max_streams: usize,
}

/// The settings that apply to all uses of `sse-fanout`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SseFanoutMetadata {
    /// The maximum number of streams of upstreams that are open at a time, for all routes of the node.
    #[schemars(range(min = 1, max = 1_000_000))]
    max_streams: usize,
    /// The maximum number of these streams that were opened for one client address (IPv6: /64).
    #[schemars(range(min = 1, max = 1_000_000))]
    max_streams_per_client: usize,
}

impl Default for SseFanoutMetadata {
    fn default() -> SseFanoutMetadata {
        SseFanoutMetadata { max_streams: 8000, max_streams_per_client: 100 }
    }
}

impl HasMetadata for SseFanout {
    type Metadata = SseFanoutMetadata;
}

impl PluginMetadata for SseFanoutMetadata {}

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

fn default_streams() -> usize {
    2000
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
                build.fault(place, format!("`{name}` is not the name of a header field"));
            } else if NOT_TO_DEPEND_ON.iter().any(|own| own.eq_ignore_ascii_case(name)) {
                build.fault(place, format!("`{name}` cannot be chosen: the gateway sets it itself"));
            }
        }
        if self.replay_to_new > self.window_events {
            let problem = format!("is more than `window_events` ({}) keeps", self.window_events);
            build.fault("replay_to_new", problem);
        }
        let totals: Arc<FanoutTotals> = build.permanent(Self::NAME);
        let metadata = build.metadata::<SseFanout>();
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
            open: OpenRights {
                route: build.shared(Self::NAME, build.identity(), || RouteNumber(totals.open.route())).0,
                limits: StreamLimits {
                    route: self.max_streams,
                    client: metadata.max_streams_per_client,
                    node: metadata.max_streams,
                },
                streams: Arc::clone(&totals.open),
            },
            worker_feeds: build.per_worker(Self::NAME, build.identity(), {
                let totals = Arc::clone(&totals);
                move || WorkerFeeds::new(totals.delays.begin())
            }),
            totals,
        };
        Ok(Arc::new(FanoutPlugin(Arc::new(sharing))))
    }
}

/// Permits streams of upstreams.
struct OpenRights {
    /// The number of the plugin on its route.
    route: u64,
    limits: StreamLimits,
    streams: Arc<OpenStreams>,
}

/// The number of a plugin on its route, also after reloads.
struct RouteNumber(u64);

impl OpenRights {
    fn permit(&self, client: IpAddr) -> Result<UpstreamStreamPermit, Stop> {
        Ok(self.streams.open(StreamOwner { route: self.route, client }, self.limits)?)
    }

    fn shared_stream(&self, client: IpAddr) -> Result<NewStream, Stop> {
        let permit = self.permit(client)?;
        let mut held = Held::of(client);
        held.set(RESERVED_BYTES)?;
        Ok(NewStream { permit, held })
    }
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
    open: OpenRights,
    worker_feeds: PerWorker<WorkerFeeds>,
    totals: Arc<FanoutTotals>,
}

struct FanoutPlugin(Arc<StreamSharing>);

impl Plugin for FanoutPlugin {
    fn answers_in_place(&self) -> AnswersInPlace {
        AnswersInPlace::SomeRequests
    }

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
    let accepts = content_type::is_accepted(&request.head, b"text/event-stream");
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
            let ResponderRequest { head, client: address, upstream, .. } = request;
            let upstream = upstream.ok_or(Stop::NoUpstream)?;
            let id = head.head.value(b"last-event-id").map(<[u8]>::to_vec);
            let joining = ClientRequest { head: &head, address, last_event_id: id.as_deref(), upstream: &upstream };
            match self.sharing.join(&self.scope, &joining)? {
                Some((client, position)) => self.sharing.send(client, position, &mut reply).await,
                None => {
                    let _permit = self.sharing.open.permit(address)?;
                    forward(&self.sharing.upstream_request(&head, id.as_deref()), &upstream, &mut reply).await
                }
            }
        })
    }

    fn takes_made_content(&self) -> bool {
        false
    }
}

/// A request for an event stream.
struct ClientRequest<'a> {
    head: &'a RequestHead,
    address: IpAddr,
    last_event_id: Option<&'a [u8]>,
    upstream: &'a Rc<dyn RouteUpstream>,
}

impl StreamSharing {
    /// The key of the stream for a request; requests with equal keys share a stream.
    fn key(&self, scope: &str, head: &RequestHead) -> Vec<u8> {
        let query = head.query();
        let fields = self.headers.iter().flat_map(|name| head.head.values(name).chain([&b""[..]]));
        let parts = [scope.as_bytes(), head.authority(), head.unmerged_path(), query.unwrap_or_default()];
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
    ///
    /// # Errors
    /// There is none, and a limit allows no other.
    fn join(&self, scope: &str, request: &ClientRequest<'_>) -> Result<Option<(FeedClient, u64)>, Stop> {
        let ClientRequest { head, address, last_event_id, upstream } = *request;
        let key = self.key(scope, head);
        let joined = self.worker_feeds.get().join(
            &self.feeds,
            &JoinRequest {
                key: &key,
                last_event_id,
                upstream,
                limits: self.limits,
                heartbeat: self.heartbeat,
                totals: &self.totals,
                permit: &|| self.open.shared_stream(address),
            },
        )?;
        let worker_feed = joined.worker_feed;
        if let Some((feed, NewStream { permit, held })) = joined.new_feed {
            let source = FeedSource {
                feeds: Arc::clone(&self.feeds),
                key: key.into(),
                feed,
                upstream: Rc::clone(&worker_feed.upstream),
                request: self.upstream_request(head, None),
                times: self.times,
                permit: RefCell::new(permit),
                owner: Cell::new(client_network(address)),
                held: RefCell::new(held),
            };
            tokio::task::spawn_local(source.run());
        }
        let position = worker_feed
            .position(last_event_id, self.replay_to_new)
            .or_else(|| (self.unknown_event_id == UnknownEventId::Join).then(|| worker_feed.end()));
        Ok(position.map(|position| (worker_feed.client(address), position)))
    }

    async fn send(&self, mut client: FeedClient, position: u64, reply: &mut Reply) -> Result<(), Stop> {
        match client.opened().await {
            FeedStage::Open(fields) => {
                reply.begin_with(ReplyHead { status: 200, fields: fields.to_vec() });
                self.follow(client, position, reply).await
            }
            FeedStage::Refused(other) => {
                let OtherAnswer { status, fields, content, .. } = &*other;
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
                    if !send_while_kept(&client, position, &block.bytes, reply).await {
                        self.totals.missed.add(1);
                        return Ok(());
                    }
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

/// The largest event that is kept for a client that reads it slowly when the window does not keep it any more.
const MOST_KEPT_FOR_CLIENT: usize = 32 << 10;

/// Sends an event. `false`: it is large and not kept any more before the client has got all of it. The client discards what it
/// got, as the event has no end (HTML Living Standard §9.2.6).
async fn send_while_kept(client: &FeedClient, position: u64, event: &[u8], reply: &mut Reply) -> bool {
    if event.len() <= MOST_KEPT_FOR_CLIENT {
        reply.send(event).await;
        return true;
    }
    tokio::select! {
        biased;
        () = reply.send(event) => true,
        () = client.displaced(position) => false,
    }
}

/// Forwards a separate stream for one client, without sharing.
async fn forward(request: &RequestHead, upstream: &Rc<dyn RouteUpstream>, reply: &mut Reply) -> Result<(), Stop> {
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
