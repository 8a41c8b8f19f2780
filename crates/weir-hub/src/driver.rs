//! The hub's thread: carries out the engine's decisions with real files, sockets and time.

mod event_storing;
mod listeners;
mod state_writing;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::process::setpriority_process;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::task::{spawn_local, yield_now};
use tokio::time::{Instant, sleep_until};
use weir_client::HttpClientSettings;
use weir_journal::AppendError;

use crate::account::{HubStatus, ListenerCounts, LoopTurns};
use crate::attempt::DeliveryOutcome;
use crate::clock::HubClock;
use crate::delivery_reports::DeliveryReports;
use crate::ends::EndReason;
use crate::engine::{CallbackRequest, DeadLetterFilter, Engine, Verification};
use crate::form::{Refusal, SubscriptionRequest};
use crate::holding::{EventHolding, HeldEvents, Listened};
use crate::in_flight::EventsInFlight;
use crate::record::LogEntry;
use crate::sending::HubSender;
use crate::settings::HubSettings;
use crate::store::HubStore;
use crate::verification::{AskedVerification, VerificationFailure, VerificationReports};

use event_storing::EventStoring;
pub(crate) use listeners::EventWaiter;
use listeners::WaitingListeners;
pub(crate) use state_writing::PersistedChanges;

/// A message to the hub's thread.
pub(crate) enum Message {
    /// The answer is the time until the callback is asked.
    Request(SubscriptionRequest, oneshot::Sender<Result<Duration, Refusal>>),
    /// Requests the content of a topic by HTTP.
    Fetch(Box<str>, oneshot::Sender<Result<(Box<str>, bytes::Bytes), Refusal>>),
    Listen(EventWaiter),
    Latest(Box<str>, Box<dyn EventHolding>, oneshot::Sender<Result<Option<HeldEvents>, Refusal>>),
    /// The number of the newest event of a topic.
    NewestOf(Box<str>, oneshot::Sender<Option<u64>>),
    /// The number of the newest event of the hub.
    Newest(oneshot::Sender<u64>),
    Status(mpsc::SyncSender<HubStatus>),
    /// Runs a closure that reads the engine.
    Inspect(Box<dyn FnOnce(&Engine) + Send>),
    /// Queues dead letters for one more delivery.
    Replay(DeadLetterFilter, oneshot::Sender<Result<usize, Refusal>>),
    /// Ends all waiting listeners with an error, so that they reconnect to another process.
    StopListening,
    Reconfigure(Arc<HubSettings>, HttpClientSettings),
    /// An event may have been committed.
    Committed,
    /// An event was not stored.
    NotStored,
    Recorded(PersistedChanges),
    Unrecorded(AppendError),
    Delivered {
        subscription: u64,
        seq: u64,
        outcome: DeliveryOutcome,
    },
    Verified {
        verification: Verification,
        outcome: Result<(), VerificationFailure>,
        asked_ms: u64,
    },
    /// A denial was sent, or could not be sent.
    Denied(u32),
    Close,
}

/// How often retention by age is checked.
const RETENTION_LOOK: Duration = Duration::from_secs(10);
/// How long to wait after a disk failure before the state is written again.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// How often it is reported that events cannot be read, or stored.
const TELL_AGAIN: Duration = Duration::from_secs(60);
/// The most messages handled in one turn of the thread's loop.
const MESSAGES_PER_TURN: usize = 128;
/// The most deliveries started in one turn. Between two turns, deliveries under way, listeners and publishers go on.
const STARTS_PER_TURN: usize = 64;
/// The most events and requests taken in, and subscriptions visited for new events, in one turn.
const TAKEN_PER_TURN: usize = 128;
const VISITS_PER_TURN: usize = 2_048;
/// The thread yields to those that serve requests: of a processor that both want, it gets a quarter. Events are stored, and can wait.
const NICENESS: i32 = 5;

