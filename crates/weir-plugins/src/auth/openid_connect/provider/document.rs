//! A document of the provider, as this node knows it: fetched by one worker, and used by all.

use std::cell::RefCell;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use weir_plugin::{Build, PerWorker};

use super::{ProviderError, REFRESH};

/// A document, and when it was fetched.
type FetchedDocument<T> = Option<(Instant, Arc<T>)>;

/// What is known of a document. `T` is the parsed document.
pub(super) struct SharedDocument<T: ?Sized + 'static> {
    /// The worker's own reference, so that requests with a known document take no lock.
    own: PerWorker<RefCell<OwnReference<T>>>,
    node: Arc<NodeDocument<T>>,
}

struct OwnReference<T: ?Sized> {
    /// [`NodeDocument::fetches`] when it was taken.
    fetches: u64,
    document: FetchedDocument<T>,
}

struct NodeDocument<T: ?Sized> {
    /// The number of fetches that succeeded.
    fetches: AtomicU64,
    last: Mutex<LastFetch<T>>,
    /// Held during a fetch; the other exchanges of all workers wait for its result.
    fetching: tokio::sync::Mutex<()>,
}

struct LastFetch<T: ?Sized> {
    known: FetchedDocument<T>,
    /// When the last fetch has failed, and why; `None` if it succeeded.
    failed: Option<(Instant, Arc<str>)>,
}

impl<T: ?Sized + 'static> Clone for SharedDocument<T> {
    fn clone(&self) -> SharedDocument<T> {
        SharedDocument { own: self.own.clone(), node: Arc::clone(&self.node) }
    }
}

impl<T: ?Sized + Send + Sync + 'static> SharedDocument<T> {
    /// The document with this identity. Plugins that name the same one share it.
    pub(super) fn of(build: &Build, name: &'static str, identity: &str) -> SharedDocument<T> {
        SharedDocument {
            own: build.per_worker(name, identity, || RefCell::new(OwnReference { fetches: 0, document: None })),
            node: build.shared(name, identity, || NodeDocument {
                fetches: AtomicU64::new(0),
                last: Mutex::new(LastFetch { known: None, failed: None }),
                fetching: tokio::sync::Mutex::default(),
            }),
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
            let _fetching = document.node.fetching.lock().await;
            if let Some(found) = document.find(age) {
                return found;
            }
            let result = read.await;
            document.node.keep(&result);
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
        let last = self.node.last.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = young(&last.known, age) else {
            let failed = last.failed.as_ref().filter(|(since, _)| since.elapsed() < REFRESH);
            return failed.map(|(_, why)| Err(ProviderError::Recent(Arc::clone(why))));
        };
        // A fetch that ends between the two reads is noticed at the next request.
        *own.borrow_mut() = OwnReference { fetches, document: last.known.clone() };
        Some(Ok(known))
    }
}

impl<T: ?Sized> NodeDocument<T> {
    fn keep(&self, result: &Result<Arc<T>, ProviderError>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        last.failed = result.as_ref().err().map(|error| (now, error.to_string().into()));
        if let Ok(known) = result {
            last.known = Some((now, Arc::clone(known)));
            self.fetches.fetch_add(1, Ordering::Release);
        }
    }
}

fn young<T: ?Sized>(document: &FetchedDocument<T>, age: Duration) -> Option<Arc<T>> {
    document.as_ref().filter(|(since, _)| since.elapsed() < age).map(|(_, document)| Arc::clone(document))
}
