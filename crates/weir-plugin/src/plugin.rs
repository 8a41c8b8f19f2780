//! The contract between the gateway and a plugin.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::body::Filter;
use crate::exchange::Exchange;
use crate::stop::Stop;

/// The moments at which a plugin wants to be called. `compile` makes one list per phase, so that a phase nobody uses
/// costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    pub request: bool,
    /// Sees content of requests: see [`Plugin::whole_request`] and [`Plugin::request_filter`].
    pub request_body: bool,
    pub response: bool,
    /// Sees content of responses: see [`Plugin::whole_response`] and [`Plugin::response_filter`].
    pub response_body: bool,
    pub log: bool,
}

impl Phases {
    pub const NONE: Phases =
        Phases { request: false, request_body: false, response: false, response_body: false, log: false };
    pub const REQUEST: Phases = Phases { request: true, ..Phases::NONE };
    pub const REQUEST_BODY: Phases = Phases { request_body: true, ..Phases::NONE };
    pub const RESPONSE: Phases = Phases { response: true, ..Phases::NONE };
    pub const RESPONSE_BODY: Phases = Phases { response_body: true, ..Phases::NONE };
    pub const LOG: Phases = Phases { log: true, ..Phases::NONE };

    pub const fn and(self, other: Phases) -> Phases {
        Phases {
            request: self.request || other.request,
            request_body: self.request_body || other.request_body,
            response: self.response || other.response,
            response_body: self.response_body || other.response_body,
            log: self.log || other.log,
        }
    }
}

/// A configured plugin. Immutable and shared by all workers; what must survive a reload it asks of
/// [`crate::Build`].
pub trait Plugin: Send + Sync {
    fn phases(&self) -> Phases {
        Phases::REQUEST
    }

    /// The request is parsed and routed; nothing of it has been forwarded.
    fn on_request(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let _ = exchange;
        Ok(())
    }

    /// Every plugin has let the request's head pass, which has content that nobody has read yet. `Some` asks for all of it
    /// at once, if it has no more than so many bytes; more is answered with 413.
    fn whole_request(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        let _ = exchange;
        Ok(None)
    }

    /// All of the request's content, for a plugin that asked for it. It may be changed; nothing has been forwarded.
    fn on_request_body(&self, exchange: &mut Exchange, body: &mut Vec<u8>) -> Result<(), Stop> {
        let _ = (exchange, body);
        Ok(())
    }

    /// What the request's content passes on its way, piece by piece. Asked when those have seen it who wanted it whole.
    fn request_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        let _ = exchange;
        Ok(None)
    }

    /// The response head is there, whoever made it; nothing of it has been sent. `Err(Stop::Answered)` says that the
    /// exchange now holds another answer, body and all, which goes on through the plugins that follow.
    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let _ = exchange;
        Ok(())
    }

    /// Every plugin has seen the response's head, and nothing of it has been sent. `Some` asks for all of its content at
    /// once, if it has no more than so many bytes; for more the answer is 502. Not asked about responses that have none,
    /// whatever the method (204, 304).
    fn whole_response(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        let _ = exchange;
        Ok(None)
    }

    /// All of the response's content, for a plugin that asked for it. It may be changed, and so may the head.
    /// `Err(Stop::Answered)` says that the exchange now holds another answer instead.
    fn on_response_body(&self, exchange: &mut Exchange, body: &mut Vec<u8>) -> Result<(), Stop> {
        let _ = (exchange, body);
        Ok(())
    }

    /// What the response's content passes on its way, piece by piece. Asked when those have seen it who wanted it whole.
    /// The head still can be changed: for a HEAD in the same way as if the content followed.
    fn response_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        let _ = exchange;
        Ok(None)
    }

    /// Bytes of content that it has kept of the exchange ([`Notes::keep`]), which are part of its price. Asked before
    /// [`Plugin::on_log`], if anybody has kept some.
    ///
    /// [`Notes::keep`]: crate::Notes::keep
    fn kept_bytes(&self, exchange: &Exchange) -> usize {
        let _ = exchange;
        0
    }

    /// The exchange has ended, well or not.
    fn on_log(&self, exchange: &Exchange) {
        let _ = exchange;
    }
}

