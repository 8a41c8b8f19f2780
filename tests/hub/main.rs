//! The hub as subscribers and publishers see it, over real sockets. `websub` holds the Recommendation's rules by section,
//! `websub_rocks` the public validator's tests, `safety` what callers may not do, `account` that nothing is lost when the process
//! is killed, `conservation` that every delivery is accounted for, `operating` what operators do, `listening` the other ways to a
//! topic, `memory` what subscriptions need, `pacing` what a fan-out does to other routes, and `kafka` a hub that several nodes share.

mod account;
#[path = "../admin/api.rs"]
mod api;
mod conservation;
mod kafka;
mod listening;
mod memory;
mod operating;
mod pacing;
mod peers;
mod publishing;
#[path = "../plugins/real_kafka.rs"]
#[expect(dead_code, reason = "the tests of kafka-logger use more of it")]
mod real_kafka;
mod receivers;
#[path = "../plugins/redis.rs"]
#[expect(dead_code, reason = "the tests of limits use more of it")]
mod redis;
mod safety;
mod websub;
mod websub_rocks;
