//! Requests that a responder has the gateway serve for its client, as if the client had sent them by themselves.

use std::fmt;

use weir_proto::RequestHead;

use crate::reply_head::ReplyField;
use crate::route_upstream::UpstreamAnswer;

/// A request as the client could have sent it. It is checked like any other.
pub struct InnerRequest {
    pub method: Box<[u8]>,
    /// The host, with or without a port.
    pub authority: Box<[u8]>,
    /// Path and query.
    pub target: Box<[u8]>,
    /// With names in lower case, without fields of the connection, `Host` and `Content-Length`. Of those in which proxies tell about
    /// the client, those of the carrier count, and none that are here.
    pub fields: Vec<ReplyField>,
    pub content: Vec<u8>,
}

/// The gateway as the client of an exchange sees it. It belongs to one worker.
pub trait ClientGateway {
    /// The request that the responder answers, as its client has sent it.
    fn carrier(&self) -> &RequestHead;

    /// Serves a request in the name of the client: a route is chosen, and all plugins run, as for a request on another connection from
    /// the same address with the same certificate. A request that is not valid is answered as that of a client is. How many requests
    /// are served at once, and how long they may take, is up to the caller. Dropping the answer ends the work.
    fn serve(&self, request: InnerRequest) -> UpstreamAnswer;
}

impl fmt::Debug for dyn ClientGateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientGateway")
    }
}
