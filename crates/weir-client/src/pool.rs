//! Idle connections. Each thread has a pool of its own, so no lock is needed.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use tokio::runtime;

use crate::call_content::CallContent;
use crate::conduct::{ServerConduct, ServerExcess};
use crate::settings::{HttpProtocol, IdleConnections, SharedSettings};
use crate::tls::TlsKey;
use crate::url::UrlOrigin;

/// Calls with equal keys may share a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionKey {
    pub(crate) settings: SharedSettings,
    pub(crate) origin: Arc<UrlOrigin>,
    /// `None` without TLS.
    pub(crate) tls: Option<TlsKey>,
    pub(crate) protocol: HttpProtocol,
}

/// A connection on which requests can be sent.
#[derive(Debug)]
pub(crate) struct PooledConnection {
    pub(crate) sender: RequestSender,
    pub(crate) conduct: Arc<ServerConduct>,
}

#[derive(Debug)]
pub(crate) enum RequestSender {
    Http1(http1::SendRequest<CallContent>),
    Http2(http2::SendRequest<CallContent>),
}

/// Why a request got no response on a connection.
pub(crate) enum SendError {
    /// The server broke a limit.
    Excess(ServerExcess),
    Failed {
        error: hyper::Error,
        /// Nothing of the request was sent, so it can be sent again.
        unsent: bool,
    },
}

impl PooledConnection {
    pub(crate) fn is_http2(&self) -> bool {
        matches!(self.sender, RequestSender::Http2(_))
    }

    /// The same connection for one more call, over HTTP/2.
    pub(crate) fn shared(&self) -> Option<PooledConnection> {
        let RequestSender::Http2(sender) = &self.sender else { return None };
        Some(PooledConnection { sender: RequestSender::Http2(sender.clone()), conduct: Arc::clone(&self.conduct) })
    }

    pub(crate) async fn send(&mut self, mut request: Request<CallContent>) -> Result<Response<Incoming>, SendError> {
        let sent = match &mut self.sender {
            RequestSender::Http1(sender) => {
                self.conduct.begin(&mut request);
                sender.try_send_request(request).await
            }
            RequestSender::Http2(sender) => sender.try_send_request(request).await,
        };
        match (sent, self.conduct.excess()) {
            (Ok(_), Some(excess)) => Err(SendError::Excess(excess)),
            (Ok(answer), None) => {
                self.conduct.progress();
                Ok(answer)
            }
            (Err(mut failed), excess) => {
                let unsent = failed.take_message().is_some();
                match excess.filter(|_| !unsent) {
                    Some(excess) => Err(SendError::Excess(excess)),
                    None => Err(SendError::Failed { error: failed.into_error(), unsent }),
                }
            }
        }
    }

    /// Waits until the last response has been read completely. `false` if the connection closes instead.
    pub(crate) async fn is_reusable(&mut self) -> bool {
        match &mut self.sender {
            RequestSender::Http1(sender) => sender.ready().await.is_ok(),
            RequestSender::Http2(sender) => !sender.is_closed(),
        }
    }

    fn is_open(&self) -> bool {
        match &self.sender {
            RequestSender::Http1(sender) => sender.is_ready(),
            RequestSender::Http2(sender) => !sender.is_closed(),
        }
    }
}

struct ReusableConnection {
    connection: PooledConnection,
    expires_at: Instant,
}

#[derive(Default)]
struct ConnectionPool {
    /// By runtime, since a connection is driven by the runtime on which it was opened.
    idle: HashMap<(runtime::Id, ConnectionKey), Vec<ReusableConnection>>,
    /// Runtimes with a running task that closes expired connections.
    swept: HashSet<runtime::Id>,
}

/// Limit of the origins with idle connections on one thread. Those whose connections expire first give way to others.
const MAX_IDLE_ORIGINS: usize = 1024;

