//! How an exchange ends before its ordinary end, and whose fault that is.

use weir_proto::h1::{BadResponse, Reject};
use weir_proto::h2::ErrorCode;

/// Whatever ends an exchange early. One `match` in [`Stop::ending`] turns it into status, log word and retry rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A plugin has written the answer into the exchange with [`crate::Exchange::respond`].
    Answered,
    /// This status with the gateway's own short body.
    Respond(u16),
    /// No route matches.
    NoRoute,
    /// The route has nowhere to send to.
    NoUpstream,
    /// The request was refused by the protocol layer.
    Rejected(Reject),
    /// `%2F` or `%5C` in the path of a route that does not allow it.
    EncodedSeparator,
    /// `CONNECT`, which no route serves.
    ConnectMethod,
    /// The host wants a proof of its clients that this connection was not asked for (RFC 9110 §15.5.20).
    Misdirected,
    /// The client has shown no certificate, which the host asks for on this path.
    NoCertificate,
    /// The body is larger than allowed.
    BodyTooLarge,
    /// The request's chunked coding is broken.
    BadRequestBody,
    /// The client went away, or cut its body short.
    ClientGone,
    /// The client took too long over its head.
    HeadTimeout,
    /// The client took too long over its body.
    BodyTimeout,
    /// The time that the client has set for its call of gRPC (`grpc-timeout`) is over.
    CallTimeout,
    /// The client does not take the response.
    ClientStalled,
    /// The endpoint refused the connection, or could not be reached.
    ConnectFailed,
    ConnectTimeout,
    /// There was no TLS to be had with the endpoint: it speaks none, or it is not who it should be.
    UpstreamTls,
    /// The endpoint closed or reset before the first byte of an answer.
    UpstreamClosed,
    /// The endpoint has refused to look at the request (RFC 9113 §8.7).
    NotProcessed,
    /// The endpoint closed or reset within the head of its answer, of which nothing has been passed on.
    UpstreamHeadAborted,
    /// The endpoint has reset the stream of the request (RFC 9113 §5.4.2), and may have acted on it.
    UpstreamReset(ErrorCode),
    /// The endpoint closed or reset in the middle of its answer.
    UpstreamAborted,
    /// The endpoint did not take the request in time.
    SendTimeout,
    /// The endpoint did not answer in time.
    ReadTimeout,
    /// The endpoint's answer is not HTTP as we accept it.
    BadResponse(BadResponse),
    /// The endpoint's chunked coding is broken.
    BadResponseBody,
    /// The endpoint's answer is larger than allowed.
    ResponseTooLarge,
    /// More than eight interim responses, or `101` to a request that asked for none.
    BadInterim,
    /// Every endpoint is out of rotation or refuses.
    NoEndpoint,
    /// Too many requests wait for this upstream, or this one waited too long.
    Overloaded,
    /// The node holds as much content as it may.
    HeldContent,
    /// The client has all of its share of the content that is held.
    HeldByClient,
    /// The gateway itself cannot go on: no descriptors, a plugin that failed.
    Internal,
    /// The process must end now.
    Shutdown,
}

/// Who made the exchange end early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedBy {
    Client,
    Upstream,
    Gateway,
    /// A policy decided so.
    Policy,
}

/// What follows from a [`Stop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The status that answers it, if there is anybody left to answer.
    pub status: u16,
    /// A word for logs and metrics; the set is closed.
    pub name: &'static str,
    pub blame: EndedBy,
    /// The client connection cannot be used again.
    pub close: bool,
    pub retry: Retry,
}

/// Whether another endpoint may be asked. Never after a byte of a response has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    Never,
    /// The endpoint saw nothing of the request: any method may be sent again.
    Unseen,
    /// The endpoint may have acted on it: idempotent methods only.
    Idempotent,
}

impl Stop {
    pub fn ending(self) -> Ending {
        use EndedBy::{Client, Gateway, Policy, Upstream};
        use Retry::{Idempotent, Never, Unseen};
        let (status, name, blame, close, retry) = match self {
            Stop::Answered | Stop::Respond(_) => (0, "", Policy, false, Never),
            Stop::NoRoute => (404, "no_route", Client, false, Never),
            Stop::NoUpstream => (503, "no_upstream", Gateway, false, Never),
            Stop::Rejected(reject) => (reject.status(), reject.name(), Client, true, Never),
            Stop::EncodedSeparator => (400, "encoded_separator", Client, true, Never),
            Stop::ConnectMethod => (501, "connect_method", Client, true, Never),
            Stop::Misdirected => (421, "misdirected", Client, true, Never),
            // As nginx and APISIX answer it.
            Stop::NoCertificate => (400, "no_client_certificate", Client, true, Never),
            Stop::BodyTooLarge => (413, "body_too_large", Client, true, Never),
            Stop::BadRequestBody => (400, "bad_request_body", Client, true, Never),
            Stop::ClientGone => (499, "client_gone", Client, true, Never),
            Stop::HeadTimeout => (408, "head_timeout", Client, true, Never),
            Stop::BodyTimeout => (408, "body_timeout", Client, true, Never),
            Stop::CallTimeout => (504, "call_timeout", Client, false, Never),
            Stop::ClientStalled => (499, "client_stalled", Client, true, Never),
            Stop::ConnectFailed => (502, "connect_failed", Upstream, false, Unseen),
            Stop::ConnectTimeout => (504, "connect_timeout", Upstream, false, Unseen),
            Stop::UpstreamTls => (502, "upstream_tls", Upstream, false, Unseen),
            Stop::UpstreamClosed => (502, "upstream_closed", Upstream, false, Idempotent),
            Stop::NotProcessed => (502, "not_processed", Upstream, false, Unseen),
            Stop::UpstreamHeadAborted => (502, "upstream_head_aborted", Upstream, false, Idempotent),
            Stop::UpstreamReset(_) => (502, "upstream_reset", Upstream, false, Idempotent),
            Stop::UpstreamAborted => (502, "upstream_aborted", Upstream, true, Never),
            Stop::SendTimeout => (504, "send_timeout", Upstream, false, Never),
            Stop::ReadTimeout => (504, "read_timeout", Upstream, false, Never),
            Stop::BadResponse(bad) => (502, bad.name(), Upstream, false, Never),
            Stop::BadResponseBody => (502, "upstream_bad_body", Upstream, true, Never),
            Stop::ResponseTooLarge => (502, "response_too_large", Upstream, false, Never),
            Stop::BadInterim => (502, "upstream_bad_interim", Upstream, false, Never),
            Stop::NoEndpoint => (503, "no_endpoint", Upstream, false, Never),
            Stop::Overloaded => (503, "overloaded", Upstream, false, Never),
            Stop::HeldContent => (503, "held_content", Gateway, true, Never),
            Stop::HeldByClient => (413, "held_by_client", Client, true, Never),
            Stop::Internal => (500, "internal", Gateway, false, Never),
            Stop::Shutdown => (503, "shutdown", Gateway, true, Never),
        };
        let status = if let Stop::Respond(status) = self { status } else { status };
        Ending { status, name, blame, close, retry }
    }
}
