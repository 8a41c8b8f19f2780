//! HTTP/2 connections of clients and of upstreams: what their streams share.

mod session;
pub(crate) mod silence;
mod state;
mod turns;

pub(crate) use session::Session;
pub(crate) use state::{Handler, State};
