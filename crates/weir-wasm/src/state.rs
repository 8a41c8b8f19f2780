//! What an instance has on the side of the host: its limits, its contexts, and what the current call into it may see.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wasmtime::{Memory, ResourceLimiter, TypedFunc};
use weir_client::HttpClient;
use weir_plugin::{Exchange, Services};
use weir_proto::Trailers;

use crate::contexts::{ByContext, ContextState, Contexts};
use crate::lent::LentExchange;
use crate::limits;
use crate::log::{self, PluginLog};
use crate::metrics::PluginMetrics;
use crate::pairs::MapPair;
use crate::shared_data::SharedData;

/// The context that stands for the plugin itself. Those of exchanges follow.
pub(crate) const ROOT: u32 = 1;

/// What all instances of a plugin with one configuration have in common.
#[derive(Debug)]
pub(crate) struct PluginFacts {
    pub name: &'static str,
    pub conf: Vec<u8>,
    pub callback_time: Duration,
    pub memory: u64,
    pub fails_open: bool,
    pub shared: Arc<SharedData>,
    pub metrics: Arc<PluginMetrics>,
    pub log: PluginLog,
}

/// What a plugin reaches outside of the process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outside {
    pub http: HttpClient,
    pub services: Arc<Services>,
}

/// Whether a call into the plugin may see a message, and change it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Access {
    #[default]
    None,
    Read,
    Write,
}

/// What a call into the plugin may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rights {
    pub request: Access,
    pub response: Access,
    /// It may answer the exchange itself.
    pub answers: bool,
    /// It may call services.
    pub calls: bool,
}

/// A response that the plugin has made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LocalAnswer {
    pub status: u16,
    pub fields: Vec<MapPair>,
    pub body: Vec<u8>,
}

/// A call to a service that the plugin has asked for.
#[derive(Debug)]
pub(crate) struct OutgoingCall {
    pub token: u32,
    pub context: u32,
    pub url: Box<str>,
    pub is_verified: bool,
    pub request: http::Request<Bytes>,
    pub timeout: Duration,
}

/// The answer of a service. Without fields, the call has failed.
#[derive(Debug, Default)]
pub(crate) struct CallAnswer {
    pub token: u32,
    pub context: u32,
    pub fields: Vec<MapPair>,
    pub body: Vec<u8>,
    pub trailers: Vec<MapPair>,
}

pub(crate) struct HostState {
    pub memory: Option<Memory>,
    /// In a box, since it is moved out and back for each use.
    pub allocate: Option<Box<TypedFunc<u32, u32>>>,
    pub limit: InstanceLimit,
    pub facts: Arc<PluginFacts>,
    pub outside: Outside,
    /// The context that functions act for.
    pub context: u32,
    pub contexts: Contexts,
    /// The responses that the plugin has made, until they are taken.
    pub answers: ByContext<LocalAnswer>,
    /// The contexts whose request the plugin has let go on, until this is asked.
    pub resumed: ByContext<()>,
    pub rights: Rights,
    /// The exchange of the current call; without one, an empty one.
    pub exchange: LentExchange,
    /// What is being given to the plugin.
    pub given: Vec<u8>,
    /// The content that the current call sees.
    pub request_body: Option<Vec<u8>>,
    pub response_body: Option<Vec<u8>>,
    pub request_trailers: Option<Trailers>,
    pub response_trailers: Option<Trailers>,
    pub call_answer: Option<CallAnswer>,
    /// The calls that are to be made after the current call into the plugin.
    pub outbox: Vec<OutgoingCall>,
    pub in_flight: usize,
    pub last_token: u32,
    pub last_service: usize,
    pub tick: Option<Duration>,
    /// In a trial, the lines that would be logged.
    pub trial: Option<Vec<String>>,
    /// What the plugin has printed of a line that has not ended, to the standard output and to that for errors.
    printed: [Vec<u8>; 2],
}

/// The levels of what is printed to the standard output and to that for errors.
const PRINTED_AT: [u32; 2] = [INFO, log::ERROR];
const INFO: u32 = 2;

impl HostState {
    /// Whether the plugin has let the request of a context go on since this was asked last.
    pub(crate) fn resumed(&mut self, context: u32) -> bool {
        // Most plugins never hold a request, and most of their requests find nothing here.
        !self.resumed.is_empty() && self.resumed.remove(&context).is_some()
    }

