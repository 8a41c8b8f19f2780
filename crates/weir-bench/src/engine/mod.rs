//! The load engine: it runs a [`LoadPlan`] and returns a [`LoadResult`]. Both are plain values.
//!
//! Two times are always measured: *latency*, from the moment a request was due, and *service time*, from the moment it
//! was sent. The first is what a user would see, the second what the peer needed; they differ when either side falls behind.

pub mod clock;
pub mod histogram;
pub mod pacing;
pub mod plan;
pub mod result;

mod fan_out_floor;
mod flow;
mod form;
mod grpc;
mod http1;
mod interruptions;
mod job;
mod prepare;
mod recorder;
mod run;
mod socket;
mod start;
mod streams;
mod tls;

pub use fan_out_floor::FanOutFloor;
pub(crate) use grpc::status_words;
pub use histogram::LatencyHistogram;
pub use interruptions::Interruptions;
pub use plan::{
    AnswerCheck, AtEnd, ClientTls, CsvData, CsvOrder, EchoCheck, FormPart, GrpcCall, LoadPlan, LoadTimeouts, Pacing,
    PlanData, PlanError, PlanVariable, Protocol, Rate, RateStep, RequestBody, RequestTemplate, Selection, Spacing,
    StatusPattern, StopCondition, Take, Think,
};
pub(crate) use prepare::{allow_files, check_pacing, filler};
pub use result::{
    AnswerCheckTally, Connections, CpuTime, Errors, FlowTally, Generator, LoadInterval, LoadPhase, LoadProgress,
    LoadResult, LoadTally, PERCENTILES, PassTally, RequestTally,
};
pub(crate) use run::checked_address;
pub use run::{run, run_signalled, run_until, run_when};
pub use start::LoadStart;
pub(crate) use tls::provider;
