//! A hub that several nodes share through a topic of Kafka.
//!
//! Partition 0 contains events, and subscription requests, from all nodes. Each node copies it to a local journal and reads it
//! there, so every node can serve listeners.
//! Partition 1 contains a heartbeat of each node twice a second; from these, all nodes derive which node owns which share.
//! Each further partition is a share of the subscriptions. Its owner writes the records there that a hub of one node writes to
//! its journal, and a record becomes valid only when the owner has read it back. A new owner reads the partition from the
//! beginning.
//!
//! All communication with brokers runs on one thread; the driver of each share has a thread of its own.

mod appends;
mod drivers;
mod events;
mod frame;
mod nodes;
mod share;
mod tail;
mod topic;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, sleep, timeout};
use weir_journal::{AppendError, OnCommit};
use weir_kafka::{KafkaError, PartitionEnd};

use crate::driver::{self, HubDriver, Message};
use crate::engine::Engine;
use crate::live_settings::LiveSettings;
use crate::sending::HubSender;
use crate::settings::KafkaLogSettings;
use crate::store::{EventLog, HubStore, StateLog, StateLogSize};
use appends::appends;
pub(crate) use drivers::HubDrivers;
use frame::{FrameKind, HubFrame};
use nodes::{ClusterView, Membership};
use topic::{HubTopic, LatestFailure, NODES, READ_BYTES, READ_WAIT};

/// The interval of a node's heartbeats.
const BEAT: Duration = Duration::from_millis(500);
/// How long opening waits until the existing events are copied.
const COPY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long closing waits until the shares are released and the brokers have acknowledged that.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(4);
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
/// Heartbeats kept when the partition is trimmed, and how many more there may be before that.
const BEATS_KEPT: i64 = 1_000;
const BEATS_MORE: i64 = 20_000;

type FailureReporter = Arc<dyn Fn(&str) + Send + Sync>;

/// The parts of a hub that has been opened.
pub(crate) struct OpenedHub {
    pub(crate) events: Arc<EventLog>,
    pub(crate) drivers: Arc<HubDrivers>,
    /// The inbox of the driver that serves listeners.
    pub(crate) listening: UnboundedSender<Message>,
    pub(crate) count: u64,
}

