//! The contract between the gateway and a plugin.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use crate::body::Filter;
use crate::exchange::Exchange;
use crate::messages::{MessageFilter, MessageProtocol};
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
    /// Sees the messages of WebSockets and the events of event streams: see [`Plugin::messages`].
    pub messages: bool,
    pub log: bool,
    /// Masks what records of the exchange show: see [`Plugin::mask`].
    pub mask: bool,
    /// Has something to do once the configuration that names it serves: see [`Plugin::start`].
    pub start: bool,
}

impl Phases {
    pub const NONE: Phases = Phases {
        request: false,
        request_body: false,
        response: false,
        response_body: false,
        messages: false,
        log: false,
        mask: false,
        start: false,
    };
    pub const REQUEST: Phases = Phases { request: true, ..Phases::NONE };
    pub const REQUEST_BODY: Phases = Phases { request_body: true, ..Phases::NONE };
    pub const RESPONSE: Phases = Phases { response: true, ..Phases::NONE };
    pub const RESPONSE_BODY: Phases = Phases { response_body: true, ..Phases::NONE };
    pub const MESSAGES: Phases = Phases { messages: true, ..Phases::NONE };
    pub const LOG: Phases = Phases { log: true, ..Phases::NONE };
    pub const MASK: Phases = Phases { mask: true, ..Phases::NONE };
    pub const START: Phases = Phases { start: true, ..Phases::NONE };

    pub const fn and(self, other: Phases) -> Phases {
        Phases {
            request: self.request || other.request,
            request_body: self.request_body || other.request_body,
            response: self.response || other.response,
            response_body: self.response_body || other.response_body,
            messages: self.messages || other.messages,
            log: self.log || other.log,
            mask: self.mask || other.mask,
            start: self.start || other.start,
        }
    }
}

/// What a plugin waits for: an auth server, a clock, a counter in Redis.
pub type Waiting<'a> = Pin<Box<dyn Future<Output = Result<(), Stop>> + 'a>>;

/// How an exchange goes on after a plugin's turn. A plugin that never waits returns `Flow<'static>`.
pub enum Flow<'a> {
    Continue,
    /// The plugin waits; requests of other connections go on meanwhile. Only then a future is allocated. It is dropped
    /// where it stands when the client goes away.
    Wait(Waiting<'a>),
}

impl<'a> Flow<'a> {
    pub fn wait(future: impl Future<Output = Result<(), Stop>> + 'a) -> Flow<'a> {
        Flow::Wait(Box::pin(future))
    }

    /// Waits, if there is something to wait for: for a plugin that runs another one.
    ///
    /// # Errors
    /// The plugin ends the exchange.
    pub async fn finish(self) -> Result<(), Stop> {
        match self {
            Flow::Continue => Ok(()),
            Flow::Wait(waiting) => waiting.await,
        }
    }
}

impl From<()> for Flow<'_> {
    fn from((): ()) -> Self {
        Flow::Continue
    }
}

impl fmt::Debug for Flow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Flow::Continue => "Continue",
            Flow::Wait(_) => "Wait",
        })
    }
}

/// A configured plugin. Immutable and shared by all workers.
///
/// Its life: [`crate::Definition::build`] makes it and does nothing else (no thread, no socket); [`Plugin::start`] is called
/// once the configuration that names it serves; dropping it, when the last configuration that names it is gone, is its
/// stop. State that outlives it, because a reload builds it again with the same options, it gets from
/// [`crate::Build::shared`] and [`crate::Build::per_worker`].
pub trait Plugin: Send + Sync {
    fn phases(&self) -> Phases {
        Phases::REQUEST
    }

    /// The configuration that names it has been published to the workers: time for threads and connections. Called for
    /// each plugin of each published configuration that has [`Phases::start`], so what plugins share is started once by
    /// what they share.
    ///
    /// # Errors
    /// What does not work, for the error log. The configuration stays.
    fn start(&self) -> Result<(), String> {
        Ok(())
    }

    /// The request is parsed and routed; nothing of it has been forwarded.
    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        let _ = exchange;
        Ok(Flow::Continue)
    }

    /// Every plugin has let the request's head pass, which has content that nobody has read yet. `Some` asks for all of it
    /// at once, if it has no more than so many bytes; more is answered with 413.
    fn whole_request(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        let _ = exchange;
        Ok(None)
    }

    /// The request has more content than this plugin has asked for, and than any other has. Says how the exchange ends: with
    /// 413 unless it says otherwise.
    fn too_much_content(&self, exchange: &mut Exchange) -> Stop {
        let _ = exchange;
        Stop::BodyTooLarge
    }

    /// All of the request's content, for a plugin that asked for it. It may be changed; nothing has been forwarded.
    fn on_request_body<'a>(&'a self, exchange: &'a mut Exchange, body: &'a mut Vec<u8>) -> Result<Flow<'a>, Stop> {
        let _ = (exchange, body);
        Ok(Flow::Continue)
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

    /// What the messages of the exchange pass one by one. Asked about a WebSocket when the request has passed all plugins and
    /// nothing of it has been forwarded, and about an event stream when every plugin has seen the response's head. Where no
    /// plugin answers with a filter, bytes are relayed unread.
    fn messages(
        &self,
        exchange: &mut Exchange,
        protocol: MessageProtocol,
    ) -> Result<Option<Box<dyn MessageFilter>>, Stop> {
        let _ = (exchange, protocol);
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

    /// The exchange has ended, and no plugin has recorded it. `shown` is a copy for records, in which secrets can be
    /// masked, however early the exchange has ended.
    fn mask(&self, exchange: &Exchange, shown: &mut Exchange) {
        let _ = (exchange, shown);
    }

    /// The exchange has ended, well or not.
    fn on_log(&self, exchange: &Exchange) {
        let _ = exchange;
    }
}
