//! One exchange, as seen by plugins, variables and logs: a request, its response, and the attempts at an upstream.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use weir_proto::field::Name;
use weir_proto::{Known, RequestHead, ResponseHead, Trailers};

use crate::claims::CallerClaims;
use crate::client_gateway::ClientGateway;
use crate::consumer::{Consumer, Credential};
use crate::content_buffer::ContentBuffer;
use crate::first_bytes::FirstBytes;
use crate::held::Held;
use crate::page::PageRequest;
use crate::publishing::{DeliveryQuota, PublishQuota, PublishRefusal};
use crate::responder::{Responder, ResponderRequest};
use crate::route_upstream::RouteUpstream;
use crate::stop::Stop;
use crate::tls::Tls;

mod bare;
mod logged;
mod masked;
mod post_path;
mod stream_variables;
mod uri_parameters;
mod variables;

pub use bare::BareExchange;
pub use logged::LoggedExchange;
pub use masked::BodyMask;
pub use uri_parameters::{UriParameters, UriTemplate, uri_fits};

/// One request and its response. Owned by one worker and reused for the next exchange, so that an ordinary exchange allocates
/// nothing.
#[derive(Debug)]
pub struct Exchange {
    pub request: RequestHead,
    pub response: ResponseHead,
    /// The body of a response made by the gateway itself.
    pub body: Vec<u8>,
    pub client: ClientFacts,
    /// The TLS of the client's connection; `None` for plain text.
    pub tls: Option<Rc<Tls>>,
    /// The matched route; `None` before routing and if no route matched.
    pub route: Option<MatchedRoute>,
    /// The values of the parameters in the route's `uri`.
    pub uri_parameters: Option<Box<UriParameters>>,
    diverted: Option<u32>,
    pub upstream: AttemptRecord,
    /// When the first byte of the request was received, in nanoseconds of the worker's monotonic clock.
    pub started_ns: u64,
    /// When the exchange ended, on the same clock; set before `on_log`.
    pub ended_ns: u64,
    /// Bytes received from the client for this request, head and body as framed on the wire.
    pub request_bytes: u64,
    /// Bytes sent to the client, head included.
    pub response_bytes: u64,
    /// Bytes of response content sent to the client, without head and framing.
    pub body_bytes: u64,
    /// Limit of the request's content in bytes; `u64::MAX` is no limit. A larger one is answered with 413.
    pub body_limit: u64,
    responded_locally: bool,
    /// The client's certificate was verified as the host of this request demands it of its clients. A certificate that only another
    /// server name of this node demands does not count.
    pub client_is_proved: bool,
    stop: Option<Stop>,
    /// The client's credential, with its consumer; set by [`Exchange::identify`].
    pub identity: Option<Arc<Credential>>,
    /// Data plugins keep from one phase to the next.
    pub notes: Notes,
    rare: Option<Box<RareParts>>,
}

/// How fast content is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseRate {
    pub bytes_per_second: NonZeroU64,
    /// Bytes at the beginning that are sent without a limit.
    pub at_once: u64,
}

impl ResponseRate {
    /// The highest rate that can be set, in bytes per second.
    pub const MOST: u64 = 1_000_000_000_000;
}

/// Parts that few exchanges need, behind one pointer to keep the others small. Once allocated, it is reused.
#[derive(Debug, Default)]
struct RareParts {
    responder: Option<Arc<dyn Responder>>,
    /// No other responder may take its place.
    responder_stays: bool,
    /// A plugin has set another one nevertheless.
    responders_collide: bool,
    earlier: Vec<AttemptRecord>,
    before_retry: Vec<RetryRewrite>,
    request_body: Option<Vec<u8>>,
    /// The share of the held-content budget for `request_body`.
    held: Held,
    remote_user: Vec<u8>,
    request_id: Vec<u8>,
    secret_arguments: Vec<Arc<[u8]>>,
    identity_ends_at: Option<Duration>,
    token_claims: Option<CallerClaims>,
    /// The answer to a WebSocket's handshake for which the upstream chooses no subprotocol.
    websocket_protocol: Option<Arc<[u8]>>,
    /// The copy with masked secrets that records show instead.
    shown: Option<Box<Exchange>>,
    body_masks: Vec<Arc<dyn BodyMask>>,
    publish_quotas: Vec<Arc<dyn PublishQuota>>,
    delivery_quotas: Vec<Result<DeliveryQuota, PublishRefusal>>,
    personal_fields: Vec<Box<[u8]>>,
    /// What an authorization service has told of the request: names and values.
    authorization_metadata: Vec<(Box<str>, Box<[u8]>)>,
    /// What an external processor has told of the exchange: names and values.
    processor_metadata: Vec<(Box<str>, Box<[u8]>)>,
    refused_by: &'static str,
    /// What the plugin at work depends on has failed.
    service_failed: bool,
    /// `Some` in a traced exchange.
    turns: Option<Vec<PluginTurn>>,
    carrier: Option<Rc<Exchange>>,
    time_limit: Option<Duration>,
    /// Those of a response that plugins receive as a whole, while they do.
    response_trailers: Trailers,
    page: Option<Box<PageRequest>>,
    response_rate: Option<ResponseRate>,
}

