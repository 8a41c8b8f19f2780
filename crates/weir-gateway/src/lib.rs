//! The data plane: a snapshot comes in, traffic goes through.
//!
//! The modules are the stations of a request's way. Start reading at [`serve`].

pub mod access_log;
pub mod gateway;
pub mod route;
pub mod snapshot;
pub mod state;

mod balance;
mod certificates;
mod chain;
mod concurrency;
mod connection;
mod content;
mod crew;
mod current;
mod forward;
mod meter;
mod multiplexed;
mod persistence;
mod pool;
mod probe;
mod relay;
mod respond;
mod serve;
mod sides;
mod tunnel;
mod unsent;
mod worker;

pub use gateway::{Gateway, GatewayOptions, Listener, Spoken};
