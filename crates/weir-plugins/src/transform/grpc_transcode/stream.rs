//! The answer of a service that sends a stream of messages.

use std::sync::Arc;

use weir_plugin::proto::Trailers;
use weir_plugin::{Filter, Stop};

use super::call::{Call, END_EVENT, told_fault};
use super::frames::MessageFrames;
use super::status::CallStatus;

/// Writes the messages of a stream as lines or as events, and its status if it is not OK.
pub(super) struct StreamWriter {
    frames: MessageFrames,
    call: Arc<Call>,
    takes_events: bool,
    is_over: bool,
    status: Option<CallStatus>,
}

impl StreamWriter {
    pub(super) fn new(call: Arc<Call>, takes_events: bool) -> StreamWriter {
        StreamWriter {
            frames: MessageFrames::new(call.settings.most_message),
            call,
            takes_events,
            is_over: false,
            status: None,
        }
    }

    /// Writes the messages that are complete.
    fn write(&mut self, out: &mut Vec<u8>) -> Result<(), CallStatus> {
        while let Some(message) = self.frames.next().map_err(told_fault)? {
            let before = out.len();
            if self.takes_events {
                out.extend_from_slice(b"data: ");
            }
            if let Err(status) = self.call.write_json(message, out) {
                out.truncate(before);
                return Err(status);
            }
            out.extend_from_slice(if self.takes_events { b"\n\n" } else { b"\n" });
        }
        Ok(())
    }

    fn fail(&mut self, status: &CallStatus, out: &mut Vec<u8>) {
        self.is_over = true;
        let error = status.to_json(&self.call.settings.detail_form());
        let (before, after): (&[u8], &[u8]) =
            if self.takes_events { (b"event: error\ndata: ", b"\n\n") } else { (b"", b"\n") };
        [before, &error, after].iter().for_each(|part| out.extend_from_slice(part));
    }
}

impl Filter for StreamWriter {
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), Stop> {
        if self.is_over {
            return Ok(());
        }
        self.frames.push(piece);
        if let Err(status) = self.write(out) {
            self.fail(&status, out);
        }
        Ok(())
    }

    fn trailers(&mut self, trailers: &mut Trailers) {
        self.status = CallStatus::of(std::mem::take(trailers).fields());
    }

    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        if self.is_over {
            return Ok(());
        }
        match self.status.take().unwrap_or_else(CallStatus::missing) {
            status if status.code != CallStatus::OK => self.fail(&status, out),
            _ if !self.frames.is_empty() => self.fail(&CallStatus::cut(), out),
            _ if self.takes_events => out.extend_from_slice(END_EVENT),
            _ => {}
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.is_over
    }
}
