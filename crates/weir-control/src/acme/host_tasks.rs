//! One task for each host whose certificate is kept valid.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::future::pending;

use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Abortable, abortable};
use futures_util::stream::FuturesUnordered;

use crate::document::AcmeHost;

/// The tasks, by host. A change of the hosts leaves the tasks of the others alone: an order that is broken off still counts with
/// the authority.
pub(super) struct HostTasks<F> {
    running: FuturesUnordered<Abortable<F>>,
    handles: HashMap<Box<str>, AbortHandle>,
}

impl<F> Default for HostTasks<F> {
    fn default() -> HostTasks<F> {
        HostTasks { running: FuturesUnordered::new(), handles: HashMap::new() }
    }
}

impl<F: Future<Output = ()>> HostTasks<F> {
    /// Ends the tasks of other hosts, and begins those that are missing.
    pub(super) fn keep_only(&mut self, hosts: &[AcmeHost], begin: impl Fn(Box<str>) -> F) {
        let wanted: HashSet<&str> = hosts.iter().map(|host| &*host.name).collect();
        self.handles.retain(|host, handle| {
            let stays = wanted.contains(&**host);
            if !stays {
                handle.abort();
            }
            stays
        });
        for host in hosts {
            self.handles.entry(host.name.clone()).or_insert_with(|| {
                let (task, handle) = abortable(begin(host.name.clone()));
                self.running.push(task);
                handle
            });
        }
    }

    /// Runs the tasks. May be dropped and called again.
    pub(super) async fn run(&mut self) -> Infallible {
        while self.running.next().await.is_some() {}
        pending().await
    }
}
