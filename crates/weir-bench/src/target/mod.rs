//! The systems under test: a folder each, known only by what the folder says, started as processes of their own.

mod install;
mod peer;
mod process;
mod render;

pub use self::{
    install::{Installed, install, locate, provide},
    peer::{
        ChangeRequest, InstallSource, PeerDefinition, PeerEvents, Policies, backend_names, names, read, read_backend,
    },
    process::{Child, Readiness, send_signal, wait_until_listening},
    render::{BackendAddress, Inputs, RunCertificate, TemplateConsumer, TemplateRoute, credentials, hash, render},
};
