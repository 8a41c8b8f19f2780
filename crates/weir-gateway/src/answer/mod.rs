//! How an exchange is answered: the relay of an upstream's response, a responder's, the gateway's own, and tunnels.

pub mod final_recipient;
pub mod page;
pub mod relay;
pub mod respond;
pub mod responder;
pub mod tunnel;
pub mod upgrade;
pub mod websocket;