impl RareParts {
    fn clear(&mut self) {
        let RareParts {
            responder,
            responder_stays,
            responders_collide,
            earlier,
            before_retry,
            request_body,
            held,
            remote_user,
            request_id,
            secret_arguments,
            identity_ends_at,
            token_claims,
            websocket_protocol,
            shown,
            body_masks,
            publish_quotas,
            delivery_quotas,
            personal_fields,
            authorization_metadata,
            processor_metadata,
            refused_by,
            service_failed,
            turns,
            carrier,
            time_limit,
            response_trailers,
            page,
            response_rate,
        } = self;
        (*responder, *request_body, *held, *identity_ends_at) = (None, None, Held::default(), None);
        (*responder_stays, *responders_collide, *service_failed) = (false, false, false);
        (*token_claims, *websocket_protocol, *shown, *refused_by, *turns) = (None, None, None, "", None);
        (*carrier, *time_limit, *response_trailers, *page) = (None, None, Trailers::default(), None);
        *response_rate = None;
        body_masks.clear();
        publish_quotas.clear();
        delivery_quotas.clear();
        personal_fields.clear();
        authorization_metadata.clear();
        processor_metadata.clear();
        earlier.clear();
        before_retry.clear();
        remote_user.clear();
        request_id.clear();
        secret_arguments.clear();
    }
}

/// The duration of a plugin's turn in one phase of a traced exchange, including waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PluginTurn {
    pub plugin: &'static str,
    /// `request` or `response`.
    pub phase: &'static str,
    pub ns: u64,
}

/// The fields that give the client's identity to the upstream.
static IDENTITY: LazyLock<[Name; 3]> = LazyLock::new(|| {
    [&b"X-Consumer-Username"[..], b"X-Consumer-Custom-ID", b"X-Credential-Identifier"]
        .map(|name| Name::new(name).expect("it is a token"))
});

/// The key of a plugin's notes in every exchange: unique in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoteKey(u64);

impl NoteKey {
    /// The key of [`Exchange::sampled_trace`].
    const SAMPLED_TRACE: NoteKey = NoteKey(0);

