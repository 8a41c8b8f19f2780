//! Errors of peers and backends: their definitions, their installation, and their processes.

use std::{
    error::Error,
    fmt, io,
    path::PathBuf,
    process::{ExitStatus, Output},
};

use crate::errors::{FileError, from_causes};

/// Why the definition of a peer or a backend cannot be used.
#[derive(Debug)]
pub enum PeerError {
    UnknownPeer {
        name: String,
        known: Vec<String>,
    },
    UnknownBackend {
        name: String,
        known: Vec<String>,
    },
    Syntax {
        file: String,
        source: Box<serde_saphyr::Error>,
    },
    /// `policies` is a word other than `any`.
    Policies {
        file: String,
        word: String,
    },
    /// The definition names a file that its folder does not have.
    Missing {
        file: String,
    },
    Template {
        file: String,
        source: minijinja::Error,
    },
    /// The folder of the installation has no absolute path.
    Folder(FileError),
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerError::UnknownPeer { name, known } => {
                write!(f, "no peer \"{name}\"; there are: {}", known.join(", "))
            }
            PeerError::UnknownBackend { name, known } => {
                write!(f, "no backend \"{name}\"; there are: {}", known.join(", "))
            }
            PeerError::Syntax { file, source } => write!(f, "{file}: {source}"),
            PeerError::Policies { file, word } => {
                write!(f, "{file}: policies: \"{word}\" is neither a list nor the word \"any\"")
            }
            PeerError::Missing { file } => write!(f, "{file} is missing"),
            PeerError::Template { file, source } => write!(f, "{file}: {source:#}"),
            PeerError::Folder(error) => error.fmt(f),
        }
    }
}

impl Error for PeerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            PeerError::Syntax { source, .. } => Some(source),
            PeerError::Template { source, .. } => Some(source),
            PeerError::Folder(error) => Some(error),
            _ => None,
        }
    }
}

from_causes!(PeerError: Folder(FileError));

/// Why a program was not found or not installed.
#[derive(Debug)]
pub enum InstallError {
    Peer(PeerError),
    File(FileError),
    Step(CommandError),
    /// The path that the user gave.
    NotAFile {
        peer: String,
        path: PathBuf,
    },
    NotInstalled {
        peer: String,
        /// What installs it.
        how: String,
    },
    /// The lab cannot install the peer; `how` tells the user.
    ByHand {
        peer: String,
        how: String,
    },
    MissingTool {
        peer: String,
        tool: String,
        /// The package that has the tool.
        package: String,
    },
    /// The definition does not name the program to install.
    NoProgram {
        peer: String,
    },
    GoModule {
        module: String,
    },
    MavenArtifact {
        artifact: String,
    },
    /// No folder of the unpacked libraries has a dynamic loader.
    NoLoader {
        libraries: PathBuf,
    },
    /// The unpacked packages do not have the program.
    NotInPackages {
        program: String,
        directories: &'static [&'static str],
    },
}

impl fmt::Display for InstallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InstallError::Peer(error) => error.fmt(f),
            InstallError::File(error) => error.fmt(f),
            InstallError::Step(error) => error.fmt(f),
            InstallError::NotAFile { peer, path } => write!(f, "{peer}: {} is not a file", path.display()),
            InstallError::NotInstalled { peer, how } => write!(f, "{peer} is not installed: {how}"),
            InstallError::ByHand { peer, how } => write!(f, "{peer}: {how}"),
            InstallError::MissingTool { peer, tool, package } => {
                write!(f, "{peer} cannot be installed: there is no {tool}; it needs {package}")
            }
            InstallError::NoProgram { peer } => write!(f, "{peer}: programs: name the program"),
            InstallError::GoModule { module } => write!(f, "install.go: \"{module}\" is not path@version"),
            InstallError::MavenArtifact { artifact } => {
                write!(f, "install.maven: \"{artifact}\" is not group:name:version")
            }
            InstallError::NoLoader { libraries } => {
                write!(f, "{}: no folder in it has a loader, ld-linux-*", libraries.display())
            }
            InstallError::NotInPackages { program, directories } => {
                write!(f, "the packages have no {program} in {}", directories.join(" or "))
            }
        }
    }
}

impl Error for InstallError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            InstallError::Peer(error) => Some(error),
            InstallError::File(error) => Some(error),
            InstallError::Step(error) => Some(error),
            _ => None,
        }
    }
}

from_causes!(InstallError: Peer(PeerError), File(FileError), Step(CommandError));

/// A command that did not start, or that failed.
#[derive(Debug)]
pub struct CommandError {
    command: String,
    failure: CommandFailure,
}

#[derive(Debug)]
enum CommandFailure {
    NotStarted(io::Error),
    Ended { status: ExitStatus, said: String },
}

impl CommandError {
    /// Names the command in the error of its start.
    pub fn start(command: &str) -> impl Fn(io::Error) -> CommandError {
        |error| CommandError { command: command.to_owned(), failure: CommandFailure::NotStarted(error) }
    }

    /// The end of a command that failed, with its last words.
    pub fn ended(command: &str, output: &Output, said: &str) -> CommandError {
        let failure = CommandFailure::Ended { status: output.status, said: said.trim().to_owned() };
        CommandError { command: command.to_owned(), failure }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let command = &self.command;
        match &self.failure {
            CommandFailure::NotStarted(error) => write!(f, "{command}: {error}"),
            CommandFailure::Ended { status, said } if said.is_empty() => write!(f, "{command}: {status}"),
            CommandFailure::Ended { status, said } => write!(f, "{command}: {status}: {said}"),
        }
    }
}

impl Error for CommandError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.failure {
            CommandFailure::NotStarted(error) => Some(error),
            CommandFailure::Ended { .. } => None,
        }
    }
}

/// Why a process of the lab was not started or not signalled.
#[derive(Debug)]
pub enum ProcessError {
    /// The start command has no words.
    NoCommand,
    /// The file for its output.
    Log(FileError),
    Start(CommandError),
    Signal {
        pid: u32,
        source: io::Error,
    },
}

impl fmt::Display for ProcessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProcessError::NoCommand => f.write_str("the start command is empty"),
            ProcessError::Log(error) => error.fmt(f),
            ProcessError::Start(error) => error.fmt(f),
            ProcessError::Signal { pid, source } => write!(f, "a signal to process {pid}: {source}"),
        }
    }
}

impl Error for ProcessError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            ProcessError::NoCommand => None,
            ProcessError::Log(error) => Some(error),
            ProcessError::Start(error) => Some(error),
            ProcessError::Signal { source, .. } => Some(source),
        }
    }
}

from_causes!(ProcessError: Log(FileError), Start(CommandError));

/// A process that should run and has ended.
#[derive(Debug, PartialEq, Eq)]
pub struct ProcessEnded {
    pub status: ExitStatus,
    /// The last lines of its output.
    pub said: String,
}

impl fmt::Display for ProcessEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it ended with {}; it printed: {}", self.status, self.said)
    }
}

impl Error for ProcessEnded {}
