//! The source of a shared stream: sends the request to the upstream, stores its events, and reconnects when the stream ends.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use weir_net::backoff::Backoff;
use weir_plugin::proto::RequestHead;
use weir_plugin::{Held, ReplyField, ReplyHead, RouteUpstream, Stop, UpstreamAnswer};

use super::blocks::{BlockReader, EventBlock, MOST_BLOCK_BYTES};
use super::feed::{Feed, FeedStage, Feeds, OtherAnswer};
use super::streams::UpstreamStreamPermit;

/// The most bytes of an answer that is not an event stream; it is sent to all clients that wait for the stream.
const MOST_OTHER_BYTES: usize = 64 << 10;
/// Held content that each stream has, so that events up to this size pass whatever else is held.
pub(super) const RESERVED_BYTES: u64 = 16 << 10;
/// How many clients are asked whether they have room for a window whose owner has left.
const MOST_ASKED: usize = 16;
/// How often the window is made smaller for new events, since others can take what it gives up.
const MOST_TRIES: usize = 8;
/// The time until the first reconnect, unless the stream sets another with `retry`.
const RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// The durations of a stream without clients, and of one without an upstream.
#[derive(Clone, Copy, Debug)]
pub(super) struct SourceTimes {
    /// How long the stream is kept open after its last client has left.
    pub keep_open: Duration,
    /// How long reconnects are tried.
    pub reconnect: Duration,
}

/// Fills one shared stream. Dropping it ends the stream.
pub(super) struct FeedSource {
    pub feeds: Arc<Feeds>,
    pub key: Box<[u8]>,
    pub feed: Arc<Feed>,
    pub upstream: Rc<RefCell<Rc<dyn RouteUpstream>>>,
    /// The request to the upstream, without `Last-Event-ID`.
    pub request: RequestHead,
    pub times: SourceTimes,
    pub permit: RefCell<UpstreamStreamPermit>,
    /// The client that the stream and its window count for (IPv6: the network): the one that opened it, while it has a client of
    /// this address.
    pub owner: Cell<IpAddr>,
    /// For the window, and an event that has begun.
    pub held: RefCell<Held>,
}

impl Drop for FeedSource {
    fn drop(&mut self) {
        self.feeds.remove(&self.key, &self.feed);
        self.feed.enter(FeedStage::Ended);
    }
}

/// Fields of an answer that apply only to one message or one client.
const NOT_SHARED: [&[u8]; 10] = [
    b"connection",
    b"content-length",
    b"date",
    b"keep-alive",
    b"proxy-connection",
    b"set-cookie",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
];

/// The fields of an answer that may be sent to all clients, with names in lower case.
pub(super) fn shared_fields(fields: Vec<ReplyField>) -> Vec<ReplyField> {
    let lower = |(name, value): ReplyField| -> ReplyField { (name.to_ascii_lowercase().into(), value) };
    fields.into_iter().map(lower).filter(|(name, _)| !NOT_SHARED.contains(&&**name)).collect()
}

fn is_event_stream(head: &ReplyHead) -> bool {
    let value = |wanted: &[u8]| {
        let field = head.fields.iter().find(|(name, _): &&ReplyField| name.eq_ignore_ascii_case(wanted));
        field.map(|(_, value)| value)
    };
    let kind = value(b"content-type").map_or(&b""[..], |kind| kind);
    let is_coded = value(b"content-encoding").is_some_and(|coding| **coding != *b"identity");
    let is_events = kind.get(..17).is_some_and(|kind| kind.eq_ignore_ascii_case(b"text/event-stream"));
    head.status == 200 && is_events && !is_coded
}

impl FeedSource {
    /// Runs until no client is left, or until the stream cannot be continued.
    pub(super) async fn run(self) {
        tokio::select! {
            () = self.fill() => {}
            () = self.left() => {}
            never = self.follow_owner() => match never {},
        }
    }

    /// Passes the stream on when its owner has left.
    async fn follow_owner(&self) -> Infallible {
        loop {
            self.feed.address_left().await;
            if !self.feed.has_client_of(self.owner.get()) {
                self.replace_owner(&mut self.held.borrow_mut());
            }
        }
    }

    /// Makes another client the owner that may hold this many bytes; `false` if none of those that are asked may.
    fn pass_to_another(&self, held: &mut Held, bytes: u64) -> bool {
        let has_room = |one: &IpAddr| *one != self.owner.get() && Held::share_left(*one) >= bytes;
        let owner = self.feed.addresses(MOST_ASKED).into_iter().find(has_room);
        owner.is_some_and(|owner| held.pass_to(Some(owner)) && self.belongs_to(owner))
    }

    fn belongs_to(&self, owner: IpAddr) -> bool {
        self.permit.borrow_mut().pass_to(owner);
        self.owner.set(owner);
        true
    }

