//! What the tests of registries of services have in common.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use weir_testkit::{DEADLINE, Gateway, eventually};

/// The weights of the endpoints of the first upstream.
pub(crate) fn endpoints(gateway: &Gateway) -> Vec<u64> {
    let status = gateway.status();
    let all = status["upstreams"][0]["endpoints"].as_array().cloned().unwrap_or_default();
    all.iter().map(|one| one["weight"].as_u64().unwrap_or_default()).collect()
}

#[track_caller]
pub(crate) fn wait_endpoints(gateway: &Gateway, count: usize) {
    eventually(&format!("{count} endpoints"), DEADLINE, || endpoints(gateway).len() == count);
}

/// Continuous requests, none of which may fail.
pub(crate) struct SteadyClients {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl SteadyClients {
    pub(crate) fn of(gateway: &Gateway) -> SteadyClients {
        let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let threads = (0..2).map(|_| {
            let (stop, served, mut client) = (Arc::clone(&stop), Arc::clone(&served), gateway.client());
            thread::spawn(move || {
                while !stop.load(Relaxed) {
                    assert_eq!(client.get("/").expect("an answer").status, 200);
                    served.fetch_add(1, Relaxed);
                }
            })
        });
        SteadyClients { threads: threads.collect(), stop, served }
    }

    /// The number of requests.
    pub(crate) fn end(self) -> usize {
        self.stop.store(true, Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("no request fails"));
        self.served.load(Relaxed)
    }
}
