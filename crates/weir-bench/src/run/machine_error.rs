//! Errors of runs on several machines.

use std::{io, path::PathBuf};

use crate::{errors::FileError, target::PeerError};

/// The fewest characters of a secret.
pub(super) const SHORTEST_SECRET: usize = 16;
/// The most bytes of a key file.
pub(super) const LONGEST_KEY_FILE: u64 = 4_096;

/// Why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AgentKeyError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}: other users of this machine can read it; `chmod 600 {}` changes that", .path.display(), .path.display())]
    Readable { path: PathBuf },
    #[error(
        "{}: a secret has at least {SHORTEST_SECRET} characters, and this one has {characters}; `--new-key` makes a file",
        .path.display()
    )]
    TooShort { path: PathBuf, characters: usize },
    #[error("{}: a key file is text of at most {LONGEST_KEY_FILE} bytes", .path.display())]
    NotText { path: PathBuf },
    #[error("the key pair: {0}")]
    KeyPair(String),
}

/// Why an agent does not do what it is asked for.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("{address}: the address of an agent is HOST:PORT, such as 10.0.0.2:7000: {source}")]
    Address { address: String, source: io::Error },
    #[error("{address}: an agent is reached by an IPv4 address")]
    NotIpv4 { address: String },
    #[error("{address}: {source}; is `weir bench agent --listen` running there?")]
    Connect { address: String, source: io::Error },
    #[error("the agent at {address} has another key: both machines need a copy of the same key file")]
    WrongKey { address: String },
    #[error("the agent at {address}: {reason}")]
    Refused { address: String, reason: String },
    #[error("the agent at {address} is lost: {reason}")]
    Lost { address: String, reason: String },
}

/// Why the machines of a run cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    #[error(transparent)]
    Key(#[from] AgentKeyError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error("--key is needed: the file with the secret that the agents were started with")]
    NoKey,
    #[error(
        "{loopback} can be reached from one machine only, and {other} is another one: give addresses that all machines reach"
    )]
    Unreachable { loopback: String, other: String },
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(
        "network: the lab makes this network on one machine; leave out --generator-on, --gateway-on and --backend-on"
    )]
    TwoNetworks,
    #[error("--generator-on {0} is given twice")]
    Twice(String),
}

/// Why there is no such network.
#[derive(Debug, thiserror::Error)]
#[error("network: {0}")]
pub struct NetworkError(pub(super) String);

/// Why a scenario cannot be run on several machines.
#[derive(Debug, thiserror::Error)]
#[error("a run on several machines has no {0}; run it on one machine, or choose rows by --row")]
pub struct MachinesRefusal(pub(super) &'static str);
