//! The contract between the gateway and a plugin.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use crate::body::Filter;
use crate::exchange::Exchange;
use crate::messages::{MessageFilter, MessageProtocol};
use crate::stop::Stop;

/// The phases in which a plugin is called. A snapshot has one list of plugins per phase, so an unused phase costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    pub request: bool,
    /// Receives content of requests: see [`Plugin::whole_request`] and [`Plugin::request_filter`].
    pub request_body: bool,
    pub response: bool,
    /// Receives content of responses: see [`Plugin::whole_response`] and [`Plugin::response_filter`].
    pub response_body: bool,
    /// Receives messages of WebSockets and events of event streams: see [`Plugin::messages`].
    pub messages: bool,
    pub log: bool,
    /// Masks what records of the exchange show: see [`Plugin::mask`].
    pub mask: bool,
    /// Is called once its configuration is active: see [`Plugin::start`].
    pub start: bool,
    /// On streams, reads what the client sends first: see [`Exchange::first_bytes`].
    pub first_bytes: bool,
    /// Sees responses before all other plugins, those of global rules included: it makes of them what the others look at.
    pub first_in_responses: bool,
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
        first_bytes: false,
        first_in_responses: false,
    };
    pub const REQUEST: Phases = Phases { request: true, ..Phases::NONE };
    pub const REQUEST_BODY: Phases = Phases { request_body: true, ..Phases::NONE };
    pub const RESPONSE: Phases = Phases { response: true, ..Phases::NONE };
    pub const RESPONSE_BODY: Phases = Phases { response_body: true, ..Phases::NONE };
    pub const MESSAGES: Phases = Phases { messages: true, ..Phases::NONE };
    pub const LOG: Phases = Phases { log: true, ..Phases::NONE };
    pub const MASK: Phases = Phases { mask: true, ..Phases::NONE };
    pub const START: Phases = Phases { start: true, ..Phases::NONE };
    /// All of the response, before other plugins.
    pub const RESPONSE_FIRST: Phases =
        Phases { response: true, response_body: true, first_in_responses: true, ..Phases::NONE };

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
            first_bytes: self.first_bytes || other.first_bytes,
            first_in_responses: self.first_in_responses || other.first_in_responses,
        }
    }
}

/// Whether responders of a plugin answer in place of the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswersInPlace {
    Never,
    /// By [`Exchange::answer_by`].
    SomeRequests,
    /// All requests but exceptional ones, by [`Exchange::answer_only_by`]: with another responder they fail.
    Alone,
}

/// A plugin's asynchronous work: a call to an auth server, a delay, a counter in Redis.
pub type Waiting<'a> = Pin<Box<dyn Future<Output = Result<(), Stop>> + 'a>>;

/// How an exchange continues after a plugin's turn. A plugin that never waits returns `Flow<'static>`.
pub enum Flow<'a> {
    Continue,
    /// The plugin waits; the worker serves other connections meanwhile. Only this allocates a future. The future is dropped at
    /// its await point if the client disconnects.
    Wait(Waiting<'a>),
}

