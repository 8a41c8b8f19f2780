//! Routing of requests, and changes to traffic on its way to the upstream.

pub mod api_breaker;
pub mod batch_requests;
pub mod fault_injection;
pub mod mocking;
pub mod proxy_cache;
pub mod proxy_control;
pub mod proxy_mirror;
pub mod public_api;
pub mod real_ip;
pub mod redirect;
pub mod sse_fanout;
pub mod traffic_label;
pub mod traffic_split;
pub mod weighted_shares;
pub mod workflow;
