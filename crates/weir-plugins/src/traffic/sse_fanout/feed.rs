//! Shared streams: one per key for all workers, and a copy of its events on each worker that has clients for it.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use slab::Slab;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use weir_plugin::proto::address::client_network;
use weir_plugin::{Held, ReplyField, RouteUpstream, Stop};
use weir_telemetry::cell::Histogram;

use super::blocks::EventBlock;
use super::streams::UpstreamStreamPermit;
use super::totals::FanoutTotals;
use super::window::{At, EventWindow, WindowLimits};

/// The upstream's answer if it is not an event stream. It is sent to all waiting clients.
#[derive(Debug)]
pub(super) struct OtherAnswer {
    pub status: u16,
    pub fields: Vec<ReplyField>,
    pub content: Vec<u8>,
    /// For the content, until all clients have got it.
    pub _held: Held,
}

/// The stage of a shared stream.
#[derive(Clone, Debug)]
pub(super) enum FeedStage {
    /// The upstream has not answered yet.
    Opening,
    /// The upstream sends events; with the fields of the answer's head.
    Open(Arc<[ReplyField]>),
    Refused(Arc<OtherAnswer>),
    Failed(Stop),
    /// The stream is over. Clients get the remaining events of the window first.
    Ended,
}

impl FeedStage {
    fn is_final(&self) -> bool {
        !matches!(self, FeedStage::Opening | FeedStage::Open(_))
    }
}

#[derive(Clone, Debug)]
struct FeedProgress {
    stage: FeedStage,
    /// The position after the newest event.
    end: u64,
}

/// A stream shared by all workers.
pub(super) struct Feed {
    window: Mutex<EventWindow>,
    progress: watch::Sender<FeedProgress>,
    /// Notified when the stream is ended because it has no client.
    ended: Notify,
    /// The addresses of its clients on all workers, with the number of clients of each.
    clients: Mutex<HashMap<IpAddr, usize>>,
    /// Notified when the last client of an address has left.
    address_left: Notify,
    /// The `Last-Event-ID` of the first request to the upstream.
    pub opened_after: Option<Box<[u8]>>,
    pub totals: Arc<FanoutTotals>,
}

impl Feed {
    fn new(joining: &JoinRequest<'_>) -> Feed {
        Feed {
            window: Mutex::new(EventWindow::new(joining.limits)),
            progress: watch::Sender::new(FeedProgress { stage: FeedStage::Opening, end: 0 }),
            ended: Notify::new(),
            clients: Mutex::default(),
            address_left: Notify::new(),
            opened_after: joining.last_event_id.map(Into::into),
            totals: Arc::clone(joining.totals),
        }
    }

    fn window(&self) -> MutexGuard<'_, EventWindow> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_client(&self, address: IpAddr) {
        *self.clients().entry(address).or_default() += 1;
    }

    fn remove_client(&self, address: IpAddr) {
        let mut clients = self.clients();
        let Some(count) = clients.get_mut(&address) else { return };
        *count -= 1;
        if *count == 0 {
            clients.remove(&address);
            self.address_left.notify_one();
        }
    }

    /// Completes when the last client of an address has left.
    pub(super) async fn address_left(&self) {
        self.address_left.notified().await;
    }

    /// Whether an address (IPv6: a /64) has a client.
    pub(super) fn has_client_of(&self, address: IpAddr) -> bool {
        self.clients().contains_key(&address)
    }

    /// Some addresses that have clients.
    pub(super) fn addresses(&self, most: usize) -> Vec<IpAddr> {
        self.clients().keys().copied().take(most).collect()
    }

    /// The bytes of memory that the window takes, without what is beyond its limits.
    pub(super) fn held_bytes(&self) -> usize {
        let mut window = self.window();
        window.trim();
        window.held_bytes()
    }

    /// Gives up the oldest events until the memory of the others is at most this.
    pub(super) fn shrink_window_to(&self, held_bytes: usize) {
        self.window().shrink_to(held_bytes);
    }

    pub(super) fn publish(&self, blocks: Vec<Arc<EventBlock>>) {
        if blocks.is_empty() {
            return;
        }
        let mut window = self.window();
        window.extend(blocks);
        let end = window.end();
        drop(window);
        self.progress.send_modify(|progress| progress.end = end);
    }

    /// Changes the stage, unless the current one is final.
    pub(super) fn enter(&self, stage: FeedStage) {
        self.progress.send_if_modified(|progress| {
            let goes_on = !progress.stage.is_final();
            if goes_on {
                progress.stage = stage;
            }
            goes_on
        });
    }

    /// Completes when no worker has clients for the stream.
    pub(super) async fn left(&self) {
        self.progress.closed().await;
    }

    /// Completes when the stream was ended because it has no client.
    pub(super) async fn ended(&self) {
        self.ended.notified().await;
    }

    /// Whether the upstream has answered with events.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.progress.borrow().stage, FeedStage::Open(_))
    }

    fn is_left(&self) -> bool {
        self.progress.receiver_count() == 0
    }
}

