//! The data plane: a snapshot comes in, traffic goes through.
//!
//! The modules are the stations of a request's way. Start reading at [`serve`].

pub mod access_log;
pub mod gateway;
pub mod route;
pub mod snapshot;
pub mod tail;

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
mod worker;

pub use gateway::{DataPlane, GatewayOptions, Listener, ListenerProtocol};
