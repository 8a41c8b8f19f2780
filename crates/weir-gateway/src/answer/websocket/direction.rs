//! The messages that one side of a WebSocket sends: they pass the plugins on their way to the other side.

use std::io;
use std::net::IpAddr;
use std::task::{Context, Poll, ready};

use weir_plugin::{Held, MessageHead, MessageKind, MessageLoss, MessageSource, MessageVerdict, Stop, StreamClose};
use weir_proto::websocket::extensions::DeflateTerms;
use weir_proto::websocket::{
    CloseCode, ControlFrame, FrameEvent, FrameFault, FrameHeader, FrameReader, FrameSender, MaskedContent, Opcode,
    frame,
};
use weir_telemetry::metrics::EventCounters;

use super::inflation::{InflatedText, MessageInflation};
use crate::context::WorkerContext;
use crate::message::sides::Pipe;
use crate::plugins::messages::{self, MessagePolicies};

/// Why a WebSocket ends before both sides have closed it.
pub(super) enum MessageEnd {
    /// A connection is broken: no close frame can be sent.
    Broken,
    Close(StreamClose),
}

impl From<io::Error> for MessageEnd {
    fn from(_: io::Error) -> MessageEnd {
        MessageEnd::Broken
    }
}

impl From<FrameFault> for MessageEnd {
    fn from(fault: FrameFault) -> MessageEnd {
        MessageEnd::Close(StreamClose::new(fault.close_code(), fault.reason()))
    }
}

/// A message whose last frame has not ended.
struct PassingMessage {
    head: MessageHead,
    fate: MessageHandling,
}

enum MessageHandling {
    /// Its frames are passed on as they come.
    Passes,
    Dropped,
    /// A plugin wants the whole message at once.
    Held(HeldMessage),
    /// As `Held`, and the message is compressed.
    Inflated(Box<InflatedMessage>),
    /// Its frames are passed on, and it is inflated: its size is limited, and messages that plugins want may refer to it.
    Followed,
}

/// A compressed message that plugins get inflated, and that is sent on as it came.
struct InflatedMessage {
    held: HeldMessage,
    inflated: InflatedText,
}

struct HeldMessage {
    limit: usize,
    /// The unmasked content.
    content: Vec<u8>,
    is_compressed: bool,
    counted: Held,
    /// The mask of its first frame, which is used again for the single frame in which the message is sent: the sender chose
    /// it, so content from elsewhere cannot predict the bytes on the wire (RFC 6455 §10.3).
    mask: Option<[u8; 4]>,
}

/// What is known about a direction at the beginning.
pub(super) struct DirectionTerms {
    pub source: MessageSource,
    pub compression: Option<DeflateTerms>,
    /// The most bytes of an inflated message, if plugins limit or read messages of this direction.
    pub reads: Option<usize>,
}

/// What a direction needs from the tunnel.
pub(super) struct DirectionContext<'a> {
    pub worker: &'a WorkerContext,
    pub policies: &'a mut MessagePolicies,
}

/// One direction. It holds at most one read that the other side has not taken, and messages that plugins want whole.
pub(super) struct MessageDirection {
    source: MessageSource,
    client: IpAddr,
    reader: FrameReader,
    /// Bytes received together with the handshake.
    pub early: Vec<u8>,
    /// Bytes for the other side that it has not taken yet.
    out: Vec<u8>,
    message: Option<PassingMessage>,
    /// Set if plugins limit or read the messages, and these may be compressed.
    inflation: Option<Box<MessageInflation>>,
    /// Compressed messages may refer to those before them, so none can be left out.
    keeps_context: bool,
    /// The bytes passed on so far end within a frame.
    is_within_frame: bool,
    /// A close frame has been passed on.
    has_closed: bool,
    pub has_ended: bool,
    pub is_shut: bool,
    /// The payload of the gateway's last ping. Its pong is not passed on.
    pub pinged: Option<[u8; 8]>,
    /// When a data frame was last received.
    pub message_ns: u64,
    /// When anything was last received.
    pub received_ns: u64,
}

