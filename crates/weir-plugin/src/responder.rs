//! Responders: what answers requests in this process, where otherwise an upstream would.
//!
//! The gateway treats a responder as the upstream side of an exchange, so plugins, filters, time-outs, back-pressure, price
//! and logs hold for it as they do for an upstream.

use std::cell::RefCell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use weir_proto::RequestHead;

use crate::consumer::Credential;
use crate::publishing::PublishQuota;
use crate::reply_head::ReplyHead;
use crate::route_upstream::RouteUpstream;
use crate::stop::Stop;

/// The work of a responder on one request.
pub type Responding = Pin<Box<dyn Future<Output = Result<(), Stop>>>>;

/// Answers requests. It runs on the worker of the exchange, and is dropped where it stands when the client goes away.
pub trait Responder: Send + Sync {
    /// Reads of the request's content what it wants, and writes the response, in any order: an answer may begin before
    /// the request is complete. The response is complete when the future is.
    fn respond(self: Arc<Self>, request: ResponderRequest, content: Content, reply: Reply) -> Responding;
}

impl fmt::Debug for dyn Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Responder")
    }
}

/// What a responder is asked, after the plugins have seen it.
pub struct ResponderRequest {
    pub head: RequestHead,
    /// The client's address, after `real-ip`.
    pub client: IpAddr,
    pub identity: Option<Arc<Credential>>,
    /// What events have to pass that the client publishes to a hub.
    pub publish_quotas: Vec<Arc<dyn PublishQuota>>,
    /// The upstream to which the request would go without the responder, if there is one.
    pub upstream: Option<Rc<dyn RouteUpstream>>,
}

/// Bytes that wait on the way to a responder, or from it. More are not taken before these are.
const MOST_WAITING: usize = 64 * 1024;

/// What is under way between the gateway and a responder, in both directions.
#[derive(Default)]
struct Channel {
    incoming: Vec<u8>,
    incoming_ended: bool,
    /// Waits for content.
    reader: Option<Waker>,
    head: Option<ReplyHead>,
    has_begun: bool,
    outgoing: Vec<u8>,
    /// Waits for room.
    writer: Option<Waker>,
}

/// A request's content, as it comes.
pub struct Content(Rc<RefCell<Channel>>);

impl Content {
    /// The next piece; nothing when all of it was there.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        poll_fn(|context| {
            let mut channel = self.0.borrow_mut();
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

    /// All of it.
    ///
    /// # Errors
    /// [`Stop::BodyTooLarge`] for more than `limit` bytes.
    pub async fn whole(&mut self, limit: usize) -> Result<Vec<u8>, Stop> {
        let mut whole = Vec::new();
        while let Some(piece) = self.next().await {
            whole.extend_from_slice(&piece);
            if whole.len() > limit {
                return Err(Stop::BodyTooLarge);
            }
        }
        Ok(whole)
    }
}

/// Where a responder writes its response.
pub struct Reply(Rc<RefCell<Channel>>);

impl Reply {
    /// Begins the response. Without a `Content-Length` among the fields its content may have any length.
    pub fn begin(&mut self, status: u16, fields: &[(&str, &str)]) {
        // In lower case, as HTTP/2 has them; HTTP/1.1 does not care.
        let field =
            |(name, value): &(&str, &str)| (name.to_ascii_lowercase().into_bytes().into(), value.as_bytes().into());
        self.begin_with(ReplyHead { status, fields: fields.iter().map(field).collect() });
    }

    /// The same with a head whose names are in lower case.
    pub fn begin_with(&mut self, head: ReplyHead) {
        let mut channel = self.0.borrow_mut();
        channel.head = Some(head);
        channel.has_begun = true;
    }

    /// Adds content, once the client has taken most of what came before.
    pub async fn send(&mut self, content: &[u8]) {
        poll_fn(|context| {
            let mut channel = self.0.borrow_mut();
            if channel.outgoing.len() >= MOST_WAITING {
                channel.writer = Some(context.waker().clone());
                return Poll::Pending;
            }
            channel.outgoing.extend_from_slice(content);
            Poll::Ready(())
        })
        .await
    }
}

/// A responder at work on one request, as the gateway sees it.
pub struct ResponderCall {
    work: Option<Responding>,
    end: Option<Result<(), Stop>>,
    channel: Rc<RefCell<Channel>>,
}

impl ResponderCall {
    pub fn new(responder: &Arc<dyn Responder>, request: ResponderRequest) -> ResponderCall {
        let channel = Rc::<RefCell<Channel>>::default();
        let (content, reply) = (Content(Rc::clone(&channel)), Reply(Rc::clone(&channel)));
        let work = Arc::clone(responder).respond(request, content, reply);
        ResponderCall { work: Some(work), end: None, channel }
    }

    /// Lets the responder go on, as far as it can.
    pub fn poll(&mut self, context: &mut Context<'_>) {
        let Some(work) = &mut self.work else { return };
        if let Poll::Ready(end) = work.as_mut().poll(context) {
            self.work = None;
            let is_silent = end.is_ok() && !self.channel.borrow().has_begun;
            self.end = Some(if is_silent { Err(Stop::Internal) } else { end });
        }
    }

    /// It cannot go on: it has panicked.
    pub fn fail(&mut self, stop: Stop) {
        self.work = None;
        self.end = Some(Err(stop));
    }

    /// How it ended, once it has.
    pub fn end(&self) -> Option<Result<(), Stop>> {
        self.end
    }

    /// Hands it content of the request. What comes when it has ended is thrown away.
    pub fn push(&mut self, content: &[u8], is_last: bool, context: &Context<'_>) {
        let mut channel = self.channel.borrow_mut();
        if self.work.is_some() {
            channel.incoming.extend_from_slice(content);
        }
        channel.incoming_ended |= is_last;
        wake(&mut channel.reader, context);
    }

    /// It has not taken what it was handed: no more should come.
    pub fn is_full(&self) -> bool {
        self.work.is_some() && self.channel.borrow().incoming.len() >= MOST_WAITING
    }

    /// The response's head, once.
    pub fn take_head(&mut self) -> Option<ReplyHead> {
        self.channel.borrow_mut().head.take()
    }

    /// Moves content of the response into `buffer`; says how much.
    pub fn read_content(&mut self, buffer: &mut [u8], context: &Context<'_>) -> usize {
        let mut channel = self.channel.borrow_mut();
        let count = channel.outgoing.len().min(buffer.len());
        buffer[..count].copy_from_slice(&channel.outgoing[..count]);
        channel.outgoing.drain(..count);
        if channel.outgoing.len() < MOST_WAITING {
            wake(&mut channel.writer, context);
        }
        count
    }
}

/// Wakes another task. The gateway's own goes on to the responder by itself.
fn wake(waiting: &mut Option<Waker>, context: &Context<'_>) {
    if let Some(waker) = waiting.take_if(|waker| !waker.will_wake(context.waker())) {
        waker.wake();
    }
}
