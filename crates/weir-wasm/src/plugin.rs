//! The plugin of a resource: what happens to an exchange is told to the instance of the worker.

use std::sync::{Arc, OnceLock};

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use weir_plugin::{Exchange, Filter, Flow, NoteKey, PerWorker, Phases, Plugin, Stop};
use weir_proto::field;

use crate::abi::CallbackAction;
use crate::content::{FilteredMessage, WasmContentFilter};
use crate::engine::EpochClock;
use crate::limits;
use crate::service_call;
use crate::state::{Access, CallAnswer, LocalAnswer, OutgoingCall, Outside, PluginFacts, Rights, copy_of};
use crate::vm::{MessageSide, PluginFailure, Vm};
use crate::worker::WorkerPlugin;

/// In the head of a request, and in its whole content.
const REQUEST: Rights = Rights { request: Access::Write, response: Access::None, answers: true, calls: true };
/// In the head of a response, and in its whole content.
const RESPONSE: Rights = Rights { request: Access::Read, response: Access::Write, answers: true, calls: false };
/// When the exchange has ended.
const LOG: Rights = Rights { request: Access::Read, response: Access::Read, answers: false, calls: false };

/// Of which messages a plugin has functions for content or trailers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeenContent {
    pub request: bool,
    pub response: bool,
}

/// A plugin whose code is WebAssembly.
pub(crate) struct WasmPlugin {
    content: SeenContent,
    facts: Arc<PluginFacts>,
    worker: PerWorker<WorkerPlugin>,
    outside: Outside,
    note: NoteKey,
    clock: OnceLock<EpochClock>,
}

/// What the plugin knows of an exchange: the instance and its context, and what it waits for.
#[derive(Clone, Copy)]
struct ContextNote {
    serial: u64,
    context: u32,
    held: Option<MessageSide>,
    /// The plugin has failed, and the exchange goes on without it. Its context is still to be ended.
    is_over: bool,
}

impl ContextNote {
    fn numbers(self) -> [u64; 3] {
        let state = match (self.is_over, self.held) {
            (true, _) => 3,
            (false, None) => 0,
            (false, Some(MessageSide::Request)) => 1,
            (false, Some(MessageSide::Response)) => 2,
        };
        [self.serial, self.context.into(), state]
    }

    fn of([serial, context, state]: [u64; 3]) -> ContextNote {
        let held = match state {
            1 => Some(MessageSide::Request),
            2 => Some(MessageSide::Response),
            _ => None,
        };
        ContextNote { serial, context: context as u32, held, is_over: state == 3 }
    }
}

/// How a request goes on after a call into the plugin.
enum NextStep {
    Continue,
    Answered(LocalAnswer),
    /// When these calls have been answered, or the plugin says so.
    Wait(Vec<OutgoingCall>),
    /// When its content is there.
    Hold,
}

impl WasmPlugin {
    pub(crate) fn new(
        facts: Arc<PluginFacts>,
        worker: PerWorker<WorkerPlugin>,
        outside: Outside,
        content: SeenContent,
    ) -> WasmPlugin {
        WasmPlugin { content, facts, worker, outside, note: NoteKey::unique(), clock: OnceLock::new() }
    }

    /// `None` if the plugin takes no part in the exchange, or no more.
    fn context(&self, exchange: &Exchange) -> Option<ContextNote> {
        self.noted(exchange).filter(|note| !note.is_over)
    }

    fn noted(&self, exchange: &Exchange) -> Option<ContextNote> {
        exchange.notes.read(self.note).map(ContextNote::of)
    }

    /// Runs something with the instance that knows the exchange.
    fn with<R>(
        &self,
        note: ContextNote,
        run: impl FnOnce(&mut Vm) -> Result<R, PluginFailure>,
    ) -> Result<R, PluginFailure> {
        self.worker
            .get()
            .with(&self.outside, |vm| if vm.serial == note.serial { run(vm) } else { Err(PluginFailure::Lost) })
    }

