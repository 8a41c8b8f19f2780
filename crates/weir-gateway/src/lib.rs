//! The data plane: serves traffic according to an immutable snapshot of the configuration.
//!
//! The modules follow the path of a request. Start reading at [`serve`].

#![forbid(unsafe_code)]

pub mod access_log;
pub mod gateway;
pub mod route;
pub mod snapshot;
pub mod tail;

mod answer;
mod certificates;
mod connection;
mod context;
mod endpoint;
mod http2;
mod message;
mod pieces;
mod plugins;
mod published;
mod serve;
mod thread;
mod worker;

pub use context::pipes::{PIPE_DESCRIPTORS, PIPES};
pub use gateway::{DataPlane, GatewayOptions, Listener, ListenerChange, ListenerId, QuicShare};