impl MessageDirection {
    pub(super) fn new(terms: DirectionTerms, client: IpAddr, now_ns: u64) -> MessageDirection {
        let DirectionTerms { source, compression, reads } = terms;
        let of_sender = compression.map(|terms| match source {
            MessageSource::Client => terms.client,
            MessageSource::Upstream => terms.server,
        });
        let inflation = |limit| Some(Box::new(MessageInflation::new(of_sender?, limit, client)));
        let sender = match source {
            MessageSource::Client => FrameSender::Client,
            MessageSource::Upstream => FrameSender::Server,
        };
        MessageDirection {
            source,
            client,
            reader: FrameReader::new(sender, compression.is_some()),
            early: Vec::new(),
            out: Vec::new(),
            message: None,
            inflation: reads.and_then(inflation),
            keeps_context: of_sender.is_some_and(|terms| terms.keeps_context),
            is_within_frame: false,
            has_closed: false,
            has_ended: false,
            is_shut: false,
            pinged: None,
            message_ns: now_ns,
            received_ns: now_ns,
        }
    }

    fn counters<'a>(&self, worker: &'a WorkerContext) -> &'a EventCounters {
        match self.source {
            MessageSource::Client => &worker.metrics.client_messages,
            MessageSource::Upstream => &worker.metrics.upstream_messages,
        }
    }

    /// Moves messages on; ready with how many bytes the receiver took. When the sender has closed, the receiver's half is
    /// closed.
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
        passage: &mut DirectionContext<'_>,
        from: &mut impl Pipe,
        to: &mut impl Pipe,
    ) -> Poll<Result<usize, MessageEnd>> {
        let worker = passage.worker;
        if !self.out.is_empty() {
            let flushed = self.poll_flush(context, worker, to);
            if flushed.is_pending() {
                from.poll_unread(context)?;
            }
            return flushed.map_err(MessageEnd::from);
        }
        if self.is_shut {
            return Poll::Pending;
        }
        if !self.early.is_empty() {
            let mut early = std::mem::take(&mut self.early);
            let sent = self.pass(context, passage, &early, to);
            worker.buffers.release(&mut early);
            return Poll::Ready(sent);
        }
        if self.has_ended {
            ready!(to.poll_shutdown(context))?;
            self.is_shut = true;
            return Poll::Ready(Ok(0));
        }
        worker.buffers.with_read_buffer(|buffer| {
            let count = ready!(from.poll_read(context, buffer))?;
            self.has_ended = count == 0;
            self.received_ns = worker.now_ns();
            Poll::Ready(self.pass(context, passage, &buffer[..count], to))
        })
    }

    /// Sends the bytes that wait in `out`. Ready with how many the receiver took.
    pub(super) fn poll_flush(
        &mut self,
        context: &mut Context<'_>,
        worker: &WorkerContext,
        to: &mut impl Pipe,
    ) -> Poll<io::Result<usize>> {
        let count = ready!(to.poll_write(context, &self.out))?;
        worker.buffers.consume(&mut self.out, count);
        Poll::Ready(Ok(count))
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.out.is_empty()
    }

    /// Parses these bytes, and sends on what the plugins let pass.
    fn pass(
        &mut self,
        context: &mut Context<'_>,
        passage: &mut DirectionContext<'_>,
        bytes: &[u8],
        to: &mut impl Pipe,
    ) -> Result<usize, MessageEnd> {
        let buffers = &passage.worker.buffers;
        buffers.with_write_buffer(|out| {
            let read = self.read(passage, bytes, out);
            let mut sent = 0;
            while sent < out.len() {
                match to.poll_write(context, &out[sent..])? {
                    Poll::Ready(count) => sent += count,
                    Poll::Pending => break,
                }
            }
            buffers.append_unread(&mut self.out, &out[sent..]);
            read.map(|()| sent)
        })
    }

    fn read(
        &mut self,
        passage: &mut DirectionContext<'_>,
        mut bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), MessageEnd> {
        while let Some(event) = self.reader.next(&mut bytes)? {
            let is_data = !matches!(event, FrameEvent::Control(_));
            match event {
                FrameEvent::Begin(header) => self.begin(passage, header, out),
                FrameEvent::Content(content) => self.content(passage, content, out),
                FrameEvent::End { is_last } => self.end(passage, is_last, out),
                FrameEvent::Control(control) => {
                    self.control(&control, out);
                    Ok(())
                }
            }
            .map_err(MessageEnd::Close)?;
            if is_data {
                self.message_ns = passage.worker.now_ns();
            }
        }
        Ok(())
    }

    fn begin(
        &mut self,
        passage: &mut DirectionContext<'_>,
        header: FrameHeader,
        out: &mut Vec<u8>,
    ) -> Result<(), StreamClose> {
        if header.opcode != Opcode::Continuation {
            self.message = Some(self.begin_message(passage, header)?);
        }
        let Some(PassingMessage { head, fate }) = &mut self.message else { return Ok(()) };
        let grown = match fate {
            MessageHandling::Dropped => return Ok(()),
            MessageHandling::Passes | MessageHandling::Followed => Ok(()),
            MessageHandling::Held(held) => held.has_room_for(header.length),
            MessageHandling::Inflated(message) => message.held.has_room_for(header.length),
        };
        let grown = grown.inspect_err(|_| passage.policies.exceeded(*head));
        match grown.and_then(|()| passage.policies.grow(*head, header.length)) {
            Ok(()) if matches!(fate, MessageHandling::Passes | MessageHandling::Followed) => {
                header.write(out);
                self.is_within_frame = true;
                Ok(())
            }
            Ok(()) => Ok(()),
            Err(close) => Err(self.lose(passage.worker, close)),
        }
    }

    fn begin_message(
        &mut self,
        passage: &mut DirectionContext<'_>,
        header: FrameHeader,
    ) -> Result<PassingMessage, StreamClose> {
        let counters = self.counters(passage.worker);
        let kind = if header.opcode == Opcode::Text { MessageKind::Text } else { MessageKind::Binary };
        let head = MessageHead { source: self.source, kind };
        counters.seen.increment();
        let fate = match passage.policies.begin(head) {
            MessageVerdict::Pass if header.compressed => self.begin_compressed(passage, head, header)?,
            MessageVerdict::Pass => match passage.policies.wants_whole(head) {
                None => MessageHandling::Passes,
                Some(limit) => MessageHandling::Held(self.held(header, limit)),
            },
            MessageVerdict::Drop(loss) => {
                messages::count_lost(counters, loss);
                if header.compressed && self.keeps_context {
                    return Err(cannot_be_left_out(loss));
                }
                MessageHandling::Dropped
            }
            MessageVerdict::Close(close) => {
                messages::count_lost(counters, close.loss);
                return Err(close);
            }
        };
        Ok(PassingMessage { head, fate })
    }

    fn held(&self, header: FrameHeader, limit: usize) -> HeldMessage {
        let FrameHeader { compressed, mask, .. } = header;
        HeldMessage { limit, content: Vec::new(), is_compressed: compressed, counted: Held::of(self.client), mask }
    }

    /// What becomes of a compressed message that the plugins let begin.
    fn begin_compressed(
        &mut self,
        passage: &mut DirectionContext<'_>,
        head: MessageHead,
        header: FrameHeader,
    ) -> Result<MessageHandling, StreamClose> {
        let held = passage.policies.wants_whole(head).map(|limit| self.held(header, limit));
        let Some(inflation) = &mut self.inflation else {
            return Ok(held.map_or(MessageHandling::Passes, MessageHandling::Held));
        };
        let fate = match held {
            Some(held) => {
                let inflated = InflatedText::new(self.client);
                MessageHandling::Inflated(Box::new(InflatedMessage { held, inflated }))
            }
            None => MessageHandling::Followed,
        };
        match inflation.begin() {
            Ok(()) => Ok(fate),
            Err(close) => Err(self.lose(passage.worker, close)),
        }
    }

    /// Drops the current message, which is the reason to close the WebSocket.
    fn lose(&mut self, worker: &WorkerContext, close: StreamClose) -> StreamClose {
        messages::count_lost(self.counters(worker), close.loss);
        self.message = None;
        close
    }

    fn content(
        &mut self,
        passage: &mut DirectionContext<'_>,
        content: MaskedContent<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), StreamClose> {
        match &mut self.message {
            Some(PassingMessage { fate: MessageHandling::Passes, .. }) => out.extend_from_slice(content.bytes),
            Some(PassingMessage { fate: MessageHandling::Held(held), .. }) => return held.take(content),
            None | Some(PassingMessage { fate: MessageHandling::Dropped, .. }) => {}
            Some(PassingMessage { head, .. }) => {
                let head = *head;
                return self.compressed_content(content, out).map_err(|close| {
                    attribute(passage.policies, head, &close);
                    self.lose(passage.worker, close)
                });
            }
        }
        Ok(())
    }

    fn compressed_content(&mut self, content: MaskedContent<'_>, out: &mut Vec<u8>) -> Result<(), StreamClose> {
        let (Some(PassingMessage { fate, .. }), Some(inflation)) = (&mut self.message, &mut self.inflation) else {
            return Ok(());
        };
        match fate {
            MessageHandling::Inflated(message) => {
                let InflatedMessage { held, inflated } = &mut **message;
                let start = held.content.len();
                held.take(content)?;
                inflation.push(&held.content[start..], Some(inflated))
            }
            MessageHandling::Followed => {
                out.extend_from_slice(content.bytes);
                inflation.push_masked(content)
            }
            _ => Ok(()),
        }
    }

    fn end(&mut self, passage: &mut DirectionContext<'_>, is_last: bool, out: &mut Vec<u8>) -> Result<(), StreamClose> {
        self.is_within_frame = false;
        let Some(PassingMessage { head, fate }) = self.message.take_if(|_| is_last) else { return Ok(()) };
        match fate {
            MessageHandling::Dropped => {}
            MessageHandling::Passes => self.counters(passage.worker).passed.increment(),
            MessageHandling::Held(held) => {
                let verdict = passage.policies.whole(head, &held.content);
                return self.settle(passage.worker, verdict, Some((head.kind, held)), out);
            }
            MessageHandling::Inflated(message) => return self.end_inflated(passage, head, *message, out),
            MessageHandling::Followed => {
                let verdict = self.followed(passage, head);
                return self.settle(passage.worker, verdict, None, out);
            }
        }
        Ok(())
    }

    fn end_inflated(
        &mut self,
        passage: &mut DirectionContext<'_>,
        head: MessageHead,
        message: InflatedMessage,
        out: &mut Vec<u8>,
    ) -> Result<(), StreamClose> {
        let InflatedMessage { held, inflated } = message;
        match self.inflated(passage, head, inflated) {
            MessageVerdict::Drop(loss) if self.keeps_context => {
                messages::count_lost(self.counters(passage.worker), loss);
                Err(cannot_be_left_out(loss))
            }
            verdict => self.settle(passage.worker, verdict, Some((head.kind, held)), out),
        }
    }

    /// Carries out the verdict on a message that is complete.
    fn settle(
        &self,
        worker: &WorkerContext,
        verdict: MessageVerdict,
        held: Option<(MessageKind, HeldMessage)>,
        out: &mut Vec<u8>,
    ) -> Result<(), StreamClose> {
        let counters = self.counters(worker);
        match verdict {
            MessageVerdict::Pass => {
                if let Some((kind, held)) = held {
                    held.write(kind, out);
                }
                counters.passed.increment();
            }
            MessageVerdict::Drop(loss) => messages::count_lost(counters, loss),
            MessageVerdict::Close(close) => {
                messages::count_lost(counters, close.loss);
                return Err(close);
            }
        }
        Ok(())
    }

    /// The verdict on a compressed message that is complete.
    fn inflated(
        &mut self,
        passage: &mut DirectionContext<'_>,
        head: MessageHead,
        mut text: InflatedText,
    ) -> MessageVerdict {
        if let Some(Err(close)) = self.inflation.as_mut().map(|inflation| inflation.end(Some(&mut text))) {
            attribute(passage.policies, head, &close);
            return MessageVerdict::Close(close);
        }
        if head.kind == MessageKind::Text && str::from_utf8(&text.text).is_err() {
            let fault = FrameFault::TextNotUtf8;
            return MessageVerdict::Close(StreamClose::new(fault.close_code(), fault.reason()));
        }
        passage.policies.whole(head, &text.text)
    }

    /// The verdict on a compressed message that was passed on.
    fn followed(&mut self, passage: &mut DirectionContext<'_>, head: MessageHead) -> MessageVerdict {
        match self.inflation.as_mut().map(|inflation| inflation.end(None)) {
            Some(Err(close)) => {
                attribute(passage.policies, head, &close);
                MessageVerdict::Close(close)
            }
            _ => MessageVerdict::Pass,
        }
    }

    fn control(&mut self, control: &ControlFrame, out: &mut Vec<u8>) {
        let is_ours = |pinged: &[u8; 8]| control.opcode == Opcode::Pong && control.content() == pinged;
        if self.pinged.take_if(|pinged| is_ours(pinged)).is_none() {
            self.has_closed |= control.opcode == Opcode::Close;
            control.write(out);
        }
    }

    /// Whether a frame of the gateway can be inserted between those of the sender.
    pub(super) fn is_between_frames(&self) -> bool {
        !self.is_within_frame && !self.has_closed && !self.has_ended
    }

    /// Inserts a frame of the gateway, if it can stand here.
    pub(super) fn add(&mut self, opcode: Opcode, content: &[u8]) {
        // RFC 6455 §5.3: a frame to a server is masked; a mask of zeros changes nothing.
        let mask = (self.source == MessageSource::Client).then_some([0; 4]);
        if self.is_between_frames() {
            self.has_closed = opcode == Opcode::Close;
            frame::write(&mut self.out, opcode, mask, content);
        }
    }

    /// Called at the end: a message that is still incomplete counts as lost.
    pub(super) fn finish(&mut self, worker: &WorkerContext) {
        if self.message.take().is_some_and(|message| !matches!(message.fate, MessageHandling::Dropped)) {
            messages::count_lost(self.counters(worker), MessageLoss::Failed);
        }
        worker.buffers.release(&mut self.out);
    }
}