/// The streams of all workers, by the key of the requests that share a stream.
#[derive(Default)]
pub(super) struct Feeds(Mutex<HashMap<Box<[u8]>, Arc<Feed>>>);

impl Feeds {
    fn all(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, Arc<Feed>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a stream, so that the next client opens a new one.
    pub(super) fn remove(&self, key: &[u8], feed: &Arc<Feed>) {
        let mut all = self.all();
        if all.get(key).is_some_and(|found| Arc::ptr_eq(found, feed)) {
            all.remove(key);
        }
    }

    /// Removes a stream if no worker has clients for it; `false` if one has.
    pub(super) fn remove_if_unused(&self, key: &[u8], feed: &Arc<Feed>) -> bool {
        let mut all = self.all();
        let is_left = feed.is_left();
        if is_left && all.get(key).is_some_and(|found| Arc::ptr_eq(found, feed)) {
            all.remove(key);
        }
        is_left
    }

    /// Ends a stream if no worker has clients for it; `false` if one has.
    pub(super) fn end_if_unused(&self, key: &[u8], feed: &Arc<Feed>) -> bool {
        let is_unused = self.remove_if_unused(key, feed);
        if is_unused {
            feed.ended.notify_one();
        }
        is_unused
    }

    /// The stream of a key. It is followed under the lock, so that it is not removed as one without clients.
    fn find(&self, key: &[u8]) -> Option<(Arc<Feed>, watch::Receiver<FeedProgress>)> {
        self.all().get(key).map(|feed| (Arc::clone(feed), feed.progress.subscribe()))
    }

    /// Adds a stream, unless another worker has added one meanwhile.
    fn find_or_add(&self, key: &[u8], feed: Arc<Feed>) -> (Arc<Feed>, watch::Receiver<FeedProgress>) {
        let mut all = self.all();
        let feed = all.entry(key.into()).or_insert(feed);
        (Arc::clone(feed), feed.progress.subscribe())
    }
}

/// A worker's copy of a stream: its events, and the clients on this worker.
pub(super) struct WorkerFeed {
    feed: Arc<Feed>,
    window: RefCell<EventWindow>,
    stage: RefCell<FeedStage>,
    /// The number of heartbeats so far: intervals in which no event came.
    beats: Cell<u64>,
    waiting: RefCell<Slab<Option<Waker>>>,
    /// The task that copies events to this worker.
    follower: OnceCell<AbortHandle>,
    delays: Arc<Histogram>,
    /// The upstream of the newest client, which the source uses for the next connection.
    pub upstream: Rc<RefCell<Rc<dyn RouteUpstream>>>,
}

/// The streams of one worker.
pub(super) struct WorkerFeeds {
    by_key: RefCell<HashMap<Box<[u8]>, Weak<WorkerFeed>>>,
    delays: Arc<Histogram>,
}

/// The result of joining a stream. If the stream is new, the caller has to start its source.
pub(super) struct Joined {
    pub worker_feed: Rc<WorkerFeed>,
    pub new_feed: Option<(Arc<Feed>, NewStream)>,
}

/// What a new stream needs.
pub(super) struct NewStream {
    pub permit: UpstreamStreamPermit,
    /// For the window.
    pub held: Held,
}

/// The arguments of a client that joins a stream.
pub(super) struct JoinRequest<'a> {
    pub key: &'a [u8],
    pub last_event_id: Option<&'a [u8]>,
    pub upstream: &'a Rc<dyn RouteUpstream>,
    pub limits: WindowLimits,
    pub heartbeat: Duration,
    pub totals: &'a Arc<FanoutTotals>,
    /// Permits a new stream.
    pub permit: &'a dyn Fn() -> Result<NewStream, Stop>,
}

