//! Streams of the admin address: requests as they end, and figures. Each ends with the session that has opened it.

use std::pin::Pin;
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
use crate::node::server::bounds::UNREAD;
use crate::node::tail::{self, TailStream};

/// How often a stream looks whether its session is open, and for new figures.
const LOOK: Duration = Duration::from_millis(500);

/// The source of a stream, and its words if the server ends it. `None` if what it shows is not there.
pub fn source(opened: OpenedStream, figures: Option<&Arc<Figures>>) -> Option<(Box<dyn AnswerStream>, Bytes)> {
    let OpenedStream { stream, hold } = opened;
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    Some(match stream {
        NodeStream::Tail(query) => {
            let tail = TailStream(Tail::open(tail::filter(&query).ok()?));
            let last_words = Bytes::from(format!(
                "{}\n",
                json!({ "ended": format!("nothing was read for {} s", UNREAD.as_secs()) })
            ));
            (Box::new(HeldTail { tail, hold, looks, has_ended: false }), last_words)
        }
        NodeStream::Events => {
            let events = FigureStream { figures: Arc::clone(figures?), hold, looks, last: 0, has_ended: false };
            (Box::new(events), ended("unread"))
        }
    })
}

/// A tail that ends with its session.
struct HeldTail {
    tail: TailStream,
    hold: SessionHold,
    looks: Interval,
    has_ended: bool,
}

impl AnswerStream for HeldTail {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        while self.looks.poll_tick(context).is_ready() {
            if !self.hold.is_open() {
                self.has_ended = true;
                return Poll::Ready(Some(Bytes::from(format!("{}\n", json!({ "ended": "the session has ended" })))));
            }
        }
        self.tail.poll_piece(context)
    }
}

/// A frame of figures each second.
struct FigureStream {
    figures: Arc<Figures>,
    hold: SessionHold,
    looks: Interval,
    /// The number of the sample that was sent last.
    last: u64,
    has_ended: bool,
}

impl AnswerStream for FigureStream {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        while Pin::new(&mut self.looks).poll_tick(context).is_ready() {
            if !self.hold.is_open() {
                self.has_ended = true;
                return Poll::Ready(Some(ended("session")));
            }
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
