//! An instance of a plugin's code: starting it, and calling its functions.

use std::mem;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::Notify;
use wasmtime::{Instance, InstancePre, Store, Trap, TypedFunc, WasmParams, WasmResults};
use weir_plugin::Exchange;

use crate::abi::{CallbackAction, MapKind};
use crate::engine::{EpochClock, engine, ticks};
use crate::host;
use crate::lent::{self, Borrower, LentExchange};
use crate::limits;
use crate::state::{CallAnswer, HostState, LocalAnswer, OutgoingCall, Outside, PluginFacts, ROOT, Rights};

/// Why a plugin did not do its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PluginFailure {
    /// Its code has failed, so that the instance cannot be used any more.
    Trap(String),
    /// The same: a call took longer than it may.
    TimedOut(Duration),
    /// It has refused to start.
    Refused(String),
    /// There is no instance: the last ones have failed, and the next one is made later.
    Away,
    /// The instance that knew the exchange is no more.
    Lost,
    /// Nothing lets the exchange go on.
    Stuck,
    /// It has held a request for as long as it may.
    Unresumed(Duration),
}

impl PluginFailure {
    /// Logs and counts a failure that leaves the instance as it is. Those of the code itself have been logged, with what becomes of the
    /// instance.
    pub(crate) fn report(&self, facts: &PluginFacts) {
        if matches!(self, PluginFailure::Stuck | PluginFailure::Unresumed(_) | PluginFailure::Refused(_)) {
            facts.metrics.failures.fetch_add(1, Relaxed);
            facts.log.failure(self);
        }
    }
}

impl std::fmt::Display for PluginFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PluginFailure::Trap(reason) => f.write_str(reason),
            PluginFailure::TimedOut(time) => write!(f, "a call took longer than {} ms", time.as_millis()),
            PluginFailure::Refused(reason) => f.write_str(reason),
            PluginFailure::Away => f.write_str("it has failed before, and is started again later"),
            PluginFailure::Lost => f.write_str("the instance that the exchange belonged to has failed"),
            PluginFailure::Stuck => f.write_str("it holds a message for which it waits for nothing"),
            PluginFailure::Unresumed(time) => write!(f, "it has held a request for {} s", time.as_secs()),
        }
    }
}

/// A function that older plugins have without the flag for the end of the stream.
enum Headers {
    Old(TypedFunc<(u32, u32), u32>),
    New(TypedFunc<(u32, u32, u32), u32>),
}

/// Context, call, and the number of header fields, bytes of content and trailer fields.
type CallResponseArguments = (u32, u32, u32, u32, u32);

/// The functions that the plugin exports.
struct Callbacks {
    on_context_create: Option<TypedFunc<(u32, u32), ()>>,
    on_vm_start: Option<TypedFunc<(u32, u32), u32>>,
    on_configure: Option<TypedFunc<(u32, u32), u32>>,
    on_tick: Option<TypedFunc<u32, ()>>,
    on_request_headers: Option<Headers>,
    on_request_body: Option<TypedFunc<(u32, u32, u32), u32>>,
    on_request_trailers: Option<TypedFunc<(u32, u32), u32>>,
    on_response_headers: Option<Headers>,
    on_response_body: Option<TypedFunc<(u32, u32, u32), u32>>,
    on_response_trailers: Option<TypedFunc<(u32, u32), u32>>,
    on_http_call_response: Option<TypedFunc<CallResponseArguments, ()>>,
    on_done: Option<TypedFunc<u32, u32>>,
    on_log: Option<TypedFunc<u32, ()>>,
    on_delete: Option<TypedFunc<u32, ()>>,
}

/// The message whose content or trailers a plugin sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageSide {
    Request,
    Response,
}

/// An instance.
pub(crate) struct Vm {
    store: InstanceStore,
    callbacks: Callbacks,
    facts: Arc<PluginFacts>,
    next_context: u32,
    /// Which of the instances of the worker it is.
    pub serial: u64,
    _clock: EpochClock,
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.facts.metrics.instances.fetch_sub(1, Relaxed);
    }
}

