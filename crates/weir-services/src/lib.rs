//! Calls to services outside: an HTTP service, a list of log receivers that are used in turn, calls of gRPC, and what an answer
//! says about the records that were sent. What connects is the client in `weir-client`; whose service it is, plugins say.

#![forbid(unsafe_code)]

pub mod grpc_call;
pub mod http_answer;
pub mod http_service;
pub mod receivers;