    /// A new key, made when a plugin is built.
    pub fn unique() -> NoteKey {
        static NEXT: AtomicU64 = AtomicU64::new(NoteKey::SAMPLED_TRACE.0 + 1);
        NoteKey(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The most bytes that are reserved for content before it is there: an announced length is not to be trusted.
const MAX_RESERVED: usize = 1 << 20;
/// Room for what a plugin appends to complete content, in bytes.
const APPENDED: usize = 8;

/// A copy of content that a plugin collects for its log.
pub type Kept = Rc<RefCell<KeptContent>>;

/// A copy of content, counted against the held-content budget. If the budget is used up, the copy ends, and the exchange goes
/// on.
#[derive(Debug, Default)]
pub struct KeptContent {
    bytes: ContentBuffer,
    /// The length that the content is expected to have, for which memory is reserved with the first piece.
    expected: usize,
    held: Held,
    is_cut: bool,
    has_ended: bool,
}

impl KeptContent {
    pub fn extend(&mut self, piece: &[u8]) {
        self.is_cut |= self.held.set((self.bytes.len() + piece.len()) as u64).is_err();
        if self.is_cut {
            return;
        }
        if self.bytes.capacity() == 0 {
            let length = self.expected.min(MAX_RESERVED).max(piece.len());
            self.bytes = ContentBuffer::with_capacity(length + APPENDED);
        }
        self.bytes.extend_from_slice(piece);
    }

    /// The content will have this length, in bytes, if its sender keeps its word.
    pub fn expect(&mut self, length: usize) {
        self.expected = length;
    }

    /// The end of the content is missing, for want of budget.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Marks the content as complete.
    pub fn end(&mut self) {
        self.has_ended = true;
    }

    /// All content was seen. `false` if the exchange ended before.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The bytes, and their share of the budget.
    pub fn take(&mut self) -> (ContentBuffer, Held) {
        (std::mem::take(&mut self.bytes), std::mem::take(&mut self.held))
    }
}

impl Deref for KeptContent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Plugins' data about an exchange: three numbers, content, a value that others share, or what the first bytes of a stream tell. Few plugins
/// have any, so a list is the fastest map.
#[derive(Clone, Debug, Default)]
pub struct Notes(Option<Box<NoteLists>>);

#[derive(Clone, Debug, Default)]
struct NoteLists {
    numbers: Vec<(NoteKey, [u64; 3])>,
    kept: Vec<(NoteKey, Kept)>,
    values: Vec<(NoteKey, Arc<dyn Any + Send + Sync>)>,
    first_bytes: Option<Rc<FirstBytes>>,
    mqtt_client_id: Option<Box<str>>,
}

fn replace_value(all: &mut Vec<(Box<str>, Box<[u8]>)>, name: &str, value: &[u8]) {
    all.retain(|(other, _)| **other != *name);
    all.push((name.into(), value.into()));
}

impl Notes {
    /// Stores a note; it hides an earlier one under the same key.
    pub fn write(&mut self, key: NoteKey, note: [u64; 3]) {
        self.0.get_or_insert_default().numbers.push((key, note));
    }

    pub fn read(&self, key: NoteKey) -> Option<[u64; 3]> {
        self.0.as_ref()?.numbers.iter().rev().find(|(at, _)| *at == key).map(|(_, note)| *note)
    }

    /// Begins a copy of content under a key, for this client's exchange; an earlier one is dropped.
    pub fn keep(&mut self, key: NoteKey, client: IpAddr) -> Kept {
        let lists = self.0.get_or_insert_default();
        lists.kept.retain(|(at, _)| *at != key);
        let kept = Rc::new(RefCell::new(KeptContent { held: Held::of(client), ..KeptContent::default() }));
        lists.kept.push((key, Rc::clone(&kept)));
        kept
    }

    /// The copy of content under a key.
    pub fn kept(&self, key: NoteKey) -> Option<&Kept> {
        self.0.as_ref()?.kept.iter().find(|(at, _)| *at == key).map(|(_, kept)| kept)
    }

    /// The length of the copy of content under a key, in bytes.
    pub fn kept_bytes(&self, key: NoteKey) -> usize {
        self.kept(key).map_or(0, |kept| kept.borrow().len())
    }

    /// Whether any copy of content exists.
    pub fn keep_content(&self) -> bool {
        self.0.as_ref().is_some_and(|lists| !lists.kept.is_empty())
    }

    /// Holds a value under a key until it is released or the exchange has ended; an earlier one is dropped.
    pub fn hold<T: Send + Sync + 'static>(&mut self, key: NoteKey, value: Arc<T>) {
        let lists = self.0.get_or_insert_default();
        lists.values.retain(|(at, _)| *at != key);
        lists.values.push((key, value));
    }

    /// The value that is held under a key.
    pub fn held<T: Send + Sync + 'static>(&self, key: NoteKey) -> Option<Arc<T>> {
        let (_, value) = self.0.as_ref()?.values.iter().find(|(at, _)| *at == key)?;
        Arc::clone(value).downcast().ok()
    }

    /// Drops the value that is held under a key.
    pub fn release(&mut self, key: NoteKey) {
        if let Some(lists) = &mut self.0 {
            lists.values.retain(|(at, _)| *at != key);
        }
    }

    /// Removes all notes; memory is kept.
    fn clear(&mut self) {
        if let Some(lists) = &mut self.0 {
            lists.numbers.clear();
            lists.values.clear();
            lists.kept.clear();
            (lists.first_bytes, lists.mqtt_client_id) = (None, None);
        }
    }
}

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientProtocol {
    Http,
    /// Bytes of any protocol: the exchange is a stream.
    Tcp,
    /// Datagrams of any protocol: the same.
    Udp,
}

impl ClientProtocol {
    /// Whether the exchange is one without HTTP.
    pub fn is_stream(self) -> bool {
        self != ClientProtocol::Http
    }
}

/// The client side of an exchange.
#[derive(Clone, Copy, Debug)]
pub struct ClientFacts {
    /// The remote address of the connection.
    pub peer: SocketAddr,
    /// The local address of the connection.
    pub local: SocketAddr,
    /// The client's address for policies: the peer's, or the one a trusted peer reported.
    pub addr: IpAddr,
    /// The client's port: the peer's, or the one `real-ip` found with the address.
    pub port: u16,
    /// The port that clients use, which is that of `local` unless the listener says otherwise.
    pub public_port: u16,
    /// The peer is trusted, so its `X-Forwarded-*` and `Forwarded` fields are used.
    pub trusted: bool,
    /// The client's connection uses TLS, which ends in the gateway.
    pub tls: bool,
    pub protocol: ClientProtocol,
    /// A number for the connection, unique in this process, and the number of this request on it (from 1).
    pub connection: u64,
    pub connection_requests: u64,
}

impl ClientFacts {
    /// The facts at the start of a request on another connection of the same peer, before plugins and listeners have told more.
    pub fn of_another_connection(self, connection: u64) -> ClientFacts {
        let ClientFacts { peer, local, .. } = self;
        let (addr, port, public_port) = (peer.ip(), peer.port(), local.port());
        ClientFacts { addr, port, public_port, trusted: false, connection, connection_requests: 1, ..self }
    }
}

/// No client.
impl Default for ClientFacts {
    fn default() -> ClientFacts {
        let nowhere = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        ClientFacts {
            peer: nowhere,
            local: nowhere,
            addr: nowhere.ip(),
            port: nowhere.port(),
            public_port: nowhere.port(),
            trusted: false,
            tls: false,
            protocol: ClientProtocol::Http,
            connection: 0,
            connection_requests: 0,
        }
    }
}

/// One attempt at an upstream. Times are nanoseconds of the worker's clock, 0 while unknown.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttemptRecord {
    pub addr: Option<SocketAddr>,
    /// The connection to the endpoint uses TLS.
    pub tls: bool,
    /// The status of the endpoint's response, before any plugin changed it.
    pub status: u16,
    /// Why the attempt failed, if it did.
    pub failure: Option<Stop>,
    /// The error number of the operating system for which no connection was opened; 0 if there was none.
    pub os_error: i32,
    pub attempts: u16,
    /// How long the exchange waited in the gateway for its turn at the endpoint, before the attempt began, in microseconds.
    pub queue_us: u32,
    /// When the last attempt began, was connected, had sent the request, had received the response head, and its end.
    pub started_ns: u64,
    pub connect_ns: u64,
    pub sent_ns: u64,
    pub header_ns: u64,
    pub ended_ns: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Content received, without framing.
    pub body_bytes: u64,
}

