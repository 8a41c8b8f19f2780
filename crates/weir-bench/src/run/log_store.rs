//! Network destinations of access records: an OpenSearch, and a receiver of syslog messages.

use std::{
    collections::BTreeMap,
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{AskError, AskProblem, RunOptions, SetupError, StoreNotFound, backend, place::RunDirectory, services};
use crate::{
    result::TargetRecord,
    sample::WatchedProcess,
    scenario::{BackendSettings, ScenarioRow},
    target::{self, BackendAddress, Child, Installed, PeerDefinition},
};

/// The name of the store's folder in the library.
const STORE: &str = "opensearch";
/// OpenSearch needs half a minute to start on an idle machine.
const START: Duration = Duration::from_secs(180);
const ANSWER: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);
/// OpenSearch's runner, which starts it, accepts only these HTTP ports.
const PORTS: std::ops::RangeInclusive<u16> = 9201..=9298;
/// Bytes of the syslog socket's receive buffer, where the system allows it, so that bursts are not lost.
const RECEIVE_BUFFER: usize = 64 << 20;

/// The destinations of a run; each is started for the first row that uses it.
pub(super) struct LogStores {
    found: Result<(PeerDefinition, Installed), Arc<StoreNotFound>>,
    store: Option<RunningStore>,
    syslog: Option<SyslogReceiver>,
    /// Number of the next index.
    next: u32,
}

/// Destinations for one start of a target.
#[derive(Clone, Default)]
pub struct LogTargets {
    /// The process of the store, if the row uses it.
    pub watched: Option<WatchedProcess>,
    pub index: Option<StoreIndex>,
    pub syslog: Option<SyslogReceiver>,
}

/// An index of the store, including all indices whose names begin with its name.
#[derive(Clone)]
pub struct StoreIndex {
    pub store: SocketAddr,
    pub name: String,
}

/// Counts the datagrams received on a port.
#[derive(Clone)]
pub struct SyslogReceiver {
    pub port: u16,
    pub received: Arc<AtomicU64>,
}

struct RunningStore {
    address: SocketAddr,
    child: Child,
}

impl LogStores {
    pub(super) fn find(options: &RunOptions) -> LogStores {
        let find = || -> Result<_, StoreNotFound> {
            let peer = target::read_backend(STORE, &options.cache)?;
            let given = options.programs.get(STORE).map(std::path::PathBuf::as_path);
            let installed = target::locate(&peer, given, &options.cache)?;
            Ok((peer, installed))
        };
        LogStores { found: find().map_err(Arc::new), store: None, syslog: None, next: 0 }
    }

    /// The reason why a row cannot run: it needs the store, which is not installed.
    pub(super) fn missing(&self, row: &ScenarioRow) -> Option<String> {
        let reason = self.found.as_ref().err()?;
        row.names("{store}").then(|| format!("a row with elasticsearch-logger needs a store: {reason}"))
    }

    /// The store's entry in the result, if the store was started.
    pub(super) fn record(&self) -> Option<TargetRecord> {
        let (peer, installed) = self.found.as_ref().ok().filter(|_| self.store.is_some())?;
        Some(TargetRecord { name: peer.name.clone(), version: installed.version.clone(), ..TargetRecord::default() })
    }

    /// Starts the destinations that a row names and that do not run yet.
    pub(super) fn provide(
        &mut self,
        row: &ScenarioRow,
        place: &RunDirectory,
        cpus: &[u32],
    ) -> Result<LogTargets, SetupError> {
        let mut targets = LogTargets::default();
        if row.names("{store}") {
            let store = match &self.store {
                Some(store) => store,
                None => {
                    let (peer, installed) = self.found.as_ref().map_err(|error| SetupError::NoStore(error.clone()))?;
                    let store = RunningStore::start(peer, installed, place, cpus)?;
                    self.store.insert(store)
                }
            };
            self.next += 1;
            targets.watched = Some(services::watched(STORE, &store.child, cpus));
            targets.index = Some(StoreIndex { store: store.address, name: format!("weir-bench-{:04}", self.next) });
        }
        if row.names("{syslog_port}") {
            if self.syslog.is_none() {
                self.syslog = Some(SyslogReceiver::start()?);
            }
            targets.syslog = self.syslog.clone();
        }
        Ok(targets)
    }
}

