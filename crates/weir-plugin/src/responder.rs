//! Responders: answer requests within this process, in place of an upstream.
//!
//! The gateway treats a responder as the upstream side of an exchange: plugins, filters, time-outs, back-pressure, price and
//! logs work as for an upstream.

use std::cell::RefCell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use weir_proto::{RequestHead, Trailers};

use crate::claims::CallerClaims;
use crate::client_gateway::ClientGateway;
use crate::consumer::Credential;
use crate::held::Held;
use crate::publishing::{DeliveryQuota, PublishQuota, PublishRefusal};
use crate::reply_head::ReplyHead;
use crate::route_upstream::RouteUpstream;
use crate::stop::Stop;

/// The future of a responder for one request.
pub type Responding = Pin<Box<dyn Future<Output = Result<(), Stop>>>>;

/// Answers requests. The future runs on the worker of the exchange, and is dropped at its await point if the client disconnects.
pub trait Responder: Send + Sync {
    /// Reads as much of the request's content as it needs, and writes the response, in any order: the response may begin before
    /// the request is complete. It is complete when the future is.
    fn respond(self: Arc<Self>, request: ResponderRequest, content: Content, reply: Reply) -> Responding;

    /// Whether it can answer a request whose content a plugin has made. Otherwise such a request goes to the upstream, as it would
    /// without the responder.
    fn takes_made_content(&self) -> bool {
        true
    }

    /// Whether it needs [`ResponderRequest::gateway`].
    fn asks_gateway(&self) -> bool {
        false
    }
}

impl fmt::Debug for dyn Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Responder")
    }
}

/// A request as a responder receives it, after the plugins.
pub struct ResponderRequest {
    pub head: RequestHead,
    /// The client's address, after `real-ip`.
    pub client: IpAddr,
    pub identity: Option<Arc<Credential>>,
    /// The claims of the token that an auth plugin has verified, if one has.
    pub claims: Option<CallerClaims>,
    /// Quotas for events the client publishes to a hub.
    pub publish_quotas: Vec<Arc<dyn PublishQuota>>,
    /// Quotas for deliveries to a subscription that the request makes at a hub.
    ///
    /// # Errors
    /// A plugin could not determine the client's quota.
    pub delivery_quotas: Result<Vec<DeliveryQuota>, PublishRefusal>,
    /// The names of request fields that plugins have set to something about the client.
    pub personal_fields: Vec<Box<[u8]>>,
    /// The upstream the request would be sent to without the responder, if there is one.
    pub upstream: Option<Rc<dyn RouteUpstream>>,
    /// Serves more requests of the client, if the responder asks for it. `None` if the request is itself one that a responder has had
    /// served, so that there is no recursion.
    pub gateway: Option<Rc<dyn ClientGateway>>,
    /// The client asks for another protocol, and the route allows it: the response may be a 101, after which content is what the
    /// client sends in that protocol. The gateway adds `Sec-WebSocket-Accept` for a WebSocket.
    pub may_upgrade: bool,
}

/// Limit of the bytes of a request that are buffered; the client's side waits when there are as many.
const MOST_INCOMING: usize = 64 * 1024;
/// Limit of the bytes of a response that are buffered; the responder waits when there are as many. It is small at first, since a
/// stream whose client does not read keeps what was buffered: with 64 KiB, such a listener of a hub cost 86 KiB of memory, and with
/// 8 KiB 26. It doubles each time the client has taken everything while the responder waits.
const FIRST_OUTGOING: usize = 8 * 1024;
const MOST_OUTGOING: usize = 32 * 1024;
/// The largest empty buffer that is kept.
const MOST_KEPT: usize = 2 * FIRST_OUTGOING;

/// The buffers between the gateway and a responder, in both directions.
struct Channel {
    incoming: Vec<u8>,
    incoming_ended: bool,
    /// The fields after the request's content.
    incoming_trailers: Trailers,
    /// The response is a 101: what comes in is no content of the request any more.
    switched: bool,
    /// Woken when content has arrived.
    reader: Option<Waker>,
    head: Option<BegunHead>,
    has_begun: bool,
    /// Content of the response, of which the first `taken` bytes have been taken.
    outgoing: Vec<u8>,
    taken: usize,
    /// The most bytes in `outgoing` that have not been taken.
    limit: usize,
    /// The fields after the content.
    trailers: Trailers,
    /// Woken when `outgoing` has room.
    writer: Option<Waker>,
    /// The plugin whose service has failed.
    failed: Option<&'static str>,
    /// The plugin whose service answers in place of the upstream.
    refused_by: Option<&'static str>,
    /// For the variables `ext_proc_NAME`.
    metadata: Vec<(String, Vec<u8>)>,
}

