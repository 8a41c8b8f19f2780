use std::{io, path::PathBuf};

use crate::{
    analysis::lint::PublicationError,
    engine::PlanError,
    errors::FileError,
    export::ExportError,
    jmx::ImportError,
    result::ResultFileError,
    run::{AgentKeyError, RunError, agent::ServeError},
    scenario::ScenarioError,
    signature::SignatureError,
    target::{CommandError, InstallError, PeerError},
};

/// The options that choose a cell.
const CHOOSE: &str = "--row, --target and --connections";

/// Why a command of the lab has no result.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error(transparent)]
    Install(#[from] InstallError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Result(#[from] ResultFileError),
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error(transparent)]
    Publication(#[from] PublicationError),
    #[error(transparent)]
    File(#[from] FileError),
    /// No peer and no backend has the name that is to be installed.
    #[error("{peer}; or the backends {}", .backends.join(", "))]
    NothingToInstall {
        #[source]
        peer: PeerError,
        backends: Vec<String>,
    },
    #[error("{}: {source}", .plan.display())]
    Import { plan: PathBuf, source: ImportError },
    /// A thread group of an imported plan.
    #[error("{name}: {source}")]
    Group { name: String, source: PlanError },
    /// The file of `--changes`.
    #[error("{}: {source}; each line is a time, such as 2026-11-27T08:28:10Z", .path.display())]
    Changes { path: PathBuf, source: jiff::Error },
    /// Two results without a common cell.
    #[error("the two results have no measured cell in common")]
    NothingToCompare,
    #[error("no measured cell matches {CHOOSE}")]
    NoCell,
    #[error("the format holds one cell, and {} match: {}; choose one with {CHOOSE}", .0.len(), .0.join("; "))]
    SeveralCells(Vec<String>),
    #[error(
        "the calculation needs results for at least three worker counts of a row in a closed loop: run with --workers 1,2,4"
    )]
    TooFewWorkerCounts,
    #[error(transparent)]
    Signature(#[from] SignatureError),
    #[error(transparent)]
    Key(#[from] AgentKeyError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The process that an agent starts beside it, or its listener.
    #[error("the agent: {0}")]
    Agent(#[source] io::Error),
    /// The browser that draws PNG files.
    #[error("PNG files are drawn by Chromium: {0}")]
    Browser(#[source] CommandError),
    #[error("signals: {0}")]
    Signals(#[source] io::Error),
}

/// Why `weir load` has no result.
#[derive(Debug, thiserror::Error)]
pub enum LoadCommandError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A plan file.
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}: {source}", .path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("{}: {source}", .path.display())]
    Yaml { path: PathBuf, source: Box<serde_saphyr::Error> },
    /// `--rate` for clients that send nothing after the first request.
    #[error("--rate applies to requests and messages; clients of `-p {protocol}` send none after the first")]
    RateWithoutRequests { protocol: &'static str },
}
