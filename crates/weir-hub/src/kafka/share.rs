//! A share of the subscriptions: following it, taking it over, running it, and releasing it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::spawn_local;
use weir_journal::{AppendError, OnCommit};
use weir_kafka::{KafkaError, PartitionClient, PartitionEnd};

use super::KafkaHub;
use super::appends::{AppendQueue, Appender, appends};
use super::frame::{FrameKind, HubFrame};
use super::nodes::ClusterView;
use super::tail::{ShareEntry, ShareOwnership};
use super::topic::{EVENTS, LatestFailure, READ_BYTES, READ_WAIT};
use crate::driver::{self, HubDriver, Message};
use crate::engine::Engine;
use crate::sending::HubSender;
use crate::store::{HubStore, StateLog, StateLogSize, StateRestore, SubscriptionShare};

/// Runs a share whenever this node should own it, until the hub is closed.
pub(super) async fn follow_share(hub: Rc<KafkaHub>, share: u32, mut view: watch::Receiver<ClusterView>) {
    while view.wait_for(|view| view.own.contains(&share)).await.is_ok() {
        if let Err(error) = hold_share(&hub, share, &view).await {
            hub.topic.pause(&error).await;
        }
    }
}

/// The state of a share, as far as its partition was read.
struct ShareReading {
    tail: ShareOwnership,
    restore: StateRestore,
    /// The next offset to read.
    next: i64,
    bytes: u64,
}

impl ShareReading {
    fn new(hub: &KafkaHub, share: SubscriptionShare, next: i64) -> ShareReading {
        let settings = Arc::new(hub.live.settings.load().share_of(share.count));
        let engine = move || Engine::new(Arc::clone(&settings), fastrand::u64(..)).with_ids_from(share.first_number());
        ShareReading { tail: ShareOwnership::default(), restore: StateRestore::new(engine), next, bytes: 0 }
    }

    fn take(&mut self, value: &[u8]) -> Result<(), KafkaError> {
        let Some(frame) = HubFrame::decode(value) else { return Ok(()) };
        match self.tail.read(&frame) {
            ShareEntry::Record => {
                self.bytes += frame.payload.len() as u64;
                self.restore.take(frame.payload).map_err(|error| error.to_string())?;
            }
            // The previous owner may have died in the middle of a snapshot.
            ShareEntry::Claimed => self.restore.forget_unfinished(),
            ShareEntry::Released | ShareEntry::Nothing => {}
        }
        Ok(())
    }
}

/// Waits until the share is free, takes it over, and runs it until this node should no longer own it.
async fn hold_share(hub: &Rc<KafkaHub>, index: u32, view: &watch::Receiver<ClusterView>) -> Result<(), KafkaError> {
    let share = SubscriptionShare { index, count: hub.topic.shares };
    let mut client = hub.topic.share(index);
    let mut reading = ShareReading::new(hub, share, client.end(PartitionEnd::First).await?);
    // The epoch of this node's claim; 0 before it.
    let mut claimed = 0;
    let is_wanted = || view.borrow().own.contains(&index);
    while is_wanted() {
        let fetched = client.fetch(reading.next, READ_BYTES, READ_WAIT).await?;
        reading.next = fetched.next;
        for (_, _, value) in fetched.messages {
            reading.take(&value)?;
        }
        if claimed > 0 && (reading.tail.epoch, reading.tail.owner) == (claimed, hub.topic.node) {
            return run_share(hub, share, reading, client, view).await;
        }
        let is_live = |node| view.borrow().live.contains(&node);
        let is_free = reading.tail.is_free(hub.topic.node, is_live);
        if reading.next >= fetched.end && claimed <= reading.tail.epoch && is_free {
            claimed = reading.tail.epoch + 1;
            let claim =
                HubFrame { node: hub.topic.node, epoch: claimed, number: 0, kind: FrameKind::Claim, payload: b"" };
            hub.topic.append(&mut hub.topic.share(index), &[claim.encode()], None).await?;
        }
    }
    Ok(())
}

/// The numbers that a share's driver and its reader share.
struct ShareState {
    last: AtomicU64,
    bytes: AtomicU64,
    trouble: Arc<LatestFailure>,
}

/// A request to remove records before an offset.
enum ShareRemoval {
    State(i64),
    Events(i64),
}

