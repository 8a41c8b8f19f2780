//! HTTP/2 connections of clients and of upstreams: what their streams share, and how heads are written.

pub mod fields;
mod session;
pub mod silence;
mod state;
mod turns;

pub use session::Session;
pub use state::{Handler, State};
