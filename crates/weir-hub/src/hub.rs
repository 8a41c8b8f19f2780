//! The interface of a running hub for the rest of the process.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use weir_client::HttpClientSettings;
use weir_journal::AppendError;

use crate::account::{HubShares, HubStatus};
use crate::attempt::DeliveryAttempt;
use crate::driver::{self, EventWaiter, HubDriver, Message};
use crate::engine::{DeadLetter, DeadLetterFilter, Engine, SubscriptionEntry};
use crate::form::{Refusal, SubscriptionRequest};
use crate::holding::{EventHolding, HeldEvents, Listened};
use crate::kafka::{self, HubDrivers, KafkaThread};
use crate::live_settings::LiveSettings;
use crate::record::{self, Event};
use crate::sending::HubSender;
use crate::settings::{HubSettings, LogSettings};
use crate::store::{EventLog, HubRecovery, HubStore};

/// A running hub. Dropping it ends its threads, and unlocks its directory.
pub struct Hub {
    live: Arc<LiveSettings>,
    events: Mutex<Option<Arc<EventLog>>>,
    /// The inbox of the driver that serves listeners. In a hub of one node, the same driver also delivers events.
    inbox: UnboundedSender<Message>,
    shares: Option<Arc<HubDrivers>>,
    threads: Mutex<HubThreads>,
}

#[derive(Default)]
struct HubThreads {
    kafka: Option<KafkaThread>,
    driver: Option<JoinHandle<()>>,
}

/// How long a call of [`Hub::status`] waits for each driver.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);

fn closed() -> Refusal {
    Refusal::new(503, "the hub is being closed")
}

impl Hub {
    /// Opens the files of a hub, and resumes their state. `lock` is the result of [`crate::lock`]; `tell` gets a line about each
    /// disk failure. `failed` is called if the hub has ended by itself, and is to be opened again.
    ///
    /// # Errors
    /// The files cannot be used.
    pub fn open(
        directory: &Path,
        lock: File,
        settings: HubSettings,
        base: &HttpClientSettings,
        tell: impl Fn(&str) + Send + Sync + 'static,
        failed: impl FnOnce() + Send + 'static,
    ) -> io::Result<(Hub, HubRecovery)> {
        let (settings, tell) = (Arc::new(settings), Arc::new(tell));
        let live = LiveSettings::new(Arc::clone(&settings), base);
        if let LogSettings::Kafka(log) = &settings.log {
            let (opened, thread) = kafka::open(directory, lock, log, &live, tell, failed)?;
            let recovery = HubRecovery { events: opened.count, ..HubRecovery::default() };
            let hub = Hub {
                live,
                events: Mutex::new(Some(opened.events)),
                inbox: opened.listening,
                shares: Some(opened.drivers),
                threads: Mutex::new(HubThreads { kafka: Some(thread), driver: None }),
            };
            return Ok((hub, recovery));
        }
        let (store, engine, recovery) = HubStore::open(directory, lock, &settings, fastrand::u64(..))?;
        let (inbox, received) = tokio::sync::mpsc::unbounded_channel();
        let sender = HubSender::new(Arc::clone(&settings), base);
        let (events, for_driver) = (Arc::clone(&store.events), inbox.clone());
        let driver = move || Some(HubDriver::new(engine, store, sender, settings, for_driver, tell));
        let driver = Some(driver::start(driver, received)?);
        let (events, threads) = (Mutex::new(Some(events)), Mutex::new(HubThreads { kafka: None, driver }));
        Ok((Hub { live, events, inbox, shares: None, threads }, recovery))
    }

    pub fn settings(&self) -> Arc<HubSettings> {
        self.live.settings.load_full()
    }

    /// Applies new settings.
    pub fn reconfigure(&self, settings: HubSettings, base: HttpClientSettings) {
        let settings = Arc::new(settings);
        self.live.set(Arc::clone(&settings), base.clone());
        if let Some(events) = &*self.events.lock().unwrap_or_else(PoisonError::into_inner) {
            events.reconfigure(&settings);
        }
        if let Some(drivers) = &self.shares {
            let of_share = Arc::new(settings.share_of(drivers.count));
            for share in drivers.shares() {
                let _ = share.send(Message::Reconfigure(Arc::clone(&of_share), base.clone()));
            }
        }
        let _ = self.inbox.send(Message::Reconfigure(settings, base));
    }

