//! Connections that wait for the next request. Each thread has its own, so none is shared and no lock is taken.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use tokio::runtime;

use crate::settings::{HttpProtocol, IdleConnections, SharedSettings};
use crate::tls::TlsKey;
use crate::url::UrlOrigin;

/// What two calls must have in common to share a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionKey {
    pub(crate) settings: SharedSettings,
    pub(crate) origin: Arc<UrlOrigin>,
    /// `None` without TLS.
    pub(crate) tls: Option<TlsKey>,
    pub(crate) protocol: HttpProtocol,
}

/// A connection that requests can be sent on.
#[derive(Debug)]
pub(crate) enum PooledConnection {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// Why a request got no answer on a connection.
pub(crate) struct SendError {
    pub(crate) error: hyper::Error,
    /// The request, where nothing of it has been sent.
    pub(crate) unsent: bool,
}

impl PooledConnection {
    pub(crate) fn is_http2(&self) -> bool {
        matches!(self, PooledConnection::Http2(_))
    }

    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, SendError> {
        let sent = match self {
            PooledConnection::Http1(sender) => sender.try_send_request(request).await,
            PooledConnection::Http2(sender) => sender.try_send_request(request).await,
        };
        sent.map_err(|mut failed| {
            let unsent = failed.take_message().is_some();
            SendError { error: failed.into_error(), unsent }
        })
    }

    /// Waits until the last answer is read to its end. False when the connection closes instead.
    pub(crate) async fn is_reusable(&mut self) -> bool {
        match self {
            PooledConnection::Http1(sender) => sender.ready().await.is_ok(),
            PooledConnection::Http2(sender) => !sender.is_closed(),
        }
    }

    fn is_open(&self) -> bool {
        match self {
            PooledConnection::Http1(sender) => sender.is_ready(),
            PooledConnection::Http2(sender) => !sender.is_closed(),
        }
    }
}

struct WaitingConnection {
    connection: PooledConnection,
    until: Instant,
}

#[derive(Default)]
struct ConnectionPool {
    /// A connection is driven by the runtime it was opened on.
    idle: HashMap<(runtime::Id, ConnectionKey), Vec<WaitingConnection>>,
    /// The runtimes with a task that closes what has been idle for too long.
    swept: HashSet<runtime::Id>,
}

thread_local! {
    static POOL: RefCell<ConnectionPool> = RefCell::default();
}

/// The connection used last, which is the least likely to be closed. One of HTTP/2 stays where it is: it carries many
/// requests at a time.
pub(crate) fn take(key: &ConnectionKey) -> Option<PooledConnection> {
    let key = (runtime::Handle::current().id(), key.clone());
    POOL.with_borrow_mut(|pool| {
        let idle = pool.idle.get_mut(&key)?;
        let now = Instant::now();
        while let Some(one) = idle.pop() {
            if !one.connection.is_open() || one.until <= now {
                continue;
            }
            let PooledConnection::Http2(sender) = &one.connection else { return Some(one.connection) };
            let shared = PooledConnection::Http2(sender.clone());
            idle.push(one);
            return Some(shared);
        }
        None
    })
}

/// Forgets a connection of HTTP/2 that has failed, so that the next call opens another.
pub(crate) fn forget_http2(key: &ConnectionKey) {
    let key = (runtime::Handle::current().id(), key.clone());
    POOL.with_borrow_mut(|pool| {
        if let Some(idle) = pool.idle.get_mut(&key) {
            idle.retain(|one| !one.connection.is_http2());
        }
    });
}

/// Keeps a connection for the next call.
pub(crate) fn keep(key: &ConnectionKey, connection: PooledConnection, settings: IdleConnections) {
    if settings.max_per_origin == 0 {
        return;
    }
    let runtime = runtime::Handle::current().id();
    let one = WaitingConnection { connection, until: Instant::now() + settings.timeout };
    let begins = POOL.with_borrow_mut(|pool| {
        let idle = pool.idle.entry((runtime, key.clone())).or_default();
        if one.connection.is_http2() {
            // Another call may have kept it already, or one that was opened at the same time.
            idle.retain(|other| !other.connection.is_http2());
        }
        while idle.len() >= settings.max_per_origin {
            idle.remove(0);
        }
        idle.push(one);
        pool.swept.insert(runtime)
    });
    if begins {
        tokio::spawn(sweep(PoolSweep(runtime)));
    }
}

/// Closes what has been idle for too long, until nothing is left.
async fn sweep(sweep: PoolSweep) {
    const PAUSE: Duration = Duration::from_secs(1);
    loop {
        tokio::time::sleep(PAUSE).await;
        let now = Instant::now();
        let is_empty = POOL.with_borrow_mut(|pool| {
            pool.idle.retain(|(runtime, _), idle| {
                if *runtime == sweep.0 {
                    idle.retain(|one| one.connection.is_open() && now < one.until);
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

/// Ends with the runtime at the latest; connections that belonged to it are of no use then.
struct PoolSweep(runtime::Id);

impl Drop for PoolSweep {
    fn drop(&mut self) {
        // A thread that ends may have dropped its pool already.
        let _ = POOL.try_with(|pool| {
            if let Ok(mut pool) = pool.try_borrow_mut() {
                pool.swept.remove(&self.0);
                pool.idle.retain(|(runtime, _), _| *runtime != self.0);
            }
        });
    }
}
