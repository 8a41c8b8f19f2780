//! A run on several machines: which machine has which role, and how rows are measured there.

mod clock_offset;
mod fleet;
mod measure;
mod namespace;
mod refusal;
mod relay;
mod row;
mod shares;

use std::path::PathBuf;

pub(super) use self::fleet::Fleet;

/// The machines that the command line gives, each by the address of its agent. A role without one is on the own machine.
#[derive(Clone, Debug, Default)]
pub struct MachineOptions {
    pub generators: Vec<String>,
    pub gateway: Option<String>,
    pub backend: Option<String>,
    /// The file with the secret of the agents.
    pub key: Option<PathBuf>,
}

impl MachineOptions {
    pub fn is_empty(&self) -> bool {
        self.generators.is_empty() && self.gateway.is_none() && self.backend.is_none()
    }
}
