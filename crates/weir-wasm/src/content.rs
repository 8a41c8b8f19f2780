//! Content that a plugin sees piece by piece.

use std::rc::Rc;
use std::sync::Arc;

use weir_plugin::{Exchange, Filter, Held, Stop};
use weir_proto::Trailers;

use crate::abi::CallbackAction;
use crate::limits;
use crate::state::{Access, Outside, PluginFacts, Rights, copy_of};
use crate::vm::{MessageSide, PluginFailure, Vm};
use crate::worker::WorkerPlugin;

/// The heads have been passed on: they can be read, as they were then.
const STREAMED: Rights = Rights { request: Access::Read, response: Access::Read, answers: true, calls: false };

/// The message, and whose it is.
#[derive(Clone, Copy)]
pub struct FilteredMessage {
    pub side: MessageSide,
    pub serial: u64,
    pub context: u32,
}

/// Shows the content of one message to the plugin.
pub struct WasmContentFilter {
    message: FilteredMessage,
    worker: Rc<WorkerPlugin>,
    outside: Outside,
    facts: Arc<PluginFacts>,
    seen: Exchange,
    /// What the plugin has held back.
    kept: Vec<u8>,
    held: Held,
    had_trailers: bool,
    /// With `fail: open`, the rest passes as it is.
    has_failed: bool,
    stop: Option<Stop>,
}

impl WasmContentFilter {
    pub fn new(
        message: FilteredMessage,
        worker: Rc<WorkerPlugin>,
        outside: Outside,
        facts: Arc<PluginFacts>,
        exchange: &Exchange,
    ) -> WasmContentFilter {
        WasmContentFilter {
            message,
            worker,
            outside,
            facts,
            seen: copy_of(exchange),
            kept: Vec::new(),
            held: Held::of(exchange.client.addr),
            had_trailers: false,
            has_failed: false,
            stop: None,
        }
    }

    fn with<R>(&mut self, run: impl FnOnce(&mut Vm) -> Result<R, PluginFailure>) -> Result<R, PluginFailure> {
        let serial = self.message.serial;
        let seen = &mut self.seen;
        self.worker.with(&self.outside, |vm| match vm.serial == serial {
            true => run(&mut vm.lend(seen)),
            false => Err(PluginFailure::Lost),
        })
    }

    /// Shows what has been kept, with what has come, and passes on what the plugin does not hold back.
    fn show(&mut self, is_end: bool, out: &mut Vec<u8>) -> Result<(), Stop> {
        let FilteredMessage { side, context, .. } = self.message;
        let mut content = std::mem::take(&mut self.kept);
        let done = self.with(|vm| {
            let action = vm.on_body(side, (context, STREAMED), &mut content, is_end)?;
            let resumed = vm.take_resumed(context);
            Ok((vm.take_answer(context), action == CallbackAction::Pause && !resumed))
        });
        match done {
            // Nothing can wait for an answer here, so the end is passed on in any case.
            Ok((None, waits)) if waits && !is_end => {
                self.kept = content;
                self.hold()
            }
            Ok((None, _)) => {
                out.append(&mut content);
                self.hold()
            }
            // The head of a response has been sent, so it cannot be replaced any more.
            Ok((Some(_), _)) if side == MessageSide::Response => Err(Stop::Internal),
            Ok((Some(answer), _)) => Err(Stop::Respond(answer.status)),
            Err(_) if self.facts.fails_open => {
                self.has_failed = true;
                out.append(&mut content);
                Ok(())
            }
            Err(_) => Err(Stop::Internal),
        }
    }

    fn hold(&mut self) -> Result<(), Stop> {
        let bytes = self.kept.len() as u64;
        if bytes > limits::HELD_BYTES {
            return Err(match self.message.side {
                MessageSide::Request => Stop::BodyTooLarge,
                MessageSide::Response => Stop::ResponseTooLarge,
            });
        }
        Ok(self.held.set(bytes)?)
    }
}

impl Filter for WasmContentFilter {
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), Stop> {
        if self.has_failed || piece.is_empty() {
            out.extend_from_slice(piece);
            return Ok(());
        }
        self.kept.extend_from_slice(piece);
        self.show(false, out)
    }

    fn trailers(&mut self, trailers: &mut Trailers) {
        if self.has_failed || trailers.is_empty() {
            return;
        }
        self.had_trailers = true;
        let FilteredMessage { side, context, .. } = self.message;
        if self.with(|vm| vm.on_trailers(side, (context, STREAMED), trailers)).is_err() {
            self.has_failed = true;
            self.stop = (!self.facts.fails_open).then_some(Stop::Internal);
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        if let Some(stop) = self.stop {
            return Err(stop);
        }
        if self.has_failed || self.had_trailers {
            out.append(&mut self.kept);
            return Ok(());
        }
        self.show(true, out)
    }
}