impl ConnectionPool {
    fn make_room(&mut self) {
        self.idle.retain(|_, idle| !idle.is_empty());
        while self.idle.len() >= MAX_IDLE_ORIGINS {
            let expiry = |idle: &[ReusableConnection]| idle.last().map(|one| one.expires_at);
            let first = self.idle.iter().min_by_key(|(_, idle)| expiry(idle)).map(|(key, _)| key.clone());
            first.and_then(|key| self.idle.remove(&key));
        }
    }
}

thread_local! {
    static POOL: RefCell<ConnectionPool> = RefCell::default();
}

/// Takes the most recently used connection, the least likely to be closed by the server. An HTTP/2 connection stays in the pool,
/// since it carries many requests at a time.
pub(crate) fn take(key: &ConnectionKey) -> Option<PooledConnection> {
    let key = (runtime::Handle::current().id(), key.clone());
    POOL.with_borrow_mut(|pool| {
        let idle = pool.idle.get_mut(&key)?;
        let now = Instant::now();
        while let Some(one) = idle.pop() {
            if !one.connection.is_open() || one.expires_at <= now {
                continue;
            }
            let Some(shared) = one.connection.shared() else { return Some(one.connection) };
            idle.push(one);
            return Some(shared);
        }
        None
    })
}

/// Removes an HTTP/2 connection that has failed, so that the next call opens another.
pub(crate) fn forget_http2(key: &ConnectionKey) {
    let key = (runtime::Handle::current().id(), key.clone());
    POOL.with_borrow_mut(|pool| {
        if let Some(idle) = pool.idle.get_mut(&key) {
            idle.retain(|one| !one.connection.is_http2());
        }
    });
}

/// Removes the connections of a key, whatever runtime they belong to. It may be called where there is none.
pub(crate) fn forget(key: &ConnectionKey) {
    // The thread may be ending, and its pool gone.
    let _ = POOL.try_with(|pool| {
        if let Ok(mut pool) = pool.try_borrow_mut() {
            pool.idle.retain(|(_, other), _| other != key);
        }
    });
}

/// Puts a connection into the pool for the next call.
pub(crate) fn keep(key: &ConnectionKey, connection: PooledConnection, settings: IdleConnections) {
    if settings.max_per_origin == 0 {
        return;
    }
    let runtime = runtime::Handle::current().id();
    let one = ReusableConnection { connection, expires_at: Instant::now() + settings.timeout };
    let begins = POOL.with_borrow_mut(|pool| {
        let key = (runtime, key.clone());
        if pool.idle.len() >= MAX_IDLE_ORIGINS && !pool.idle.contains_key(&key) {
            pool.make_room();
        }
        let idle = pool.idle.entry(key).or_default();
        if one.connection.is_http2() {
            // It may be in the pool already, or another one that was opened at the same time.
            idle.retain(|other| !other.connection.is_http2());
        }
        while idle.len() >= settings.max_per_origin {
            idle.remove(0);
        }
        idle.push(one);
        pool.swept.insert(runtime)
    });
    if begins {
        tokio::spawn(sweep(SweepGuard(runtime)));
    }
}

/// Closes expired connections, until none of this runtime are left.
async fn sweep(sweep: SweepGuard) {
    const PAUSE: Duration = Duration::from_secs(1);
    loop {
        tokio::time::sleep(PAUSE).await;
        let now = Instant::now();
        let is_empty = POOL.with_borrow_mut(|pool| {
            pool.idle.retain(|(runtime, _), idle| {
                if *runtime == sweep.0 {
                    idle.retain(|one| one.connection.is_open() && now < one.expires_at);
                }
                !idle.is_empty()
            });
            !pool.idle.keys().any(|(runtime, _)| *runtime == sweep.0)
        });
        if is_empty {
            return;
        }
    }
}

/// Dropped at the latest with the runtime, when its connections become unusable, and removes them.
struct SweepGuard(runtime::Id);

impl Drop for SweepGuard {
    fn drop(&mut self) {
        // The thread's pool may have been dropped already.
        let _ = POOL.try_with(|pool| {
            if let Ok(mut pool) = pool.try_borrow_mut() {
                pool.swept.remove(&self.0);
                pool.idle.retain(|(runtime, _), _| *runtime != self.0);
            }
        });
    }
}
