//! The systems under test. Each is defined by the files of a folder, and runs as a process of its own.

mod debian;
mod error;
mod install;
mod limited;
mod peer;
mod process;
mod render;
mod step;

pub use self::{
    error::{CommandError, InstallError, NO_MEMORY, PeerError, ProcessEnded, ProcessError},
    install::{Installed, install, locate, provide},
    limited::{COMMAND_LIMIT, ReadCommand, output_within, read_within},
    peer::{
        ChangeRequest, InstallSource, PeerDefinition, PeerEvents, Policies, backend_names, is_version, names, read,
        read_backend,
    },
    process::{Child, Readiness, send_signal, wait_until_listening},
    render::{BackendAddress, Inputs, RunCertificate, TemplateConsumer, TemplateRoute, credentials, hash, render},
};
