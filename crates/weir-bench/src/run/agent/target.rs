//! A target that an agent has started.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use serde_json::Value;

use super::{
    super::{
        SetupError,
        configure::configure,
        not_started::StartFailure,
        place::{RunDirectory, free_port},
        target_log::LogFiles,
    },
    message::{TargetOrder, TargetState},
};
use crate::{
    result::{Configuration, ProcessRole},
    sample::{WatchedProcess, memory_kinds, open_files_limit, rss_bytes},
    target::{Child, Inputs, Installed, PeerDefinition, Readiness, wait_until_listening},
};

/// What stands in an order for the directory of the target, which only the agent knows.
pub(in crate::run) const RUN_DIRECTORY: &str = "{dir}";

pub(super) struct SessionTarget {
    child: Child,
    peer: PeerDefinition,
    cpus: Vec<u32>,
    dir: PathBuf,
    log: LogFiles,
}

/// What a started target needs to be reached and reported.
pub(super) struct StartedHere {
    pub target: SessionTarget,
    pub port: u16,
    pub configuration: Configuration,
}

impl SessionTarget {
    /// Configures, checks and starts a target, which listens at `host`. `started` is called with the process.
    pub(super) fn start(
        order: TargetOrder,
        (peer, installed): (PeerDefinition, Installed),
        place: &RunDirectory,
        host: Ipv4Addr,
        started: &dyn Fn(u32),
    ) -> Result<StartedHere, Box<StartFailure>> {
        let dir = place.directory(&peer.name)?;
        let port = free_port(host)?;
        let mut inputs = Inputs {
            dir: dir.display().to_string(),
            host: host.to_string(),
            port,
            admin_port: free_port(Ipv4Addr::LOCALHOST)?,
            open_files: place.open_files,
            tls: order.inputs.tls.is_some().then(|| place.certificate.clone()),
            certificate: None,
            // Never a path from another machine.
            installed: String::new(),
            ..order.inputs
        };
        inputs.policies.values_mut().for_each(|options| name_directory(options, &inputs.dir));
        let directory = peer.installed(&place.cache).map_err(SetupError::from)?;
        if installed.program.starts_with(&directory) {
            inputs.installed = directory.display().to_string();
        }
        let configuration = configure(place, (&peer, &installed), &inputs, &dir, (&order.row, started))?;
        let program = installed.program.display().to_string();
        let command = |words: &[String]| peer.command(words, &program, &inputs.dir, inputs.workers);
        let environment = peer.environment(&inputs.dir, inputs.workers);
        let start = command(&peer.start);
        let child = Child::start(&start, &environment, command(&peer.stop), &dir, &order.cpus);
        let mut child = child.map_err(SetupError::from)?;
        started(child.pid());
        let reason = match wait_until_listening(&mut child, SocketAddr::from((host, port))) {
            Readiness::Ready => {
                let log = LogFiles::new(&child, &peer, &dir);
                let target = SessionTarget { child, peer, cpus: order.cpus, dir, log };
                return Ok(StartedHere { target, port, configuration });
            }
            Readiness::Ended(ended) => ended.to_string(),
            Readiness::TimedOut => format!("it did not listen in time; it printed: {}", child.last_words()),
        };
        Err(Box::new(StartFailure { configuration: Some(configuration), ..StartFailure::failed(reason) }))
    }

    pub(super) fn watched(&self) -> WatchedProcess {
        WatchedProcess {
            role: ProcessRole::Target,
            name: self.peer.name.clone(),
            cpus: self.cpus.clone(),
            root: self.child.pid(),
            workers: self.peer.worker_threads.clone(),
        }
    }

    /// Its state, with the errors that it has logged since the last call.
    pub(super) fn state(&mut self) -> TargetState {
        let pids = self.child.tree();
        TargetState {
            ended: self.child.ended().map(|ended| ended.to_string()),
            errors: self.log.new_errors(&self.peer),
            open_files: open_files_limit(&pids),
            rss_bytes: rss_bytes(&pids),
            memory: memory_kinds(&pids),
        }
    }

    /// Stops the target and removes its files.
    pub(super) fn stop(self) {
        drop(self.child);
        // If this fails, the directory of the run is removed with all in it.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Replaces the placeholder of the directory in options of plugins.
fn name_directory(options: &mut Value, dir: &str) {
    match options {
        Value::String(text) => *text = text.replace(RUN_DIRECTORY, dir),
        Value::Array(values) => values.iter_mut().for_each(|value| name_directory(value, dir)),
        Value::Object(members) => members.values_mut().for_each(|value| name_directory(value, dir)),
        _ => {}
    }
}
