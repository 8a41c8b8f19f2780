use std::{
    collections::BTreeMap,
    env, fs,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
};

use super::place::{Place, free_port};
use crate::{
    library,
    manifest::Pinning,
    result::Role,
    sample::Watched,
    scenario::{Backend, BackendKind, Row, Scenario},
    target::{self, Child, Endpoint, Inputs, Readiness, wait_until_listening},
};

/// The backends of a row, all in one process.
pub struct Running {
    process: Child,
    pub endpoints: Vec<Endpoint>,
    pub tls: bool,
    cpus: Vec<u32>,
}

impl Running {
    pub fn start(
        place: &Place,
        scenario: &Scenario,
        row: &Row,
        workers: u32,
        pinning: &Pinning,
    ) -> Result<Running, String> {
        let backend = scenario.backend(row);
        let mut endpoints = Vec::new();
        while endpoints.len() < backend.instances.max(1) as usize {
            let endpoint = Endpoint { host: "127.0.0.1".to_owned(), port: free_port()? };
            // A port that is free may be named twice.
            if !endpoints.contains(&endpoint) {
                endpoints.push(endpoint);
            }
        }
        let cpus = pinning.backend.clone();
        let dir = place.directory("backend")?;
        let command = match backend.kind {
            BackendKind::Nginx => nginx(place, backend, &endpoints, workers.min(cpus.len() as u32).max(1), &dir)?,
            BackendKind::Builtin => builtin(place, backend, &endpoints, cpus.len())?,
        };
        let process = Child::start(&command, &BTreeMap::new(), Vec::new(), &dir, &cpus)?;
        let mut running = Running { process, endpoints, tls: backend.tls, cpus };
        for endpoint in &running.endpoints {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, endpoint.port));
            match wait_until_listening(&mut running.process, address) {
                Readiness::Ready => {}
                Readiness::Ended(reason) => return Err(format!("the backend did not start: {reason}")),
                Readiness::TimedOut => return Err("the backend does not listen".to_owned()),
            }
        }
        Ok(running)
    }

    /// What to sample, all backends together.
    pub fn watched(&self) -> Watched {
        Watched { role: Role::Backend, name: "backend".to_owned(), cpus: self.cpus.clone(), root: self.process.pid() }
    }
}

fn body(backend: &Backend) -> String {
    match (&backend.body, backend.body_bytes) {
        (Some(body), _) => body.clone(),
        (None, Some(bytes)) => "x".repeat(bytes as usize),
        (None, None) => "OK".to_owned(),
    }
}

/// The command to start nginx with `return 200`.
fn nginx(
    place: &Place,
    backend: &Backend,
    endpoints: &[Endpoint],
    workers: u32,
    dir: &Path,
) -> Result<Vec<String>, String> {
    let path = "peers/nginx/backend.conf.j2";
    let template = library::text(path).ok_or_else(|| format!("{path} is missing"))?;
    let inputs = Inputs {
        dir: dir.display().to_string(),
        port: 0,
        admin_port: 0,
        workers,
        open_files: place.open_files,
        upstream_connections: 0,
        backends: endpoints.to_vec(),
        hosts: Vec::new(),
        backend_tls: backend.tls,
        tls: None,
        http2: false,
        websocket: false,
        sse: false,
        routes: Vec::new(),
        consumers: Vec::new(),
        policies: BTreeMap::new(),
        upstream: BTreeMap::new(),
        certificate: Some(place.certificate.clone()),
        body: body(backend),
    };
    let file = dir.join("nginx.conf");
    let text = target::render_text(path, &template, &inputs)?;
    fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    let peer = target::read("nginx")?;
    let program = target::locate(&peer, None, dir)?.program.display().to_string();
    Ok(peer.command(&peer.start, &program, &inputs.dir, inputs.workers))
}

/// The command for the lab's own backends: this program again as `weir backend`, all of them in one process.
fn builtin(place: &Place, backend: &Backend, endpoints: &[Endpoint], threads: usize) -> Result<Vec<String>, String> {
    let program = env::current_exe().map_err(|error| format!("the lab's own program: {error}"))?;
    let mut command = vec![program.display().to_string(), "backend".to_owned()];
    let mut option = |name: &str, value: String| command.extend([name.to_owned(), value]);
    for endpoint in endpoints {
        option("--listen", format!("{}:{}", endpoint.host, endpoint.port));
    }
    option("--threads", threads.max(1).to_string());
    match body(backend).len() {
        2 => option("--answer", "ok".to_owned()),
        bytes => option("--answer", format!("{bytes}B")),
    }
    if let Some(delay) = &backend.delay {
        option("--delay", delay.clone());
    }
    if backend.tls {
        option("--cert", place.certificate.cert_file.clone());
        option("--key", place.certificate.key_file.clone());
    }
    Ok(command)
}