/// The state log in the partition of a share.
struct ShareLog {
    appender: Appender,
    state: Arc<ShareState>,
    removals: UnboundedSender<ShareRemoval>,
    /// Exactly one share removes events from their partition.
    removes_events: bool,
}

impl StateLog for ShareLog {
    fn append(&self, payload: Vec<u8>, _survives_power_loss: bool, on_commit: OnCommit) -> Result<(), AppendError> {
        self.appender.append(payload, on_commit)
    }

    fn size(&self) -> StateLogSize {
        StateLogSize { last: self.state.last.load(Relaxed), bytes: self.state.bytes.load(Relaxed) }
    }

    fn release(&self, before: StateLogSize) {
        self.state.bytes.fetch_sub(before.bytes, Relaxed);
        let _ = self.removals.send(ShareRemoval::State(before.last as i64));
    }

    fn release_events(&self, seq: u64) {
        if self.removes_events {
            let _ = self.removals.send(ShareRemoval::Events(seq as i64));
        }
    }

    fn error(&self) -> Option<String> {
        self.state.trouble.last()
    }
}

/// Records that are appended and not read back yet, by their numbers.
type Unread = Rc<RefCell<VecDeque<(u64, OnCommit)>>>;

/// Runs a share that this node owns.
async fn run_share(
    hub: &Rc<KafkaHub>,
    share: SubscriptionShare,
    reading: ShareReading,
    client: PartitionClient<'_>,
    view: &watch::Receiver<ClusterView>,
) -> Result<(), KafkaError> {
    // The local copy must have all events that the previous owner has seen.
    let end = hub.topic.partition(EVENTS).end(PartitionEnd::Last).await?;
    if hub.copied.clone().wait_for(|copied| *copied >= end).await.is_err() {
        return Ok(());
    }
    let ShareReading { tail, restore, next, bytes } = reading;
    let state =
        ShareState { last: AtomicU64::new(0), bytes: AtomicU64::new(bytes), trouble: Arc::clone(&hub.topic.trouble) };
    let state = Arc::new(state);
    let (appender, queue) = appends();
    let (removals, to_remove) = unbounded_channel();
    let log = ShareLog { appender, state: Arc::clone(&state), removals, removes_events: share.index == 0 };
    let inbox = start_driver(hub, share, restore.end(), log).map_err(|error| error.to_string())?;
    let unread = Unread::default();
    let writing = spawn_local(write_share(Rc::clone(hub), share.index, tail.epoch, queue, Rc::clone(&unread)));
    let removing = spawn_local(remove(Rc::clone(hub), share.index, to_remove));
    hub.drivers.begin(share.index, inbox.clone());
    // The settings may have changed since the partition was read.
    let settings = Arc::new(hub.live.settings.load().share_of(share.count));
    let _ = inbox.send(Message::Reconfigure(settings, hub.live.http()));
    let running = RunningShare { inbox, state, unread, tail, next, is_closing: Cell::new(false) };
    running.read(hub, share.index, client, view).await;
    hub.drivers.end(share.index);
    // Records that are not appended by now are lost with the driver: they were never confirmed.
    writing.abort();
    removing.abort();
    running.unread.borrow_mut().clear();
    let _ = running.inbox.send(Message::Close);
    Ok(())
}

fn start_driver(
    hub: &Rc<KafkaHub>,
    share: SubscriptionShare,
    mut engine: Engine,
    log: ShareLog,
) -> io::Result<UnboundedSender<Message>> {
    let settings = Arc::new(hub.live.settings.load().share_of(share.count));
    let sender = HubSender::new(Arc::clone(&settings), &hub.live.http());
    let (inbox, received) = unbounded_channel();
    let (events, tell, for_driver) = (Arc::clone(&hub.events), Arc::clone(&hub.tell), inbox.clone());
    let start = move || {
        let told = Arc::clone(&tell);
        match HubStore::over_copy(events, Box::new(log), &mut engine, Some(share)) {
            Ok(store) => Some(HubDriver::new(engine, store, sender, settings, for_driver, tell)),
            Err(error) => {
                told(&format!("the copy of the events cannot be read: {error}"));
                None
            }
        }
    };
    driver::start(start, received)?;
    Ok(inbox)
}

