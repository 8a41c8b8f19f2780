//! Exit codes. They are documented in `--help`, and scripts rely on them.

use std::process::ExitCode;

use weir_control::Diagnostic;
use weir_control::text::diagnostic::FaultCause;

/// 0: success.
pub(crate) const DONE: ExitCode = ExitCode::SUCCESS;

/// Failures. Code 2, wrong usage, is clap's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitFailure {
    /// The configuration is not valid, or cannot be read. Also the answer "no" of a command that compares or measures.
    Configuration = 1,
    /// A listen address cannot be opened.
    Listen = 3,
    /// The system refused another resource, such as a thread or a log file.
    System = 4,
    /// A node refused the request, or a service on another machine or a file system does not answer: the same may succeed later.
    Refused = 5,
}

impl ExitFailure {
    /// That of a node which cannot start with its configuration. What a missing secret was to be may be a fault as well, so one
    /// fault that may pass is enough.
    pub fn of_start(faults: &[Diagnostic]) -> ExitFailure {
        match faults.iter().any(|fault| fault.cause == FaultCause::Away) {
            true => ExitFailure::Refused,
            false => ExitFailure::Configuration,
        }
    }
}

/// Why a command that sends requests to a node failed: the exit code and the message.
#[derive(Debug)]
pub(crate) struct ExitCause {
    pub code: ExitFailure,
    /// Several lines, if there are several faults.
    pub problem: String,
}

impl ExitCause {
    /// A failure on this machine: a file is not valid or cannot be read, or the user has not confirmed the change. A retry fails again.
    pub(crate) fn local(problem: impl Into<String>) -> ExitCause {
        ExitCause { code: ExitFailure::Configuration, problem: problem.into() }
    }
}

/// An error that the node returned, or an error of the connection to the node.
impl From<String> for ExitCause {
    fn from(problem: String) -> Self {
        ExitCause { code: ExitFailure::Refused, problem }
    }
}

impl From<ExitFailure> for ExitCode {
    fn from(failure: ExitFailure) -> Self {
        ExitCode::from(failure as u8)
    }
}

/// The text at the end of `--help`.
pub(crate) const HELP: &str = "\
Exit codes:
  0  success; for `run`: the process stopped on request
  1  the configuration or a file is not valid or cannot be read, or there is no key for the node; `diff`,
     `rehearse`: there are differences; `load`, `bench`: the result is not valid; `apply`, `rollback`: not confirmed
  2  wrong usage
  3  a listen address cannot be opened
  4  the system refused another resource, such as a thread or a log file
  5  the node or its store refused the request or the key, or could not be reached; for `run`: a store, a secret
     manager or a file system that the start needs does not answer, and a later start may succeed; for
     `rehearse`: the old gateway does not answer as the log says, or no request was compared";
