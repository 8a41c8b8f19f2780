//! A hub that runs, as the rest of the process sees it.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use weir_client::HttpClientSettings;
use weir_journal::AppendError;

use crate::account::HubStatus;
use crate::attempt::DeliveryAttempt;
use crate::driver::{self, HubDriver, Message, TopicListener};
use crate::engine::{DeadLetter, DeadLetterFilter, Engine, SubscriptionEntry};
use crate::form::{Refusal, SubscriptionRequest};
use crate::record::Event;
use crate::sending::HubSender;
use crate::settings::HubSettings;
use crate::store::{EventLog, HubRecovery, HubStore};

/// A hub at work. Dropping it ends its thread, and unlocks its directory.
pub struct Hub {
    settings: ArcSwap<HubSettings>,
    events: Mutex<Option<Arc<EventLog>>>,
    inbox: UnboundedSender<Message>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// How long those who ask for a status wait for it.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);

fn closed() -> Refusal {
    Refusal::new(503, "the hub is being closed")
}

impl Hub {
    /// Opens the files of a hub, and goes on with what they hold. `lock` is that of [`crate::lock`]; `tell` gets a line about
    /// each failure of the disk.
    ///
    /// # Errors
    /// The files cannot be used.
    pub fn open(
        directory: &Path,
        lock: File,
        settings: HubSettings,
        base: &HttpClientSettings,
        tell: impl Fn(&str) + Send + Sync + 'static,
    ) -> io::Result<(Hub, HubRecovery)> {
        let settings = Arc::new(settings);
        let (store, engine, recovery) = HubStore::open(directory, lock, &settings, fastrand::u64(..))?;
        let (inbox, received) = tokio::sync::mpsc::unbounded_channel();
        let sender = HubSender::new(Arc::clone(&settings), base);
        let events = Arc::clone(&store.events);
        let (of_driver, for_driver, tell) = (Arc::clone(&settings), inbox.clone(), Arc::new(tell));
        let driver = move || HubDriver::new(engine, store, sender, of_driver, for_driver, tell);
        let thread = driver::start(driver, received)?;
        let hub = Hub {
            settings: ArcSwap::new(settings),
            events: Mutex::new(Some(events)),
            inbox,
            thread: Mutex::new(Some(thread)),
        };
        Ok((hub, recovery))
    }

    pub fn settings(&self) -> Arc<HubSettings> {
        self.settings.load_full()
    }

    /// Other settings hold from now on.
    pub fn reconfigure(&self, settings: HubSettings, base: HttpClientSettings) {
        let settings = Arc::new(settings);
        self.settings.store(Arc::clone(&settings));
        let _ = self.inbox.send(Message::Reconfigure(settings, base));
    }

    /// Takes a request for a subscription, or for its end, in; returns once it is on disk. Its verification follows.
    ///
    /// # Errors
    /// It is not taken.
    pub async fn request(&self, request: SubscriptionRequest) -> Result<(), Refusal> {
        self.ask(|reply| Message::Request(request, reply)).await?
    }

    /// Publishes content; returns its number once it is on disk.
    ///
    /// # Errors
    /// It is not on disk.
    pub async fn publish(&self, topic: &str, content_type: &str, content: &[u8]) -> Result<u64, Refusal> {
        let record = Event::encode(topic, content_type, content);
        let (reply, answer) = oneshot::channel();
        let inbox = self.inbox.clone();
        let on_commit = Box::new(move |result: Result<u64, AppendError>| {
            let is_committed = result.is_ok();
            let _ = reply.send(result);
            if is_committed {
                let _ = inbox.send(Message::Committed);
            }
        });
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or_else(closed)?;
        events.journal.append(record, on_commit).map_err(|error| refused(&error))?;
        drop(events);
        answer.await.map_err(|_| closed())?.map_err(|error| refused(&error))
    }

    /// Fetches a topic's content, and publishes it.
    ///
    /// # Errors
    /// It could not be fetched, or is not on disk.
    pub async fn ping(&self, topic: &str) -> Result<u64, Refusal> {
        let (content_type, content) = self.ask(|reply| Message::Fetch(topic.into(), reply)).await??;
        self.publish(topic, &content_type, &content).await
    }

