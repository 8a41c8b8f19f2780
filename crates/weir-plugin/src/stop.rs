//! How an exchange ends early, and which side caused it.

use weir_proto::h1::{BadResponse, Reject};
use weir_proto::h2::ErrorCode;
use weir_proto::mqtt::BadConnect;

/// Why an exchange ends early. [`Stop::ending`] maps each reason to a status, a log word and a retry rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A plugin has written the response into the exchange with [`crate::Exchange::respond`].
    Answered,
    /// A response with this status and the gateway's own short body.
    Respond(u16),
    /// No route matches.
    NoRoute,
    /// The route has no upstream.
    NoUpstream,
    /// The request was refused by the protocol layer.
    Rejected(Reject),
    /// A stream does not begin with the packet of MQTT that a plugin expects.
    BadConnect(BadConnect),
    /// `%2F` or `%5C` in the path of a route that does not allow it.
    EncodedSeparator,
    /// `CONNECT`, which no route serves.
    ConnectMethod,
    /// The host requires a client certificate that this connection was not asked for (RFC 9110 §15.5.20).
    Misdirected,
    /// The client has sent no certificate, which the host requires on this path.
    NoCertificate,
    /// The body is larger than allowed.
    BodyTooLarge,
    /// The request's chunked coding is broken.
    BadRequestBody,
    /// The client disconnected, or ended its body early.
    ClientGone,
    /// The client did not send its head in time.
    HeadTimeout,
    /// The client did not send its body in time.
    BodyTimeout,
    /// The deadline of the client's gRPC call (`grpc-timeout`) has passed.
    CallTimeout,
    /// The client does not read the response.
    ClientStalled,
    /// The endpoint refused the connection, or could not be reached.
    ConnectFailed,
    ConnectTimeout,
    /// The TLS handshake with the endpoint failed, or its certificate is not valid for it.
    UpstreamTls,
    /// The endpoint has no certificate for the server name, which is the host of the request.
    UpstreamTlsName,
    /// The endpoint closed or reset the connection before the first byte of a response.
    UpstreamClosed,
    /// The endpoint did not process the request (RFC 9113 §8.7).
    NotProcessed,
    /// The endpoint closed or reset the connection within the response head, of which nothing was forwarded.
    UpstreamHeadAborted,
    /// The endpoint reset the request's stream (RFC 9113 §5.4.2); it may have acted on the request.
    UpstreamReset(ErrorCode),
    /// The endpoint closed or reset the connection within the response's content.
    UpstreamAborted,
    /// The endpoint did not read the request in time.
    SendTimeout,
    /// The endpoint did not respond in time.
    ReadTimeout,
    /// The exchange took longer than its route allows (`request_timeout`).
    RequestTimeout,
    /// The endpoint answered with this status, after which the upstream has another endpoint tried (`retry_on`).
    UpstreamStatus(u16),
    /// The endpoint's response is not valid HTTP.
    BadResponse(BadResponse),
    /// The endpoint's chunked coding is broken.
    BadResponseBody,
    /// The endpoint's response is larger than allowed.
    ResponseTooLarge,
    /// The endpoint's response is a stream, and a plugin needs the whole content.
    HeldStream,
    /// Too many bytes of interim responses, or `101` to a request without an upgrade.
    BadInterim,
    /// Every endpoint is out of rotation or refuses connections.
    NoEndpoint,
    /// Too many exchanges wait for a permit of this upstream, or this one waited too long.
    Overloaded,
    /// The node's limit of held content is reached.
    HeldContent,
    /// The client's share of held content is used up.
    HeldByClient,
    /// The route or the node has as many event streams of upstreams as it may.
    TooManyStreams,
    /// As many event streams of upstreams as one client may cause are open for this one.
    TooManyStreamsOfClient,
    /// Nothing came from either side of a stream for as long as it may be idle.
    IdleTimeout,
    /// A message of a WebSocket breaks a rule of the protocol, or a plugin of the route does not accept it.
    MessageRefused,
    /// A message of a WebSocket, or an event, is larger than a plugin of the route allows.
    MessageTooLarge,
    /// More messages or events were sent than a plugin of the route allows.
    EventQuota,
    /// The credential that opened a WebSocket or an event stream has expired, or was revoked.
    CredentialEnded,
    /// An internal error: no file descriptors, a plugin that failed.
    Internal,
    /// The process shuts down.
    Shutdown,
}