pub(crate) struct HubDriver {
    pub(crate) engine: Engine,
    pub(crate) store: HubStore,
    pub(crate) sender: Rc<HubSender>,
    pub(crate) settings: Arc<HubSettings>,
    pub(crate) inbox: UnboundedSender<Message>,
    pub(crate) tell: Arc<dyn Fn(&str) + Send + Sync>,
    /// By number: when the callback of the request is asked, and its caller.
    replies: HashMap<u64, oneshot::Sender<Result<Duration, Refusal>>>,
    /// By number: how many dead letters the replay has, and its caller.
    replays: HashMap<u64, (usize, oneshot::Sender<Result<usize, Refusal>>)>,
    listeners: WaitingListeners,
    /// Listeners that have an event, in turn.
    woken: VecDeque<EventWaiter>,
    /// The log of events may have more to take in.
    has_committed: bool,
    /// The last turn has left something that can be done at once.
    has_more: bool,
    stops_listening: bool,
    release: Option<u64>,
    /// When a write failed. A snapshot has to replace the records that were not written.
    failed_at: Option<Instant>,
    /// Whether it failed for want of room.
    is_disk_full: bool,
    storing: EventStoring,
    /// When events could not be read. What needs them is tried again then.
    unreadable_at: Option<Instant>,
    /// When this was last reported.
    unreadable_told: Option<Instant>,
    verifications: VerificationReports,
    deliveries: DeliveryReports,
    clock: HubClock,
    events_in_flight: EventsInFlight,
    next_retention: Instant,
    turns: LoopTurns,
}

fn cannot_read() -> Refusal {
    Refusal::new(503, "the hub cannot read from its disk")
}

impl HubDriver {
    pub(crate) fn new(
        engine: Engine,
        store: HubStore,
        sender: HubSender,
        settings: Arc<HubSettings>,
        inbox: UnboundedSender<Message>,
        tell: Arc<dyn Fn(&str) + Send + Sync>,
    ) -> HubDriver {
        HubDriver {
            engine,
            store,
            sender: Rc::new(sender),
            settings,
            inbox,
            tell,
            replies: HashMap::new(),
            replays: HashMap::new(),
            verifications: VerificationReports::default(),
            deliveries: DeliveryReports::default(),
            listeners: WaitingListeners::default(),
            woken: VecDeque::new(),
            has_committed: true,
            has_more: false,
            stops_listening: false,
            release: None,
            failed_at: None,
            is_disk_full: false,
            storing: EventStoring::default(),
            unreadable_at: None,
            unreadable_told: None,
            clock: HubClock::new(),
            events_in_flight: EventsInFlight::default(),
            next_retention: Instant::now(),
            turns: LoopTurns::default(),
        }
    }

    /// Runs until `Message::Close`, or until all senders of the inbox are dropped.
    pub(crate) async fn run(mut self, mut inbox: UnboundedReceiver<Message>) {
        self.engine.restored(self.clock.now_ms());
        // The settings may have changed while the hub was not running.
        self.apply_settings();
        let mut batch = Vec::with_capacity(MESSAGES_PER_TURN);
        let mut began = Instant::now();
        loop {
            let started = self.run_due_work();
            self.turns.add(began.elapsed(), started);
            if started > 0 || self.has_more {
                // Deliveries that have begun go on before more begin. There may be more to do, so this does not wait.
                yield_now().await;
                let received = std::iter::from_fn(|| inbox.try_recv().ok());
                batch.extend(received.take(MESSAGES_PER_TURN));
            } else {
                let wake = self.wake_at();
                tokio::select! {
                    biased;
                    count = inbox.recv_many(&mut batch, MESSAGES_PER_TURN) => if count == 0 {
                        return;
                    },
                    () = sleep_until(wake) => {}
                }
            }
            began = Instant::now();
            self.clock.look();
            for message in batch.drain(..) {
                if matches!(message, Message::Close) {
                    return self.close();
                }
                self.take(message);
            }
        }
    }

    fn wake_at(&mut self) -> Instant {
        let now = Instant::now();
        let due = self.engine.next_due_ms(self.clock.now_ms());
        let due = due.map(|at_ms| now + Duration::from_millis(at_ms.saturating_sub(self.clock.now_ms())));
        let failed = self.failed_at.into_iter().chain(self.unreadable_at).map(|at| at + AFTER_FAILURE);
        due.into_iter().chain(failed).fold(self.next_retention, Instant::min).max(now)
    }

