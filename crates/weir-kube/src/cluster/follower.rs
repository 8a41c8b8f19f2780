//! Follows the objects of one scope for as long as the process runs.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::mpsc::Sender;
use tokio::time::{sleep, timeout};
use weir_net::backoff::Backoff;

use super::{Cluster, ClusterError, ScopeEvent, WatchScope};

/// The pauses after errors in a row. They are short, since every second of them is a second in which a change is not seen.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
/// How often the server is asked for a kind that it does not have.
const LOOK_FOR_KIND: Duration = Duration::from_secs(30);
/// A stream that was silent for this long has no error any more. A watch says something at least once in its time.
const SILENCE: Duration = Duration::from_secs(2);

/// What a follower tells.
#[derive(Debug)]
pub(super) enum Told {
    Event(&'static str, ScopeEvent),
    /// The server does not have the kind.
    NoSuchKind,
    /// Why it cannot follow; `None` when it can again.
    Problem(Option<String>),
}

pub(super) struct ScopeFollower {
    pub(super) cluster: Arc<dyn Cluster>,
    pub(super) scope: WatchScope,
    pub(super) told: Sender<(WatchScope, Told)>,
    failures: u32,
}

/// The channel of what is told is closed: the process ends.
struct ChannelClosed;

impl ScopeFollower {
    pub(super) fn new(cluster: Arc<dyn Cluster>, scope: WatchScope, told: Sender<(WatchScope, Told)>) -> ScopeFollower {
        ScopeFollower { cluster, scope, told, failures: 0 }
    }

    pub(super) async fn run(mut self) {
        while self.follow().await.is_ok() {}
    }

    /// Finds the version of the kind, and follows it until the server does not have it any more.
    async fn follow(&mut self) -> Result<(), ChannelClosed> {
        match self.cluster.version(self.scope.kind).await {
            Ok(Some(version)) => self.watch(version).await,
            Ok(None) => {
                self.recovered().await?;
                self.tell(Told::NoSuchKind).await?;
                sleep(LOOK_FOR_KIND).await;
                Ok(())
            }
            Err(error) => self.failed(&error).await,
        }
    }

    async fn watch(&mut self, version: &'static str) -> Result<(), ChannelClosed> {
        let mut events = self.cluster.watch(&self.scope, version);
        loop {
            let next = match self.failures {
                0 => events.next().await,
                _ => match timeout(SILENCE, events.next()).await {
                    Ok(next) => next,
                    Err(_) => {
                        self.recovered().await?;
                        continue;
                    }
                },
            };
            match next {
                Some(Ok(event)) => {
                    // The list that begins has not been answered yet.
                    if event != ScopeEvent::ListBegins {
                        self.recovered().await?;
                    }
                    self.tell(Told::Event(version, event)).await?;
                }
                // The version of the server's cache is over; the stream lists again.
                Some(Err(error)) if error.status == 410 => {}
                Some(Err(error)) if error.is_missing() => return Ok(()),
                Some(Err(error)) => self.failed(&error).await?,
                None => return Ok(()),
            }
        }
    }

    async fn failed(&mut self, error: &ClusterError) -> Result<(), ChannelClosed> {
        self.failures += 1;
        let problem = format!("{}: {}", self.scope.kind.plural(), error.problem);
        self.tell(Told::Problem(Some(problem))).await?;
        let pause = PAUSES.after(self.failures);
        sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        Ok(())
    }

    async fn recovered(&mut self) -> Result<(), ChannelClosed> {
        match std::mem::take(&mut self.failures) {
            0 => Ok(()),
            _ => self.tell(Told::Problem(None)).await,
        }
    }

    async fn tell(&self, told: Told) -> Result<(), ChannelClosed> {
        self.told.send((self.scope.clone(), told)).await.map_err(|_| ChannelClosed)
    }
}