    /// Stores a request to subscribe or unsubscribe; returns once it is stored. Verification follows, on the node that has the
    /// request's share of the subscriptions. The answer is the time until then, at most, as far as the limits of the callback's host
    /// are concerned; `None` if another node may verify it.
    ///
    /// # Errors
    /// The request is refused, or cannot be stored.
    pub async fn request(&self, request: SubscriptionRequest) -> Result<Option<Duration>, Refusal> {
        if self.shares.is_some() {
            return self.append(record::encode_request(&request), "request").await.map(|_| None);
        }
        self.ask(|reply| Message::Request(request, reply)).await?.map(Some)
    }

    /// Publishes content; returns its number once it is stored.
    ///
    /// # Errors
    /// The event could not be stored.
    pub async fn publish(&self, topic: &str, content_type: &str, content: &[u8]) -> Result<u64, Refusal> {
        self.append(Event::encode(topic, content_type, content), "event").await
    }

    /// Appends to the log of events; returns the number once it is stored.
    async fn append(&self, record: Vec<u8>, what: &str) -> Result<u64, Refusal> {
        let (reply, answer) = oneshot::channel();
        let inbox = self.inbox.clone();
        let on_commit = Box::new(move |result: Result<u64, AppendError>| {
            // The driver is informed before the publisher, so that a publisher with an answer finds its event in the account.
            let _ = inbox.send(if result.is_ok() { Message::Committed } else { Message::NotStored });
            let _ = reply.send(result);
        });
        // The lock is held, so that nothing is appended once `close` has let the log go.
        match &*self.events.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(events) => events.append(record, on_commit).map_err(|error| refused(what, &error))?,
            None => return Err(closed()),
        }
        answer.await.map_err(|_| closed())?.map_err(|error| refused(what, &error))
    }

    /// Fetches a topic's content, and publishes it.
    ///
    /// # Errors
    /// The content could not be fetched, or could not be stored.
    pub async fn ping(&self, topic: &str) -> Result<u64, Refusal> {
        let (content_type, content) = self.ask(|reply| Message::Fetch(topic.into(), reply)).await??;
        self.publish(topic, &content_type, &content).await
    }

    /// Events of a topic after event `after`, at most `limit`; waits until there is at least one. `holding` counts them.
    ///
    /// # Errors
    /// The hub is closing, or [`Hub::stop_listening`] was called.
    pub async fn events_after(
        &self,
        topic: &str,
        after: u64,
        limit: usize,
        holding: Box<dyn EventHolding>,
    ) -> Result<Listened, Refusal> {
        self.ask(|reply| Message::Listen(EventWaiter { topic: topic.into(), after, limit, holding, reply })).await
    }

    /// The number of the newest event of the hub on this node; 0 if there is none.
    ///
    /// # Errors
    /// The hub is closing.
    pub async fn newest(&self) -> Result<u64, Refusal> {
        self.ask(Message::Newest).await
    }

    /// The newest event of a topic. `holding` counts it.
    ///
    /// # Errors
    /// The hub is closing, the event cannot be read, or there is no room for it.
    pub async fn latest(&self, topic: &str, holding: Box<dyn EventHolding>) -> Result<Option<HeldEvents>, Refusal> {
        self.ask(|reply| Message::Latest(topic.into(), holding, reply)).await?
    }

    /// The number of the newest event of a topic.
    ///
    /// # Errors
    /// The hub is closing.
    pub async fn newest_of(&self, topic: &str) -> Result<Option<u64>, Refusal> {
        self.ask(|reply| Message::NewestOf(topic.into(), reply)).await
    }

    /// Subscriptions with ids above `after`, at most `limit`, of one topic or of all. Where nodes share the hub, only those of
    /// this node's shares.
    ///
    /// # Errors
    /// The hub is closing.
    pub async fn subscriptions(
        &self,
        topic: Option<Box<str>>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<SubscriptionEntry>, Refusal> {
        let found = self.look(move |engine| engine.subscriptions(topic.as_deref(), after, limit)).await?;
        let mut all: Vec<SubscriptionEntry> = found.into_iter().flatten().collect();
        all.sort_by_key(|subscription| subscription.id);
        all.truncate(limit);
        Ok(all)
    }

    /// One subscription, with its latest attempts, newest first.
    ///
    /// # Errors
    /// The hub is closing.
    pub async fn subscription(&self, id: u64) -> Result<Option<(SubscriptionEntry, Vec<DeliveryAttempt>)>, Refusal> {
        Ok(self.look(move |engine| engine.subscription(id)).await?.into_iter().flatten().next())
    }

    /// Dead letters after this pair of event and subscription, at most `limit`, oldest events first.
    ///
    /// # Errors
    /// The hub is closing.
    pub async fn dead_letters(
        &self,
        filter: DeadLetterFilter,
        after: (u64, u64),
        limit: usize,
    ) -> Result<Vec<DeadLetter>, Refusal> {
        let found = self.look(move |engine| engine.dead_letters(&filter, after, limit)).await?;
        let mut all: Vec<DeadLetter> = found.into_iter().flatten().collect();
        all.sort_by_key(|letter| (letter.event, letter.subscription));
        all.truncate(limit);
        Ok(all)
    }

    /// Queues dead letters for one more delivery, with one attempt each; returns their number once the replay is stored.
    ///
    /// # Errors
    /// The replay could not be stored.
    pub async fn replay(&self, filter: DeadLetterFilter) -> Result<usize, Refusal> {
        let mut count = 0;
        for driver in self.delivering() {
            let filter = filter.clone();
            count += ask(&driver, |reply| Message::Replay(filter, reply)).await??;
        }
        Ok(count)
    }

    /// The inboxes of the drivers on this node that deliver.
    fn delivering(&self) -> Vec<UnboundedSender<Message>> {
        self.shares.as_ref().map_or_else(|| vec![self.inbox.clone()], |drivers| drivers.shares())
    }

    async fn look<T: Send + 'static>(
        &self,
        look: impl Fn(&Engine) -> T + Clone + Send + 'static,
    ) -> Result<Vec<T>, Refusal> {
        let mut found = Vec::new();
        for driver in self.delivering() {
            let look = look.clone();
            let message = |reply: oneshot::Sender<T>| {
                Message::Inspect(Box::new(move |engine: &Engine| drop(reply.send(look(engine)))))
            };
            found.push(ask(&driver, message).await?);
        }
        Ok(found)
    }

    async fn ask<T>(&self, message: impl FnOnce(oneshot::Sender<T>) -> Message) -> Result<T, Refusal> {
        ask(&self.inbox, message).await
    }

    /// Ends all listening: calls of [`Hub::events_after`] fail from now on. Everything else goes on.
    pub fn stop_listening(&self) {
        let _ = self.inbox.send(Message::StopListening);
    }

    /// The state and totals of the hub on this node; `None` if a driver does not answer. Blocks, for up to 2 s per driver.
    pub fn status(&self) -> Option<HubStatus> {
        let mut status = status_of(&self.inbox)?;
        if let Some(drivers) = &self.shares {
            for share in drivers.shares() {
                status.add(&status_of(&share)?);
            }
        }
        status.shares = self.shares();
        Some(status)
    }

    /// How many shares of the subscriptions this node has; `None` if nodes do not share the hub.
    pub fn shares(&self) -> Option<HubShares> {
        let drivers = self.shares.as_ref()?;
        Some(HubShares { own: drivers.shares().len(), all: drivers.count as usize })
    }

    /// Ends the hub's threads, and unlocks its directory. Deliveries in flight are repeated when the hub is opened again.
    pub fn close(&self) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // The shares are released first, so that other nodes can take them over.
        drop(threads.kafka.take());
        let _ = self.inbox.send(Message::Close);
        // The journals close with their last owner; they have to be written before the lock is released.
        drop(self.events.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(thread) = threads.driver.take() {
            // The panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.close();
    }
}

async fn ask<T>(
    driver: &UnboundedSender<Message>,
    message: impl FnOnce(oneshot::Sender<T>) -> Message,
) -> Result<T, Refusal> {
    let (reply, answer) = oneshot::channel();
    driver.send(message(reply)).map_err(|_| closed())?;
    answer.await.map_err(|_| closed())
}

fn status_of(driver: &UnboundedSender<Message>) -> Option<HubStatus> {
    let (reply, answer) = mpsc::sync_channel(1);
    driver.send(Message::Status(reply)).ok()?;
    answer.recv_timeout(STATUS_TIMEOUT).ok()
}

fn refused(what: &str, error: &AppendError) -> Refusal {
    let status = match error {
        AppendError::TooLarge { .. } => 413,
        error if error.is_full() => 507,
        AppendError::Full | AppendError::Busy | AppendError::Io(_) | AppendError::Closed => 503,
    };
    Refusal::new(status, format!("the {what} was not stored: {error}"))
}
