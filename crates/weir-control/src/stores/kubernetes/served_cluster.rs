//! A cluster that is followed for nodes elsewhere: what `weir controller` runs.

use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use std::collections::HashSet;
use std::sync::Arc;

use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::time::interval;
use weir_kube::cluster::{Cluster, Controller, ControllerSettings, ControllerState};
use weir_plugin::Registry;

use super::feed::{FeedSink, StateFeed};
use super::issuing::CertificateIssuer;
use super::{NodePlugins, connect, controller_settings};
use crate::document::{IssueSettings, KubernetesSettings};
use crate::stores::store::StoreFailure;

/// How often the reports of nodes are looked at. A status waits for this at most.
const LOOK: Duration = Duration::from_millis(100);

/// A cluster that is followed, until this is dropped.
pub struct ServedCluster {
    address: String,
    feed: StateFeed,
    issuer: Option<CertificateIssuer>,
    /// What renews the certificates.
    issuing: Option<tokio::task::JoinHandle<()>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ServedCluster {
    /// Follows the cluster. `name` is the name of this controller, unique among those that take part in the election; policies may
    /// name the plugins of `registry` that are enabled, all if there is no list. With `issue`, it issues certificates.
    ///
    /// # Errors
    /// If the settings cannot be used. A cluster that does not answer is waited for.
    pub fn follow(
        settings: &KubernetesSettings,
        name: &str,
        beside: &Path,
        (registry, enabled): (Registry, Option<HashSet<Box<str>>>),
        issue: Option<&IssueSettings>,
    ) -> Result<ServedCluster, StoreFailure> {
        let plugins = NodePlugins::new(registry, enabled);
        let (runtime, server) = connect(settings, beside)?;
        let (address, server) = (server.address().to_owned(), Arc::new(server));
        let make = |issue| CertificateIssuer::new(Arc::clone(&server), runtime.handle().clone(), issue);
        let issuer = issue.map(make).transpose();
        let issuer = issuer.map_err(|problem| StoreFailure::new(problem, "check `controller.issue`"))?;
        let issuing = issuer.as_ref().map(|issuer| runtime.spawn(issuer.clone().run()));
        let settings = controller_settings(settings, name, plugins);
        let mut served = ServedCluster::start(runtime, server, address, settings)?;
        (served.issuer, served.issuing) = (issuer, issuing);
        Ok(served)
    }

    fn start(
        runtime: Runtime,
        cluster: Arc<dyn Cluster>,
        address: String,
        settings: ControllerSettings,
    ) -> Result<ServedCluster, StoreFailure> {
        let feed = StateFeed::default();
        let entered = runtime.enter();
        let controller = Controller::start(cluster, settings, Box::new(FeedSink::new(feed.clone())));
        drop(entered);
        let (stop, stopped) = oneshot::channel();
        let of_thread = feed.clone();
        let run = move || run(&runtime, controller, &of_thread, stopped);
        let thread = thread::Builder::new().name("weir-kubernetes".to_owned()).spawn(run);
        let thread = thread.map_err(|error| StoreFailure::new(format!("a thread cannot be started: {error}"), ""))?;
        Ok(ServedCluster { address, feed, issuer: None, issuing: None, stop: Some(stop), thread: Some(thread) })
    }

    /// The state for nodes.
    pub fn feed(&self) -> &StateFeed {
        &self.feed
    }

    /// What issues certificates, if the settings say so.
    pub fn issuer(&self) -> Option<&CertificateIssuer> {
        self.issuer.as_ref()
    }

    /// Whether the cluster is not followed any more, or certificates are not renewed any more, by a fault of the program: the state, or the
    /// certificate, would stay as it is.
    pub fn has_ended(&self) -> bool {
        let is_issuing = self.issuing.as_ref().is_none_or(|task| !task.is_finished());
        !is_issuing || self.thread.as_ref().is_none_or(JoinHandle::is_finished)
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
                _ = &mut stopped => return controller.give_up().await,
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

#[cfg(test)]
mod tests {
    use futures_util::future::BoxFuture;
    use futures_util::stream::BoxStream;
    use serde_json::Value;
    use weir_kube::cluster::{ClusterError, LeaseAnswer, LeaseRequest, ScopeEvent, WatchScope};
    use weir_kube::objects::{Kind, ObjectRef};
    use weir_kube::{KubeOptions, ObjectEvent};

    use super::*;

    /// An API server whose client has a fault: what follows one kind of objects panics.
    struct FaultyCluster(Kind);

    type Asked<'a, T> = BoxFuture<'a, Result<T, ClusterError>>;

    impl Cluster for FaultyCluster {
        fn version(&self, kind: Kind) -> Asked<'_, Option<&'static str>> {
            assert!(kind != self.0, "this panic belongs to the test");
            Box::pin(std::future::pending())
        }

        fn watch(&self, _: &WatchScope, _: &'static str) -> BoxStream<'static, Result<ScopeEvent, ClusterError>> {
            unreachable!("no version is answered")
        }

        fn write_status<'a>(&'a self, _: &'a ObjectRef, _: &'static str, _: &'a str, _: Value) -> Asked<'a, String> {
            unreachable!("nothing is written")
        }

        fn apply<'a>(&'a self, _: &'a ObjectRef, _: &'static str, _: &'a Value) -> Asked<'a, ()> {
            unreachable!("nothing is written")
        }

        fn write_event<'a>(&'a self, _: &'a ObjectEvent, _: &'a str) -> Asked<'a, ()> {
            unreachable!("nothing is written")
        }

        fn hold_lease<'a>(&'a self, _: &'a LeaseRequest, _: Option<&'a str>) -> Asked<'a, LeaseAnswer> {
            unreachable!("there is no election")
        }

        fn release_lease<'a>(&'a self, _: &'a LeaseRequest) -> Asked<'a, ()> {
            unreachable!("there is no election")
        }
    }

    #[test]
    fn a_panic_of_what_follows_one_kind_ends_the_following() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let settings = ControllerSettings { namespaces: Vec::new(), options: KubeOptions::default(), election: None };
        let cluster = Arc::new(FaultyCluster(Kind::HTTPRoute));
        let mut served = ServedCluster::start(runtime, cluster, String::new(), settings).expect("a thread");
        // It ends by itself, though nothing stops it.
        served.thread.take().expect("it runs").join().expect("the panic is that of a task");
        assert!(served.has_ended());
    }
}
