//! Errors of a run: of its preparation, of the load, and of requests to the target and to stores beside it.

use std::{
    error::Error,
    fmt, io,
    net::SocketAddr,
    process::{ExitStatus, Output},
    sync::Arc,
    time::Duration,
};

use crate::{
    engine::PlanError,
    errors::{FileError, from_causes},
    target::{CommandError, InstallError, PeerError, ProcessEnded, ProcessError},
};

/// Why a run has no result, or ended early.
#[derive(Debug)]
pub enum RunError {
    Interrupted,
    /// Something that the run needs was not found or did not start.
    Setup(SetupError),
    /// The load of a row.
    Load {
        row: String,
        source: LoadError,
    },
    FanOut(LoadError),
    /// A request to a target's account or to a store.
    Ask(AskError),
    /// `--valgrind` without valgrind.
    NoValgrind,
    /// A target under valgrind did not start.
    NotCounted {
        target: String,
        row: String,
        reason: String,
    },
    /// Valgrind printed no count.
    NoCount {
        target: String,
        row: String,
        said: String,
    },
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Interrupted => f.write_str("interrupted"),
            RunError::Setup(error) => error.fmt(f),
            RunError::Load { row, source } => write!(f, "{row}: {source}"),
            RunError::FanOut(error) => write!(f, "the fan-out: {error}"),
            RunError::Ask(error) => error.fmt(f),
            RunError::NoValgrind => {
                f.write_str("--valgrind: valgrind is not installed; on Debian: apt-get install valgrind")
            }
            RunError::NotCounted { target, row, reason } => write!(f, "{target}: {row}: {reason}"),
            RunError::NoCount { target, row, said } => {
                write!(f, "{target}: {row}: valgrind counted nothing; it printed: {said}")
            }
        }
    }
}

impl Error for RunError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            RunError::Setup(error) => Some(error),
            RunError::Load { source, .. } | RunError::FanOut(source) => Some(source),
            RunError::Ask(error) => Some(error),
            _ => None,
        }
    }
}

from_causes!(RunError: Setup(SetupError), Ask(AskError));

/// What a run needs and did not get.
#[derive(Debug)]
pub enum SetupError {
    File(FileError),
    Peer(PeerError),
    Process(ProcessError),
    /// The command that checks a target's configuration.
    Check(CommandError),
    Certificate(rcgen::Error),
    NoPort(io::Error),
    /// The path of the lab's own program, which is also the built-in backend.
    OwnProgram(io::Error),
    Backend(InstallError),
    BackendEnded(ProcessEnded),
    BackendSilent,
    /// A row needs the store of log records, which is not installed.
    NoStore(Arc<StoreNotFound>),
    NoStorePort {
        first: u16,
        last: u16,
    },
    StoreEnded(ProcessEnded),
    StoreSilent {
        limit: Duration,
        said: String,
    },
    Syslog(io::Error),
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetupError::File(error) => error.fmt(f),
            SetupError::Peer(error) => error.fmt(f),
            SetupError::Process(error) => error.fmt(f),
            SetupError::Check(error) => error.fmt(f),
            SetupError::Certificate(error) => write!(f, "certificate: {error}"),
            SetupError::NoPort(error) => write!(f, "no free port: {error}"),
            SetupError::OwnProgram(error) => write!(f, "the lab's own program: {error}"),
            SetupError::Backend(error) => write!(f, "the backend {error}"),
            SetupError::BackendEnded(ended) => write!(f, "the backend did not start: {ended}"),
            SetupError::BackendSilent => f.write_str("the backend does not listen"),
            SetupError::NoStore(error) => error.fmt(f),
            SetupError::NoStorePort { first, last } => {
                write!(f, "no port from {first} to {last} is free for OpenSearch")
            }
            SetupError::StoreEnded(ended) => write!(f, "OpenSearch did not start: {ended}"),
            SetupError::StoreSilent { limit, said } => {
                write!(f, "OpenSearch did not answer within {} s; it printed: {said}", limit.as_secs())
            }
            SetupError::Syslog(error) => write!(f, "the receiver of syslog messages: {error}"),
        }
    }
}

impl Error for SetupError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            SetupError::File(error) => Some(error),
            SetupError::Peer(error) => Some(error),
            SetupError::Process(error) => Some(error),
            SetupError::Check(error) => Some(error),
            SetupError::Certificate(error) => Some(error),
            SetupError::NoPort(error) | SetupError::OwnProgram(error) | SetupError::Syslog(error) => Some(error),
            SetupError::Backend(error) => Some(error),
            SetupError::BackendEnded(ended) | SetupError::StoreEnded(ended) => Some(ended),
            SetupError::NoStore(error) => Some(error),
            SetupError::BackendSilent | SetupError::NoStorePort { .. } | SetupError::StoreSilent { .. } => None,
        }
    }
}

from_causes!(SetupError: File(FileError), Peer(PeerError), Process(ProcessError));

/// Why the store of log records cannot be started.
#[derive(Debug)]
pub enum StoreNotFound {
    Definition(PeerError),
    Program(InstallError),
}