/// The state of an instance, apart from its functions: to call one, it is borrowed, since each copy of one is counted by all
/// workers together.
struct InstanceStore {
    store: Store<HostState>,
    /// How long a call for an exchange may take, also in ticks of the clock.
    callback_time: Duration,
    callback_ticks: u64,
}

impl Deref for InstanceStore {
    type Target = Store<HostState>;

    fn deref(&self) -> &Store<HostState> {
        &self.store
    }
}

impl DerefMut for InstanceStore {
    fn deref_mut(&mut self) -> &mut Store<HostState> {
        &mut self.store
    }
}

impl InstanceStore {
    fn call_for<P: WasmParams, R: WasmResults>(
        &mut self,
        time: Duration,
        callback: &TypedFunc<P, R>,
        parameters: P,
    ) -> Result<R, PluginFailure> {
        self.store.set_epoch_deadline(ticks(time));
        let answer = callback.call(&mut self.store, parameters).map_err(|error| failure(&error, time));
        self.store.data_mut().end_lines();
        answer
    }

    /// Calls a function for a context; `None` if the plugin has no such function.
    #[inline]
    fn call<P: WasmParams, R: WasmResults>(
        &mut self,
        callback: Option<&TypedFunc<P, R>>,
        of: (u32, Rights),
        parameters: P,
    ) -> Result<Option<R>, PluginFailure> {
        match callback {
            None => Ok(None),
            Some(callback) => self.call_present(callback, of, parameters).map(Some),
        }
    }

    fn call_present<P: WasmParams, R: WasmResults>(
        &mut self,
        callback: &TypedFunc<P, R>,
        (context, rights): (u32, Rights),
        parameters: P,
    ) -> Result<R, PluginFailure> {
        let state = self.store.data_mut();
        (state.context, state.rights) = (context, rights);
        self.store.set_epoch_deadline(self.callback_ticks);
        let answer = callback.call(&mut self.store, parameters);
        let state = self.store.data_mut();
        state.end_lines();
        (state.context, state.rights) = (ROOT, Rights::default());
        answer.map_err(|error| failure(&error, self.callback_time))
    }

    fn content(&mut self, side: MessageSide) -> &mut Option<Vec<u8>> {
        let state = self.store.data_mut();
        match side {
            MessageSide::Request => &mut state.request_body,
            MessageSide::Response => &mut state.response_body,
        }
    }

    fn trailers(&mut self, side: MessageSide) -> &mut Option<weir_proto::Trailers> {
        let state = self.store.data_mut();
        match side {
            MessageSide::Request => &mut state.request_trailers,
            MessageSide::Response => &mut state.response_trailers,
        }
    }
}

impl Vm {
    /// Makes an instance, and starts it with its configuration. In a trial, it leaves nothing behind.
    pub(crate) fn start(
        code: &InstancePre<HostState>,
        facts: &Arc<PluginFacts>,
        outside: Outside,
        (serial, is_trial): (u64, bool),
    ) -> Result<Vm, PluginFailure> {
        let clock = EpochClock::run().map_err(PluginFailure::Refused)?;
        let mut store = Store::new(engine(), HostState::new(facts, outside, is_trial));
        store.limiter(|state| &mut state.limit);
        store.set_epoch_deadline(ticks(limits::START_TIME));
        let instance = code.instantiate(&mut store).map_err(|error| failure(&error, limits::START_TIME))?;
        let memory = instance.get_memory(&mut store, "memory");
        let allocate = function(&instance, &mut store, "proxy_on_memory_allocate")
            .or_else(|| function(&instance, &mut store, "malloc"));
        (store.data_mut().memory, store.data_mut().allocate) = (memory, allocate.map(Box::new));
        let callbacks = Callbacks::of(&instance, &mut store);
        facts.metrics.instances.fetch_add(1, Relaxed);
        let facts = Arc::clone(facts);
        let callback_time = facts.callback_time;
        let store = InstanceStore { store, callback_time, callback_ticks: ticks(callback_time) };
        let mut vm = Vm { store, callbacks, facts, next_context: ROOT + 1, serial, _clock: clock };
        vm.initialize(&instance)?;
        Ok(vm)
    }