    /// Does work that is due, of each kind a bounded amount. Returns how many deliveries were started; if some were, more may be due.
    fn run_due_work(&mut self) -> usize {
        self.engine.look(self.clock.now_ms());
        self.read_again();
        self.take_in();
        self.look_at_retention();
        self.recover_from_failure();
        let has_fan_out = self.engine.fan_out(VISITS_PER_TURN, self.clock.now_ms());
        self.serve_woken();
        let started = self.start_deliveries();
        self.start_callback_requests();
        self.write();
        self.has_more = has_fan_out
            || self.has_committed
            || !self.woken.is_empty()
            || self.events_in_flight.has_room() && self.engine.may_deliver(self.clock.now_ms());
        started
    }

    fn start_deliveries(&mut self) -> usize {
        let mut started = 0;
        while started < STARTS_PER_TURN
            && self.events_in_flight.has_room()
            && let Some(delivery) = self.engine.next_delivery(self.clock.now_ms())
        {
            started += 1;
            let (sender, inbox) = (Rc::clone(&self.sender), self.inbox.clone());
            let event = self.store.event(delivery.seq);
            let (subscription, seq) = (delivery.subscription, delivery.seq);
            let event = match event {
                Ok(Some(event)) => event,
                Ok(None) => {
                    self.engine.delivered(subscription, seq, DeliveryOutcome::ContentGone, self.clock.now_ms());
                    continue;
                }
                Err(error) => {
                    self.unreadable(&error);
                    self.engine.put_off(subscription, self.clock.now_ms() + AFTER_FAILURE.as_millis() as u64);
                    continue;
                }
            };
            self.events_in_flight.begin(seq, event.content.len());
            spawn_local(async move {
                let outcome = sender.deliver(&delivery, &event).await;
                let _ = inbox.send(Message::Delivered { subscription, seq, outcome });
            });
        }
        started
    }

    fn start_callback_requests(&mut self) {
        while let Some(request) = self.engine.next_callback_request(self.clock.now_ms()) {
            let (sender, inbox, asked_ms) = (Rc::clone(&self.sender), self.inbox.clone(), self.clock.now_ms());
            spawn_local(async move {
                let _ = inbox.send(match request {
                    CallbackRequest::Verify(verification) => {
                        let outcome = sender.verify(&verification).await;
                        Message::Verified { verification, outcome, asked_ms }
                    }
                    CallbackRequest::Deny(denial) => {
                        sender.deny(&denial).await;
                        Message::Denied(denial.number)
                    }
                });
            });
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Request(request, reply) => self.request(request, reply),
            Message::Fetch(topic, reply) => {
                let sender = Rc::clone(&self.sender);
                spawn_local(async move { drop(reply.send(sender.fetch(&topic).await)) });
            }
            Message::Listen(listener) => self.listen(listener),
            Message::Latest(topic, holding, reply) => drop(reply.send(self.latest(&topic, holding))),
            Message::NewestOf(topic, reply) => drop(reply.send(self.engine.newest_of(&topic))),
            Message::StopListening => {
                self.stops_listening = true;
                self.listeners = WaitingListeners::default();
                self.woken.clear();
            }
            Message::Newest(reply) => drop(reply.send(self.store.events.journal.status().committed)),
            Message::Status(reply) => drop(reply.try_send(self.status())),
            Message::Inspect(look) => look(&self.engine),
            Message::Replay(filter, reply) => self.replay(&filter, reply),
            Message::Reconfigure(settings, base) => {
                self.sender = Rc::new(self.sender.with(Arc::clone(&settings), &base));
                self.settings = settings;
                self.apply_settings();
                // Those who listen look whether they still may.
                self.listeners
                    .take_all()
                    .chain(self.woken.drain(..))
                    .for_each(|one| drop(one.reply.send(Listened::Reconfigured)));
            }
            Message::Committed => {
                self.has_committed = true;
                if self.storing.has_failed() {
                    self.look_at_storing();
                }
                self.take_in();
            }
            Message::NotStored => self.look_at_storing(),
            Message::Denied(number) => self.engine.denied(number),
            Message::Recorded(written) => self.recorded(written),
            Message::Unrecorded(error) => {
                if self.failed_at.is_none() {
                    (self.tell)(&format!("the state of the hub could not be written: {error}"));
                }
                self.failed_at = Some(Instant::now());
                self.is_disk_full = error.is_full();
            }
            Message::Delivered { subscription, seq, outcome } => {
                self.events_in_flight.end(seq);
                self.report_failure(subscription, outcome);
                self.engine.delivered(subscription, seq, outcome, self.clock.now_ms())
            }
            Message::Verified { verification, outcome, asked_ms } => self.verified(&verification, outcome, asked_ms),
            Message::Close => {}
        }
    }

