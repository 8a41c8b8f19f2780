//! Endpoints: choosing one, connections to it, waiting for a permit, checking its health.

pub(crate) mod balance;
pub(crate) mod concurrency;
pub(crate) mod persistence;
pub(crate) mod pool;
pub(crate) mod probe;
pub(crate) mod state;
