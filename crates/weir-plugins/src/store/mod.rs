//! The storage of limits: counters in this process, which can be kept on disk, and Redis or Valkey servers that count for
//! several gateways, with the scripts that run there.

pub mod counters;
pub mod durable;
pub mod redis_server;
pub mod scripts;
