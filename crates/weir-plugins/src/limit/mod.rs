//! Limits of requests per window, requests per second, concurrent requests, events per window, and bytes of responses per second.

pub(crate) mod graphql_limit_count;
pub(crate) mod key;
pub(crate) mod limit_conn;
pub(crate) mod limit_count;
pub(crate) mod limit_events;
pub(crate) mod limit_rate;
pub(crate) mod limit_req;
pub(crate) mod policy;
pub(crate) mod replacement;
