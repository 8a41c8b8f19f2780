//! State that limits share: counters of this process, and servers (Redis, Valkey) that count for several gateways, with
//! the scripts they run.

pub mod counters;
pub mod redis_server;
pub mod scripts;
