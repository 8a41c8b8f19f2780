//! Limits of what a server may send besides content. hyper has none: it reads interim responses, chunk sizes of many digits and
//! HTTP/2 frames for as long as a server sends them.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use http::Request;

/// Limit of the interim responses (1xx) to one request.
pub const MAX_INTERIM_RESPONSES: usize = 8;
/// Limit of the bytes that are read over HTTP/1.1 without a response head or content for the caller. hyper reads ahead at most a
/// buffer (64 KiB) and a piece of the same size.
pub(crate) const MAX_UNUSED_BYTES: usize = 256 << 10;
/// Limit of the HTTP/2 frames that carry neither a head nor content, see [`crate::frames::FrameCounter`].
pub(crate) const MAX_CONTROL_FRAMES: u32 = 1000;

/// The limit that a server has broken. Its connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerExcess {
    InterimResponses,
    UnusedBytes,
    ControlFrames,
}

impl fmt::Display for ServerExcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerExcess::InterimResponses => {
                write!(f, "more than {MAX_INTERIM_RESPONSES} interim responses (1xx) to one request")
            }
            ServerExcess::UnusedBytes => write!(f, "{MAX_UNUSED_BYTES} bytes without a response head or content"),
            ServerExcess::ControlFrames => {
                write!(f, "more than {MAX_CONTROL_FRAMES} HTTP/2 frames without a head or content")
            }
        }
    }
}

impl std::error::Error for ServerExcess {}

/// What the server of one connection has sent. The task of the connection and the calls on it share it.
#[derive(Debug, Default)]
pub(crate) struct ServerConduct {
    /// Interim responses to the current request, over HTTP/1.1.
    interim: AtomicUsize,
    /// Bytes read since the request, or since the caller got a part of the response, over HTTP/1.1.
    unused: AtomicUsize,
    excess: OnceLock<ServerExcess>,
}

impl ServerConduct {
    /// Begins to count for a request over HTTP/1.1.
    pub(crate) fn begin<B>(self: &Arc<Self>, request: &mut Request<B>) {
        self.interim.store(0, Relaxed);
        self.progress();
        let conduct = Arc::clone(self);
        hyper::ext::on_informational(request, move |_| {
            conduct.interim.fetch_add(1, Relaxed);
        });
    }

    /// The caller got a part of the response.
    pub(crate) fn progress(&self) {
        self.unused.store(0, Relaxed);
    }

    /// Counts bytes that were read over HTTP/1.1.
    pub(crate) fn read(&self, bytes: usize) {
        self.unused.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn exceed(&self, excess: ServerExcess) {
        let _ = self.excess.set(excess);
    }

    /// The limit that is broken, if one is.
    pub(crate) fn excess(&self) -> Option<ServerExcess> {
        if self.interim.load(Relaxed) > MAX_INTERIM_RESPONSES {
            return Some(ServerExcess::InterimResponses);
        }
        if self.unused.load(Relaxed) > MAX_UNUSED_BYTES {
            self.exceed(ServerExcess::UnusedBytes);
        }
        self.excess.get().copied()
    }
}