    fn request(&mut self, request: SubscriptionRequest, reply: oneshot::Sender<Result<Duration, Refusal>>) {
        match self.engine.request(request) {
            Ok(number) => drop(self.replies.insert(number, reply)),
            Err(refusal) => drop(reply.send(Err(refusal))),
        }
    }

    fn verified(&mut self, verification: &Verification, outcome: Result<(), VerificationFailure>, asked_ms: u64) {
        if let Err(failure) = outcome {
            let Verification { mode, topic, callback, .. } = verification;
            let asked = AskedVerification { mode: mode.name(), topic, callback };
            if let Some(line) = self.verifications.report(asked, failure, Instant::now().into_std()) {
                (self.tell)(&line);
            }
        }
        self.engine.verified(verification.number, outcome.is_ok(), asked_ms, self.clock.now_ms());
    }

    /// Logs a failed delivery. A subscriber that ends its subscription has no failure, nor has one whose event no longer exists.
    fn report_failure(&mut self, subscription: u64, outcome: DeliveryOutcome) {
        let is_failure = !matches!(outcome, DeliveryOutcome::Gone | DeliveryOutcome::ContentGone);
        if let Some(failure) = outcome.failure().filter(|_| is_failure)
            && let Some(callback) = self.engine.callback_of(subscription)
            && let Some(line) = self.deliveries.report(subscription, callback, failure, Instant::now().into_std())
        {
            (self.tell)(&line);
        }
    }

    /// Applies the settings to subscriptions, and reports those that end.
    fn apply_settings(&mut self) {
        let before = self.engine.ends;
        self.engine.reconfigure(Arc::clone(&self.settings), self.clock.now_ms());
        for (reason, why) in [
            (EndReason::TopicRemoved, "the hub no longer has their topics"),
            (EndReason::NotPermitted, "the configuration does not permit their consumers to receive their topics"),
        ] {
            let count = self.engine.ends.of(reason) - before.of(reason);
            if count > 0 {
                (self.tell)(&format!("{count} subscriptions ended: {why}"));
            }
        }
    }

    /// Takes in newly committed events and requests.
    fn take_in(&mut self) {
        if !self.has_committed {
            return;
        }
        for _ in 0..TAKEN_PER_TURN {
            match self.store.next_committed() {
                Ok(Some(LogEntry::Request(seq, request))) => self.engine.take_request(seq, request),
                Ok(Some(LogEntry::Event(event))) => {
                    self.engine.committed(event.seq, &event.topic, event.content.len() as u32, event.time_ms);
                    self.woken.extend(self.listeners.take(&event.topic));
                }
                Ok(None) => {
                    self.has_committed = false;
                    break;
                }
                Err(error) => {
                    self.unreadable(&error);
                    self.has_committed = false;
                    break;
                }
            }
        }
        self.retain(0);
    }

    fn look_at_storing(&mut self) {
        if let Some(line) = self.storing.look(self.store.events.journal.status().error, Instant::now()) {
            (self.tell)(&line);
        }
    }

