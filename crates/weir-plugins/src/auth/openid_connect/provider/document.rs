//! A document of the provider, as this node knows it: fetched by one worker, and used by all.

use std::cell::RefCell;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::OwnedMutexGuard;
use weir_plugin::{Build, PerWorker};

use super::{ProviderError, REFRESH};

/// A document, and when it was fetched.
type FetchedDocument<T> = Option<(Instant, Arc<T>)>;

/// What is known of a document. `T` is the parsed document.
pub(super) struct SharedDocument<T: ?Sized + 'static> {
    /// The worker's own reference, so that requests with a known document take no lock.
    own: PerWorker<RefCell<OwnReference<T>>>,
    node: Arc<NodeDocument<T>>,
    fetches: Arc<NodeFetches>,
    /// The longest time that a fetch takes.
    timeout: Duration,
}

struct OwnReference<T: ?Sized> {
    /// [`NodeDocument::fetches`] when it was taken.
    fetches: u64,
    document: FetchedDocument<T>,
}

struct NodeDocument<T: ?Sized> {
    /// The number of fetches that succeeded.
    fetches: AtomicU64,
    known: Mutex<FetchedDocument<T>>,
}

/// The fetches with one time-out. What fails within a short one may succeed within a longer one, so each time-out has its own.
#[derive(Default)]
struct NodeFetches {
    /// When the last fetch has failed, and why; `None` if it succeeded.
    failed: Mutex<Option<(Instant, Arc<str>)>>,
    /// Held during a fetch; the other exchanges of all workers wait for its result.
    fetching: Mutex<Arc<tokio::sync::Mutex<()>>>,
}

impl NodeFetches {
    /// Waits until no other exchange fetches the document. The turn of one that takes longer than `longest` is over: its worker does not
    /// go on.
    async fn turn(&self, longest: Duration) -> OwnedMutexGuard<()> {
        let current = || self.fetching.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let fetching = Arc::clone(&current());
            if let Ok(turn) = tokio::time::timeout(longest, Arc::clone(&fetching).lock_owned()).await {
                return turn;
            }
            let mut next = current();
            if Arc::ptr_eq(&next, &fetching) {
                *next = Arc::default();
            }
        }
    }
}

/// How much longer than a fetch may take others wait for its result.
const WAIT_BEYOND: Duration = Duration::from_secs(1);

impl<T: ?Sized + 'static> Clone for SharedDocument<T> {
    fn clone(&self) -> SharedDocument<T> {
        let (node, fetches) = (Arc::clone(&self.node), Arc::clone(&self.fetches));
        SharedDocument { own: self.own.clone(), node, fetches, timeout: self.timeout }
    }
}

impl<T: ?Sized + Send + Sync + 'static> SharedDocument<T> {
    /// The document with this identity. Plugins that name the same one share it, and those with the same time-out its fetches.
    pub(super) fn of(build: &Build, name: &'static str, identity: &str, timeout: Duration) -> SharedDocument<T> {
        let of_fetches = format!("{identity} within {} ms", timeout.as_millis());
        SharedDocument {
            timeout,
            fetches: build.shared(name, &of_fetches, NodeFetches::default),
            own: build.per_worker(name, identity, || RefCell::new(OwnReference { fetches: 0, document: None })),
            node: build.shared(name, identity, || NodeDocument { fetches: AtomicU64::new(0), known: Mutex::new(None) }),
        }
    }

    /// The result of `read`, unless another exchange of this node has fetched the document meanwhile. The fetch does not end with
    /// the exchange that needs it, so that its result is known to the next ones.
    pub(super) async fn fetch(
        &self,
        age: Duration,
        read: impl Future<Output = Result<Arc<T>, ProviderError>> + 'static,
    ) -> Result<Arc<T>, ProviderError> {
        let document = self.clone();
        let fetching = tokio::task::spawn_local(async move {
            let _turn = document.fetches.turn(document.timeout + WAIT_BEYOND).await;
            if let Some(found) = document.find(age) {
                return found;
            }
            let result = read.await;
            document.keep(&result);
            result
        });
        fetching.await.unwrap_or_else(|_| Err(ProviderError::Answer("the fetch was cancelled".to_owned())))
    }

    /// The document, if it is younger than `age`, or the error of a recent fetch. `None` if it is to be fetched.
    pub(super) fn find(&self, age: Duration) -> Option<Result<Arc<T>, ProviderError>> {
        let own = self.own.get();
        let fetches = self.node.fetches.load(Ordering::Acquire);
        if own.borrow().fetches == fetches
            && let Some(known) = young(&own.borrow().document, age)
        {
            return Some(Ok(known));
        }
        let document = self.node.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(known) = young(&document, age) else {
            let failed = self.fetches.failed.lock().unwrap_or_else(PoisonError::into_inner);
            let failed = failed.as_ref().filter(|(since, _)| since.elapsed() < REFRESH);
            return failed.map(|(_, why)| Err(ProviderError::Recent(Arc::clone(why))));
        };
        // A fetch that ends between the two reads is noticed at the next request.
        *own.borrow_mut() = OwnReference { fetches, document };
        Some(Ok(known))
    }

    fn keep(&self, result: &Result<Arc<T>, ProviderError>) {
        let now = Instant::now();
        if let Ok(known) = result {
            *self.node.known.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, Arc::clone(known)));
            self.node.fetches.fetch_add(1, Ordering::Release);
        }
        let failed = result.as_ref().err().map(|error| (now, error.to_string().into()));
        *self.fetches.failed.lock().unwrap_or_else(PoisonError::into_inner) = failed;
    }
}

fn young<T: ?Sized>(document: &FetchedDocument<T>, age: Duration) -> Option<Arc<T>> {
    document.as_ref().filter(|(since, _)| since.elapsed() < age).map(|(_, document)| Arc::clone(document))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turn_that_does_not_end_is_given_to_one_other() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            let (fetches, longest) = (NodeFetches::default(), Duration::from_secs(4));
            let _stalled = fetches.turn(longest).await;
            let begun = tokio::time::Instant::now();
            let first = fetches.turn(longest).await;
            assert_eq!(begun.elapsed(), longest);
            let second = tokio::time::timeout(longest / 2, fetches.turn(longest)).await;
            assert!(second.is_err(), "the first of them has it");
            drop(first);
            fetches.turn(longest).await;
            assert_eq!(begun.elapsed(), longest + longest / 2, "it ended");
        });
    }
}
