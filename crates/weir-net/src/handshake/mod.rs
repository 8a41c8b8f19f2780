//! TLS handshakes on both sides of the gateway: from a connection to a stream.

mod accept;
mod connect;

pub use accept::{ACME_TLS, AcceptError, ClientHello, RequestedServer, accept, accept_after, read_hello};
pub use connect::{connect, connect_in_turns, is_not_tls, is_unknown_name};
