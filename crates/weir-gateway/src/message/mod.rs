//! The messages of an exchange: heads, bodies in both directions, the gateway's own responses, tunnels.

pub mod final_recipient;
pub mod forward;
pub mod relay;
pub mod respond;
pub mod responder;
pub mod sides;
pub mod tunnel;
pub mod turn;
pub mod unsent;
pub mod upgrade;
pub mod websocket;
