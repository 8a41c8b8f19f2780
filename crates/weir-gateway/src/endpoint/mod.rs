//! All there is about endpoints: choosing one, connections to it, waiting for it, watching it.

pub mod balance;
pub mod concurrency;
pub mod persistence;
pub mod pool;
pub mod probe;
pub mod state;