impl AttemptRecord {
    /// The time from the request to the head of the response, in nanoseconds.
    pub fn head_ns(&self) -> u64 {
        self.header_ns.saturating_sub(self.sent_ns.max(self.connect_ns))
    }
}

/// Changes a request before it is sent again.
pub type RetryRewrite = fn(&mut Exchange);

/// The routes of a configuration, by number.
pub trait Routes {
    fn facts(&self, route: usize) -> &RouteFacts;
}

/// A matched route. It keeps its configuration alive through an `Rc` of the worker, so no atomic counter is shared.
#[derive(Clone)]
pub struct MatchedRoute {
    routes: Rc<dyn Routes>,
    number: usize,
}

impl MatchedRoute {
    pub fn new(routes: Rc<dyn Routes>, number: usize) -> MatchedRoute {
        MatchedRoute { routes, number }
    }

    pub fn number(&self) -> usize {
        self.number
    }
}

impl Deref for MatchedRoute {
    type Target = RouteFacts;

    fn deref(&self) -> &RouteFacts {
        self.routes.facts(self.number)
    }
}

impl fmt::Debug for MatchedRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// The identity of a route, for variables, logs and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteFacts {
    pub route_id: Box<str>,
    pub route_name: Box<str>,
    pub service_id: Box<str>,
    pub service_name: Box<str>,
    pub uris: Box<[Box<str>]>,
    /// Those of the route, or else of its service.
    pub hosts: Box<[Box<str>]>,
    /// Those of its `uris` that contain parameters.
    pub templates: Box<[UriTemplate]>,
}

impl RouteFacts {
    /// The route's `uri`; empty if it has several.
    pub fn uri(&self) -> &str {
        match &*self.uris {
            [uri] => uri,
            _ => "",
        }
    }

    /// The one of `uris` that fits a canonical path best: the one with the longest text before a parameter or `*`. Empty if none fits.
    pub fn matched_uri(&self, path: &[u8]) -> &str {
        if let [uri] = &*self.uris {
            return uri;
        }
        let fitting = self.uris.iter().map(|uri| &**uri).filter(|uri| uri_fits(uri, path));
        fitting.max_by_key(|uri| (uri.split(['*', ':']).next().map(str::len), !uri.contains(['*', ':']))).unwrap_or("")
    }
}

impl Default for Exchange {
    fn default() -> Exchange {
        Exchange {
            request: RequestHead::default(),
            response: ResponseHead::default(),
            body: Vec::new(),
            client: ClientFacts::default(),
            tls: None,
            route: None,
            uri_parameters: None,
            diverted: None,
            upstream: AttemptRecord::default(),
            started_ns: 0,
            ended_ns: 0,
            request_bytes: 0,
            response_bytes: 0,
            body_bytes: 0,
            body_limit: u64::MAX,
            responded_locally: false,
            client_is_proved: false,
            stop: None,
            identity: None,
            notes: Notes::default(),
            rare: None,
        }
    }
}

