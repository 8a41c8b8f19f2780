//! A target takes another configuration while it is loaded.

use std::{path::PathBuf, process::Command};

use super::place::write;
use crate::target::{self, Inputs, PeerDefinition};

/// How a target is given another configuration.
pub struct Reload {
    peer: PeerDefinition,
    program: String,
    dir: PathBuf,
    inputs: Inputs,
}

/// What stands for all routes where a route's name would.
const ALL: &str = "all";

impl Reload {
    pub fn new(peer: PeerDefinition, program: String, dir: PathBuf, inputs: Inputs) -> Reload {
        Reload { peer, program, dir, inputs }
    }

    /// Changes the upstream of the route in the middle. Reloads at different times have different time-outs.
    pub fn one_route(&self, at_s: f64, pid: u32) -> Result<(), String> {
        let route = self.inputs.routes.get(self.inputs.routes.len() / 2).ok_or("there is no route to change")?;
        self.with_changed(&route.name, at_s, pid)
    }

    /// Changes the upstreams of all routes.
    pub fn all_routes(&self, at_s: f64, pid: u32) -> Result<(), String> {
        self.with_changed(ALL, at_s, pid)
    }

    fn with_changed(&self, routes: &str, at_s: f64, pid: u32) -> Result<(), String> {
        let (changed, changed_timeout_s) = (routes.to_owned(), 61 + at_s as u32);
        let inputs = Inputs { changed, changed_timeout_s, ..self.inputs.clone() };
        for (name, text) in target::render(&self.peer, &inputs)? {
            write(&self.dir.join(name), &text)?;
        }
        let words = self.peer.command(&self.peer.reload, &self.program, &inputs.dir, inputs.workers);
        let words: Vec<String> = words.iter().map(|word| word.replace("{pid}", &pid.to_string())).collect();
        let (program, arguments) = words.split_first().ok_or("the peer has no `reload` command")?;
        let output = Command::new(program)
            .args(arguments)
            .current_dir(&self.dir)
            .output()
            .map_err(|error| format!("{program}: {error}"))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("{}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim())),
        }
    }
}
