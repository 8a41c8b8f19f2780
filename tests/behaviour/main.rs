//! The behaviour of the gateway for its users. `matrix` tests what holds for all protocols, each feature written once and run for
//! every pair of protocols; `http1` what is specific to HTTP/1; `programs` uses other HTTP clients.

mod checks;
mod client_certificates;
mod grpc;
mod grpc_libraries;
mod grpc_transcode;
mod grpc_web;
mod grpcurl;
mod http1;
#[path = "../http3/client.rs"]
#[expect(dead_code, reason = "the tests of HTTP/3 alone use more of it")]
mod http3_client;
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