impl Exchange {
    /// Resets the exchange for the next request; memory is kept, and so are the facts about the client, which every exchange
    /// sets when it begins.
    pub fn clear(&mut self) {
        self.request.clear();
        self.response.clear();
        self.body.clear();
        self.tls = None;
        self.route = None;
        self.uri_parameters = None;
        self.diverted = None;
        self.upstream = AttemptRecord::default();
        self.started_ns = 0;
        self.ended_ns = 0;
        self.request_bytes = 0;
        self.response_bytes = 0;
        self.body_bytes = 0;
        self.body_limit = u64::MAX;
        self.responded_locally = false;
        self.client_is_proved = false;
        self.stop = None;
        self.identity = None;
        self.notes.clear();
        if let Some(rare) = &mut self.rare {
            rare.clear();
        }
    }

    /// Counts the request's held content as `bytes` in total.
    ///
    /// # Errors
    /// The budget of the node or of the client is used up.
    pub fn hold(&mut self, bytes: u64) -> Result<(), Stop> {
        let held = &mut self.rare.get_or_insert_default().held;
        if held.is_empty() {
            *held = Held::of(self.client.addr);
        }
        Ok(held.set(bytes)?)
    }

    /// Bytes allocated for its heads and the response body, which are kept between exchanges.
    pub fn capacity(&self) -> usize {
        self.request.head.capacity() + self.response.head.capacity() + self.body.capacity()
    }

    /// Responds from the gateway: `return Err(exchange.respond(401, "application/json", br#"{"message":"no"}"#))`. More fields
    /// can be added to `exchange.response.head` before returning.
    pub fn respond(&mut self, status: u16, content_type: &str, body: &[u8]) -> Stop {
        self.responded_locally = true;
        self.response.clear();
        self.response.status = status;
        self.body.clear();
        self.body.extend_from_slice(body);
        if self.response.head.add(b"Content-Type", content_type.as_bytes()).is_err() {
            return Stop::Internal;
        }
        Stop::Answered
    }

    /// Takes back the answer of [`Exchange::respond`], for a plugin that runs others and lets the request pass after all.
    pub fn withdraw_response(&mut self) {
        self.responded_locally = false;
        self.response.clear();
        self.body.clear();
    }

    /// The response was made here, and is not the upstream's.
    pub fn is_answered_here(&self) -> bool {
        self.responded_locally || self.stop.is_some() || self.upstream.status == 0
    }

    /// Declares that the response in the exchange replaces the upstream's; [`Exchange::respond`] does this, too.
    pub fn replace_response(&mut self) {
        self.responded_locally = true;
    }

    /// Why the exchange ended early; `None` for an ordinary response.
    pub fn stop(&self) -> Option<Stop> {
        self.stop
    }

    /// Sets why the exchange ended early. A plugin returns its `Stop` instead of calling this.
    pub fn end_by(&mut self, stop: Stop) {
        self.stop = Some(stop);
    }

    /// Sends the exchange to an upstream other than its route's, by number: see [`crate::Build::upstream`]. `None` selects the
    /// route's own.
    pub fn divert_to(&mut self, upstream: impl Into<Option<u32>>) {
        self.diverted = upstream.into();
    }

    /// The number of the upstream a plugin selected instead of the route's.
    pub fn diverted_to(&self) -> Option<u32> {
        self.diverted
    }

    /// Lets a responder answer the exchange instead of an upstream, once all plugins have let the request pass.
    pub fn answer_by(&mut self, responder: &Arc<dyn Responder>) {
        let rare = self.rare.get_or_insert_default();
        rare.responders_collide |= rare.responder_stays;
        rare.responder = Some(Arc::clone(responder));
    }

    /// The same for a responder without which no request may pass: with another one, before or after it, the exchange fails.
    pub fn answer_only_by(&mut self, responder: &Arc<dyn Responder>) {
        let rare = self.rare.get_or_insert_default();
        rare.responders_collide |= rare.responder.is_some();
        (rare.responder_stays, rare.responder) = (true, Some(Arc::clone(responder)));
    }

