//! Streams of the admin address: requests as they end, and figures. Each ends with the session or the token that has opened it.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::time::{Interval, MissedTickBehavior, interval};
use weir_control::admin::{NodeStream, OpenedStream, SessionHold};
use weir_gateway::tail::Tail;

use crate::node::figures::Figures;
use crate::node::server::AnswerStream;
use crate::node::tail::{self, TailStream};

/// How often a stream looks whether its session is open, and for new figures.
const LOOK: Duration = Duration::from_millis(500);

/// The source of a stream, and its words if the server ends it. `None` if what it shows is not there.
pub(super) fn source(opened: OpenedStream, figures: Option<&Arc<Figures>>) -> Option<(Box<dyn AnswerStream>, Bytes)> {
    let OpenedStream { stream, hold } = opened;
    Some(match stream {
        NodeStream::Tail(query) => {
            let tail = TailStream(Tail::open(tail::filter(&query).ok()?));
            (SessionStream::open(tail, hold, tail::ended("the session or the token has ended")), tail::unread())
        }
        NodeStream::Events => {
            let events = FigureStream { figures: Arc::clone(figures?), looks: looks(), last: 0 };
            (SessionStream::open(events, hold, ended("session")), ended("unread"))
        }
    })
}

fn looks() -> Interval {
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    looks
}

/// A stream that ends with its session or token.
struct SessionStream<S> {
    stream: S,
    hold: SessionHold,
    looks: Interval,
    /// What the client is told when the session has ended; taken then.
    last_words: Option<Bytes>,
}

impl<S: AnswerStream + 'static> SessionStream<S> {
    fn open(stream: S, hold: SessionHold, last_words: Bytes) -> Box<dyn AnswerStream> {
        Box::new(SessionStream { stream, hold, looks: looks(), last_words: Some(last_words) })
    }
}

impl<S: AnswerStream> AnswerStream for SessionStream<S> {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.last_words.is_none() {
            return Poll::Ready(None);
        }
        while self.looks.poll_tick(context).is_ready() {
            if !self.hold.is_open() {
                return Poll::Ready(self.last_words.take());
            }
        }
        self.stream.poll_piece(context)
    }
}

/// A frame of figures each second.
struct FigureStream {
    figures: Arc<Figures>,
    looks: Interval,
    /// The number of the sample that was sent last.
    last: u64,
}

impl AnswerStream for FigureStream {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        while self.looks.poll_tick(context).is_ready() {
            if let Some((number, frame)) = self.figures.frame_after(self.last) {
                self.last = number;
                return Poll::Ready(Some(Bytes::from(format!("{frame}\n"))));
            }
        }
        Poll::Pending
    }
}

fn ended(reason: &str) -> Bytes {
    Bytes::from(format!("{}\n", json!({ "type": "ended", "reason": reason })))
}
