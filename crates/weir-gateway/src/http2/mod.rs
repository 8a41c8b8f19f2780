//! HTTP/2 connections of clients and of upstreams: what their streams share.

mod session;
pub mod silence;
mod state;
mod turns;

pub use session::Session;
pub use state::{Handler, State};
