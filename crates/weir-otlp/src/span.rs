//! A span, independent of the format it is sent in.

use std::borrow::Cow;
use std::net::SocketAddr;

/// Whose work a span describes: the gateway's as a server, or the gateway's as a client of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    Server,
    Client,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeValue<'a> {
    Text(Cow<'a, [u8]>),
    Number(i64),
    /// Values of a header field, of which there may be several.
    Texts(Vec<Cow<'a, [u8]>>),
}

pub type SpanAttribute<'a> = (Cow<'a, str>, AttributeValue<'a>);

/// One span of a trace.
#[derive(Clone, Debug)]
pub struct TraceSpan<'a> {
    pub trace: u128,
    pub id: u64,
    /// The id of the parent span; zero for the first span of a trace.
    pub parent: u64,
    pub is_parent_remote: bool,
    /// Whether the trace was sampled when the request came, rather than kept because of how the exchange ended.
    pub is_sampled: bool,
    pub kind: SpanKind,
    pub name: Cow<'a, [u8]>,
    /// Start and end in nanoseconds since 1970.
    pub start_ns: u64,
    pub end_ns: u64,
    /// The local and the remote address of the connection.
    pub local: Option<SocketAddr>,
    pub peer: Option<SocketAddr>,
    /// The type of the error, if there was one, on any side.
    pub error: Option<Cow<'a, str>>,
    /// Whether the error counts as a failure of this span.
    pub is_failed: bool,
    pub attributes: Vec<SpanAttribute<'a>>,
}
