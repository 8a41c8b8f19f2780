//! The messages of a WebSocket, and server-sent events: what a plugin does to them one by one.

use std::borrow::Cow;
use std::time::Duration;

use weir_proto::websocket::CloseCode;

/// What carries messages within one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageProtocol {
    /// RFC 6455, whatever version of HTTP opened it.
    WebSocket,
    /// A response of the type `text/event-stream`.
    EventStream,
}

/// Who sends a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageSource {
    Client,
    Upstream,
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    Text,
    Binary,
    /// A server-sent event.
    Event,
}

/// What is known of a message when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHead {
    pub source: MessageSource,
    pub kind: MessageKind,
}

/// Why a message does not get through, for the account of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageLoss {
    /// A quota is used up.
    Throttled,
    /// Anything else.
    Failed,
}

/// Ends the stream. Both sides of a WebSocket get a close frame; the client of an event stream gets a comment and its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamClose {
    pub code: CloseCode,
    /// For people. It is cut to the 123 bytes that a close frame has room for.
    pub reason: Cow<'static, str>,
    /// What becomes of the message that is the reason.
    pub loss: MessageLoss,
}

impl StreamClose {
    pub fn new(code: CloseCode, reason: impl Into<Cow<'static, str>>) -> StreamClose {
        StreamClose { code, reason: reason.into(), loss: MessageLoss::Failed }
    }
}

/// What becomes of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageVerdict {
    Pass,
    /// It is left out, and the stream goes on.
    Drop(MessageLoss),
    Close(StreamClose),
}

/// What a filter wants of the stream as a whole. Where several filters want something, the strictest counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageTerms {
    /// It reads what messages say, so compression must not be agreed to.
    pub reads_content: bool,
    /// A WebSocket on which no message passes for so long is closed (1001).
    pub idle_timeout: Option<Duration>,
    /// The client of a WebSocket is asked for a sign of life.
    pub ping: Option<PingTerms>,
    /// The stream is ended at this time (1008), as a span since 1970: what has proved who the client is holds no longer.
    pub ends_at: Option<Duration>,
}

/// When a client is asked for a sign of life, and how long it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PingTerms {
    /// A client that has sent nothing for so long gets a ping.
    pub interval: Duration,
    /// If nothing comes for so long after it, the WebSocket is closed (1011).
    pub timeout: Duration,
}

impl MessageTerms {
    /// What both want together.
    pub fn strictest_of_both(self, other: MessageTerms) -> MessageTerms {
        fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
            one.into_iter().chain(other).min()
        }
        let ping = |terms: MessageTerms| terms.ping.map(|ping| (ping.interval, ping.timeout));
        MessageTerms {
            reads_content: self.reads_content || other.reads_content,
            idle_timeout: least(self.idle_timeout, other.idle_timeout),
            ping: least(ping(self), ping(other)).map(|(interval, timeout)| PingTerms { interval, timeout }),
            ends_at: least(self.ends_at, other.ends_at),
        }
    }
}

/// Sees the messages of one exchange, in both directions. Control frames and comments are not messages.
pub trait MessageFilter {
    /// Asked once, before anything passes.
    fn terms(&self) -> MessageTerms {
        MessageTerms::default()
    }

    /// A message begins. What is decided here holds for all of it.
    fn begin(&mut self, head: MessageHead) -> MessageVerdict {
        let _ = head;
        MessageVerdict::Pass
    }

    /// So many bytes more of the message are about to pass: the content of each frame of a WebSocket, as it travels; of an event,
    /// lines as they come. Parts of the message may have passed already, so it cannot be left out any more.
    ///
    /// # Errors
    /// How the stream is closed.
    fn grow(&mut self, head: MessageHead, bytes: u64) -> Result<(), StreamClose> {
        let _ = (head, bytes);
        Ok(())
    }

    /// It wants all of the message at once, if it has no more than so many bytes; one with more ends the WebSocket (1009). The
    /// message goes on in one frame. Not asked about events.
    fn wants_whole(&self, head: MessageHead) -> Option<usize> {
        let _ = head;
        None
    }

    /// All of a message that it wanted at once.
    fn whole(&mut self, head: MessageHead, content: &[u8]) -> MessageVerdict {
        let _ = (head, content);
        MessageVerdict::Pass
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strictest_terms_count() {
        let seconds = Duration::from_secs;
        let ping = |interval, timeout| Some(PingTerms { interval: seconds(interval), timeout: seconds(timeout) });
        let one = MessageTerms { idle_timeout: Some(seconds(5)), ping: ping(30, 1), ..MessageTerms::default() };
        let other = MessageTerms {
            reads_content: true,
            idle_timeout: Some(seconds(9)),
            ping: ping(20, 9),
            ends_at: Some(seconds(1)),
        };
        let both = MessageTerms {
            reads_content: true,
            idle_timeout: Some(seconds(5)),
            ping: ping(20, 9),
            ends_at: Some(seconds(1)),
        };
        assert_eq!((one.strictest_of_both(other), other.strictest_of_both(one)), (both, both));
    }
}