    /// The same, with the exchange.
    fn with_lent<R>(
        &self,
        note: ContextNote,
        exchange: &mut Exchange,
        run: impl FnOnce(&mut Vm) -> Result<R, PluginFailure>,
    ) -> Result<R, PluginFailure> {
        self.with(note, |vm| vm.lend(exchange, run))
    }

    /// What a failure means for an exchange: with `fail: open`, none of the plugin takes part in it any more.
    fn failed(&self, exchange: &mut Exchange, failure: &PluginFailure) -> Result<(), Stop> {
        failure.report(&self.facts);
        if !self.facts.fails_open {
            return Err(Stop::Internal);
        }
        if let Some(note) = self.context(exchange) {
            exchange.notes.write(self.note, ContextNote { held: None, is_over: true, ..note }.numbers());
        }
        Ok(())
    }

    /// The first call for an exchange: its context, and the head of its request.
    fn begin(&self, exchange: &mut Exchange) -> Result<NextStep, PluginFailure> {
        let has_content = exchange.request.framing.has_body();
        let key = self.note;
        self.worker.get().with(&self.outside, |vm| {
            let context = vm.open()?;
            let mut note = ContextNote { serial: vm.serial, context, held: None, is_over: false };
            exchange.notes.write(key, note.numbers());
            let next = vm.lend(exchange, |vm| {
                let action = vm.on_headers(MessageSide::Request, context, REQUEST, !has_content)?;
                let may_hold = has_content && vm.sees_content(MessageSide::Request);
                Ok(next(vm, context, action, may_hold))
            })?;
            if matches!(next, NextStep::Hold) {
                note.held = Some(MessageSide::Request);
                exchange.notes.write(key, note.numbers());
            }
            Ok(next)
        })
    }

    fn flow<'a>(
        &'a self,
        exchange: &'a mut Exchange,
        next: Result<NextStep, PluginFailure>,
        content: Option<&'a mut Vec<u8>>,
    ) -> Result<Flow<'a>, Stop> {
        match next {
            Ok(NextStep::Continue | NextStep::Hold) => Ok(Flow::Continue),
            Ok(NextStep::Answered(answer)) => Err(respond(exchange, answer)),
            Ok(NextStep::Wait(calls)) => {
                let Some(note) = self.context(exchange) else { return Ok(Flow::Continue) };
                Ok(Flow::wait(self.wait(exchange, note, calls, content)))
            }
            Err(failure) => self.failed(exchange, &failure).map(Flow::from),
        }
    }

    /// Waits until the plugin lets the request go on or answers it.
    async fn wait(
        &self,
        exchange: &mut Exchange,
        note: ContextNote,
        calls: Vec<OutgoingCall>,
        content: Option<&mut Vec<u8>>,
    ) -> Result<(), Stop> {
        match self.until_next(exchange, note, calls, content).await {
            Ok(Some(answer)) => Err(respond(exchange, answer)),
            Ok(None) => Ok(()),
            Err(failure) => self.failed(exchange, &failure),
        }
    }

    async fn until_next(
        &self,
        exchange: &mut Exchange,
        note: ContextNote,
        calls: Vec<OutgoingCall>,
        mut content: Option<&mut Vec<u8>>,
    ) -> Result<Option<LocalAnswer>, PluginFailure> {
        let mut in_flight = CallsInFlight { plugin: self, note, tasks: JoinSet::new() };
        in_flight.add(calls);
        let (woken, ticks) = self.with(note, |vm| Ok((vm.woken(note.context), vm.tick().is_some())))?;
        let woken = woken.ok_or(PluginFailure::Lost)?;
        let deadline = Instant::now() + limits::PAUSE;
        loop {
            if in_flight.tasks.is_empty() && !ticks {
                return Err(PluginFailure::Stuck);
            }
            let answer = tokio::select! {
                Some(Ok(answer)) = in_flight.tasks.join_next() => Some(answer),
                () = woken.notified() => None,
                () = sleep_until(deadline) => return Err(PluginFailure::Unresumed(limits::PAUSE)),
            };
            let (answer, is_resumed, calls) = self.take(exchange, note, answer, content.as_deref_mut())?;
            if answer.is_some() || is_resumed {
                return Ok(answer);
            }
            in_flight.add(calls);
        }
    }

    /// Gives an instance an answer for an exchange that waits, and takes what the plugin decides.
    fn take(
        &self,
        exchange: &mut Exchange,
        note: ContextNote,
        answer: Option<CallAnswer>,
        content: Option<&mut Vec<u8>>,
    ) -> Result<(Option<LocalAnswer>, bool, Vec<OutgoingCall>), PluginFailure> {
        self.with_lent(note, exchange, |vm| {
            if let Some(answer) = answer {
                match content {
                    None => vm.on_answer(answer, REQUEST)?,
                    Some(content) => {
                        vm.show_content(Some(std::mem::take(content)));
                        let done = vm.on_answer(answer, REQUEST);
                        *content = vm.take_content().unwrap_or_default();
                        done?;
                    }
                }
            }
            Ok((vm.take_answer(note.context), vm.take_resumed(note.context), vm.take_calls(note.context)))
        })
    }

    /// The filter for content that the plugin sees piece by piece.
    fn filter(&self, exchange: &mut Exchange, side: MessageSide) -> Result<Option<Box<dyn Filter>>, Stop> {
        let Some(note) = self.context(exchange).filter(|note| note.held != Some(side)) else {
            return Ok(None);
        };
        match self.with(note, |vm| Ok(vm.sees_content(side))) {
            Ok(false) => Ok(None),
            Ok(true) => {
                let message = FilteredMessage { side, serial: note.serial, context: note.context };
                let (worker, outside) = (self.worker.get(), self.outside.clone());
                let filter = WasmContentFilter::new(message, worker, outside, Arc::clone(&self.facts), exchange);
                Ok(Some(Box::new(filter)))
            }
            Err(failure) => self.failed(exchange, &failure).map(|()| None),
        }
    }
}

