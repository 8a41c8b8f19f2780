//! A cluster that is followed for nodes elsewhere: what `weir controller` runs.

use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use std::collections::HashSet;
use std::sync::Arc;

use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::time::interval;
use weir_kube::cluster::{Controller, ControllerState};
use weir_plugin::Registry;

use super::feed::{FeedSink, StateFeed};
use super::{NodePlugins, connect, controller_settings};
use crate::document::KubernetesSettings;
use crate::stores::store::StoreFailure;

/// How often the reports of nodes are looked at. A status waits for this at most.
const LOOK: Duration = Duration::from_millis(100);

/// A cluster that is followed, until this is dropped.
pub struct ServedCluster {
    address: String,
    feed: StateFeed,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ServedCluster {
    /// Follows the cluster. `name` is the name of this controller, unique among those that take part in the election; policies may
    /// name the plugins of `registry` that are enabled, all if there is no list.
    ///
    /// # Errors
    /// If the settings cannot be used. A cluster that does not answer is waited for.
    pub fn follow(
        settings: &KubernetesSettings,
        name: &str,
        beside: &Path,
        (registry, enabled): (Registry, Option<HashSet<Box<str>>>),
    ) -> Result<ServedCluster, StoreFailure> {
        let plugins = NodePlugins::new(registry, enabled);
        let (runtime, server) = connect(settings, beside)?;
        let (feed, address) = (StateFeed::default(), server.address().to_owned());
        let settings = controller_settings(settings, name, plugins);
        let entered = runtime.enter();
        let controller = Controller::start(Arc::new(server), settings, Box::new(FeedSink::new(feed.clone())));
        drop(entered);
        let (stop, stopped) = oneshot::channel();
        let of_thread = feed.clone();
        let run = move || run(&runtime, controller, &of_thread, stopped);
        let thread = thread::Builder::new().name("weir-kubernetes".to_owned()).spawn(run);
        let thread = thread.map_err(|error| StoreFailure::new(format!("a thread cannot be started: {error}"), ""))?;
        Ok(ServedCluster { address, feed, stop: Some(stop), thread: Some(thread) })
    }

    /// The state for nodes.
    pub fn feed(&self) -> &StateFeed {
        &self.feed
    }

    /// Whether the cluster is not followed any more, by a fault of the program: the state would stay as it is.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// The URL of the API server.
    pub fn address(&self) -> &str {
        &self.address
    }
}

fn run(runtime: &Runtime, controller: Controller, feed: &StateFeed, mut stopped: oneshot::Receiver<()>) {
    runtime.block_on(async {
        let (mut looks, mut told) = (interval(LOOK), ControllerState::default());
        loop {
            tokio::select! {
                // An error means that this was dropped, which ends it as well.
                _ = &mut stopped => return,
                _ = looks.tick() => {}
            }
            if controller.has_ended() {
                return;
            }
            feed.set_writer(controller.tenure(), controller.writer());
            // What is not passed on here lets statuses wait: they are judged by all nodes, or not yet.
            let Some(served) = feed.served(Instant::now()) else { continue };
            if (served.revision, &served.set_aside) != (told.revision, &told.set_aside) {
                told = served.clone();
                controller.served(served);
            }
        }
    });
}

impl Drop for ServedCluster {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}