impl WorkerFeeds {
    /// `delays`: this worker's.
    pub(super) fn new(delays: Arc<Histogram>) -> WorkerFeeds {
        WorkerFeeds { by_key: RefCell::default(), delays }
    }

    /// Joins the stream of a key, which is created if there is none.
    ///
    /// # Errors
    /// There is none, and no other is permitted.
    pub(super) fn join(&self, feeds: &Feeds, joining: &JoinRequest<'_>) -> Result<Joined, Stop> {
        let known = self.by_key.borrow().get(joining.key).and_then(Weak::upgrade);
        if let Some(worker_feed) = known.filter(|known| !known.stage.borrow().is_final()) {
            worker_feed.upstream.replace(Rc::clone(joining.upstream));
            return Ok(Joined { worker_feed, new_feed: None });
        }
        let (feed, progress, new_feed) = match feeds.find(joining.key) {
            Some((feed, progress)) => (feed, progress, None),
            None => {
                // Without the lock, which is taken to end other streams.
                let new_stream = (joining.permit)()?;
                let new = Arc::new(Feed::new(joining));
                let (feed, progress) = feeds.find_or_add(joining.key, Arc::clone(&new));
                let is_new = Arc::ptr_eq(&feed, &new);
                (feed, progress, is_new.then_some((new, new_stream)))
            }
        };
        let worker_feed = WorkerFeed::following(feed, progress, joining, Arc::clone(&self.delays));
        let mut own = self.by_key.borrow_mut();
        own.retain(|_, feed| feed.strong_count() > 0);
        own.insert(joining.key.into(), Rc::downgrade(&worker_feed));
        Ok(Joined { worker_feed, new_feed })
    }
}

impl WorkerFeed {
    fn following(
        feed: Arc<Feed>,
        progress: watch::Receiver<FeedProgress>,
        joining: &JoinRequest<'_>,
        delays: Arc<Histogram>,
    ) -> Rc<WorkerFeed> {
        let window = feed.window().clone();
        let stage = progress.borrow().stage.clone();
        let worker_feed = Rc::new(WorkerFeed {
            feed,
            window: RefCell::new(window),
            stage: RefCell::new(stage),
            beats: Cell::new(0),
            waiting: RefCell::default(),
            follower: OnceCell::new(),
            delays,
            upstream: Rc::new(RefCell::new(Rc::clone(joining.upstream))),
        });
        let follower = tokio::task::spawn_local(follow(Rc::downgrade(&worker_feed), progress, joining.heartbeat));
        let _ = worker_feed.follower.set(follower.abort_handle());
        worker_feed
    }

    /// The item at a position.
    pub(super) fn next(&self, position: u64) -> FeedItem {
        match self.window.borrow().at(position) {
            At::Block(block) => FeedItem::Block(Arc::clone(block)),
            At::Gone(first) => FeedItem::Gone(first),
            At::End => FeedItem::End,
        }
    }

    pub(super) fn stage(&self) -> FeedStage {
        self.stage.borrow().clone()
    }

    /// A client's first position: after its last event, or `replay` events back if it has none. `None` if the stream cannot
    /// determine which events the client has missed.
    pub(super) fn position(&self, last_event_id: Option<&[u8]>, replay: usize) -> Option<u64> {
        let window = self.window.borrow();
        let Some(id) = last_event_id else { return Some(window.newest(replay)) };
        let is_begin = window.is_complete() && self.feed.opened_after.as_deref() == Some(id);
        window.after_id(id).or(is_begin.then_some(0))
    }

    /// The position after the newest event.
    pub(super) fn end(&self) -> u64 {
        self.window.borrow().end()
    }

    pub(super) fn client(self: &Rc<Self>, address: IpAddr) -> FeedClient {
        let place = self.waiting.borrow_mut().insert(None);
        let address = client_network(address);
        self.feed.totals.clients.add(1);
        self.feed.add_client(address);
        FeedClient { feed: Rc::clone(self), address, place, beats: self.beats.get() }
    }