/// The calls of an exchange that waits. If it ends before, they are given up.
struct CallsInFlight<'p> {
    plugin: &'p WasmPlugin,
    note: ContextNote,
    tasks: JoinSet<CallAnswer>,
}

impl CallsInFlight<'_> {
    fn add(&mut self, calls: Vec<OutgoingCall>) {
        for call in calls {
            let (http, facts) = (self.plugin.outside.http.clone(), Arc::clone(&self.plugin.facts));
            self.tasks.spawn_local(service_call::make(http, call, facts));
        }
    }
}

impl Drop for CallsInFlight<'_> {
    fn drop(&mut self) {
        let count = self.tasks.len();
        if count > 0 {
            let _ = self.plugin.with(self.note, |vm| {
                vm.forget_calls(count);
                Ok(())
            });
        }
    }
}

/// What a call into the plugin means for the request.
fn next(vm: &mut Vm, context: u32, action: CallbackAction, may_hold: bool) -> NextStep {
    if let Some(answer) = vm.take_answer(context) {
        return NextStep::Answered(answer);
    }
    if action == CallbackAction::Continue || vm.take_resumed(context) {
        return NextStep::Continue;
    }
    let calls = vm.take_calls(context);
    if calls.is_empty() && may_hold {
        return NextStep::Hold;
    }
    // From now on the plugin may let it go on at any time.
    vm.woken(context);
    NextStep::Wait(calls)
}

/// Puts a response of the plugin into the exchange.
fn respond(exchange: &mut Exchange, answer: LocalAnswer) -> Stop {
    let of_type = |name: &[u8]| field::same_name(name, b"content-type");
    let content_type = answer.fields.iter().find(|(name, _)| of_type(name));
    let content_type = content_type.and_then(|(_, value)| std::str::from_utf8(value).ok()).unwrap_or("text/plain");
    let stop = exchange.respond(answer.status, content_type, &answer.body);
    for (name, value) in answer.fields.iter().filter(|(name, _)| !of_type(name) && !name.starts_with(b":")) {
        let known = field::Known::parse(name);
        if known.is_hop_by_hop() || known == field::Known::ContentLength {
            continue;
        }
        if exchange.response.head.add(name, value).is_err() {
            return Stop::Internal;
        }
    }
    stop
}

