//! What a commander asks of an agent, and the answers: JSON, each message after its length.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    net::Ipv4Addr,
    time::Duration,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    engine::{LoadPlan, LoadResult},
    manifest::{LogicalCpu, Manifest},
    result::{Configuration, HostSample, MemoryKinds, Process},
    scenario::BackendSettings,
    target::{BackendAddress, Inputs},
};

/// The version of these messages. Agent and commander must have the same one, and be the same release.
pub(super) const MESSAGES: u32 = 1;
/// The most bytes of a request: a configuration with 10,000 routes has some.
pub(super) const LONGEST_REQUEST: usize = 64 << 20;
/// The most bytes of an answer: results contain histograms for each interval.
pub(super) const LONGEST_ANSWER: usize = 256 << 20;

/// The release and the version of its messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::run) struct AgentVersion {
    pub release: String,
    pub messages: u32,
}

impl AgentVersion {
    pub(in crate::run) fn own() -> AgentVersion {
        AgentVersion { release: env!("CARGO_PKG_VERSION").to_owned(), messages: MESSAGES }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::run) enum ProgramKind {
    Peer,
    Backend,
}

/// The order to start the backends of a row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::run) struct BackendOrder {
    pub settings: BackendSettings,
    pub row: String,
    pub workers: u32,
    pub cpus: Vec<u32>,
}

/// The order to start a target. What depends on the agent's machine is filled in there: paths, ports, certificates.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::run) struct TargetOrder {
    /// The peer, by the name of its folder.
    pub peer: String,
    pub row: String,
    pub inputs: Inputs,
    pub cpus: Vec<u32>,
}

/// When to take samples, in the time of the agent's monotonic clock.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(in crate::run) struct SampleOrder {
    pub start_ns: u64,
    pub warm_up: Duration,
    pub interval: Duration,
    pub length: Duration,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::run) enum AgentRequest {
    /// The first request of a connection.
    Hello(AgentVersion),
    /// Nothing but a sign of life.
    Alive,
    Clock,
    /// Begins a run with this certificate, PEM. Ends what an earlier one has left.
    Begin {
        certificate: String,
        key: String,
    },
    Find {
        kind: ProgramKind,
        name: String,
    },
    StartBackend(BackendOrder),
    StartTarget(Box<TargetOrder>),
    StopTarget,
    TargetState,
    /// Makes a load ready to begin.
    Prepare {
        plan: Box<LoadPlan>,
        verified: bool,
    },
    /// Begins the prepared load at this time of the agent's monotonic clock.
    Go {
        start_ns: u64,
    },
    LoadState,
    StopLoad,
    Sample(SampleOrder),
    /// The samples so far; ends sampling.
    Samples,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::run) enum AgentAnswer {
    Hello {
        version: AgentVersion,
        machine: Box<AgentMachine>,
    },
    Clock {
        monotonic_ns: u64,
        unix_ns: u64,
    },
    Done,
    Found {
        program: String,
        version: Option<String>,
    },
    Backend {
        endpoints: Vec<BackendAddress>,
        configuration: Option<Configuration>,
    },
    Target {
        port: u16,
        configuration: Configuration,
    },
    NotStarted {
        unsupported: bool,
        reason: String,
        configuration: Option<Configuration>,
    },
    TargetState(TargetState),
    Load(LoadState),
    Samples {
        processes: Vec<Process>,
        host: Vec<HostSample>,
    },
    /// Why the request was not carried out.
    Refused(String),
}

/// What an agent tells about its machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::run) struct AgentMachine {
    pub manifest: Manifest,
    /// The processors that it may use.
    pub cpus: Vec<LogicalCpu>,
    /// The address that its programs listen on.
    pub address: Ipv4Addr,
    /// The start of its kernel: two agents on one machine have the same.
    pub boot_id: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::run) struct TargetState {
    /// Why it has ended, if it has.
    pub ended: Option<String>,
    /// New lines of its log at level error or above.
    pub errors: Vec<String>,
    pub open_files: Option<u64>,
    pub rss_bytes: u64,
    pub memory: Option<MemoryKinds>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::run) enum LoadState {
    /// Connections are opened.
    Preparing,
    /// It waits for its start.
    Ready,
    Running,
    Ended {
        result: Box<LoadResult>,
        /// How much later than ordered it began.
        late_ns: u64,
    },
    Failed(String),
}

/// Programs that an agent may start, by the names of their folders.
pub type ProgramList = BTreeMap<String, std::path::PathBuf>;

/// Writes one message.
pub(super) fn send(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let length = u32::try_from(text.len()).map_err(|_| io::Error::other("the message is too long"))?;
    stream.write_all(&length.to_be_bytes())?;
    stream.write_all(&text)?;
    stream.flush()
}

/// Reads one message of at most `longest` bytes; memory is taken as its bytes arrive.
pub(super) fn receive<M: DeserializeOwned>(stream: &mut impl Read, longest: usize) -> io::Result<M> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > longest {
        let words = format!("a message of {length} bytes is longer than {longest}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, words));
    }
    let mut text = Vec::new();
    stream.take(length as u64).read_to_end(&mut text)?;
    if text.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_cut_or_too_long_is_an_error() {
        let mut bytes = Vec::new();
        send(&mut bytes, &AgentRequest::Go { start_ns: 7 }).unwrap();
        let read = |bytes: &[u8], longest| receive::<AgentRequest>(&mut &bytes[..], longest);
        assert!(matches!(read(&bytes, 100), Ok(AgentRequest::Go { start_ns: 7 })));
        assert_eq!(read(&bytes[..bytes.len() - 1], 100).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let error = read(&bytes, 5).unwrap_err().to_string();
        assert!(error.contains("is longer than 5"), "{error}");
        assert_eq!(read(&[0, 0, 0, 2, b'{', b'}'], 100).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
