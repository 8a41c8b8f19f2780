//! Limits of requests per window, requests per second, concurrent requests, and events per window.

pub mod key;
pub mod limit_conn;
pub mod limit_count;
pub mod limit_events;
pub mod limit_req;
pub mod policy;
pub mod replacement;
