//! The load engine: a [`LoadPlan`] goes in, a [`LoadResult`] comes out. Both are plain values.
//!
//! Two times are always measured: *latency*, from when a request was due, and *service time*, from when it was sent.
//! The first is what a user would have seen, the second what the peer did; they part when either side falls behind.

pub mod clock;
pub mod histogram;
pub mod pacing;
pub mod plan;
pub mod result;

mod http1;
mod interruptions;
mod job;
mod prepare;
mod recorder;
mod run;
mod socket;
mod streams;
mod tls;

pub use histogram::LatencyHistogram;
pub use interruptions::Interruptions;
pub use plan::{
    ClientTls, EchoCheck, LoadPlan, LoadTimeouts, Pacing, PlanError, Protocol, Rate, RateStep, RequestBody,
    RequestTemplate, Selection, Spacing, StopCondition, Think,
};
pub(crate) use prepare::{allow_files, check_pacing, filler};
pub use result::{
    Connections, CpuTime, Errors, Generator, LoadInterval, LoadPhase, LoadProgress, LoadResult, LoadTally, PERCENTILES,
    RequestTally,
};
pub use run::{run, run_until};
pub(crate) use tls::provider;