/// The thread that communicates with brokers. When it is dropped, it releases this node's shares and ends.
pub(crate) struct KafkaThread {
    closing: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for KafkaThread {
    fn drop(&mut self) {
        drop(self.closing.take());
        if let Some(thread) = self.thread.take() {
            // The panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// The state that the thread's tasks share.
struct KafkaHub {
    topic: Rc<HubTopic>,
    events: Arc<EventLog>,
    /// The offset up to which events are copied.
    copied: watch::Receiver<i64>,
    drivers: Arc<HubDrivers>,
    live: Arc<LiveSettings>,
    tell: FailureReporter,
}

/// Opens a hub. Blocks until its topic is found and its events are copied, for some seconds at most.
///
/// # Errors
/// No broker answers, the topic is not suitable, or the directory cannot be used.
pub(crate) fn open(
    directory: &Path,
    lock: File,
    log: &KafkaLogSettings,
    live: &Arc<LiveSettings>,
    tell: FailureReporter,
    failed: impl FnOnce() + Send + 'static,
) -> io::Result<(OpenedHub, KafkaThread)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (opened, answer) = mpsc::channel();
    let (closing, closed) = oneshot::channel();
    let opening = Opening { directory: directory.to_owned(), log: log.clone(), live: Arc::clone(live), tell };
    let thread = std::thread::Builder::new().name("hub-kafka".into()).spawn(move || {
        let local = LocalSet::new();
        let end = local.block_on(&runtime, opening.run(opened, closed));
        drop(local);
        drop(lock);
        if end == HubEnd::Failed {
            failed();
        }
    })?;
    let thread = KafkaThread { closing: Some(closing), thread: Some(thread) };
    let opened = answer.recv().unwrap_or_else(|_| Err("the thread has ended".to_owned().into()));
    Ok((opened.map_err(|error: KafkaError| io::Error::other(error.to_string()))?, thread))
}

/// Why the thread has ended.
#[derive(PartialEq, Eq)]
enum HubEnd {
    /// The hub was closed, or has never been open.
    Closed,
    /// The copy of the events cannot be written.
    Failed,
}

struct Opening {
    directory: PathBuf,
    log: KafkaLogSettings,
    live: Arc<LiveSettings>,
    tell: FailureReporter,
}

impl Opening {
    async fn run(self, opened: mpsc::Sender<Result<OpenedHub, KafkaError>>, closed: oneshot::Receiver<()>) -> HubEnd {
        let trouble = Arc::new(LatestFailure::new(Arc::clone(&self.tell)));
        let open = async {
            let topic = HubTopic::open(&self.log, &self.live.http(), fastrand::u64(1..), trouble).await?;
            let (first, end) = topic.ends(topic::EVENTS).await?;
            Ok((topic, first, end))
        };
        let (topic, first, end) = match open.await {
            Ok(open) => open,
            Err(error) => {
                let _ = opened.send(Err(error));
                return HubEnd::Closed;
            }
        };
        match self.begin(Rc::new(topic), first, end).await {
            Ok((hub, running)) => {
                let _ = opened.send(Ok(hub));
                running.until(closed).await
            }
            Err(error) => {
                let _ = opened.send(Err(error.to_string().into()));
                HubEnd::Closed
            }
        }
    }

    async fn begin(self, topic: Rc<HubTopic>, first: i64, end: i64) -> io::Result<(OpenedHub, RunningHub)> {
        let journal = events::open_copy(&self.directory, &self.live.settings.load(), first)?;
        let (appender, queue) = appends();
        let origin = Box::new(move |record, on_commit| appender.append(record, on_commit));
        let events = Arc::new(EventLog { journal, origin: Some(origin) });
        let listening = self.listen(&events, &topic.trouble)?;
        let drivers = Arc::new(HubDrivers::new(listening.clone(), topic.shares));
        let (copied, is_copied) = watch::channel(first);
        let copy = events::copy_events(Rc::clone(&topic), Arc::clone(&events), first, copied, Arc::clone(&drivers));
        let copying = spawn_local(copy);
        // Copying that takes longer continues while the hub runs.
        let _ = timeout(COPY_TIMEOUT, is_copied.clone().wait_for(|copied| *copied >= end)).await;
        spawn_local(events::write_events(Rc::clone(&topic), queue));
        let (view, views) = watch::channel(ClusterView::default());
        let Opening { live, tell, .. } = self;
        let (own, owners) = (Arc::clone(&events), Arc::clone(&drivers));
        let hub = Rc::new(KafkaHub { topic, events: own, copied: is_copied, drivers: owners, live, tell });
        for share in 0..hub.topic.shares {
            spawn_local(share::follow_share(Rc::clone(&hub), share, views.clone()));
        }
        let count = events.journal.status().records;
        Ok((OpenedHub { events, drivers, listening, count }, RunningHub { hub, view, copying }))
    }

    /// Starts the driver that serves listeners: it has no subscriptions, and writes no state.
    fn listen(&self, events: &Arc<EventLog>, trouble: &Arc<LatestFailure>) -> io::Result<UnboundedSender<Message>> {
        let settings = self.live.settings.load_full();
        let sender = HubSender::new(Arc::clone(&settings), &self.live.http());
        let (inbox, received) = unbounded_channel();
        let (events, tell, for_driver) = (Arc::clone(events), Arc::clone(&self.tell), inbox.clone());
        let log = Box::new(NoState { events: Arc::clone(&events), trouble: Arc::clone(trouble) });
        let driver = move || {
            let mut engine = Engine::new(Arc::clone(&settings), fastrand::u64(..));
            let store = HubStore::over_copy(events, log, &mut engine, None).ok()?;
            Some(HubDriver::new(engine, store, sender, settings, for_driver, tell))
        };
        driver::start(driver, received)?;
        Ok(inbox)
    }
}

/// The state log of a driver without subscriptions.
struct NoState {
    events: Arc<EventLog>,
    trouble: Arc<LatestFailure>,
}

impl StateLog for NoState {
    fn append(&self, _payload: Vec<u8>, _survives_power_loss: bool, on_commit: OnCommit) -> Result<(), AppendError> {
        on_commit(Ok(0));
        Ok(())
    }

    fn size(&self) -> StateLogSize {
        StateLogSize::default()
    }

    fn release(&self, _before: StateLogSize) {}

    fn release_events(&self, seq: u64) {
        self.events.journal.release(seq);
    }

    fn error(&self) -> Option<String> {
        self.trouble.last()
    }
}

struct RunningHub {
    hub: Rc<KafkaHub>,
    view: watch::Sender<ClusterView>,
    copying: tokio::task::JoinHandle<String>,
}

impl RunningHub {
    /// Runs until the hub is closed, or the copy cannot be written; then the shares are released to other nodes.
    async fn until(self, closed: oneshot::Receiver<()>) -> HubEnd {
        let RunningHub { hub, view, copying } = self;
        let end = tokio::select! {
            _ = closed => HubEnd::Closed,
            problem = copying => {
                let problem = problem.unwrap_or_else(|error| error.to_string());
                (hub.tell)(&format!(
                    "this node leaves the hub, and opens it again: the copy of the events cannot be written: {problem}"
                ));
                HubEnd::Failed
            }
            () = follow_nodes(&hub.topic, &view) => HubEnd::Closed,
        };
        view.send_replace(ClusterView::default());
        let released = async {
            while !hub.drivers.has_none() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        let _ = timeout(RELEASE_TIMEOUT, released).await;
        let leaving = frame_of(&hub.topic, FrameKind::Leaving);
        let leave = async { hub.topic.append(&mut hub.topic.partition(NODES), &[leaving], Some(Instant::now())).await };
        let _ = timeout(LEAVE_TIMEOUT, leave).await;
        end
    }
}

fn frame_of(topic: &HubTopic, kind: FrameKind) -> Vec<u8> {
    HubFrame { node: topic.node, epoch: 0, number: 0, kind, payload: b"" }.encode()
}

/// Sends this node's heartbeats, and follows those of all nodes.
async fn follow_nodes(topic: &HubTopic, view: &watch::Sender<ClusterView>) {
    tokio::join!(show(topic), read_nodes(topic, view));
}

async fn show(topic: &HubTopic) {
    let mut client = topic.partition(NODES);
    loop {
        // The frame is never too large, so this retries until it is stored.
        let _ = topic.append(&mut client, &[frame_of(topic, FrameKind::Alive)], None).await;
        sleep(BEAT).await;
    }
}

async fn read_nodes(topic: &HubTopic, view: &watch::Sender<ClusterView>) {
    let mut client = topic.partition(NODES);
    let mut membership = Membership::new(topic.node, topic.shares);
    let (mut next, mut removed) = (None, None);
    loop {
        let read = async {
            let from = match next {
                Some(next) => next,
                None => client.end(PartitionEnd::Last).await?,
            };
            client.fetch(from, READ_BYTES, READ_WAIT).await
        };
        let fetched = match read.await {
            Ok(fetched) => fetched,
            Err(error) => {
                if error.is_out_of_range() {
                    next = None;
                }
                topic.pause(&error).await;
                continue;
            }
        };
        topic.trouble.end();
        next = Some(fetched.next);
        fetched
            .messages
            .iter()
            .filter_map(|(_, _, value)| HubFrame::decode(value))
            .for_each(|frame| membership.read(&frame));
        view.send_if_modified(|view| {
            let before = std::mem::replace(view, membership.view());
            before != *view
        });
        let removed = removed.get_or_insert(fetched.next - BEATS_MORE);
        if membership.is_trimmer() && fetched.next - *removed > BEATS_KEPT + BEATS_MORE {
            *removed = fetched.next - BEATS_KEPT;
            if let Err(error) = client.delete_before((*removed).max(0)).await {
                topic.trouble.report(&error);
            }
        }
    }
}
