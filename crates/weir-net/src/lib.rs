//! Sockets, TLS, QUIC, timers and clocks of workers, independent of HTTP.

#![deny(unsafe_code)]

pub mod atomic_memory;
pub mod backoff;
pub mod clock;
pub mod connect;
pub mod datagram;
pub mod handshake;
pub mod inherit;
pub mod kernel_pipe;
pub mod limits;
pub mod listener;
mod plain;
pub mod prefetch;
pub mod proxy_protocol;
pub mod quic;
pub mod stream;
pub mod timer;
pub mod tls;