impl Plugin for WasmPlugin {
    fn phases(&self) -> Phases {
        let of_body = |is_seen: bool, phase: Phases| if is_seen { phase } else { Phases::NONE };
        Phases::REQUEST
            .and(of_body(self.content.request, Phases::REQUEST_BODY))
            .and(Phases::RESPONSE)
            .and(of_body(self.content.response, Phases::RESPONSE_BODY))
            .and(Phases::LOG)
            .and(Phases::START)
    }

    fn start(&self) -> Result<(), String> {
        let clock = EpochClock::run()?;
        // If it has been started before, one clock is as good as another.
        let _ = self.clock.set(clock);
        Ok(())
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        let next = self.begin(exchange);
        self.flow(exchange, next, None)
    }

    fn whole_request(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        let holds = self.context(exchange).is_some_and(|note| note.held == Some(MessageSide::Request));
        Ok(holds.then_some(limits::HELD_BYTES))
    }

    fn on_request_body<'a>(&'a self, exchange: &'a mut Exchange, body: &'a mut Vec<u8>) -> Result<Flow<'a>, Stop> {
        let Some(note) = self.context(exchange) else { return Ok(Flow::Continue) };
        let next = self.with_lent(note, exchange, |vm| {
            let action = vm.on_body(MessageSide::Request, (note.context, REQUEST), body, true)?;
            Ok(next(vm, note.context, action, false))
        });
        self.flow(exchange, next, Some(body))
    }

    fn request_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        self.filter(exchange, MessageSide::Request)
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let Some(mut note) = self.context(exchange) else { return Ok(()) };
        let is_here = exchange.is_answered_here();
        let is_end = if is_here { exchange.body.is_empty() } else { !exchange.response.framing.has_body() };
        let done = self.with_lent(note, exchange, |vm| {
            let action = vm.on_headers(MessageSide::Response, note.context, RESPONSE, is_end)?;
            let waits = action == CallbackAction::Pause && !vm.take_resumed(note.context);
            Ok((vm.take_answer(note.context), waits && vm.sees_content(MessageSide::Response)))
        });
        match done {
            Ok((Some(answer), _)) => Err(respond(exchange, answer)),
            Ok((None, holds)) => {
                let held = holds.then_some(MessageSide::Response);
                if note.held != held {
                    note.held = held;
                    exchange.notes.write(self.note, note.numbers());
                }
                Ok(())
            }
            Err(failure) => self.failed(exchange, &failure),
        }
    }

    fn whole_response(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        let holds = self.context(exchange).is_some_and(|note| note.held == Some(MessageSide::Response));
        Ok(holds.then_some(limits::HELD_BYTES))
    }

    fn on_response_body(&self, exchange: &mut Exchange, body: &mut Vec<u8>) -> Result<(), Stop> {
        let Some(note) = self.context(exchange) else { return Ok(()) };
        let done = self.with_lent(note, exchange, |vm| {
            let action = vm.on_body(MessageSide::Response, (note.context, RESPONSE), body, true)?;
            let waits = action == CallbackAction::Pause && !vm.take_resumed(note.context);
            Ok((vm.take_answer(note.context), waits))
        });
        match done {
            Ok((Some(answer), _)) => Err(respond(exchange, answer)),
            Ok((None, true)) => self.failed(exchange, &PluginFailure::Stuck),
            Ok((None, false)) => Ok(()),
            Err(failure) => self.failed(exchange, &failure),
        }
    }

    fn response_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        self.filter(exchange, MessageSide::Response)
    }

    fn on_log(&self, exchange: &Exchange) {
        let Some(note) = self.noted(exchange) else { return };
        // The instance may have failed since, or fail now: both have been logged, and the exchange is over.
        let _ = self.with(note, |vm| {
            if !vm.logs() {
                return vm.close(note.context, LOG);
            }
            let mut copy = copy_of(exchange);
            vm.lend(&mut copy, |vm| vm.close(note.context, LOG))
        });
    }
}
