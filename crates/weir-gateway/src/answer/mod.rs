//! How an exchange is answered: the relay of an upstream's response, a responder's, the gateway's own, and tunnels.

pub(crate) mod final_recipient;
pub(crate) mod page;
pub(crate) mod relay;
pub(crate) mod respond;
pub(crate) mod responder;
pub(crate) mod tunnel;
pub(crate) mod upgrade;
pub(crate) mod websocket;
