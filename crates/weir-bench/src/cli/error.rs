use std::{error::Error, fmt, io, path::PathBuf};

use crate::{
    analysis::lint::PublicationError,
    engine::PlanError,
    errors::{FileError, from_causes},
    export::ExportError,
    jmx::ImportError,
    result::ResultFileError,
    run::RunError,
    scenario::ScenarioError,
    target::{CommandError, InstallError, PeerError},
};

/// Why a command of the lab has no result.
#[derive(Debug)]
pub enum LabError {
    Scenario(ScenarioError),
    Peer(PeerError),
    Install(InstallError),
    Run(RunError),
    Result(ResultFileError),
    Export(ExportError),
    Publication(PublicationError),
    File(FileError),
    /// No peer and no backend has the name that is to be installed.
    NothingToInstall {
        peer: PeerError,
        backends: Vec<String>,
    },
    Import {
        plan: PathBuf,
        source: ImportError,
    },
    /// A thread group of an imported plan.
    Group {
        name: String,
        source: PlanError,
    },
    /// Two results without a common cell.
    NothingToCompare,
    NoCell,
    SeveralCells(Vec<String>),
    TooFewWorkerCounts,
    /// The browser that draws PNG files.
    Browser(CommandError),
    Signals(io::Error),
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const CHOOSE: &str = "--row, --target and --connections";
        match self {
            LabError::Scenario(error) => error.fmt(f),
            LabError::Peer(error) => error.fmt(f),
            LabError::Install(error) => error.fmt(f),
            LabError::Run(error) => error.fmt(f),
            LabError::Result(error) => error.fmt(f),
            LabError::Export(error) => error.fmt(f),
            LabError::Publication(error) => error.fmt(f),
            LabError::File(error) => error.fmt(f),
            LabError::NothingToInstall { peer, backends } => {
                write!(f, "{peer}; or the backends {}", backends.join(", "))
            }
            LabError::Import { plan, source } => write!(f, "{}: {source}", plan.display()),
            LabError::Group { name, source } => write!(f, "{name}: {source}"),
            LabError::NothingToCompare => f.write_str("the two results have no measured cell in common"),
            LabError::NoCell => write!(f, "no measured cell matches {CHOOSE}"),
            LabError::SeveralCells(names) => write!(
                f,
                "the format holds one cell, and {} match: {}; choose one with {CHOOSE}",
                names.len(),
                names.join("; ")
            ),
            LabError::TooFewWorkerCounts => {
                f.write_str("the calculation needs results for at least three worker counts: run with --workers 1,2,4")
            }
            LabError::Browser(error) => write!(f, "PNG files are drawn by Chromium: {error}"),
            LabError::Signals(error) => write!(f, "signals: {error}"),
        }
    }
}

impl Error for LabError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            LabError::Scenario(error) => Some(error),
            LabError::Peer(error) | LabError::NothingToInstall { peer: error, .. } => Some(error),
            LabError::Install(error) => Some(error),
            LabError::Run(error) => Some(error),
            LabError::Result(error) => Some(error),
            LabError::Export(error) => Some(error),
            LabError::Publication(error) => Some(error),
            LabError::File(error) => Some(error),
            LabError::Import { source, .. } => Some(source),
            LabError::Group { source, .. } => Some(source),
            LabError::Browser(error) => Some(error),
            LabError::Signals(error) => Some(error),
            LabError::NothingToCompare
            | LabError::NoCell
            | LabError::SeveralCells(_)
            | LabError::TooFewWorkerCounts => None,
        }
    }
}

from_causes!(LabError: Scenario(ScenarioError), Peer(PeerError), Install(InstallError), Run(RunError));
from_causes!(LabError: Result(ResultFileError), Export(ExportError), Publication(PublicationError), File(FileError));

/// Why `weir load` has no result.
#[derive(Debug)]
pub enum LoadCommandError {
    Plan(PlanError),
    /// A plan file.
    File(FileError),
    Syntax {
        path: PathBuf,
        source: serde_json::Error,
    },
    /// `--rate` for clients that send nothing after the first request.
    RateWithoutRequests {
        protocol: &'static str,
    },
}

impl fmt::Display for LoadCommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadCommandError::Plan(error) => error.fmt(f),
            LoadCommandError::File(error) => error.fmt(f),
            LoadCommandError::Syntax { path, source } => write!(f, "{}: {source}", path.display()),
            LoadCommandError::RateWithoutRequests { protocol } => write!(
                f,
                "--rate applies to requests and messages; clients of `-p {protocol}` send none after the first"
            ),
        }
    }
}

impl Error for LoadCommandError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            LoadCommandError::Plan(error) => Some(error),
            LoadCommandError::File(error) => Some(error),
            LoadCommandError::Syntax { source, .. } => Some(source),
            LoadCommandError::RateWithoutRequests { .. } => None,
        }
    }
}

from_causes!(LoadCommandError: Plan(PlanError), File(FileError));
