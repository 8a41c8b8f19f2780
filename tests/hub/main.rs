//! The hub as subscribers and publishers see it, over real sockets. `websub` holds the Recommendation's rules by section,
//! `websub_rocks` the public validator's tests, `safety` what callers may not do, `account` that nothing is lost when the process
//! is killed, `conservation` that every delivery is accounted for, `operating` what operators do, and `listening` the other ways to a
//! topic.

mod account;
#[path = "../admin/api.rs"]
mod api;
mod conservation;
mod listening;
mod operating;
mod peers;
mod publishing;
mod receivers;
mod safety;
mod websub;
mod websub_rocks;
