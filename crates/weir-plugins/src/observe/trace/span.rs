//! A span: one piece of work in a trace, whatever form it is sent in.

use std::borrow::Cow;
use std::net::SocketAddr;

/// Whose work a span is: the gateway's as a server, or an upstream's, seen by its client.
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

/// One piece of work.
#[derive(Clone, Debug)]
pub struct TraceSpan<'a> {
    pub trace: u128,
    pub id: u64,
    /// Zero for the first span of a trace.
    pub parent: u64,
    pub is_parent_remote: bool,
    /// It is recorded because the caller was told so, and not only because of how the exchange ended.
    pub is_sampled: bool,
    pub kind: SpanKind,
    pub name: Cow<'a, [u8]>,
    /// Since 1970.
    pub start_ns: u64,
    pub end_ns: u64,
    /// Our end and the other end of the connection.
    pub local: Option<SocketAddr>,
    pub peer: Option<SocketAddr>,
    /// What went wrong, in one word, whoever is to blame.
    pub error: Option<Cow<'a, str>>,
    /// Whether that is a failure of what the span stands for.
    pub is_failed: bool,
    pub attributes: Vec<SpanAttribute<'a>>,
}