    /// Reports that events cannot be read, at most once a minute.
    fn unreadable(&mut self, error: &io::Error) {
        let now = Instant::now();
        self.unreadable_at.get_or_insert(now);
        if self.unreadable_told.is_none_or(|told| now >= told + TELL_AGAIN) {
            self.unreadable_told = Some(now);
            (self.tell)(&format!("events of the hub cannot be read, and wait: {error}"));
        }
    }

    /// Tries again what needed events that could not be read.
    fn read_again(&mut self) {
        if self.unreadable_at.is_some_and(|at| Instant::now() >= at + AFTER_FAILURE) {
            // Deliveries have timers of their own.
            self.unreadable_at = None;
            self.has_committed = true;
            self.woken.extend(self.listeners.take_all());
        }
    }

    fn look_at_retention(&mut self) {
        let now = Instant::now();
        if now >= self.next_retention {
            self.next_retention = now + RETENTION_LOOK;
            let age_ms = self.settings.retention.age.as_millis() as u64;
            self.retain(self.clock.now_ms().saturating_sub(age_ms));
        }
    }

    fn retain(&mut self, not_before_ms: u64) {
        if let Some(dropped) = self.engine.retain(self.settings.retention.bytes, not_before_ms) {
            self.release = Some(dropped);
        }
    }

    fn status(&self) -> HubStatus {
        let events = self.store.events.journal.status();
        HubStatus {
            account: self.engine.account(),
            subscriptions: self.engine.subscription_count(),
            failing: self.engine.failing_count(),
            unverified: self.engine.open_requests(),
            in_flight: self.engine.in_flight(),
            attempts: self.engine.attempts,
            ends: self.engine.ends,
            refused: self.engine.refused,
            failed_verifications: self.verifications.failed,
            turns: self.turns,
            listeners: ListenerCounts::default(),
            events: events.committed,
            stored_events: events.records,
            stored_bytes: events.bytes,
            shares: None,
            error: events.error.or_else(|| self.store.state.error()),
        }
    }

    /// Ends the thread. Deliveries in flight are repeated by the process that opens the files next.
    fn close(mut self) {
        self.write();
    }
}

