//! Errors of a run: of its preparation, of the load, and of requests to the target and to stores beside it.

use std::{
    io,
    net::SocketAddr,
    process::{ExitStatus, Output},
    sync::Arc,
    time::Duration,
};

use super::machine_error::{FleetError, LinkError, MachinesRefusal};
use crate::{
    engine::PlanError,
    errors::FileError,
    target::{CommandError, InstallError, PeerError, ProcessEnded, ProcessError},
};

/// Why a run has no result, or ended early.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("interrupted")]
    Interrupted,
    /// The machines of the command line cannot be used.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// An agent does not do what the run needs, or is lost.
    #[error(transparent)]
    Agent(#[from] LinkError),
    #[error(transparent)]
    OneMachineOnly(#[from] MachinesRefusal),
    /// Something that the run needs was not found or did not start.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The load of a row.
    #[error("{row}: {source}")]
    Load { row: String, source: LoadError },
    #[error("the load beside that of the row: {0}")]
    Beside(#[source] LoadError),
    /// A request to a target's account or to a store.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// `--valgrind` without valgrind.
    #[error("--valgrind: valgrind is not installed; on Debian: apt-get install valgrind")]
    NoValgrind,
    /// `--flame-graph` without perf.
    #[error("--flame-graph: perf is not installed; on Debian: apt-get install linux-perf")]
    NoPerf,
    /// A target under valgrind did not start.
    #[error("{target}: {row}: {reason}")]
    NotCounted { target: String, row: String, reason: String },
    /// Valgrind printed no count.
    #[error("{target}: {row}: valgrind counted nothing; it printed: {said}")]
    NoCount { target: String, row: String, said: String },
}

/// What a run needs and did not get.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The command that checks a target's configuration.
    #[error(transparent)]
    Check(CommandError),
    #[error("certificate: {0}")]
    Certificate(#[source] rcgen::Error),
    #[error("no free port: {0}")]
    NoPort(#[source] io::Error),
    /// The path of the lab's own program, which is also the built-in backend.
    #[error("the lab's own program: {0}")]
    OwnProgram(#[source] io::Error),
    #[error("the backend {0}")]
    Backend(#[source] InstallError),
    #[error("the backend did not start: {0}")]
    BackendEnded(#[source] ProcessEnded),
    #[error("the backend does not listen")]
    BackendSilent,
    #[error("the service {name} did not start: {ended}")]
    ServiceEnded {
        name: String,
        #[source]
        ended: ProcessEnded,
    },
    #[error("the service {0} does not listen")]
    ServiceSilent(String),
    /// A row needs the store of log records, which is not installed.
    #[error(transparent)]
    NoStore(Arc<StoreNotFound>),
    #[error("no port from {first} to {last} is free for OpenSearch")]
    NoStorePort { first: u16, last: u16 },
    #[error("OpenSearch did not start: {0}")]
    StoreEnded(#[source] ProcessEnded),
    #[error("OpenSearch did not answer within {} s; it printed: {said}", .limit.as_secs())]
    StoreSilent { limit: Duration, said: String },
    #[error("the receiver of syslog messages: {0}")]
    Syslog(#[source] io::Error),
}

/// Why the store of log records cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StoreNotFound {
    #[error(transparent)]
    Definition(#[from] PeerError),
    #[error(transparent)]
    Program(#[from] InstallError),
}

/// Why a load was not generated as planned.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A generator process was not started, or its output not read.
    #[error("a generator: {0}")]
    Generator(#[source] io::Error),
    #[error("a generator ended with {status}: {said}")]
    GeneratorEnded { status: ExitStatus, said: String },
    #[error("a plan without clients")]
    NoClients,
    #[error("it ended before it began")]
    EndedEarly,
    #[error("{answered} of {sent} requests were answered")]
    Unanswered { answered: u64, sent: u64 },
    /// A load on other machines.
    #[error("{0}")]
    Machine(String),
    /// The target does not answer as the row needs.
    #[error("a request for {url} is answered with {}, not with 2xx", .seen.join(", "))]
    Refused { url: String, seen: Vec<String> },
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

/// A request to a process beside the load that got no answer of use.
#[derive(Debug, thiserror::Error)]
#[error("{method} {url}: {source}")]
pub struct AskError {
    method: String,
    url: String,
    source: AskProblem,
}

/// What was wrong with the answer.
#[derive(Debug, thiserror::Error)]
pub enum AskProblem {
    #[error(transparent)]
    Io(io::Error),
    #[error("the answer is not HTTP")]
    NotHttp,
    /// An answer without the account of log records.
    #[error("status {status}, without an account")]
    NoAccount { status: u16 },
    /// An answer without the number of documents.
    #[error("status {status}, without the number of documents")]
    NoCount { status: u16 },
}

impl AskError {
    pub fn new(method: &str, address: SocketAddr, target: &str, problem: AskProblem) -> AskError {
        AskError { method: method.to_owned(), url: format!("http://{address}{target}"), source: problem }
    }
}

/// Why a target did not take another configuration.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    #[error("there is no route to change")]
    NoRoute,
    /// The peer's definition has no `reload`.
    #[error("the peer has no `reload` command")]
    NoCommand,
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The request that makes the change.
    #[error("{path}: {source}")]
    Request { path: String, source: io::Error },
    #[error("{path}: {answer}")]
    Refused {
        path: String,
        /// The first line of the answer.
        answer: String,
    },
    #[error("no request has shown it within {patience:?}")]
    NotVisible { patience: Duration },
}

/// The row that another row's rate depends on was not measured.
#[derive(Debug, thiserror::Error)]
#[error("\"{row}\" gave no rate: {baseline} was not measured there")]
pub struct NoRate {
    pub row: String,
    pub baseline: String,
}