    fn initialize(&mut self, instance: &Instance) -> Result<(), PluginFailure> {
        let time = limits::START_TIME;
        if let Some(start) = function::<(), ()>(instance, &mut self.store.store, "_initialize") {
            self.store.call_for(time, &start, ())?;
            if let Some(main) = function::<(u32, u32), u32>(instance, &mut self.store.store, "main") {
                self.store.call_for(time, &main, (0, 0))?;
            }
        } else if let Some(start) = function::<(), ()>(instance, &mut self.store.store, "_start") {
            self.store.call_for(time, &start, ())?;
        }
        self.store.data_mut().contexts.add(ROOT);
        if let Some(create) = &self.callbacks.on_context_create {
            self.store.call_for(time, create, (ROOT, 0))?;
        }
        if let Some(start) = &self.callbacks.on_vm_start
            && self.store.call_for(time, start, (ROOT, 0))? == 0
        {
            return Err(self.refused("proxy_on_vm_start"));
        }
        let length = self.facts.conf.len() as u32;
        if let Some(configure) = &self.callbacks.on_configure
            && self.store.call_for(time, configure, (ROOT, length))? == 0
        {
            return Err(self.refused("proxy_on_configure"));
        }
        Ok(())
    }

    fn refused(&mut self, function: &str) -> PluginFailure {
        let told = self.store.data_mut().trial.take().unwrap_or_default().join("; ");
        let told = if told.is_empty() { told } else { format!(": {told}") };
        PluginFailure::Refused(format!("the plugin refuses it (`{function}`){told}"))
    }

    /// Sets what it reaches outside of the process.
    #[inline]
    pub(crate) fn reach(&mut self, outside: &Outside) {
        if !Arc::ptr_eq(&self.store.data().outside.services, &outside.services) {
            self.reach_other(outside);
        }
    }

    /// After a change of the configuration.
    #[cold]
    fn reach_other(&mut self, outside: &Outside) {
        self.store.data_mut().outside = outside.clone();
    }

    /// Makes a context for an exchange.
    pub(crate) fn open(&mut self) -> Result<u32, PluginFailure> {
        let context = self.make_context();
        self.store.call(self.callbacks.on_context_create.as_ref(), (context, Rights::default()), (context, ROOT))?;
        Ok(context)
    }

    /// Makes a context with the next number. After all have been used, those of exchanges that have ended are used again.
    fn make_context(&mut self) -> u32 {
        loop {
            let context = self.next_context;
            self.next_context = context.checked_add(1).unwrap_or(ROOT + 1);
            // There are far fewer exchanges at a time than numbers.
            if self.store.data_mut().contexts.add(context) {
                return context;
            }
        }
    }

    /// Ends the context of an exchange that has ended.
    pub(crate) fn close(&mut self, context: u32, rights: Rights) -> Result<(), PluginFailure> {
        self.store.call(self.callbacks.on_done.as_ref(), (context, rights), context)?;
        self.store.call(self.callbacks.on_log.as_ref(), (context, rights), context)?;
        self.store.call(self.callbacks.on_delete.as_ref(), (context, Rights::default()), context)?;
        self.store.data_mut().end_context(context);
        Ok(())
    }

    /// The plugin wants to see exchanges that have ended.
    pub(crate) fn logs(&self) -> bool {
        self.callbacks.on_log.is_some()
    }

    pub(crate) fn sees_content(&self, side: MessageSide) -> bool {
        match side {
            MessageSide::Request => {
                self.callbacks.on_request_body.is_some() || self.callbacks.on_request_trailers.is_some()
            }
            MessageSide::Response => {
                self.callbacks.on_response_body.is_some() || self.callbacks.on_response_trailers.is_some()
            }
        }
    }

    pub(crate) fn on_headers(
        &mut self,
        side: MessageSide,
        context: u32,
        rights: Rights,
        is_end: bool,
    ) -> Result<CallbackAction, PluginFailure> {
        let (callback, kind) = match side {
            MessageSide::Request => (&self.callbacks.on_request_headers, MapKind::Request),
            MessageSide::Response => (&self.callbacks.on_response_headers, MapKind::Response),
        };
        // What let an earlier message go on says nothing about this one.
        self.store.data_mut().resumed(context);
        let count = host::map_size(self.store.data(), kind);
        let action = match callback {
            None => None,
            Some(Headers::Old(callback)) => self.store.call(Some(callback), (context, rights), (context, count))?,
            Some(Headers::New(callback)) => {
                self.store.call(Some(callback), (context, rights), (context, count, is_end.into()))?
            }
        };
        Ok(action.map_or(CallbackAction::Continue, CallbackAction::of))
    }