impl fmt::Display for StoreNotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreNotFound::Definition(error) => error.fmt(f),
            StoreNotFound::Program(error) => error.fmt(f),
        }
    }
}

impl Error for StoreNotFound {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            StoreNotFound::Definition(error) => Some(error),
            StoreNotFound::Program(error) => Some(error),
        }
    }
}

from_causes!(StoreNotFound: Definition(PeerError), Program(InstallError));

/// Why a load was not generated as planned.
#[derive(Debug)]
pub enum LoadError {
    Plan(PlanError),
    /// A generator process was not started, or its output not read.
    Generator(io::Error),
    GeneratorEnded {
        status: ExitStatus,
        said: String,
    },
    NoClients,
    EndedEarly,
    Unanswered {
        answered: u64,
        sent: u64,
    },
    /// The target does not answer as the row needs.
    Refused {
        url: String,
        seen: Vec<String>,
    },
}

impl LoadError {
    /// The end of a generator process that printed no result.
    pub fn generator_ended(output: &Output) -> LoadError {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        LoadError::GeneratorEnded { status: output.status, said }
    }

    /// Adds the row.
    pub fn of(row: &str) -> impl Fn(LoadError) -> RunError {
        |source| RunError::Load { row: row.to_owned(), source }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Plan(error) => error.fmt(f),
            LoadError::Generator(error) => write!(f, "a generator: {error}"),
            LoadError::GeneratorEnded { status, said } => write!(f, "a generator ended with {status}: {said}"),
            LoadError::NoClients => f.write_str("a plan without clients"),
            LoadError::EndedEarly => f.write_str("it ended before it began"),
            LoadError::Unanswered { answered, sent } => write!(f, "{answered} of {sent} requests were answered"),
            LoadError::Refused { url, seen } => {
                write!(f, "a request for {url} is answered with {}, not with 2xx", seen.join(", "))
            }
        }
    }
}

impl Error for LoadError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            LoadError::Plan(error) => Some(error),
            LoadError::Generator(error) => Some(error),
            _ => None,
        }
    }
}

from_causes!(LoadError: Plan(PlanError));

/// A request to a process beside the load that got no answer of use.
#[derive(Debug)]
pub struct AskError {
    method: String,
    url: String,
    problem: AskProblem,
}

/// What was wrong with the answer.
#[derive(Debug)]
pub enum AskProblem {
    Io(io::Error),
    NotHttp,
    /// An answer without the account of log records.
    NoAccount {
        status: u16,
    },
    /// An answer without the number of documents.
    NoCount {
        status: u16,
    },
}

impl AskError {
    pub fn new(method: &str, address: SocketAddr, target: &str, problem: AskProblem) -> AskError {
        AskError { method: method.to_owned(), url: format!("http://{address}{target}"), problem }
    }
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: ", self.method, self.url)?;
        match &self.problem {
            AskProblem::Io(error) => error.fmt(f),
            AskProblem::NotHttp => f.write_str("the answer is not HTTP"),
            AskProblem::NoAccount { status } => write!(f, "status {status}, without an account"),
            AskProblem::NoCount { status } => write!(f, "status {status}, without the number of documents"),
        }
    }
}

impl Error for AskError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.problem {
            AskProblem::Io(error) => Some(error),
            _ => None,
        }
    }
}

/// Why a target did not take another configuration.
#[derive(Debug)]
pub enum ReloadError {
    NoRoute,
    /// The peer's definition has no `reload`.
    NoCommand,
    Peer(PeerError),
    File(FileError),
    Command(CommandError),
    /// The request that makes the change.
    Request {
        path: String,
        source: io::Error,
    },
    Refused {
        path: String,
        /// The first line of the answer.
        answer: String,
    },
    NotVisible {
        patience: Duration,
    },
}

impl fmt::Display for ReloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReloadError::NoRoute => f.write_str("there is no route to change"),
            ReloadError::NoCommand => f.write_str("the peer has no `reload` command"),
            ReloadError::Peer(error) => error.fmt(f),
            ReloadError::File(error) => error.fmt(f),
            ReloadError::Command(error) => error.fmt(f),
            ReloadError::Request { path, source } => write!(f, "{path}: {source}"),
            ReloadError::Refused { path, answer } => write!(f, "{path}: {answer}"),
            ReloadError::NotVisible { patience } => write!(f, "no request has shown it within {patience:?}"),
        }
    }
}

impl Error for ReloadError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            ReloadError::Peer(error) => Some(error),
            ReloadError::File(error) => Some(error),
            ReloadError::Command(error) => Some(error),
            ReloadError::Request { source, .. } => Some(source),
            _ => None,
        }
    }
}

from_causes!(ReloadError: Peer(PeerError), File(FileError), Command(CommandError));

/// The row that another row's rate depends on was not measured.
#[derive(Debug)]
pub struct NoRate {
    pub row: String,
    pub baseline: String,
}

impl fmt::Display for NoRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" gave no rate: {} was not measured there", self.row, self.baseline)
    }
}

impl Error for NoRate {}