    /// Takes the response that the plugin has made for a context.
    pub(crate) fn take_answer(&mut self, context: u32) -> Option<LocalAnswer> {
        if self.answers.is_empty() { None } else { self.answers.remove(&context) }
    }

    pub(crate) fn end_context(&mut self, context: u32) {
        self.contexts.remove(context);
        self.resumed(context);
        self.take_answer(context);
    }

    pub(crate) fn new(facts: &Arc<PluginFacts>, outside: Outside, is_trial: bool) -> HostState {
        HostState {
            memory: None,
            allocate: None,
            limit: InstanceLimit { memory: facts.memory },
            facts: Arc::clone(facts),
            outside,
            context: ROOT,
            contexts: Contexts::new(),
            answers: HashMap::default(),
            resumed: HashMap::default(),
            rights: Rights::default(),
            exchange: LentExchange::none(),
            given: Vec::new(),
            request_body: None,
            response_body: None,
            request_trailers: None,
            response_trailers: None,
            call_answer: None,
            outbox: Vec::new(),
            in_flight: 0,
            last_token: 0,
            last_service: 0,
            tick: None,
            trial: is_trial.then(Vec::new),
            printed: <[Vec<u8>; 2]>::default(),
        }
    }

    /// The context that functions act for, if it is still there.
    pub(crate) fn current(&mut self) -> Option<&mut ContextState> {
        self.contexts.get_mut(self.context)
    }

    /// Takes what the plugin prints, in any pieces. Each line that ends is logged; the rest of one that is too long is left out.
    pub(crate) fn print(&mut self, output: usize, mut bytes: &[u8]) {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            self.print_piece(output, &bytes[..end]);
            self.end_line(output);
            bytes = &bytes[end + 1..];
        }
        self.print_piece(output, bytes);
    }

    fn print_piece(&mut self, output: usize, piece: &[u8]) {
        // One byte more than a line may have says that it was longer.
        let room = (limits::LOG_LINE + 1).saturating_sub(self.printed[output].len());
        self.printed[output].extend_from_slice(&piece[..piece.len().min(room)]);
    }

    /// Logs what has been printed when a call into the plugin ends.
    #[inline]
    pub(crate) fn end_lines(&mut self) {
        for output in 0..self.printed.len() {
            if !self.printed[output].is_empty() {
                self.end_line(output);
            }
        }
    }

    fn end_line(&mut self, output: usize) {
        if self.printed[output].is_empty() {
            return;
        }
        let text = log::text(&self.printed[output]);
        self.printed[output].clear();
        if !text.is_empty() {
            self.log(PRINTED_AT[output], &text);
        }
    }

    /// A line of the plugin's log.
    pub(crate) fn log(&mut self, level: u32, text: &str) {
        const WARNING: u32 = 3;
        match &mut self.trial {
            Some(lines) if level >= WARNING && lines.len() < limits::PROPERTIES => lines.push(text.to_owned()),
            Some(_) => {}
            None => self.facts.log.line(level, text),
        }
    }
}

/// The bounds of one instance.
#[derive(Debug)]
pub(crate) struct InstanceLimit {
    pub memory: u64,
}

impl ResourceLimiter for InstanceLimit {
    fn memory_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired as u64 <= self.memory)
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired <= limits::TABLE_ELEMENTS)
    }
}

/// What a plugin sees of an exchange that it cannot change any more.
pub(crate) fn copy_of(exchange: &Exchange) -> Exchange {
    let mut copy = Exchange::default();
    copy.request = exchange.request.clone();
    copy.response = exchange.response.clone();
    copy.client = exchange.client;
    copy.tls = exchange.tls.as_ref().map(Rc::clone);
    copy.route = exchange.route.clone();
    copy.upstream = exchange.upstream;
    (copy.started_ns, copy.ended_ns) = (exchange.started_ns, exchange.ended_ns);
    (copy.request_bytes, copy.response_bytes) = (exchange.request_bytes, exchange.response_bytes);
    copy.body_bytes = exchange.body_bytes;
    if !exchange.request_id().is_empty() {
        copy.set_request_id(exchange.request_id().to_vec());
    }
    copy
}
