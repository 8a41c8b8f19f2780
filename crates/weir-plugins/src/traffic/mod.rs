//! Routing of requests, and changes to traffic on its way to the upstream.

pub(crate) mod api_breaker;
pub(crate) mod aws_lambda;
pub(crate) mod azure_functions;
pub(crate) mod batch_requests;
pub(crate) mod fault_injection;
pub(crate) mod function_call;
pub(crate) mod mocking;
pub(crate) mod mqtt_proxy;
pub(crate) mod openfunction;
pub(crate) mod openwhisk;
pub(crate) mod proxy_buffering;
pub(crate) mod proxy_cache;
pub(crate) mod proxy_control;
pub(crate) mod proxy_mirror;
pub(crate) mod public_api;
pub(crate) mod real_ip;
pub(crate) mod redirect;
pub(crate) mod sse_fanout;
pub(crate) mod traffic_label;
pub(crate) mod traffic_split;
pub(crate) mod weighted_shares;
pub(crate) mod workflow;