impl Default for Channel {
    fn default() -> Channel {
        Channel {
            incoming: Vec::new(),
            incoming_ended: false,
            incoming_trailers: Trailers::default(),
            switched: false,
            reader: None,
            head: None,
            has_begun: false,
            outgoing: Vec::new(),
            taken: 0,
            trailers: Trailers::default(),
            limit: FIRST_OUTGOING,
            writer: None,
            failed: None,
            refused_by: None,
            metadata: Vec::new(),
        }
    }
}

impl Channel {
    /// How many more bytes of the response are buffered now.
    fn room(&self) -> usize {
        self.limit.saturating_sub(self.outgoing.len() - self.taken)
    }

    fn append(&mut self, content: &[u8]) {
        if self.taken > 0 && self.outgoing.capacity() < self.outgoing.len() + content.len() {
            self.outgoing.drain(..std::mem::take(&mut self.taken));
        }
        self.outgoing.extend_from_slice(content);
    }

    /// Moves content of the response into `buffer`; returns the number of bytes.
    fn take(&mut self, buffer: &mut [u8]) -> usize {
        let waiting = &self.outgoing[self.taken..];
        let count = waiting.len().min(buffer.len());
        buffer[..count].copy_from_slice(&waiting[..count]);
        self.taken += count;
        if self.taken == self.outgoing.len() {
            self.outgoing.clear();
            self.taken = 0;
            self.limit = match self.writer {
                Some(_) => (self.limit * 2).min(MOST_OUTGOING),
                None => FIRST_OUTGOING,
            };
            if self.outgoing.capacity() > MOST_KEPT {
                self.outgoing = Vec::new();
            }
        }
        count
    }
}

/// The content of a request, as a stream.
pub struct Content {
    channel: Rc<RefCell<Channel>>,
    /// What [`Content::whole`] has returned.
    held: Held,
}

impl Content {
    /// The next piece; `None` at the end.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        poll_fn(|context| {
            let mut channel = self.channel.borrow_mut();
            if !channel.incoming.is_empty() {
                return Poll::Ready(Some(std::mem::take(&mut channel.incoming)));
            }
            if channel.incoming_ended {
                return Poll::Ready(None);
            }
            channel.reader = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// The fields after the content. They are known once [`Content::next`] has returned `None`.
    pub fn take_trailers(&mut self) -> Trailers {
        std::mem::take(&mut self.channel.borrow_mut().incoming_trailers)
    }

    /// The whole content. It is held content of the client until this stream is dropped.
    ///
    /// # Errors
    /// [`Stop::BodyTooLarge`] for more than `limit` bytes; [`Stop::HeldContent`] and [`Stop::HeldByClient`] if there is no room for it.
    pub async fn whole(&mut self, limit: usize) -> Result<Vec<u8>, Stop> {
        let mut whole = Vec::new();
        while let Some(piece) = self.next().await {
            if whole.len() + piece.len() > limit {
                return Err(Stop::BodyTooLarge);
            }
            whole.extend_from_slice(&piece);
            self.held.set(whole.capacity() as u64)?;
        }
        Ok(whole)
    }
}

/// The head of a response that has begun.
pub struct BegunHead {
    /// Its fields come first.
    shared: Option<Arc<ReplyHead>>,
    own: ReplyHead,
}

impl BegunHead {
    pub fn status(&self) -> u16 {
        self.own.status
    }

    /// Names and values.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let shared = self.shared.iter().flat_map(|shared| &shared.fields);
        shared.chain(&self.own.fields).map(|(name, value)| (&**name, &**value))
    }
}

/// The response that a responder writes.
pub struct Reply(Rc<RefCell<Channel>>);

impl Reply {
    /// Begins the response. Without a `Content-Length` field the content may have any length.
    pub fn begin(&mut self, status: u16, fields: &[(&str, &str)]) {
        // In lower case as HTTP/2 requires; HTTP/1.1 ignores the case.
        let field =
            |(name, value): &(&str, &str)| (name.to_ascii_lowercase().into_bytes().into(), value.as_bytes().into());
        self.begin_with(ReplyHead { status, fields: fields.iter().map(field).collect() });
    }

    /// Like [`Reply::begin`], with a head whose names are in lower case.
    pub fn begin_with(&mut self, head: ReplyHead) {
        self.begin_sharing(None, head);
    }

    /// Like [`Reply::begin_with`], with the fields of another head before those of this one: many responses can share them.
    pub fn begin_sharing(&mut self, shared: Option<Arc<ReplyHead>>, own: ReplyHead) {
        let head = BegunHead { shared, own };
        let mut channel = self.0.borrow_mut();
        if head.status() == 101 {
            channel.switched = true;
            channel.incoming_ended = false;
        }
        channel.head = Some(head);
        channel.has_begun = true;
    }