    /// Shows content to the plugin, which may change it.
    pub(crate) fn on_body(
        &mut self,
        side: MessageSide,
        (context, rights): (u32, Rights),
        content: &mut Vec<u8>,
        is_end: bool,
    ) -> Result<CallbackAction, PluginFailure> {
        let callback = match side {
            MessageSide::Request => self.callbacks.on_request_body.as_ref(),
            MessageSide::Response => self.callbacks.on_response_body.as_ref(),
        };
        self.store.data_mut().resumed(context);
        let size = content.len() as u32;
        *self.store.content(side) = Some(mem::take(content));
        let action = self.store.call(callback, (context, rights), (context, size, is_end.into()));
        *content = self.store.content(side).take().unwrap_or_default();
        Ok(action?.map_or(CallbackAction::Continue, CallbackAction::of))
    }

    /// Lets the plugin see and change the content of a request while a call is answered.
    pub(crate) fn show_content(&mut self, content: Option<Vec<u8>>) {
        self.store.data_mut().request_body = content;
    }

    pub(crate) fn take_content(&mut self) -> Option<Vec<u8>> {
        self.store.data_mut().request_body.take()
    }

    pub(crate) fn on_trailers(
        &mut self,
        side: MessageSide,
        (context, rights): (u32, Rights),
        trailers: &mut weir_proto::Trailers,
    ) -> Result<CallbackAction, PluginFailure> {
        self.store.data_mut().resumed(context);
        let callback = match side {
            MessageSide::Request => self.callbacks.on_request_trailers.as_ref(),
            MessageSide::Response => self.callbacks.on_response_trailers.as_ref(),
        };
        let count = trailers.fields().count() as u32;
        *self.store.trailers(side) = Some(mem::take(trailers));
        let done = self.store.call(callback, (context, rights), (context, count));
        *trailers = self.store.trailers(side).take().unwrap_or_default();
        Ok(done?.map_or(CallbackAction::Continue, CallbackAction::of))
    }

    pub(crate) fn on_tick(&mut self) -> Result<(), PluginFailure> {
        let rights = Rights { calls: true, ..Rights::default() };
        self.store.call(self.callbacks.on_tick.as_ref(), (ROOT, rights), ROOT).map(drop)
    }

    /// Gives the plugin the answer of a service. Of an exchange that has ended meanwhile, nothing is left to tell it.
    pub(crate) fn on_answer(&mut self, answer: CallAnswer, rights: Rights) -> Result<(), PluginFailure> {
        let (token, context) = (answer.token, answer.context);
        let state = self.store.data_mut();
        state.in_flight = state.in_flight.saturating_sub(1);
        if !state.contexts.contains(context) {
            return Ok(());
        }
        let parameters =
            (context, token, answer.fields.len() as u32, answer.body.len() as u32, answer.trailers.len() as u32);
        state.call_answer = Some(answer);
        let done = self.store.call(self.callbacks.on_http_call_response.as_ref(), (context, rights), parameters);
        self.store.data_mut().call_answer = None;
        done.map(drop)
    }

    /// It has neither asked for calls that were not taken, nor for ticks.
    pub(crate) fn wants_nothing(&self) -> bool {
        let state = self.store.data();
        state.outbox.is_empty() && state.tick.is_none()
    }

    /// The time between ticks that the plugin wants.
    pub(crate) fn tick(&self) -> Option<Duration> {
        self.store.data().tick
    }

    /// The response that the plugin has made for an exchange.
    pub(crate) fn take_answer(&mut self, context: u32) -> Option<LocalAnswer> {
        self.store.data_mut().take_answer(context)
    }

    /// Whether the plugin has let the request of an exchange go on since it was last asked.
    pub(crate) fn take_resumed(&mut self, context: u32) -> bool {
        self.store.data_mut().resumed(context)
    }