/// Runs a driver on a thread of its own, if `driver` returns one.
pub(crate) fn start(
    driver: impl FnOnce() -> Option<HubDriver> + Send + 'static,
    inbox: UnboundedReceiver<Message>,
) -> io::Result<std::thread::JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("hub".into()).spawn(move || {
        let local = tokio::task::LocalSet::new();
        // Of this thread alone. It is always allowed; without it, the hub works as well.
        let _ = setpriority_process(Some(rustix::thread::gettid()), NICENESS);
        if let Some(driver) = driver() {
            local.block_on(&runtime, driver.run(inbox));
        }
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::sync::mpsc::unbounded_channel;

    use super::*;
    use crate::engine::Delivery;
    use crate::engine::tests::{TOPIC, request, settings};
    use crate::record::Event;

    fn open(directory: &Path, inbox: UnboundedSender<Message>) -> HubDriver {
        let settings = Arc::new(settings());
        let lock = crate::store::lock(directory).expect("a directory").expect("it is free");
        let (store, engine, _) = HubStore::open(directory, lock, &settings, 7).expect("a store");
        let sender = HubSender::new(Arc::clone(&settings), &HttpClientSettings::default());
        HubDriver::new(engine, store, sender, settings, inbox, Arc::new(|_: &str| {}))
    }

    /// Writes the engine's records, and handles the message about it.
    fn write(driver: &mut HubDriver, inbox: &mut UnboundedReceiver<Message>) {
        driver.write();
        let message = inbox.blocking_recv().expect("the records are written");
        driver.take(message);
    }

    /// An event, as far as its delivery being started.
    fn publish(driver: &mut HubDriver) -> Delivery {
        let (told, committed) = mpsc::channel();
        let on_commit = Box::new(move |result: Result<u64, AppendError>| drop(told.send(result)));
        driver.store.events.append(Event::encode(TOPIC, "", b"content"), on_commit).expect("taken");
        committed.recv().expect("committed").expect("stored");
        driver.take(Message::Committed);
        assert!(!driver.engine.fan_out(10, 0));
        driver.engine.next_delivery(0).expect("there is a subscription")
    }

    fn directory(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("weir-hub-{name}-{}", std::process::id()))
    }

    #[test]
    fn events_are_found_wherever_an_earlier_reader_stopped() {
        for bytes in [100, 8 << 10, 100 << 10, 1 << 20] {
            let directory = directory("lagging");
            let (inbox, _received) = unbounded_channel();
            let driver = open(&directory, inbox.clone());
            let content = vec![7; bytes];
            for _ in 0..80 {
                let (told, committed) = mpsc::channel();
                let on_commit = Box::new(move |result: Result<u64, AppendError>| drop(told.send(result)));
                driver.store.events.append(Event::encode(TOPIC, "", &content), on_commit).expect("taken");
                committed.recv().expect("committed").expect("stored");
            }
            driver.close();
            let mut reopened = open(&directory, inbox);
            for seq in [10, 50, 73, 11, 80] {
                let found = reopened.store.event(seq).expect("it can be read");
                assert_eq!(found.map(|event| event.seq), Some(seq), "of {bytes} bytes");
            }
            assert!(reopened.store.event(81).expect("nothing is wrong").is_none());
            drop(reopened);
            std::fs::remove_dir_all(&directory).expect("it exists");
        }
    }

    #[test]
    fn an_event_that_cannot_be_read_now_waits() {
        let directory = directory("unreadable");
        let (inbox, mut received) = unbounded_channel();
        let mut driver = open(&directory, inbox.clone());
        let number = driver.engine.request(request("http://c.example/")).expect("taken");
        write(&mut driver, &mut received);
        let now_ms = driver.clock.now_ms();
        driver.engine.verified(number, true, now_ms, now_ms);
        write(&mut driver, &mut received);
        publish(&mut driver);
        driver.close();
        let mut driver = open(&directory, inbox);
        driver.engine.restored(now_ms);
        let segments = directory.join("events");
        let away = directory.join("away");
        std::fs::rename(&segments, &away).expect("it exists");
        assert!(driver.store.event(1).is_err());
        assert_eq!(driver.start_deliveries(), 1);
        assert_eq!((driver.engine.account().pending, driver.engine.in_flight()), (1, 0));
        std::fs::rename(&away, &segments).expect("it exists");
        let later = driver.clock.now_ms() + 1_000;
        driver.engine.look(later);
        let delivery = driver.engine.next_delivery(later).expect("it is tried again");
        assert_eq!(driver.store.event(delivery.seq).expect("it can be read").map(|event| event.seq), Some(1));
        assert_eq!(driver.engine.account().pending, 1);
        drop(driver);
        std::fs::remove_dir_all(&directory).expect("it exists");
    }

    #[test]
    fn a_snapshot_is_not_followed_by_records_of_what_it_contains() {
        let directory = directory("snapshot");
        let (inbox, mut received) = unbounded_channel();
        let mut driver = open(&directory, inbox.clone());
        let number = driver.engine.request(request("http://c.example/")).expect("taken");
        write(&mut driver, &mut received);
        driver.engine.verified(number, true, 0, 0);
        write(&mut driver, &mut received);
        // The outcome is not written yet when a record from before is, and a snapshot is due.
        let Delivery { subscription, seq, .. } = publish(&mut driver);
        driver.take(Message::Delivered { subscription, seq, outcome: DeliveryOutcome::Delivered });
        driver.store.least_growth_bytes = 0;
        assert!(driver.store.wants_snapshot());
        driver.take(Message::Recorded(PersistedChanges::default()));
        driver.store.least_growth_bytes = 1 << 40;
        let account = driver.engine.account();
        assert_eq!((account.audience, account.tally.delivered), (1, 1));
        driver.close();
        let reopened = open(&directory, inbox);
        assert_eq!(reopened.engine.account(), account);
        drop(reopened);
        std::fs::remove_dir_all(&directory).expect("it exists");
    }
}