    /// Finds an owner in place of the one that has left. If none has room for the window, the window gets as small as the room of the
    /// one with the most. What each stream has in any case counts for the node then.
    fn replace_owner(&self, held: &mut Held) {
        let bytes = held.bytes();
        if self.pass_to_another(held, bytes) {
            return;
        }
        let others = self.feed.addresses(MOST_ASKED).into_iter().map(|one| (Held::share_left(one), one));
        let Some((room, owner)) = others.max() else { return };
        self.feed.shrink_window_to(room as usize);
        // Less than before, so there is room for it.
        let _ = held.set((self.feed.held_bytes() as u64).max(RESERVED_BYTES));
        if !held.pass_to(Some(owner)) {
            held.pass_to(None);
        }
        self.belongs_to(owner);
    }

    async fn left(&self) {
        loop {
            self.feed.left().await;
            if self.feed.is_open() {
                let (feeds, key, feed) = (Arc::clone(&self.feeds), self.key.clone(), Arc::clone(&self.feed));
                self.permit.borrow_mut().unused(Box::new(move || feeds.end_if_unused(&key, &feed)));
                tokio::select! {
                    () = sleep(self.times.keep_open) => {}
                    () = self.feed.ended() => {}
                }
            }
            if self.feeds.remove_if_unused(&self.key, &self.feed) {
                return;
            }
            self.permit.borrow_mut().used();
        }
    }

    async fn fill(&self) {
        let mut stream = SourceStream {
            last_event_id: self.feed.opened_after.clone(),
            retry: RETRY,
            failures: 0,
            since: Instant::now(),
        };
        let mut was_open = false;
        loop {
            let mut answer = self.ask(stream.last_event_id.as_deref());
            match answer.head().await {
                Ok(head) if is_event_stream(&head) => {
                    if !was_open {
                        self.feed.enter(FeedStage::Open(shared_fields(head.fields).into()));
                        self.feed.totals.streams.add(1);
                    }
                    was_open = true;
                    if self.pass_on(answer, &mut stream).await {
                        return;
                    }
                }
                Ok(head) if !was_open => return self.refuse(head, answer).await,
                // A client of a separate stream would stop at such a status as well (HTML Living Standard §9.2.3).
                Ok(head) if head.status < 500 => return,
                Err(stop) if !was_open => return self.end(FeedStage::Failed(stop)),
                Ok(_) | Err(_) => {}
            }
            if stream.since.elapsed() >= self.times.reconnect {
                tracing::warn!(
                    "an event stream that clients share (sse-fanout) could not be opened again within {} s; its clients \
                     are disconnected",
                    self.times.reconnect.as_secs()
                );
                return;
            }
            sleep(stream.pause()).await;
        }
    }

    fn end(&self, stage: FeedStage) {
        // Removed before the clients are notified, because they may request the stream again at once.
        self.feeds.remove(&self.key, &self.feed);
        self.feed.enter(stage);
    }

    fn ask(&self, last_event_id: Option<&[u8]>) -> UpstreamAnswer {
        let mut request = self.request.clone();
        if let Some(id) = last_event_id.filter(|id| !id.is_empty()) {
            // Cannot fail: the id comes from a field, or from an event, without line ends and NUL.
            let _ = request.head.set(b"Last-Event-ID", id);
        }
        self.upstream.borrow().send(request)
    }

    /// Publishes the events of an answer until it ends. `true`: they cannot be held, and the shared stream ends.
    async fn pass_on(&self, mut answer: UpstreamAnswer, stream: &mut SourceStream) -> bool {
        let mut reader = BlockReader::default();
        while let Ok(Some(piece)) = answer.next().await {
            let mut blocks = Vec::new();
            let read = reader.read(&piece, &mut blocks);
            if let Some(id) = blocks.iter().rev().find_map(|block| block.id.clone()) {
                stream.last_event_id = Some(id);
            }
            if !blocks.is_empty() {
                stream.failures = 0;
                self.feed.totals.events.add(blocks.len() as u64);
            }
            stream.retry = reader.retry().unwrap_or(stream.retry);
            stream.since = Instant::now();
            if !self.publish(blocks, reader.held_bytes()).await {
                self.feed.totals.lack.error(
                    "an event stream that clients share (sse-fanout) has ended, as its next event cannot be held: \
                     held_content_max or held_content_max_per_client is reached",
                );
                return true;
            }
            if read.is_err() {
                tracing::error!(
                    "an event of an upstream is larger than {MOST_BLOCK_BYTES} bytes; its stream is cut off"
                );
                break;
            }
        }
        stream.since = Instant::now();
        self.feed.totals.reconnects.add(1);
        false
    }