    /// Plugins have set responders that cannot answer together.
    pub fn responders_collide(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.responders_collide)
    }

    /// The responder that answers the exchange, if a plugin has set one.
    pub fn responder(&self) -> Option<&Arc<dyn Responder>> {
        self.rare.as_ref()?.responder.as_ref()
    }

    /// Has the page of an upstream take the place of the answer, for a plugin that replaces the response. If there is no page, the
    /// answer stays, with the gateway's own page if it has none.
    pub fn ask_for_page(&mut self, request: PageRequest) {
        self.rare.get_or_insert_default().page = Some(Box::new(request));
    }

    /// The page that is to take the place of the answer.
    pub fn take_page_request(&mut self) -> Option<Box<PageRequest>> {
        self.rare.as_mut()?.page.take()
    }

    /// The attempts before the one in `upstream`, in order.
    pub fn earlier(&self) -> &[AttemptRecord] {
        self.rare.as_ref().map_or(&[], |rare| &rare.earlier)
    }

    /// Records the attempt in `upstream` as failed; another one follows.
    pub fn retry(&mut self) {
        let rare = self.rare.get_or_insert_default();
        rare.earlier.push(self.upstream);
        if !rare.before_retry.is_empty() {
            let rewrites = std::mem::take(&mut rare.before_retry);
            rewrites.iter().for_each(|rewrite| rewrite(self));
            self.rare.get_or_insert_default().before_retry = rewrites;
        }
    }

    /// Registers a change of the request before each further attempt, for what must differ between attempts.
    pub fn before_retry(&mut self, rewrite: RetryRewrite) {
        self.rare.get_or_insert_default().before_retry.push(rewrite);
    }

    /// The whole content of the request, if a plugin has read it; this is what is sent upstream.
    pub fn request_body(&self) -> Option<&[u8]> {
        self.rare.as_ref()?.request_body.as_deref()
    }

    /// Sets the content that is sent upstream. A plugin that may receive content ([`crate::Phases::request_body`]) may give some to a
    /// request without content in `on_request`.
    pub fn set_request_body(&mut self, body: Vec<u8>) {
        self.rare.get_or_insert_default().request_body = Some(body);
    }

    pub fn take_request_body(&mut self) -> Option<Vec<u8>> {
        self.rare.as_mut()?.request_body.take()
    }

    /// The user name that `basic-auth` has read, since it may have removed the field; empty without that plugin.
    pub fn remote_user(&self) -> &[u8] {
        self.rare.as_ref().map_or(&[], |rare| &rare.remote_user)
    }

    pub fn set_remote_user(&mut self, name: Vec<u8>) {
        self.rare.get_or_insert_default().remote_user = name;
    }

    /// The id that `request-id` has found in the request or generated; empty without that plugin.
    pub fn request_id(&self) -> &[u8] {
        self.rare.as_ref().map_or(&[], |rare| &rare.request_id)
    }

    pub fn set_request_id(&mut self, id: Vec<u8>) {
        self.rare.get_or_insert_default().request_id = id;
    }

    /// Names of query arguments that are secrets: logs mask their values.
    pub fn secret_arguments(&self) -> &[Arc<[u8]>] {
        self.rare.as_ref().map_or(&[], |rare| &rare.secret_arguments)
    }

    /// Makes logs mask the values of query arguments with this name.
    pub fn hide_argument(&mut self, name: Arc<[u8]>) {
        self.rare.get_or_insert_default().secret_arguments.push(name);
    }

    /// The ids of the trace and of the gateway's span in it (W3C Trace Context), if the exchange was sampled. Metrics name them in
    /// exemplars.
    pub fn sampled_trace(&self) -> Option<(u128, u64)> {
        let [high, low, span] = self.notes.read(NoteKey::SAMPLED_TRACE)?;
        Some((u128::from(high) << 64 | u128::from(low), span))
    }

    /// Sets the ids; those that were set last count.
    pub fn set_sampled_trace(&mut self, trace: u128, span: u64) {
        self.notes.write(NoteKey::SAMPLED_TRACE, [(trace >> 64) as u64, trace as u64, span]);
    }

    /// The first bytes of a stream's client, for a plugin with [`Phases::first_bytes`](crate::Phases::first_bytes) in its request phase.
    /// `None` for datagrams and requests, which have none.
    pub fn first_bytes(&self) -> Option<Rc<FirstBytes>> {
        self.notes.0.as_ref()?.first_bytes.clone()
    }

    pub fn offer_first_bytes(&mut self, first_bytes: Rc<FirstBytes>) {
        self.notes.0.get_or_insert_default().first_bytes = Some(first_bytes);
    }

    /// Ends the time in which plugins can read them.
    pub fn withdraw_first_bytes(&mut self) -> Option<Rc<FirstBytes>> {
        self.notes.0.as_mut()?.first_bytes.take()
    }

    /// The client identifier of a connection of MQTT, if a plugin has read it. It is never empty.
    pub fn mqtt_client_id(&self) -> Option<&str> {
        self.notes.0.as_ref()?.mqtt_client_id.as_deref()
    }

    pub fn set_mqtt_client_id(&mut self, id: Box<str>) {
        self.notes.0.get_or_insert_default().mqtt_client_id = Some(id).filter(|id| !id.is_empty());
    }

    /// The plugin that ended the exchange; empty if none did.
    pub fn refused_by(&self) -> &'static str {
        self.rare.as_ref().map_or("", |rare| rare.refused_by)
    }

    pub fn set_refused_by(&mut self, plugin: &'static str) {
        self.rare.get_or_insert_default().refused_by = plugin;
    }

    /// Says that something that the plugin at work depends on has failed, such as the service that it asks. This counts as an error of the
    /// plugin, whatever becomes of the request.
    pub fn note_service_failure(&mut self) {
        self.rare.get_or_insert_default().service_failed = true;
    }

    /// Whether the plugin that was at work has said so.
    pub fn take_service_failure(&mut self) -> bool {
        self.rare.as_mut().is_some_and(|rare| std::mem::take(&mut rare.service_failed))
    }

    /// The request in whose content this one has come, as its client has sent it on its connection. `None` if the client has sent this
    /// one by itself.
    pub fn carrier(&self) -> Option<&Rc<Exchange>> {
        self.rare.as_ref()?.carrier.as_ref()
    }

    pub fn set_carrier(&mut self, carrier: Rc<Exchange>) {
        self.rare.get_or_insert_default().carrier = Some(carrier);
    }

    /// The rate at which the content of the response is sent to the client; `None` if it is not limited.
    pub fn response_rate(&self) -> Option<ResponseRate> {
        self.rare.as_ref()?.response_rate
    }

    /// Limits the rate at which the content of a response of the upstream is sent to the client. It has to be called in
    /// [`crate::Plugin::response_filter`]. Of several limits, the one with the lowest rate counts, as a whole.
    pub fn limit_response_rate(&mut self, rate: ResponseRate) {
        let known = &mut self.rare.get_or_insert_default().response_rate;
        let strictness = |rate: &ResponseRate| (rate.bytes_per_second, rate.at_once);
        *known = Some(known.map_or(rate, |known| std::cmp::min_by_key(known, rate, strictness)));
    }

    /// The most time that the exchange may take from its beginning, if a plugin has set one.
    pub fn time_limit(&self) -> Option<Duration> {
        self.rare.as_ref()?.time_limit
    }

    /// Limits the time of the exchange, as `request_timeout` of a route does; the shortest limit counts.
    pub fn limit_time(&mut self, most: Duration) {
        let limit = &mut self.rare.get_or_insert_default().time_limit;
        *limit = Some(limit.map_or(most, |known| known.min(most)));
    }

    /// The trailers of the response, of which [`crate::Plugin::on_response_body`] receives the whole content. It may take them.
    pub fn response_trailers(&mut self) -> &mut Trailers {
        &mut self.rare.get_or_insert_default().response_trailers
    }

    /// Starts recording the duration of each plugin's turn.
    pub fn trace(&mut self) {
        self.rare.get_or_insert_default().turns = Some(Vec::new());
    }

    /// The plugins' turns, if the exchange is traced.
    pub fn turns(&self) -> Option<&[PluginTurn]> {
        self.rare.as_ref()?.turns.as_deref()
    }

    /// Records a plugin's turn, if the exchange is traced.
    pub fn note_turn(&mut self, turn: PluginTurn) {
        if let Some(turns) = self.rare.as_mut().and_then(|rare| rare.turns.as_mut()) {
            turns.push(turn);
        }
    }

    /// When the proof of the client's identity expires, as a duration since 1970; `None` if unknown. For streams, which may
    /// outlive it.
    pub fn identity_ends_at(&self) -> Option<Duration> {
        self.rare.as_ref()?.identity_ends_at
    }

    /// Of several proofs, such as a certificate and a token, the one that ends first counts.
    pub fn set_identity_ends_at(&mut self, end: Duration) {
        let known = &mut self.rare.get_or_insert_default().identity_ends_at;
        *known = Some(known.map_or(end, |known| known.min(end)));
    }

    /// The claims of the token that an auth plugin has verified, if one has.
    pub fn token_claims(&self) -> Option<&CallerClaims> {
        self.rare.as_ref()?.token_claims.as_ref()
    }

    pub fn set_token_claims(&mut self, claims: CallerClaims) {
        self.rare.get_or_insert_default().token_claims = Some(claims);
    }

    /// Chooses one of the subprotocols that the client offers (RFC 6455 §4.2.2), in case the upstream chooses none.
    pub fn choose_websocket_protocol(&mut self, name: Arc<[u8]>) {
        self.rare.get_or_insert_default().websocket_protocol = Some(name);
    }

    /// The subprotocol that a plugin has chosen.
    pub fn chosen_websocket_protocol(&self) -> Option<&Arc<[u8]>> {
        self.rare.as_ref()?.websocket_protocol.as_ref()
    }

    /// The request for a responder, with the upstream and the gateway that the responder may call in turn.
    pub fn responder_request(
        &self,
        upstream: Option<Rc<dyn RouteUpstream>>,
        gateway: Option<Rc<dyn ClientGateway>>,
    ) -> ResponderRequest {
        ResponderRequest {
            head: self.request.clone(),
            client: self.client.addr,
            identity: self.identity.clone(),
            claims: self.token_claims().cloned(),
            publish_quotas: self.rare.as_ref().map(|rare| rare.publish_quotas.clone()).unwrap_or_default(),
            delivery_quotas: match &self.rare {
                Some(rare) => rare.delivery_quotas.iter().cloned().collect(),
                None => Ok(Vec::new()),
            },
            personal_fields: self.personal_fields().into(),
            upstream,
            gateway,
            may_upgrade: self.request.upgrade,
        }
    }

    /// Declares that a plugin has set this request field to something about the client: a response may depend on it, and is
    /// not for clients with another value.
    pub fn mark_personal(&mut self, name: &[u8]) {
        self.rare.get_or_insert_default().personal_fields.push(name.into());
    }

    /// The names of the request fields with something about the client.
    pub fn personal_fields(&self) -> &[Box<[u8]>] {
        self.rare.as_ref().map_or(&[], |rare| &rare.personal_fields)
    }

    /// Sets what an authorization service has told of the request, for the variables `ext_authz_NAME`. A later value of a name
    /// replaces an earlier one.
    pub fn set_authorization_metadata(&mut self, name: &str, value: &[u8]) {
        replace_value(&mut self.rare.get_or_insert_default().authorization_metadata, name, value);
    }

    /// Sets what an external processor has told of the exchange, for the variables `ext_proc_NAME`. A later value of a name replaces an
    /// earlier one.
    pub fn set_processor_metadata(&mut self, name: &str, value: &[u8]) {
        replace_value(&mut self.rare.get_or_insert_default().processor_metadata, name, value);
    }

    /// The value of a name in the metadata of an external processor.
    pub fn processor_metadata(&self, name: &str) -> Option<&[u8]> {
        let all = &self.rare.as_ref()?.processor_metadata;
        all.iter().find(|(known, _)| **known == *name).map(|(_, value)| &**value)
    }

    /// The value of a name in the metadata of an authorization service.
    pub fn authorization_metadata(&self, name: &str) -> Option<&[u8]> {
        let all = &self.rare.as_ref()?.authorization_metadata;
        all.iter().find(|(known, _)| **known == *name).map(|(_, value)| &**value)
    }

    /// Adds a quota that each event must pass if the request publishes events to a hub.
    pub fn limit_publishing(&mut self, quota: Arc<dyn PublishQuota>) {
        self.rare.get_or_insert_default().publish_quotas.push(quota);
    }

    /// Adds a quota for the deliveries to a subscription, if the request makes one at a hub. An error refuses such a request.
    pub fn limit_deliveries(&mut self, quota: Result<DeliveryQuota, PublishRefusal>) {
        self.rare.get_or_insert_default().delivery_quotas.push(quota);
    }

    /// Identifies the client as the consumer of this credential: for policies, for logs, and for the upstream in the fields
    /// `X-Consumer-Username`, `X-Consumer-Custom-ID` and `X-Credential-Identifier`.
    pub fn identify(&mut self, credential: &Arc<Credential>) -> Result<(), Stop> {
        let Consumer { username, custom_id, .. } = &*credential.consumer;
        let head = &mut self.request.head;
        // Fields set for an earlier identity no longer apply.
        head.remove_known(Known::Identity);
        for (name, value) in IDENTITY.iter().zip([username, custom_id, &credential.id]) {
            if !value.is_empty() {
                head.add_prepared_name(name, value.as_bytes()).map_err(|_| Stop::Internal)?;
            }
        }
        self.identity = Some(Arc::clone(credential));
        Ok(())
    }

    /// `http` or `https`, as on the client's connection; of a stream `tcp`, `tls` or `udp`.
    pub fn scheme(&self) -> &'static str {
        match (self.client.protocol, self.client.tls) {
            (ClientProtocol::Http, true) => "https",
            (ClientProtocol::Http, false) => "http",
            (protocol, is_secured) => stream_variables::scheme(protocol, is_secured),
        }
    }
}
