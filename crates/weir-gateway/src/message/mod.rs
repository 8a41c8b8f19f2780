//! Messages on their way: heads as they leave, bodies in both directions, answers of our own, tunnels.

pub mod final_recipient;
pub mod forward;
pub mod relay;
pub mod respond;
pub mod responder;
pub mod sides;
pub mod tunnel;
pub mod unsent;
pub mod websocket;
