//! Services beside a target, which its plugins ask for each request: programs of the library, by the names of their folders.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use serde_json::Value;

use super::{
    RunOptions, SetupError, backend,
    place::{RunDirectory, free_port},
};
use crate::{
    result::{ProcessRole, TargetRecord},
    sample::WatchedProcess,
    scenario::{BackendSettings, ScenarioRow},
    target::{self, BackendAddress, Child, Installed, PeerDefinition, Readiness, wait_until_listening},
};

/// The services of a run; each is started for the first row that names it.
pub(super) struct BesideServices {
    /// What was found of each, or why it cannot run.
    found: BTreeMap<String, Result<(PeerDefinition, Installed), String>>,
    running: BTreeMap<String, (SocketAddr, Child)>,
}

/// The services of one row.
#[derive(Default)]
pub struct ServicesOfRow {
    /// What the options of its policies may name, with the values.
    pub placeholders: Vec<(String, Value)>,
    pub watched: Vec<WatchedProcess>,
}

/// A service's process, as one to sample: its processor time belongs to the measurement.
pub(super) fn watched(name: &str, child: &Child, cpus: &[u32]) -> WatchedProcess {
    WatchedProcess {
        role: ProcessRole::Service,
        name: name.to_owned(),
        cpus: cpus.to_vec(),
        root: child.pid(),
        workers: None,
    }
}

/// What an option of a policy has in place of the address of a service.
fn placeholder(name: &str) -> String {
    format!("{{service:{name}}}")
}

impl BesideServices {
    /// Finds those that the rows name.
    pub(super) fn find(rows: &[ScenarioRow], options: &RunOptions) -> BesideServices {
        let is_named = |name: &String| rows.iter().any(|row| row.names(&placeholder(name)));
        let find = |name: &String| {
            let peer = target::read_backend(name, &options.cache).map_err(|error| error.to_string())?;
            let given = options.programs.get(name).map(PathBuf::as_path);
            let installed = target::locate(&peer, given, &options.cache).map_err(|error| error.to_string())?;
            Ok((peer, installed))
        };
        let named = target::backend_names().into_iter().filter(is_named);
        let found = named.map(|name| (name.clone(), find(&name))).collect();
        BesideServices { found, running: BTreeMap::new() }
    }

    fn named<'a>(&'a self, row: &'a ScenarioRow) -> impl Iterator<Item = &'a String> {
        self.found.keys().filter(|name| row.names(&placeholder(name)))
    }

    /// The reason why a row cannot run: a service that it needs is not there.
    pub(super) fn missing(&self, row: &ScenarioRow) -> Option<String> {
        self.named(row).find_map(|name| {
            let reason = self.found[name].as_ref().err()?;
            Some(format!("the row needs the service `{name}`: {reason}"))
        })
    }

    /// The entries in the result of those that were started.
    pub(super) fn records(&self) -> Vec<TargetRecord> {
        let of = |name: &String| {
            let version = self.found[name].as_ref().map(|(_, installed)| installed.version.clone()).unwrap_or_default();
            TargetRecord { name: name.clone(), version, ..TargetRecord::default() }
        };
        self.running.keys().map(of).collect()
    }

    /// Starts the services that a row names and that do not run yet.
    pub(super) fn provide(
        &mut self,
        row: &ScenarioRow,
        place: &RunDirectory,
        cpus: &[u32],
    ) -> Result<ServicesOfRow, SetupError> {
        let named: Vec<String> = self.named(row).cloned().collect();
        for name in &named {
            if let (false, Ok((peer, installed))) = (self.running.contains_key(name), &self.found[name]) {
                let started = start(peer, installed, place, cpus)?;
                self.running.insert(name.clone(), started);
            }
        }
        let running = || named.iter().filter_map(|name| Some((name, self.running.get(name)?)));
        Ok(ServicesOfRow {
            placeholders: running()
                .map(|(name, (address, _))| (placeholder(name), Value::from(address.to_string())))
                .collect(),
            watched: running().map(|(name, (_, child))| watched(name, child, cpus)).collect(),
        })
    }
}

fn start(
    peer: &PeerDefinition,
    installed: &Installed,
    place: &RunDirectory,
    cpus: &[u32],
) -> Result<(SocketAddr, Child), SetupError> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port(Ipv4Addr::LOCALHOST)?));
    let dir = place.directory(&peer.name)?;
    let endpoints = [BackendAddress { host: address.ip().to_string(), port: address.port() }];
    let inputs = backend::inputs(place, &BackendSettings::default(), &endpoints, 1, &dir);
    for (name, text) in &target::render(peer, &inputs)? {
        super::place::write(&dir.join(name), text)?;
    }
    let command = peer.command(&peer.start, &installed.program.display().to_string(), &inputs.dir, 1);
    let mut child = Child::start(&command, &BTreeMap::new(), Vec::new(), &dir, cpus)?;
    match wait_until_listening(&mut child, address) {
        Readiness::Ready => Ok((address, child)),
        Readiness::Ended(ended) => Err(SetupError::ServiceEnded { name: peer.name.clone(), ended }),
        Readiness::TimedOut => Err(SetupError::ServiceSilent(peer.name.clone())),
    }
}
