//! The messages of `envoy.service.auth.v3` that are used here, with their field numbers in Envoy's public API. Written by hand, since
//! generating them would need `protoc` at every build.

use std::collections::BTreeMap;

use prost::{Message, Oneof};

use crate::envoy::messages::{HeaderValueOption, HttpStatus, Struct};

#[derive(Clone, PartialEq, Message)]
pub(super) struct AuthorizationCheck {
    #[prost(message, optional, tag = "1")]
    pub attributes: Option<AttributeContext>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AttributeContext {
    #[prost(message, optional, tag = "1")]
    pub source: Option<Peer>,
    #[prost(message, optional, tag = "2")]
    pub destination: Option<Peer>,
    #[prost(message, optional, tag = "4")]
    pub request: Option<CheckedRequest>,
    #[prost(btree_map = "string, string", tag = "10")]
    pub context_extensions: BTreeMap<String, String>,
    #[prost(message, optional, tag = "12")]
    pub tls_session: Option<CheckedTls>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Peer {
    #[prost(message, optional, tag = "1")]
    pub address: Option<PeerAddress>,
    #[prost(string, tag = "4")]
    pub principal: String,
    #[prost(string, tag = "5")]
    pub certificate: String,
}

/// `envoy.config.core.v3.Address`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PeerAddress {
    #[prost(message, optional, tag = "1")]
    pub socket_address: Option<PeerSocket>,
}

/// `envoy.config.core.v3.PeerSocket`, of TCP.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PeerSocket {
    #[prost(string, tag = "2")]
    pub address: String,
    #[prost(uint32, tag = "3")]
    pub port_value: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckedRequest {
    #[prost(message, optional, tag = "1")]
    pub time: Option<Timestamp>,
    #[prost(message, optional, tag = "2")]
    pub http: Option<HttpRequest>,
}

/// `google.protobuf.Timestamp`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Timestamp {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpRequest {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub method: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub headers: BTreeMap<String, String>,
    #[prost(string, tag = "4")]
    pub path: String,
    #[prost(string, tag = "5")]
    pub host: String,
    #[prost(string, tag = "6")]
    pub scheme: String,
    #[prost(int64, tag = "9")]
    pub size: i64,
    #[prost(string, tag = "10")]
    pub protocol: String,
    #[prost(string, tag = "11")]
    pub body: String,
    #[prost(bytes = "vec", tag = "12")]
    pub raw_body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckedTls {
    #[prost(string, tag = "1")]
    pub sni: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<RpcStatus>,
    #[prost(oneof = "HttpResponse", tags = "2, 3, 5")]
    pub http_response: Option<HttpResponse>,
    #[prost(message, optional, tag = "4")]
    pub dynamic_metadata: Option<Struct>,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub code: i32,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum HttpResponse {
    #[prost(message, tag = "2")]
    Denied(DeniedHttpResponse),
    #[prost(message, tag = "3")]
    Ok(OkHttpResponse),
    #[prost(message, tag = "5")]
    Error(DeniedHttpResponse),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeniedHttpResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<HttpStatus>,
    #[prost(message, repeated, tag = "2")]
    pub headers: Vec<HeaderValueOption>,
    #[prost(string, tag = "3")]
    pub body: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OkHttpResponse {
    #[prost(message, repeated, tag = "2")]
    pub headers: Vec<HeaderValueOption>,
    #[prost(message, optional, tag = "3")]
    pub dynamic_metadata: Option<Struct>,
    #[prost(string, repeated, tag = "5")]
    pub headers_to_remove: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    pub response_headers_to_add: Vec<HeaderValueOption>,
    #[prost(message, repeated, tag = "7")]
    pub query_parameters_to_set: Vec<QueryParameter>,
    #[prost(string, repeated, tag = "8")]
    pub query_parameters_to_remove: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct QueryParameter {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}
