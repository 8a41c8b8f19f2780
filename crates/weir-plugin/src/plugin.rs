//! The contract between the gateway and a plugin.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::exchange::Exchange;
use crate::stop::Stop;

/// The moments at which a plugin wants to be called. `compile` makes one list per phase, so that a phase nobody uses
/// costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    pub request: bool,
    pub response: bool,
    pub log: bool,
}

impl Phases {
    pub const REQUEST: Phases = Phases { request: true, response: false, log: false };
    pub const RESPONSE: Phases = Phases { request: false, response: true, log: false };
    pub const LOG: Phases = Phases { request: false, response: false, log: true };

    pub const fn and(self, other: Phases) -> Phases {
        Phases {
            request: self.request || other.request,
            response: self.response || other.response,
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

    /// The response head is there, whoever made it; nothing of it has been sent. `Err(Stop::Answered)` says that the
    /// exchange now holds another answer, body and all, which goes on through the plugins that follow.
    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let _ = exchange;
        Ok(())
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

    pub fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        match self {
            Step::Sync(plugin) => plugin.on_response(exchange),
            Step::Async(plugin) => plugin.on_response(exchange),
        }
    }

    pub fn on_log(&self, exchange: &Exchange) {
        match self {
            Step::Sync(plugin) => plugin.on_log(exchange),
            Step::Async(plugin) => plugin.on_log(exchange),
        }
    }
}
