//! Endpoints: choosing one, connections to it, waiting for a permit, checking its health.

pub mod balance;
pub mod concurrency;
pub mod persistence;
pub mod pool;
pub mod probe;
pub mod state;
