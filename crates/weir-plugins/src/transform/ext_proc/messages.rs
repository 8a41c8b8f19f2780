//! The messages of `envoy.service.ext_proc.v3` that are used here, with their field numbers in Envoy's public API.

use std::collections::BTreeMap;

use prost::{Message, Oneof};

use crate::envoy::messages::{HeaderValue, HeaderValueOption, HttpStatus, Struct};

#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessingRequest {
    #[prost(oneof = "RequestPart", tags = "2, 3, 4, 5, 6, 7")]
    pub part: Option<RequestPart>,
    #[prost(btree_map = "string, message", tag = "9")]
    pub attributes: BTreeMap<String, Struct>,
    #[prost(message, optional, tag = "11")]
    pub protocol: Option<ProtocolConfiguration>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum RequestPart {
    #[prost(message, tag = "2")]
    RequestHeaders(HttpHeaders),
    #[prost(message, tag = "3")]
    ResponseHeaders(HttpHeaders),
    #[prost(message, tag = "4")]
    RequestBody(HttpBody),
    #[prost(message, tag = "5")]
    ResponseBody(HttpBody),
    #[prost(message, tag = "6")]
    RequestTrailers(HttpTrailers),
    #[prost(message, tag = "7")]
    ResponseTrailers(HttpTrailers),
}

/// The modes that content is sent in, which the first message tells.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ProtocolConfiguration {
    #[prost(int32, tag = "1")]
    pub request_body_mode: i32,
    #[prost(int32, tag = "2")]
    pub response_body_mode: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpHeaders {
    #[prost(message, optional, tag = "1")]
    pub headers: Option<HeaderMap>,
    #[prost(bool, tag = "3")]
    pub end_of_stream: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpBody {
    #[prost(bytes = "vec", tag = "1")]
    pub body: Vec<u8>,
    #[prost(bool, tag = "2")]
    pub end_of_stream: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpTrailers {
    #[prost(message, optional, tag = "1")]
    pub trailers: Option<HeaderMap>,
}

/// `envoy.config.core.v3.HeaderMap`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderMap {
    #[prost(message, repeated, tag = "1")]
    pub headers: Vec<HeaderValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessingResponse {
    #[prost(oneof = "ResponsePart", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub part: Option<ResponsePart>,
    /// By namespaces.
    #[prost(message, optional, tag = "8")]
    pub dynamic_metadata: Option<Struct>,
    #[prost(message, optional, tag = "9")]
    pub mode_override: Option<ModeOverride>,
    #[prost(message, optional, tag = "10")]
    pub override_message_timeout: Option<ProtoDuration>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum ResponsePart {
    #[prost(message, tag = "1")]
    RequestHeaders(PartAnswer),
    #[prost(message, tag = "2")]
    ResponseHeaders(PartAnswer),
    #[prost(message, tag = "3")]
    RequestBody(PartAnswer),
    #[prost(message, tag = "4")]
    ResponseBody(PartAnswer),
    #[prost(message, tag = "5")]
    RequestTrailers(TrailersAnswer),
    #[prost(message, tag = "6")]
    ResponseTrailers(TrailersAnswer),
    #[prost(message, tag = "7")]
    Immediate(ImmediateResponse),
}

/// `HeadersResponse` and `BodyResponse`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PartAnswer {
    #[prost(message, optional, tag = "1")]
    pub response: Option<CommonResponse>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TrailersAnswer {
    #[prost(message, optional, tag = "1")]
    pub mutation: Option<HeaderMutation>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CommonResponse {
    /// 0 to continue, 1 to continue and replace the content.
    #[prost(int32, tag = "1")]
    pub status: i32,
    #[prost(message, optional, tag = "2")]
    pub header_mutation: Option<HeaderMutation>,
    #[prost(message, optional, tag = "3")]
    pub body_mutation: Option<BodyMutation>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderMutation {
    #[prost(message, repeated, tag = "1")]
    pub set_headers: Vec<HeaderValueOption>,
    #[prost(string, repeated, tag = "2")]
    pub remove_headers: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct BodyMutation {
    #[prost(oneof = "BodyChange", tags = "1, 2, 3")]
    pub change: Option<BodyChange>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum BodyChange {
    #[prost(bytes, tag = "1")]
    Body(Vec<u8>),
    #[prost(bool, tag = "2")]
    Clear(bool),
    #[prost(message, tag = "3")]
    Streamed(HttpBody),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ImmediateResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<HttpStatus>,
    #[prost(message, optional, tag = "2")]
    pub headers: Option<HeaderMutation>,
    #[prost(bytes = "vec", tag = "3")]
    pub body: Vec<u8>,
    #[prost(message, optional, tag = "4")]
    pub grpc_status: Option<AnsweredStatus>,
}

/// `GrpcStatus`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AnsweredStatus {
    #[prost(uint32, tag = "1")]
    pub status: u32,
}

/// `envoy.extensions.filters.http.ext_proc.v3.ProcessingMode`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ModeOverride {
    #[prost(int32, tag = "1")]
    pub request_headers: i32,
    #[prost(int32, tag = "2")]
    pub response_headers: i32,
    #[prost(int32, tag = "3")]
    pub request_body: i32,
    #[prost(int32, tag = "4")]
    pub response_body: i32,
    #[prost(int32, tag = "5")]
    pub request_trailers: i32,
    #[prost(int32, tag = "6")]
    pub response_trailers: i32,
}

/// `google.protobuf.Duration`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ProtoDuration {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}