    /// What tells an exchange that the plugin has something for it.
    pub(crate) fn woken(&mut self, context: u32) -> Option<Rc<Notify>> {
        let context = self.store.data_mut().contexts.get_mut(context)?;
        Some(Rc::clone(context.woken.get_or_insert_default()))
    }

    /// The calls that the plugin has asked for in the name of an exchange; they count as in flight from now on.
    pub(crate) fn take_calls(&mut self, context: u32) -> Vec<OutgoingCall> {
        let state = self.store.data_mut();
        let (own, others) = mem::take(&mut state.outbox).into_iter().partition(|call| call.context == context);
        state.outbox = others;
        self.sent(own)
    }

    /// Takes the calls that have not been taken yet.
    pub(crate) fn take_all_calls(&mut self) -> Vec<OutgoingCall> {
        let all = mem::take(&mut self.store.data_mut().outbox);
        self.sent(all)
    }

    fn sent(&mut self, calls: Vec<OutgoingCall>) -> Vec<OutgoingCall> {
        self.store.data_mut().in_flight += calls.len();
        calls
    }

    /// A call that counted as in flight is given up.
    pub(crate) fn forget_calls(&mut self, count: usize) {
        let state = self.store.data_mut();
        state.in_flight = state.in_flight.saturating_sub(count);
    }

    /// Runs something while it has an exchange.
    pub(crate) fn lend<R>(&mut self, exchange: &mut Exchange, run: impl FnOnce(&mut Vm) -> R) -> R {
        lent::lend(self, exchange, run)
    }

    #[cfg(test)]
    pub(crate) fn state(&mut self) -> &mut HostState {
        self.store.data_mut()
    }

    #[cfg(test)]
    pub(crate) fn memory(&mut self, at: usize, size: usize) -> Vec<u8> {
        let memory = self.store.data().memory.expect("it has been started");
        memory.data(&*self.store)[at..at + size].to_vec()
    }

    #[cfg(test)]
    pub(crate) fn contexts(&self) -> usize {
        self.store.data().contexts.len()
    }
}

impl Borrower for Vm {
    fn place(&mut self) -> &mut LentExchange {
        &mut self.store.data_mut().exchange
    }
}

impl Callbacks {
    fn of(instance: &Instance, store: &mut Store<HostState>) -> Callbacks {
        let headers = |store: &mut Store<HostState>, name: &str| {
            let new = function(instance, store, name).map(Headers::New);
            new.or_else(|| function(instance, store, name).map(Headers::Old))
        };
        Callbacks {
            on_request_headers: headers(store, "proxy_on_request_headers"),
            on_response_headers: headers(store, "proxy_on_response_headers"),
            on_context_create: function(instance, store, "proxy_on_context_create"),
            on_vm_start: function(instance, store, "proxy_on_vm_start"),
            on_configure: function(instance, store, "proxy_on_configure"),
            on_tick: function(instance, store, "proxy_on_tick"),
            on_request_body: function(instance, store, "proxy_on_request_body"),
            on_request_trailers: function(instance, store, "proxy_on_request_trailers"),
            on_response_body: function(instance, store, "proxy_on_response_body"),
            on_response_trailers: function(instance, store, "proxy_on_response_trailers"),
            on_http_call_response: function(instance, store, "proxy_on_http_call_response"),
            on_done: function(instance, store, "proxy_on_done"),
            on_log: function(instance, store, "proxy_on_log"),
            on_delete: function(instance, store, "proxy_on_delete"),
        }
    }
}

/// A function of this type, if the plugin exports one.
fn function<P: WasmParams, R: WasmResults>(
    instance: &Instance,
    store: &mut Store<HostState>,
    name: &str,
) -> Option<TypedFunc<P, R>> {
    instance.get_typed_func(store, name).ok()
}

#[cold]
fn failure(error: &wasmtime::Error, time: Duration) -> PluginFailure {
    match error.downcast_ref::<Trap>() {
        Some(Trap::Interrupt) => PluginFailure::TimedOut(time),
        Some(trap) => PluginFailure::Trap(format!("{trap}")),
        None => PluginFailure::Trap(error.root_cause().to_string()),
    }
}