    /// Counts an event that has been given to a client's connection as it came.
    pub(super) fn delivered(&self, block: &EventBlock) {
        self.delays.record(block.received.elapsed());
    }

    fn wake_clients(&self) {
        let waiting = self.waiting.borrow();
        // Clients are woken, and served, one after the other; the random start avoids that the same client is always last.
        let first = rand::random_range(0..waiting.len().max(1));
        let in_turn = waiting.iter().skip(first).chain(waiting.iter().take(first));
        in_turn.filter_map(|(_, waker)| waker.as_ref()).for_each(Waker::wake_by_ref);
    }

    fn take(&self, progress: &FeedProgress) {
        let mut window = self.window.borrow_mut();
        if window.end() != progress.end {
            window.catch_up(&self.feed.window());
        }
        drop(window);
        self.stage.replace(progress.stage.clone());
        self.wake_clients();
    }
}

impl Drop for WorkerFeed {
    fn drop(&mut self) {
        if let Some(follower) = self.follower.get() {
            follower.abort();
        }
    }
}

/// Copies events to the worker, for all of its clients.
async fn follow(worker_feed: Weak<WorkerFeed>, mut progress: watch::Receiver<FeedProgress>, heartbeat: Duration) {
    loop {
        let changed = timeout(heartbeat, progress.changed()).await;
        let Some(worker_feed) = worker_feed.upgrade() else { return };
        match changed {
            Ok(Ok(())) => {
                let now = progress.borrow_and_update().clone();
                worker_feed.take(&now);
            }
            Ok(Err(_)) => {
                worker_feed.stage.replace(FeedStage::Ended);
                return worker_feed.wake_clients();
            }
            Err(_) => {
                worker_feed.beats.set(worker_feed.beats.get() + 1);
                worker_feed.wake_clients();
            }
        }
    }
}

/// The next item for a client.
pub(super) enum FeedItem {
    Block(Arc<EventBlock>),
    /// The event is no longer in the window; the oldest one there has this position.
    Gone(u64),
    End,
}

/// The reason why a client was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FeedWake {
    /// There are new events, or the stage has changed.
    Changed,
    /// No event came for the duration of a heartbeat.
    Heartbeat,
}

/// A client of a stream.
pub(super) struct FeedClient {
    pub feed: Rc<WorkerFeed>,
    /// For IPv6 the network.
    address: IpAddr,
    place: usize,
    beats: u64,
}

impl FeedClient {
    /// Waits until the upstream has answered.
    pub(super) async fn opened(&mut self) -> FeedStage {
        poll_fn(|context| match self.feed.stage() {
            FeedStage::Opening => self.wait(context.waker()),
            stage => Poll::Ready(stage),
        })
        .await
    }

    /// Waits until there is an event at this position, the stream has ended, or a heartbeat is due.
    pub(super) async fn beyond(&mut self, position: u64) -> FeedWake {
        poll_fn(|context| {
            let beats = self.feed.beats.get();
            if self.feed.end() > position || self.feed.stage.borrow().is_final() {
                Poll::Ready(FeedWake::Changed)
            } else if std::mem::replace(&mut self.beats, beats) != beats {
                Poll::Ready(FeedWake::Heartbeat)
            } else {
                self.wait(context.waker())
            }
        })
        .await
    }

    /// Waits until the event at this position is no longer kept.
    pub(super) async fn displaced(&self, position: u64) {
        poll_fn(|context| match self.feed.next(position) {
            FeedItem::Gone(_) => Poll::Ready(()),
            FeedItem::Block(_) | FeedItem::End => self.wait(context.waker()),
        })
        .await
    }

    fn wait<T>(&self, waker: &Waker) -> Poll<T> {
        let mut waiting = self.feed.waiting.borrow_mut();
        let place = &mut waiting[self.place];
        if place.as_ref().is_none_or(|known| !known.will_wake(waker)) {
            *place = Some(waker.clone());
        }
        Poll::Pending
    }
}

impl Drop for FeedClient {
    fn drop(&mut self) {
        self.feed.waiting.borrow_mut().remove(self.place);
        self.feed.feed.totals.clients.sub(1);
        self.feed.feed.remove_client(self.address);
    }
}