struct RunningShare {
    inbox: UnboundedSender<Message>,
    state: Arc<ShareState>,
    unread: Unread,
    tail: ShareOwnership,
    next: i64,
    is_closing: Cell<bool>,
}

impl RunningShare {
    /// Reads back this node's records, until the share is released, or another node owns it.
    async fn read(
        &self,
        hub: &KafkaHub,
        index: u32,
        mut client: PartitionClient<'_>,
        view: &watch::Receiver<ClusterView>,
    ) {
        let (mut tail, mut next) = (self.tail, self.next);
        loop {
            if !view.borrow().own.contains(&index) && !self.is_closing.replace(true) {
                let _ = self.inbox.send(Message::Close);
            }
            let fetched = match client.fetch(next, READ_BYTES, READ_WAIT).await {
                Ok(fetched) => fetched,
                Err(error) if error.is_out_of_range() => return hub.topic.pause(&error).await,
                Err(error) => {
                    hub.topic.pause(&error).await;
                    continue;
                }
            };
            hub.topic.trouble.end();
            next = fetched.next;
            for (offset, _, value) in fetched.messages {
                let Some(frame) = HubFrame::decode(&value) else { continue };
                match tail.read(&frame) {
                    ShareEntry::Record if frame.node == hub.topic.node => self.written(&frame, offset),
                    ShareEntry::Nothing => {}
                    // Released, or taken over by another node.
                    _ => return,
                }
            }
        }
    }

    fn written(&self, frame: &HubFrame<'_>, offset: i64) {
        self.state.last.store(offset as u64 + 1, Relaxed);
        self.state.bytes.fetch_add(frame.payload.len() as u64, Relaxed);
        let first = self.unread.borrow_mut().pop_front();
        if let Some((number, on_commit)) = first {
            debug_assert_eq!(number, frame.number, "records are read in the order in which they were written");
            on_commit(Ok(offset as u64 + 1));
        }
    }
}

/// Appends the driver's records; when the driver has ended, releases the share.
async fn write_share(hub: Rc<KafkaHub>, index: u32, epoch: u64, mut queue: AppendQueue, unread: Unread) {
    let mut client = hub.topic.share(index);
    let mut number = 0;
    let mut frame = |kind, payload: &[u8]| {
        number += 1;
        (number, HubFrame { node: hub.topic.node, epoch, number, kind, payload }.encode())
    };
    loop {
        let batch = queue.next().await;
        if batch.is_empty() {
            break;
        }
        let mut frames = Vec::with_capacity(batch.len());
        for append in batch {
            let (number, frame) = frame(FrameKind::Record, &append.payload);
            unread.borrow_mut().push_back((number, append.on_commit));
            frames.push(frame);
        }
        append_all(&hub, &mut client, &frames).await;
    }
    let (_, release) = frame(FrameKind::Release, b"");
    append_all(&hub, &mut client, &[release]).await;
}

/// Retries without a limit, since no record may be left out. What the broker refuses for good, it may accept after a change of the
/// topic, or of a clock that is wrong; `/status` shows the error meanwhile, and deliveries wait.
async fn append_all(hub: &KafkaHub, client: &mut PartitionClient<'_>, frames: &[Vec<u8>]) {
    if hub.topic.append(client, frames, None).await.is_ok() {
        return;
    }
    // The batch is larger than the topic allows, or has a frame that it does not, so the frames are appended one by one.
    for frame in frames {
        while let Err(error) = hub.topic.append(client, std::slice::from_ref(frame), None).await {
            hub.topic.pause(&error).await;
        }
    }
}

/// Removes records that are no longer needed. A failure is ignored, because a later removal includes the same records.
async fn remove(hub: Rc<KafkaHub>, index: u32, mut removals: tokio::sync::mpsc::UnboundedReceiver<ShareRemoval>) {
    let (mut state, mut events) = (hub.topic.share(index), hub.topic.partition(EVENTS));
    while let Some(removal) = removals.recv().await {
        let removed = match removal {
            ShareRemoval::State(before) => state.delete_before(before).await,
            ShareRemoval::Events(before) => events.delete_before(before).await,
        };
        if let Err(error) = removed {
            hub.topic.trouble.report(&error);
        }
    }
}
