//! Workers' sockets, TLS, timers and buffers. Has never heard of HTTP.

pub mod clock;
pub mod inherit;
pub mod limits;
pub mod listener;
pub mod prefetch;
pub mod proxy_protocol;
pub mod stream;
pub mod timer;
pub mod tls;