impl LogTargets {
    /// The placeholders that options of a row's policies may use, with their values.
    pub fn placeholders(&self) -> Vec<(&'static str, Value)> {
        let mut all = Vec::new();
        if let Some(index) = &self.index {
            all.push(("{store}", Value::from(format!("http://{}", index.store))));
            all.push(("{index}", Value::from(index.name.clone())));
        }
        if let Some(syslog) = &self.syslog {
            all.push(("{syslog_port}", Value::from(syslog.port)));
        }
        all
    }
}

impl RunningStore {
    fn start(
        peer: &PeerDefinition,
        installed: &Installed,
        place: &RunDirectory,
        cpus: &[u32],
    ) -> Result<RunningStore, SetupError> {
        let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
        let none_free = SetupError::NoStorePort { first: *PORTS.start(), last: *PORTS.end() };
        let port = PORTS.into_iter().find(is_free).ok_or(none_free)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let dir = place.directory(&peer.name)?;
        let endpoints = [BackendAddress { host: Ipv4Addr::LOCALHOST.to_string(), port }];
        let inputs = backend::inputs(place, &BackendSettings::default(), &endpoints, 1, &dir);
        for (name, text) in &target::render(peer, &inputs)? {
            super::place::write(&dir.join(name), text)?;
        }
        let command = peer.command(&peer.start, &installed.program.display().to_string(), &inputs.dir, 1);
        let mut child = Child::start(&command, &BTreeMap::new(), Vec::new(), &dir, cpus)?;
        let deadline = Instant::now() + START;
        while !ask(address, "GET", "/_cluster/health").is_ok_and(|(status, _)| status == 200) {
            if let Some(ended) = child.ended() {
                return Err(SetupError::StoreEnded(ended));
            }
            if Instant::now() > deadline {
                return Err(SetupError::StoreSilent { limit: START, said: child.last_words() });
            }
            thread::sleep(POLL);
        }
        Ok(RunningStore { address, child })
    }
}

impl StoreIndex {
    /// The number of searchable documents in the index; 0 before it exists.
    pub fn count(&self) -> Result<u64, AskError> {
        let name = format!("/{}*", self.name);
        let end = Instant::now() + ANSWER;
        loop {
            ask(self.store, "POST", &format!("{name}/_refresh"))?;
            let (status, answer) = ask(self.store, "GET", &format!("{name}/_count"))?;
            // 503 until the shard of a new index has started.
            match answer["count"].as_u64().filter(|_| status == 200) {
                Some(count) => return Ok(count),
                None if Instant::now() > end => {
                    let target = format!("{name}/_count");
                    return Err(AskError::new("GET", self.store, &target, AskProblem::NoCount { status }));
                }
                None => thread::sleep(POLL),
            }
        }
    }

    /// Deletes the index. After a failure it stays until the store's directory is removed at the end of the run.
    pub fn delete(&self) {
        let _ = ask(self.store, "DELETE", &format!("/{}*", self.name));
    }
}

impl SyslogReceiver {
    fn start() -> Result<SyslogReceiver, SetupError> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(SetupError::Syslog)?;
        let port = socket.local_addr().map_err(SetupError::Syslog)?.port();
        // If the system's limit is lower, the kernel uses that limit.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER);
        let received = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&received);
        // The thread ends with the process; it owns nothing but the socket.
        thread::spawn(move || {
            let mut datagram = vec![0; 1 << 16];
            loop {
                if socket.recv(&mut datagram).is_ok() {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Ok(SyslogReceiver { port, received })
    }
}

/// Sends a request without a body; returns the status and the JSON of the answer.
pub(super) fn ask(address: SocketAddr, method: &str, target: &str) -> Result<(u16, Value), AskError> {
    let wrong = |problem| AskError::new(method, address, target, problem);
    let answer = exchange(address, method, target).map_err(|error| wrong(AskProblem::Io(error)))?;
    let end = memchr::memmem::find(&answer, b"\r\n\r\n");
    let status = answer.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    let (Some(end), Some(status)) = (end, status) else { return Err(wrong(AskProblem::NotHttp)) };
    Ok((status, serde_json::from_slice(&answer[end + 4..]).unwrap_or_default()))
}

/// Sends a request without a body; returns the bytes of the answer.
fn exchange(address: SocketAddr, method: &str, target: &str) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER)?;
    stream.set_read_timeout(Some(ANSWER))?;
    let head =
        format!("{method} {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}
