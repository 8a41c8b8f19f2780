//! Tests the hub over real sockets, from the side of subscribers and publishers. `websub` tests the rules of the Recommendation
//! by section, `websub_rocks` has the tests of the public validator, `safety` what callers must not be able to do, `shared_hosts`
//! that failing callbacks do not hold up others of their host, `rights` who
//! may publish and receive what, `limits` the limits of deliveries, `account` that nothing is lost when the process is killed,
//! `conservation` that every delivery is accounted for, `operating` the tools of operators, `listening` and `socket` the other ways
//! to receive a topic, `stalled` and `unread` the cost of listeners that do not read, `memory` the memory of subscriptions, `pacing` the effect
//! of a fan-out on other routes, `guide` the example of the documentation, and `kafka` a hub that several nodes share.

mod account;
#[path = "../admin/api.rs"]
mod api;
mod conservation;
mod guide;
mod kafka;
mod limits;
mod listening;
mod memory;
mod operating;
mod pacing;
mod peers;
mod publishing;
#[path = "../records/real_kafka.rs"]
#[expect(dead_code, reason = "the tests of kafka-logger use more of it")]
mod real_kafka;
mod receivers;
#[path = "../plugins/redis.rs"]
#[expect(dead_code, reason = "the tests of limits use more of it")]
mod redis;
mod rights;
mod safety;
mod shared_hosts;
mod socket;
mod stalled;
mod unread;
mod websub;
mod websub_rocks;
