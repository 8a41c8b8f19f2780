//! Errors of peers and backends: their definitions, their installation, and their processes.

use std::{
    io,
    path::PathBuf,
    process::{ExitStatus, Output},
};

use crate::errors::FileError;

/// Why the definition of a peer or a backend cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    #[error("no peer \"{name}\"; there are: {}", .known.join(", "))]
    UnknownPeer { name: String, known: Vec<String> },
    #[error("no backend \"{name}\"; there are: {}", .known.join(", "))]
    UnknownBackend { name: String, known: Vec<String> },
    /// A version of a peer's program, without its path.
    #[error("{program}: which program is this version? --program {program}=PATH says it")]
    NoVersion { program: String },
    #[error("{file}: {source}")]
    Syntax { file: String, source: Box<serde_saphyr::Error> },
    /// `policies` is a word other than `any`.
    #[error("{file}: policies: \"{word}\" is neither a list nor the word \"any\"")]
    Policies { file: String, word: String },
    /// The definition names a file that its folder does not have.
    #[error("{file} is missing")]
    Missing { file: String },
    #[error("{file}: {source:#}")]
    Template { file: String, source: minijinja::Error },
    /// The folder of the installation has no absolute path.
    #[error(transparent)]
    Folder(#[from] FileError),
}

/// Why a program was not found or not installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Step(#[from] CommandError),
    /// The path that the user gave.
    #[error("{peer}: {} is not a file", .path.display())]
    NotAFile { peer: String, path: PathBuf },
    #[error("{peer} is not installed: {how}")]
    NotInstalled {
        peer: String,
        /// What installs it.
        how: String,
    },
    /// The machine that is to run it does not have it.
    #[error("{address}: {reason}")]
    NotThere { address: String, reason: String },
    /// The lab cannot install the peer; `how` tells the user.
    #[error("{peer}: {how}")]
    ByHand { peer: String, how: String },
    #[error("{peer} cannot be installed: there is no {tool}; it needs {package}")]
    MissingTool {
        peer: String,
        tool: String,
        /// The package that has the tool.
        package: String,
    },
    /// The definition does not name the program to install.
    #[error("{peer}: programs: name the program")]
    NoProgram { peer: String },
    #[error("install.go: \"{module}\" is not path@version")]
    GoModule { module: String },
    #[error("install.maven: \"{artifact}\" is not group:name:version")]
    MavenArtifact { artifact: String },
    /// No folder of the unpacked libraries has a dynamic loader.
    #[error("{}: no folder in it has a loader, ld-linux-*", .libraries.display())]
    NoLoader { libraries: PathBuf },
    /// The unpacked packages do not have the program.
    #[error("the packages have no {program} in {}", .directories.join(" or "))]
    NotInPackages { program: String, directories: &'static [&'static str] },
}

/// A command that did not start, or that failed.
#[derive(Debug, thiserror::Error)]
#[error("{command}: {source}")]
pub struct CommandError {
    command: String,
    source: CommandFailure,
}

#[derive(Debug, thiserror::Error)]
enum CommandFailure {
    #[error(transparent)]
    NotStarted(io::Error),
    #[error("{status}{}", after_colon(.said))]
    Ended { status: ExitStatus, said: String },
}

impl CommandError {
    /// Names the command in the error of its start.
    pub fn start(command: &str) -> impl Fn(io::Error) -> CommandError {
        |error| CommandError { command: command.to_owned(), source: CommandFailure::NotStarted(error) }
    }

    /// The end of a command that failed, with its last words.
    pub fn ended(command: &str, output: &Output, said: &str) -> CommandError {
        let source = CommandFailure::Ended { status: output.status, said: said.trim().to_owned() };
        CommandError { command: command.to_owned(), source }
    }
}

fn after_colon(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(": {said}") }
}

/// Why a process of the lab was not started or not signalled.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The start command has no words.
    #[error("the start command is empty")]
    NoCommand,
    /// The file for its output.
    #[error(transparent)]
    Log(#[from] FileError),
    #[error(transparent)]
    Start(#[from] CommandError),
    #[error("a signal to process {pid}: {source}")]
    Signal { pid: u32, source: io::Error },
}

/// Follows the status of a process.
pub const NO_MEMORY: &str = ", and the kernel has killed a process because there was no memory left";

/// A process that should run and has ended.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("it ended with {status}{}; it printed: {said}", if *.out_of_memory { NO_MEMORY } else { "" })]
pub struct ProcessEnded {
    pub status: ExitStatus,
    /// Meanwhile the kernel has killed processes because there was no memory left.
    pub out_of_memory: bool,
    /// The last lines of its output.
    pub said: String,
}
