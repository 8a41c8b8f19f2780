//! Gives a target another configuration while it is under load.

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::PathBuf,
    process::Command,
    time::Duration,
};

use super::{ReloadError, place::write, plan};
use crate::target::{self, ChangeRequest, CommandError, Inputs, PeerDefinition, TemplateRoute};

/// Gives one target another configuration.
pub(super) struct Reload {
    peer: PeerDefinition,
    program: String,
    dir: PathBuf,
    inputs: Inputs,
}

/// Used instead of a route's name if all routes change.
const ALL: &str = "all";
/// The time-out of the upstreams of routes that are not changed, in seconds.
const UNCHANGED_TIMEOUT_S: u32 = 60;
/// Time-out of connecting to the target and of each read of its answer.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);

impl Reload {
    pub(super) fn new(peer: PeerDefinition, program: String, dir: PathBuf, inputs: Inputs) -> Reload {
        Reload { peer, program, dir, inputs }
    }

    /// Changes the time-out of the upstream of the middle route. The value depends on `at_s`, so that each reload makes a change.
    pub(super) fn one_route(&self, at_s: f64, pid: u32) -> Result<(), ReloadError> {
        let route = self.inputs.routes.get(self.inputs.routes.len() / 2).ok_or(ReloadError::NoRoute)?;
        self.with_changed(&route.name, at_s, pid)
    }

    /// Changes the upstreams of all routes.
    pub(super) fn all_routes(&self, at_s: f64, pid: u32) -> Result<(), ReloadError> {
        self.with_changed(ALL, at_s, pid)
    }

    /// The route that [`Reload::change_route`] changes: the last one that receives requests.
    fn changing_route(&self) -> Result<&TemplateRoute, ReloadError> {
        let last = plan::asked_routes(self.inputs.routes.len()).last().ok_or(ReloadError::NoRoute)?;
        Ok(&self.inputs.routes[last])
    }

    /// Makes the answers of one route carry the number of this change in `X-Change`: by a request to the target if it supports
    /// that, otherwise by its files.
    pub(super) fn change_route(&self, number: u64, pid: u32) -> Result<(), ReloadError> {
        let route = self.changing_route()?;
        match &self.peer.change {
            Some(request) => self.send(request, &route.name, number),
            None => {
                let (changed, changed_timeout_s) = (route.name.clone(), UNCHANGED_TIMEOUT_S);
                self.take(Inputs { changed, changed_timeout_s, change_number: number, ..self.inputs.clone() }, pid)
            }
        }
    }

    /// Whether [`Reload::change_route`] returns when all workers of the target serve the change.
    pub(super) fn waits_for_all_workers(&self) -> bool {
        self.peer.change.as_ref().is_some_and(|request| request.answers_when_served)
    }

    /// Whether an answer of the changed route carries this number.
    pub(super) fn shows(&self, number: u64) -> Result<bool, ReloadError> {
        let route = self.changing_route()?;
        let request = format!("GET {}/x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", route.prefix);
        // The connection may be accepted by an old process that closes it; an error counts as not visible yet, and the caller
        // asks again.
        let answer = ask(self.inputs.port, &request).unwrap_or_default().to_ascii_lowercase();
        Ok(answer.lines().any(|line| line == format!("x-change: {number}")))
    }

    fn send(&self, request: &ChangeRequest, route: &str, number: u64) -> Result<(), ReloadError> {
        let filled = |text: &str| text.replace("{route}", route).replace("{number}", &number.to_string());
        let (path, body) = (filled(&request.path), filled(&request.body));
        let fields: String = request.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let text = format!(
            "{} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}Content-Length: {}\r\n\r\n{body}",
            request.method,
            body.len()
        );
        let answer = match ask(self.inputs.admin_port, &text) {
            Ok(answer) if answer.starts_with("HTTP/1.1 2") => return Ok(()),
            Ok(answer) => answer,
            Err(source) => return Err(ReloadError::Request { path, source }),
        };
        Err(ReloadError::Refused { path, answer: answer.lines().next().unwrap_or("no answer").to_owned() })
    }

    fn with_changed(&self, routes: &str, at_s: f64, pid: u32) -> Result<(), ReloadError> {
        let (changed, changed_timeout_s) = (routes.to_owned(), UNCHANGED_TIMEOUT_S + 1 + at_s as u32);
        self.take(Inputs { changed, changed_timeout_s, ..self.inputs.clone() }, pid)
    }

    /// Writes the files again, and triggers the target's reload.
    fn take(&self, inputs: Inputs, pid: u32) -> Result<(), ReloadError> {
        for (name, text) in target::render(&self.peer, &inputs)? {
            write(&self.dir.join(name), &text)?;
        }
        let words = self.peer.command(&self.peer.reload, &self.program, &inputs.dir, inputs.workers);
        let words: Vec<String> = words.iter().map(|word| word.replace("{pid}", &pid.to_string())).collect();
        let (program, arguments) = words.split_first().ok_or(ReloadError::NoCommand)?;
        let output = Command::new(program)
            .args(arguments)
            .current_dir(&self.dir)
            .output()
            .map_err(CommandError::start(program))?;
        match output.status.success() {
            true => Ok(()),
            false => {
                let said = String::from_utf8_lossy(&output.stderr);
                Err(CommandError::ended(&words.join(" "), &output, &said).into())
            }
        }
    }
}

/// Sends a request with `Connection: close`, and reads the whole answer.
fn ask(port: u16, request: &str) -> io::Result<String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, ASK_TIMEOUT)?;
    stream.set_read_timeout(Some(ASK_TIMEOUT))?;
    stream.set_nodelay(true)?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
