//! The messages of an exchange as any protocol moves them: the sides, heads, bodies, and what a connection keeps of them.

mod after_exchange;
pub(crate) mod body;
pub(crate) mod counted_stream;
pub(crate) mod deadlines;
pub(crate) mod fields;
pub(crate) mod forward;
pub(crate) mod sides;
pub(crate) mod turn;
pub(crate) mod unsent;
pub(crate) mod websocket_handshake;

pub(crate) use after_exchange::AfterExchange;