    /// Publishes blocks that were received together, or one after the other if there is no room for all of them. `false`: there is
    /// none for one of them.
    async fn publish(&self, blocks: Vec<Arc<EventBlock>>, begun: usize) -> bool {
        let parts: Vec<_> = match self.hold(&blocks, begun) {
            has_room if blocks.is_empty() => return has_room,
            true => vec![blocks],
            false => blocks.into_iter().map(|block| vec![block]).collect(),
        };
        for part in parts {
            if !self.hold(&part, begun) {
                return false;
            }
            self.feed.publish(part);
            // Lets the clients send these events before the next ones may displace them from the window.
            tokio::task::yield_now().await;
        }
        true
    }

    /// Counts blocks, and bytes of one that has begun, as held content beside the window. If there is no room for them, as many of
    /// the oldest events are given up as are needed. `false`: there is none without the window either, and the window stays.
    fn hold(&self, blocks: &[Arc<EventBlock>], begun: usize) -> bool {
        let new = blocks.iter().map(|block| block.held_bytes()).sum::<usize>() + begun;
        let mut held = self.held.borrow_mut();
        for _ in 0..MOST_TRIES {
            let bytes = ((self.feed.held_bytes() + new) as u64).max(RESERVED_BYTES);
            if bytes <= held.most() {
                match held.set(bytes) {
                    Ok(()) => return true,
                    Err(_) => continue,
                }
            }
            // What its owner holds otherwise is no reason to take events from the other clients.
            let more = bytes - held.bytes();
            if Held::share_left(self.owner.get()) < more && self.pass_to_another(&mut held, bytes) {
                continue;
            }
            let Some(most) = held.most().checked_sub(new as u64) else { break };
            self.feed.shrink_window_to(most as usize);
        }
        // Counts as refused.
        blocks.len() < 2
            && held.set((new as u64).max(RESERVED_BYTES)).inspect(|()| self.feed.shrink_window_to(0)).is_ok()
    }

    async fn refuse(&self, head: ReplyHead, mut answer: UpstreamAnswer) {
        let mut content = Vec::new();
        let mut held = self.held.take();
        let end = loop {
            match answer.next().await {
                Ok(Some(piece)) => content.extend_from_slice(&piece),
                Ok(None) => break Ok(()),
                Err(stop) => break Err(stop),
            }
            if content.len() > MOST_OTHER_BYTES {
                break Err(Stop::ResponseTooLarge);
            }
            if let Err(exhausted) = held.set((content.capacity() as u64).max(RESERVED_BYTES)) {
                break Err(exhausted.into());
            }
        };
        let fields = shared_fields(head.fields);
        let other = || FeedStage::Refused(Arc::new(OtherAnswer { status: head.status, fields, content, _held: held }));
        self.end(end.map_or_else(FeedStage::Failed, |()| other()));
    }
}

/// The state of a stream across its connections to the upstream.
struct SourceStream {
    last_event_id: Option<Box<[u8]>>,
    retry: Duration,
    /// Consecutive connections that have delivered no event.
    failures: u32,
    /// When the stream was last connected.
    since: Instant,
}

impl SourceStream {
    /// The time until the next connection: doubled with each failure, and randomised, so that streams do not reconnect
    /// at the same moment.
    fn pause(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let longer = Backoff::new(self.retry, LONGEST_RETRY).after(self.failures);
        longer.mul_f64(rand::random_range(0.5..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(status: u16, fields: &[(&str, &str)]) -> ReplyHead {
        let field = |(name, value): &(&str, &str)| (name.as_bytes().into(), value.as_bytes().into());
        ReplyHead { status, fields: fields.iter().map(field).collect() }
    }

    #[test]
    fn an_event_stream_is_known_by_its_head() {
        for (is_one, head) in [
            (true, head(200, &[("Content-Type", "text/event-stream; charset=utf-8")])),
            (false, head(200, &[("Content-Type", "text/plain")])),
            (false, head(204, &[("Content-Type", "text/event-stream")])),
            (false, head(200, &[("Content-Type", "text/event-stream"), ("Content-Encoding", "gzip")])),
        ] {
            assert_eq!(is_event_stream(&head), is_one, "{:?}", head.status);
        }
    }

    #[test]
    fn fields_for_one_client_are_not_shared() {
        let fields = head(200, &[("Set-Cookie", "a=b"), ("X-A", "1"), ("Date", "x"), ("Content-Length", "3")]).fields;
        assert_eq!(shared_fields(fields), [(b"x-a"[..].into(), b"1"[..].into())]);
    }

    #[test]
    fn pauses_grow_and_are_bounded() {
        let mut stream = SourceStream { last_event_id: None, retry: RETRY, failures: 0, since: Instant::now() };
        let pauses: Vec<_> = (0..20).map(|_| stream.pause()).collect();
        assert!(pauses[0] <= RETRY && pauses[0] >= RETRY / 2);
        assert!(pauses.iter().all(|pause| *pause <= LONGEST_RETRY) && pauses[19] >= LONGEST_RETRY / 2);
    }
}
