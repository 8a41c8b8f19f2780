//! HTTP/3: the connections of one UDP socket, which one task drives; each request is an exchange like any other, in a task of its own.

mod connection;
mod limits;
mod listener;
mod qlog;
mod requests;
mod server;
mod slot;
mod socket_use;
mod state;
mod stream;
#[cfg(test)]
mod tests;
mod wakes;

pub use listener::QuicShare;
pub(crate) use listener::serve;
