//! The messages of etcd's API (version 3) that are used here, with their field numbers in `rpc.proto`. Written by hand, since
//! generating them would need `protoc` at every build.

use prost::{Enumeration, Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResponseHeader {
    #[prost(uint64, tag = "1")]
    pub(super) cluster_id: u64,
    #[prost(int64, tag = "3")]
    pub(super) revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub(super) create_revision: i64,
    #[prost(int64, tag = "3")]
    pub(super) mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) value: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub(super) enum SortOrder {
    None = 0,
    Ascend = 1,
    Descend = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub(super) enum SortTarget {
    Key = 0,
    Create = 2,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) limit: i64,
    #[prost(int64, tag = "4")]
    pub(super) revision: i64,
    #[prost(enumeration = "SortOrder", tag = "5")]
    pub(super) sort_order: i32,
    #[prost(enumeration = "SortTarget", tag = "6")]
    pub(super) sort_target: i32,
    #[prost(bool, tag = "8")]
    pub(super) keys_only: bool,
    #[prost(int64, tag = "13")]
    pub(super) max_create_revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub(super) kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub(super) more: bool,
    #[prost(int64, tag = "4")]
    pub(super) count: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeleteRangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
}

/// A response of which only the header is read.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderOnly {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RequestOp {
    #[prost(oneof = "EtcdOperation", tags = "1, 2, 3")]
    pub(super) operation: Option<EtcdOperation>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum EtcdOperation {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRangeRequest),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResponseOp {
    #[prost(oneof = "EtcdOutcome", tags = "1, 2, 3")]
    pub(super) outcome: Option<EtcdOutcome>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum EtcdOutcome {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    #[prost(message, tag = "2")]
    Put(HeaderOnly),
    #[prost(message, tag = "3")]
    Delete(HeaderOnly),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub(super) enum CompareResult {
    Equal = 0,
    Greater = 1,
    Less = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub(super) enum CompareTarget {
    Version = 0,
    Create = 1,
    Mod = 2,
}

/// Compares the last revision that changed a key, which is 0 if the key does not exist.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Compare {
    #[prost(enumeration = "CompareResult", tag = "1")]
    pub(super) result: i32,
    #[prost(enumeration = "CompareTarget", tag = "2")]
    pub(super) target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) key: Vec<u8>,
    /// A field of a `oneof` in `rpc.proto`, so it is encoded even if it is 0.
    #[prost(int64, optional, tag = "6")]
    pub(super) mod_revision: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(super) success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub(super) failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub(super) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(super) responses: Vec<ResponseOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchRequest {
    #[prost(oneof = "WatchAsked", tags = "1, 3")]
    pub(super) asked: Option<WatchAsked>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum WatchAsked {
    #[prost(message, tag = "1")]
    Create(WatchCreateRequest),
    #[prost(message, tag = "3")]
    Progress(WatchProgressRequest),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchCreateRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) start_revision: i64,
    #[prost(bool, tag = "4")]
    pub(super) progress_notify: bool,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct WatchProgressRequest {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(bool, tag = "3")]
    pub(super) created: bool,
    #[prost(bool, tag = "4")]
    pub(super) canceled: bool,
    #[prost(int64, tag = "5")]
    pub(super) compact_revision: i64,
    #[prost(string, tag = "6")]
    pub(super) cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub(super) events: Vec<WatchEvent>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchEvent {
    /// 0: put, 1: deletion.
    #[prost(int32, tag = "1")]
    pub(super) kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) kv: Option<KeyValue>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    pub(super) ttl_s: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct LeaseId {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

/// The response to granting a lease, and to a keep-alive.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseState {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(int64, tag = "2")]
    pub(super) id: i64,
    /// The remaining lifetime in seconds; 0 if the lease has expired.
    #[prost(int64, tag = "3")]
    pub(super) ttl_s: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) password: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AuthenticateResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(string, tag = "2")]
    pub(super) token: String,
}
