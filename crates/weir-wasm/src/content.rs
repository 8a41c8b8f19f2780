//! Content that a plugin sees piece by piece.

use std::rc::Rc;
use std::sync::Arc;

use weir_plugin::{Exchange, Filter, Held, Stop};
use weir_proto::Trailers;

use crate::abi::CallbackAction;
use crate::limits;
use crate::state::{Access, LocalAnswer, Outside, PluginFacts, Rights, copy_of};
use crate::vm::{MessageSide, PluginFailure, Vm};
use crate::worker::WorkerPlugin;

/// The heads have been passed on: they can be read, as they were then.
const STREAMED: Rights = Rights { request: Access::Read, response: Access::Read, answers: true, calls: false };

/// The message, and whose it is.
#[derive(Clone, Copy)]
pub(crate) struct FilteredMessage {
    pub side: MessageSide,
    pub serial: u64,
    pub context: u32,
}

/// Shows the content of one message to the plugin.
pub(crate) struct WasmContentFilter {
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
    pub(crate) fn new(
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
            true => vm.lend(seen, run),
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
            Ok((None, waits)) if waits && !is_end => {
                self.kept = content;
                self.hold()
            }
            // Nothing that lets it go on can come any more.
            Ok((None, true)) => {
                self.fail(&PluginFailure::Stuck)?;
                out.append(&mut content);
                Ok(())
            }
            Ok((None, _)) => {
                out.append(&mut content);
                self.hold()
            }
            Ok((Some(answer), _)) => Err(stop_of(side, &answer)),
            Err(failure) => {
                self.fail(&failure)?;
                out.append(&mut content);
                Ok(())
            }
        }
    }

    /// With `fail: open`, the rest passes as it is.
    fn fail(&mut self, failure: &PluginFailure) -> Result<(), Stop> {
        failure.report(&self.facts);
        self.has_failed = true;
        if self.facts.fails_open { Ok(()) } else { Err(Stop::Internal) }
    }

    /// The trailers, before which the plugin sees the end of content that it has held back: a plugin that judges content at its end
    /// must not be passed by with a trailer.
    fn show_trailers(&mut self, trailers: &mut Trailers) -> Result<(), Stop> {
        if !self.kept.is_empty() {
            let mut passed = Vec::new();
            self.show(true, &mut passed)?;
            self.kept = passed;
        }
        if self.has_failed {
            return Ok(());
        }
        let FilteredMessage { side, context, .. } = self.message;
        let done = self.with(|vm| {
            let action = vm.on_trailers(side, (context, STREAMED), trailers)?;
            let waits = action == CallbackAction::Pause && !vm.take_resumed(context);
            Ok((vm.take_answer(context), waits))
        });
        match done {
            Ok((Some(answer), _)) => Err(stop_of(side, &answer)),
            Ok((None, false)) => Ok(()),
            Ok((None, true)) => self.fail(&PluginFailure::Stuck),
            Err(failure) => self.fail(&failure),
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
        self.stop = self.show_trailers(trailers).err();
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

/// What an answer of the plugin means where content passes: the head of a response has been sent, so it cannot be replaced.
fn stop_of(side: MessageSide, answer: &LocalAnswer) -> Stop {
    match side {
        MessageSide::Request => Stop::Respond(answer.status),
        MessageSide::Response => Stop::Internal,
    }
}