    /// Events of a topic after this one, at most `limit`; waits until there is one.
    ///
    /// # Errors
    /// The hub is being closed, or all listening was ended.
    pub async fn events_after(&self, topic: &str, after: u64, limit: usize) -> Result<Vec<Arc<Event>>, Refusal> {
        self.ask(|reply| Message::Listen(TopicListener { topic: topic.into(), after, limit, reply })).await
    }

    /// The newest event of a topic.
    ///
    /// # Errors
    /// The hub is being closed.
    pub async fn latest(&self, topic: &str) -> Result<Option<Arc<Event>>, Refusal> {
        self.ask(|reply| Message::Latest(topic.into(), reply)).await
    }

    /// Subscriptions after this one by their ids, at most `limit`, of one topic or of all.
    ///
    /// # Errors
    /// The hub is being closed.
    pub async fn subscriptions(
        &self,
        topic: Option<Box<str>>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<SubscriptionEntry>, Refusal> {
        self.look(move |engine| engine.subscriptions(topic.as_deref(), after, limit)).await
    }

    /// One subscription, with its latest attempts, the latest first.
    ///
    /// # Errors
    /// The hub is being closed.
    pub async fn subscription(&self, id: u64) -> Result<Option<(SubscriptionEntry, Vec<DeliveryAttempt>)>, Refusal> {
        self.look(move |engine| engine.subscription(id)).await
    }

    /// Dead letters after this event and subscription, at most `limit`. Older events come first.
    ///
    /// # Errors
    /// The hub is being closed.
    pub async fn dead_letters(
        &self,
        filter: DeadLetterFilter,
        after: (u64, u64),
        limit: usize,
    ) -> Result<Vec<DeadLetter>, Refusal> {
        self.look(move |engine| engine.dead_letters(&filter, after, limit)).await
    }

    /// Delivers dead letters once more, each in one attempt; returns how many, once that is on disk.
    ///
    /// # Errors
    /// It is not on disk.
    pub async fn replay(&self, filter: DeadLetterFilter) -> Result<usize, Refusal> {
        self.ask(|reply| Message::Replay(filter, reply)).await?
    }

    async fn look<T: Send + 'static>(&self, look: impl FnOnce(&Engine) -> T + Send + 'static) -> Result<T, Refusal> {
        self.ask(|reply| Message::Look(Box::new(move |engine| drop(reply.send(look(engine)))))).await
    }

    async fn ask<T>(&self, message: impl FnOnce(oneshot::Sender<T>) -> Message) -> Result<T, Refusal> {
        let (reply, answer) = oneshot::channel();
        self.inbox.send(message(reply)).map_err(|_| closed())?;
        answer.await.map_err(|_| closed())
    }

    /// Ends all listening: whoever waits for events gets an error from now on. Everything else goes on.
    pub fn stop_listening(&self) {
        let _ = self.inbox.send(Message::StopListening);
    }

    /// What it has done; nothing if it does not answer. Blocks, for two seconds at most.
    pub fn status(&self) -> Option<HubStatus> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.inbox.send(Message::Status(reply)).ok()?;
        answer.recv_timeout(STATUS_TIMEOUT).ok()
    }

    /// Ends the hub's thread, and unlocks its directory. What is under way is repeated when the hub is opened again.
    pub fn close(&self) {
        let _ = self.inbox.send(Message::Close);
        // The journals end with their last owner, so that they are written before the lock is free.
        drop(self.events.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // A thread that panicked has said so already.
            let _ = thread.join();
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.close();
    }
}

fn refused(error: &AppendError) -> Refusal {
    let status = match error {
        AppendError::TooLarge { .. } => 413,
        AppendError::Full => 507,
        AppendError::Busy | AppendError::Io(_) | AppendError::Closed => 503,
    };
    Refusal::new(status, format!("the event was not stored: {error}"))
}
