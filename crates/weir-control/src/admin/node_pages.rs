//! What the node knows, and the control plane does not: pages and streams below `/weir/v1`.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;

/// Answers GET requests about the node, after their senders were authenticated.
pub trait NodePages: Send + Sync {
    /// The response to a path below `/weir/v1`; `None` if there is no such page. May take long, and block.
    fn page(&self, path: &[&str], query: &str, accept: Option<&str>) -> Option<NodePage>;

    /// Sends a request to a listener of the node, and responds with what became of it.
    fn send(&self, request: TracedRequest) -> SentRequest<'_>;

    /// Sends a test record to a sink of log records, and responds with what became of it.
    fn test_record(&self, sink: String) -> SentRequest<'_>;

    /// The results of the lab in the node's folder, the one with this name, or what is different in another one; `None` if the node
    /// has no such folder.
    fn lab(&self, name: Option<String>, other: Option<String>) -> Option<SentRequest<'_>>;
}

/// The future of the response to [`NodePages::send`], [`NodePages::test_record`] and [`NodePages::lab`].
pub type SentRequest<'a> = Pin<Box<dyn Future<Output = Response<Bytes>> + Send + 'a>>;

/// A request to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedRequest {
    pub method: String,
    /// `http://host/path?query`.
    pub url: String,
    /// Names and values.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

/// A response of a node.
pub enum NodePage {
    Whole(Response<Bytes>),
    Stream(NodeStream),
}

/// A stream that the node is to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeStream {
    /// The requests that the gateway answers, with the query that selects them.
    Tail(String),
    /// Figures of the node.
    Events,
}

/// A stream that was allowed, in an extension of a response without a body.
#[derive(Clone, Debug)]
pub struct OpenedStream {
    pub stream: NodeStream,
    pub hold: SessionHold,
}

/// The session or the token that a stream was opened with: the stream ends with it.
#[derive(Clone, Default)]
pub struct SessionHold(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl SessionHold {
    pub(super) fn new(is_open: Arc<dyn Fn() -> bool + Send + Sync>) -> SessionHold {
        SessionHold(Some(is_open))
    }

    /// Whether it has not ended. What was opened with a key ends with its client alone.
    pub fn is_open(&self) -> bool {
        self.0.as_ref().is_none_or(|is_open| is_open())
    }
}

impl fmt::Debug for SessionHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SessionHold").field(&self.is_open()).finish()
    }
}
