//! The storage of limits: counters in this process, which can be kept on disk, and Redis or Valkey servers that count for
//! several gateways, with the scripts that run there.

pub(crate) mod counters;
pub(crate) mod durable;
pub(crate) mod redis_server;
pub(crate) mod scripts;
