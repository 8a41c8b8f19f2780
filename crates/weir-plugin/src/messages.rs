//! Messages of WebSockets and server-sent events, and the filters plugins apply to each of them.

use std::borrow::Cow;
use std::time::Duration;

use weir_proto::websocket::CloseCode;

use crate::stop::Stop;

/// The protocol that carries messages within an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageProtocol {
    /// RFC 6455, over any version of HTTP.
    WebSocket,
    /// A response of type `text/event-stream`.
    EventStream,
}

/// The sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageSource {
    Client,
    Upstream,
}

/// The type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    Text,
    Binary,
    /// A server-sent event.
    Event,
}

/// What is known when a message begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHead {
    pub source: MessageSource,
    pub kind: MessageKind,
}

/// Why a message was not delivered, for event counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageLoss {
    /// A quota is used up.
    Throttled,
    /// Anything else.
    Failed,
}

/// Closes the stream. Both sides of a WebSocket receive a close frame; the client of an event stream receives a comment and the
/// end of the response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamClose {
    pub code: CloseCode,
    /// For people; truncated to the 123 bytes a close frame has room for.
    pub reason: Cow<'static, str>,
    /// How the message that caused this is counted.
    pub loss: MessageLoss,
    /// The cause for logs and metrics; `None` if the stream ends as any other.
    pub stop: Option<Stop>,
}

impl StreamClose {
    /// With the cause that the code stands for.
    pub fn new(code: CloseCode, reason: impl Into<Cow<'static, str>>) -> StreamClose {
        let stop = match code {
            CloseCode::NORMAL | CloseCode::GOING_AWAY => None,
            CloseCode::TOO_BIG => Some(Stop::MessageTooLarge),
            CloseCode::INTERNAL => Some(Stop::Internal),
            CloseCode::TRY_AGAIN_LATER => Some(Stop::HeldContent),
            _ => Some(Stop::MessageRefused),
        };
        StreamClose { code, reason: reason.into(), loss: MessageLoss::Failed, stop }
    }
}

/// What happens to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageVerdict {
    Pass,
    /// The message is left out, and the stream goes on.
    Drop(MessageLoss),
    Close(StreamClose),
}

/// A filter's requirements for the whole stream. Of several filters' the strictest apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageTerms {
    /// The messages that the filter reads, or limits the size of. They are inflated if they are compressed (RFC 7692).
    pub reads: ReadMessages,
    /// The filter may leave messages out. Then each message has to be compressed by itself.
    pub may_drop: bool,
    /// A WebSocket without a message for this time is closed (1001).
    pub idle_timeout: Option<Duration>,
    /// The client of a WebSocket must answer pings.
    pub ping: Option<PingTerms>,
    /// When the stream is closed (1008), as a duration since 1970: the proof of the client's identity expires then.
    pub ends_at: Option<Duration>,
    /// The stream is closed (1008) when the client's consumer or its credential is removed from the configuration or changed.
    pub ends_with_identity: bool,
    /// An event stream on which nothing was sent for this time gets a comment.
    pub heartbeat: Option<Duration>,
}

/// Of each side, whether its messages are read or limited: the most bytes of one, inflated. A larger one closes the WebSocket (1009).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadMessages {
    pub client: Option<usize>,
    pub upstream: Option<usize>,
}

impl ReadMessages {
    pub fn of(self, source: MessageSource) -> Option<usize> {
        match source {
            MessageSource::Client => self.client,
            MessageSource::Upstream => self.upstream,
        }
    }
}

/// When a client is sent a ping, and how long it has to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PingTerms {
    /// A client that has sent nothing for this time is sent a ping.
    pub interval: Duration,
    /// If nothing arrives for this time after the ping, the WebSocket is closed (1011).
    pub timeout: Duration,
}

impl MessageTerms {
    /// The stricter of both, for each requirement.
    pub fn strictest_of_both(self, other: MessageTerms) -> MessageTerms {
        fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
            one.into_iter().chain(other).min()
        }
        let ping = |terms: MessageTerms| terms.ping.map(|ping| (ping.interval, ping.timeout));
        MessageTerms {
            reads: ReadMessages {
                client: least(self.reads.client, other.reads.client),
                upstream: least(self.reads.upstream, other.reads.upstream),
            },
            may_drop: self.may_drop || other.may_drop,
            idle_timeout: least(self.idle_timeout, other.idle_timeout),
            ping: least(ping(self), ping(other)).map(|(interval, timeout)| PingTerms { interval, timeout }),
            ends_at: least(self.ends_at, other.ends_at),
            ends_with_identity: self.ends_with_identity || other.ends_with_identity,
            heartbeat: least(self.heartbeat, other.heartbeat),
        }
    }
}

/// Sees the messages of one exchange, in both directions. Control frames and comments are not messages.
pub trait MessageFilter {
    /// The filter's requirements. They do not change.
    fn terms(&self) -> MessageTerms {
        MessageTerms::default()
    }

    /// A message begins. The verdict applies to all of it.
    fn begin(&mut self, head: MessageHead) -> MessageVerdict {
        let _ = head;
        MessageVerdict::Pass
    }

    /// `bytes` more bytes of the message are about to be forwarded: of a WebSocket the content of frames as received, of an
    /// event its lines. Parts of the message may have been forwarded already, so it can no longer be dropped.
    ///
    /// # Errors
    /// How the stream is closed.
    fn grow(&mut self, head: MessageHead, bytes: u64) -> Result<(), StreamClose> {
        let _ = (head, bytes);
        Ok(())
    }

    /// `Some` requests the whole message at once, up to this many bytes; a longer one closes the WebSocket (1009). The message
    /// is forwarded in one frame. Not called for events.
    fn wants_whole(&self, head: MessageHead) -> Option<usize> {
        let _ = head;
        None
    }

    /// Receives a message that was requested with [`MessageFilter::wants_whole`].
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
        let one = MessageTerms {
            reads: ReadMessages { client: Some(7), upstream: None },
            idle_timeout: Some(seconds(5)),
            ping: ping(30, 1),
            heartbeat: Some(seconds(30)),
            ..MessageTerms::default()
        };
        let other = MessageTerms {
            reads: ReadMessages { client: Some(9), upstream: Some(3) },
            may_drop: true,
            idle_timeout: Some(seconds(9)),
            ping: ping(20, 9),
            ends_at: Some(seconds(1)),
            ends_with_identity: true,
            heartbeat: Some(seconds(15)),
        };
        let both = MessageTerms {
            reads: ReadMessages { client: Some(7), upstream: Some(3) },
            may_drop: true,
            idle_timeout: Some(seconds(5)),
            ping: ping(20, 9),
            ends_at: Some(seconds(1)),
            ends_with_identity: true,
            heartbeat: Some(seconds(15)),
        };
        assert_eq!((one.strictest_of_both(other), other.strictest_of_both(one)), (both, both));
    }
}