/// Which side ended the exchange early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedBy {
    Client,
    Upstream,
    Gateway,
    /// A policy refused it.
    Policy,
}

/// The consequences of a [`Stop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The status of the response, if the client can still be sent one; 0 if the exchange contains the response.
    pub status: u16,
    /// The reason code for logs and metrics, from a closed set.
    pub name: &'static str,
    pub blame: EndedBy,
    /// The client's connection is closed afterwards.
    pub close: bool,
    pub retry: Retry,
}

/// Whether the request may be sent to another endpoint. Never after a byte of a response was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    Never,
    /// The endpoint has not processed the request: any method may be retried.
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
            Stop::BadConnect(bad) => (400, bad.name(), Client, true, Never),
            Stop::EncodedSeparator => (400, "encoded_separator", Client, true, Never),
            Stop::ConnectMethod => (501, "connect_method", Client, true, Never),
            Stop::Misdirected => (421, "misdirected", Client, true, Never),
            // The same status as in nginx and APISIX.
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
            Stop::UpstreamTlsName => (502, "upstream_tls_name", Upstream, false, Unseen),
            Stop::UpstreamClosed => (502, "upstream_closed", Upstream, false, Idempotent),
            Stop::NotProcessed => (502, "not_processed", Upstream, false, Unseen),
            Stop::UpstreamHeadAborted => (502, "upstream_head_aborted", Upstream, false, Idempotent),
            Stop::UpstreamReset(_) => (502, "upstream_reset", Upstream, false, Idempotent),
            Stop::UpstreamStatus(status) => (status, "upstream_status", Upstream, false, Idempotent),
            Stop::UpstreamAborted => (502, "upstream_aborted", Upstream, true, Never),
            Stop::SendTimeout => (504, "send_timeout", Upstream, false, Never),
            Stop::ReadTimeout => (504, "read_timeout", Upstream, false, Never),
            Stop::RequestTimeout => (504, "request_timeout", Upstream, false, Never),
            Stop::BadResponse(bad) => (502, bad.name(), Upstream, false, Never),
            Stop::BadResponseBody => (502, "upstream_bad_body", Upstream, true, Never),
            Stop::ResponseTooLarge => (502, "response_too_large", Upstream, false, Never),
            Stop::HeldStream => (502, "held_stream", Gateway, false, Never),
            Stop::BadInterim => (502, "upstream_bad_interim", Upstream, false, Never),
            Stop::NoEndpoint => (503, "no_endpoint", Upstream, false, Never),
            Stop::Overloaded => (503, "overloaded", Upstream, false, Never),
            Stop::HeldContent => (503, "held_content", Gateway, true, Never),
            Stop::HeldByClient => (413, "held_by_client", Client, true, Never),
            Stop::TooManyStreams => (503, "too_many_streams", Gateway, false, Never),
            Stop::TooManyStreamsOfClient => (429, "streams_of_client", Client, false, Never),
            // The same status as in nginx.
            Stop::IdleTimeout => (200, "idle_timeout", Gateway, true, Never),
            // The status was sent when the stream began.
            Stop::MessageRefused => (200, "message_refused", Policy, true, Never),
            Stop::MessageTooLarge => (200, "message_too_large", Policy, true, Never),
            Stop::EventQuota => (200, "event_quota", Policy, true, Never),
            Stop::CredentialEnded => (200, "credential_ended", Policy, true, Never),
            Stop::Internal => (500, "internal", Gateway, false, Never),
            Stop::Shutdown => (503, "shutdown", Gateway, true, Never),
        };
        let status = if let Stop::Respond(status) = self { status } else { status };
        Ending { status, name, blame, close, retry }
    }
}
