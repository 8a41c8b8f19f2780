//! Workers' sockets, timers and buffers. Has never heard of HTTP.

pub mod clock;
pub mod timer;
