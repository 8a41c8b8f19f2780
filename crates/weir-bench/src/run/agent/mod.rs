//! Parts of a run on other machines: an agent there does what the program that commands it (the commander) asks, and ends
//! everything when their connection ends.

mod keeper;
mod key;
mod link;
mod load;
mod message;
mod portable;
mod server;
mod session;
mod target;

pub use self::{
    keeper::{AgentKeeper, keep},
    key::AgentKey,
    message::ProgramList,
    server::{AgentServer, ServeError},
    session::AgentSettings,
};
pub(super) use self::{
    link::AgentLink,
    message::{
        AgentAnswer, AgentMachine, AgentRequest, BackendOrder, LoadState, ProgramKind, SampleOrder, TargetOrder,
        TargetState,
    },
    portable::portable,
    session::AgentSession,
    target::RUN_DIRECTORY,
};
