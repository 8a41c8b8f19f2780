//! Instances for tests, of plugins written as WebAssembly text.

use std::sync::Arc;
use std::time::Duration;

use weir_plugin::{CalledService, Exchange, Services};

use crate::abi::CallbackAction;
use crate::loaded::{CompiledModule, compiled};
use crate::log::PluginLog;
use crate::metrics::PluginMetrics;
use crate::shared_data::SharedData;
use crate::state::{Access, Outside, PluginFacts, Rights};
use crate::vm::{MessageSide, PluginFailure, Vm};

#[path = "../../../tests/plugins/wasm/module.rs"]
mod module;

pub(crate) use crate::trial::exchange;
pub(crate) use module::module;

/// Everything is allowed.
pub(crate) const ALL: Rights = Rights { request: Access::Write, response: Access::Write, answers: true, calls: true };

pub(crate) fn facts(name: &'static str) -> PluginFacts {
    PluginFacts {
        name,
        conf: b"the configuration".to_vec(),
        callback_time: Duration::from_millis(50),
        memory: 1 << 20,
        fails_open: false,
        shared: Arc::new(SharedData::default()),
        metrics: PluginMetrics::of(name),
        log: PluginLog::new(name),
    }
}

pub(crate) fn compile(functions: &str) -> Arc<CompiledModule> {
    compiled(&module(functions)).unwrap_or_else(|error| panic!("{error}"))
}

/// An instance that knows one service, `auth`.
pub(crate) fn started(functions: &str, facts: PluginFacts) -> Result<Vm, PluginFailure> {
    let service = CalledService { urls: ["http://127.0.0.1:1".into()].into(), is_verified: true };
    let services = Arc::new(Services::from([("auth".into(), service)]));
    let outside = Outside { services, ..Outside::default() };
    Vm::start(&compile(functions).pre, &Arc::new(facts), outside, (1, false))
}

pub(crate) fn vm(functions: &str) -> Vm {
    started(functions, facts("tested")).unwrap_or_else(|failure| panic!("{failure}"))
}

/// What the plugin's function for heads of requests stores at the beginning of its memory: four bytes at a time.
pub(crate) struct Ran {
    pub vm: Vm,
    pub exchange: Exchange,
    pub result: Result<CallbackAction, PluginFailure>,
    pub context: u32,
}

impl Ran {
    /// The number that a host function has answered, stored at 0.
    pub(crate) fn status(&mut self) -> u32 {
        self.number(0)
    }

    pub(crate) fn number(&mut self, at: usize) -> u32 {
        u32::from_le_bytes(self.vm.memory(at, 4).try_into().expect("four bytes"))
    }

    /// The bytes that the host has given last.
    pub(crate) fn given(&mut self) -> Vec<u8> {
        let (place, size) = (self.number(16) as usize, self.number(20) as usize);
        self.vm.memory(place, size)
    }
}

/// Runs a body of the function for heads of requests, on [`exchange`], with these rights.
pub(crate) fn run_with(rights: Rights, body: &str, prepare: impl FnOnce(&mut Vm)) -> Ran {
    let functions =
        format!("(func (export \"proxy_on_request_headers\") (param i32 i32 i32) (result i32) {body} (i32.const 0))");
    let (mut vm, mut exchange) = (vm(&functions), exchange());
    let context = vm.open().unwrap_or_else(|failure| panic!("{failure}"));
    prepare(&mut vm);
    let result = vm.lend(&mut exchange, |vm| vm.on_headers(MessageSide::Request, context, rights, true));
    Ran { vm, exchange, result, context }
}

/// Stores what a host function answers at 0.
pub(crate) fn run(call: &str) -> Ran {
    run_with(ALL, &format!("(i32.store (i32.const 0) {call})"), |_| ())
}
