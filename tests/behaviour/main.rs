//! What users see of the gateway. `matrix` holds what is true whatever protocol the two sides speak, each feature written
//! once and run for every pair; `http1` holds what only HTTP/1 has; `programs` lets other people's clients try it.

mod checks;
mod grpc;
mod grpc_libraries;
mod grpc_web;
mod grpcurl;
mod http1;
mod matrix;
mod messages;
mod programs;
mod proxy_protocol;
#[path = "../plugins/redis.rs"]
#[expect(dead_code, reason = "the tests of limits use more of it")]
mod redis;
mod refusals;
mod sides;
mod tls;
mod upstream_streams;
mod upstream_tls;
mod websocket;