/// Names the plugin that limits messages as the one that has closed the WebSocket, if one is too large inflated.
fn attribute(policies: &mut MessagePolicies, head: MessageHead, close: &StreamClose) {
    if close.code == CloseCode::TOO_BIG {
        policies.exceeded(head);
    }
}

/// The reason for closing a WebSocket of which a compressed message would have to be left out.
fn cannot_be_left_out(loss: MessageLoss) -> StreamClose {
    let reason = "a message was refused, and those after it may refer to it";
    let stop = match loss {
        MessageLoss::Throttled => Stop::EventQuota,
        MessageLoss::Failed => Stop::MessageRefused,
    };
    StreamClose { loss, stop: Some(stop), ..StreamClose::new(CloseCode::POLICY, reason) }
}

impl HeldMessage {
    /// Writes the message in a single frame.
    fn write(self, kind: MessageKind, out: &mut Vec<u8>) {
        let opcode = if kind == MessageKind::Text { Opcode::Text } else { Opcode::Binary };
        frame::write_message(out, opcode, self.is_compressed, self.mask, &self.content);
    }

    fn has_room_for(&self, bytes: u64) -> Result<(), StreamClose> {
        if self.content.len() as u64 + bytes <= self.limit as u64 {
            return Ok(());
        }
        Err(StreamClose::new(CloseCode::TOO_BIG, format!("the message has more than {} bytes", self.limit)))
    }

    fn take(&mut self, content: MaskedContent<'_>) -> Result<(), StreamClose> {
        content.unmask_into(&mut self.content);
        let held = self.counted.set(self.content.capacity() as u64);
        held.map_err(|_| StreamClose::new(CloseCode::TRY_AGAIN_LATER, "there is no room for the message"))
    }
}