    /// Appends content, and waits while the buffer is full. Content is buffered piece by piece, whatever its size.
    pub async fn send(&mut self, mut content: &[u8]) {
        poll_fn(|context| {
            let mut channel = self.0.borrow_mut();
            let room = channel.room();
            // Small content stays in one piece.
            let count =
                if room > 0 && content.len() <= FIRST_OUTGOING { content.len() } else { content.len().min(room) };
            channel.append(&content[..count]);
            content = &content[count..];
            if content.is_empty() && room > 0 {
                channel.writer = None;
                return Poll::Ready(());
            }
            channel.writer = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Waits until the client has been sent all of the content so far, or it is on its way.
    pub async fn taken(&mut self) {
        poll_fn(|context| {
            let mut channel = self.0.borrow_mut();
            if channel.outgoing.is_empty() {
                return Poll::Ready(());
            }
            channel.writer = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// For what the responder says of its service.
    pub fn notes(&self) -> ReplyNotes {
        ReplyNotes(Rc::clone(&self.0))
    }

    /// Sets the trailers, which follow the content of a response without a `Content-Length`.
    pub fn set_trailers(&mut self, trailers: Trailers) {
        self.0.borrow_mut().trailers = trailers;
    }
}

/// What a responder says of its service, whatever becomes of the response.
pub struct ReplyNotes(Rc<RefCell<Channel>>);

impl ReplyNotes {
    /// Says that the service that answers for this plugin has failed. This counts as an error of the plugin.
    pub fn note_service_failure(&self, plugin: &'static str) {
        self.0.borrow_mut().failed = Some(plugin);
    }

    /// Says that the response is that of this plugin, which refuses the request, and not that of the upstream. To be said before the
    /// response begins.
    pub fn note_refusal(&self, plugin: &'static str) {
        self.0.borrow_mut().refused_by = Some(plugin);
    }

    /// Sets the values of variables `ext_proc_NAME`. Plugins have them with the response if this is called before it begins, and log
    /// records in any case.
    pub fn add_processor_metadata(&self, metadata: Vec<(String, Vec<u8>)>) {
        self.0.borrow_mut().metadata.extend(metadata);
    }
}

/// A responder processing one request, from the gateway's side.
pub struct ResponderCall {
    work: Option<Responding>,
    end: Option<Result<(), Stop>>,
    channel: Rc<RefCell<Channel>>,
}

impl ResponderCall {
    pub fn new(responder: &Arc<dyn Responder>, request: ResponderRequest) -> ResponderCall {
        let channel = Rc::<RefCell<Channel>>::default();
        let content = Content { channel: Rc::clone(&channel), held: Held::of(request.client) };
        let reply = Reply(Rc::clone(&channel));
        let work = Arc::clone(responder).respond(request, content, reply);
        ResponderCall { work: Some(work), end: None, channel }
    }

    /// Polls the responder.
    pub fn poll(&mut self, context: &mut Context<'_>) {
        let Some(work) = &mut self.work else { return };
        if let Poll::Ready(end) = work.as_mut().poll(context) {
            self.work = None;
            let is_silent = end.is_ok() && !self.channel.borrow().has_begun;
            self.end = Some(if is_silent { Err(Stop::Internal) } else { end });
        }
    }

    /// Ends the call with an error, because the responder panicked.
    pub fn fail(&mut self, stop: Stop) {
        self.work = None;
        self.end = Some(Err(stop));
    }

    /// Drops the responder's work if it has not ended. It may say something of its service then.
    pub fn cut(&mut self) {
        self.work = None;
    }

    /// The trailers of the response, once the responder has ended.
    pub fn take_trailers(&mut self) -> Trailers {
        std::mem::take(&mut self.channel.borrow_mut().trailers)
    }

    /// The plugin whose service has failed, if the responder has said so.
    pub fn failed_plugin(&self) -> Option<&'static str> {
        self.channel.borrow().failed
    }

    /// The plugin that refuses the request, if the responder has said so.
    pub fn refused_by(&self) -> Option<&'static str> {
        self.channel.borrow().refused_by
    }

    /// What the responder has said by [`ReplyNotes::add_processor_metadata`].
    pub fn take_processor_metadata(&mut self) -> Vec<(String, Vec<u8>)> {
        std::mem::take(&mut self.channel.borrow_mut().metadata)
    }

    /// The result, once the responder has ended.
    pub fn end(&self) -> Option<Result<(), Stop>> {
        self.end
    }

    /// Passes content of the request to the responder, or after a 101 what the client sends. Content after its end is discarded.
    pub fn push(&mut self, content: &[u8], is_last: bool, context: &Context<'_>) {
        let mut channel = self.channel.borrow_mut();
        if self.work.is_some() {
            channel.incoming.extend_from_slice(content);
        }
        channel.incoming_ended |= is_last && !channel.switched;
        wake(&mut channel.reader, context);
    }

    /// Sets the fields after the request's content, before its end is pushed.
    pub fn set_incoming_trailers(&mut self, trailers: &Trailers) {
        self.channel.borrow_mut().incoming_trailers.clone_from(trailers);
    }

    /// After a 101: the client sends nothing more.
    pub fn end_tunnel(&mut self, context: &Context<'_>) {
        let mut channel = self.channel.borrow_mut();
        channel.incoming_ended = true;
        wake(&mut channel.reader, context);
    }

    /// The responder waits for content of the request.
    pub fn is_reading(&self) -> bool {
        self.work.is_some() && self.channel.borrow().reader.is_some()
    }

    /// The responder has unread content up to the limit: no more should be pushed.
    pub fn is_full(&self) -> bool {
        self.work.is_some() && self.channel.borrow().incoming.len() >= MOST_INCOMING
    }

    /// Takes the response's head, once it was written.
    pub fn take_head(&mut self) -> Option<BegunHead> {
        self.channel.borrow_mut().head.take()
    }

    /// The responder has ended, and its response has neither content nor trailers.
    pub fn ends_with_head(&self) -> bool {
        let channel = self.channel.borrow();
        let has_more = channel.switched || !channel.outgoing.is_empty() || !channel.trailers.is_empty();
        self.end == Some(Ok(())) && !has_more
    }

    /// Moves content of the response into `buffer`; returns the number of bytes.
    pub fn read_content(&mut self, buffer: &mut [u8], context: &Context<'_>) -> usize {
        let mut channel = self.channel.borrow_mut();
        let count = channel.take(buffer);
        if channel.room() > 0 {
            wake(&mut channel.writer, context);
        }
        count
    }
}

/// Wakes a task, unless it is the current one, which polls the responder again anyway.
fn wake(waiting: &mut Option<Waker>, context: &Context<'_>) {
    if let Some(waker) = waiting.take_if(|waker| !waker.will_wake(context.waker())) {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    /// Sends content to a reader that takes everything as soon as the sender waits; returns what came in each turn.
    fn turns(content: &[u8]) -> Vec<Vec<u8>> {
        let channel = Rc::<RefCell<Channel>>::default();
        let mut reply = Reply(Rc::clone(&channel));
        let mut sending = pin!(reply.send(content));
        let (mut context, mut buffer) = (Context::from_waker(Waker::noop()), [0; 2 * MOST_OUTGOING]);
        let mut turns = Vec::new();
        loop {
            let is_over = sending.as_mut().poll(&mut context).is_ready();
            let count = channel.borrow_mut().take(&mut buffer);
            turns.push(buffer[..count].to_vec());
            if is_over {
                return turns;
            }
        }
    }

    #[test]
    fn large_content_is_buffered_in_pieces_that_grow() {
        let content: Vec<u8> = (0..300_000_u32).map(|number| number as u8).collect();
        let turns = turns(&content);
        assert_eq!(turns.concat(), content);
        let sizes: Vec<usize> = turns.iter().take(4).map(Vec::len).collect();
        assert_eq!(sizes, [FIRST_OUTGOING, 2 * FIRST_OUTGOING, MOST_OUTGOING, MOST_OUTGOING]);
    }

    #[test]
    fn small_content_stays_in_one_piece() {
        assert_eq!(turns(&[7; FIRST_OUTGOING]), [[7; FIRST_OUTGOING]]);
        let mut channel = Channel::default();
        channel.append(&[1; 10]);
        let mut buffer = [0; 4];
        assert_eq!((channel.take(&mut buffer), channel.room()), (4, FIRST_OUTGOING - 6));
        channel.append(&[2; 3]);
        let mut rest = [0; 20];
        let count = channel.take(&mut rest);
        assert_eq!(rest[..count], [1, 1, 1, 1, 1, 1, 2, 2, 2]);
    }

    #[test]
    fn a_response_without_a_reader_holds_no_more_than_the_first_piece() {
        let channel = Rc::<RefCell<Channel>>::default();
        let mut reply = Reply(Rc::clone(&channel));
        let content = vec![0; 1 << 20];
        let mut sending = pin!(reply.send(&content));
        assert!(sending.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(channel.borrow().outgoing.capacity() <= FIRST_OUTGOING);
    }
}