/// What an [`AsyncPlugin`] returns.
pub type Waiting<'a> = Pin<Box<dyn Future<Output = Result<(), Stop>> + 'a>>;

/// A plugin that waits for somebody before a request may go on: an auth server, a clock. It keeps its place in the
/// order; requests of other connections go on meanwhile.
pub trait AsyncPlugin: Send + Sync {
    fn phases(&self) -> Phases {
        Phases::REQUEST
    }

    /// As [`Plugin::on_request`], and may wait.
    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Waiting<'a>;

    /// As [`Plugin::whole_request`].
    fn whole_request(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        let _ = exchange;
        Ok(None)
    }

    /// As [`Plugin::on_request_body`], and may wait.
    fn on_request_body<'a>(&'a self, exchange: &'a mut Exchange, body: &'a mut Vec<u8>) -> Waiting<'a> {
        let _ = (exchange, body);
        Box::pin(async { Ok(()) })
    }

    /// As [`Plugin::on_response`].
    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let _ = exchange;
        Ok(())
    }

    /// As [`Plugin::on_log`].
    fn on_log(&self, exchange: &Exchange) {
        let _ = exchange;
    }
}

/// One place in a chain.
#[derive(Clone)]
pub enum Step {
    Sync(Arc<dyn Plugin>),
    Async(Arc<dyn AsyncPlugin>),
}

impl Step {
    pub fn new(plugin: impl Plugin + 'static) -> Step {
        Step::Sync(Arc::new(plugin))
    }

    pub fn waiting(plugin: impl AsyncPlugin + 'static) -> Step {
        Step::Async(Arc::new(plugin))
    }

    pub fn phases(&self) -> Phases {
        match self {
            Step::Sync(plugin) => plugin.phases(),
            Step::Async(plugin) => plugin.phases(),
        }
    }

    /// See [`Plugin::whole_request`].
    pub fn whole_request(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        match self {
            Step::Sync(plugin) => plugin.whole_request(exchange),
            Step::Async(plugin) => plugin.whole_request(exchange),
        }
    }

    /// See [`Plugin::request_filter`]. A plugin that waits changes no content on its way, and sees none of responses.
    pub fn request_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        match self {
            Step::Sync(plugin) => plugin.request_filter(exchange),
            Step::Async(_) => Ok(None),
        }
    }

    /// See [`Plugin::whole_response`].
    pub fn whole_response(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        match self {
            Step::Sync(plugin) => plugin.whole_response(exchange),
            Step::Async(_) => Ok(None),
        }
    }

    pub fn response_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        match self {
            Step::Sync(plugin) => plugin.response_filter(exchange),
            Step::Async(_) => Ok(None),
        }
    }

    pub fn on_response_body(&self, exchange: &mut Exchange, body: &mut Vec<u8>) -> Result<(), Stop> {
        match self {
            Step::Sync(plugin) => plugin.on_response_body(exchange, body),
            Step::Async(_) => Ok(()),
        }
    }

    pub fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        match self {
            Step::Sync(plugin) => plugin.on_response(exchange),
            Step::Async(plugin) => plugin.on_response(exchange),
        }
    }

    /// See [`Plugin::kept_bytes`]. A plugin that waits keeps nothing.
    pub fn kept_bytes(&self, exchange: &Exchange) -> usize {
        match self {
            Step::Sync(plugin) => plugin.kept_bytes(exchange),
            Step::Async(_) => 0,
        }
    }

    pub fn on_log(&self, exchange: &Exchange) {
        match self {
            Step::Sync(plugin) => plugin.on_log(exchange),
            Step::Async(plugin) => plugin.on_log(exchange),
        }
    }
}
