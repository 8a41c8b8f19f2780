//! The messages of an exchange as any protocol moves them: the sides, heads, bodies, and what a connection keeps of them.

mod after_exchange;
pub mod body;
pub mod fields;
pub mod forward;
pub mod sides;
pub mod turn;
pub mod unsent;
pub mod websocket_handshake;

pub use after_exchange::AfterExchange;
