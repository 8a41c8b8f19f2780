//! State that limits share: counters of this process, and servers (Redis, Valkey) that count for several gateways.

pub mod counters;
pub mod redis_server;