impl<'a> Flow<'a> {
    pub fn wait(future: impl Future<Output = Result<(), Stop>> + 'a) -> Flow<'a> {
        Flow::Wait(Box::pin(future))
    }

    /// Completes the turn, for a plugin that runs another one.
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
/// Life cycle: [`crate::Definition::build`] creates it and starts nothing (no thread, no socket); [`Plugin::start`] is called
/// once its configuration is active; it is dropped with the last configuration that contains it, which must stop what it
/// started. State that survives a rebuild with the same options comes from [`crate::Build::shared`] and
/// [`crate::Build::per_worker`].
pub trait Plugin: Send + Sync {
    fn phases(&self) -> Phases {
        Phases::REQUEST
    }

    /// What its options say about [`Exchange::answer_by`] and [`Exchange::answer_only_by`]. A configuration in which two plugins
    /// cannot answer together is reported by this.
    fn answers_in_place(&self) -> AnswersInPlace {
        AnswersInPlace::Never
    }

    /// Whether its options make it answer every request by itself, so that none goes on to the plugins behind it.
    fn answers_all(&self) -> bool {
        false
    }

    /// Called when the plugin's configuration has been published to the workers, to start threads and connections. It is called
    /// for each plugin with [`Phases::start`] of each published configuration, so what several plugins share must make sure that
    /// it is started once.
    ///
    /// # Errors
    /// What failed, for the error log. The configuration stays active.
    fn start(&self) -> Result<(), String> {
        Ok(())
    }

    /// Called when the request is parsed and routed; nothing of it has been forwarded.
    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        let _ = exchange;
        Ok(Flow::Continue)
    }

    /// Called when all plugins have let the head of a request with content pass; no content has been read. `Some` requests the
    /// whole content, up to this many bytes; more is answered with 413.
    fn whole_request(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        let _ = exchange;
        Ok(None)
    }

    /// Called if the request has more content than any plugin requested, for the plugin with the highest limit. Returns how the
    /// exchange ends: by default with 413.
    fn too_much_content(&self, exchange: &mut Exchange) -> Stop {
        let _ = exchange;
        Stop::BodyTooLarge
    }

    /// Receives the request's whole content, if the plugin requested it. It may be changed; nothing has been forwarded.
    fn on_request_body<'a>(&'a self, exchange: &'a mut Exchange, body: &'a mut Vec<u8>) -> Result<Flow<'a>, Stop> {
        let _ = (exchange, body);
        Ok(Flow::Continue)
    }

    /// Returns a filter for the request's content. Called after the plugins that requested the whole content have received it.
    fn request_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        let _ = exchange;
        Ok(None)
    }

    /// Called when the response head is complete, from an upstream or from the gateway; nothing of it has been sent.
    /// `Err(Stop::Answered)` means that the exchange now contains another response, which continues through the remaining
    /// plugins.
    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let _ = exchange;
        Ok(())
    }

    /// Called when all plugins have seen the response head, and nothing of it has been sent. `Some` requests the whole content,
    /// up to this many bytes; more is answered with 502. Not called for responses that never have content (204, 304).
    fn whole_response(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        let _ = exchange;
        Ok(None)
    }

    /// Receives the response's whole content, if the plugin requested it. Content and head may be changed. `Err(Stop::Answered)`
    /// means that the exchange now contains another response.
    fn on_response_body(&self, exchange: &mut Exchange, body: &mut Vec<u8>) -> Result<(), Stop> {
        let _ = (exchange, body);
        Ok(())
    }

    /// Returns a filter for the response's content. Called after the plugins that requested the whole content have received it.
    /// The head may still be changed; in a response to HEAD it must be changed as if content followed.
    fn response_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        let _ = exchange;
        Ok(None)
    }

    /// Returns a filter for the exchange's messages. Called for a WebSocket when the request has passed all plugins and nothing
    /// of it has been forwarded, and for an event stream when all plugins have seen the response head. Without any filter, bytes
    /// are relayed without parsing.
    fn messages(
        &self,
        exchange: &mut Exchange,
        protocol: MessageProtocol,
    ) -> Result<Option<Box<dyn MessageFilter>>, Stop> {
        let _ = (exchange, protocol);
        Ok(None)
    }

    /// The bytes of content the plugin has kept of the exchange ([`Notes::keep`]), which count towards its price. Called before
    /// [`Plugin::on_log`], if any plugin has kept some.
    ///
    /// [`Notes::keep`]: crate::Notes::keep
    fn kept_bytes(&self, exchange: &Exchange) -> usize {
        let _ = exchange;
        0
    }

    /// Called when the exchange has ended, before any plugin records it. `shown` is the copy for records, in which secrets can
    /// be masked. It is called however early the exchange ended.
    fn mask(&self, exchange: &Exchange, shown: &mut Exchange) {
        let _ = (exchange, shown);
    }

    /// Called when the exchange has ended, successfully or not.
    fn on_log(&self, exchange: &Exchange) {
        let _ = exchange;
    }
}
